"""One recording: a trace, a ping, and the jobs that were asked for, into one folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import InputError
from sim.record.clock import ending_orderly, kernel_first
from sim.record.launch import require_torch, run_ranks
from sim.record.network import EmulatedHosts, require_emulation
from sim.record.tables import append
from sim.validate.recordings.rows import power_rank
from sim.validate.recordings.trace import LayerTrace

if TYPE_CHECKING:
    from sim.record.jobs import Setting

STRATEGIES = ("collectives", "ddp", "local", "server", "pipeline", "fsdp")
RULES, SCHEDULES = ("sync", "async", "ssp"), ("gpipe", "1f1b")
MAX_RANKS, MAX_BYTES = 64, 2**30
_PINGS = 3
PING_BYTES, BULK_BYTES = 1024, 16 * 2**20
_SIZES = (1024, 16384, 262144, 1048576, 4194304)
_OPERATIONS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "sendrecv_ring",
    "barrier",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What to record.

    Attributes
    ----------
    workload : str
        mlp, cnn, transformer, or ``module:function``.
    ranks : int
    strategies : tuple of str
        Of :data:`STRATEGIES`.
    emulate : bool
        Replace compute by sleeps of its measured time.
    rate_mbit, delay_us : float, optional
        Emulated hosts, one per rank; this machine's loopback if there is no rate.
    slow_link : tuple of (int, float), optional
        A host and its own rate in Mbit/s.
    slow_rank : tuple of (int, float), optional
        A rank and the factor on its emulated compute.
    queued : bool
        Whether the emulated switch has one queue for everything.
    buckets, hooks, overlaps : tuples
        Of DDP: capacities in MiB (0: torch's default), communication hooks, whether it overlaps.
    local_steps : tuple of int
        Of local SGD.
    rules, staleness : tuple of str, int
        Of the parameter server.
    schedules, micro_batches : tuple of str, int
        Of the pipeline.
    sizes : tuple of int
        Bytes of collectives.
    steps : int
        Measured steps of every job.
    real_time : bool
        Real-time priorities, see :func:`sim.record.launch.run_ranks`.
    """

    workload: str
    ranks: int
    strategies: tuple[str, ...]
    emulate: bool = False
    rate_mbit: float | None = None
    delay_us: float = 0.0
    slow_link: tuple[int, float] | None = None
    slow_rank: tuple[int, float] | None = None
    queued: bool = False
    buckets: tuple[float, ...] = (25.0,)
    hooks: tuple[str, ...] = ("none",)
    overlaps: tuple[bool, ...] = (True,)
    local_steps: tuple[int, ...] = (4,)
    rules: tuple[str, ...] = ("sync", "async")
    staleness: int = 2
    schedules: tuple[str, ...] = ("gpipe", "1f1b")
    micro_batches: int = 8
    sizes: tuple[int, ...] = _SIZES
    steps: int = 16
    real_time: bool = False

    def __post_init__(self) -> None:
        for option, given, known in (
            ("--strategy", self.strategies, STRATEGIES),
            ("--rule", self.rules, RULES),
            ("--schedule", self.schedules, SCHEDULES),
        ):
            for name in given:
                if name not in known:
                    raise InputError(option, f"be one of {', '.join(known)}", name)
        for hook in self.hooks:
            if hook not in ("none", "fp16") and not (power_rank(hook) or 0) > 0:
                raise InputError("--hook", "be none, fp16 or powersgdR (R a rank of at least 1)", hook)
        self._check_numbers()
        self._check_slow()

    def _check_numbers(self) -> None:
        if not 2 <= self.ranks <= MAX_RANKS:
            raise InputError("--ranks", f"be from 2 to {MAX_RANKS}", self.ranks)
        if self.rate_mbit is not None and not 0 < self.rate_mbit < inf:
            raise InputError("--link", "be a positive rate", f"{self.rate_mbit:g} Mbit/s")
        if not 0 <= self.delay_us < inf:
            raise InputError("--delay", "not be negative", f"{self.delay_us:g} us")
        for bucket in self.buckets:
            if not 0 <= bucket < inf:
                raise InputError("--bucket", "be a number of MiB, 0 for torch's default", bucket)
        for size in self.sizes:
            if not 0 < size <= MAX_BYTES:
                raise InputError("--size", f"be from 1 to {MAX_BYTES} bytes", size)

        if self.real_time and self.rate_mbit is None:
            # Over the loopback gloo polls without a pause: above the ranks, it keeps them from the cores.
            raise InputError(
                "--real-time", "come with --hosts: gloo's threads would starve ranks on one host"
            )

    def _check_slow(self) -> None:
        """What is slow must exist, and must be something that these jobs can slow down."""
        for name, given in (("--slow-rank", self.slow_rank), ("--slow-link", self.slow_link)):
            if given is None:
                continue
            if not 0 <= given[0] < self.ranks:
                raise InputError(name, f"name a rank from 0 to {self.ranks - 1}", given[0])
            if not 0 < given[1] < inf:
                raise InputError(name, "have a positive value", f"{given[0]}:{given[1]:g}")
        if self.slow_link is not None and self.rate_mbit is None:
            raise InputError("--slow-link", "come with --hosts: only an emulated link can be slow")
        if self.slow_rank is None:
            return
        jobs = set(self.strategies) - {"ddp", "local", "server"}
        if jobs or not (self.emulate or set(self.strategies) == {"server"}):
            must = "come with --emulate-compute and only ddp, local or server"
            raise InputError("--slow-rank", must, " ".join(self.strategies))

    @property
    def tag(self) -> str:
        """First column of every row: the network, and what is not equal about the ranks."""
        base = ("fifo" if self.queued else "fluid") if self.rate_mbit else "loopback"
        if self.slow_link:
            base += f"-hetero-link{self.slow_link[0]}-{self.slow_link[1]:g}"
        return base


