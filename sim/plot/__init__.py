"""Figures (matplotlib): every function returns a Figure that is independent of pyplot's global state."""

from __future__ import annotations

from sim.plot.effects import main_effects
from sim.plot.fabric import fabric
from sim.plot.results import breakdown, memory, timeline
from sim.plot.style import Chart
from sim.plot.tables import pareto, pareto_front, scaling

__all__ = [
    "Chart",
    "breakdown",
    "fabric",
    "main_effects",
    "memory",
    "pareto",
    "pareto_front",
    "scaling",
    "timeline",
]
