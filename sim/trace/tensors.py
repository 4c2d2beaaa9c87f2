"""Which kernels wait for which, by the tensors of the execution trace of the same rank.

A Kineto trace says when operators ran and which kernels they launched; an execution trace says which tensors
they read and wrote. Operators are the same where their record function ids agree; where a trace has none, by
runs of equal names, thread by thread and step by step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.trace.model import COMMUNICATION, HostTable, IntArray, RankTrace, TensorNode, Trace
from sim.trace.readers.kineto_operators import step_windows

#: Lengths of runs of names that count as the same place if they occur once on either side, longest first.
_RUNS = (12, 6, 3, 1)


def join_tensors(trace: Trace) -> None:
    """Fill in ``tensor_producers`` of every Kineto rank that has an execution trace.

    Parameters
    ----------
    trace : Trace
        Read with ``host=True``.
    """
    timed = [rank for rank in trace.ranks if rank.format == "kineto" and rank.host is not None]
    graphs = [rank for rank in trace.ranks if rank.format == "pytorch-et" and rank.tensor_nodes]
    for rank in timed:
        graph = partner(rank, timed, graphs)
        if graph is not None:
            rank.tensor_producers = tensor_producers(rank, graph)


def partner(rank: RankTrace, timed: list[RankTrace], graphs: list[RankTrace]) -> RankTrace | None:
    """The execution trace of the same rank; the only one of each kind belong together."""
    same = [graph for graph in graphs if graph.rank is not None and graph.rank == rank.rank]
    if len(same) == 1:
        return same[0]
    alone = len(timed) == 1 and len(graphs) == 1
    return graphs[0] if alone and None in (rank.rank, graphs[0].rank) else None


def tensor_producers(rank: RankTrace, graph: RankTrace) -> dict[int, tuple[int, ...]]:
    """Device spans that wrote what a span reads, for every span whose operator is in both traces.

    A storage was written last by the last kernel of the operator that had it among its results; a collective
    also writes what it reads.
    """
    node_of = matched_nodes(rank, graph)
    launched = _spans_of(rank, node_of)
    assert rank.host is not None
    writer: dict[int, int] = {}
    found: dict[int, tuple[int, ...]] = {}
    kind, end = rank.timeline.integer("kind"), rank.timeline["end"]
    for operator in sorted(launched, key=lambda row: float(rank.host.start[row])):  # type: ignore[union-attr]
        spans, node = launched[operator], graph.tensor_nodes[node_of[operator]]
        sources = tuple(sorted({writer[s] for s in node.inputs if s in writer}))
        for span in spans:
            found[span] = sources
        last = max(spans, key=lambda span: float(end[span]))
        written = {*node.outputs, *(node.inputs if kind[last] == COMMUNICATION else ())}
        writer.update(dict.fromkeys(written, last))
    return found


# ---- the same operator in both traces -------------------------------------------------------------------


def matched_nodes(rank: RankTrace, graph: RankTrace) -> dict[int, int]:
    """Node of the execution trace (place in ``tensor_nodes``) of the host operators that it holds."""
    host, nodes = rank.host, graph.tensor_nodes
    assert host is not None
    rows = np.flatnonzero(host.kind == 0)
    if (host.record_function[rows] > 0).any():
        known = {node.record_function: place for place, node in enumerate(nodes) if node.record_function > 0}
        pairs = ((int(row), known.get(int(host.record_function[row]), -1)) for row in rows)
        same = {r: p for r, p in pairs if p >= 0 and nodes[p].name == host.names[host.name[r]]}
        if same:
            return same
    segments = _segments(graph)
    found: dict[int, int] = {}
    for number, (first, last) in enumerate(step_windows(rank)):
        inside = rows[(host.start[rows] >= first) & (host.start[rows] < last)]
        name = rank.steps[number].name if number < len(rank.steps) else ""
        places = segments.get(name) if rank.steps else None
        if places is None:
            whole = list(range(len(nodes)))
            places = max(segments.values(), key=len) if rank.steps and segments else whole
        found.update(_by_names(host, inside, nodes, places))
    return found


def _segments(graph: RankTrace) -> dict[str, list[int]]:
    """Places of the nodes of each step, by the step's name; nodes are numbered as they start."""
    found: dict[str, list[int]] = {}
    current: list[int] | None = None
    for place, node in enumerate(graph.tensor_nodes):
        if node.name.startswith("ProfilerStep"):
            current = found.setdefault(node.name, [])
        elif current is not None:
            current.append(place)
    return {name: places for name, places in found.items() if places}


