"""The emitter: writes a plan's compute tasks and collectives into a GraphBuilder, class by class.

Everything is written once per *rank class*; a collective once per *class of groups*. An unfolded lowering is
the same code with every rank in a class of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from sim.graph.builder import Edge, Ends, GraphBuilder
from sim.graph.execution import Cause, LinkTable, TaskKind
from sim.lowering.plan import Plan
from sim.models.compute import LayerCosts


@dataclass
class FamilyClasses:
    """Classes of one family's groups: their representative, members and load rows.

    In an asymmetric family a group is found by its sender; ``sender_of`` leads back from (receiver, sender's
    stage).
    """

    representative: list[int]
    members: list[tuple[int, ...]]
    by_member: dict[int, list[int]]
    sender_of: dict[tuple[int, int], int]
    load_rows: list[list[int]]
    timing: dict[tuple[int, int, float], tuple[float, float]] = field(default_factory=dict)
    _groups: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)

    def groups_of(self, classes: tuple[int, ...]) -> tuple[int, ...]:
        """Classes of groups that contain any of these classes of ranks."""
        if classes not in self._groups:
            found = dict.fromkeys(g for index in classes for g in self.by_member.get(index, ()))
            self._groups[classes] = tuple(found)
        return self._groups[classes]


@dataclass(frozen=True)
class _Port:
    """What all transfers of one group's phase have in common.

    ``sent``: elementary flows (times their relative bytes) that leave one participant.
    """

    device: int
    streams: tuple[int, ...]
    loads: int
    sent: float


class Emitter:
    """Tasks of a plan.

    Parameters
    ----------
    plan : Plan
        With families routed and folded.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.builder = GraphBuilder()
        parts = plan.classes
        self.device_row: dict[int, int] = {}
        self._ports: dict[tuple[Any, ...], _Port] = {}
        self.stage_classes: list[list[int]] = [[] for _ in range(plan.strategy.pp)]
        self.server_classes: list[int] = []
        servers = set(plan.server_endpoints.tolist())
        for index, (endpoint, count) in enumerate(
            zip(parts.representatives, parts.multiplicity, strict=True)
        ):
            endpoint, count = int(endpoint), int(count)
            if endpoint in servers:
                self.server_classes.append(index)
                name, stage, kind = f"server{endpoint - plan.network.num_devices}", -1, "server"
            else:
                stage = int(plan.layout.coordinates["pp"][endpoint])
                self.stage_classes[stage].append(index)
                name, kind = f"rank{endpoint}", "worker"
            self.device_row[index] = self.builder.device(
                name, endpoint, multiplicity=count, stage=stage, kind=kind
            )
        self.family_classes = {name: self._classes(name, i) for i, name in enumerate(plan.families)}

    def _classes(self, name: str, position: int) -> FamilyClasses:
        parts, family = self.plan.classes, self.plan.families[name]
        representative = parts.group_representative[position].tolist()
        members = [
            tuple(dict.fromkeys(parts.endpoint_class[family.groups[group]].tolist()))
            for group in representative
        ]
        by_member: dict[int, list[int]] = {}
        sender_of: dict[tuple[int, int], int] = {}
        for index, classes in enumerate(members):
            for member in classes[:1] if family.asymmetric else classes:
                by_member.setdefault(member, []).append(index)
            if family.asymmetric:
                sender_of[classes[-1], self._stage(classes[0])] = classes[0]
        rows = [[self.builder.load_row(*row) for row in phase] for phase in self.plan.loads[name]]
        return FamilyClasses(representative, members, by_member, sender_of, rows)

    def _stage(self, endpoint_class: int) -> int:
        endpoint = int(self.plan.classes.representatives[endpoint_class])
        ranks = self.plan.layout.num_ranks
        return int(self.plan.layout.coordinates["pp"][endpoint]) if endpoint < ranks else -1

    def multiplicity(self, endpoint_class: int) -> int:
        """Ranks (or servers) that a class stands for."""
        return int(self.plan.classes.multiplicity[endpoint_class])

    @cached_property
    def _costs(self) -> dict[int, LayerCosts]:
        costs = {}
        for classes in self.stage_classes:
            for index in classes:
                rank = int(self.plan.classes.representatives[index])
                costs[index] = self.plan.layer_costs(self.plan.device_of_rank(rank))
        return costs

    def cost(self, endpoint_class: int) -> LayerCosts:
        """Layer times of a class, before its slow factor."""
        return self._costs[endpoint_class]

    @cached_property
    def slow(self) -> dict[int, float]:
        """Slow factor of each worker class."""
        representatives = self.plan.classes.representatives
        return {
            index: self.plan.slow_factor(int(representatives[index]))
            for classes in self.stage_classes
            for index in classes
        }

    def compute(
        self,
        classes: Iterable[int],
        seconds: Mapping[int, float],
        name: str,
        cause: Cause,
        after: Ends,
        **options: int,
    ) -> Ends:
        """One compute task per class; classes without work pass their predecessors on."""
        out: Ends = {}
        for index in classes:
            if seconds[index] <= 0.0:
                out[index] = after.get(index, [])
                continue
            task = self.builder.compute(
                self.device_row[index],
                seconds[index] * self.slow[index],
                name,
                cause,
                after=after.get(index, ()),
                **options,
            )
            out[index] = [task]
        return out

    def collective(
        self,
        family: str,
        classes: Sequence[int],
        size: float,
        name: str,
        cause: Cause,
        after: Ends,
        *,
        stream: str | tuple[str, ...],
        chunks: int = 1,
        extra_latency: float = 0.0,
        **options: int,
    ) -> Ends:
        """One collective of ``size`` bytes (nccl-tests' size) in every group that contains these classes.

        Phases follow each other; ``chunks`` of a multi-dimensional collective pipeline through one program
        stream per dimension, ordered by (phase, chunk). ``stream`` names the stream of every member, or, as a
        tuple, of each member in turn. A class that is in no group passes its predecessors.
        """
        out: Ends = {index: list(after.get(index, ())) for index in classes}
        if family not in self.family_classes:
            return out
        table = self.family_classes[family]
        for group in table.groups_of(tuple(classes)):
            members = table.members[group]
            before = _merge(after.get(member, ()) for member in members)
            ends = self._phases(
                family, group, size, name, cause, before, stream, chunks, extra_latency, options
            )
            for member in members:
                out[member] = ends
        return out

    def _phases(
        self,
        family: str,
        group: int,
        size: float,
        name: str,
        cause: Cause,
        before: list[Edge],
        stream: str | tuple[str, ...],
        chunks: int,
        extra_latency: float,
        options: dict[str, int],
    ) -> list[Edge]:
        members = self.family_classes[family].members[group]
        last: list[list[Edge]] = [before] * chunks
        for number in range(len(self.plan.families[family].phases)):
            for chunk in range(chunks):
                task = self.transfer(
                    family, group, size / chunks, name, cause, last[chunk], participants=members,
                    stream=stream, phase=number,
                    extra_latency=extra_latency / chunks if number == 0 else 0.0, **options,
                )  # fmt: skip
                last[chunk] = [task]
        return last[0] if chunks == 1 else _merge(last)

    def transfer(
        self,
        family: str,
        group: int,
        size: float,
        name: str,
        cause: Cause,
        after: list[Edge],
        *,
        participants: Sequence[int],
        stream: str | tuple[str, ...],
        phase: int = 0,
        extra_latency: float = 0.0,
        **options: Any,
    ) -> int:
        """One phase of a collective as one task, on the streams of the ``participants`` (classes)."""
        key = (family, group, phase, tuple(participants), stream)
        port = self._ports.get(key)
        if port is None:
            port = self._ports[key] = self._port(family, group, phase, participants, stream)
        latency, flow_bytes = self._timing(family, group, phase, size)
        return self.builder.task(
            TaskKind.TRANSFER, name, cause, device=port.device, streams=port.streams, after=after,
            work=latency + extra_latency, flow_bytes=flow_bytes, total_bytes=flow_bytes * port.sent,
            loads=port.loads, **options,
        )  # fmt: skip

    def _port(
        self, family: str, group: int, phase: int, participants: Sequence[int], stream: str | tuple[str, ...]
    ) -> _Port:
        routed = self.plan.families[family]
        spec = routed.phases[phase]
        suffix = f".{spec.dimension}" if spec.dimension else ""
        names = (stream,) * len(participants) if isinstance(stream, str) else stream
        senders = 1 if routed.asymmetric else routed.groups.shape[1]
        return _Port(
            device=self.device_row[participants[0]],
            streams=tuple(
                self.builder.stream(self.device_row[member], label + suffix)
                for member, label in zip(participants, names, strict=False)
            ),
            loads=self.family_classes[family].load_rows[phase][group],
            sent=float(spec.relative.sum()) / senders,
        )

    def _timing(self, family: str, group: int, phase: int, size: float) -> tuple[float, float]:
        table = self.family_classes[family]
        key = (group, phase, size)
        if key not in table.timing:
            loads = self.plan.families[family].loads[phase]
            table.timing[key] = loads.timing(table.representative[group], size)
        return table.timing[key]

    def link_table(self) -> LinkTable:
        """The folded links."""
        plan, parts = self.plan, self.plan.classes
        representative = parts.link_representative
        return LinkTable(
            tuple(plan.network.link_name(int(link)) for link in representative),
            plan.capacity[representative],
            parts.link_members,
            tuple(str(plan.network.link_kind[int(link)]) for link in representative),
        )


def _merge(lists: Iterable[Iterable[Edge]]) -> list[Edge]:
    """All edges once each, in order."""
    return list(dict.fromkeys(chain.from_iterable(lists)))
