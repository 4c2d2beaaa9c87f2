"""The transfer emitter: writes classified traffic into a GraphBuilder, once per class of groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from sim.graph.builder import Edge, Ends, GraphBuilder
from sim.graph.execution import Cause, Discipline, LinkTable, TaskKind
from sim.lowering.library import Timing
from sim.lowering.patterns import Family
from sim.lowering.traffic import Traffic
from sim.models import gloo


@dataclass
class FamilyClasses:
    """Classes of one family's groups: their representative, members and load rows.

    In an asymmetric family a group is found by its sender.
    """

    representative: list[int]
    members: list[tuple[int, ...]]
    by_member: dict[int, list[int]]
    load_rows: list[list[int]]
    timing: dict[tuple[int, int, float], Timing] = field(default_factory=dict)
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


class TransferEmitter:
    """Collectives of classified traffic as tasks.

    Parameters
    ----------
    traffic : Traffic
        Classified.

    Attributes
    ----------
    builder : GraphBuilder
    device_row : dict of int to int
        Class of endpoints -> row of the graph's devices; the owner fills it.
    stream_rules : dict of str to (int, Discipline)
        Width and discipline of streams that do not serve one after another in program order, by label.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.builder = GraphBuilder()
        self.device_row: dict[int, int] = {}
        self.stream_rules: dict[str, tuple[int, Discipline]] = {}
        self._ports: dict[tuple[Any, ...], _Port] = {}
        self._finished: dict[tuple[Any, ...], tuple[int, int]] = {}
        self.family_classes = {name: self._classes(name, i) for i, name in enumerate(traffic.families)}

    def _classes(self, name: str, position: int) -> FamilyClasses:
        parts, family = self.traffic.classes, self.traffic.families[name]
        representative = parts.group_representative[position].tolist()
        members = [
            tuple(dict.fromkeys(parts.endpoint_class[family.groups[group]].tolist()))
            for group in representative
        ]
        by_member: dict[int, list[int]] = {}
        for index, classes in enumerate(members):
            for member in classes[:1] if family.asymmetric else classes:
                by_member.setdefault(member, []).append(index)
        rows = [[self.builder.load_row(*row) for row in phase] for phase in self.traffic.loads[name]]
        return FamilyClasses(representative, members, by_member, rows)

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
            ends = self.phases(
                family, group, size, name, cause, before, stream, chunks, extra_latency, options
            )
            for member in members:
                out[member] = ends
        return out

    def phases(
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
        """All phases of a collective in one class of groups; returns the tasks that end it."""
        if self.traffic.families[family].operation:
            return self._messages(family, group, size, name, cause, before, stream, extra_latency, options)
        members = self.family_classes[family].members[group]
        last: list[list[Edge]] = [before] * chunks
        for number in range(len(self.traffic.families[family].phases)):
            for chunk in range(chunks):
                task = self.transfer(
                    family, group, size / chunks, name, cause, last[chunk], participants=members,
                    stream=stream, phase=number,
                    extra_latency=extra_latency / chunks if number == 0 else 0.0, **options,
                )  # fmt: skip
                last[chunk] = [task]
        return last[0] if chunks == 1 else _merge(last)

    def _messages(
        self,
        family: str,
        group: int,
        size: float,
        name: str,
        cause: Cause,
        before: list[Edge],
        stream: str | tuple[str, ...],
        extra_latency: float,
        options: dict[str, int],
    ) -> list[Edge]:
        """A collective as messages; it begins when fewer than two earlier ones of its group are under way."""
        routed = self.traffic.families[family]
        members = self.family_classes[family].members[group]
        sent = gloo.messages(
            routed.operation, routed.groups.shape[1], size,
            queued=self.traffic.queued_notes, apart=self.traffic.apart,
        )  # fmt: skip
        counter, earlier = self._finished.get((members, stream), (-1, 0))
        if counter < 0:
            counter = self.builder.counter(f"{stream}.finished")
        self._finished[members, stream] = counter, earlier + 1
        tasks: list[int] = []
        start = extra_latency + self.traffic.step_latency.start
        for message in sent:
            latency = message.reduced_bytes / self.traffic.reduction_rate
            if message.behind_bytes:
                latency += message.behind_bytes / self._flow_rate(family, group, message.phase)
            tasks.append(
                self.transfer(
                    family, group, message.size_bytes, name, cause,
                    [tasks[i] for i in message.after] if message.after else before,
                    participants=members, stream=stream, phase=message.phase,
                    extra_latency=latency if message.after else latency + start, **options,
                )
            )  # fmt: skip
            if not message.after and earlier >= gloo.WIDTH:
                self.builder.wait(tasks[-1], counter, earlier - gloo.WIDTH + 1)
        followed = {i for message in sent for i in message.after}
        last = [task for i, task in enumerate(tasks) if i not in followed]
        end = self.builder.control(
            f"{name}.done", device=self.device_row[members[0]], after=last, cause=cause, **options
        )
        self.builder.add(end, counter)
        return [end]

    def idle_rate(self, family: str, classes: Sequence[int]) -> float:
        """Bytes/s of a collective's first phase in the groups of these classes, alone on its links."""
        groups = self.family_classes[family].groups_of(tuple(classes))
        return min((self._flow_rate(family, group, 0) for group in groups), default=float("inf"))

    def note(
        self, family: str, sender: int, name: str, cause: Cause, after: list[Edge], **options: Any
    ) -> int:
        """The note of a receiver that is ready: half of the rendezvous that a message of ``family`` is.

        The message itself then has its latency less ``note_latency``.
        """
        group = self.family_classes[family].by_member[sender][0]
        receiver = self.family_classes[family].members[group][-1]
        return self.builder.task(
            TaskKind.TRANSFER, name, cause, device=self.device_row[receiver], after=after,
            work=self.note_latency(family, sender), **options,
        )  # fmt: skip

    def note_latency(self, family: str, sender: int) -> float:
        """Seconds of a receiver's note to a sender."""
        group = self.family_classes[family].by_member[sender][0]
        routed, table = self.traffic.families[family], self.family_classes[family]
        return routed.loads[0].timing(table.representative[group], 0.0)[0] / 2

    def _flow_rate(self, family: str, group: int, phase: int) -> float:
        """Bytes/s of an elementary flow of a phase that nothing else disturbs."""
        links, coefficients = self.traffic.loads[family][phase][group]
        capacity = self.traffic.capacity[self.traffic.classes.link_representative[links]]
        return float((capacity / coefficients).min()) if len(links) else float("inf")

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
        timing = self._timing(family, group, phase, size)
        return self.builder.task(
            TaskKind.TRANSFER, name, cause, device=port.device, streams=port.streams, after=after,
            work=timing.latency + extra_latency, flow_bytes=timing.flow_bytes, cap=timing.cap,
            total_bytes=timing.flow_bytes * port.sent, loads=port.loads, **options,
        )  # fmt: skip

    def _port(
        self, family: str, group: int, phase: int, participants: Sequence[int], stream: str | tuple[str, ...]
    ) -> _Port:
        routed = self.traffic.families[family]
        spec = routed.phases[phase]
        suffix = f".{spec.dimension}" if spec.dimension else ""
        names = (stream,) * len(participants) if isinstance(stream, str) else stream
        senders = routed.groups.shape[1]
        if routed.asymmetric:  # two that exchange both send
            senders = len(set(spec.src.tolist())) if len(participants) > 1 else 1
        # Two collectives of two segments each; how many of them run is decided by their counter.
        width, discipline = (
            (2 * gloo.WIDTH, Discipline.ARRIVAL)
            if routed.operation
            else self.stream_rules.get(names[0], (1, Discipline.PROGRAM))
        )
        return _Port(
            device=self.device_row[participants[0]],
            streams=tuple(
                self.builder.stream(
                    self.device_row[member], label + suffix, width=width, discipline=discipline
                )
                for member, label in zip(participants, names, strict=False)
            ),
            loads=self.family_classes[family].load_rows[phase][group],
            sent=spec.num_elementary / senders,
        )

    def _timing(self, family: str, group: int, phase: int, size: float) -> Timing:
        table = self.family_classes[family]
        key = (group, phase, size)
        if key not in table.timing:
            routed, library = self.traffic.families[family], self.traffic.library_times
            if library is not None and routed.collective[0]:
                table.timing[key] = library.timing(routed, table.representative[group], phase, size)
            else:
                timing = _windowed(routed, table.representative[group], phase, size)
                if self.traffic.messages and not routed.operation:
                    timing = replace(timing, latency=timing.latency + self.traffic.step_latency.start)
                table.timing[key] = timing
        return table.timing[key]

    def collectives(self) -> list[dict[str, Any]]:
        """What was run: per family and protocol the operation, algorithm, ranks and range of sizes."""
        found = []
        for name, table in self.family_classes.items():
            routed = self.traffic.families[name]
            operation, algorithm = routed.collective
            by_protocol: dict[str, list[float]] = {}
            for (_, _, size), timing in table.timing.items():
                by_protocol.setdefault(timing.protocol, []).append(size)
            for protocol, sizes in sorted(by_protocol.items()) if operation else ():
                found.append(
                    {
                        "family": name, "operation": operation, "algorithm": algorithm, "protocol": protocol,
                        "num_ranks": int(routed.groups.shape[1]), "min_bytes": min(sizes),
                        "max_bytes": max(sizes),
                    }
                )  # fmt: skip
        return found

    def link_table(self) -> LinkTable:
        """The folded links."""
        traffic, parts = self.traffic, self.traffic.classes
        representative = parts.link_representative
        return LinkTable(
            tuple(traffic.network.link_name(int(link)) for link in representative),
            traffic.capacity[representative],
            parts.link_members,
            tuple(
                traffic.network.link_kinds[traffic.network.link_kind_code[link]] for link in representative
            ),
        )


def _merge(lists: Iterable[Iterable[Edge]]) -> list[Edge]:
    """All edges once each, in order."""
    return list(dict.fromkeys(chain.from_iterable(lists)))


def _windowed(family: Family, group: int, phase: int, size: float) -> Timing:
    """Timing of a phase; with a window the rate is at most what is on its way, over one round trip."""
    loads = family.loads[phase]
    latency, flow_bytes = loads.timing(group, size)
    trip = loads.round_trip(group)
    cap = family.windows[phase] / trip if family.windows and trip > 0 else float("inf")
    return Timing(latency, flow_bytes, cap)
