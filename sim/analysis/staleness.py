"""How old the model is that gradients are computed on, where workers do not wait for each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.analysis.timeline_from_run import Instances, expand
from sim.engine.edges import stream_edges
from sim.engine.record import RunRecord
from sim.graph.execution import Cause, ExecutionGraph, TaskKind
from sim.taxonomy.synchronizations import BARRIER_FREE

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

#: How many iterations back from an update its worker's pull is searched.
_MAX_DISTANCE = 2


@dataclass(frozen=True)
class Staleness:
    """Staleness in the averaging window.

    Parameters
    ----------
    mean : float
        Mean number of updates applied between the start of a worker's pull and its own update.
    maximum : int
        The largest.
    histogram : dict of int to float
        Staleness -> share of updates.
    p95 : int
        Staleness that 95 % of the updates do not exceed.
    mean_ahead, max_ahead : float, int
        Clocks a worker is ahead of the slowest completed clock when it starts a step.
    effective_batch_size : float or None
        Samples per global update.
    """

    mean: float
    maximum: int
    histogram: dict[int, float]
    p95: int
    mean_ahead: float
    max_ahead: int
    effective_batch_size: float | None

    def to_dict(self) -> dict[str, object]:
        """Plain values, histogram keys as text."""
        return {
            "mean": self.mean,
            "max": self.maximum,
            "p95": self.p95,
            "histogram": {str(key): share for key, share in sorted(self.histogram.items())},
            "mean_ahead": self.mean_ahead,
            "max_ahead": self.max_ahead,
            "effective_batch_size": self.effective_batch_size,
        }


def pulls_of_updates(graph: ExecutionGraph) -> dict[int, list[tuple[int, int]]]:
    """For every update task the pulls its gradients are based on: (pull task, iterations back).

    A later micro-batch follows the one that waited for the pull on its device's stream only, so these orders
    count as edges where the graph's own lead to no pull. Of several pulls the update's own device counts.
    """
    updates = np.flatnonzero(graph.closes_update).tolist()
    data = graph.predecessors.index, graph.predecessors.rows(), graph.predecessor_distance
    found = _searched(graph, updates, *data)
    lost = [update for update in updates if not found[update]]
    if lost:
        order = stream_edges(graph)
        inner = order.distance == 0
        found |= _searched(
            graph, lost,
            np.concatenate([data[0], order.source[inner]]),
            np.concatenate([data[1], order.target[inner]]),
            np.concatenate([data[2], order.distance[inner]]),
        )  # fmt: skip
    device = graph.device.tolist()
    for update, pulls in found.items():
        own = [pull for pull in pulls if device[pull[0]] == device[update]]
        found[update] = own or pulls
    return found


def _searched(
    graph: ExecutionGraph, updates: list[int], source: IntArray, target: IntArray, distance: IntArray
) -> dict[int, list[tuple[int, int]]]:
    order = np.argsort(target, kind="stable")
    offsets = np.searchsorted(target[order], np.arange(graph.num_tasks + 1))
    search = _PullSearch(
        offsets.tolist(),
        source[order].tolist(),
        distance[order].tolist(),
        graph.opens_pull.tolist(),
        graph.closes_update.tolist(),
    )
    return {update: search.near(update) for update in updates}


@dataclass(frozen=True)
class _PullSearch:
    """Backward search over edges, on plain lists."""

    offsets: list[int]
    index: list[int]
    distance: list[int]
    opens_pull: list[bool]
    closes_update: list[bool]

    def near(self, update: int) -> list[tuple[int, int]]:
        """Pulls upstream of an update within the fewest iterations that have any."""
        for limit in range(_MAX_DISTANCE + 1):
            if found := self._within(update, limit):
                return sorted(found)
        return []

    def _within(self, update: int, limit: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        seen = {(update, 0)}
        frontier = [(update, 0)]
        while frontier:
            task, back = frontier.pop()
            for entry in range(self.offsets[task], self.offsets[task + 1]):
                node = (self.index[entry], back + self.distance[entry])
                if node in seen or node[1] > limit:
                    continue
                seen.add(node)
                if self.opens_pull[node[0]]:
                    found.append(node)
                elif not self.closes_update[node[0]]:
                    frontier.append(node)
        return found


def update_weights(graph: ExecutionGraph, pulls: dict[int, list[tuple[int, int]]]) -> FloatArray:
    """How many global updates each update task stands for, shape (tasks,).

    Without a common step, the update of a class of q equal workers stands for q; a synchronous update
    applies all its gradients together.
    """
    weights = np.full(graph.num_tasks, 1.0 / gradients_per_update(graph))
    if graph.metadata.get("synchronization") not in BARRIER_FREE:
        return weights
    for update, found in pulls.items():
        workers = {int(graph.device[task]) for task, _ in found if graph.device[task] >= 0}
        if len(workers) == 1:
            worker = workers.pop()
            weights[update] *= float(graph.devices.multiplicity[worker]) / _parts(graph)[1][worker]
    return weights


def gradients_per_update(graph: ExecutionGraph) -> float:
    """Gradients that are applied together, each by a task of its own (soft synchronisation)."""
    found = graph.metadata.get("gradients_per_update", 1)
    return float(found) if isinstance(found, int | float) else 1.0


def _models(graph: ExecutionGraph) -> IntArray:
    """The part of the model each task's device holds: updates count against others of the same part only.

    A server is a part of its own; workers hold the part of their pipeline stage and tensor parallel rank.
    """
    if not len(graph.devices.name):
        return np.full(graph.num_tasks, -1, np.int64)
    part = _parts(graph)[0]
    return np.where(graph.device >= 0, part[np.maximum(graph.device, 0)], -1)


def _parts(graph: ExecutionGraph) -> tuple[IntArray, IntArray]:
    """Part of the model of every device row, and how many parts the ranks of the row hold together."""
    server = np.array([kind == "server" for kind in graph.devices.kind], bool)
    row = np.arange(len(graph.devices.name))
    shards, counts = graph.metadata.get("tensor_shards"), np.ones(len(row), np.int64)
    shard = np.zeros(len(row), np.int64)
    if isinstance(shards, list) and shards:
        shard, counts = (np.array(column, np.int64) for column in zip(*shards, strict=True))
    stages = int(graph.devices.stage.max(initial=0)) + 1
    return np.where(server, row, -1 - graph.devices.stage - stages * shard), counts


def updates_between(
    graph: ExecutionGraph, run: RunRecord, pulls: dict[int, list[tuple[int, int]]]
) -> tuple[FloatArray, FloatArray]:
    """Staleness of every update in the window, and how many updates it stands for.

    Own earlier updates do not count. A class of q equal workers that is applied as one task stands for q
    updates; between two updates of one member each of its q - 1 peers makes one.
    """
    instances = Instances(graph, run)
    weight_of, part = update_weights(graph, pulls), _models(graph)
    stale: list[FloatArray] = []
    weights: list[FloatArray] = []
    applied = np.flatnonzero(graph.closes_update[run.task] & ~run.dropped)
    for model in np.unique(part[run.task[applied]]).tolist():
        rows = applied[part[run.task[applied]] == model]
        end, task = run.end[rows], run.task[rows]
        weight = weight_of[task]
        cumulative = np.concatenate([[0.0], np.cumsum(weight)])
        inside = (end > run.window[0]) & (end <= run.window[1] * (1 + 1e-12))
        for update in np.unique(task).tolist():
            own = np.flatnonzero(task == update)
            chosen = np.flatnonzero(inside[own])
            mine = own[chosen]
            if not len(mine) or not pulls[update]:
                continue
            snapshot = _snapshots(instances, pulls[update], run.iteration[rows[mine]])
            since = cumulative[mine] - cumulative[np.searchsorted(end, snapshot, "right")]
            own_since = weight_of[update] * (chosen - np.searchsorted(end[own], snapshot, "right"))
            if gradients_per_update(graph) > 1:  # only full batches count
                stale.append(np.floor(np.maximum(since - own_since, 0.0) + 1e-9))
            else:
                stale.append(np.maximum(since - own_since, 0.0) + weight_of[update] - 1)
            weights.append(weight[mine])
    if not stale:
        return np.zeros(0), np.zeros(0)
    return np.concatenate(stale), np.concatenate(weights)


def _snapshots(instances: Instances, pulls: list[tuple[int, int]], iteration: IntArray) -> FloatArray:
    """When the earliest of an update's pulls began (s), per instance; -inf before the first."""
    snapshot = np.full(len(iteration), np.inf)
    for task, back in pulls:
        at = instances.lookup(np.full(len(iteration), task), iteration - back)
        began = np.where(at >= 0, instances.run.start[np.maximum(at, 0)], -np.inf)
        snapshot = np.minimum(snapshot, began)
    return snapshot


