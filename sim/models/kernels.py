"""Operations to kernels: which matrix products and memory passes a layer chain runs, forward and backward.

A chain is compiled once into columns (:class:`Kernels`). Every dimension of every kernel is a base value
times powers of the micro-batch and of the degrees of tensor and expert parallelism, so one compiled
chain serves every strategy. Operations that occur several times (transformer blocks) are compiled once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim.models.checkpointing import alternate_shares, unneeded_shares
from sim.spec.layer import Attention, Convolution, Embedding, Gemm, Layer, Measured, MemoryBound, Op

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = 0, 1, 2
MATRIX, CONVOLUTION, FLASH, MEMORY, MEASURED = 0, 1, 2, 3, 4

MICRO_BATCH, TENSOR, SEQUENCE, EXPERT, FOLD, LOAD = 0, 1, 2, 3, 4, 5
NO_POWER = (0, 0, 0, 0, 0, 0)
Powers = tuple[int, int, int, int, int, int]

CHANNEL_ALIGNMENT = 8
"""Tensor-core convolutions pad the input channels to 16 bytes (cuDNN developer guide, tensor cores)."""

DEPTHWISE_PASSES = 7.0
"""Depthwise kernels of cuDNN stream at about a seventh of the memory's bandwidth,
as the EfficientNet runs of the calibration split imply (3, 5, 7, 9: 24, 16, 12.5, 17 % error)."""

FLASH_BACKWARD = 2.5
"""Backward of fused attention: five products against two (Dao 2023, arXiv:2307.08691, section 3.1)."""


FLASH_FACTORS = {1: 2.0, 2: 1.0, 3: 1 / 1.6}
"""Time of FlashAttention's versions over that of the second: Dao 2023, arXiv:2307.08691, abstract; Shah et
al. 2024, arXiv:2407.08608, section 4.1 (1.5 to 2.0 forward, 1.5 to 1.75 backward, cuDNN as fast, on H100)."""

CASTS = {FORWARD: (4.0, 0.0), BACKWARD_INPUT: (4.0, 0.0), BACKWARD_WEIGHT: (0.0, 0.0)}
"""Bytes moved to quantise an element of both operands of a product, read in 16 bits (2) and written with its
transpose (1 + 1) once; weights are cast once a step, which is not counted (Transformer Engine, delayed
scaling and MXFP8)."""
SCALED_CAST = 5.0
"""The same where each product's operands are looked through for their largest magnitude (2) and cast (2 + 1):
dynamic scaling of torchao's ``Float8Linear``, which keeps inputs in 16 bits for the backward pass."""

LONG_KERNEL = 9
"""Taps of a one-dimensional kernel from which a transform pays."""


