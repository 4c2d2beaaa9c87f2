"""One collective by itself, or several at once, as an ExecutionGraph.

Routes, folding and transfers are those of a training step.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.errors import InputError
from sim.fabric.network import Network
from sim.graph.builder import Edge, source
from sim.graph.collector import collector_off
from sim.graph.execution import Cause, ExecutionGraph
from sim.lowering.arrays import distinct
from sim.lowering.library import LibraryTimes, achievable
from sim.lowering.patterns import Family
from sim.lowering.traffic import Traffic, reduction_rate, step_latency
from sim.lowering.transfers import TransferEmitter
from sim.models import gloo
from sim.models.collectives import OPERATIONS, choose, plan
from sim.models.exchanges import skewed_matrix, traffic_matrix
from sim.spec import Calibration, Cluster
from sim.spec.fabric import SWITCH_TREES

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Ranks = Sequence[int] | Sequence[Sequence[int]] | npt.NDArray[np.int64] | None

_ROOTED = ("broadcast", "reduce", "send", "gather", "scatter")


@dataclass(frozen=True)
class _Wanted:
    """What the caller asks of a collective, beside groups and sizes."""

    op: str
    algorithm: str
    dims: tuple[int, ...] | None
    radix: int | None
    matrix: npt.ArrayLike | None = None
    skew: float = 0.0

    def uneven(self, size: int) -> FloatArray | None:
        """Bytes from rank to rank of an all_to_allv, to scale."""
        if self.op == "all_to_allv":
            return (
                skewed_matrix(size, self.skew) if self.matrix is None else traffic_matrix(self.matrix, size)
            )
        if self.matrix is not None or self.skew:
            field = "skew" if self.matrix is None else "matrix"
            raise InputError(f"collective.{field}", "be given for all_to_allv only", self.op)
        return None


MAX_CHUNKS = 1000
"""Most chunks a bare collective is pipelined in, as many as ``strategy.chunks`` may ask for."""


@collector_off()
def lower_collective(
    cluster: Cluster,
    op: str,
    algorithm: str,
    size_bytes: float | Sequence[float] | FloatArray,
    *,
    calibration: Calibration,
    ranks: Ranks = None,
    chunks: int = 1,
    dims: tuple[int, ...] | None = None,
    radix: int | None = None,
    matrix: npt.ArrayLike | None = None,
    skew: float = 0.0,
    repeat: int = 1,
    fold: bool = True,
    library: str | None = None,
) -> ExecutionGraph:
    """Lower one collective, or the same one in several groups at once.

    Parameters
    ----------
    cluster : Cluster
        Resolved.
    op : str
        One of ``sim.models.collectives.OPERATIONS``. The first rank of a group is the root of rooted
        operations; ``send`` goes from the first to the second.
    algorithm : str
        One of ``sim.models.collectives.ALGORITHMS``, or ``auto`` for what the library would choose.
    size_bytes : float or sequence of float
        Size in the meaning of nccl-tests, of every group or of each.
    calibration : Calibration
        Efficiencies of links and latencies of the library.
    ranks : sequence of int, or of such sequences, optional
        Devices (host memories follow them, as in ``Network``) of one group or of each; all devices if absent.
    chunks : int
        Parts that a collective of several dimensions is pipelined in: each group has one stream per
        dimension, in the order (phase, chunk).
    dims : tuple of int, optional
        Extents of the dimensions for hierarchical, torus2d, blueconnect and tree, innermost first, or the
        digits of bcube; by default the dimensions of a torus, or devices of a host times hosts (blueconnect:
        times leaves and pods).
    radix : int, optional
        Base of bcube, children of a rank of kary_tree.
    matrix : float[n, n], optional
        For all_to_allv: bytes from the i-th to the j-th rank of a group, to scale; ``size_bytes`` is the mean
        of a rank's send buffer.
    skew : float
        For all_to_allv without a matrix: the j-th rank receives in proportion to ``(j + 1) ** -skew``.
    repeat : int
        Times it runs, one after another on every rank.
    fold : bool
        Whether alike ranks, groups and links are played once.
    library : str
        Section of the calibration for latencies; the cluster's library if absent.

    Returns
    -------
    ExecutionGraph
        One iteration is one run; ``max_iterations`` is ``repeat``.

    Raises
    ------
    InputError
        If the operation has no such algorithm, a rank does not exist, or sizes and groups do not match.
    """
    _require_positive("chunks", chunks, MAX_CHUNKS)
    _require_positive("repeat", repeat)
    if dims is not None and min(dims, default=1) < 1:
        raise InputError("collective.dims", "be at least 1 each", list(dims))
    wanted = _Wanted(op, algorithm, dims, radix, matrix, skew)
    traffic, groups, sizes, family_sizes = _traffic(cluster, calibration, wanted, size_bytes, ranks, library)
    network = traffic.network
    members = distinct(np.concatenate(groups))
    service = cluster.fabric.link_service
    traffic.classify(_keys(network, members), fold=fold and service == "fair")
    emitter = TransferEmitter(traffic)
    _emit(emitter, family_sizes, op, chunks, repeat)
    return emitter.builder.build(
        emitter.link_table(),
        max_iterations=repeat,
        link_service=service,
        metadata={
            "operation": op,
            "algorithm": algorithm,
            "size_bytes": float(sizes.max()),
            "num_devices": len(members),
            "num_ranks": max(len(group) for group in groups),
            "num_groups": len(groups),
            "chunks": chunks,
            "collectives": emitter.collectives(),
        },
    )


def collective_loads(
    cluster: Cluster,
    op: str,
    algorithm: str,
    size_bytes: float | Sequence[float] | FloatArray,
    *,
    calibration: Calibration,
    ranks: Ranks = None,
    dims: tuple[int, ...] | None = None,
    radix: int | None = None,
    matrix: npt.ArrayLike | None = None,
    skew: float = 0.0,
) -> tuple[FloatArray, FloatArray]:
    """Bytes on every link of the network in one run, and bytes/s that the links can carry: float[L] each.

    Nothing is folded or left out. Parameters as in :func:`lower_collective`.
    """
    wanted = _Wanted(op, algorithm, dims, radix, matrix, skew)
    traffic, _, _, family_sizes = _traffic(cluster, calibration, wanted, size_bytes, ranks, None)
    total = np.zeros(traffic.network.num_links)
    for name, sizes in family_sizes.items():
        family = traffic.families[name]
        for number, flows in enumerate(family.flows):
            each = _elementary_bytes(traffic, family, number, sizes)
            if flows.counted is not None:
                for load, amount in zip(flows.counted, each, strict=True):
                    total[load.link] += load.coefficient * amount
                continue
            routed = traffic.router.route(flows)
            weight = routed.share * (flows.relative * each[flows.group])[routed.flow]
            total += np.bincount(routed.link, weight, len(total))
    return total, traffic.capacity


def _elementary_bytes(traffic: Traffic, family: Family, phase: int, sizes: FloatArray) -> FloatArray:
    """Bytes of an elementary flow of a phase in each group."""
    if not family.operation:
        scaled: FloatArray = family.phases[phase].fraction * sizes
        return scaled
    ranks, queued, apart = family.groups.shape[1], traffic.queued_notes, traffic.apart
    sent = [gloo.messages(family.operation, ranks, float(size), queued=queued, apart=apart) for size in sizes]
    return np.array([sum(m.size_bytes for m in messages if m.phase == phase) for messages in sent])


def _traffic(
    cluster: Cluster,
    calibration: Calibration,
    wanted: _Wanted,
    size_bytes: float | Sequence[float] | FloatArray,
    ranks: Ranks,
    library: str | None,
) -> tuple[Traffic, list[IntArray], FloatArray, dict[str, FloatArray]]:
    """Traffic with all families requested, the groups, their sizes, and those of each family's groups."""
    network = Network.build(cluster)
    groups = _groups(network, ranks)
    sizes = _sizes(size_bytes, len(groups))
    times = LibraryTimes.of(network, calibration)
    traffic = Traffic(
        network=network,
        capacity=achievable(network, calibration, times),
        library_times=times,
        step_latency=step_latency(calibration, library or cluster.library),
        reduction_rate=reduction_rate(cluster, calibration),
        apart=False,
    )
    wanted.uneven(len(groups[0]))
    _require_possible(traffic, wanted)
    return traffic, groups, sizes, _request(traffic, groups, sizes, wanted)