@dataclass
class Recorder:
    """Runs a request and writes its tables and its trace.

    Parameters
    ----------
    request : Request
    folder : Path
    progress : callable
        Called with a line of text before each job.
    """

    request: Request
    folder: Path
    progress: Callable[[str], None] = lambda text: None
    written: list[Path] = field(default_factory=list)

    def run(self) -> list[Path]:
        """Record everything; returns the files that were written.

        Raises
        ------
        InputError
            Without torch, or where hosts cannot be emulated.
        RecordingFailed
            If a job fails.
        """
        require_torch()
        if self.request.rate_mbit is not None:
            require_emulation()  # before minutes are spent on the layers
        with ending_orderly(), kernel_first() if self.request.real_time else nullcontext():
            self._record()
        return self.written

    def _record(self) -> None:
        trace = self._trace()
        self._check_power(trace)
        with self._hosts() as hosts:
            for text, kind, job in self._jobs(self._setting(hosts), trace):
                self.progress(text)
                rows = self._ranks(job, self.request.ranks, hosts, self._cores())
                self._note(append(self.folder, kind, rows))

    def _check_power(self, trace: LayerTrace) -> None:
        """Refuse PowerSGD over several buckets: gloo's threads issue its all-reduces in no fixed order.

        The second and third all-reduce of a bucket are issued by the thread that finished the one before.
        With two buckets under way ranks then disagree about what comes next, and gloo ends the process.
        """
        if "ddp" not in self.request.strategies or not any(map(power_rank, self.request.hooks)):
            return
        size = 4 * trace.num_parameters / 2**20
        for bucket in self.request.buckets:
            if bucket < size:
                must = f"hold the whole model ({ceil(size)} MiB) for a PowerSGD hook"
                raise InputError("--bucket", must, f"{bucket:g}", hint=f"Try --bucket {ceil(size)}.")

    def _trace(self) -> LayerTrace:
        from sim.record.jobs import layers

        self.progress(f"layers of {self.request.workload} on one rank")
        job = layers(self.request.workload, max(self.request.steps, 10))
        data = self._ranks(job, 1, None, (self._core,))
        path = self.folder / "traces" / f"{data['model']}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(data, indent=1))
        except OSError as error:
            raise InputError(
                "--output", f"be writable ({(error.strerror or '').lower()})", str(path)
            ) from None
        self._note(path)
        return LayerTrace.read(path)

    @property
    def _core(self) -> int:
        import os

        return max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0

    def _cores(self) -> tuple[int, ...]:
        """Ranks that compute get a core each; those that sleep go where there is room."""
        import os

        if self.request.emulate or not hasattr(os, "sched_getaffinity"):
            return ()
        return tuple(sorted(os.sched_getaffinity(0)))

    @contextmanager
    def _hosts(self) -> Iterator[EmulatedHosts | None]:
        request = self.request
        if request.rate_mbit is None:
            with nullcontext():
                yield None
            return
        slow = dict([request.slow_link]) if request.slow_link else {}
        with EmulatedHosts(
            request.ranks, request.rate_mbit, request.delay_us, slow_links=slow, queued=request.queued
        ) as hosts:
            yield hosts

    def _setting(self, hosts: EmulatedHosts | None) -> Setting:
        """Measure the ping, and the rate of a network that nobody has set."""
        from sim.record.jobs import Setting, collectives

        request = self.request
        slow = request.slow_rank or (-1, 1.0)
        setting = Setting(
            request.tag, request.rate_mbit or 1.0, request.delay_us, request.workload, steps=request.steps,
            slow_rank=slow[0], slow_factor=slow[1],
        )  # fmt: skip
        self.progress("ping of two ranks")
        job = collectives(setting, ("sendrecv_ring",), (PING_BYTES, BULK_BYTES))
        # One launch in a few is slower by a tenth as a whole: the middle one counts.
        launches = [self._ranks(job, 2, hosts, ()) for _ in range(_PINGS)]
        ping, bulk = (
            sorted(rows, key=lambda row: row["median_us"])[_PINGS // 2]
            for rows in zip(*launches, strict=True)
        )
        if request.rate_mbit is None:
            seconds = (bulk["median_us"] - ping["median_us"]) * 1e-6
            # A link's rate counts wire bytes: 1538 for 1448 of data.
            rate = BULK_BYTES * 8 * 1538 / 1448 / max(seconds, 1e-6) / 1e6
            setting = replace(setting, rate_mbit=round(rate, 1))
        rows = [{**row, "rate_mbit": setting.rate_mbit} for row in (ping, bulk)]
        self._note(append(self.folder, "coll", rows))
        return setting

    def _jobs(self, real: Setting, trace: LayerTrace) -> Iterator[tuple[str, str, Any]]:
        """(text, table, job) of everything asked for."""
        from sim.record import jobs
        from sim.record.server import parameter_server

        request, emulated = self.request, replace(real, trace=trace)
        setting = emulated if request.emulate else real
        if "collectives" in request.strategies:
            yield "collectives", "coll", jobs.collectives(real, _OPERATIONS, request.sizes)
        if "ddp" in request.strategies:
            for overlap in request.overlaps:
                for bucket in request.buckets if overlap else (0.0,):
                    for hook in request.hooks if overlap else ("none",):
                        text = f"ddp, buckets {bucket:g} MiB, hook {hook}, overlap {overlap}"
                        yield (
                            text,
                            "ddp",
                            jobs.training(setting, bucket_mb=bucket, hook=hook, overlap=overlap),
                        )
        if "local" in request.strategies:
            for steps in request.local_steps:
                yield f"local SGD, {steps} steps", "ddp", jobs.training(setting, local_steps=steps)
        if "server" in request.strategies:
            for rule in request.rules:
                job = parameter_server(emulated, rule, request.staleness)
                yield f"parameter server, {rule}", "ps", job
        if "pipeline" in request.strategies:
            for schedule in request.schedules:
                job = jobs.pipeline(emulated, schedule, request.micro_batches)
                yield f"pipeline, {schedule}", "pipe", job
        if "fsdp" in request.strategies:
            yield "fully sharded", "fsdp", jobs.sharded(emulated)

    def _ranks(self, job: Any, ranks: int, hosts: EmulatedHosts | None, cores: tuple[int, ...]) -> Any:
        return run_ranks(job, ranks, hosts=hosts, cores=cores, real_time=self.request.real_time)

    def _note(self, path: Path) -> None:
        if path not in self.written:
            self.written.append(path)
