"""The dimensions of the taxonomy and the values that can be simulated; one file per group."""

from __future__ import annotations

import difflib

from sim.errors import InputError
from sim.taxonomy.dimensions.data import DATA
from sim.taxonomy.dimensions.network import NETWORK
from sim.taxonomy.dimensions.training import TRAINING
from sim.taxonomy.dimensions.value import Dimension, Value

__all__ = ["DIMENSIONS", "Dimension", "Value", "dimension", "table"]

DIMENSIONS: tuple[Dimension, ...] = tuple(
    sorted((*TRAINING, *DATA, *NETWORK), key=lambda each: int(each.id[1:]))
)


def dimension(name: str) -> Dimension:
    """A dimension by id (``D3``) or name (``synchronization``).

    Raises
    ------
    InputError
        If there is none, with the nearest name.
    """
    known = {key.lower(): each for each in DIMENSIONS for key in (each.id, each.name)}
    wanted = name.lower().replace("_", " ")
    if wanted in known:
        return known[wanted]
    nearest = [] if wanted[1:].isdigit() else difflib.get_close_matches(wanted, known, 1)
    hint = (
        f"Did you mean {nearest[0]}?" if nearest else f"Known: {', '.join(each.name for each in DIMENSIONS)}."
    )
    raise InputError("dimension", "be the id or name of a dimension", name, hint=hint)


def table() -> list[dict[str, str]]:
    """One row per value: dimension id and name, value, how to set it, description."""
    rows = []
    for each in DIMENSIONS:
        for value in each.values:
            settings = [f"{name}={setting}" for name, setting in value.settings.items()] + [
                f"{name}=..." for name in value.fields
            ]
            rows.append(
                {
                    "dimension": each.id,
                    "name": each.name,
                    "value": value.name,
                    "set": ", ".join(settings),
                    "description": value.description,
                }
            )
    return rows
