"""Networks that know each transfer by itself: what ``fifo`` and ``tcp`` have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from simpy.core import Environment
from simpy.events import Event

from sim.engine.events import Completion
from sim.engine.network import NEGLIGIBLE, TransferTable
from sim.engine.plan import Plan


class Flow:
    """An active transfer."""

    __slots__ = (
        "begun", "cap", "completion", "factor", "instance", "left", "loads", "rate", "ticket", "time",
    )  # fmt: skip

    def __init__(
        self, instance: int, left: float, cap: float, loads: list[tuple[int, float]], now: float
    ) -> None:
        self.instance, self.left, self.cap, self.loads, self.time = instance, left, cap, loads, now
        self.ticket, self.begun = -1, now
        self.rate, self.factor = 0.0, 1.0
        self.completion: Completion | None = None


class FlowNetwork(ABC):
    """Transfers with rates of their own; parameters as for ``FluidNetwork``.

    A subclass says who is served (``flush``) and what follows when a transfer leaves (``_leave``).
    """

    def __init__(self, env: Environment, plan: Plan, drained: list[int], signals: list[bool]) -> None:
        self._env, self._drained, self._signals = env, drained, signals
        self.table = TransferTable(plan)
        self._flows: dict[int, Flow] = {}  # by instance, in order of arrival
        self._factor: dict[int, float] = {}
        self._new: list[int] = []
        self._callbacks: list[Callable[[Event], None]] = [self._on_completion]
        self.dirty = False
        self.effort = 0.0

    def join(self, instance: int) -> None:
        """Take in a transfer at the next flush."""
        self._new.append(instance)
        self._touch()

    def _touch(self) -> None:
        self.dirty = True
        self._signals.append(True)

    def set_factor(self, instance: int, factor: float, now: float) -> None:
        """Make an active transfer progress at ``factor`` times its rate from now on."""
        self._factor[instance] = factor
        flow = self._flows.get(instance)
        if flow is not None:
            self._advance(flow, now)
            flow.factor = factor
            self._schedule(flow)

    def state(self, now: float) -> list[tuple[int, float]]:
        """(instance, fraction of bytes left) of all transfers, in order of arrival."""
        table = self.table
        for flow in self._flows.values():
            self._advance(flow, now)
        return [(f.instance, f.left / table.bytes[f.instance % table.stride]) for f in self._flows.values()]

    @abstractmethod
    def flush(self, now: float) -> None:
        """Serve what joined, and share anew what changed."""

    @abstractmethod
    def _leave(self, flow: Flow) -> None:
        """Give up the place of a transfer that has ended."""

    def _joined(self, now: float) -> Iterator[Flow]:
        """Flows of the transfers that joined since the last flush, in order."""
        table = self.table
        self._new.sort(key=lambda i: (table.rank[i % table.stride], i))
        for instance in self._new:
            task = instance % table.stride
            flow = Flow(instance, table.bytes[task], table.cap[task], table.loads(task), now)
            flow.factor = self._factor.get(instance, 1.0)
            self._flows[instance] = flow
            yield flow
        self._new.clear()

    def _set_rate(self, flow: Flow, rate: float, now: float) -> None:
        if rate != flow.rate or flow.completion is None:
            self._advance(flow, now)
            flow.rate = rate
            self._schedule(flow)

    def _advance(self, flow: Flow, now: float) -> None:
        flow.left -= flow.rate * flow.factor * (now - flow.time)
        flow.time = now

    def _schedule(self, flow: Flow) -> None:
        if flow.completion is not None:
            flow.completion.cancel()
            flow.completion = None
        speed = flow.rate * flow.factor
        if speed > 0.0:
            flow.completion = Completion(self._env, self._callbacks, flow, max(flow.left, 0.0) / speed)

    def _on_completion(self, event: Event) -> None:
        flow: Flow = event._value
        now = self._env.now
        self._advance(flow, now)
        speed, size = flow.rate * flow.factor, self.table.bytes[flow.instance % self.table.stride]
        if flow.left > max(max(1e-12, 1e-12 * now) * speed, NEGLIGIBLE * size):
            self._schedule(flow)  # rounding: not quite there yet
            return
        del self._flows[flow.instance]
        self._factor.pop(flow.instance, None)
        self._leave(flow)
        self._drained.append(flow.instance)
        self._touch()
