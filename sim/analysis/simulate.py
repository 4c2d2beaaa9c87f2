"""One scenario to one result: check, lower, fit into memory, play, analyse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.analysis.bound import played_bound
from sim.analysis.breakdown import Breakdown, breakdown, busy_fractions, task_seconds_by_cause, window_steps
from sim.analysis.convergence import time_to_target
from sim.analysis.energy import cost
from sim.analysis.links import bottlenecks, link_columns
from sim.analysis.result import Result
from sim.analysis.staleness import known_staleness, staleness
from sim.analysis.timeline_from_run import timeline_from_run
from sim.analysis.update_statistics import update_statistics
from sim.engine.record import RunRecord
from sim.errors import InvalidStrategyError
from sim.graph.execution import ExecutionGraph
from sim.spec import Scenario
from sim.taxonomy.states import STATES
from sim.taxonomy.synchronizations import BARRIER_FREE

if TYPE_CHECKING:
    from sim.lowering.plan import Plan


ITERATIONS, BARRIER_FREE_ITERATIONS = 8, 64
"""Iterations that a run plays at least, unless its state recurs. Without a barrier more:
workers start in step, and where they share links it takes them tens of iterations to spread."""

Progress = Callable[[str], None]
"""Is told what a simulation is doing."""


def simulate(scenario: Scenario, progress: Progress | None = None) -> Result:
    """Simulate one training step of a scenario.

    Parameters
    ----------
    scenario : Scenario
        Workload, cluster, strategy, calibration, seed; all resolved.
    progress : callable, optional
        Called with a few words now and then.

    Returns
    -------
    Result
        With status ``invalid`` (a taxonomy rule refuses the strategy), ``infeasible`` (it does not fit the
        memory) or ``ok``. Other input that cannot be used raises InputError.
    """
    result, graph = prepare(scenario)
    if graph is not None:
        play_and_fill(result, graph, scenario, progress)
    return result


def prepare(scenario: Scenario) -> tuple[Result, ExecutionGraph | None]:
    """Everything before playing: check, plan, fit into the memory, lower.

    Returns
    -------
    (Result, ExecutionGraph or None)
        The result so far; no graph if the scenario is invalid or infeasible.
    """
    from sim.lowering import lower_plan, make_plan
    from sim.taxonomy import warnings

    try:
        plan = make_plan(scenario)
    except InvalidStrategyError as error:
        identity = _identity(scenario)
        return Result("invalid", str(error), rule=error.rule, refusal=error, **identity), None
    notes = [str(note) for note in warnings(scenario.strategy, scenario.workload, scenario.cluster)]
    notes += _unpriced_servers(plan)
    result = Result("ok", warnings=notes, scenario=scenario, **_identity(scenario))
    result.num_devices = plan.layout.num_ranks
    fill_memory(result, plan.footprints, plan.memory_capacity, partial(_remedy, plan))
    _fit_servers(result, plan)
    _fit_hosts(result, plan)
    return result, lower_plan(plan) if result.status == "ok" else None


def _fit_servers(result: Result, plan: Plan) -> None:
    """Whether what parameter servers keep fits the memory of their hosts."""
    held = plan.server_footprint
    if not held:
        return
    needed, capacity = sum(held.values()), plan.server_memory_capacity
    result.server_memory_bytes = needed
    if needed <= capacity or result.status != "ok":
        return
    _too_much(result, held, capacity, "per server host", lambda _: "a larger strategy.num_servers")


def _fit_hosts(result: Result, plan: Plan) -> None:
    """Whether what leaves the devices fits the memory of their hosts."""
    from sim.lowering.host_memory import host_footprint

    held, capacity = host_footprint(plan)
    if sum(held.values()) <= capacity or result.status != "ok":
        return

    def remedy(largest: str) -> str:
        moved = "offload_activations=false" if largest == "activations" else "offload_target=nvme"
        return f"strategy.{moved}, or more hosts"

    _too_much(result, held, capacity, "of a host's memory for what leaves its devices", remedy)


def _too_much(
    result: Result, held: dict[str, float], capacity: float, where: str, remedy: Callable[[str], str]
) -> None:
    """Make a result infeasible for want of memory, with what to try against the largest part."""
    needed, largest = sum(held.values()), max(held, key=lambda component: held[component])
    result.status, result.missing_bytes = "infeasible", needed - capacity
    result.message = (
        f"needs {needed / 1e9:.2f} GB {where}; it has {capacity / 1e9:.2f} GB: "
        f"{(needed - capacity) / 1e9:.2f} GB missing. Most are {largest} ({held[largest] / 1e9:.2f} GB): "
        f"try {remedy(largest)}"
    )


def _unpriced_servers(plan: Plan) -> list[str]:
    """Dedicated parameter servers of a machine without a price cost nothing: that must not pass silently."""
    cluster = plan.cluster
    priced = any(device.price_per_hour for device in cluster.device_types)
    if not plan.strategy.has_server_hosts or not priced or cluster.server_type.price_per_hour:
        return []
    return [
        f"price leaves out the {plan.num_servers} server machine(s): {cluster.server_type.name} has no "
        "price_per_hour. Name one that has: cluster.server_host=cpu-server"
    ]


def play_and_fill(
    result: Result, graph: ExecutionGraph, scenario: Scenario, progress: Progress | None = None
) -> None:
    """Play the graph and put everything that follows into the result."""
    from sim.engine import play

    barrier_free = graph.metadata.get("synchronization") in BARRIER_FREE
    run = play(
        graph,
        fidelity=scenario.fidelity,
        confidence=scenario.confidence,
        min_iterations=BARRIER_FREE_ITERATIONS if barrier_free else ITERATIONS,
        progress=progress,
    )
    if progress is not None:
        progress(f"analysing {run.num_instances:,} tasks")
    fill_run(result, graph, run)
    result.bound_s = played_bound(graph, run, shared=scenario.fidelity == "fluid")
    if scenario.convergence is not None:
        fill_target(result, scenario)


def fill_target(result: Result, scenario: Scenario) -> None:
    """Time and cost to the user's target, or a warning that says what the curve does not cover."""
    assert scenario.convergence is not None
    found, missing = time_to_target(
        scenario.convergence,
        result.updates,
        samples_per_s=result.samples_per_s,
        price_per_sample=result.price_per_sample,
        compression=scenario.strategy.compression,
    )
    result.convergence = found
    if missing:
        result.warnings.append(f"convergence: no time to target, as {missing}.")