class Kernel(NamedTuple):
    """One kernel: a batched product (m x k) by (k x n), a memory pass over m elements, or m measured seconds.

    ``powers[d]`` are the exponents of (micro-batch, tp, tp under sequence parallelism, ep, expert tp / tp,
    load of an expert over the mean) of dimension d in (m, n, k, batch). ``reuse`` scales the traffic of the
    two inputs and the output, in elements. A ``wide`` product stays in 16 bits when training in 8 or fewer;
    the operands of others are quantised, moving ``casts`` bytes per element of each. A ``grouped`` product is
    launched once per local expert. Tensors of a ``transposed`` one have another layout than tensor cores
    take.
    """

    phase: int
    kind: int
    dims: tuple[float, float, float, float]
    powers: tuple[Powers, ...]
    reuse: tuple[float, float, float] = (1.0, 1.0, 1.0)
    align: tuple[float, float, float] = (1.0, 1.0, 1.0)
    winograd: float = 0.0
    wide: bool = False
    grouped: bool = False
    launches: float = 1
    transposed: bool = False
    casts: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Kernels:
    """A compiled chain.

    Attributes
    ----------
    owner, phase, kind : int[K]
        Unique operation, phase and kind of every kernel.
    dims, powers, reuse, align : float[K, 4], int[K, 4, 6], float[K, 3], float[K, 3]
        See :class:`Kernel`.
    winograd : float[K]
        Power of the gain that Winograd or FFT has for a convolution: 1 for square kernels of 3 or more with
        stride 1, half for long kernels in one dimension, whose F(2, 3) saves 3/2 where F(2x2, 3x3) saves 9/4.
    wide, grouped : bool[K]
        Products that stay in 16 bits; products launched once per local expert.
    launches : float[K]
        Operators that the host issues for it.
    transposed : bool[K]
        Convolutions whose tensors are transposed before and after where they run on tensor cores.
    casts : float[K, 2]
        Bytes moved to quantise an element of each operand.
    entry_layer, entry_op : int[E]
        Which unique operation each layer runs.
    attention, selective : bool[U]
        Unique operations that are attention cores; those that selective recomputation runs again (unfused).
    alternate : float[E]
        Share of each entry's forward that the ``alternate`` policy runs again.
    unneeded : float[E]
        Share of each entry's forward that its block's backward does not need.
    flops : float[U]
        Forward floating-point operations per sample, two per multiply-add, unsharded.
    body : bool[L]
        Layers between the embedding and the head: a model has many of them, and they decide whether its
        launches bound it.
    num_layers : int
    """

    owner: IntArray
    phase: IntArray
    kind: IntArray
    dims: FloatArray
    powers: npt.NDArray[np.int64]
    reuse: FloatArray
    align: FloatArray
    winograd: FloatArray
    wide: npt.NDArray[np.bool_]
    grouped: npt.NDArray[np.bool_]
    launches: FloatArray
    transposed: npt.NDArray[np.bool_]
    casts: FloatArray
    entry_layer: IntArray
    entry_op: IntArray
    attention: npt.NDArray[np.bool_]
    selective: npt.NDArray[np.bool_]
    alternate: FloatArray
    unneeded: FloatArray
    flops: FloatArray
    body: npt.NDArray[np.bool_]
    num_layers: int

    @property
    def num_operations(self) -> int:
        """Unique operations."""
        return len(self.flops)

    def scaled(self, factors: tuple[float, ...]) -> FloatArray:
        """Return dimensions for the given factors, in the order of :class:`Kernel`; 1 where left out."""
        result = self.dims.copy()
        for axis, factor in enumerate(factors):
            if factor != 1.0:
                result *= float(factor) ** self.powers[:, :, axis]
        return result


@lru_cache(maxsize=256)
def compile_chain(layers: tuple[Layer, ...], first: bool) -> Kernels:
    """Compile a chain; with ``first`` its first layer needs no gradient of its input.

    Neither does any layer before the first that is trained, where some are frozen.
    """
    index: dict[tuple[Op, int, bool, bool], int] = {}
    untouched = frozen_prefix(layers) if first else 0
    kernels: list[Kernel] = []
    owner: list[int] = []
    entries: list[tuple[int, int]] = []
    for position, layer in enumerate(layers):
        for op in layer.ops:
            key = (op, layer.num_experts, first and position == 0, position < untouched)
            if key not in index:
                index[key] = len(index)
                found = [
                    kernel
                    for kernel in operation_kernels(*key[:3])
                    if kernel.phase == FORWARD
                    or not (key[3] or (kernel.phase == BACKWARD_WEIGHT and getattr(op, "frozen", False)))
                ]
                kernels += found
                owner += [index[key]] * len(found)
            entries.append((position, index[key]))
    operations = [key[0] for key in index]
    columns = list(zip(*kernels, strict=True)) if kernels else [()] * len(Kernel._fields)
    table = np.array(entries, dtype=np.intp).reshape(-1, 2)
    return Kernels(
        owner=np.array(owner, dtype=np.intp),
        phase=np.array(columns[0], dtype=np.intp),
        kind=np.array(columns[1], dtype=np.intp),
        dims=np.array(columns[2], dtype=float).reshape(-1, 4),
        powers=np.array(columns[3], dtype=np.int64).reshape(-1, 4, 6),
        reuse=np.array(columns[4], dtype=float).reshape(-1, 3),
        align=np.array(columns[5], dtype=float).reshape(-1, 3),
        winograd=np.array(columns[6], dtype=float),
        wide=np.array(columns[7], dtype=bool),
        grouped=np.array(columns[8], dtype=bool),
        launches=np.array(columns[9], dtype=float),
        transposed=np.array(columns[10], dtype=bool),
        casts=np.array(columns[11], dtype=float).reshape(-1, 2),
        entry_layer=table[:, 0],
        entry_op=table[:, 1],
        attention=np.array([isinstance(op, Attention) for op in operations], dtype=bool),
        selective=np.array([isinstance(op, Attention) and not op.flash for op in operations], dtype=bool),
        alternate=np.array([share for shares in alternate_shares(layers) for share in shares], dtype=float),
        unneeded=np.array([share for shares in unneeded_shares(layers) for share in shares], dtype=float),
        flops=np.array([operation_flops(op) for op in operations], dtype=float),
        body=np.array([layer.kind not in ("embedding", "head") for layer in layers], dtype=bool),
        num_layers=len(layers),
    )


