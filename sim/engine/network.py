"""The fluid network: transfers drain at max-min fair rates, re-solved only where something changed.

Transfers that share links, directly or through others, form a *group*. While every member crosses the most
contended link of its group (or is held by the same cap), all members progress at one common rate. Then the
group keeps a *virtual time*, the bytes an unweighted flow has received, and each member a fixed virtual
finish, so that a change costs O(links of one transfer + log members) and not a new solution. Otherwise the
group is solved by progressive filling. One event per group waits for its earliest completion.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np
from simpy.core import Environment
from simpy.events import Event

from sim.engine.events import Completion
from sim.engine.filling import Filling
from sim.engine.phases import idle_rates
from sim.engine.plan import Plan
from sim.errors import InvariantError
from sim.fabric.sharing import max_min
from sim.rng import uniform_hash

NEGLIGIBLE = 1e-9  # of a transfer's bytes: counts as drained
EFFORT_PER_VISIT = 1 / 64  # of looking at a link or transfer, in task instances
_TOLERANCE = 1e-9
_SMALL = 64  # members up to which filling by classes in Python is faster than NumPy
_INFINITY = float("inf")


class Network(Protocol):
    """What the loop needs from a network."""

    dirty: bool
    effort: float
    """What solving has cost beyond the transfers themselves, in finished task instances."""

    def join(self, instance: int) -> None:
        """A transfer's latency is over: its bytes start to flow when the network is flushed."""

    def flush(self, now: float) -> None:
        """Re-solve what changed since the last flush."""

    def set_factor(self, instance: int, factor: float, now: float) -> None:
        """Progress of an active transfer per unit of its rate."""

    def state(self, now: float) -> list[tuple[int, float]]:
        """(instance, fraction of bytes left) of all active transfers."""


class TransferTable:
    """Links, coefficients, caps and bytes of each task, as lists, with duplicate links of a row joined."""

    def __init__(self, plan: Plan) -> None:
        graph = plan.graph
        self.stride, self.rank = plan.stride, plan.rank
        self.capacity: list[float] = graph.link_table.capacity.tolist()
        self.bytes: list[float] = graph.flow_bytes.tolist()
        self.cap: list[float] = graph.cap.tolist()
        self.idle: list[float] = idle_rates(graph).tolist()
        self.graph, self.origin = graph, plan.origin
        self._loads: dict[int, list[tuple[int, float]]] = {}

    def loads(self, task: int) -> list[tuple[int, float]]:
        """(link, coefficient) pairs of a task."""
        found = self._loads.get(task)
        if found is None:
            graph = self.graph
            row = slice(int(graph.links.offsets[task]), int(graph.links.offsets[task + 1]))
            total: dict[int, float] = {}
            for link, amount in zip(
                graph.links.index[row].tolist(), graph.link_coefficient[row].tolist(), strict=True
            ):
                total[link] = total.get(link, 0.0) + amount
            found = self._loads[task] = [(link, amount) for link, amount in total.items() if amount > 0]
        return found


