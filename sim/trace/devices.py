"""Which device of the catalogue a trace ran on, from the name that a profiler writes."""

from __future__ import annotations

import re

from sim.catalog import Catalog, default_catalog
from sim.spec.device import Device

_MODEL = re.compile(r"(?<![a-z0-9])(gb300|gb200|b300|b200|h200|h100|a100|v100|p100|k80|t4)(?![0-9])")
_MEMORY = re.compile(r"(\d+) ?gi?b(?![a-z])")


def catalogue_device(
    name: str | None, memory_bytes: float | None = None, catalog: Catalog | None = None
) -> Device | None:
    """The catalogue's device for a profiler's name such as ``Tesla V100-SXM2-32GB``; None if there is none.

    Parameters
    ----------
    name : str or None
        As ``deviceProperties`` has it.
    memory_bytes : float, optional
        Memory of the device; decides between variants if the name does not say.
    catalog : Catalog, optional
        Where to look; the default one if absent.
    """
    text = (name or "").lower()
    model = _MODEL.search(text)
    if model is None:
        return None
    places = catalog or default_catalog()
    known = [entry for entry in places.names("device") if re.match(rf"{model[1]}(-|$)", entry)]
    stated = _MEMORY.search(text)
    wanted = float(stated[1]) * 1e9 if stated else memory_bytes
    devices = [places.device(entry) for entry in known]
    if wanted is None:
        return min(devices, key=lambda d: ("pcie" in d.name) != ("pcie" in text), default=None)
    return min(
        devices,
        key=lambda d: (("pcie" in d.name) != ("pcie" in text), abs(d.memory_bytes - wanted)),
        default=None,
    )
