"""How sure a prediction is: the calibration's intervals propagated to the step time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sim.analysis.variants import throughput, with_calibration
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


def interval(scenario: Scenario) -> Interval:
    """Root-sum-square of one-at-a-time changes: calibration parameters are taken as independent.

    Every parameter with an interval is moved to both ends and the scenario simulated again, so this costs
    two simulations per uncertain parameter that the cluster uses. Parameters of links, devices or
    libraries that the scenario does not have are left out.

    Parameters
    ----------
    scenario : Scenario
        A feasible scenario.
    """
    rate = throughput(scenario)
    calibration = scenario.calibration
    faster, slower = 0.0, 0.0
    contributions: dict[str, float] = {}
    for section, key, name in calibration.uncertain():
        if not _used(scenario, section, key):
            continue
        moved = [calibration.at_bounds(section, key, name, end) for end in ("low", "high")]
        changes = [_relative_change(with_calibration(scenario, ends), rate) for ends in moved]
        faster += min(*changes, 0.0) ** 2
        slower += max(*changes, 0.0) ** 2
        if max(map(abs, changes)) > _NEGLIGIBLE:
            contributions[f"{section}.{key}.{name}"] = abs(changes[1] - changes[0]) / 2
    return _as_interval(scenario, rate, math.sqrt(faster), math.sqrt(slower), contributions)


def _relative_change(scenario: Scenario, rate: float) -> float:
    """Relative change of the step time; none where the moved parameter makes the scenario infeasible."""
    from sim.analysis.simulate import simulate

    result = simulate(scenario)
    if not result.ok or not result.step_time_s:
        return 0.0
    return rate / (result.samples_per_s or 1.0 / result.step_time_s) - 1.0


def _as_interval(
    scenario: Scenario, rate: float, faster: float, slower: float, contributions: dict[str, float]
) -> Interval:
    """Relative changes of the step time -> an interval in seconds and samples per second."""
    from sim.analysis.simulate import simulate

    step = simulate(scenario).step_time_s or 0.0
    # Beyond -100 % a linear propagation means nothing; a step cannot take less than no time.
    low, high = step * max(1.0 - faster, 1e-3), step * (1.0 + slower)
    return Interval(
        step_time_s=step,
        low_s=low,
        high_s=high,
        samples_per_s=rate,
        samples_per_s_low=rate * step / high if high else rate,
        samples_per_s_high=rate * step / low if low else rate,
        contributions={
            name: share * step for name, share in sorted(contributions.items(), key=lambda kv: -kv[1])
        },
    )


def _used(scenario: Scenario, section: str, key: str) -> bool:
    """Whether a calibration key concerns anything the scenario has."""
    if key == "default":
        return True
    cluster = scenario.cluster
    if section == "device":
        return any(device.name == key for device in cluster.device_types)
    if section == "link":
        kinds = {link.kind for host in cluster.host_types for link in host.links}
        return key in kinds or key not in {"nvlink", "pcie", "qpi", "memory"}
    return True
