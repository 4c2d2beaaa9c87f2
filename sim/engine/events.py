"""The one SimPy event of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simpy.core import Environment
from simpy.events import NORMAL, Event


class Completion(Event):
    """Fires when something is over: a task, a latency, the earliest transfer of a group.

    Unlike ``Timeout`` it takes the list of its callbacks, which all events of a kind share, and its value
    says what is over (an instance or a group).
    """

    def __init__(
        self, env: Environment, callbacks: list[Callable[[Event], None]], value: Any, delay: float
    ) -> None:
        self.env = env
        self.callbacks = callbacks
        self._value = value
        self._ok = True
        env.schedule(self, NORMAL, delay)

    def cancel(self) -> None:
        """Let the event pass without effect; SimPy cannot take it out of its queue."""
        self.callbacks = []