def _identity(scenario: Scenario) -> dict[str, Any]:
    from sim import __version__

    return {
        "workload": scenario.workload.name,
        "cluster": scenario.cluster.name,
        "strategy": scenario.strategy.model_dump(mode="json"),
        "scenario_key": scenario.key(),
        "version": __version__,
        "fidelity": scenario.fidelity,
    }


def fill_memory(
    result: Result, stages: list[dict[str, float]], capacity: float, remedy: Callable[[str], str]
) -> None:
    """Memory by stage; too much makes the result infeasible, with what to try against its largest part."""
    result.memory_capacity_bytes = capacity
    if not stages:
        return
    totals = [sum(stage.values()) for stage in stages]
    worst = int(np.argmax(totals))
    result.memory_by_stage, result.memory_bytes, result.peak_memory_bytes = (
        stages,
        stages[worst],
        totals[worst],
    )
    if totals[worst] > capacity:
        where = f"per device on stage {worst}" if len(stages) > 1 else "per device"
        _too_much(result, stages[worst], capacity, where, remedy)


def _remedy(plan: Plan, largest: str) -> str:
    """The first thing to try where a part of the memory is too large."""
    strategy, alone = plan.strategy, plan.layout.num_ranks == 1
    if largest in ("activations", "logits", "buffers"):
        if plan.micro_batch_size > 1:
            return "a smaller strategy.micro_batch_size"
        if strategy.recompute != "full":
            return "strategy.recompute=full"
        return "more devices" if alone else "a larger strategy.tp"
    if alone:
        return "more devices, or strategy.offload_optimizer=true"
    if STATES[strategy.state].sharding:
        return "more devices, or a larger strategy.tp or strategy.pp"
    return "strategy.state=zero1, or a larger strategy.tp or strategy.pp"