def _require_possible(traffic: Traffic, wanted: _Wanted) -> None:
    """Refuse an algorithm that the library does not have, or that the fabric's switches cannot run."""
    cluster, name = traffic.network.cluster, wanted.algorithm
    if traffic.messages and wanted.op in OPERATIONS:
        own = choose(wanted.op, 0.0, 2, 1, library="gloo")
        if name not in ("auto", own):
            must = f"be auto or {own} with gloo, which runs its own algorithm for {wanted.op}"
            raise InputError("collective.algorithm", must, name, hint="Try auto.")
    if name in ("collnet", "in_network") and cluster.size > 1 and cluster.fabric.kind not in SWITCH_TREES:
        possible = ", ".join(sorted(SWITCH_TREES))
        must = f"not reduce in switches except on {possible}"
        raise InputError("collective.algorithm", must, f"{name} on {cluster.fabric.kind}", hint="Try ring.")


def _groups(network: Network, ranks: Ranks) -> list[IntArray]:
    if ranks is None:
        return [np.arange(network.num_devices)]
    several = len(ranks) > 0 and not np.isscalar(ranks[0])
    groups = [np.asarray(group, np.int64) for group in (ranks if several else [ranks])]
    count = network.num_devices
    for group in groups:
        if group.ndim != 1 or not len(group):
            raise InputError("collective.ranks", "have at least one rank in every group", group.tolist())
        if group.min() < 0 or group.max() >= count or len(distinct(group)) < len(group):
            wrong = group[(group < 0) | (group >= count)]
            got = wrong if len(wrong) else group
            raise InputError("collective.ranks", f"differ and be from 0 to {count - 1}", got.tolist()[:8])
    return groups


