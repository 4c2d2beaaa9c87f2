"""Calibration: fitted or cited parameters of devices, links, libraries and frameworks, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from sim.errors import InputError
from sim.spec.base import CatalogSpec, Spec, refuse
from sim.units import nearest, parse_quantity

SECTIONS = ("device", "link", "library", "framework")
_DIMENSION_OF_SUFFIX = (
    ("latency", "seconds"),
    ("overhead", "seconds"),
    ("time", "seconds"),
    ("bytes", "bytes"),
    ("bandwidth", "bytes_per_second"),
    ("cap", "bytes_per_second"),
)


def parameter_dimension(name: str) -> str | None:
    """Dimension of a parameter by the last word of its name; None for pure numbers and fractions."""
    last = name.rsplit("_", 1)[-1]
    return next((dimension for suffix, dimension in _DIMENSION_OF_SUFFIX if last == suffix), None)


class Parameter(Spec):
    """One value with its 80 % interval, the number of observations, and where it comes from."""

    value: float = Field(description="best estimate, in SI units")
    low: float | None = Field(None, description="lower end of the 80 % interval; the value if absent")
    high: float | None = Field(None, description="upper end of the 80 % interval; the value if absent")
    n: int = Field(0, ge=0, description="observations it was fitted on; 0 for a cited value")
    source: str = Field(min_length=1, description="measurement or publication it comes from")

    @model_validator(mode="after")
    def _ordered(self) -> Parameter:
        if self.low is not None and self.low > self.value:
            refuse(f"be at most value ({self.value:g})", f"{self.low:g}", field="low")
        if self.high is not None and self.high < self.value:
            refuse(f"be at least value ({self.value:g})", f"{self.high:g}", field="high")
        return self

    def at(self, bound: Bound) -> float:
        """The value or an end of its interval."""
        if bound == "low":
            return self.value if self.low is None else self.low
        if bound == "high":
            return self.value if self.high is None else self.high
        return self.value


Bound = Literal["low", "value", "high"]
Section = dict[str, dict[str, Parameter]]


class Calibration(CatalogSpec):
    """Parameters by section, key (device, link kind, library, framework; or ``default``) and name.

    A parameter is dimensionless unless its name ends in latency, overhead or time (seconds), bytes, or
    bandwidth or cap (bytes/s); YAML states those with units.
    """

    device: Section = Field({}, description="parameters by device and name")
    link: Section = Field({}, description="parameters by kind of link and name")
    library: Section = Field({}, description="parameters by collective library and name")
    framework: Section = Field({}, description="parameters by framework and name")
    fitted_sources: tuple[str, ...] = Field(
        (), description="sources of measured training runs that it was fitted to: others are less sure"
    )
    complete: bool = Field(False, description="stands alone: merging it drops everything that came before")

    @model_validator(mode="before")
    @classmethod
    def _read_units(cls, data: Any, info: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        strict = bool(info.context and info.context.get("strict_units"))
        return {
            name: _read_section(name, section, strict) if name in SECTIONS else section
            for name, section in data.items()
        }

    def parameter(self, section: str, key: str, param: str) -> Parameter:
        """Parameter of ``key``, else of the section's ``default`` key.

        Raises
        ------
        InputError
            If neither has it.
        """
        table: Section = getattr(self, section)
        for candidate in (key, "default"):
            found = table.get(candidate, {}).get(param)
            if found is not None:
                return found
        known = sorted({name for params in table.values() for name in params})
        close = nearest(param, known)
        raise InputError(
            f"calibration.{section}.{key}.{param}",
            "be given there or under default",
            hint=f"Try {close}." if close else "",
            where=self.name,
        )

    def value(self, section: str, key: str, param: str) -> float:
        """SI value of a parameter, falling back to the key ``default``."""
        return self.parameter(section, key, param).value

    def has(self, section: str, key: str, param: str) -> bool:
        """Whether ``value`` would find the parameter."""
        table: Section = getattr(self, section)
        return any(param in table.get(candidate, {}) for candidate in (key, "default"))

    def merge(self, other: Calibration) -> Calibration:
        """Both together; ``other`` wins per parameter, or altogether if it is ``complete``."""
        if other.complete:
            return other
        sections = {}
        for name in SECTIONS:
            mine, theirs = getattr(self, name), getattr(other, name)
            keys = [*mine, *(key for key in theirs if key not in mine)]
            sections[name] = {key: {**mine.get(key, {}), **theirs.get(key, {})} for key in keys}
        sources = tuple(dict.fromkeys((*self.fitted_sources, *other.fitted_sources)))
        named = {"name": f"{self.name}+{other.name}", "fitted_sources": sources}
        return self.model_copy(update={**named, **sections})

    def at_bounds(self, section: str, key: str, param: str, bound: Bound) -> Calibration:
        """A copy in which one parameter, as found by ``parameter``, sits at an end of its interval."""
        found = self.parameter(section, key, param)
        table: Section = getattr(self, section)
        owner = key if param in table.get(key, {}) else "default"
        moved = found.model_copy(update={"value": found.at(bound), "low": None, "high": None})
        return self.model_copy(update={section: {**table, owner: {**table[owner], param: moved}}})

    def uncertain(self) -> tuple[tuple[str, str, str], ...]:
        """(section, key, name) of every parameter whose interval is wider than its value."""
        return tuple(
            (section, key, param)
            for section in SECTIONS
            for key, params in getattr(self, section).items()
            for param, parameter in params.items()
            if parameter.at("low") < parameter.at("high")
        )


def _read_section(section: str, data: Any, strict: bool) -> Any:
    if not isinstance(data, Mapping):
        return data
    return {
        key: {p: _read_parameter(f"{section}.{key}.{p}", p, entry, strict) for p, entry in params.items()}
        if isinstance(params, Mapping)
        else params
        for key, params in data.items()
    }


def _read_parameter(field: str, name: str, entry: Any, strict: bool) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    dimension = parameter_dimension(name)
    result = dict(entry)
    for part in ("value", "low", "high"):
        given = result.get(part)
        bare = isinstance(given, int | float) and not isinstance(given, bool) and given != 0
        if isinstance(given, str) or (strict and dimension and bare):
            try:
                result[part] = parse_quantity(str(given), dimension or "fraction")
            except InputError as error:
                refuse(error.must, error.got, hint=error.hint, field=f"{field}.{part}")
    return result
