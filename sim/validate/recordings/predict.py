"""A recorded row to a prediction: the same scenario, lowered and played like any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Any

import numpy as np

from sim.engine import play
from sim.engine.record import RunRecord
from sim.errors import ClusterloomError, InputError
from sim.graph.execution import ExecutionGraph
from sim.lowering import lower, lower_collective
from sim.spec import Calibration, Cluster, Scenario, Strategy, Workload
from sim.spec.scenario import Perturbation
from sim.validate.recordings.intervals import USUAL_LATENCY_SPREAD, interval
from sim.validate.recordings.machines import WORKER, recorded_cluster
from sim.validate.recordings.rows import Row, power_rank
from sim.validate.recordings.trace import Traces, measured_layer, measured_workload

MIB = 2.0**20
EVERYTHING = 1e15  # a bucket that nothing fills
_BASELINE_LIMIT = 100
_LEAST_SPEED = 0.05  # of compute beside communication: real-time priorities leave as much to others
_OBSERVED, _ROUNDS = 10.0, 6  # seconds that a server is observed, and rounds of all workers
_DROPPED_STEPS = 1  # a worker's first step ends at the first instant of those that count
_GOODPUT = 1448 / 1538
_NEGLIGIBLE = 0.01  # spread of a latency
_OPERATIONS = {"sendrecv_ring": "neighbour_exchange"}
_SCHEDULES = ("gpipe", "1f1b")
_MODES = ("replay", "real")
_RULES = {"sync": "bsp", "async": "asp", "ssp": "ssp", "bsp": "bsp", "asp": "asp"}


@dataclass(frozen=True)
class Prediction:
    """What a row should have measured: seconds, or updates/s of a parameter server.

    Attributes
    ----------
    value, low, high : float or None
        None if there is none.
    bandwidth_only, one_latency : float or None
        Baselines: bytes over bandwidth beside the compute, and the same with one latency per message of the
        textbook algorithm.
    status : str
        ``ok`` or ``skipped``.
    message : str
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    bandwidth_only: float | None = None
    one_latency: float | None = None
    status: str = "ok"
    message: str = ""


