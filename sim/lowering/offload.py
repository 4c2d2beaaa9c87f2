"""Optimiser state in host memory: gradients come down, the processors update, parameters go up.

ZeRO-Offload (Ren et al., USENIX ATC 2021): the device keeps the compute copy of its parameters only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sim.graph.builder import Edge, Ends
from sim.graph.execution import Cause, TaskKind
from sim.lowering.emitter import Emitter
from sim.lowering.plan import Plan
from sim.models.collectives import Phase
from sim.models.compute import OPTIMIZER_TRAFFIC
from sim.spec import Host
from sim.spec.workload import OPTIMIZER_STATES

FP32 = 4.0

DIRECTIONS = {"offload": (0, 1), "reload": (1, 0)}
"""Sender and receiver within the pair of a device and its host's memory."""


def request_families(plan: Plan) -> None:
    """Route every rank's way to the memory of its host, and back."""
    ranks = np.arange(plan.layout.num_ranks)
    groups = np.column_stack([ranks, plan.network.num_devices + plan.network.device_host[ranks]])
    for name, (source, target) in DIRECTIONS.items():
        step = Phase(np.array([source]), np.array([target]), np.ones(1), fraction=1.0, steps=1)
        plan.request(name, groups, (step,), asymmetric=True)


def update(emitter: Emitter, stage: int, step: int, elements: float, after: Ends) -> Ends:
    """Update ``elements`` parameters of each rank of a stage in the memory of its host."""
    plan, classes = emitter.plan, emitter.stage_classes[stage]
    seconds = processor_seconds(plan, elements)
    down_bytes, up_bytes = elements * plan.workload.gradient_bytes, elements * plan.element_bytes
    if plan.strategy.offload_target == "nvme":  # states are read and written beside the update
        seconds = max(seconds, disk_seconds(plan, elements))
    out: Ends = {index: list(tasks) for index, tasks in after.items()}
    for index in classes:
        row = emitter.device_row[index]
        down = _move(emitter, "offload", index, down_bytes, after.get(index, []), step)
        stream = emitter.builder.stream(row, "processors")
        task = emitter.builder.compute(
            row, seconds, "optimizer.host", Cause.OPTIMIZER, after=[down], streams=(stream,), step=step
        )
        stays = plan.strategy.offload_parameters
        out[index] = [task if stays else _move(emitter, "reload", index, up_bytes, [task], step)]
    return out


def fetch(
    emitter: Emitter, stage: int, elements: float, name: str, after: Ends, *, micro_batch: int, step: int
) -> Ends:
    """Bring ``elements`` parameters of each rank of a stage to its device; from disks through host memory.

    Reading a disk is a delay on a stream of its own: the ranks of a host share its bandwidth, and the next
    read goes on beside this one's way up (ZeRO-Infinity, section 6.2).
    """
    plan, out = emitter.plan, Ends()
    size = elements * plan.element_bytes
    for index in emitter.stage_classes[stage]:
        row, held = emitter.device_row[index], list(after.get(index, ()))
        if plan.strategy.offload_target == "nvme":
            bandwidth, sharing = disk_share(plan)
            held = [
                emitter.builder.task(
                    TaskKind.TRANSFER, f"{name}.read", Cause.PARAMETER_COMM, device=row, after=held,
                    work=size * sharing / bandwidth, streams=(emitter.builder.stream(row, "disk"),),
                    micro_batch=micro_batch, step=step,
                )
            ]  # fmt: skip
        group = emitter.family_classes["reload"].by_member[index][0]
        out[index] = [
            emitter.transfer(
                "reload", group, size, f"{name}.fetch", Cause.PARAMETER_COMM, held, participants=(index,),
                stream="fetch", micro_batch=micro_batch, step=step,
            )
        ]  # fmt: skip
    return out


def _move(emitter: Emitter, name: str, index: int, size: float, after: list[Edge], step: int) -> int:
    cause = Cause.GRADIENT_COMM if name == "offload" else Cause.PARAMETER_COMM
    group = emitter.family_classes[name].by_member[index][0]
    return emitter.transfer(
        name, group, size, f"optimizer.{name}", cause, after, participants=(index,), stream=name, step=step
    )


def disk_seconds(plan: Plan, elements: float) -> float:
    """Seconds to read and write the fp32 states of a rank's parameters on the disk of its host.

    ZeRO-Infinity (Rajbhandari et al., SC 2021) pipelines both with the update; the ranks of a host share it.
    Parameters that live there, too, are written in the format that is computed with.
    """
    bandwidth, sharing = disk_share(plan)
    states = FP32 * (1 + OPTIMIZER_STATES[plan.workload.optimizer])
    written = plan.element_bytes if plan.strategy.offload_parameters else 0.0
    return (2 * states + written) * elements * sharing / bandwidth


def disk_share(plan: Plan) -> tuple[float, int]:
    """Bytes/s of the slowest disk of a host in use, and most ranks that share one."""
    return _slowest(plan, lambda host: host.local_storage.bandwidth if host.local_storage else None)


def processor_seconds(plan: Plan, elements: float) -> float:
    """Seconds of an update at the memory bandwidth of a host's processors, which its ranks share."""

    def attained(host: Host) -> float | None:
        name = host.cpu_device
        if name is None:
            return None
        efficiency = plan.calibration.value("device", name, "memory_efficiency")
        return plan.cluster.device(name).memory_bandwidth * efficiency

    bandwidth, sharing = _slowest(plan, attained)
    element = plan.element_bytes
    copy = element if element < 4 else 0.0
    traffic = OPTIMIZER_TRAFFIC[plan.workload.optimizer] + plan.workload.gradient_bytes + copy
    return elements * traffic * sharing / bandwidth


def _slowest(plan: Plan, bandwidth: Callable[[Host], float | None]) -> tuple[float, int]:
    """Least bandwidth of a host in use, and most ranks that share one: ranks wait for each other."""
    hosts = plan.network.device_host[np.arange(plan.layout.num_ranks)]
    known = (bandwidth(plan.cluster.host_of(int(host))) for host in np.unique(hosts))
    return min(each for each in known if each is not None), int(np.bincount(hosts).max())
