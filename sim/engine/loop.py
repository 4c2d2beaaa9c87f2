"""The event loop: SimPy keeps time, callbacks collect what is over, ``settle`` starts what may run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from simpy.core import Environment
from simpy.events import Event

from sim.engine.counters import Counters, batch_end
from sim.engine.coupling import Coupling
from sim.engine.deadlock import Stuck, explain
from sim.engine.events import Completion
from sim.engine.fifo import FifoNetwork
from sim.engine.network import FluidNetwork, Network
from sim.engine.plan import ACTIVITY, ADDS, BOUNDARY, COMMUNICATING, INSTANT, SHARED, WATCHED, Plan
from sim.engine.streams import StreamPool
from sim.engine.tcp import TcpNetwork
from sim.errors import Deadlock, InputError, InvariantError
from sim.graph.execution import TaskKind

UNSET = float("nan")
# How far some tasks may be ahead of others in an open-ended run before it is looked whether the rest works:
# in iterations, or in instances if that is sooner, but a few hundred iterations at least.
LEAD_LIMIT, LEAD_FLOOR, LEAD_INSTANCES = 20_000, 300, 5_000_000
# How many iterations may begin at one instant before the graph counts as one that takes no time.
ZERO_TIME_LIMIT = 5_000


_NETWORKS: dict[str, Callable[..., Network]] = {"fifo": FifoNetwork, "tcp": TcpNetwork}


class Stop(Protocol):
    """Says when an open-ended run may end."""

    budget: float
    """Work (see :meth:`Player.work`) from which on the run is to end soon."""

    def __call__(self, iteration: int, now: float) -> bool:
        """Whether to stop after an iteration; first asked after -1, when the first tasks have started."""

    def give_up(self, now: float) -> bool:
        """Whether to stop now that the work exceeds the budget; asked when a new iteration begins."""


class Never:
    """Stops nothing: for runs of a given number of iterations."""

    budget = float("inf")

    def __call__(self, iteration: int, now: float) -> bool:
        """No."""
        return False

    def give_up(self, now: float) -> bool:
        """No."""
        return False


class Player:
    """Plays a plan. Instances are integers: iteration * stride + node.

    Attributes
    ----------
    start, end : list of float
        Seconds per instance, ``UNSET`` (by identity) until known.
    order : list of int
        Finished instances in order of completion.
    """

    def __init__(self, plan: Plan, progress: Callable[[str], None] | None = None) -> None:
        graph = plan.graph
        self.plan = plan
        self._progress = progress
        self.env = Environment()
        self.done: list[int] = []
        self.special: list[int] = []  # instances whose predecessors are done and that have to pass a gate
        self.signals: list[
            bool
        ] = []  # not empty: the loop has to look at streams, network, coupling, boundaries
        self.pending: list[int] = []
        self.duration: list[float] = []
        self.start: list[float] = []
        self.end: list[float] = []
        self.order: list[int] = []
        self.skipped: set[int] = set()
        self.admitted: dict[int, float] = {}  # instance -> time at which its counters let it pass
        self.boundary_times: list[float] = []
        self._boundary_left: dict[int, int] = {}
        self.drawn: list[float] = []  # jitter factors, iteration by iteration
        self.unset = UNSET
        self._lowest = 0
        self._told = -1
        self._opened_at, self._opened_now = 0.0, 0
        self._unfinished: set[int] = set()
        self._budget = float("inf")
        self._spent = False
        self.stopped_at: float | None = None
        self.num_events = 0
        self._num_boundary = int(plan.boundary.sum())
        self.counters = Counters(plan)
        self.streams = StreamPool(plan) if plan.is_shared.any() else None
        self.network: Network | None = None
        if (~plan.timed & ~plan.is_activity).any():
            kind = _NETWORKS.get(graph.link_service, FluidNetwork)
            self.network = kind(self.env, plan, self.done, self.signals)
        self.coupling = (
            Coupling(self.env, plan, self.network, self.done, self.signals) if plan.coupled else None
        )
        self._finish = [_collector(self.done)]
        self._arrive = [_joiner(self.network)] if self.network is not None else []

    # -- iterations -------------------------------------------------------------------------------

    def open_until(self, iteration: int, now: float) -> None:
        """Make the state of all iterations up to ``iteration``; launch instances without predecessors."""
        plan, stride = self.plan, self.plan.stride
        lead = min(LEAD_LIMIT, max(LEAD_FLOOR, LEAD_INSTANCES // stride))
        for k in range(len(self.pending) // stride, iteration + 1):
            if plan.max_iterations is None and k - len(self.boundary_times) > lead:
                if not self.works_on(len(self.boundary_times)):
                    raise Deadlock(explain(self.stuck()))
                self._budget = 0.0  # somebody works, only much more slowly
            self._opened_now = self._opened_now + 1 if now == self._opened_at else 0
            self._opened_at = now
            if self._opened_now > ZERO_TIME_LIMIT:
                raise InputError(
                    "graph.work", "let an iteration take time", f"{ZERO_TIME_LIMIT} iterations at {now:g} s"
                )
            pending = plan.pending_at(k)
            self.pending += pending
            self.duration += self._durations(k)
            self.start += [UNSET] * stride
            self.end += [UNSET] * stride
            self._boundary_left[k] = self._num_boundary
            if 0 in pending:
                for node in [node for node, count in enumerate(pending) if not count]:
                    self._launch(k * stride + node, now)
        if self._progress is not None:
            self._progress(f"playing iteration {len(self.boundary_times)} ({len(self.order):,} tasks so far)")
        if self.work() > self._budget:
            self._spent = True
            self.signals.append(True)

    def _launch(self, i: int, now: float) -> None:
        seconds = self.duration[i]
        if seconds < 0.0:
            self.special.append(i)
            return
        self.start[i] = now
        if seconds > 0.0:
            Completion(self.env, self._finish, i, seconds)
        else:
            self.done.append(i)

    def _durations(self, iteration: int) -> list[float]:
        plan = self.plan
        if not plan.graph.has_random_compute:
            return plan.duration
        drawn = plan.jitter_factors(iteration).tolist()
        self.drawn += drawn
        pairs = zip(plan.duration, drawn + [1.0] * plan.num_markers, strict=True)
        return [value * factor if value > 0 else value for value, factor in pairs]

    # -- the loop ---------------------------------------------------------------------------------

    def run(self, stop: Stop) -> None:
        """Play until nothing is left or ``stop`` says so at the end of an iteration, or over its budget.

        After it has agreed, everything that started before that instant is played to its end, so that the
        window is complete; but if the budget is spent, for a quarter of it at most.
        """
        plan = self.plan
        self._budget = stop.budget
        self.open_until(max(min(plan.reach, plan.max_iterations or plan.reach) - 1, 0), 0.0)
        self.signals.append(True)
        self._loop(stop)
        if self.stopped_at is not None:
            self._watch_unfinished()
            if self._unfinished:
                self._loop(stop)
        self.num_events = next(self.env._eid)  # SimPy numbers its events from 0

    def _loop(self, stop: Stop) -> None:
        env, queue, step, finish = self.env, self.env._queue, self.env.step, self._finish
        done, special, signals = self.done, self.special, self.signals
        pending, duration, start, end, order = self.pending, self.duration, self.start, self.end, self.order
        stride, successors, closing = self.plan.stride, self.plan.successors, self.plan.closing
        now, size, close = env._now, len(pending), self._close
        while True:
            for i in done:  # grows while tasks that take no time start and end
                end[i] = now
                order.append(i)
                node = i % stride
                for hop in successors[node]:
                    j = i + hop
                    if j >= size:
                        self.open_until(j // stride, now)
                        size = len(pending)
                    left = pending[j] - 1
                    pending[j] = left
                    if not left:
                        seconds = duration[j]
                        if seconds > 0.0:
                            # It competes for nothing, so its order among the starts cannot matter.
                            start[j] = now
                            Completion(env, finish, j, seconds)
                        elif seconds == 0.0:
                            start[j] = now
                            done.append(j)
                        else:
                            special.append(j)
                code = closing[node]
                if code:
                    close(i, node, code, now)
            done.clear()
            if special or signals:
                self._attend(now)
                if done:
                    continue
                if self._asks(stop):
                    return
            if not queue:
                return
            step()
            now = env._now
            limit = now + (1e-12 * now if now > 1.0 else 1e-12)
            while queue and queue[0][0] <= limit:
                step()
                now = env._now

    def _attend(self, now: float) -> None:
        """Start what has to pass a gate until something ends at once; at last re-rate network and devices."""
        special, done, streams = self.special, self.done, self.streams
        while not done:
            if special:
                # What takes no time goes first: its effects belong to the completions of this instant.
                chosen = [i for i in special if self.duration[i] == INSTANT] or special.copy()
                if len(chosen) < len(special):
                    special[:] = [i for i in special if self.duration[i] != INSTANT]
                else:
                    special.clear()
                self._pass_gates(chosen, now)
            elif streams is not None and streams.touched:
                self._arbitrate(now)
            else:
                break
        if done:
            return
        self.signals.clear()
        if self.coupling is not None and self.coupling.dirty:
            self.coupling.flush(now)
        if self.network is not None and self.network.dirty:
            self.network.flush(now)

    def _asks(self, stop: Stop) -> bool:
        """Tell ``stop`` about iterations that have ended; whether the loop is to be left."""
        if self.stopped_at is not None:
            return not self._unfinished or (self._spent and self.work() > self._budget)
        while self._told < len(self.boundary_times):
            iteration, self._told = self._told, self._told + 1
            now = self.boundary_times[iteration] if iteration >= 0 else 0.0
            if stop(iteration, now):
                self.stopped_at = now
                return True
        if self._spent:
            self._spent, now = False, self.env.now
            if stop.give_up(now):
                self._spent, self.stopped_at = True, now
                self._budget = self.work() + stop.budget / 4
                return True
        return False

    def _watch_unfinished(self) -> None:
        """Find what started before the run was told to stop and has not ended."""
        stride, until = self.plan.stride, self.stopped_at
        for i in range(self.lowest_incomplete() * stride, len(self.end)):
            if self.end[i] is UNSET and until is not None and self.start[i] < until:
                self._unfinished.add(i)
                self.plan.closing[i % stride] |= WATCHED

    # -- starting ---------------------------------------------------------------------------------

    def _pass_gates(self, instances: list[int], now: float) -> None:
        """Let instances pass their counters, in order of (priority, task id), and start or queue them."""
        stride, rank, plan = self.plan.stride, self.plan.rank, self.plan
        if len(instances) > 1:
            instances.sort(key=lambda i: (rank[i % stride], i))
        for i in instances:
            node = i % stride
            if node >= plan.num_tasks:
                self._post(i, node)
                continue
            if plan.gated[node]:
                if not self.counters.admits(i):
                    continue
                self.admitted[i] = now
            if plan.shared[node] and self.streams is not None:
                self.streams.enqueue(i, now)
            else:
                self._begin(i, node, now)
        instances.clear()

    def _arbitrate(self, now: float) -> None:
        streams, stride = self.streams, self.plan.stride
        assert streams is not None
        for i in streams.arbitrate():
            self._begin(i, i % stride, now)
        last = self.plan.max_iterations
        if streams.opened and (last is None or streams.opened < last):
            self.open_until(streams.opened, now)

    def _begin(self, i: int, node: int, now: float) -> None:
        """Start an instance that is not simply scheduled."""
        self.start[i] = now
        if self.plan.gated[node] and self._is_skipped(i, node):
            self.skipped.add(i)
            self.done.append(i)
            return
        plan, kind = self.plan, self.plan.kind[node]
        if self.coupling is not None:
            if plan.closing[node] & ACTIVITY:
                self.coupling.start_activity(i, plan.phases.at(node, i // plan.stride), now)
                return
            if kind == TaskKind.TRANSFER:
                self.coupling.start_transfer(i)
        if kind == TaskKind.TRANSFER and not plan.is_timed[node] and self.network is not None:
            if plan.latency[node] > 0:
                Completion(self.env, self._arrive, i, plan.latency[node])
            else:
                self.network.join(i)
            return
        seconds = plan.seconds[node]
        if kind == TaskKind.COMPUTE and plan.graph.has_random_compute:
            seconds *= self.drawn[i // plan.stride * plan.num_tasks + node]
        if seconds > 0:
            Completion(self.env, self._finish, i, seconds)
        else:
            self.done.append(i)

    def _is_skipped(self, i: int, node: int) -> bool:
        graph, iteration = self.plan.graph, i // self.plan.stride
        leader = int(graph.skip_leader[node])
        if leader >= 0:
            other = i + leader - node
            if self.start[other] is UNSET:
                names, name = graph.names, graph.name
                raise InvariantError(
                    f"{names[name[node]]} shares the skip decision of {names[name[leader]]},"
                    " which has not started"
                )
            return other in self.skipped
        if graph.skip_ticket is not None and graph.skip_ticket[node] >= 0:
            place = self.counters.tickets[i - node + int(graph.skip_ticket[node])]
            size = float(graph.skip_value[node])
            return batch_end(place, size) - place > 0.5
        counter = int(graph.skip_counter[node])
        return (
            counter >= 0 and self.counters.reading(counter, iteration) >= float(graph.skip_value[node]) - 1e-9
        )

    def _post(self, marker: int, node: int) -> None:
        """A participant has posted a spinning transfer."""
        task, device = self.plan.markers[node - self.plan.num_tasks]
        instance = marker - node + task
        if self.coupling is not None and self.end[instance] is UNSET:
            self.coupling.post_transfer(instance, device)
        self.start[marker] = self.end[marker] = self.env.now

    # -- finishing --------------------------------------------------------------------------------

    def _close(self, i: int, node: int, code: int, now: float) -> None:
        """What a finished instance does beyond releasing its successors."""
        if code & BOUNDARY:
            iteration = i // self.plan.stride
            self._boundary_left[iteration] -= 1
            known = len(self.boundary_times)
            while self._boundary_left.get(known) == 0:
                self.boundary_times.append(now)
                self.signals.append(True)
                known += 1
            if code == BOUNDARY:
                return
        self.signals.append(True)
        if code & ADDS:
            self.special.extend(self.counters.add(i))
        if code & SHARED and self.streams is not None:
            self.streams.release(node)
        if self.coupling is not None:
            if code & ACTIVITY:
                self.coupling.end_activity(i)
            elif code & COMMUNICATING:
                self.coupling.end_transfer(i)
        if code & WATCHED:
            self._unfinished.discard(i)

    # -- looking in -------------------------------------------------------------------------------

    def lowest_incomplete(self) -> int:
        """First iteration of which a task has not finished."""
        stride, n = self.plan.stride, self.plan.num_tasks
        while True:
            base = self._lowest * stride
            if base >= len(self.end) or UNSET in self.end[base : base + n]:
                return self._lowest
            self._lowest += 1

    def running(self) -> list[tuple[int, float]]:
        """(instance, time of its event) of tasks and latencies in progress; network flows not included."""
        return [
            (event._value, at)
            for at, _, _, event in self.env._queue
            if event.callbacks and isinstance(event._value, int)
        ]

    def works_on(self, iteration: int) -> bool:
        """Whether anything of an iteration is in progress."""
        active = [i for i, _ in self.running()]
        if self.network is not None:
            active += [i for i, _ in self.network.state(self.env.now)]
        return any(i // self.plan.stride == iteration for i in active)

    def work(self) -> float:
        """What the run has cost so far, in finished instances: the same on every machine."""
        return len(self.order) + (0.0 if self.network is None else self.network.effort)

    # -- when nothing moves -----------------------------------------------------------------------

    def stuck(self) -> Stuck:
        """What the deadlock explanation needs to see."""
        return Stuck(self.plan, self.pending, self.start, self.end, self.counters, self.streams, UNSET)


def _collector(done: list[int]) -> Callable[[Event], None]:
    """Callback of every timed task."""

    def collect(event: Event) -> None:
        done.append(event._value)

    return collect


def _joiner(network: Network) -> Callable[[Event], None]:
    """Callback of the latency of every transfer that shares links."""

    def join(event: Event) -> None:
        network.join(event._value)

    return join
