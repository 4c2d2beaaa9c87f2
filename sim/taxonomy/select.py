"""Values of dimensions by their names in the literature: ``ssp(3)`` is synchronization=ssp, staleness=3."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sim.errors import InputError
from sim.taxonomy.dimensions import DIMENSIONS, Dimension, Value, dimension
from sim.units import nearest
from sim.yamlio import read_value

#: What a comparison crosses when it is not told: the dimensions of data parallel training's communication.
DEFAULT_CHOICE: Mapping[str, Sequence[str]] = {
    "state placement": ("replicated", "zero1", "zero2", "zero3", "ps_dedicated", "ps_colocated"),
    "synchronization": ("bsp", "ssp(3)", "asp", "local(8)"),
    "collective algorithm": ("auto", "ring", "tree", "halving_doubling", "hierarchical"),
    "compression": ("none", "fp16", "powersgd(4)"),
    "transfer scheduling": ("none", "wfbp"),
}

DEFAULT = "default"
"""The value that sets nothing."""

_CALL = re.compile(r"(?P<name>[^()]+?)\s*(?:\((?P<arguments>[^()]*)\))?")


@dataclass(frozen=True)
class Choice:
    """A value of a dimension with its numbers.

    Attributes
    ----------
    dimension : str
        Name of the dimension, or of the value that is an axis of its own.
    label : str
        The value as it was asked for, e.g. ``ssp(3)``.
    settings : mapping of str to object
        Dotted fields and what to set them to.
    """

    dimension: str
    label: str
    settings: Mapping[str, Any]

    def matches(self, fields: Mapping[str, Any]) -> bool:
        """Whether flat dotted fields hold everything this choice sets."""
        return all(name in fields and fields[name] == value for name, value in self.settings.items())


def choose(dimension_name: str, text: str) -> Choice:
    """A value of a dimension by name, its parameters in parentheses.

    Parameters
    ----------
    dimension_name : str
        Id or name of the dimension, or a value's name: degrees belong to one dimension and yet are combined
        freely, so each may be an axis (``tp``: ``tp(1)``, ``tp(8)``).
    text : str
        E.g. ``ring``, ``ssp(3)``, ``tp(8)``; several parameters are separated by commas. ``default`` leaves
        fields as the sweep's strategy has them.

    Raises
    ------
    InputError
        If there is no such value, or its parameters are too many or missing.
    """
    owner, axis = _axis(dimension_name)
    match = _CALL.fullmatch(text.strip())
    name = match["name"].strip() if match else text
    if name == DEFAULT:
        return Choice(axis, name, {})
    if axis != owner.name and name != axis:
        raise InputError(f"dimensions.{axis}", f"be {axis} with its parameters, or {DEFAULT}", text)
    value = _value(owner, name, text)
    arguments = (
        [part.strip() for part in match["arguments"].split(",")] if match and match["arguments"] else []
    )
    if len(arguments) > len(value.fields) or (not value.settings and not arguments):
        fields = ", ".join(value.fields) or "none"
        raise InputError(
            f"dimensions.{owner.name}",
            f"give {value.name} its parameters ({fields}), e.g. {_example(value)}",
            text,
        )
    given = dict(zip(value.fields, map(read_value, arguments), strict=False))
    return Choice(axis, text.strip(), {**value.settings, **given})


def _axis(name: str) -> tuple[Dimension, str]:
    """The dimension that a name belongs to, and the axis it stands for."""
    owners = [each for each in DIMENSIONS if name in map(_bare, each.values)]
    if owners and name.lower() not in {each.name for each in DIMENSIONS}:
        return owners[0], name
    owner = dimension(name)
    return owner, owner.name


def _bare(value: Value) -> str:
    return value.name.partition("(")[0].strip()


def choices(wanted: Mapping[str, Sequence[str]] | None = None) -> dict[str, list[Choice]]:
    """Axis -> its chosen values; ``["all"]`` are all values of a dimension that need no parameter."""
    found: dict[str, list[Choice]] = {}
    for name, values in (wanted or DEFAULT_CHOICE).items():
        owner, axis = _axis(name)
        texts = (
            [v.name for v in owner.values if v.settings and "(" not in v.name]
            if list(values) == ["all"]
            else values
        )
        found[axis] = [choose(name, text) for text in texts]
        if not found[axis]:
            raise InputError(f"dimensions.{name}", "have at least one value")
    return found


def _value(owner: Dimension, name: str, text: str) -> Value:
    known = {_bare(value): value for value in owner.values}
    if name not in known:
        close = nearest(name, list(known))
        hint = f"Try {close}." if close else f"Known: {', '.join(known)}."
        elsewhere = [each.name for each in DIMENSIONS if name in map(_bare, each.values)]
        if elsewhere:
            hint = f"It is a value of {' and '.join(elsewhere)}."
        raise InputError(f"dimensions.{owner.name}", "be values of the dimension", text, hint=hint)
    return known[name]


def _example(value: Value) -> str:
    return f"{value.name.partition('(')[0]}({', '.join('4' for _ in value.fields[:1])})"
