"""Speeds and delays of links by name, and words for them: what runs and collectives are read with alike.

Speeds are of one direction. Sources: PCI-SIG; NVIDIA's DGX reference designs, as in ``topologies/hosts``.
"""

from __future__ import annotations

import re

from sim.lowering.library import PCIE as PCIE

GIGABIT = 1e9 / 8
NVLINK_LATENCY, PCIE_LATENCY, PORT_LATENCY, CABLE_LATENCY = 0.3e-6, 0.25e-6, 0.6e-6, 0.25e-6
"""Seconds of a link inside a host, of a slot, of a network port, of a cable and its switch."""

_SPEED = re.compile(r"(\d+(?:\.\d+)?)\s*GB/s", re.IGNORECASE)
_PORTS = re.compile(r"(\d+)\s*[xX×*]\s*(?:[A-Za-z-]+\s*)*(\d\d+(?:\.\d+)?|\d(?=\s*G))(?!\d*\s*GB)")


def device_bandwidth(text: str) -> float | None:
    """Bytes/s of a device's NVLinks or the like in one direction; texts state both directions together."""
    found = _SPEED.search(text)
    return float(found[1]) * 1e9 / 2 if found else None


def ports_each(text: str) -> tuple[int, float] | None:
    """Network ports and Gb/s of each, from words such as ``8x400G NDR`` or ``4 x HDR 200``."""
    found = _PORTS.search(text)
    return (int(found[1]), float(found[2])) if found else None