def frozen_prefix(layers: Sequence[Layer]) -> int:
    """Layers in front of the first that is trained, in a chain of which some are frozen: no backward."""
    if not any(layer.frozen_parameters or layer.frozen_expert_parameters for layer in layers):
        return 0
    return next((at for at, layer in enumerate(layers) if layer.trains), len(layers))


def operation_flops(op: Op) -> float:
    """Forward FLOPs of one sample, two per multiply-add; causal attention counted full."""
    if isinstance(op, Gemm):
        return 2.0 * op.rows * op.n * op.k * op.batch
    if isinstance(op, Convolution):
        taps = op.kernel[0] * op.kernel[1] * op.in_channels / op.groups
        return 2.0 * op.out_height * op.out_width * op.out_channels * taps
    if isinstance(op, Attention):
        return 4.0 * op.query_length * op.key_length * op.head_dim * op.heads
    return 0.0


def operation_kernels(op: Op, num_experts: int, first: bool) -> Iterator[Kernel]:
    """Yield the kernels of one operation."""
    if isinstance(op, Gemm):
        yield from _gemm(op, num_experts, first)
    elif isinstance(op, Convolution):
        yield from _convolution(op, first)
    elif isinstance(op, Attention):
        yield from _flash(op) if op.flash else _attention(op)
    elif isinstance(op, MemoryBound):
        yield from _memory_bound(op, num_experts)
    elif isinstance(op, Measured):
        yield from _measured(op)
    else:
        yield from _embedding(op)


def _power(
    micro_batch: int = 0, tensor: int = 0, sequence: int = 0, expert: int = 0, fold: int = 0, load: int = 0
) -> Powers:
    return (micro_batch, tensor, sequence, expert, fold, load)


def _gemm(op: Gemm, num_experts: int, first: bool) -> Iterator[Kernel]:
    rows, batch = op.rows, op.batch
    row_power, batch_power = _power(micro_batch=1), NO_POWER
    if op.expert:
        # Balanced routing: each of the E / ep local experts gets its share of the rows of all ep ranks.
        experts = max(num_experts, 1)
        rows, batch = rows / experts, batch * experts
        row_power, batch_power = _power(micro_batch=1, expert=1, fold=1, load=1), _power(expert=-1)
    elif num_experts and op.split == "none":  # the router sees the tokens that its experts see
        row_power = _power(micro_batch=1, fold=1)
    shard = _power(tensor=-1, fold=-1 if op.expert else 0)
    n_power = shard if op.split in ("column", "heads", "vocabulary") else NO_POWER
    k_power = shard if op.split == "row" else NO_POWER
    wide = op.split == "vocabulary"

    def product(phase: int, m: float, n: float, k: float, *powers: Powers) -> Kernel:
        dims = (m, n, k, batch)
        powers = (*powers, batch_power)
        casts = (SCALED_CAST, SCALED_CAST) if op.dynamic_scaling else CASTS[phase]
        return Kernel(
            phase, MATRIX, dims, powers, wide=wide, grouped=op.expert, launches=op.launches, casts=casts
        )

    yield product(FORWARD, rows, op.n, op.k, row_power, n_power, k_power)
    if not first:
        yield product(BACKWARD_INPUT, rows, op.k, op.n, row_power, k_power, n_power)
    yield product(BACKWARD_WEIGHT, op.k, op.n, rows, k_power, n_power, row_power)