@dataclass(frozen=True)
class Predictor:
    """Predicts rows with one calibration and the traces of one place.

    Parameters
    ----------
    calibration : Calibration
        With a ``gloo`` library, as ``clusterloom calibrate recordings`` makes it.
    traces : Traces
    compute_factor : float
        Factor on all compute times, to see what the trace's spread does.
    library : str
        ``gloo``, or ``nccl`` for textbook rings: the baselines.
    limit : int
        Steps of a run that neither recurs nor settles: more than any recording has. Textbook servers, which
        share links fairly, hardly ever recur, and their mean is known long before.
    """

    calibration: Calibration
    traces: Traces
    compute_factor: float = 1.0
    library: str = "gloo"
    limit: int = 400

    def predict(self, row: Row) -> Prediction:
        """Prediction with its interval and baselines; a row that cannot be predicted says why."""
        try:
            value = self.value(row)
        except ClusterloomError as error:
            return Prediction(status="skipped", message=str(error))
        ends = tuple(bounded.value(row) for bounded in self._bounds())
        low, high = interval(row, value, ends)
        bandwidth, latency = (self._baseline(baseline, row) for baseline in self._baselines())
        return Prediction(value, low, high, bandwidth, latency)

    @staticmethod
    def _baseline(baseline: Predictor, row: Row) -> float | None:
        """A baseline's prediction; None where the textbook has none."""
        try:
            return baseline.value(row)
        except ClusterloomError:
            return None

    def value(self, row: Row) -> float:
        """Seconds (updates/s of a parameter server) that the row should have measured."""
        predict = _PREDICT.get(row.kind)
        if predict is None:
            raise InputError("recordings", "be of a known kind", row.place)
        return predict(self, row)

    def _bounds(self) -> list[Predictor]:
        """Predictors at the ends of a ping that was worse than usual; none for a good one."""
        found = []
        latency = self.calibration.parameter("library", "gloo", "step_latency_network")
        for bound in ("low", "high"):
            spread = abs(latency.at(bound) / latency.value - 1) if latency.value else 0.0
            excess = sqrt(max(spread**2 - USUAL_LATENCY_SPREAD**2, 0.0))
            if excess < _NEGLIGIBLE:
                continue
            value = latency.value * (1 - excess if bound == "low" else 1 + excess)
            moved = latency.model_copy(update={"value": value, "low": None, "high": None})
            library = self.calibration.library
            table = {**library, "gloo": {**library["gloo"], "step_latency_network": moved}}
            found.append(replace(self, calibration=self.calibration.model_copy(update={"library": table})))
        return found

    def _baselines(self) -> tuple[Predictor, Predictor]:
        textbook = replace(self, library="nccl", limit=_BASELINE_LIMIT)
        one = self.calibration.model_copy(
            update={"library": {**self.calibration.library, "nccl": self.calibration.library["gloo"]}}
        )
        return replace(textbook, calibration=without_latency(one)), replace(textbook, calibration=one)

    # -- what all kinds share -----------------------------------------------------------------------

    def cluster(self, row: Row, hosts: int) -> Cluster:
        """The machines of a row."""
        bandwidth = self.calibration.value("device", WORKER, "memory_bandwidth")
        slow, server = row.slow_links, None
        if row.kind == "server":  # rank 0 of the recording is the server
            server, slow = slow.pop(0, None), {host - 1: rate for host, rate in slow.items() if host}
        slow = {host: rate for host, rate in slow.items() if host < hosts}
        cluster = recorded_cluster(
            hosts, rate=row.rate, delay=row.delay, memory_bandwidth=bandwidth, slow_links=slow,
            server_rate=server, queued=row.queued,
        )  # fmt: skip
        if self.library == "gloo":
            return cluster
        delay = row.delay if self.calibration.value("library", "nccl", "step_latency_network") else 0.0
        fabric = cluster.fabric.model_copy(update={"link_service": "fair", "latency": delay})
        return cluster.model_copy(update={"library": self.library, "fabric": fabric})

    def step(
        self,
        workload: Workload,
        cluster: Cluster,
        slow: dict[int, float] | None = None,
        **strategy: Any,
    ) -> float:
        """Seconds per training step."""
        return self.play(workload, cluster, slow, **strategy)[1].step_time

    def sharing(self, row: Row) -> Predictor:
        """The predictor of a row whose ranks compute on the cores that also move its bytes.

        Every rank has a core of its own, and hosts and switch are emulated on these cores. What gloo, TCP and
        switch take, before anything that computes, is missing there while a collective is under way. Where
        gloo's threads come after what computes (``starved``) they hardly run beside it instead.
        """
        if row.text("mode") != "real" or self.library != "gloo":
            return self
        if row.starved:
            return self._with_speed("communication_speed_under_compute", _LEAST_SPEED)
        per_byte = self.calibration.value("library", "gloo", "byte_processor_time")
        goodput = self.calibration.value("link", "nic", "bandwidth_efficiency")
        speed = max(1.0 - per_byte * row.rate * goodput, _LEAST_SPEED)
        return self._with_speed("compute_speed_under_communication", speed)

    def without_variation(self) -> Predictor:
        """The predictor of ranks that have been measured each by itself."""
        device = self.calibration.device
        none = self.calibration.parameter("device", WORKER, "speed_variation").model_copy(
            update={"value": 0.0, "low": None, "high": None}
        )
        table = {**device, WORKER: {**device.get(WORKER, {}), "speed_variation": none}}
        return replace(self, calibration=self.calibration.model_copy(update={"device": table}))

    def _with_speed(self, name: str, value: float) -> Predictor:
        library = self.calibration.library
        changed = library["gloo"][name].model_copy(update={"value": value, "low": None, "high": None})
        table = {**library, "gloo": {**library["gloo"], name: changed}}
        return replace(self, calibration=self.calibration.model_copy(update={"library": table}))

    def play(
        self,
        workload: Workload,
        cluster: Cluster,
        slow: dict[int, float] | None = None,
        *,
        steps: int | None = None,
        **strategy: Any,
    ) -> tuple[ExecutionGraph, RunRecord]:
        """The graph of a training job, and its run: to its steady state, or of so many steps."""
        scenario = Scenario(
            workload=workload,
            cluster=cluster,
            strategy=Strategy(**strategy),
            calibration=self.calibration,
            perturbation=Perturbation(slow_ranks=slow or {}),
            confidence=0.005,
        )
        graph = lower(scenario)
        return graph, play(graph, confidence=0.005, limit=self.limit, max_iterations=steps)

    def model(self, row: Row, groups: int | None = None) -> Workload:
        """The row's model with its measured times."""
        trace = self.traces.get(row.text("model"), quiet="quiet" in row.text("tag"))
        mode = row.text("mode", "replay")
        if mode not in _MODES:
            raise InputError("mode", f"be one of {', '.join(_MODES)}", mode, where=row.place)
        emulated = mode == "replay"
        overhead = self.calibration.value("framework", "default", "emulated_layer_time") if emulated else 0.0
        scale = row.amount_of("scale", 1.0) * self.compute_factor
        return trace.workload(scale=scale, unit_overhead=overhead, groups=groups)

    def collective(self, row: Row, op: str, ranks: int, size: float) -> float:
        """Seconds of one collective over the first ``ranks`` hosts."""
        cluster = self.cluster(row, max(ranks, 2))
        members = list(range(ranks))
        algorithm = "auto"
        if self.library != "gloo":
            op = "send" if op == "neighbour_exchange" else op
            members = members[:2] if op == "send" else members
            algorithm = "auto" if op in ("send", "all_to_all", "barrier") else "ring"
            algorithm = "recursive_doubling" if op == "barrier" else algorithm
        graph = lower_collective(cluster, op, algorithm, size, calibration=self.calibration, ranks=members)
        return play(graph).step_time


