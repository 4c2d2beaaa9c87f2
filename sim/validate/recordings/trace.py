"""One-rank traces of layer times, and the workloads they make."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from sim.errors import InputError
from sim.spec import Layer, Measured, Workload

BYTES_PER_PARAMETER = 24.0
"""Read and written by an fp32 update with momentum: weight, state and gradient, twice each."""


@dataclass(frozen=True)
class Unit:
    """A module with parameters: times of one rank in seconds, and the shapes of its parameters."""

    name: str
    forward_s: float
    backward_s: float
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[float, ...]:
        """Elements of each parameter."""
        return tuple(float(prod(shape)) for shape in self.shapes)


@dataclass(frozen=True)
class LayerTrace:
    """Times of one rank without communication, as ``clusterloom record layers`` measures them.

    Attributes
    ----------
    model : str
    units : tuple of Unit
        In the order in which a replay runs them: the reverse of the order of their gradients.
    optimizer_s : float
        Time of the whole update.
    """

    model: str
    units: tuple[Unit, ...]
    optimizer_s: float

    @property
    def num_parameters(self) -> float:
        """Trainable parameters."""
        return sum(sum(unit.sizes) for unit in self.units)

    @property
    def compute_s(self) -> float:
        """Forward and backward of a step."""
        return sum(unit.forward_s + unit.backward_s for unit in self.units)

    @property
    def memory_bandwidth(self) -> float:
        """Bytes/s of the memory as the update streams it."""
        return BYTES_PER_PARAMETER * self.num_parameters / self.optimizer_s

    @classmethod
    def read(cls, path: Path) -> LayerTrace:
        """Read a trace.

        Raises
        ------
        InputError
            If the file is no such trace.
        """
        try:
            data = json.loads(path.read_text())
            by_name = {unit["name"]: unit for unit in data["units"]}
            order = list(reversed(data["backward_order"]))
            units = [_unit(by_name[name]) for name in order]
            tail = float(data.get("bwd_tail_us", 0.0)) * 1e-6
            first = units[0]
            # What follows the last gradient belongs to the layer that ends the backward pass.
            units[0] = Unit(first.name, first.forward_s, first.backward_s + tail, first.shapes)
            return cls(str(data["model"]), tuple(units), float(data["opt_us"]) * 1e-6)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            reason = type(error).__name__ if isinstance(error, KeyError | IndexError) else str(error)
            raise InputError("trace", "be a trace of layer times", f"{path}: {reason}") from None

    def workload(
        self, *, scale: float = 1.0, unit_overhead: float = 0.0, groups: int | None = None
    ) -> Workload:
        """The model with its measured times, one sample per step.

        Parameters
        ----------
        scale : float
            Factor on all compute times.
        unit_overhead : float
            Seconds that each pass through a unit takes besides.
        groups : int, optional
            Cut the chain into this many blocks of about equal parameters; every unit is one if absent.
        """
        blocks = _blocks(self.units, groups) if groups else list(range(len(self.units)))
        layers = [
            measured_layer(
                unit.name, block, unit.forward_s * scale + unit_overhead,
                unit.backward_s * scale + unit_overhead, unit.sizes,
            )
            for unit, block in zip(self.units, blocks, strict=True)
        ]  # fmt: skip
        return measured_workload(self.model, layers, self.optimizer_s * scale)


def _unit(data: dict[str, Any]) -> Unit:
    shapes = tuple(tuple(int(extent) for extent in shape) for _, shape in data["params"])
    return Unit(str(data["name"]), float(data["fwd_us"]) * 1e-6, float(data["bwd_us"]) * 1e-6, shapes)


def _blocks(units: Sequence[Unit], groups: int) -> list[int]:
    """Block of each unit: a new one begins once the blocks so far have their share of the parameters."""
    share = sum(sum(unit.sizes) for unit in units) / groups
    blocks, block, total = [], 0, 0.0
    for unit in units:
        if total >= share * (block + 1) and block + 1 < groups:
            block += 1
        blocks.append(block)
        total += sum(unit.sizes)
    return blocks


def measured_layer(
    name: str, block: int, forward_s: float, backward_s: float, sizes: Iterable[float] = (), **fields: float
) -> Layer:
    """A layer of known times for one sample."""
    tensors = tuple(sizes)
    op = Measured(forward_s=forward_s, backward_s=backward_s)
    return Layer(
        name=name, kind="linear", block=block, ops=(op,), parameters=sum(tensors), tensors=tensors, **fields
    )


def measured_workload(name: str, layers: Sequence[Layer], optimizer_s: float, samples: int = 1) -> Workload:
    """A workload of measured layers in fp32."""
    return Workload(
        name=name,
        description="Layer times measured on one rank",
        source="recorded trace",
        layers=tuple(layers),
        family="mlp",
        dtype="fp32",
        optimizer="sgd",
        optimizer_time=optimizer_s,
        batch_per_device=samples,
    )


class Traces:
    """Finds the trace of a model in a few folders.

    Parameters
    ----------
    folders : iterable of Path
        Searched in order for ``MODEL.json``.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = tuple(dict.fromkeys(folders))
        self._found: dict[tuple[str, bool], LayerTrace] = {}

    def get(self, model: str, *, quiet: bool = False) -> LayerTrace:
        """Trace of a model; with ``quiet`` the one taken on an idle machine, if there is one.

        Raises
        ------
        InputError
            If no folder has one.
        """
        key = (model, quiet)
        if key not in self._found:
            names = [f"{model}_quiet.json", f"{model}.json"] if quiet else [f"{model}.json"]
            paths = [folder / name for name in names for folder in self.folders]
            path = next((path for path in paths if path.is_file()), None)
            if path is None:
                raise InputError(
                    "recordings", f"come with a trace of {model}", ", ".join(map(str, self.folders)),
                    hint="Use --traces DIR.",
                )  # fmt: skip
            self._found[key] = LayerTrace.read(path)
        return self._found[key]

    def all(self) -> list[LayerTrace]:
        """Every layer trace of the folders."""
        found = []
        for folder in self.folders:
            for path in sorted(folder.glob("*.json")):
                if '"backward_order"' in path.read_text()[:4000]:
                    found.append(LayerTrace.read(path))
        return found
