"""What a step costs in energy and money."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Energy (J) and price ($) of one training step on all devices; None where the specs do not say."""

    energy_joules_per_step: float | None
    energy_joules_per_sample: float | None
    price_per_step: float | None
    price_per_sample: float | None


def cost(
    metadata: dict[str, object], *, step_time_s: float, samples_per_step: float | None, busy_fraction: float
) -> Cost:
    """Energy and price of a step.

    energy = (idle + (peak - idle) * busy fraction) * time, the linear power model of Fan, Weber, Barroso
    (ISCA 2007) with the computing share of time as utilisation; price = hourly price * time.

    Parameters
    ----------
    metadata : dict
        ``idle_power_total`` and ``peak_power_total`` (W), ``price_per_hour_total`` ($/h) over all devices.
    step_time_s : float
        Seconds per step.
    samples_per_step : float or None
        Samples of all ranks in that time.
    busy_fraction : float
        Mean share of time the devices compute, 0 .. 1.
    """
    idle, peak = _number(metadata, "idle_power_total"), _number(metadata, "peak_power_total")
    hourly = _number(metadata, "price_per_hour_total")
    energy = (
        None
        if idle is None or peak is None or peak <= 0
        else (idle + (peak - idle) * busy_fraction) * step_time_s
    )
    price = None if hourly is None or hourly <= 0 else hourly / 3600.0 * step_time_s
    return Cost(energy, _ratio(energy, samples_per_step), price, _ratio(price, samples_per_step))


def _number(metadata: dict[str, object], key: str) -> float | None:
    value = metadata.get(key)
    return float(value) if isinstance(value, int | float) else None


def _ratio(value: float | None, divisor: float | None) -> float | None:
    return value / divisor if value is not None and divisor else None