def without_latency(calibration: Calibration) -> Calibration:
    """The calibration of a library that needs no time to start a message."""
    table = dict(calibration.library)
    found = table["nccl"]["step_latency_network"].model_copy(update={"value": 0.0, "low": None, "high": None})
    table["nccl"] = {**table["nccl"], "step_latency_network": found}
    return calibration.model_copy(update={"library": table})


# -- one function per kind -------------------------------------------------------------------------------


def _collective(predictor: Predictor, row: Row) -> float:
    op = _OPERATIONS.get(row.text("op"), row.text("op"))
    ranks = 2 if op == "send" else row.count_of("world")
    size = row.amount_of("bytes", 0.0 if op == "barrier" else None)
    return predictor.collective(row, op, ranks, size)


def _training(predictor: Predictor, row: Row) -> float:
    world, algorithm = row.count_of("world"), row.text("algo", "ddp")
    predictor = predictor.sharing(row)
    workload, cluster = predictor.model(row), predictor.cluster(row, world)
    if world == 1:
        return predictor.step(workload, cluster)
    if row.text("hook") == "noop":  # buckets are filled and emptied, nothing is sent
        calibration = predictor.calibration
        rate = calibration.value("device", WORKER, "memory_bandwidth")
        copied = (
            2 * 4 * workload.num_parameters * calibration.value("framework", "default", "bucket_copy_traffic")
        )
        return predictor.step(workload, predictor.cluster(row, 1)) + copied / rate
    if algorithm == "local":
        steps = row.count_of("k", 1)
        return predictor.step(
            workload, cluster, row.slow_ranks, synchronization="local", local_steps=steps,
            bucket_size=EVERYTHING,
        )  # fmt: skip
    if algorithm == "blocking":
        return predictor.step(workload, cluster, row.slow_ranks, overlap=False, bucket_size=EVERYTHING)
    if algorithm != "ddp":
        raise InputError("algo", "be ddp, blocking or local", algorithm, where=row.place)
    bucket = row.amount_of("bucket_mb", 25) * MIB
    options: dict[str, Any] = {"bucket_size": bucket, "first_bucket_size": bucket}
    if not bucket:  # torch's default: a small first bucket
        options = {"bucket_size": 25 * MIB, "first_bucket_size": MIB}
    return predictor.step(workload, cluster, row.slow_ranks, **options, **_hook(row))


def _hook(row: Row) -> dict[str, Any]:
    hook = row.text("hook", "none")
    if hook in ("none", "fp16", "bf16"):
        return {"compression": hook}
    if rank := power_rank(hook):
        return {"compression": "powersgd", "compression_rank": rank}
    raise InputError("hook", "be none, noop, fp16, bf16 or powersgdR", hook, where=row.place)


