"""Values of dimensions by their names in the literature: ``ssp(3)`` is synchronization=ssp, staleness=3."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sim.errors import InputError
from sim.taxonomy.dimensions import DIMENSIONS, Dimension, Value, dimension
from sim.units import nearest

#: What a comparison crosses when it is not told: the dimensions of data parallel training's communication.
DEFAULT_CHOICE: Mapping[str, Sequence[str]] = {
    "state placement": ("replicated", "zero1", "zero2", "zero3", "ps_dedicated", "ps_colocated"),
    "synchronization": ("bsp", "ssp(3)", "asp", "local(8)"),
    "collective algorithm": ("auto", "ring", "tree", "halving_doubling", "hierarchical"),
    "compression": ("none", "fp16", "powersgd(4)"),
    "transfer scheduling": ("none", "wfbp"),
}

_CALL = re.compile(r"(?P<name>[^()]+?)\s*(?:\((?P<arguments>[^()]*)\))?")


@dataclass(frozen=True)
class Choice:
    """A value of a dimension with its numbers.

    Attributes
    ----------
    dimension : str
        Name of the dimension.
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
        Id or name of the dimension.
    text : str
        E.g. ``ring``, ``ssp(3)``, ``tp(8)``; several parameters are separated by commas.

    Raises
    ------
    InputError
        If there is no such value, or its parameters are too many or missing.
    """
    owner = dimension(dimension_name)
    match = _CALL.fullmatch(text.strip())
    name = match["name"].strip() if match else text
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
    given = dict(zip(value.fields, map(_scalar, arguments), strict=False))
    return Choice(owner.name, text.strip(), {**value.settings, **given})


def choices(wanted: Mapping[str, Sequence[str]] | None = None) -> dict[str, list[Choice]]:
    """Dimension -> its chosen values; ``["all"]`` are all values that need no parameter."""
    found: dict[str, list[Choice]] = {}
    for name, values in (wanted or DEFAULT_CHOICE).items():
        owner = dimension(name)
        texts = (
            [v.name for v in owner.values if v.settings and "(" not in v.name]
            if list(values) == ["all"]
            else values
        )
        found[owner.name] = [choose(owner.name, text) for text in texts]
        if not found[owner.name]:
            raise InputError(f"dimensions.{name}", "have at least one value")
    return found


def _value(owner: Dimension, name: str, text: str) -> Value:
    known = {value.name.partition("(")[0].strip(): value for value in owner.values}
    if name not in known:
        close = nearest(name, list(known))
        hint = f"Try {close}." if close else f"Known: {', '.join(known)}."
        elsewhere = [
            each.name for each in DIMENSIONS for v in each.values if v.name.partition("(")[0] == name
        ]
        if elsewhere:
            hint = f"It is a value of {elsewhere[0]}."
        raise InputError(f"dimensions.{owner.name}", "be values of the dimension", text, hint=hint)
    return known[name]


def _example(value: Value) -> str:
    return f"{value.name.partition('(')[0]}({', '.join('4' for _ in value.fields[:1])})"


def _scalar(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
