"""Transfers that never share a link while they run, because what comes before and after what is known.

Where all users of a link follow each other on one stream, none can meet another. Where some do not, as the
gradients' exchange beside tensor-parallel collectives, edges and streams still tell which tasks of the stream
have ended before such a user starts and which wait for its end; only those in between can meet it. So the
collectives of all micro-batches but the first and the last are known to have their links for themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.engine.edges import Edges, program_entries
from sim.graph.execution import BoolArray, ExecutionGraph, IntArray, TaskKind
from sim.lowering.arrays import distinct

ROUNDS = 12  # of passing on what comes before what, along streams and edges; fewer find less, all exact
CHAINS = 2  # streams of a link that are looked at: those with most users
FEW = 0.05  # share of a graph's tasks below which nothing is gained
_NEVER = 1 << 32


def exclusive_transfers(graph: ExecutionGraph, edges: Edges) -> BoolArray:
    """Transfers that can never overlap another one on any of their links, bool[n].

    Parameters
    ----------
    graph : ExecutionGraph
    edges : Edges
        Its own precedence edges and those of its program streams.
    """
    users = _Users.of(graph)
    safe = users.total[users.link] <= 1
    counts = _StreamCounts.of(graph, users)
    if counts is not None:
        safe |= counts.alone()[users.link]
        if not safe.all() and (~safe).mean() * len(safe) >= FEW * graph.num_tasks:
            order = _Order(graph, edges)
            for rank in range(CHAINS):
                safe |= _between(graph, users, counts, order, rank, safe)
    exclusive: BoolArray = (graph.kind == TaskKind.TRANSFER) & (graph.flow_bytes > 0)
    exclusive[users.task[~safe]] = False
    return exclusive


@dataclass(frozen=True)
class _Users:
    """Which transfers load which links: pairs, and the number of pairs of each link."""

    link: IntArray
    task: IntArray
    total: IntArray

    @classmethod
    def of(cls, graph: ExecutionGraph) -> _Users:
        moving = (graph.kind == TaskKind.TRANSFER) & (graph.flow_bytes > 0)
        rows = graph.links.rows()
        entry = np.flatnonzero(moving[rows])
        link = graph.links.index[entry]
        return cls(link, rows[entry], np.bincount(link, minlength=len(graph.link_table.capacity)))


@dataclass(frozen=True)
class _StreamCounts:
    """Users of each link by program stream of width 1; the stream with most users of a link comes first.

    ``place`` counts the streams of a link from 0.
    """

    link: IntArray
    stream: IntArray
    count: IntArray
    place: IntArray
    users: _Users

    @classmethod
    def of(cls, graph: ExecutionGraph, users: _Users) -> _StreamCounts | None:
        stream, on = program_entries(graph, chained=True)
        if not len(on):
            return None
        by_task = np.argsort(on, kind="stable")
        stream, count = stream[by_task], np.bincount(on, minlength=graph.num_tasks)
        first, width = (np.cumsum(count) - count)[users.task], count[users.task]
        link = np.repeat(users.link, width)
        step = np.arange(len(link)) - np.repeat(np.cumsum(width) - width, width)
        num_streams = len(graph.stream_table.width)
        pairs, shared = np.unique(
            link * num_streams + stream[np.repeat(first, width) + step], return_counts=True
        )
        link, stream = pairs // num_streams, pairs % num_streams
        ranked = np.lexsort((stream, -shared, link))
        link, stream, shared = link[ranked], stream[ranked], shared[ranked]
        begins = np.flatnonzero(np.diff(link, prepend=-1))
        place = np.arange(len(link)) - np.repeat(begins, np.diff(begins, append=len(link)))
        return cls(link, stream, shared, place, users)

    def alone(self) -> BoolArray:
        """Links all of whose users are on one stream."""
        found = np.zeros(len(self.users.total), np.bool_)
        found[self.link[self.count == self.users.total[self.link]]] = True
        return found

    def chain(self, rank: int, device_of: IntArray) -> IntArray:
        """The stream of each link that has most users but ``rank``, one at most per device; else -1."""
        found = np.full(len(self.users.total), -1, np.int64)
        mine = self.place == rank
        link, stream = self.link[mine], self.stream[mine]
        number = np.bincount(stream, self.count[mine], minlength=len(device_of)).astype(np.int64)
        best = np.full(int(device_of.max(initial=-1)) + 2, -1, np.int64)
        order = np.argsort(number, kind="stable")
        best[device_of[order]] = order  # the last one written has most users; -1 is the spare end
        chosen = (best[device_of[stream]] == stream) & (device_of[stream] >= 0)
        found[link[chosen]] = stream[chosen]
        return found


def _is_nowhere(graph: ExecutionGraph) -> BoolArray:
    """Tasks without a device and streams."""
    found: BoolArray = (graph.device < 0) & (np.diff(graph.streams.offsets) == 0)
    return found


class _Order:
    """What comes before what: participants (a task on a device) and how they follow each other there."""

    def __init__(self, graph: ExecutionGraph, edges: Edges) -> None:
        self.num_devices = len(graph.devices.name) + 1
        table = graph.stream_table
        is_nowhere = _is_nowhere(graph)
        nowhere = np.flatnonzero(is_nowhere[edges.source] | is_nowhere[edges.target])
        source, target = edges.source[nowhere], edges.target[nowhere]
        self.keys = distinct(
            np.concatenate(
                [
                    self._key(np.arange(graph.num_tasks), graph.device),
                    self._key(graph.streams.rows(), table.device[graph.streams.index]),
                    # A barrier that runs nowhere takes part on all devices around it.
                    self._key(source, graph.device[target]),
                    self._key(target, graph.device[source]),
                ]
            )
        )
        stream, task = program_entries(graph, chained=True)
        self.stream, self.on_stream = stream, self.entry(task, table.device[stream])
        self.starts = np.flatnonzero(np.diff(stream, prepend=-1))
        self.size = np.diff(self.starts, append=len(stream))
        self.position = np.arange(len(stream)) - np.repeat(self.starts, self.size)
        self.before, self.after, self.distance = self._edges(edges, graph.num_tasks)

    def _key(self, task: IntArray, device: IntArray) -> IntArray:
        return task * self.num_devices + device + 1

    def entry(self, task: IntArray, device: IntArray) -> IntArray:
        """Participants by task and device; -1 where there is none."""
        wanted = self._key(task, device)
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[place] == wanted, place, -1)

    def _edges(self, edges: Edges, num_tasks: int) -> tuple[IntArray, IntArray, IntArray]:
        """Edges between participants on the same device."""
        task, device = self.keys // self.num_devices, self.keys % self.num_devices - 1
        count = np.bincount(task, minlength=num_tasks)
        width, first = count[edges.source], (np.cumsum(count) - count)[edges.source]
        edge = np.repeat(np.arange(len(edges.source)), width)
        before = np.repeat(first, width) + np.arange(len(edge)) - np.repeat(np.cumsum(width) - width, width)
        after = self.entry(edges.target[edge], device[before])
        fits = after >= 0
        return before[fits], after[fits], edges.distance[edge][fits]

    def window(self, is_chain: BoolArray) -> tuple[IntArray, IntArray]:
        """Of every participant: the last place on its device's chain known to be over when it starts, and the
        first known to start when it is over, counted on over iterations.

        ``is_chain``: streams that are the chain of their device.
        """
        device = self.keys % self.num_devices
        chained = is_chain[self.stream]
        period = np.full(self.num_devices, _NEVER)
        period[device[self.on_stream[chained]]] = np.repeat(self.size, self.size)[chained]
        turn = self.distance * period[device[self.before]]
        last, first = np.full(len(self.keys), -_NEVER), np.full(len(self.keys), _NEVER)
        last[self.on_stream[chained]] = first[self.on_stream[chained]] = self.position[chained]
        span = period[device[self.on_stream[self.starts]]]
        for _ in range(ROUNDS):
            known = last.copy(), first.copy()
            np.maximum.at(last, self.after, last[self.before] - turn)
            np.minimum.at(first, self.before, first[self.after] + turn)
            self._along(last, span)
            self._along(first, span, backwards=True)
            if np.array_equal(known[0], last) and np.array_equal(known[1], first):
                break
        return last, first

    def _along(self, values: IntArray, span: IntArray, *, backwards: bool = False) -> None:
        """Pass on values along streams: the largest forwards, or the smallest backwards; once around."""
        if not len(self.starts):
            return
        sign = -1 if backwards else 1
        row = sign * values[self.on_stream]
        ends = self.starts + self.size - 1
        edge, other = (ends, self.starts) if backwards else (self.starts, ends)
        for _ in range(2):
            if backwards:
                shifted = row[::-1] + _lift(self.stream[::-1], falling=True)
                row = (np.maximum.accumulate(shifted) - _lift(self.stream[::-1], falling=True))[::-1]
            else:
                row = np.maximum.accumulate(row + _lift(self.stream)) - _lift(self.stream)
            row[edge] = np.maximum(row[edge], row[other] - span)
        row = np.clip(sign * row, -_NEVER, _NEVER)
        if backwards:
            np.minimum.at(values, self.on_stream, row)
        else:
            np.maximum.at(values, self.on_stream, row)


def _lift(stream: IntArray, *, falling: bool = False) -> IntArray:
    """What keeps the running maximum of one stream from reaching into the next."""
    number = np.max(stream, initial=0) - stream if falling else stream
    lifted: IntArray = number * (1 << 35)
    return lifted


def _between(
    graph: ExecutionGraph, users: _Users, counts: _StreamCounts, order: _Order, rank: int, safe: BoolArray
) -> BoolArray:
    """Pairs (as in ``users``) of tasks on a chain that no other user of the link can meet."""
    found = np.zeros(len(safe), np.bool_)
    device_of = graph.stream_table.device
    chain = counts.chain(rank, device_of)
    pair = np.flatnonzero(~safe & (chain[users.link] >= 0))
    if not len(pair):
        return found
    is_chain = np.zeros(len(device_of), np.bool_)
    is_chain[chain[users.link[pair]]] = True
    last, first = order.window(is_chain)
    mine = order.entry(users.task[pair], device_of[chain[users.link[pair]]])
    place = np.full(len(order.keys), -1, np.int64)
    chained = is_chain[order.stream]
    place[order.on_stream[chained]] = order.position[chained]
    on_chain = (mine >= 0) & (place[mine] >= 0)
    busy = _met(order, is_chain, chain[users.link[pair]], mine, on_chain, last, first)
    lost = np.zeros(len(users.total), np.bool_)
    lost[users.link[pair[mine < 0]]] = True
    start = np.zeros(len(device_of), np.int64)
    start[order.stream[order.starts]] = order.starts
    here = on_chain & ~lost[users.link[pair]]
    here[here] = ~busy[(start[chain[users.link[pair]]] + place[mine])[here]]
    found[pair[here]] = True
    return found


def _met(
    order: _Order, is_chain: BoolArray, chain: IntArray, mine: IntArray, on_chain: BoolArray,
    last: IntArray, first: IntArray,
) -> BoolArray:  # fmt: skip
    """Places on chains (as in ``order.stream``) at which a user of the same link may be running."""
    other = np.flatnonzero(~on_chain & (mine >= 0))
    stream, low, high = chain[other], last[mine[other]] + 1, first[mine[other]]
    begin = np.zeros(len(is_chain), np.int64)
    size = np.zeros(len(is_chain), np.int64)
    begin[order.stream[order.starts]], size[order.stream[order.starts]] = order.starts, order.size
    change = np.zeros(len(order.stream) + 1, np.int64)
    whole = high - low >= size[stream]
    low, high = np.where(whole, 0, low), np.where(whole, size[stream], high)
    some = high > low
    low, high, stream = low[some], high[some], stream[some]
    turn = np.floor_divide(low, size[stream]) * size[stream]
    low, high = low - turn, high - turn
    np.add.at(change, begin[stream] + low, 1)
    np.add.at(change, begin[stream] + np.minimum(high, size[stream]), -1)
    over = high > size[stream]
    np.add.at(change, begin[stream[over]], 1)
    np.add.at(change, begin[stream[over]] + high[over] - size[stream[over]], -1)
    return np.cumsum(change[:-1]) > 0
