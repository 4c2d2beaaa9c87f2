"""From a scenario to a result, and from a run to tables. Heavy parts load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.analysis.result import Result
    from sim.spec import Scenario

__all__ = ["simulate"]


def simulate(scenario: Scenario) -> Result:
    """Simulate a scenario; see :func:`sim.analysis.simulate.simulate`."""
    from sim.analysis.simulate import simulate as implementation

    return implementation(scenario)
