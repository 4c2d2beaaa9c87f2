"""Compute and communication slow each other down on a device; only built if a speed factor differs from 1.

What runs on one device alone (compute tasks, transfers with private links, chains of them) is an *activity*:
a list of phases whose lengths at full speed are known. An activity that has its device to itself needs one
event for all its phases; only while something else runs there is it played phase by phase.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from simpy.core import Environment
from simpy.events import Event

from sim.engine.events import Completion
from sim.engine.network import Network
from sim.engine.phases import COMPUTE, FLOW, MIXED, Phases
from sim.engine.plan import Plan


class Activity:
    """Something in progress on one device."""

    __slots__ = ("completion", "done", "gliding", "history", "instance", "phase", "phases", "speed", "time")

    def __init__(self, instance: int, phases: Phases, now: float) -> None:
        self.instance, self.phases, self.time = instance, phases, now
        self.phase = 0
        self.done = 0.0  # seconds at full speed
        self.speed = 0.0
        self.gliding = False  # on its way to the end of its last phase at full speed
        self.history: list[tuple[float, float]] = []  # (time, done) at each change of speed
        self.completion: Completion | None = None

    def advance(self, now: float) -> None:
        """Progress until ``now``."""
        ends = self.phases.ends
        self.done += (now - self.time) * self.speed
        self.time = now
        if self.gliding and len(ends) > 1:
            # What is left of a phase within the tolerance of simultaneity is nothing.
            reached = bisect_right(ends, self.done + max(1e-12, 1e-12 * now))
            self.phase = min(reached, len(ends) - 1)
        self.done = min(self.done, ends[self.phase])


class Coupling:
    """Who computes and communicates on each device, and the speeds that follow.

    A compute task runs at ``compute_speed_under_communication`` while any transfer is active (or posted and
    spinning) on its device; a transfer progresses at ``communication_speed_under_compute`` times the rate the
    network gives it while any participant's device computes. The latency of a transfer is not stretched.
    """

    def __init__(
        self, env: Environment, plan: Plan, network: Network | None, done: list[int], signals: list[bool]
    ) -> None:
        graph = plan.graph
        self._env, self._plan, self._network = env, plan, network
        self._done, self._signals = done, signals
        self._compute_speed = graph.compute_speed_under_communication
        self._transfer_speed = graph.communication_speed_under_compute
        num_devices = len(graph.devices.name)
        self._activities: list[dict[int, Activity]] = [{} for _ in range(num_devices)]
        self._transfers: list[dict[int, None]] = [{} for _ in range(num_devices)]  # posted or active
        self._computes = [False] * num_devices  # whether any activity computes, as of the last flush
        self._active: set[int] = set()  # transfers between start and end
        self._factor: dict[int, float] = {}
        self._dirty: dict[int, None] = {}
        # Activities that did not run at one speed: (time, done) at each change.
        self.histories: dict[int, list[tuple[float, float]]] = {}
        self._callbacks: list[Callable[[Event], None]] = [self._on_event]

    # -- what the loop reports --------------------------------------------------------------------

    def start_activity(self, instance: int, phases: Phases, now: float) -> None:
        """Begin an activity; its speed is set at the next flush."""
        device = self._plan.home[instance % self._plan.stride]
        self._activities[device][instance] = Activity(instance, phases, now)
        self._dirty[device] = None

    def end_activity(self, instance: int) -> None:
        """An activity is over (or was skipped)."""
        device = self._plan.home[instance % self._plan.stride]
        activity = self._activities[device].pop(instance, None)
        if activity is not None and len(activity.history) > 1:
            self.histories[instance] = activity.history
        self._dirty[device] = None

    def post_transfer(self, instance: int, device: int) -> None:
        """A spinning transfer occupies a participant's device from its posting on."""
        if instance not in self._transfers[device]:
            self._transfers[device][instance] = None
            self._dirty[device] = None

    def start_transfer(self, instance: int) -> None:
        """A transfer on the network starts: it occupies the devices of all participants."""
        self._active.add(instance)
        for device in self._plan.devices_of(instance % self._plan.stride):
            self._transfers[device][instance] = None
            self._dirty[device] = None

    def end_transfer(self, instance: int) -> None:
        """A transfer on the network is over (or was skipped)."""
        self._active.discard(instance)
        self._factor.pop(instance, None)
        for device in self._plan.devices_of(instance % self._plan.stride):
            self._transfers[device].pop(instance, None)
            self._dirty[device] = None

    # -- speeds -----------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """Whether any device's set of running kinds may have changed."""
        return bool(self._dirty)

    def flush(self, now: float) -> None:
        """Re-rate what runs on the devices that changed."""
        for device in self._dirty:
            activities, transfers = self._activities[device], self._transfers[device]
            if len(activities) == 1 and not transfers:
                for activity in activities.values():
                    self._glide(activity, now)
            elif activities or transfers:
                self._share(device, activities, transfers, now)
        self._dirty.clear()

    def _glide(self, activity: Activity, now: float) -> None:
        """Run to the end of all phases at full speed: nothing else is on the device."""
        if activity.gliding:
            return
        activity.advance(now)
        activity.gliding = True
        self._schedule(activity, 1.0, activity.phases.ends[-1])

    def _share(
        self, device: int, activities: dict[int, Activity], transfers: dict[int, None], now: float
    ) -> None:
        """Run every activity to the end of its phase, at the speed that its neighbours leave it."""
        computing, communicating = 0, len(transfers)
        for activity in activities.values():
            activity.advance(now)
            kind = activity.phases.kinds[activity.phase]
            computing += kind in (COMPUTE, MIXED)
            communicating += kind != COMPUTE
        self._computes[device] = computing > 0
        for activity in activities.values():
            kind, speed = activity.phases.kinds[activity.phase], 1.0
            if kind == COMPUTE and communicating:
                speed = self._compute_speed
            elif kind == FLOW and computing:
                speed = self._transfer_speed
            if activity.gliding or activity.completion is None or activity.speed != speed:
                activity.gliding = False
                self._schedule(activity, speed, activity.phases.ends[activity.phase])
        if self._network is not None and self._transfer_speed != 1.0:
            for instance in transfers:
                self._slow_transfer(instance, self._network, now)

    def _schedule(self, activity: Activity, speed: float, until: float) -> None:
        if activity.completion is not None:
            activity.completion.cancel()
        activity.speed = speed
        activity.history.append((activity.time, activity.done))
        left = max(until - activity.done, 0.0)
        activity.completion = Completion(self._env, self._callbacks, activity.instance, left / speed)

    def _slow_transfer(self, instance: int, network: Network, now: float) -> None:
        if instance not in self._active:
            return
        devices = self._plan.devices_of(instance % self._plan.stride)
        factor = (
            self._transfer_speed if any(self._computes[d] and self._activities[d] for d in devices) else 1.0
        )
        if self._factor.get(instance, 1.0) != factor:
            self._factor[instance] = factor
            network.set_factor(instance, factor, now)

    def _on_event(self, event: Event) -> None:
        """A phase, or a whole activity, is over."""
        instance: int = event._value
        device = self._plan.home[instance % self._plan.stride]
        activity = self._activities[device][instance]
        ends = activity.phases.ends
        activity.completion = None
        if activity.gliding or activity.phase == len(ends) - 1:
            self._done.append(instance)
            return
        activity.time, activity.done = self._env.now, ends[activity.phase]
        activity.phase += 1
        self._dirty[device] = None
        self._signals.append(True)

    def state(self) -> list[tuple[int, float]]:
        """Who occupies which device, and the phase of activities that are played phase by phase."""
        found = [(i, float(device)) for device, active in enumerate(self._transfers) for i in active]
        for activities in self._activities:
            found += [(i, -1.0 - a.phase) for i, a in activities.items() if not a.gliding]
        return found
