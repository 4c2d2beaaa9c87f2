"""A calibration as YAML text, one line per parameter, as the catalogue keeps it."""

from __future__ import annotations

import json

from sim.spec import Calibration
from sim.spec.calibration import SECTIONS, Parameter, parameter_dimension

_UNITS = {"seconds": (1e6, "us"), "bytes": (1.0, "B"), "bytes_per_second": (1e-9, "GB/s")}
DIGITS = 4


def calibration_yaml(calibration: Calibration) -> str:
    """Text that reads back as the calibration, values rounded to four digits."""
    lines = ["schema: 1"]
    lines += [
        f"{field}: {_quoted(getattr(calibration, field))}" for field in ("name", "description", "source")
    ]
    if calibration.fitted_sources:
        lines.append(f"fitted_sources: [{', '.join(map(_quoted, calibration.fitted_sources))}]")
    for section in SECTIONS:
        table = getattr(calibration, section)
        if not table:
            continue
        lines.append(f"{section}:")
        for key, parameters in table.items():
            lines.append(f"  {key if key.replace('-', '').replace('_', '').isalnum() else _quoted(key)}:")
            lines += [f"    {name}: {_entry(name, parameter)}" for name, parameter in parameters.items()]
    return "\n".join(lines) + "\n"


def _entry(name: str, parameter: Parameter) -> str:
    parts = [f"value: {_written(name, parameter.value)}"]
    for bound in ("low", "high"):
        value = getattr(parameter, bound)
        if value is not None:
            parts.append(f"{bound}: {_written(name, value)}")
    if parameter.n:
        parts.append(f"n: {parameter.n}")
    return "{" + ", ".join([*parts, f"source: {_quoted(parameter.source)}"]) + "}"


def _written(name: str, value: float) -> str:
    factor, unit = _UNITS.get(parameter_dimension(name) or "", (1.0, ""))
    return f"{value * factor:.{DIGITS}g}{unit}"


def _quoted(text: str) -> str:
    """A YAML scalar in double quotes, which JSON's are."""
    return json.dumps(text, ensure_ascii=False)
