"""Time that a device spends on a compressor's work.

Work is bytes of device memory and floating-point operations (:class:`sim.wire.compressor.Work`); it lasts as
long as the slower of the two, at the memory bandwidth a device attains and at its vector units' rate: thin
products and element-wise kernels do not use matrix units.
"""

from __future__ import annotations

from sim.models.roofline import roof
from sim.spec.calibration import Calibration
from sim.spec.device import Device
from sim.wire.compressor import Compressor, Options, Work
from sim.wire.tensors import Content


def work_seconds(work: Work, device: Device, calibration: Calibration) -> float:
    """Seconds of some work on a device."""
    if not work.traffic and not work.flops:
        return 0.0
    bandwidth = device.memory_bandwidth * calibration.value("device", device.name, "memory_efficiency")
    if not work.flops:
        return work.traffic / bandwidth
    return max(work.traffic / bandwidth, work.flops / roof(device, "fp32", calibration).matrix_flops)


def encode_seconds(
    compressor: Compressor,
    content: Content,
    element_bytes: float,
    options: Options,
    device: Device,
    calibration: Calibration,
) -> float:
    """Seconds to encode a bucket on a device; as measured where the calibration has the measurement."""
    if compressor.fitted and calibration.has("framework", "default", compressor.fitted):
        measured = calibration.value("framework", "default", compressor.fitted)
        return measured * content.elements * options.rank
    return work_seconds(compressor.encode(content, element_bytes, options), device, calibration)


def requantise_passes(algorithm: str, num_ranks: int) -> tuple[float, float]:
    """How often a rank decodes, and encodes, a buffer's worth while an algorithm sums codes hop by hop.

    Every reduce-scatter of partial sums, in one dimension or several, decodes and encodes (n - 1) / n of the
    buffer on each rank; an owner that gets its part from everybody directly encodes the sum once (Seide et
    al., Interspeech 2014). In a tree a rank is taken to sum the buffer of one child, as in
    a double binary tree (two halves); in recursive doubling the whole buffer comes at each step.

    Parameters
    ----------
    algorithm : str
        An all-reduce or reduce-scatter algorithm.
    num_ranks : int
        Ranks that sum.

    Returns
    -------
    decodes, encodes : float
    """
    share = (num_ranks - 1) / num_ranks
    if algorithm == "direct":
        return share, 1 / num_ranks
    if algorithm in ("tree", "binomial_tree", "kary_tree", "packed_trees"):
        return 1.0, 1.0
    if algorithm == "recursive_doubling":
        levels = float((num_ranks - 1).bit_length())
        return levels, levels
    return share, share
