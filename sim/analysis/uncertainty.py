"""How sure a prediction is: the calibration's intervals propagated to the step time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sim.analysis.variants import with_calibration
from sim.errors import ClusterloomError
from sim.lowering.library import library_link_key
from sim.models.library import PARAMETERS as LIBRARY_PARAMETERS
from sim.spec import Scenario

#: A parameter's end that moves the step time by less than this (relative) is noise and not listed.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class Interval:
    """80 % interval of a prediction.

    Parameters
    ----------
    step_time_s, low_s, high_s : float
        Seconds per step: the prediction and the ends of its interval.
    samples_per_s, samples_per_s_low, samples_per_s_high : float
        The same as throughput (per second; steps if samples are unknown).
    contributions : dict of str to float
        Calibration parameter -> half the step-time difference (s) between the ends of its interval.
    """

    step_time_s: float
    low_s: float
    high_s: float
    samples_per_s: float
    samples_per_s_low: float
    samples_per_s_high: float
    contributions: dict[str, float]

    def __str__(self) -> str:
        return (
            f"{self.samples_per_s:,.4g} samples/s "
            f"({self.samples_per_s_low:,.4g} .. {self.samples_per_s_high:,.4g}, 80 %)"
        )


def interval(scenario: Scenario, progress: Callable[[int, int], None] | None = None) -> Interval:
    """Root-sum-square of one-at-a-time changes: calibration parameters are taken as independent.

    Every parameter with an interval is moved to both ends and the scenario simulated again, so this costs
    two simulations per uncertain parameter that the cluster uses. Parameters of links, devices or
    libraries that the scenario does not have are left out.

    Parameters
    ----------
    scenario : Scenario
        A feasible scenario.
    progress : callable, optional
        Called with the parameters that were moved and how many there are.
    """
    base = _simulated(scenario)
    if base is None:
        raise ClusterloomError("only a scenario that can run has an interval")
    step, rate = base
    calibration = scenario.calibration
    faster, slower = 0.0, 0.0
    contributions: dict[str, float] = {}
    used = [entry for entry in calibration.uncertain() if _used(scenario, *entry)]
    for number, (section, key, name) in enumerate(used):
        if progress is not None:
            progress(number, len(used))
        moved = [calibration.at_bounds(section, key, name, end) for end in ("low", "high")]
        changes = [_relative_change(with_calibration(scenario, ends), step) for ends in moved]
        faster += min(*changes, 0.0) ** 2
        slower += max(*changes, 0.0) ** 2
        if max(map(abs, changes)) > _NEGLIGIBLE:
            contributions[f"{section}.{key}.{name}"] = abs(changes[1] - changes[0]) / 2 * step
    # Beyond -100 % a linear propagation means nothing; a step cannot take less than no time.
    low, high = step * max(1.0 - math.sqrt(faster), 1e-3), step * (1.0 + math.sqrt(slower))
    return Interval(
        step_time_s=step,
        low_s=low,
        high_s=high,
        samples_per_s=rate,
        samples_per_s_low=rate * step / high,
        samples_per_s_high=rate * step / low,
        contributions=dict(sorted(contributions.items(), key=lambda item: -item[1])),
    )


def _simulated(scenario: Scenario) -> tuple[float, float] | None:
    """Step time (s) and samples (or steps) per second; None where the scenario cannot run."""
    from sim.analysis.simulate import simulate

    result = simulate(scenario)
    if not result.ok or not result.step_time_s:
        return None
    return result.step_time_s, result.samples_per_s or 1.0 / result.step_time_s


def _relative_change(scenario: Scenario, step: float) -> float:
    """Relative change of the step time; none where the moved parameter makes the scenario infeasible."""
    moved = _simulated(scenario)
    return 0.0 if moved is None else moved[0] / step - 1.0


def _used(scenario: Scenario, section: str, key: str, name: str) -> bool:
    """Whether a calibration entry concerns anything the scenario has."""
    calibration, devices = scenario.calibration, {device.name for device in scenario.cluster.device_types}
    if section == "device":
        own = {device for device in devices if name in calibration.device.get(device, {})}
        return key in own or (key == "default" and own != devices)
    if section == "framework":  # the others' parameters stand in the catalogue until one is asked for
        return key == "default"
    if section == "link" and name in LIBRARY_PARAMETERS:
        return key == library_link_key(scenario.cluster, calibration, name)
    if section == "link" and key != "default":
        kinds = {link.kind for host in scenario.cluster.host_types for link in host.links}
        return key in kinds or key not in {"nvlink", "pcie", "qpi", "memory"}
    if section == "library":
        return key in ("default", scenario.cluster.library)
    return True
