"""Time of a kernel on a device: a roofline whose compute roof knows about tiles, waves and short k.

A matrix product is cut into tiles of ``tile_m x tile_n`` outputs, one per multiprocessor at a time. A wave of
tiles costs ``2 * tile_m * tile_n * (k + k0)`` FLOPs at the multiprocessor's share of the attainable peak; k0
stands for the fixed time of filling and draining the pipeline (tile and wave quantisation: NVIDIA, "Matrix
multiplication background user's guide"). The library is assumed to choose the fastest of a few tile shapes
and of splits of k, which cost traffic for partial sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sim.models.kernels import CONVOLUTION, FLASH, MATRIX, MEASURED, MEMORY, Kernels
from sim.spec.calibration import Calibration
from sim.spec.device import Device
from sim.spec.workload import DTYPE_BYTES, kept_bytes

FloatArray = npt.NDArray[np.float64]

TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32))
SPLITS = (1, 2, 4, 8, 16, 32, 64)
TILE_INTENSITY = 16.0
"""A tile spends tile_m * tile_n on products and (tile_m + tile_n) * this on loading its operands."""
PARTIAL_SUM_BYTES = 8.0
"""A partial sum of a split k is written and read back in fp32."""
FLASH_ROWS = 128
"""Query rows per thread block of fused attention."""
VECTOR_UNIT_RATIO = 2.5
"""A type whose peak exceeds fp32's by less than this runs on the vector units."""

LAYOUT_PASSES = 2.0
"""A transposition reads a tensor and writes it: NVIDIA, "Convolutional layers user's guide", section on
tensor layouts in memory."""

_REFERENCE_TILE = 1 + TILE_INTENSITY * (1 / TILES[0][0] + 1 / TILES[0][1])


@dataclass(frozen=True)
class Roof:
    """What a device attains for one compute dtype.

    Attributes
    ----------
    matrix_flops, wide_flops, convolution_flops, attention_flops : float
        Attainable FLOP/s of matrix products, of those kept in 16 bits by 8-bit training (the vocabulary
        projection), of convolutions and of fused attention.
    bandwidth : float
        Attainable bytes/s of device memory.
    element_traffic : float
        Bytes the framework's element-wise kernels move, relative to those of the layer description.
    winograd_gain : float
        Direct FLOPs per FLOP really done where Winograd or FFT convolution applies.
    saturation_k : float
        Pipeline filling and draining of the largest tile, in units of k.
    latency, issue_time, collective_issue_time : float
        Seconds a kernel adds on the device, and seconds the host needs to launch it, or a collective.
    exposed_launches : float
        Share of the host's launch time that the device does not hide.
    input_bytes, element_bytes : float
        Bytes of an operand of a product, and of every other activation element.
    multiprocessors : int
    matrix_unit : bool
        Whether products run on tensor cores (or a systolic array).
    """

    matrix_flops: float
    wide_flops: float
    convolution_flops: float
    attention_flops: float
    bandwidth: float
    element_traffic: float
    winograd_gain: float
    saturation_k: float
    latency: float
    issue_time: float
    collective_issue_time: float
    exposed_launches: float
    input_bytes: float
    element_bytes: float
    multiprocessors: int
    matrix_unit: bool


@lru_cache(maxsize=512)
def roof(device: Device, dtype: str, calibration: Calibration) -> Roof:
    """Collect the attainable rates of ``device`` for ``dtype`` from the calibration."""

    def value(name: str) -> float:
        return calibration.value("device", device.name, name)

    clock = value("sustained_clock") if calibration.has("device", device.name, "sustained_clock") else 1.0
    peak = device.peak(dtype)
    fp32 = device.peak_flops.get("fp32")
    matrix_unit = fp32 is None or peak > VECTOR_UNIT_RATIO * fp32
    narrow = DTYPE_BYTES[dtype] <= 1
    unit = "tf32" if dtype == "tf32" else "matrix"
    convolution = unit if matrix_unit else "vector"
    product = {0.5: "four_bit", 1: "eight_bit"}.get(DTYPE_BYTES[dtype], convolution)
    wide_peak = device.peak("bf16") if narrow and "bf16" in device.peak_flops else peak
    issue_time = calibration.value("framework", "default", "kernel_issue_time")
    matrix_flops = clock * peak * value(f"gemm_efficiency_{product}")
    return Roof(
        matrix_flops=matrix_flops,
        wide_flops=clock * wide_peak * value("gemm_efficiency_matrix") if narrow else matrix_flops,
        convolution_flops=clock * peak * value(f"conv_efficiency_{convolution}"),
        attention_flops=clock
        * wide_peak
        * value("attention_efficiency")
        * calibration.value("framework", "default", "attention_speed"),
        bandwidth=device.memory_bandwidth * value("memory_efficiency"),
        element_traffic=calibration.value("framework", "default", "elementwise_traffic"),
        winograd_gain=1.0 if matrix_unit else value("winograd_gain"),
        saturation_k=value("tile_fill_time")
        * peak
        / (device.num_multiprocessors * 2 * TILES[0][0] * TILES[0][1]),
        latency=value("kernel_latency"),
        issue_time=issue_time,
        collective_issue_time=calibration.value("framework", "default", "collective_issue_time")
        if calibration.has("framework", "default", "collective_issue_time")
        else issue_time,
        exposed_launches=calibration.value("framework", "default", "exposed_launches")
        if calibration.has("framework", "default", "exposed_launches")
        else 0.0,
        input_bytes=DTYPE_BYTES[dtype],
        element_bytes=kept_bytes(dtype),
        multiprocessors=device.num_multiprocessors,
        matrix_unit=matrix_unit,
    )


