"""The compute time of all runs of a fit at once: their kernels in one table, evaluated in one go.

:class:`Stack` gives for every shape what ``Shape.seconds`` gives for one (a test holds the two together), at
a fraction of the cost, since the roofline works on arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.calibrate.run_terms import Shape
from sim.models.compute import slowest_device
from sim.models.kernels import FORWARD, MEASURED, Kernels
from sim.models.roofline import Roof, kernel_times, roof
from sim.spec import Calibration

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

_ONCE, _AGAIN, _BACK, _CORE = range(4)
"""Sets of kernels: forward, forward with recomputation, backward, the parts of layers that run again."""


class Stack:
    """Kernels of many shapes in one table.

    Parameters
    ----------
    shapes : sequence of Shape
    """

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.shapes = list(shapes)
        sizes = [len(shape.dims) for shape in self.shapes]
        self.shape_of = np.repeat(np.arange(len(self.shapes)), sizes)
        self.dims = np.concatenate([shape.dims for shape in self.shapes])
        self.kernels = _joined([shape.kernels for shape in self.shapes])
        self.groups = list(dict.fromkeys(_group(shape) for shape in self.shapes))
        index = {group: i for i, group in enumerate(self.groups)}
        self.group_of = np.array([index[_group(shape)] for shape in self.shapes])[self.shape_of]
        self.devices = [next(s.device for s in self.shapes if _group(s) == group) for group in self.groups]
        self.weights, self.body = self._weights(), self._weights(body=True)
        grouped = np.maximum(self.dims[:, 3], 1.0)
        kernels = self.kernels
        launches = np.where(kernels.grouped, grouped, kernels.launches * (kernels.kind != MEASURED))
        self.launches, self.body_launches = (
            [self._per_shape(weight, launches) for weight in weights] for weights in (self.weights, self.body)
        )
        self.exchanges = np.array([_exchanges(shape) for shape in self.shapes]).T
        self.body_exchanges = np.array([_exchanges(shape, body=True) for shape in self.shapes]).T

    def seconds(self, calibrations: Mapping[str, Calibration]) -> FloatArray:
        """Forward and backward of one micro-batch of every shape; calibrations by framework; float[S]."""
        rates = [
            roof.__wrapped__(device, dtype, calibrations[framework])
            for device, (_, dtype, framework) in zip(self.devices, self.groups, strict=True)
        ]
        times = kernel_times(self.kernels, self.dims, _columns(rates, self.group_of))
        slow = np.array([_slowdown(shape, calibrations[shape.framework]) for shape in self.shapes])
        times = times * slow[self.shape_of]
        of_shape = {group: i for i, group in enumerate(self.groups)}
        mine = [rates[of_shape[_group(shape)]] for shape in self.shapes]
        kernel = np.array([rate.issue_time for rate in mine])
        collective = np.array([rate.collective_issue_time for rate in mine])
        exposed = np.array([rate.exposed_launches for rate in mine])
        busy, body = ([self._per_shape(w, times) for w in weights] for weights in (self.weights, self.body))
        host, body_host = (
            [a * kernel + b * collective for a, b in zip(launched, exchanged, strict=True)]
            for launched, exchanged in (
                (self.launches, self.exchanges),
                (self.body_launches, self.body_exchanges),
            )
        )

        def passed(decides: int, runs: int) -> FloatArray:
            """A pass bound by the host stretches its body, what recomputation runs again as well."""
            waits = body_host[decides] > body[decides] + exposed * body_host[decides]
            whole = busy[runs] + exposed * host[runs]
            bound = body_host[runs] - body[runs] - exposed * body_host[runs]
            return np.asarray(whole + np.where(waits, bound, 0.0))

        return np.asarray(passed(_ONCE, _AGAIN) + passed(_BACK, _BACK) + busy[_CORE])

    def _per_shape(self, weight: FloatArray, values: FloatArray) -> FloatArray:
        return np.bincount(self.shape_of, weights=weight * values, minlength=len(self.shapes)).astype(float)

    def _weights(self, *, body: bool = False) -> list[FloatArray]:
        """How often each kernel runs: forward once, as often as it is run, backward, selectively again."""
        parts: list[list[FloatArray]] = []
        for shape in self.shapes:
            k = shape.kernels
            counted = k.body.astype(float) if body else np.ones(k.num_layers)
            once, again = (
                np.bincount(k.entry_op, weights=(counted * times)[k.entry_layer], minlength=k.num_operations)[
                    k.owner
                ]
                for times in (np.ones(k.num_layers), shape.again)
            )
            forward = k.phase == FORWARD
            core = np.bincount(k.entry_op, weights=shape.part, minlength=k.num_operations)
            core = core.astype(float)[k.owner] * forward
            parts.append([once * forward, again * forward, once * ~forward, core])
        return [np.concatenate(part) for part in zip(*parts, strict=True)]


def _group(shape: Shape) -> tuple[str, str, str]:
    return shape.device.name, shape.dtype, shape.framework


def _slowdown(shape: Shape, calibration: Calibration) -> float:
    variation = calibration.value("device", shape.device.name, "speed_variation")
    return slowest_device(shape.slowest_of, variation)


def _exchanges(shape: Shape, *, body: bool = False) -> tuple[float, float, float, float]:
    """Collectives launched beside the kernels of each set of weights."""
    counted = shape.exchanges * shape.kernels.body if body else shape.exchanges
    once = float(counted.sum())
    return once, float((counted * shape.again).sum()), once, 0.0


_PER_KERNEL = (
    "phase", "kind", "dims", "powers", "reuse", "align", "winograd", "wide", "grouped", "launches",
    "transposed", "casts",
)  # fmt: skip


def _joined(kernels: Sequence[Kernels]) -> Kernels:
    """One table; what belongs to operations and layers is that of the first and must not be used."""
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(k, name) for k in kernels]) for name in _PER_KERNEL
    }
    return replace(kernels[0], **arrays)


def _columns(rates: Sequence[Roof], index: IntArray) -> Roof:
    """A roof whose fields are arrays with one value per kernel."""
    names = [field.name for field in fields(Roof)]
    columns: dict[str, Any] = {
        name: np.array([getattr(rate, name) for rate in rates])[index] for name in names
    }
    return Roof(**columns)
