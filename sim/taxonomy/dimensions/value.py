"""What a dimension and its values are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Value:
    """One value of a dimension.

    Parameters
    ----------
    name : str
        Its name in the literature; a parameter in parentheses is a number the user chooses.
    description : str
        What it means for the simulated step.
    settings : mapping of str to object
        Dotted fields and what to set them to.
    fields : tuple of str
        Dotted fields that take a number or list the user chooses.
    """

    name: str
    description: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dimension:
    """One axis of the design space.

    Parameters
    ----------
    id : str
        ``D1`` to ``D20``.
    name, question : str
        Short name, and the question a value answers.
    values : tuple of Value
    source : str
        Where the dimension is described.
    """

    id: str
    name: str
    question: str
    values: tuple[Value, ...]
    source: str


def setting(owner_field: str, value: object, description: str, *fields: str, name: str = "") -> Value:
    """A value that sets one field; ``fields`` take what the user chooses beside it."""
    return Value(name or str(value), description, {owner_field: value}, fields)