def clocks_ahead(
    graph: ExecutionGraph, run: RunRecord, pulls: dict[int, list[tuple[int, int]]]
) -> tuple[FloatArray, FloatArray]:
    """Own clock minus the slowest completed clock when each step in the window starts, with weights.

    A worker's clock advances when its update is applied (at the end of its iteration, if it has none).
    """
    workers = [row for row, kind in enumerate(graph.devices.kind) if kind == "worker"]
    column = np.full(len(graph.devices.kind), -1, np.int64)
    column[workers] = np.arange(len(workers))
    iterations = int(run.iteration.max()) + 1 if len(run.iteration) else 0
    done = np.full((iterations, len(workers)), -np.inf)
    begun = np.full((iterations, len(workers)), np.inf)
    closing = _clock_tasks(graph, pulls)
    pairs = np.array([(task, column[worker]) for worker in workers for task in closing[worker]], np.int64)
    pairs = pairs.reshape(-1, 2)[np.argsort(pairs.reshape(-1, 2)[:, 0], kind="stable")]
    owner, entry = expand(np.searchsorted(pairs[:, 0], np.arange(graph.num_tasks + 1)), run.task)
    np.maximum.at(done, (run.iteration[owner], pairs[entry, 1]), run.end[owner])
    at = column[graph.device[run.task]]
    computing = (graph.kind[run.task] == TaskKind.COMPUTE) & (graph.cause[run.task] != Cause.DATA)
    rows = np.flatnonzero(computing & (graph.device[run.task] >= 0) & (at >= 0))
    np.minimum.at(begun, (run.iteration[rows], at[rows]), run.start[rows])
    done[done == -np.inf] = np.inf
    slowest = np.maximum.accumulate(done.max(axis=1)) if len(workers) else np.zeros(0)
    inside = (begun > run.window[0]) & (begun <= run.window[1])
    clock, who = np.nonzero(inside)
    ahead = clock - np.searchsorted(slowest, begun[inside] * (1 + 1e-12), "right")
    weight = graph.devices.multiplicity[np.array(workers, np.int64)][who] if len(workers) else np.zeros(0)
    return np.maximum(ahead, 0).astype(np.float64), weight.astype(np.float64)