def _server(predictor: Predictor, row: Row) -> float:
    workers, rule = row.count_of("workers"), row.text("algo")
    if rule not in _RULES:
        raise InputError("algo", f"be one of {', '.join(_RULES)}", rule, where=row.place)
    seconds = row.amount_of("compute_us") * 1e-6 * predictor.compute_factor
    layer = measured_layer("model", 0, seconds, 0.0, [row.amount_of("params", positive=True)])
    # Rank 0 of the recording is the server.
    slow = {rank - 1: factor for rank, factor in row.slow_ranks.items() if rank}
    cluster = predictor.cluster(row, workers)
    span = steps = None
    if _RULES[rule] != "bsp":
        span = _seconds_recorded(row, seconds, workers)
        alone = seconds + 2 * 4 * row.amount_of("params") / (row.rate * _GOODPUT)
        steps = min(ceil(span / alone) + 2, predictor.limit)
    graph, run = predictor.play(
        measured_workload("model", [layer], 0.0), cluster, slow, state="ps_dedicated",
        num_servers=1, synchronization=_RULES[rule], staleness=int(row.amount_of("s", 0)), overlap=False,
        bucket_size=EVERYTHING, steps=steps,
    )  # fmt: skip
    return updates_per_second(graph, run, span, seconds)


def _seconds_recorded(row: Row, compute: float, workers: int) -> float:
    """How long a server was observed: what the row says, or ten seconds and at least six rounds of all."""
    exchange = 2 * workers * 4 * row.amount_of("params") / (row.rate * _GOODPUT)
    return row.amount_of("seconds", max(_OBSERVED, _ROUNDS * (compute + exchange)), positive=True)


def updates_per_second(
    graph: ExecutionGraph, run: RunRecord, span: float | None = None, compute: float = 0.0
) -> float:
    """Steps per second of all workers together.

    A run that has settled into a cycle takes all workers through the same number of steps. Otherwise each has
    its own rate over what was observed: from its second step to the last one that it had computed within
    ``span`` seconds. Under a bound on staleness fast workers get ahead of slow ones in that time.

    Parameters
    ----------
    graph, run
    span : float, optional
        Seconds observed; all that was played if absent.
    compute : float
        Seconds that a worker computes in a step.
    """
    shares = graph.devices.multiplicity[graph.device]  # a folded worker stands for several
    workers = int(shares[graph.boundary].sum())
    if run.stop == "recurrence":
        return workers / run.step_time
    total = 0.0
    for task in np.flatnonzero(graph.boundary).tolist():
        times = np.sort(run.end[run.task == task])
        if span is not None:
            times = times[: int(np.searchsorted(times, span - compute)) + 1]
        times = times[min(_DROPPED_STEPS, max(len(times) - 2, 0)) :]
        if len(times) > 1:
            total += int(shares[task]) * (len(times) - 1) / float(times[-1] - times[0])
    return total or workers / run.step_time


def _pipeline(predictor: Predictor, row: Row) -> float:
    stages, micro_batches = row.count_of("stages"), row.count_of("microbatches")
    times = [row.times_of(f"stage_{direction}_us", stages) for direction in ("fwd", "bwd")]
    schedule = row.text("sched", "1f1b").lower()
    if schedule not in _SCHEDULES:
        raise InputError("sched", f"be one of {', '.join(_SCHEDULES)}", schedule, where=row.place)
    elements = row.amount_of("act_bytes") / 4
    factor = predictor.compute_factor
    layers = [
        measured_layer(f"stage{i}", i, forward * factor, backward * factor,
                       input_elements=elements, output_elements=elements)
        for i, (forward, backward) in enumerate(zip(*times, strict=True))
    ]  # fmt: skip
    workload = measured_workload("pipeline", layers, 0.0, samples=micro_batches)
    # Every stage has its own measured times: none is slower than the one that was measured.
    step = predictor.without_variation().step(
        workload, predictor.cluster(row, stages), pp=stages, micro_batch_size=1,
        schedule=schedule,
    )  # fmt: skip
    return step + predictor.collective(row, "barrier", stages, 0.0)


def _sharded(predictor: Predictor, row: Row) -> float:
    workload = predictor.model(row, groups=row.count_of("groups", 4))
    return predictor.step(
        workload, predictor.cluster(row, row.count_of("world")),
        state="zero3", reshard_after_forward=bool(row.number_of("reshard", 1)), overlap=False,
    )  # fmt: skip


_PREDICT: dict[str, Callable[[Predictor, Row], float]] = {
    "collective": _collective,
    "training": _training,
    "server": _server,
    "pipeline": _pipeline,
    "sharded": _sharded,
}
