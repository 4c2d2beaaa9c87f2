"""The jobs that are recorded: what every rank runs. Rank 0 returns the rows (or the trace)."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from sim.record.clock import Load, quantile, sleep_until, variation
from sim.record.emulate import sleeping_model
from sim.record.models import make
from sim.validate.recordings.rows import power_rank
from sim.validate.recordings.trace import LayerTrace

WARM_UP = 4
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What all jobs of a recording share.

    Attributes
    ----------
    tag : str
        First column of every row.
    rate_mbit, delay_us : float
        Of a host's cable.
    workload : str
        Model, see :func:`sim.record.models.make`.
    trace : LayerTrace, optional
        Emulate compute with these times; compute really if absent.
    steps : int
        Measured steps.
    slow_rank, slow_factor : int, float
        A rank whose emulated compute takes longer; -1: none.
    """

    tag: str
    rate_mbit: float
    delay_us: float
    workload: str
    trace: LayerTrace | None = None
    steps: int = 16
    slow_rank: int = -1
    slow_factor: float = 1.0

    def scale(self, rank: int) -> float:
        """Factor on a rank's compute."""
        return self.slow_factor if rank == self.slow_rank else 1.0

    @property
    def model(self) -> str:
        """Name of the model and of its trace: of ``module:function`` the function."""
        return self.trace.model if self.trace else self.workload.rpartition(":")[2]

    @property
    def network(self) -> Row:
        """Columns of the network."""
        return {"tag": self.tag, "rate_mbit": self.rate_mbit, "delay_us": self.delay_us}

    @property
    def slow(self) -> str:
        """The column ``slow``."""
        return f"{self.slow_rank}:{self.slow_factor:g}" if self.slow_rank >= 0 else ""


# -- collectives -----------------------------------------------------------------------------------------


def collectives(
    setting: Setting, operations: Sequence[str], sizes: Sequence[int]
) -> Callable[[int, int], Any]:
    """Time operations over sizes; every repetition starts at one agreed instant on all ranks."""

    def job(rank: int, ranks: int) -> list[Row]:
        rows = []
        for op in operations:
            for size in sizes if op != "barrier" else (0,):
                rows.append(_time_collective(setting, op, size, rank, ranks))
        return rows

    return job


def _time_collective(setting: Setting, op: str, size: int, rank: int, ranks: int) -> Row:
    call = _operation(op, size, rank, ranks)
    call()
    repetitions = _repetitions(call)
    margin = 1.5e-3 + 16e-6 * setting.delay_us
    start = torch.zeros(1, dtype=torch.float64)
    begun, ended = [], []
    with Load() as load:
        for _ in range(repetitions):
            dist.barrier()
            start.fill_(time.perf_counter() + margin)
            dist.broadcast(start, 0)
            sleep_until(start.item())
            begun.append(time.perf_counter())
            call()
            ended.append(time.perf_counter())
    table = _gather(begun + ended, ranks)
    if op == "send":
        table = table[:2]
    latest = table[:, :repetitions].max(0).values
    times = (table[:, repetitions:].max(0).values - latest).tolist()
    skew = (latest - table[:, :repetitions].min(0).values).median().item()
    spread = {
        f"{name}_us": quantile(times, part) * 1e6
        for name, part in (("min", 0), ("q25", 0.25), ("median", 0.5), ("q75", 0.75), ("max", 1))
    }
    return {
        **setting.network, "op": op, "world": ranks, "bytes": size, "reps": repetitions, **spread,
        "start_skew_us": skew * 1e6, "cv": variation(times), **_machine(load),
    }  # fmt: skip


def _repetitions(call: Callable[[], Any], budget: float = 1.0) -> int:
    """As many as fit into a second, 3 to 20; alike on all ranks."""
    dist.barrier()
    begin = time.perf_counter()
    call()
    spent = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
    dist.all_reduce(spent, op=dist.ReduceOp.MAX)
    return int(min(20, max(3, budget / max(spent.item(), 1e-6))))


