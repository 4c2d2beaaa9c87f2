"""Compute and communication slow each other down on a device; only built if a speed factor differs from 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from simpy.core import Environment
from simpy.events import Event

from sim.engine.events import Completion
from sim.engine.network import Network
from sim.engine.plan import Plan
from sim.graph.execution import TaskKind


@dataclass
class Running:
    """A compute task in progress."""

    left: float  # seconds at speed 1
    time: float
    speed: float = 0.0
    # (time, seconds left) at each change of speed
    history: list[tuple[float, float]] = field(default_factory=list)
    completion: Completion | None = None


class Coupling:
    """Counts of running compute and communication per device, and the speeds that follow.

    A compute task runs at ``compute_speed_under_communication`` while any transfer is active (or posted and
    spinning) on its device; a transfer progresses at ``communication_speed_under_compute`` times the rate the
    network gives it while any participant's device computes. The latency of a transfer is not stretched.
    """

    def __init__(self, env: Environment, plan: Plan, network: Network | None, done: list[int]) -> None:
        graph = plan.graph
        self._env, self._plan, self._network, self._done = env, plan, network, done
        self._compute_speed = graph.compute_speed_under_communication
        self._transfer_speed = graph.communication_speed_under_compute
        num_devices = len(graph.devices.name)
        self._computing: list[dict[int, Running]] = [{} for _ in range(num_devices)]
        self._communicating: list[dict[int, None]] = [{} for _ in range(num_devices)]
        self._active: set[int] = set()  # transfers between start and end
        self._factor: dict[int, float] = {}
        self._dirty: dict[int, None] = {}
        # Compute tasks that ran at several speeds: when, and with how much left.
        self.histories: dict[int, list[tuple[float, float]]] = {}
        self._callbacks: list[Callable[[Event], None]] = [self._on_completion]
        self._devices = [self._devices_of(task) for task in range(plan.num_tasks)]

    def _devices_of(self, task: int) -> list[int]:
        graph = self._plan.graph
        owner = int(graph.device[task])
        if graph.kind[task] == TaskKind.COMPUTE:
            return [owner] if owner >= 0 else []
        found = {int(graph.stream_table.device[s]) for s in graph.streams.row(task).tolist()}
        found = {device for device in found if device >= 0} or ({owner} if owner >= 0 else set())
        return sorted(found)

    def start_compute(self, instance: int, work: float, now: float) -> None:
        """Begin ``work`` seconds of compute; its speed is set at the next flush."""
        running = Running(work, now)
        devices = self._devices[instance % self._plan.stride]
        if not devices:  # belongs to no device: nothing can slow it down
            running.completion = Completion(self._env, self._callbacks, instance, work)
            return
        self._computing[devices[0]][instance] = running
        self._dirty[devices[0]] = None

    def end_compute(self, instance: int) -> None:
        """A compute task is over."""
        for device in self._devices[instance % self._plan.stride]:
            running = self._computing[device].pop(instance, None)
            if running is not None and len(running.history) > 1:
                self.histories[instance] = running.history
            self._dirty[device] = None

    def post_transfer(self, instance: int, device: int) -> None:
        """A spinning transfer occupies a participant's device from its posting on."""
        if instance not in self._communicating[device]:
            self._communicating[device][instance] = None
            self._dirty[device] = None

    def start_transfer(self, instance: int) -> None:
        """A transfer starts: it occupies the devices of all participants."""
        self._active.add(instance)
        for device in self._devices[instance % self._plan.stride]:
            self._communicating[device][instance] = None
            self._dirty[device] = None

    def end_transfer(self, instance: int) -> None:
        """A transfer is over (or was skipped)."""
        self._active.discard(instance)
        self._factor.pop(instance, None)
        for device in self._devices[instance % self._plan.stride]:
            self._communicating[device].pop(instance, None)
            self._dirty[device] = None

    @property
    def dirty(self) -> bool:
        """Whether any device's set of running kinds may have changed."""
        return bool(self._dirty)

    def flush(self, now: float) -> None:
        """Re-rate what runs on the devices that changed."""
        for device in self._dirty:
            speed = self._compute_speed if self._communicating[device] else 1.0
            for instance, running in self._computing[device].items():
                if running.speed != speed:
                    self._rerate(instance, running, speed, now)
            for instance in self._communicating[device]:
                self._refactor(instance, now)
        self._dirty.clear()

    def _rerate(self, instance: int, running: Running, speed: float, now: float) -> None:
        running.left = max(running.left - (now - running.time) * running.speed, 0.0)
        running.time, running.speed = now, speed
        running.history.append((now, running.left))
        if running.completion is not None:
            running.completion.cancel()
        running.completion = Completion(self._env, self._callbacks, instance, running.left / speed)

    def _refactor(self, instance: int, now: float) -> None:
        if instance not in self._active or self._network is None or self._transfer_speed == 1.0:
            return
        slowed = any(self._computing[d] for d in self._devices[instance % self._plan.stride])
        factor = self._transfer_speed if slowed else 1.0
        if self._factor.get(instance, 1.0) != factor:
            self._factor[instance] = factor
            self._network.set_factor(instance, factor, now)

    def _on_completion(self, event: Event) -> None:
        self._done.append(event._value)

    def state(self) -> list[tuple[int, float]]:
        """(instance, device) of every posted or active transfer, for the steady-state fingerprint."""
        return [(i, float(d)) for d, active in enumerate(self._communicating) for i in active]
