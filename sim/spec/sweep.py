"""A sweep: a base scenario and the fields to vary."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from sim.errors import InputError
from sim.spec.base import CatalogSpec, Spec, refuse
from sim.units import nearest

ROOTS = (
    "workload",
    "cluster",
    "strategy",
    "calibration",
    "seed",
    "fidelity",
    "perturbation",
    "confidence",
    "fold",
)


def _check(field: str, value: Any) -> Any:
    """Refuse dotted fields that start with no part of a scenario, and axes without values."""
    if value == "taxonomy":
        return value
    if field == "set":
        _check_fields(value)
    elif field == "points":
        for point in value:
            _check_fields(point)
    else:
        refuse_shared(value)
        for name, values in value.items():
            if not values:
                refuse("have at least one value", field=name)
            for item in values:
                _check_fields(item if is_bundle(name, item) else [name])
    return value


def _check_lists(value: Any) -> Any:
    """Refuse axes that are no lists, before anything else is said about them."""
    if isinstance(value, Mapping):
        for name, values in value.items():
            if not isinstance(name, str):
                refuse("have names of fields or labels as keys", repr(name), hint="Put it into quotes.")
            if not isinstance(values, list | tuple):
                refuse("be a list of values", repr(values), field=name)
    elif value != "taxonomy":
        refuse("be a mapping from dotted fields to lists of values, or taxonomy", repr(value))
    return value


def refuse_shared(axes: Mapping[str, Sequence[Any]]) -> None:
    """Refuse two axes that set the same field: one would silently undo the other."""
    owner: dict[str, str] = {}
    for axis, values in axes.items():
        fields = {
            field
            for item in values
            for name, value in (item if is_bundle(axis, item) else {axis: item}).items()
            for field in _fields(str(name), value)
        }
        for field in sorted(fields):
            if field in owner:
                hint = f"Axis {owner[field]} sets it too."
                raise InputError(f"axes.{axis}", "set fields that no other axis sets", field, hint=hint)
        owner |= dict.fromkeys(fields, axis)


def _fields(name: str, value: Any) -> list[str]:
    """Dotted fields that a value sets: of a mapping those inside it."""
    if not isinstance(value, Mapping) or not value:
        return [name]
    return [field for key, item in value.items() for field in _fields(f"{name}.{key}", item)]


def is_bundle(axis: str, value: Any) -> bool:
    """Whether a value of an axis is a mapping of dotted fields that move together.

    Below an axis that is a field itself (``strategy``, ``cluster.fabric``) other mappings are its value.
    """
    if not isinstance(value, Mapping):
        return False
    roots = {str(name).split(".")[0] for name in value}
    return str(axis).split(".")[0] not in ROOTS or (bool(roots) and roots <= set(ROOTS))


def _check_fields(names: Iterable[str]) -> None:
    for name in names:
        if str(name).split(".")[0] not in ROOTS:
            close = nearest(str(name).split(".")[0], list(ROOTS))
            must = f"start with one of {', '.join(ROOTS)}"
            refuse(must, repr(name), hint=f"Try {close}." if close else "", field=name)


MAX_POINTS = 1_000_000
"""Points of a sweep: each is a scenario, resolved before the first one runs."""


def limit_points(axes: Iterable[Iterable[Any]], more: int = 1, field: str = "axes") -> None:
    """Refuse a product of axes that nobody can wait for.

    Parameters
    ----------
    axes : iterable of collections
        Values of each axis.
    more : int
        What the product is multiplied by.

    Raises
    ------
    InputError
        Above :data:`MAX_POINTS`.
    """
    count = more
    for values in axes:
        count *= len(list(values))
    if count > MAX_POINTS:
        hint = "Vary fewer fields, or give fewer values."
        raise InputError(field, f"give at most {MAX_POINTS} points", count, hint=hint)


class Grid(Spec):
    """A product of axes plus explicit points.

    An axis is a dotted field with its values; a value that is a mapping of dotted fields sets them
    together (then the axis's own name is only a label). Any other mapping is the field's value:
    ``strategy: [{tp: 2}, {tp: 4}]``, ``cluster.fabric: [{kind: torus}, {kind: rail_only}]``.
    ``set`` is applied to every point of the grid.
    """

    set: dict[str, Any] = Field({}, description="dotted field -> value, for all points of the grid")
    axes: dict[str, list[Any]] = Field({}, description="dotted field -> values")
    points: tuple[dict[str, Any], ...] = Field(
        (), description="explicit points, beside the product of the axes"
    )

    @field_validator("axes", mode="before")
    @classmethod
    def _lists(cls, value: Any) -> Any:
        return _check_lists(value)

    @field_validator("axes", "set", "points")
    @classmethod
    def _known_roots(cls, value: Any, info: ValidationInfo) -> Any:
        return _check(str(info.field_name), value)

    def expand(self) -> list[dict[str, Any]]:
        """All points as flat mappings of dotted field -> value, in a fixed order."""
        limit_points(self.axes.values())
        choices = [
            [item if is_bundle(name, item) else {name: item} for item in values]
            for name, values in self.axes.items()
        ]
        product = [_union(self.set, *parts) for parts in itertools.product(*choices)] if choices else []
        listed = [_union(self.set, point) for point in self.points]
        if not product and not listed:
            return [dict(self.set)]
        return product + listed


class Sweep(CatalogSpec):
    """Points = (top-level axes and points) x (grids one after the other); duplicates are dropped."""

    workload: str | None = Field(None, description="catalogue name; or vary it in an axis `workload`")
    cluster: str | None = Field(None, description="catalogue name; or vary it in an axis `cluster`")
    strategy: str | dict[str, Any] = Field({}, description="preset name, or the strategy's fields")
    calibration: tuple[str, ...] = Field((), description="calibrations, later ones over earlier ones")
    set: dict[str, Any] = Field({}, description="dotted field -> value, for all points")
    axes: Literal["taxonomy"] | dict[str, list[Any]] = Field(
        {}, description="dotted field -> values, crossed with every grid; `taxonomy`: the dimensions"
    )
    dimensions: dict[str, list[str]] = Field(
        {},
        description=(
            "with `axes: taxonomy`: dimension, or a value that is an axis of its own, -> values: "
            "synchronization: [bsp, ssp(3)], tp: [tp(1), tp(8)], sequence_parallel: [default, ...]"
        ),
    )
    points: tuple[dict[str, Any], ...] = Field((), description="points beside the product of the axes")
    grids: tuple[Grid, ...] = Field((), description="sub-sweeps with axes of their own")
    where: str | None = Field(None, description="condition on result columns, e.g. peak_memory_bytes<80GB")
    objective: str | None = Field(None, description="result column to rank by")
    seed: int = Field(0, ge=0, description="root of all random draws")

    @field_validator("axes", mode="before")
    @classmethod
    def _lists(cls, value: Any) -> Any:
        return _check_lists(value)

    @field_validator("axes", "set", "points")
    @classmethod
    def _known_roots(cls, value: Any, info: ValidationInfo) -> Any:
        return _check(str(info.field_name), value)

    @model_validator(mode="after")
    def _dimensions_with_taxonomy(self) -> Self:
        if self.dimensions and self.axes != "taxonomy":
            refuse("be given with `axes: taxonomy` only", field="dimensions")
        return self

    def base(self) -> dict[str, Any]:
        """Fields that every point starts from."""
        given: dict[str, Any] = {"workload": self.workload, "cluster": self.cluster}
        point = {name: value for name, value in given.items() if value is not None}
        if isinstance(self.strategy, str):
            point["strategy"] = self.strategy
        else:
            point |= {f"strategy.{name}": value for name, value in self.strategy.items()}
        if self.calibration:
            point["calibration"] = list(self.calibration)
        return _union(point, {"seed": self.seed}, self.set)

    def expand(self) -> list[dict[str, Any]]:
        """All distinct points as flat mappings of dotted field -> value, in a fixed order.

        ``axes: taxonomy`` must have been replaced by what the taxonomy says it means.
        """
        assert self.axes != "taxonomy"
        outer = Grid(axes=self.axes, points=self.points).expand()
        inner = [point for grid in self.grids for point in grid.expand()] or [{}]
        limit_points([outer, inner], field="grids")
        merged = (_union(self.base(), first, second) for first in outer for second in inner)
        unique = {json.dumps(point, sort_keys=True, default=str): point for point in merged}
        return list(unique.values())


def _union(*points: dict[str, Any]) -> dict[str, Any]:
    """Merge; naming a preset (``strategy: ring``) drops what an earlier part said about its fields."""
    result: dict[str, Any] = {}
    for point in points:
        for name in point:
            if "." not in name:
                for old in [old for old in result if old.startswith(f"{name}.")]:
                    del result[old]
        result |= point
    return result