class Group:
    """Transfers connected by shared links."""

    __slots__ = (
        "alarm", "alone", "bottleneck", "caps", "changed", "finish", "floor", "heap", "left", "links",
        "rate", "rates", "time", "uniform", "virtual",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.uniform = True
        self.time = now
        self.virtual = 0.0  # bytes received by a flow of weight 1 (uniform groups)
        self.rate = 0.0
        # Uniform: virtual finish of each member; otherwise its bytes left, and `rates` its progress rate.
        self.finish: dict[int, float] = {}
        self.rates: dict[int, float] = {}
        # Rates at full progress, as long as no member comes or goes; else None.
        self.alone: dict[int, float] | None = None
        self.heap: list[tuple[float, int]] = []
        self.links: set[int] = set()
        self.bottleneck = -1
        self.floor = _INFINITY  # lower bound of the fair levels of all links but the bottleneck
        self.caps: dict[float, int] = {}  # cap of an unweighted flow -> members that have it
        self.left = 0  # members that left since the components were last computed
        self.changed = False
        self.alarm: Completion | None = None

    def advance(self, now: float) -> None:
        """Let bytes flow until ``now``."""
        span = now - self.time
        if span > 0.0:
            if self.uniform:
                self.virtual += self.rate * span
            else:
                finish, rates = self.finish, self.rates
                for instance, left in finish.items():
                    finish[instance] = left - rates[instance] * span
        self.time = now


class FluidNetwork:
    """Max-min fair sharing of links, ``fair`` or ``weighted``.

    Parameters
    ----------
    env : simpy.Environment
        Clock and event queue.
    plan : Plan
        The graph being played.
    drained : list of int
        Instances whose bytes have arrived are appended here.
    signals : list of bool
        Appended to when the network has to be flushed.
    """

    def __init__(self, env: Environment, plan: Plan, drained: list[int], signals: list[bool]) -> None:
        self._env, self._drained, self._signals = env, drained, signals
        self.table = TransferTable(plan)
        self._weighted = plan.graph.link_service == "weighted"
        self._seed = plan.graph.seed
        num_links = len(self.table.capacity)
        self._load = [0.0] * num_links  # sum of coefficient * weight over active transfers
        self._users = [0] * num_links
        self._group_of: list[Group | None] = [None] * num_links
        self._member: dict[int, Group] = {}
        self._weight: dict[int, float] = {}
        self._factor: dict[int, float] = {}
        table = self.table
        self._filling = Filling(table.capacity, self._users, table.loads, table.cap, self._weight)
        self._new: list[int] = []
        self._changed: list[Group] = []
        self._callbacks: list[Callable[[Event], None]] = [self._on_alarm]
        self.dirty = False
        self.effort = 0.0

    # -- what the loop calls ----------------------------------------------------------------------

    def join(self, instance: int) -> None:
        """Start the bytes of a transfer at the next flush."""
        self._new.append(instance)
        self._touch()

    def flush(self, now: float) -> None:
        """Attach new transfers and re-solve the groups that changed."""
        for instance in self._new:
            self._attach(instance, now)
        self._new.clear()
        changed, self._changed = self._changed, []
        for group in changed:
            if group.changed:
                group.changed = False
                self._solve(group, now)
        self.dirty = False

    def _touch(self) -> None:
        self.dirty = True
        self._signals.append(True)

    def set_factor(self, instance: int, factor: float, now: float) -> None:
        """Make an active transfer progress at ``factor`` times its rate from now on."""
        group = self._member.get(instance)
        if group is None:
            self._factor[instance] = factor
            return
        group.advance(now)
        left = self._left(group, instance)
        self._factor[instance] = factor
        self._put(group, instance, left)
        self._mark(group)

    def state(self, now: float) -> list[tuple[int, float]]:
        """(instance, fraction of bytes left) of active transfers."""
        table, found = self.table, []
        for instance, group in self._member.items():
            group.advance(now)
            found.append((instance, self._left(group, instance) / table.bytes[instance % table.stride]))
        return sorted(found)

    # -- members ----------------------------------------------------------------------------------

    def _scale(self, instance: int) -> float:
        return self._weight.get(instance, 1.0) * self._factor.get(instance, 1.0)

    def _left(self, group: Group, instance: int) -> float:
        value = group.finish[instance]
        return (value - group.virtual) * self._scale(instance) if group.uniform else value

    def _put(self, group: Group, instance: int, left: float) -> None:
        if group.uniform:
            value = group.virtual + left / self._scale(instance)
            heappush(group.heap, (value, instance))
        else:
            value = left
            group.rates.setdefault(instance, 0.0)
        group.finish[instance] = value

    def _mark(self, group: Group) -> None:
        if not group.changed:
            group.changed = True
            self._changed.append(group)
        self._touch()

    def _attach(self, instance: int, now: float) -> None:
        table, task = self.table, instance % self.table.stride
        loads = table.loads(task)
        group: Group | None = None
        for link, _ in loads:
            other = self._group_of[link]
            if other is not None and other is not group:
                other.advance(now)
                group = other if group is None else self._merge(group, other)
        if group is None:
            group = Group(now)
        weight = 1.0
        if self._weighted:
            iteration = instance // table.stride
            drawn = uniform_hash(self._seed ^ 0x5EED, table.origin[task], iteration)
            weight = self._weight[instance] = 0.5 + float(drawn)
        cap = table.cap[task] / weight
        group.caps[cap] = group.caps.get(cap, 0) + 1
        for link, amount in loads:
            self._group_of[link] = group
            group.links.add(link)
            self._filling.joins(instance, link)
            self._users[link] += 1
            self._load[link] += amount * weight
            if link != group.bottleneck:
                group.floor = min(group.floor, table.capacity[link] / self._load[link])
        self._member[instance] = group
        group.alone = None
        if group.virtual > 1e6 * table.bytes[task]:
            self._rebase(group)
        self._put(group, instance, table.bytes[task])
        self._mark(group)

    def _merge(self, group: Group, other: Group) -> Group:
        """Move the members of the smaller group into the larger one."""
        if len(group.finish) < len(other.finish):
            group, other = other, group
        for instance in other.finish:
            self._member[instance] = group
            self._put(group, instance, self._left(other, instance))
        for link in other.links:
            self._group_of[link] = group
        group.links |= other.links
        group.floor = min(group.floor, other.floor)
        if other.bottleneck >= 0:
            level = self.table.capacity[other.bottleneck] / self._load[other.bottleneck]
            group.floor = min(group.floor, level)
        for cap, count in other.caps.items():
            group.caps[cap] = group.caps.get(cap, 0) + count
        group.left += other.left
        other.changed = False
        if other.alarm is not None:
            other.alarm.cancel()
        other.finish = {}
        return group

    def _detach(self, group: Group, instance: int) -> None:
        del group.finish[instance], self._member[instance]
        group.alone = None
        group.rates.pop(instance, None)
        self._filling.forget(instance)
        weight = self._weight.pop(instance, 1.0)
        self._factor.pop(instance, None)
        cap = self.table.cap[instance % self.table.stride] / weight
        group.caps[cap] -= 1
        if not group.caps[cap]:
            del group.caps[cap]
        for link, amount in self.table.loads(instance % self.table.stride):
            self._users[link] -= 1
            self._filling.leaves(instance, link)
            self._load[link] -= amount * weight
            if not self._users[link]:
                self._load[link] = 0.0
                self._group_of[link] = None
                group.links.discard(link)
                if link == group.bottleneck:
                    group.bottleneck = -1
        group.left += 1

    # -- progress ---------------------------------------------------------------------------------

    def _on_alarm(self, event: Event) -> None:
        group: Group = event._value
        group.alarm = None
        now = self._env.now
        group.advance(now)
        instant = max(1e-12, 1e-12 * now)
        table, stride = self.table, self.table.stride
        done: list[int] = []
        if group.uniform:
            heap, finish = group.heap, group.finish
            while heap:
                value, instance = heap[0]
                if finish.get(instance) == value:
                    left = value - group.virtual
                    small = NEGLIGIBLE * table.bytes[instance % stride]
                    if left > instant * group.rate and left * self._scale(instance) > small:
                        break
                    done.append(instance)
                    self._detach(group, instance)
                heappop(heap)
        else:
            for instance, left in group.finish.items():
                if left <= max(instant * group.rates[instance], NEGLIGIBLE * table.bytes[instance % stride]):
                    done.append(instance)
            for instance in done:
                self._detach(group, instance)
        self._drained.extend(done)
        self._mark(group)

    def _solve(self, group: Group, now: float) -> None:
        """New rates for a group, and an alarm for its next completion."""
        group.advance(now)
        if group.alarm is not None:
            group.alarm.cancel()
            group.alarm = None
        if not group.finish:
            return
        if group.left > 8 and group.left * 2 > len(group.finish):
            for part in self._split(group, now):
                self._rate(part)
        else:
            self._rate(group)

    def _rate(self, group: Group) -> None:
        # Without members that came or went only their progress has changed, not what links give them.
        if group.alone is None:
            rate = self._common_rate(group)
        else:
            rate, self.effort = None, self.effort + len(group.links) * EFFORT_PER_VISIT
        if rate is not None:
            if not group.uniform:
                self._make_uniform(group)
            group.rate = rate
            heap, finish = group.heap, group.finish
            while finish.get(heap[0][1]) != heap[0][0]:
                heappop(heap)
            delay = (heap[0][0] - group.virtual) / rate
        else:
            if group.uniform:
                self._make_general(group)
            delay = self._fill(group)
        group.alarm = Completion(self._env, self._callbacks, group, max(delay, 0.0))

    def _common_rate(self, group: Group) -> float | None:
        """The rate of an unweighted flow if one bottleneck (or one cap) holds all members, else None."""
        capacity, load, users, size = self.table.capacity, self._load, self._users, len(group.finish)
        link = group.bottleneck
        if link >= 0 and users[link] == size:
            level = capacity[link] / load[link]
            if level <= group.floor and level <= min(group.caps):
                return level
        self.effort += len(group.links) * EFFORT_PER_VISIT
        if not self._may_be_uniform(group):
            group.bottleneck, group.floor = -1, 0.0
            return None
        best = floor = _INFINITY
        link = -1
        for other in group.links:
            level = capacity[other] / load[other]
            if level < best or (level == best and users[other] > users[link]):
                best, floor, link = level, best, other
            elif level < floor:
                floor = level
        group.bottleneck, group.floor = link, floor
        smallest = min(group.caps)
        if link >= 0 and users[link] == size and best <= smallest:
            return best
        return smallest if len(group.caps) == 1 and smallest <= best else None

    def _may_be_uniform(self, group: Group) -> bool:
        """Whether all members cross one link or have one cap; a link of all is a link of any one of them."""
        if len(group.caps) == 1 and _INFINITY not in group.caps:
            return True
        users, size = self._users, len(group.finish)
        loads = self.table.loads(next(iter(group.finish)) % self.table.stride)
        return not loads or any(users[link] == size for link, _ in loads)

    def _make_uniform(self, group: Group) -> None:
        left = group.finish
        group.uniform, group.virtual, group.rates, group.finish = True, 0.0, {}, {}
        for instance, bytes_left in left.items():
            group.finish[instance] = bytes_left / self._scale(instance)
        group.heap = [(value, instance) for instance, value in group.finish.items()]
        heapify(group.heap)

    def _make_general(self, group: Group) -> None:
        left = {instance: self._left(group, instance) for instance in group.finish}
        group.uniform, group.finish, group.heap = False, left, []

    def _rebase(self, group: Group) -> None:
        """Restart the virtual time at 0 before it swallows the digits of small transfers."""
        if group.uniform:
            self._make_general(group)
            self._make_uniform(group)

    def _split(self, group: Group, now: float) -> list[Group]:
        """Connected components of a group that has lost many members, with exact link loads."""
        if group.uniform:
            self._make_general(group)
        table, stride = self.table, self.table.stride
        for link in group.links:
            self._group_of[link], self._load[link] = None, 0.0
        parts: list[Group] = []
        on_link: dict[int, list[int]] = {}
        for instance in group.finish:
            for link, amount in table.loads(instance % stride):
                on_link.setdefault(link, []).append(instance)
                self._load[link] += amount * self._weight.get(instance, 1.0)
        seen: set[int] = set()
        for first in group.finish:
            if first in seen:
                continue
            part, stack = Group(now), [first]
            part.uniform = False
            seen.add(first)
            while stack:
                instance = stack.pop()
                part.finish[instance], part.rates[instance] = group.finish[instance], 0.0
                cap = table.cap[instance % stride] / self._weight.get(instance, 1.0)
                part.caps[cap] = part.caps.get(cap, 0) + 1
                self._member[instance] = part
                for link, _ in table.loads(instance % stride):
                    for other in on_link.pop(link, ()):
                        if other not in seen:
                            seen.add(other)
                            stack.append(other)
                    part.links.add(link)
                    self._group_of[link] = part
            parts.append(part)
        return parts

    def _fill(self, group: Group) -> float:
        """Max-min fair rates of a group with several bottlenecks; seconds to its next completion."""
        self.effort += 4 * len(group.finish) * EFFORT_PER_VISIT
        alone, finish, factor = group.alone, group.finish, self._factor
        if alone is None:
            if len(finish) > _SMALL:
                alone = self._fill_large(list(finish))
            else:
                alone = self._filling.rates(finish, self.table.stride)
            group.alone = alone
        delay, rates = _INFINITY, {}
        for instance, rate in alone.items():
            if factor:
                rate *= factor.get(instance, 1.0)
            rates[instance] = rate
            if rate > 0.0:
                delay = min(delay, finish[instance] / rate)
        group.rates = rates
        return delay

    def _fill_large(self, members: list[int]) -> dict[int, float]:
        graph, stride = self.table.graph, self.table.stride
        tasks = np.array(members, np.int64) % stride
        first, last = graph.links.offsets[tasks], graph.links.offsets[tasks + 1]
        offsets = np.concatenate([[0], np.cumsum(last - first)])
        entry = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], last - first)
        link, amount = graph.links.index[entry], graph.link_coefficient[entry]
        weight = np.array([self._weight[i] for i in members]) if self._weighted else None
        capacity = graph.link_table.capacity
        rates = max_min(capacity, offsets, link, amount, graph.cap[tasks], weight)
        used = np.bincount(link, amount * np.repeat(rates, last - first), len(capacity))
        if (used > capacity * (1 + _TOLERANCE)).any():
            worst = int(np.argmax(used / capacity))
            raise InvariantError(f"link {graph.link_table.name[worst]} carries more than its capacity")
        return dict(zip(members, rates.tolist(), strict=True))
