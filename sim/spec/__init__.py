"""Frozen descriptions of everything a simulation needs."""

from __future__ import annotations

from sim.spec.base import (
    Bytes,
    BytesPerSecond,
    CatalogSpec,
    DollarsPerHour,
    Flops,
    FlopsPerSecond,
    Fraction,
    Seconds,
    Spec,
    Watts,
    quantity_dimension,
)
from sim.spec.calibration import Calibration, Parameter
from sim.spec.cluster import BackgroundFlow, Cluster, HostGroup
from sim.spec.device import Device
from sim.spec.fabric import Fabric, FabricEdge
from sim.spec.host import Host, HostLink, Nic, Storage
from sim.spec.layer import (
    Attention,
    Convolution,
    Embedding,
    Gemm,
    Layer,
    LayerTime,
    Measured,
    MemoryBound,
    Op,
)
from sim.spec.preset import Preset
from sim.spec.scenario import Perturbation, Scenario, ScenarioFile
from sim.spec.strategy import Strategy
from sim.spec.sweep import Grid, Sweep
from sim.spec.workload import DTYPE_BYTES, OPTIMIZER_STATES, Workload

__all__ = [
    "DTYPE_BYTES",
    "OPTIMIZER_STATES",
    "Attention",
    "BackgroundFlow",
    "Bytes",
    "BytesPerSecond",
    "Calibration",
    "CatalogSpec",
    "Cluster",
    "Convolution",
    "Device",
    "DollarsPerHour",
    "Embedding",
    "Fabric",
    "FabricEdge",
    "Flops",
    "FlopsPerSecond",
    "Fraction",
    "Gemm",
    "Grid",
    "Host",
    "HostGroup",
    "HostLink",
    "Layer",
    "LayerTime",
    "Measured",
    "MemoryBound",
    "Nic",
    "Op",
    "Parameter",
    "Perturbation",
    "Preset",
    "Scenario",
    "ScenarioFile",
    "Seconds",
    "Spec",
    "Storage",
    "Strategy",
    "Sweep",
    "Watts",
    "Workload",
    "quantity_dimension",
]
