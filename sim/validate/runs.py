"""Simulates all runs of a file, in processes, keeping what is done so that a restart continues."""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sim.analysis.breakdown import PARTS, breakdown
from sim.analysis.timeline_from_run import timeline_from_run
from sim.engine import play
from sim.errors import ClusterloomError, InvalidStrategyError
from sim.lowering.lower import lower_plan
from sim.lowering.plan import Plan, make_plan
from sim.spec import Calibration, Scenario
from sim.validate.extrapolate import TOLERANCE, FloatArray, Size, estimate, is_small, work_of
from sim.validate.runs_loader import Run, framework_calibration

TASKS_OF_A_RUN = 100.0
"""What lowering a small run costs, in blocks times micro-batches."""


@dataclass(frozen=True)
class Prediction:
    """What the simulator says of a run.

    Attributes
    ----------
    id : str
    status : str
        ``ok``; ``invalid`` (a rule refuses the strategy); ``failed`` (an internal error).
    step_time_s : float or None
    parts : dict
        Seconds of the step by cause, adding up to it.
    peak_memory_bytes, memory_capacity_bytes : float or None
    message : str
    """

    id: str
    status: str
    step_time_s: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: float | None = None
    memory_capacity_bytes: float | None = None
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is a step time."""
        return self.status == "ok"


def predict(run: Run, calibration: Calibration) -> Prediction:
    """Simulate one run; errors become the status."""
    try:
        scenario = run.scenario(calibration)
        plan = make_plan(scenario)
        peak = max(sum(stage.values()) for stage in plan.footprints)
        capacity = scenario.cluster.main_device.capacity
        seconds, message = _seconds(run, plan)
    except InvalidStrategyError as error:
        return Prediction(run.row.id, "invalid", message=str(error))
    except (ClusterloomError, AssertionError) as error:
        return Prediction(run.row.id, "failed", message=f"{type(error).__name__}: {error}")
    if peak > capacity:
        message = "; ".join(
            filter(None, [message, f"memory predicted {peak / capacity:.0%} of the device's"])
        )
    parts = dict(zip(PARTS, seconds[1:].tolist(), strict=True))
    return Prediction(run.row.id, "ok", float(seconds[0]), parts, peak, capacity, message)


def _seconds(run: Run, plan: Plan) -> tuple[FloatArray, str]:
    scenario = plan.scenario
    known = _KNOWN.setdefault(_family(run), {})

    def play_size(size: Size) -> FloatArray:
        if size not in known:
            known[size] = _played(_resized(run, scenario, size))
        return known[size]

    # Where only the first blocks are offloaded, time is not linear in their number.
    uniform = run.strategy.offload_blocks is None
    found = estimate(run, play_size, known.__contains__) if uniform else None
    if found is None:
        return _played(scenario, plan), ""
    if found.error <= TOLERANCE:
        return found.seconds, ""
    if is_small(run):
        return _played(scenario, plan), "played whole"
    return found.seconds, f"extrapolated; the test run is off by {found.error:.1%}"


def _resized(run: Run, scenario: Scenario, size: Size) -> Scenario:
    """The run with another number of stages, micro-batches and layers of a chunk."""
    strategy = run.strategy
    changes: dict[str, Any] = {
        "global_batch_size": size.micro_batches * (strategy.micro_batch_size or 1) * (strategy.dp or 1)
    }
    if size.depth:
        changes["num_layers"] = size.stages * size.chunks * size.depth - run.ends
    cluster = run.cluster
    if size.stages != strategy.pp:
        ranks = strategy.tp * strategy.cp * (strategy.dp or 1) * size.stages
        cluster = cluster.with_hosts(-(-ranks // cluster.devices_per_host[0]))
    return scenario.model_copy(
        update={
            "workload": run.workload(**changes),
            "strategy": strategy.model_copy(update={"pp": size.stages, "virtual_stages": size.chunks}),
            "cluster": cluster,
        }
    )


_KNOWN: dict[str, dict[Size, FloatArray]] = {}
"""Small runs played by this process, by family and size."""


def _family(run: Run) -> str:
    """What two runs share that differ in micro-batches, stages, chunks and layers only."""
    varied = {"num_layers", "global_batch_size", "name"}
    ranks = run.strategy.tp * run.strategy.cp * (run.strategy.dp or 1)
    shape = [
        run.generator,
        sorted((k, v) for k, v in run.params.items() if k not in varied),
        run.strategy.model_dump(mode="json", exclude={"pp", "virtual_stages"}),
        run.cluster.host_types[0].fingerprint,
        min(run.cluster.devices_per_host[0], ranks * run.strategy.pp) if run.strategy.pp > 1 else 0,
        run.framework,
    ]
    return json.dumps(shape, default=str)


def _played(scenario: Scenario, plan: Plan | None = None) -> FloatArray:
    """Seconds of a step and of its parts, whether or not it fits into memory."""
    graph = lower_plan(plan or make_plan(scenario))
    record = play(graph, fidelity=scenario.fidelity, confidence=scenario.confidence)
    parts = breakdown(graph, record, timeline_from_run(graph, record, window=record.window))
    return np.array([parts.step_time_s, *(parts.parts[name] for name in PARTS)])


# -- many ---------------------------------------------------------------------------------------------------


def predict_all(
    runs: Sequence[Run],
    calibration: Calibration,
    *,
    workers: int = 2,
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Prediction]:
    """Simulate runs, alike ones once; order as given.

    Parameters
    ----------
    runs : sequence of Run
    calibration : Calibration
    workers : int
        Processes.
    cache : path, optional
        Folder in which finished predictions are kept; one file per version of the code and calibration.
    progress : callable, optional
        Called with (runs done, runs in all).
    """
    store = _Store(cache, calibration) if cache is not None else None
    groups: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        groups.setdefault(identity(run), []).append(index)
    results: list[Prediction | None] = [None] * len(runs)
    waiting: list[str] = []
    done = 0
    for key, members in groups.items():
        known = store.get(key) if store else None
        if known is None:
            waiting.append(key)
            continue
        _spread(results, runs, members, known)
        done += len(members)
    batches = _batches([(key, runs[groups[key][0]]) for key in waiting])
    for key, found in _computed(batches, calibration, workers):
        if store:
            store.put(key, found)
        _spread(results, runs, groups[key], found)
        done += len(groups[key])
        if progress:
            progress(done, len(runs))
    return [result for result in results if result is not None]


def identity(run: Run) -> str:
    """Content key of what is simulated; equal for rows that differ in what was measured only."""
    content = [
        run.generator,
        sorted((k, v) for k, v in run.params.items() if k != "name"),
        run.cluster.fingerprint,
        run.strategy.model_dump(mode="json"),
        run.framework,
    ]
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()


def _spread(
    results: list[Prediction | None], runs: Sequence[Run], members: Iterable[int], found: Prediction
) -> None:
    for index in members:
        results[index] = Prediction(**{**vars(found), "id": runs[index].row.id})


def _batches(tasks: Sequence[tuple[str, Run]]) -> list[list[tuple[str, Run]]]:
    """Runs that share small runs go to the same process: equal but for micro-batches, stages and layers."""
    families: dict[str, list[tuple[str, Run]]] = {}
    for key, run in tasks:
        families.setdefault(_family(run), []).append((key, run))
    for members in families.values():  # large ones first: what they play small is there for the others
        members.sort(key=lambda item: -item[1].micro_batches * item[1].params.get("num_layers", 1))
    return sorted(families.values(), key=_work, reverse=True)


def _work(batch: Sequence[tuple[str, Run]]) -> float:
    """Rough work of a batch, so that the long ones start first: tasks, and what every run takes."""
    return sum(work_of(run) + TASKS_OF_A_RUN for _, run in batch)


def _computed(
    batches: Sequence[list[tuple[str, Run]]], calibration: Calibration, workers: int
) -> Iterator[tuple[str, Prediction]]:
    if workers <= 1 or len(batches) <= 1:
        for batch in batches:
            yield from _batch((batch, calibration))
        return
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    with context.Pool(workers, _as_worker) as pool:
        for results in pool.imap_unordered(_batch, [(batch, calibration) for batch in batches]):
            yield from results


def _as_worker() -> None:
    """Workers end silently when told to, whatever the command around them does then; what is there stays."""
    gc.freeze()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _batch(job: tuple[list[tuple[str, Run]], Calibration]) -> list[tuple[str, Prediction]]:
    batch, calibration = job
    _KNOWN.clear()
    results = []
    for key, run in batch:
        try:
            results.append((key, predict(run, calibration)))
        except Exception as error:  # one bad row is one failed row
            failed = Prediction(
                run.row.id, "failed", message=f"internal error: {type(error).__name__}: {error}"
            )
            results.append((key, failed))
    return results


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Digest of the simulator's own source, so that a prediction of other code is never taken for its own."""
    import sim

    digest = hashlib.sha256()
    for path in sorted(Path(sim.__file__).parent.rglob("*.py")):
        if path.parts[-2] not in ("cli", "plot", "trace", "sweep", "report"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


class _Store:
    """Finished predictions, a line each, in a file named by code and calibration."""

    def __init__(self, folder: Path, calibration: Calibration) -> None:
        name = hashlib.sha256(f"{code_digest()}{calibration.fingerprint}".encode()).hexdigest()[:24]
        self.path = folder / f"{name}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        self.known: dict[str, Prediction] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    entry = json.loads(line)
                    self.known[entry.pop("key")] = Prediction(**entry)
                except (ValueError, KeyError, TypeError):
                    continue  # a line cut short by an interruption

    def get(self, key: str) -> Prediction | None:
        """Prediction of an earlier run."""
        return self.known.get(key)

    def put(self, key: str, prediction: Prediction) -> None:
        """Append one line."""
        with self.path.open("a") as file:
            file.write(json.dumps({"key": key, **vars(prediction)}) + "\n")


__all__ = ["Prediction", "Size", "framework_calibration", "identity", "predict", "predict_all"]
