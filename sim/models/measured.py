"""Layers with measured times: the measurement on its own device, the ratio of modelled times elsewhere.

time = measured * modelled(device, dtype, batch, sharding) / modelled(as measured), phase by phase, and at
least what the host needs to issue the layer's kernels. Where nothing changes the measurement comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sim.spec.device import Device
from sim.spec.layer import Layer

if TYPE_CHECKING:
    from sim.models.compute import LayerCosts

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Measurement:
    """Device and precision in which layers were measured."""

    device: Device
    dtype: str


def replace_measured(
    costs: LayerCosts, layers: Sequence[Layer], now: FloatArray, reference: FloatArray, micro_batch: float
) -> LayerCosts:
    """Costs in which measured layers take their measured, scaled times.

    Parameters
    ----------
    costs : LayerCosts
        Modelled costs; those of layers without ``measured`` are kept.
    layers : sequence of Layer
    now, reference : float[3, L]
        Modelled device seconds of the three phases (forward, input gradients, weight gradients) as they run
        now, and as they ran when they were measured.
    micro_batch : float
        Samples now.
    """
    rows = np.array([i for i, layer in enumerate(layers) if layer.measured is not None], np.intp)
    times = [layer.measured for layer in layers if layer.measured is not None]
    batch = np.array([time.batch for time in times])
    parts = _shares(reference[:, rows])
    measured = np.array([[t.forward_s for t in times], *[[t.backward_s for t in times]] * 2]) * parts
    floor = np.array([[t.forward_host_s for t in times], *[[t.backward_host_s for t in times]] * 2]) * parts
    plain = np.broadcast_to(micro_batch / batch, measured.shape)
    known = reference[:, rows] > 0
    ratio = np.where(known, now[:, rows] / np.where(known, reference[:, rows], 1.0), plain)
    found = np.maximum(measured * ratio, floor)
    columns = [costs.forward_s, costs.backward_input_s, costs.backward_weight_s]
    again = [costs.recompute_selective_s.copy(), costs.recompute_alternate_s.copy(), costs.unneeded_s.copy()]
    modelled = np.maximum(costs.forward_s[rows], 1e-30)
    for part in again:
        part[rows] *= np.minimum(found[0] / modelled, found[0] / np.maximum(part[rows], 1e-30))
    filled = []
    for column, values in zip(columns, found, strict=True):
        fresh = column.copy()
        fresh[rows] = values
        filled.append(fresh)
    result = replace(
        costs,
        forward_s=filled[0],
        backward_input_s=filled[1],
        backward_weight_s=filled[2],
        recompute_selective_s=again[0],
        recompute_alternate_s=again[1],
        unneeded_s=again[2],
    )
    for array in vars(result).values():
        array.flags.writeable = False
    return result


def _shares(reference: FloatArray) -> FloatArray:
    """Part of the measured forward (all) and backward time (by the model) that each phase takes."""
    backward = reference[1] + reference[2]
    known = backward > 0
    to_input = np.where(known, reference[1] / np.where(known, backward, 1.0), 1.0)
    return np.stack([np.ones(reference.shape[1]), to_input, 1.0 - to_input])