def _by_names(
    host: HostTable, rows: IntArray, nodes: Sequence[TensorNode], places: list[int]
) -> dict[int, int]:
    """Operators of one step, thread by thread; threads belong together whose operators' names do."""
    timed: dict[int, list[int]] = defaultdict(list)
    for row in rows[np.lexsort((-host.end[rows], host.start[rows]))].tolist():
        timed[int(host.thread[row])].append(row)
    known: dict[int, list[int]] = defaultdict(list)
    for place in places:
        known[nodes[place].thread].append(place)
    names = {t: [host.names[host.name[r]] for r in own] for t, own in timed.items()}
    others = {t: [nodes[p].name for p in own] for t, own in known.items()}
    shared = {(a, b): (Counter(names[a]) & Counter(others[b])).total() for a in names for b in others}
    found: dict[int, int] = {}
    while shared:
        a, b = max(shared, key=lambda pair: (shared[pair], pair))
        found.update((timed[a][i], known[b][j]) for i, j in aligned_runs(names[a], others[b]))
        shared = {pair: count for pair, count in shared.items() if pair[0] != a and pair[1] != b}
    return found


def aligned_runs(
    first: Sequence[str], second: Sequence[str], lengths: tuple[int, ...] = _RUNS
) -> list[tuple[int, int]]:
    """Pairs of places of equal names, in order: what surrounds runs that occur once on either side.

    Time grows linearly with the length, unlike that of a longest common subsequence.
    """
    if not first or not second or not lengths:
        return []
    chain = _increasing(_single(first, second, lengths[0]))
    if not chain:
        return aligned_runs(first, second, lengths[1:])
    pairs: list[tuple[int, int]] = []
    at, other = 0, 0
    for i, j in [*chain, (len(first), len(second))]:
        if i < at or j < other:
            continue
        begin, begun = i, j
        while i < len(first) and begin > at and begun > other and first[begin - 1] == second[begun - 1]:
            begin, begun = begin - 1, begun - 1
        between = aligned_runs(first[at:begin], second[other:begun], lengths[1:])
        pairs += [(at + a, other + b) for a, b in between]
        while i < len(first) and j < len(second) and first[i] == second[j]:
            i, j = i + 1, j + 1
        pairs += zip(range(begin, i), range(begun, j), strict=True)
        at, other = i, j
    return pairs


def _single(first: Sequence[str], second: Sequence[str], length: int) -> list[tuple[int, int]]:
    """Places of the runs of ``length`` names that occur exactly once in each."""
    places = []
    for words in (first, second):
        seen: dict[tuple[str, ...], int] = {}
        for at in range(len(words) - length + 1):
            key = tuple(words[at : at + length])
            seen[key] = -1 if key in seen else at
        places.append(seen)
    both = ((at, places[1].get(key, -1)) for key, at in places[0].items())
    return sorted((at, other) for at, other in both if at >= 0 and other >= 0)


def _increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest chain of pairs in which both numbers grow."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for index, (_, other) in enumerate(pairs):
        at = bisect_left(tails, other)
        before.append(ends[at - 1] if at else -1)
        tails[at : at + 1], ends[at : at + 1] = [other], [index]
    chain, index = [], ends[-1] if ends else -1
    while index >= 0:
        chain.append(pairs[index])
        index = before[index]
    return chain[::-1]


# ---- kernels of an operator -----------------------------------------------------------------------------


@dataclass
class _Open:
    """An operator that runs on a thread: its row and end."""

    row: int
    end: float


def _spans_of(rank: RankTrace, node_of: dict[int, int]) -> dict[int, list[int]]:
    """Device spans launched inside each matched operator, innermost first served."""
    host = rank.host
    assert host is not None
    if rank.correlation is None:
        return {}
    spans: dict[int, list[int]] = defaultdict(list)
    for span, correlation in enumerate(rank.correlation.tolist()):
        if correlation >= 0:
            spans[correlation].append(span)
    order = np.lexsort((host.kind, -host.end, host.start, host.thread))
    found: dict[int, list[int]] = defaultdict(list)
    stack: list[_Open] = []
    thread = -1
    for row in order.tolist():
        if host.thread[row] != thread:
            thread, stack = int(host.thread[row]), []
        while stack and stack[-1].end < host.start[row]:
            stack.pop()
        if host.kind[row] == 0:
            if row in node_of:
                stack.append(_Open(row, float(host.end[row])))
        elif stack:
            found[stack[-1].row].extend(spans.get(int(host.correlation[row]), ()))
    return {row: own for row, own in found.items() if own}