def _fast_dimensions(op: Convolution) -> float:
    """Half the dimensions in which the library has a fast algorithm for a convolution."""
    if op.stride != 1 or op.groups != 1:
        return 0.0
    short, long = sorted(op.kernel)
    return 1.0 if short == long >= 3 else 0.5 * (short == 1 and long >= LONG_KERNEL)


def _convolution(op: Convolution, first: bool) -> Iterator[Kernel]:
    """Implicit matrix product: pixels x taps by taps x channels (Chetlur et al. 2014, arXiv:1410.0759).

    A depthwise convolution has no product to speak of and runs at the speed of memory.
    """
    if op.groups == op.in_channels > 1:
        yield from _depthwise(op)
        return
    area = op.kernel[0] * op.kernel[1]
    pixels, taps = float(op.out_height * op.out_width), float(area * op.in_channels // op.groups)
    inputs, outputs = float(op.in_channels // op.groups), float(op.out_channels // op.groups)
    winograd = _fast_dimensions(op) if inputs >= CHANNEL_ALIGNMENT else 0.0
    # Elements of the input that are really read, against the pixels x taps of the virtual matrix.
    read = inputs * pixels * min(op.thinning, area) / (pixels * taps)
    padded = -(-inputs // CHANNEL_ALIGNMENT) * CHANNEL_ALIGNMENT / inputs if op.groups == 1 else 1.0
    per_sample = (_power(micro_batch=1), NO_POWER, NO_POWER, NO_POWER)
    yield Kernel(
        FORWARD,
        CONVOLUTION,
        (pixels, outputs, taps, op.groups),
        per_sample,
        (read, 1, 1),
        (1, 1, padded),
        winograd,
        transposed=not op.channels_last,
    )
    if not first:
        # Every input pixel receives area / thinning taps of every output channel.
        spread = outputs * area / op.thinning
        yield Kernel(
            BACKWARD_INPUT,
            CONVOLUTION,
            (pixels * op.thinning, inputs, spread, op.groups),
            per_sample,
            (1 / area, 1, 1),
            (1, 1, 1),
            winograd,
            transposed=not op.channels_last,
        )
    yield Kernel(
        BACKWARD_WEIGHT,
        CONVOLUTION,
        (taps, outputs, pixels, op.groups),
        (NO_POWER, NO_POWER, _power(micro_batch=1), NO_POWER),
        (read, 1, 1),
        (padded, 1, 1),
        winograd,
        transposed=not op.channels_last,
    )


def _depthwise(op: Convolution) -> Iterator[Kernel]:
    """Input read, output written; backward the same for the input's and for the weight's gradient."""
    pixels = float(op.out_height * op.out_width)
    moved = pixels * (op.out_channels + op.in_channels * min(op.thinning, op.kernel[0] * op.kernel[1]))
    for phase in (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT):
        yield _pass(phase, DEPTHWISE_PASSES * moved, _power(micro_batch=1))


def _attention(op: Attention) -> Iterator[Kernel]:
    """Separate kernels: scores, softmax, dropout, weighted values; and their gradients."""
    query, key, depth = float(op.query_length), float(op.key_length), float(op.head_dim)
    shared = op.kv_heads / op.heads
    heads = (NO_POWER, NO_POWER, NO_POWER, _power(micro_batch=1, tensor=-1))
    scores = op.heads * query * key

    def product(phase: int, m: float, n: float, k: float, reuse: tuple[float, float, float]) -> Kernel:
        return Kernel(phase, MATRIX, (m, n, k, op.heads), heads, reuse, wide=True)

    def passes(phase: int, count: float) -> Kernel:
        return _pass(phase, count * scores, _power(micro_batch=1, tensor=-1))

    yield product(FORWARD, query, key, depth, (1, shared, 1))
    yield passes(FORWARD, 2)
    if op.dropout:
        yield passes(FORWARD, 2.5)
    yield product(FORWARD, query, depth, key, (1, shared, 1))
    yield product(BACKWARD_INPUT, query, key, depth, (1, shared, 1))
    yield product(BACKWARD_INPUT, key, depth, query, (1, 1, shared))
    if op.dropout:
        yield passes(BACKWARD_INPUT, 2.5)
    yield passes(BACKWARD_INPUT, 3)
    yield product(BACKWARD_INPUT, query, depth, key, (1, shared, 1))
    yield product(BACKWARD_INPUT, key, depth, query, (1, 1, shared))


def _flash(op: Attention) -> Iterator[Kernel]:
    """One fused kernel each way; a causal one skips the masked half. n is the FLOPs of one query row / 2."""
    query, key = float(op.query_length), float(op.key_length)
    work = 2.0 * key * op.head_dim * (0.5 if op.causal else 1.0)
    work *= FLASH_FACTORS[op.flash_version]
    heads = (NO_POWER, NO_POWER, NO_POWER, _power(micro_batch=1, tensor=-1))
    elements = op.head_dim * (2 + 2 * op.kv_heads / op.heads * key / query)
    yield Kernel(FORWARD, FLASH, (query, work, 1, op.heads), heads, (elements, 0, 0))
    yield Kernel(
        BACKWARD_INPUT, FLASH, (query, FLASH_BACKWARD * work, 1, op.heads), heads, (2 * elements, 0, 0)
    )


def _memory_bound(op: MemoryBound, num_experts: int) -> Iterator[Kernel]:
    """What a layer of experts does to routed tokens grows with their number."""
    routed = num_experts > 0 and op.split != "sequence"
    power = _power(
        micro_batch=1,
        tensor=-1 if op.split == "tensor" else 0,
        sequence=-1 if op.split == "sequence" else 0,
        fold=1 if routed and op.split == "none" else 0,
        load=1 if routed else 0,
    )
    backward = 1.5 * op.elements if op.backward_elements is None else op.backward_elements
    if op.elements:
        yield _pass(FORWARD, op.elements, power, op.launches)
    if backward:
        yield _pass(BACKWARD_INPUT, backward, power, op.launches)


def _measured(op: Measured) -> Iterator[Kernel]:
    powers = (_power(micro_batch=1, tensor=-1), NO_POWER, NO_POWER, NO_POWER)
    for phase, seconds in ((FORWARD, op.forward_s), (BACKWARD_INPUT, op.backward_s)):
        if seconds:
            yield Kernel(phase, MEASURED, (seconds / op.batch, 1, 1, 1), powers)


def _embedding(op: Embedding) -> Iterator[Kernel]:
    """Rows are read and written; backward adds gradients into rows: read, read, write."""
    yield _pass(FORWARD, 2 * op.rows * op.width, _power(micro_batch=1))
    yield _pass(BACKWARD_WEIGHT, 3 * op.rows * op.width, _power(micro_batch=1))


def _pass(phase: int, elements: float, power: Powers, launches: float = 1) -> Kernel:
    powers = (power, NO_POWER, NO_POWER, NO_POWER)
    return Kernel(phase, MEMORY, (elements, 1, 1, 1), powers, (1, 0, 0), launches=launches)