def fill_run(result: Result, graph: ExecutionGraph, run: RunRecord) -> None:
    """Everything that follows from a played graph."""
    timeline = timeline_from_run(graph, run, window=run.window)
    parts = breakdown(graph, run, timeline)
    steps = window_steps(graph, run)
    result.graph, result.run = graph, run
    result.step_time_s = parts.step_time_s
    result.parts, result.critical_device = parts.parts, parts.critical_device
    result.overlap_fraction, result.communication_s = parts.overlap_fraction, parts.communication_s
    result.converged, result.iterations = run.converged, len(run.boundary_times)
    if not run.converged and run.step_time > 0:
        result.warnings.append(_unsure(run))
    low, high = run.step_time_interval
    if high > low and run.step_time > 0 and np.isfinite(high):
        scale = parts.step_time_s / run.step_time
        result.step_time_interval_s = (float(low) * scale, float(high) * scale)
    busy = busy_fractions(graph, run, timeline)
    result.busy_fraction = _mean_over_workers(graph, busy)
    result.bottlenecks = bottlenecks(link_columns(graph, run, steps))
    result.collectives = list(data) if isinstance(data := graph.metadata.get("collectives"), list) else []
    result.task_seconds = task_seconds_by_cause(timeline, steps)
    barrier_free = graph.metadata.get("synchronization") in BARRIER_FREE
    found = staleness(graph, run) if barrier_free else known_staleness(graph)
    result.staleness = found.to_dict() if found is not None else None
    result.updates = update_statistics(graph, run, found)
    fill_rates(result, graph, parts)


def _unsure(run: RunRecord) -> str:
    """What a run that ended before its mean was known says of it."""
    width = 100 * (run.step_time_interval[1] / run.step_time - 1)
    known = (
        f"known to {width:.2g} % (80 %)" if np.isfinite(width) else "from too few iterations for an interval"
    )
    return (
        f"confidence: stopped after {len(run.boundary_times)} iterations of the slowest worker "
        f"({run.num_instances:,} tasks) with the step time {known}; workers may not have left their start "
        "behind. A smaller cluster tells more."
    )


def fill_rates(result: Result, graph: ExecutionGraph, parts: Breakdown) -> None:
    """Throughput, utilisation, energy and price from the step time."""
    data = graph.metadata
    step = parts.step_time_s
    iteration = step * graph.steps_per_iteration
    samples = _number(data.get("samples_per_iteration"))
    if samples is not None and step > 0:
        result.samples_per_step = samples / graph.steps_per_iteration
        result.samples_per_s = samples / iteration
        tokens = _number(data.get("tokens_per_sample"))
        if tokens is not None and result.num_devices:
            result.tokens_per_s_per_device = result.samples_per_s * tokens / result.num_devices
    flops, peak = _number(data.get("model_flops_per_iteration")), _number(data.get("peak_flops_total"))
    if flops is not None and peak and step > 0:
        result.mfu = flops / (peak * iteration)
        if result.mfu > 1:
            result.warnings.append(
                "mfu is above 100 %: it counts direct convolution's operations, and Winograd's algorithm "
                "(Lavin and Gray, CVPR 2016) needs fewer"
            )
    result.data_path, result.checkpoint = _dict(data.get("data_path")), _dict(data.get("checkpoint"))
    total = _number(data.get("num_samples"))
    if total is not None and result.samples_per_s:
        result.epoch_time_s = total / result.samples_per_s
    result.bytes_per_update = _number(data.get("bytes_per_update"))
    spent = cost(
        data,
        step_time_s=step,
        samples_per_step=result.samples_per_step,
        busy_fraction=result.busy_fraction or 0.0,
    )
    result.energy_joules_per_step = spent.energy_joules_per_step
    result.energy_joules_per_sample = spent.energy_joules_per_sample
    result.price_per_step, result.price_per_sample = spent.price_per_step, spent.price_per_sample


def _mean_over_workers(graph: ExecutionGraph, values: np.ndarray) -> float:
    """Mean over worker devices, classes weighted by how many ranks they stand for."""
    workers = np.array([kind == "worker" for kind in graph.devices.kind], bool)
    if not workers.any():
        return 0.0
    return float(np.average(values[workers], weights=graph.devices.multiplicity[workers]))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float | np.number) else None


def _dict(value: object) -> dict[str, Any] | None:
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else None