def kernel_times(kernels: Kernels, dims: FloatArray, roof: Roof) -> FloatArray:
    """Return the device time of every kernel, in seconds, launch latency included (measured times have it).

    Parameters
    ----------
    kernels : Kernels
        Compiled chain.
    dims : float[K, 4]
        (m, n, k, batch) of every kernel on one device, from ``kernels.scaled``.
    roof : Roof
        Attainable rates; the fields may be arrays with a value per kernel.
    """
    times = np.zeros(len(dims))
    kind = kernels.kind
    memory, flash = kind == MEMORY, kind == FLASH
    product = (kind == MATRIX) | (kind == CONVOLUTION)
    own = _of(roof, memory)
    times[memory] = dims[memory, 0] * own.element_bytes * own.element_traffic / own.bandwidth
    if flash.any():
        times[flash] = _flash_times(dims[flash], kernels.reuse[flash, 0], _of(roof, flash))
    if product.any():
        times[product] = _product_times(kernels, product, dims[product], _of(roof, product))
    times += roof.latency
    measured = kind == MEASURED
    times[measured] = dims[measured, 0]
    return times


def _of(roof: Roof, mask: npt.NDArray[np.bool_]) -> Roof:
    """The rates of some kernels, where there is one per kernel."""
    if np.ndim(roof.bandwidth) == 0:
        return roof
    return Roof(**{name: value[mask] for name, value in vars(roof).items()})


def _column(value: object) -> FloatArray:
    """One value, or one per kernel, against candidates in the second axis."""
    return np.reshape(np.asarray(value, float), (-1, 1))


def _flash_times(dims: FloatArray, elements: FloatArray, roof: Roof) -> FloatArray:
    m, work, _, batch = dims.T
    blocks = np.ceil(m / FLASH_ROWS) * batch
    waves = np.ceil(blocks / roof.multiprocessors - 1e-9)
    # FLOPs per query row are 2 * work; a short sequence does not fill the block.
    compute = waves * roof.multiprocessors * np.minimum(m, FLASH_ROWS) * 2 * work / roof.attention_flops
    traffic = m * batch * elements * roof.element_bytes / roof.bandwidth
    return np.asarray(np.maximum(compute, traffic))


def _product_times(
    kernels: Kernels, product: npt.NDArray[np.bool_], dims: FloatArray, roof: Roof
) -> FloatArray:
    reuse = kernels.reuse[product]
    m, n, k, batch = (column[:, None] for column in dims.T)
    wide = kernels.wide[product]
    left, right = batch[:, 0] * (m * k)[:, 0] * reuse[:, 0], batch[:, 0] * (k * n)[:, 0] * reuse[:, 1]
    operands = left + right
    results = batch[:, 0] * (m * n)[:, 0] * reuse[:, 2]
    input_bytes = np.where(wide, roof.element_bytes, roof.input_bytes)
    traffic = operands * input_bytes + results * roof.element_bytes
    align = np.where(_column(roof.matrix_unit) > 0, kernels.align[product], 1.0)
    m, n, k = m * align[:, :1], n * align[:, 1:2], k * align[:, 2:3]
    matrix = np.where(wide, roof.wide_flops, roof.matrix_flops)
    peak = np.where(kernels.kind[product] == CONVOLUTION, roof.convolution_flops, matrix)
    peak = peak * roof.winograd_gain ** kernels.winograd[product]
    tile_m, tile_n, split, load = _configurations()
    tiles = np.ceil(m / tile_m - 1e-9) * np.ceil(n / tile_n - 1e-9) * np.maximum(batch, 1.0) * split
    processors = _column(roof.multiprocessors)
    waves = np.ceil(tiles / processors - 1e-9)
    depth = np.ceil(k / split - 1e-9) + _column(roof.saturation_k)
    compute = waves * processors * 2 * tile_m * tile_n * load * depth / peak[:, None]
    partial = np.where(split > 1, split, 0.0) * m * n * batch * PARTIAL_SUM_BYTES
    times = np.maximum(compute, (traffic[:, None] + partial) / _column(roof.bandwidth))
    casts = kernels.casts[product]
    quantised = (left * casts[:, 0] + right * casts[:, 1]) * ~(wide | (np.asarray(roof.input_bytes) > 1))
    layout = np.where(kernels.transposed[product], LAYOUT_PASSES, 0.0) * np.asarray(roof.matrix_unit)
    other = quantised + layout * (operands + results) * roof.element_bytes
    return np.asarray(times.min(axis=1) + other / roof.bandwidth)


@lru_cache(maxsize=1)
def _configurations() -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Tile height and width, split of k and relative cost per FLOP of every candidate, each float[C]."""
    grid = [(*tile, split) for tile in TILES for split in SPLITS]
    tile_m, tile_n, split = np.array(grid, dtype=float).T
    load = (1 + TILE_INTENSITY * (1 / tile_m + 1 / tile_n)) / _REFERENCE_TILE
    return tile_m, tile_n, split, load
