"""The event loop: SimPy keeps time, callbacks collect what is over, ``settle`` starts what may run."""

from __future__ import annotations

import gc
from collections.abc import Callable

from simpy.core import Environment
from simpy.events import Event

from sim.engine.counters import Counters
from sim.engine.coupling import Coupling
from sim.engine.deadlock import Stuck, explain
from sim.engine.events import Completion
from sim.engine.fifo import FifoNetwork
from sim.engine.network import FluidNetwork, Network
from sim.engine.plan import INSTANT, Plan
from sim.engine.streams import StreamPool
from sim.errors import Deadlock, InvariantError
from sim.graph.execution import TaskKind

UNSET = float("nan")
# How many iterations some tasks may be ahead of others in an open-ended run before the rest counts as stuck.
LEAD_LIMIT = 20_000


class Player:
    """Plays a plan. Instances are integers: iteration * stride + node.

    Attributes
    ----------
    start, end : list of float
        Seconds per instance, ``UNSET`` (by identity) until known.
    order : list of int
        Finished instances in order of completion.
    """

    def __init__(self, plan: Plan) -> None:
        graph = plan.graph
        self.plan = plan
        self.env = Environment()
        self.done: list[int] = []
        self.held: list[int] = []
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
        self.num_events = 0
        self._num_boundary = int(plan.boundary.sum())
        self._boundary: list[bool] = plan.boundary.tolist()
        self._kind: list[int] = graph.kind.tolist()
        self._latency: list[float] = graph.work.tolist()
        self._skip_counter: list[int] = graph.skip_counter.tolist()
        self._skip_value: list[float] = graph.skip_value.tolist()
        self._skip_leader: list[int] = graph.skip_leader.tolist()
        self._timed: list[bool] = plan.timed.tolist()
        self.counters = Counters(plan)
        self.streams = StreamPool(plan) if any(plan.shared) else None
        self.network: Network | None = None
        if not plan.timed[graph.kind == TaskKind.TRANSFER].all():
            self.network = (FifoNetwork if graph.link_service == "fifo" else FluidNetwork)(
                self.env, plan, self.done
            )
        self.coupling = Coupling(self.env, plan, self.network, self.done) if plan.coupled else None
        self._finish = [self._on_finish]
        self._arrive = [self._on_latency]

    # -- iterations -------------------------------------------------------------------------------

    def open_until(self, iteration: int, ready: list[int]) -> None:
        """Make the state of all iterations up to ``iteration``; instances without predecessors become ready."""
        plan, stride = self.plan, self.plan.stride
        for k in range(len(self.pending) // stride, iteration + 1):
            if plan.max_iterations is None and k - len(self.boundary_times) > LEAD_LIMIT:
                raise Deadlock(explain(self.stuck()))
            pending = plan.pending_at(k)
            if 0 in pending:
                ready.extend(k * stride + node for node, count in enumerate(pending) if not count)
            self.pending += pending
            self.duration += self._durations(k)
            self.start += [UNSET] * stride
            self.end += [UNSET] * stride
            self._boundary_left[k] = self._num_boundary

    def _durations(self, iteration: int) -> list[float]:
        plan = self.plan
        if plan.graph.jitter <= 0:
            return plan.duration
        drawn = plan.jitter_factors(iteration).tolist()
        self.drawn += drawn
        pairs = zip(plan.duration, drawn + [1.0] * plan.num_markers, strict=True)
        return [value * factor if value > 0 else value for value, factor in pairs]

    # -- the loop ---------------------------------------------------------------------------------

    def run(self, stop: Callable[[int, float], bool]) -> None:
        """Play until nothing is left or ``stop(iteration, now)`` says so at the end of an iteration."""
        collecting = gc.isenabled()
        gc.disable()  # millions of live, acyclic objects: the collector would only walk them
        try:
            self._run(stop)
        finally:
            self.num_events = next(self.env._eid)  # SimPy numbers its events from 0
            if collecting:
                gc.enable()

    def _run(self, stop: Callable[[int, float], bool]) -> None:
        env = self.env
        queue, step, done = env._queue, env.step, self.done
        ready: list[int] = []
        last = self.plan.max_iterations
        self.open_until(max(min(self.plan.reach, last or self.plan.reach) - 1, 0), ready)
        known = 0
        self._settle(0.0, ready)
        if stop(-1, 0.0):
            return
        while queue:
            step()
            now = env._now
            limit = now + (1e-12 * now if now > 1.0 else 1e-12)
            while queue and queue[0][0] <= limit:
                step()
            if done or (self.network is not None and self.network.dirty):
                self._settle(env._now, ready)
                while known < len(self.boundary_times):
                    known += 1
                    if stop(known - 1, self.boundary_times[known - 1]):
                        self._drain(self.boundary_times[known - 1], ready)
                        return

    def _drain(self, until: float, ready: list[int]) -> None:
        """Play on until everything that started before ``until`` has ended, so that the window is complete."""
        start, end, queue = self.start, self.end, self.env._queue
        first = self.lowest_incomplete() * self.plan.stride
        rest = [i for i in range(first, len(end)) if end[i] is UNSET and start[i] < until]
        while queue:
            while rest and end[rest[-1]] is not UNSET:
                rest.pop()
            if not rest:
                break
            self.env.step()
            now = self.env.now
            while queue and queue[0][0] <= now + max(1e-12, 1e-12 * now):
                self.env.step()
            self._settle(self.env.now, ready)

    def _settle(self, now: float, ready: list[int]) -> None:
        """Process all completions of this instant, then start what may start, until nothing more happens."""
        done, pending, duration, held = self.done, self.pending, self.duration, self.held
        start, end, order = self.start, self.end, self.order
        env, finish = self.env, self._finish
        stride, successors, closing = self.plan.stride, self.plan.successors, self.plan.closing
        size = len(pending)
        instant: list[int] = []
        while True:
            for i in done:
                end[i] = now
                order.append(i)
                node = i % stride
                for hop in successors[node]:
                    j = i + hop
                    if j >= size:
                        self.open_until(j // stride, ready)
                        size = len(pending)
                    left = pending[j] - 1
                    pending[j] = left
                    if not left:
                        ready.append(j)
                if closing[node]:
                    self._close(i, node, now, ready)
            done.clear()
            for j in ready:
                seconds = duration[j]
                if seconds > 0.0:
                    start[j] = now
                    Completion(env, finish, j, seconds)
                elif seconds == 0.0:
                    start[j] = now
                    done.append(j)
                elif seconds == INSTANT:
                    instant.append(j)
                else:
                    held.append(j)
            ready.clear()
            if instant:
                self._pass_gates(instant, now)
            if not done and (held or self.streams is not None):
                self._pass_gates(held, now)
                if not done and self.streams is not None and self.streams.touched:
                    self._arbitrate(now, ready)
            if not done and not ready:
                break
        if self.coupling is not None and self.coupling.dirty:
            self.coupling.flush(now)
        if self.network is not None and self.network.dirty:
            self.network.flush(now)

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

    def _arbitrate(self, now: float, ready: list[int]) -> None:
        streams, stride = self.streams, self.plan.stride
        assert streams is not None
        for i in streams.arbitrate():
            self._begin(i, i % stride, now)
        last = self.plan.max_iterations
        if streams.opened and (last is None or streams.opened < last):
            self.open_until(streams.opened, ready)

    def _begin(self, i: int, node: int, now: float) -> None:
        """Start an instance that is not simply scheduled."""
        self.start[i] = now
        if self.plan.gated[node] and self._is_skipped(i, node):
            self.skipped.add(i)
            self.done.append(i)
            return
        seconds = self.plan.idle_list[node]
        kind = self._kind[node]
        if kind == TaskKind.COMPUTE:
            if self.plan.graph.jitter > 0:
                seconds *= self.drawn[i // self.plan.stride * self.plan.num_tasks + node]
            if self.coupling is not None and seconds > 0:
                self.coupling.start_compute(i, seconds, now)
                return
        elif kind == TaskKind.TRANSFER:
            if self.coupling is not None:
                self.coupling.start_transfer(i)
            if not self._timed[node]:
                if self._latency[node] > 0:
                    Completion(self.env, self._arrive, i, self._latency[node])
                else:
                    self._join(i)
                return
        if seconds > 0:
            Completion(self.env, self._finish, i, seconds)
        else:
            self.done.append(i)

    def _is_skipped(self, i: int, node: int) -> bool:
        iteration, leader = i // self.plan.stride, self._skip_leader[node]
        if leader >= 0:
            other = i + leader - node
            if self.start[other] is UNSET:
                names, name = self.plan.graph.names, self.plan.graph.name
                raise InvariantError(
                    f"{names[name[node]]} shares the skip decision of {names[name[leader]]}, which has not started"
                )
            return other in self.skipped
        counter = self._skip_counter[node]
        return counter >= 0 and self.counters.reading(counter, iteration) >= self._skip_value[node] - 1e-9

    def _post(self, marker: int, node: int) -> None:
        """A participant has posted a spinning transfer."""
        task, device = self.plan.markers[node - self.plan.num_tasks]
        instance = marker - node + task
        if self.coupling is not None and self.end[instance] is UNSET:
            self.coupling.post_transfer(instance, device)
        self.start[marker] = self.end[marker] = self.env.now

    def _join(self, i: int) -> None:
        assert self.network is not None
        self.network.join(i)

    # -- finishing --------------------------------------------------------------------------------

    def _on_finish(self, event: Event) -> None:
        self.done.append(event._value)

    def _on_latency(self, event: Event) -> None:
        self._join(event._value)

    def _close(self, i: int, node: int, now: float, ready: list[int]) -> None:
        """What a finished instance does beyond releasing its successors."""
        ready.extend(self.counters.add(i))
        if self.plan.shared[node] and self.streams is not None:
            self.streams.release(node)
        if self.coupling is not None:
            if self._kind[node] == TaskKind.COMPUTE:
                self.coupling.end_compute(i)
            elif self._kind[node] == TaskKind.TRANSFER:
                self.coupling.end_transfer(i)
        if self._boundary[node]:
            iteration = i // self.plan.stride
            self._boundary_left[iteration] -= 1
            known = len(self.boundary_times)
            while self._boundary_left.get(known) == 0:
                self.boundary_times.append(now)
                known += 1

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

    # -- when nothing moves -----------------------------------------------------------------------

    def stuck(self) -> Stuck:
        """What the deadlock explanation needs to see."""
        return Stuck(self.plan, self.pending, self.start, self.end, self.counters, self.streams, UNSET)