def _clock_tasks(graph: ExecutionGraph, pulls: dict[int, list[tuple[int, int]]]) -> dict[int, list[int]]:
    """Per worker the tasks whose end completes its iteration."""
    result: dict[int, list[int]] = {row: [] for row in range(len(graph.devices.name))}
    for update, found in pulls.items():
        for worker in {int(graph.device[task]) for task, _ in found}:
            if worker >= 0:
                result[worker].append(update)
    for boundary in np.flatnonzero(graph.boundary & (graph.device >= 0)).tolist():
        owner = int(graph.device[boundary])
        if not any(graph.closes_update[known] for known in result[owner]):
            result[owner].append(boundary)
    return result


def _quantile(histogram: Mapping[int, float], share: float) -> int:
    """Least age that at least this share of the updates does not exceed."""
    found = 0.0
    for age in sorted(histogram):
        found += histogram[age]
        if found >= share - 1e-9:
            return age
    return max(histogram)


def known_staleness(graph: ExecutionGraph) -> Staleness | None:
    """Staleness that follows from the order of work: a pipeline without a flush, delayed gradients."""
    known = graph.metadata.get("update_staleness")
    if not isinstance(known, dict) or not known:
        return None
    samples, steps = graph.metadata.get("samples_per_iteration"), graph.steps_per_iteration
    return Staleness(
        mean=sum(age * share for age, share in known.items()),
        maximum=max(known),
        histogram=dict(known),
        p95=_quantile(known, 0.95),
        mean_ahead=0.0,
        max_ahead=0,
        effective_batch_size=samples / steps if isinstance(samples, int | float) else None,
    )


def staleness(graph: ExecutionGraph, run: RunRecord) -> Staleness | None:
    """Staleness of a run; None where the graph has no pulls or no updates.

    Parameters
    ----------
    graph : ExecutionGraph
        With ``opens_pull`` (snapshot of the model) and ``closes_update`` (a global update) marked.
    run : RunRecord
        Its run.
    """
    if not graph.opens_pull.any() or not graph.closes_update.any():
        return None
    pulls = pulls_of_updates(graph)
    stale, weight = updates_between(graph, run, pulls)
    if not len(stale):
        return None
    ahead, ahead_weight = clocks_ahead(graph, run, pulls)
    values = np.round(stale).astype(np.int64)
    shares = np.bincount(values, weights=weight) / weight.sum()
    histogram = {int(value): float(shares[value]) for value in np.flatnonzero(shares)}
    return Staleness(
        mean=float(np.average(stale, weights=weight)),
        maximum=int(values.max()),
        histogram=histogram,
        p95=_quantile(histogram, 0.95),
        mean_ahead=float(np.average(ahead, weights=ahead_weight)) if len(ahead) else 0.0,
        max_ahead=int(ahead.max()) if len(ahead) else 0,
        effective_batch_size=_samples_per_update(graph, pulls),
    )


def _samples_per_update(graph: ExecutionGraph, pulls: dict[int, list[tuple[int, int]]]) -> float | None:
    """Samples behind one global update, if the workload is known."""
    samples = graph.metadata.get("samples_per_iteration")
    if not isinstance(samples, int | float):
        return None
    weights, part = update_weights(graph, pulls), _models(graph)
    per_part: dict[int, float] = {}
    for update in pulls:
        model = int(part[update])
        per_part[model] = per_part.get(model, 0.0) + float(weights[update])
    updates = max(per_part.values(), default=0.0)
    return float(samples) / updates if updates else None
