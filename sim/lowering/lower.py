"""``lower``: scenario -> ExecutionGraph, the one path that every strategy takes."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from sim.graph.collector import collector_off
from sim.graph.execution import ExecutionGraph
from sim.lowering.emitter import Emitter
from sim.lowering.families import request_families
from sim.lowering.plan import Plan, make_plan
from sim.lowering.state import state_lowering
from sim.lowering.state.server_rules import SERVER_RULES
from sim.lowering.step import StepLowering
from sim.models.compute import model_flops
from sim.models.data_path import staging_seconds
from sim.spec import Scenario
from sim.spec.strategy import Strategy
from sim.taxonomy.synchronizations import BARRIER_FREE, SYNCHRONIZATIONS


def lower(scenario: Scenario) -> ExecutionGraph:
    """Lower a scenario to the graph of one period.

    Parameters
    ----------
    scenario : Scenario
        Workload, cluster, strategy, calibration, perturbation and seed.

    Returns
    -------
    ExecutionGraph
        One iteration: ``local_steps`` training steps for local SGD, else one. ``metadata`` carries what
        analysis needs to turn time into throughput, utilisation, price and energy.

    Raises
    ------
    InvalidStrategyError
        If a taxonomy rule refuses the strategy.
    """
    return lower_plan(make_plan(scenario))


@collector_off()
def lower_plan(plan: Plan) -> ExecutionGraph:
    """Lower a plan that :func:`make_plan` made; see :func:`lower`."""
    scenario = plan.scenario
    state_type = state_lowering(plan.strategy)
    request_families(plan)
    state_type.request_families(plan)
    plan.fold()
    emitter = Emitter(plan)
    state = state_type(emitter)
    steps = StepLowering(emitter, state)
    for step in range(state.steps_per_iteration):
        steps.emit(step)
        state.load_samples(step)
        state.finish_step(step)
    state.finish()
    calibration, library = plan.calibration, plan.library
    return emitter.builder.build(
        emitter.link_table(),
        steps_per_iteration=state.steps_per_iteration,
        jitter=scenario.perturbation.jitter,
        slow_state=_slow_state(scenario),
        seed=scenario.seed,
        link_service=plan.cluster.fabric.link_service,
        compute_speed_under_communication=calibration.value(
            "library", library, "compute_speed_under_communication"
        ),
        communication_speed_under_compute=calibration.value(
            "library", library, "communication_speed_under_compute"
        ),
        metadata={
            **_metadata(plan, state.steps_per_iteration),
            "collectives": emitter.collectives(),
            "tensor_shards": emitter.tensor_shards(),
        },
    )


def _slow_state(scenario: Scenario) -> tuple[float, float, float] | None:
    """Chances to turn slow and to recover, and the factor; None where no rank ever turns slow."""
    given = scenario.perturbation
    if given.slow_probability <= 0 or given.slow_factor == 1:
        return None
    return given.slow_probability, given.recovery_probability, given.slow_factor


def _replicas_per_update(plan: Plan) -> int:
    """Replicas whose gradients or models become part of one update together."""
    strategy, replicas = plan.strategy, plan.layout.degrees["dp"]
    rule = strategy.synchronization
    if rule == "soft_sync":
        return strategy.gradients_per_update
    if rule in ("partial_allreduce", "group_hybrid") or (
        rule in BARRIER_FREE and strategy.topology == "tree"
    ):
        return int((strategy.group_size or 1) ** (strategy.tree_levels if strategy.topology == "tree" else 1))
    return 1 if rule in BARRIER_FREE else replicas


def _metadata(plan: Plan, steps: int) -> dict[str, object]:
    workload, strategy, cluster = plan.scenario.workload, plan.strategy, plan.cluster
    ranks = plan.layout.num_ranks
    replicas = plan.layout.degrees["dp"]
    counted = replicas
    if SYNCHRONIZATIONS[strategy.synchronization].drops:
        counted = SERVER_RULES[strategy.synchronization].required(replicas, strategy)
    samples = counted * plan.replica_samples * steps
    counts = np.bincount(plan.network.device_type[:ranks], minlength=len(cluster.device_types))
    devices = [
        (device, int(count)) for device, count in zip(cluster.device_types, counts, strict=True) if count
    ]
    hosts = [cluster.host_of(host) for host in range(plan.used_hosts)]
    if strategy.has_server_hosts:
        hosts += [cluster.server_type] * plan.num_servers
    price = sum(host.price_per_hour for host in hosts) + sum(
        device.price_per_hour * count for device, count in devices
    )
    host_power = sum(host.power for host in hosts)
    return {
        "samples_per_iteration": samples,
        "steps_per_iteration": steps,
        "tokens_per_sample": workload.sequence_length,
        "num_devices": ranks,
        "model_flops_per_iteration": 3.0 * model_flops(workload) * samples,
        "peak_flops_total": sum(device.peak(workload.dtype) * count for device, count in devices),
        "memory": plan.footprints,
        "memory_capacity": plan.memory_capacity,
        "bytes_per_update": plan.encoding.bytes_per_update,
        "workers": replicas,
        "workers_counted": counted,
        "clients": plan.clients,
        "synchronization": strategy.synchronization,
        "gradients_per_update": _gradients_per_update(strategy),
        "replicas_per_update": _replicas_per_update(plan),
        "steps_per_exchange": _steps_per_exchange(strategy),
        "update": strategy.update_semantics,
        "staleness_bound": strategy.staleness,
        "update_staleness": plan.update_staleness,
        "strategy": strategy.model_dump(mode="json"),
        "micro_batches": plan.micro_batches,
        "micro_batch_size": plan.micro_batch_size,
        "price_per_hour_total": price,
        "num_samples": workload.num_samples,
        "data_path": _data_path(plan),
        "checkpoint": None if plan.checkpoint is None else asdict(plan.checkpoint),
        "idle_power_total": host_power + sum(device.idle_power * count for device, count in devices),
        "peak_power_total": host_power + sum(device.peak_power * count for device, count in devices),
    }


def _data_path(plan: Plan) -> dict[str, object] | None:
    """Stage times of loading a step's samples, and what filling caches takes; None if nothing is loaded."""
    path = plan.data_path
    if not path.seconds and not path.device_s:
        return None
    staging = staging_seconds(plan.workload, plan.cluster, plan.strategy, plan.used_hosts)
    return {**asdict(path), "bottleneck": path.bottleneck, "staging_s": staging}


def _gradients_per_update(strategy: Strategy) -> int:
    """Tasks of as many workers close one update."""
    if strategy.synchronization == "partial_allreduce":
        return strategy.group_size or 1
    return strategy.gradients_per_update


def _steps_per_exchange(strategy: Strategy) -> float:
    """Training steps per exchange, on the mean over a period of synchronous and local steps."""
    steps = strategy.synchronous_steps
    return (steps + strategy.local_steps) / (steps + 1) if steps else float(strategy.local_steps)