def _keys(network: Network, members: IntArray) -> IntArray:
    """Device type of every rank, one more for host memories; -1 for what takes no part."""
    memories = np.full(len(network.host_kind), len(network.cluster.device_types))
    keys = np.full(network.num_devices + len(memories), -1)
    keys[members] = np.concatenate([network.device_type, memories])[members]
    return keys


def _sizes(size_bytes: float | Sequence[float] | FloatArray, num_groups: int) -> FloatArray:
    sizes = np.asarray(size_bytes, np.float64)
    if sizes.ndim and sizes.shape != (num_groups,):
        raise InputError(
            "collective.size_bytes", f"be one number or one for each of {num_groups} groups", sizes.shape
        )
    if not (np.isfinite(sizes) & (sizes >= 0)).all():
        raise InputError("collective.size_bytes", "be finite and not negative", float(sizes.min()))
    return np.broadcast_to(sizes, (num_groups,))


def _require_positive(name: str, value: int, most: int | None = None) -> None:
    if value < 1:
        raise InputError(f"collective.{name}", "be at least 1", value)
    if most is not None and value > most:
        raise InputError(f"collective.{name}", f"be at most {most}", value)


def _request(
    traffic: Traffic, groups: list[IntArray], sizes: FloatArray, wanted: _Wanted
) -> dict[str, FloatArray]:
    """Add one family per number of ranks and algorithm; returns the sizes of each family's groups."""
    op = wanted.op
    alike: dict[tuple[str, int, tuple[int, ...] | None], list[int]] = {}
    for index, group in enumerate(groups):
        if traffic.messages:
            alike.setdefault((op, len(group), None), []).append(index)
            continue
        name = wanted.algorithm
        if name == "auto":
            name = traffic.choose(op, float(sizes[index]), group)
        extents = wanted.dims
        if op not in _ROOTED and len(group) > 1:
            extents = _dims(traffic, group, name, wanted.dims)
        alike.setdefault((name, len(group), extents), []).append(index)
    family_sizes: dict[str, FloatArray] = {}
    for (name, size, extents), mine in alike.items():
        members = np.stack([groups[i] for i in mine])
        # Roots stay where they are; other ranks are arranged as the library would.
        fixed = op in (*_ROOTED, "all_to_allv")
        if traffic.messages:
            phases = gloo.message_plan(op, size, queued=traffic.queued_notes, apart=traffic.apart)
        else:
            links = None
            if name == "packed_trees":
                links = traffic.links(members, extents, arranged=fixed)
            phases = plan(
                op, name, size, dims=extents, radix=wanted.radix, links=links, matrix=wanted.uneven(size)
            )
        family = f"{op}_{name}_{len(family_sizes)}"
        order = "" if fixed or name == "direct" or traffic.messages else name
        traffic.request(
            family, members, phases, algorithm=order, asymmetric=op == "send",
            marks=sizes[mine], operation=op if traffic.messages else "",
            collective=("", "") if traffic.messages else (op, name),
        )  # fmt: skip
        family_sizes[family] = sizes[mine]
    return family_sizes


def _dims(
    traffic: Traffic, group: IntArray, algorithm: str, wanted: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """What the user wants; else what the hardware gives, or the plan's own default where it gives none."""
    if wanted is not None:
        return wanted
    found = traffic.grid(group[None], algorithm)
    return None if found is not None and algorithm == "bcube" else found


def _emit(
    emitter: TransferEmitter, family_sizes: dict[str, FloatArray], op: str, chunks: int, repeat: int
) -> None:
    """One device row per class of ranks; every class of groups on streams of its own."""
    traffic = emitter.traffic
    parts = traffic.classes
    for index, (endpoint, count) in enumerate(zip(parts.representatives, parts.multiplicity, strict=True)):
        name = f"rank{endpoint}" if endpoint < traffic.network.num_devices else f"memory{endpoint}"
        emitter.device_row[index] = emitter.builder.device(name, int(endpoint), multiplicity=int(count))
    done: dict[int, list[Edge]] = {index: [] for index in emitter.device_row}
    for family, sizes in family_sizes.items():
        table = emitter.family_classes[family]
        for group, representative in enumerate(table.representative):
            first = emitter.builder.num_tasks
            ends = emitter.phases(
                family,
                group,
                float(sizes[representative]),
                op,
                Cause.OTHER,
                [],
                f"{family}.{group}",
                chunks,
                0.0,
                {},
            )
            if repeat > 1:
                starts = range(first, min(first + chunks, emitter.builder.num_tasks))
                for start, end in itertools.product(starts, ends):
                    emitter.builder.edge(start, source(end), 1)
            for member in table.members[group]:
                done[member] += ends
    for index, ends in done.items():
        emitter.builder.control("end", device=emitter.device_row[index], after=ends, boundary=True)