def _operation(op: str, size: int, rank: int, ranks: int) -> Callable[[], Any]:
    elements = max(ranks, size // 4 // ranks * ranks)
    buffer, part, other = torch.ones(elements), torch.ones(elements // ranks), torch.ones(elements)
    following, previous = (rank + 1) % ranks, (rank - 1) % ranks

    def exchange() -> None:
        sent, received = dist.isend(buffer, following), dist.irecv(other, previous)
        sent.wait()
        received.wait()

    def send() -> None:
        if rank == 0:
            dist.send(buffer, 1)
        elif rank == 1:
            dist.recv(buffer, 0)

    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(buffer),
        "broadcast": lambda: dist.broadcast(buffer, 0),
        "reduce": lambda: dist.reduce(buffer, 0),
        "all_gather": lambda: _gather_one(buffer, part),
        "reduce_scatter": lambda: _scatter_one(part, buffer),
        "all_to_all": lambda: dist.all_to_all_single(other, buffer),
        "sendrecv_ring": exchange,
        "send": send,
        "barrier": dist.barrier,
    }
    return calls[op]


# torch renamed both in 2.13.
_gather_one = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter_one = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


# -- layers ----------------------------------------------------------------------------------------------


def layers(workload: str, steps: int) -> Callable[[int, int], Any]:
    """Times of the modules that have parameters, forward and backward, on one rank."""

    def job(rank: int, ranks: int) -> dict[str, Any]:
        model = make(workload)
        profile = _Profile(model.module)
        optimizer = torch.optim.SGD(model.module.parameters(), lr=1e-3, momentum=0.9)
        inputs, target = model.batch()
        for step in range(WARM_UP + steps):
            profile.begin()
            loss = model.loss(model.module(inputs), target)
            profile.forward_done()
            loss.backward()
            done = time.perf_counter()
            optimizer.step()
            optimizer.zero_grad()
            if step >= WARM_UP:
                profile.end(done, time.perf_counter())
        return profile.trace(model.name, steps)

    return job


class _Profile:
    """Hooks that note when modules start and when their gradients are ready."""

    def __init__(self, module: Any) -> None:
        self.units = {name: unit for name, unit in module.named_modules() if list(unit.parameters(False))}
        self.started: dict[str, float] = {}
        self.ready: dict[str, float] = {}
        self.forward: dict[str, list[float]] = {name: [] for name in self.units}
        self.backward: dict[str, list[float]] = {name: [] for name in self.units}
        self.tail: list[float] = []
        self.update: list[float] = []
        for name, unit in self.units.items():
            unit.register_forward_pre_hook(lambda *_, name=name: self._start(name))
            for parameter in unit.parameters(False):
                parameter.register_post_accumulate_grad_hook(lambda *_, name=name: self._ready(name))

    def _start(self, name: str) -> None:
        self.started[name] = time.perf_counter()

    def _ready(self, name: str) -> None:
        self.ready[name] = time.perf_counter()

    def begin(self) -> None:
        self.started.clear()
        self.ready.clear()
        self.began = time.perf_counter()

    def forward_done(self) -> None:
        self.half = time.perf_counter()

    def end(self, backward_done: float, updated: float) -> None:
        """Note one step; what has no parameters counts with its neighbour."""
        order = sorted(self.started, key=self.started.__getitem__)
        stops = [self.started[name] for name in order[1:]] + [self.half]
        starts = [self.began] + [self.started[name] for name in order[1:]]
        for name, start, stop in zip(order, starts, stops, strict=True):
            self.forward[name].append(stop - start)
        before = self.half
        for name in sorted(self.ready, key=self.ready.__getitem__):
            self.backward[name].append(self.ready[name] - before)
            before = self.ready[name]
        self.tail.append(backward_done - before)
        self.update.append(updated - backward_done)

    def trace(self, model: str, steps: int) -> dict[str, Any]:
        """The trace, as ``LayerTrace`` reads it."""
        order = sorted(self.started, key=self.started.__getitem__)
        return {
            "model": model,
            "threads": 1,
            "steps": steps,
            "torch": torch.__version__,
            "opt_us": statistics.median(self.update) * 1e6,
            "bwd_tail_us": statistics.median(self.tail) * 1e6,
            "backward_order": sorted(self.ready, key=self.ready.__getitem__),
            "forward_order": order,
            "units": [
                {
                    "name": name,
                    "type": type(self.units[name]).__name__,
                    "fwd_us": statistics.median(self.forward[name]) * 1e6,
                    "bwd_us": statistics.median(self.backward[name]) * 1e6,
                    "fwd_cv": round(variation(self.forward[name]), 3),
                    "bwd_cv": round(variation(self.backward[name]), 3),
                    "params": [
                        [key, list(p.shape)] for key, p in self.units[name].named_parameters(recurse=False)
                    ],
                }
                for name in order
            ],
        }


# -- data parallel ---------------------------------------------------------------------------------------


def training(
    setting: Setting,
    *,
    bucket_mb: float = 25.0,
    hook: str = "none",
    overlap: bool = True,
    local_steps: int = 0,
) -> Callable[[int, int], Any]:
    """DDP, its communication after the backward (without ``overlap``), or local SGD (``local_steps``)."""

    def job(rank: int, ranks: int) -> list[Row]:
        step, module = _stepper(setting, rank)
        wrapped = module
        if overlap and not local_steps and ranks > 1:
            wrapped = nn.parallel.DistributedDataParallel(module, bucket_cap_mb=bucket_mb or None)
            _register(wrapped, hook)
        flat = torch.zeros(sum(p.numel() for p in module.parameters()))
        period = max(local_steps, 1)
        warm, measured = (-(-count // period) * period for count in (WARM_UP, setting.steps))
        for index in range(warm):
            _train(step, wrapped, module, flat, ranks, overlap, local_steps, index)
        times, load = _span(
            lambda index: _train(step, wrapped, module, flat, ranks, overlap, local_steps, index), measured
        )
        steps, mean = _step_times(times, ranks)
        algorithm = "local" if local_steps else ("ddp" if overlap else "blocking")
        return [
            {
                **setting.network, "mode": "replay" if setting.trace else "real", "algo": algorithm,
                "model": setting.model, "world": ranks,
                "bucket_mb": bucket_mb, "hook": hook, "k": local_steps or "", "scale": 1.0,
                "slow": setting.slow, "params": len(flat), "steps": len(steps),
                "median_step_us": statistics.median(steps) * 1e6, "mean_step_us": mean * 1e6,
                "q25_us": quantile(steps, 0.25) * 1e6, "q75_us": quantile(steps, 0.75) * 1e6,
                "cv": variation(steps), "steps_per_s": 1 / mean, **_machine(load),
            }
        ]  # fmt: skip

    return job


def _register(model: Any, hook: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif rank := power_rank(hook):
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _stepper(setting: Setting, rank: int) -> tuple[Callable[[Any], None], Any]:
    """A function that runs forward, backward and update of a (wrapped) module, and the module."""
    if setting.trace is not None:
        scale = setting.scale(rank)
        update = setting.trace.optimizer_s * scale
        emulated = nn.Sequential(*sleeping_model(setting.trace, scale=scale))
        ones = torch.ones(1, requires_grad=True)

        def sleep(module: Any) -> None:
            module(ones).sum().backward()
            sleep_until(time.perf_counter() + update)

        return sleep, emulated
    model = make(setting.workload)
    optimizer = torch.optim.SGD(model.module.parameters(), lr=1e-3, momentum=0.9)
    inputs, target = model.batch()

    def compute(module: Any) -> None:
        model.loss(module(inputs), target).backward()
        optimizer.step()

    return compute, model.module


def _train(
    step: Callable[[Any], None], wrapped: Any, module: Any, flat: Any, ranks: int, overlap: bool, tau: int,
    index: int,
) -> None:  # fmt: skip
    step(wrapped)
    if ranks > 1 and not tau and not overlap:
        _average([p.grad for p in module.parameters()], flat, ranks)
    for parameter in module.parameters():
        parameter.grad = None
    if ranks > 1 and tau and (index + 1) % tau == 0:
        _average([p.data for p in module.parameters()], flat, ranks)


def _average(tensors: Sequence[Any], flat: Any, ranks: int) -> None:
    """One all-reduce of everything."""
    torch.cat([tensor.flatten() for tensor in tensors], out=flat)
    dist.all_reduce(flat)
    flat.div_(ranks)
    at = 0
    for tensor in tensors:
        tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
        at += tensor.numel()


# -- pipeline and sharded --------------------------------------------------------------------------------


def pipeline(
    setting: Setting, schedule: str, micro_batches: int, shape: tuple[int, ...] = (1, 64, 256)
) -> Callable[[int, int], Any]:
    """``torch.distributed.pipelining`` with emulated compute; ``shape`` is a micro-batch's activation."""

    def job(rank: int, ranks: int) -> list[Row]:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

        assert setting.trace is not None
        units = sleeping_model(setting.trace, scale=1 / micro_batches, shape=shape, merge_s=1.5e-3)
        mine = nn.Sequential(*_cut(units, ranks)[rank])
        inside, outside = torch.ones(shape, requires_grad=rank > 0), torch.ones(shape, requires_grad=True)
        stage = PipelineStage(
            mine, rank, ranks, torch.device("cpu"), input_args=(inside,), output_args=(outside,)
        )
        kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule]
        plan = kind(stage, n_microbatches=micro_batches, loss_fn=lambda output, _: output.sum())
        whole = torch.ones((shape[0] * micro_batches, *shape[1:]))

        def step(_: int) -> None:
            if rank == 0:
                plan.step(whole)
            elif rank == ranks - 1:
                plan.step(target=whole)
            else:
                plan.step()
            for parameter in mine.parameters():
                parameter.grad = None
            dist.barrier()

        for turn in range(ranks):  # one after another: they may share cores
            if turn == rank:
                times = _alone(mine, shape)
            dist.barrier()
        alone = _gather(times, ranks)
        for index in range(WARM_UP):
            step(index)
        instants, load = _span(step, setting.steps)
        steps, mean = _step_times(instants, ranks)
        forward, backward = (" ".join(f"{t * 1e6:.0f}" for t in alone[:, k].tolist()) for k in (0, 1))
        return [
            {
                **setting.network, "sched": schedule, "model": setting.trace.model, "stages": ranks,
                "microbatches": micro_batches, "act_bytes": inside.numel() * 4, "stage_fwd_us": forward,
                "stage_bwd_us": backward, "median_step_us": statistics.median(steps) * 1e6,
                "mean_step_us": mean * 1e6, "cv": variation(steps), **_machine(load),
            }
        ]  # fmt: skip

    return job


def _cut(units: Sequence[Any], stages: int) -> list[list[Any]]:
    """Consecutive units in stages of about equal time, none of them empty."""
    total = sum(unit.forward_s + unit.backward_s for unit in units)
    parts: list[list[Any]] = [[] for _ in range(stages)]
    stage, done = 0, 0.0
    for index, unit in enumerate(units):
        seconds = unit.forward_s + unit.backward_s
        late = done + seconds / 2 > total * (stage + 1) / stages or len(units) - index < stages - stage
        if stage < stages - 1 and parts[stage] and late:
            stage += 1
        parts[stage].append(unit)
        done += seconds
    return parts


def _alone(module: Any, shape: tuple[int, ...], repetitions: int = 8) -> list[float]:
    """Median forward and backward seconds of a stage without communication."""
    forward, backward = [], []
    for _ in range(repetitions):
        inputs = torch.ones(shape, requires_grad=True)
        begin = time.perf_counter()
        output = module(inputs)
        half = time.perf_counter()
        output.sum().backward()
        forward.append(half - begin)
        backward.append(time.perf_counter() - half)
    for parameter in module.parameters():
        parameter.grad = None
    return [statistics.median(forward), statistics.median(backward)]


def sharded(setting: Setting, *, groups: int = 4, reshard: bool = True) -> Callable[[int, int], Any]:
    """FSDP2 (``fully_shard``) over consecutive groups of units with emulated compute."""

    def job(rank: int, ranks: int) -> list[Row]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        assert setting.trace is not None
        blocks = [layer.block for layer in setting.trace.workload(groups=groups).layers]
        parts: list[list[Any]] = [[] for _ in range(max(blocks) + 1)]
        for block, unit in zip(blocks, sleeping_model(setting.trace), strict=True):
            parts[block].append(unit)
        mesh = init_device_mesh("cpu", (ranks,))
        net: Any = nn.Sequential(*[nn.Sequential(*part) for part in parts])
        count = sum(p.numel() for p in net.parameters())
        for part in net:
            fully_shard(part, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(net, mesh=mesh)
        ones, update = torch.ones(1, requires_grad=True), setting.trace.optimizer_s / ranks

        def step(_: int) -> None:
            net(ones).sum().backward()
            sleep_until(time.perf_counter() + update)
            for parameter in net.parameters():
                parameter.grad = None

        for index in range(WARM_UP):
            step(index)
        times, load = _span(step, setting.steps)
        steps, mean = _step_times(times, ranks)
        return [
            {
                **setting.network, "mode": "replay", "model": setting.trace.model, "world": ranks,
                "groups": groups, "reshard": int(reshard), "params": count,
                "median_step_us": statistics.median(steps) * 1e6, "mean_step_us": mean * 1e6,
                "cv": variation(steps), **_machine(load),
            }
        ]  # fmt: skip

    return job


# -- what they share -------------------------------------------------------------------------------------


def _span(step: Callable[[int], None], count: int) -> tuple[list[float], Load]:
    """Instants around ``count`` steps."""
    dist.barrier()
    times = [time.perf_counter()]
    with Load() as load:
        for index in range(count):
            step(index)
            times.append(time.perf_counter())
    return times, load


def _gather(values: Sequence[float], ranks: int) -> Any:
    """Values of all ranks, one row each."""
    table = [torch.zeros(len(values), dtype=torch.float64) for _ in range(ranks)]
    dist.all_gather(table, torch.tensor(list(values), dtype=torch.float64))
    return torch.stack(table)


def _step_times(times: Sequence[float], ranks: int) -> tuple[list[float], float]:
    """Time of each step on its slowest rank, and the mean over the whole span."""
    table = _gather(times, ranks)
    steps = (table[:, 1:] - table[:, :-1]).max(0).values.tolist()
    return steps, ((table[:, -1].max() - table[:, 0].max()) / (len(times) - 1)).item()


def _machine(load: Load) -> Row:
    return {"cpu_busy": load.busy, "loadavg": os.getloadavg()[0]}
