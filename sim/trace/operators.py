"""Operators of a model's forward pass with their shapes, as PyTorch records them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_NAN = float("nan")

CONVOLUTION = frozenset(
    f"aten::{n}" for n in ("conv2d", "convolution", "_convolution", "cudnn_convolution", "miopen_convolution")
)
PRODUCT = frozenset(f"aten::{n}" for n in ("linear", "addmm", "mm", "bmm", "baddbmm", "matmul"))
ATTENTION = frozenset(
    f"aten::{n}"
    for n in (
        "scaled_dot_product_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
    )
)
NORM = frozenset(
    f"aten::{n}" for n in ("batch_norm", "layer_norm", "group_norm", "native_layer_norm", "rms_norm")
)
EMBEDDING = frozenset(f"aten::{n}" for n in ("embedding", "embedding_bag"))
POOL = frozenset(
    f"aten::{n}"
    for n in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "mean", "max_pool2d_with_indices")
)
ELEMENTWISE = frozenset(
    f"aten::{n}"
    for n in (
        "relu", "relu_", "gelu", "silu", "tanh", "sigmoid", "dropout", "softmax", "_softmax", "log_softmax",
        "add", "add_", "mul", "mul_", "sub", "div", "div_", "cat", "hardswish", "leaky_relu", "pow", "rsqrt",
    )
)  # fmt: skip
KNOWN = CONVOLUTION | PRODUCT | ATTENTION | NORM | EMBEDDING | POOL | ELEMENTWISE


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the forward pass.

    Attributes
    ----------
    inputs : tuple of tuple of int
        Shapes of its tensor arguments in order; () for scalars and absent ones.
    output : tuple of int or None
        Shape of its first result where the trace says it.
    dtype : str
        Word of the first tensor's element type.
    storages : tuple of int
        Storage of each input where the trace says it (0: unknown): equal ones are the same memory.
    segment : int
        Backward passes begun before it within its step: more than one value means accumulated gradients.
    start, end : float
        Seconds of the host on the rank's clock; NaN where not measured.
    thread : int
        Host thread, -1 where unknown.
    """

    name: str
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...] | None
    dtype: str
    storages: tuple[int, ...] = ()
    segment: int = 0
    start: float = _NAN
    end: float = _NAN
    thread: int = -1


def shape(value: Any) -> tuple[int, ...]:
    """A tensor's shape; () for anything else."""
    if isinstance(value, list) and value and all(isinstance(n, int) and 0 <= n < 2**40 for n in value):
        return tuple(value)
    return ()


def shapes(values: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes of a list of arguments; a list of tensors gives one shape each."""
    found: list[tuple[int, ...]] = []
    for value in values if isinstance(values, list) else []:
        if isinstance(value, list) and value and isinstance(value[0], list):
            found += [shape(inner) for inner in value]
        else:
            found.append(shape(value))
    return tuple(found)


def storages(values: Any) -> tuple[int, ...]:
    """Storage numbers of arguments that are ``[tensor, storage, offset, elements, width, device]``."""
    found = []
    for value in values if isinstance(values, list) else []:
        known = isinstance(value, list) and len(value) == 6 and isinstance(value[1], int)
        found.append(value[1] if known and 0 < value[1] < 2**62 else 0)
    return tuple(found)


def device_storages(values: Any) -> tuple[int, ...]:
    """Storages of all tensors on devices in a list of arguments, however nested."""
    found: dict[int, None] = {}
    stack = list(values) if isinstance(values, list) else []
    while stack:
        value = stack.pop()
        if not isinstance(value, list):
            continue
        if len(value) == 6 and isinstance(value[5], str):
            if isinstance(value[1], int) and 0 < value[1] < 2**62 and not value[5].startswith("cpu"):
                found[value[1]] = None
        else:
            stack.extend(value)
    return tuple(found)


def element_word(types: Any) -> str:
    """Element type of the first tensor argument, e.g. ``float`` of ``Tensor(float)``."""
    for word in types if isinstance(types, list) else []:
        if isinstance(word, str) and word and word not in ("Scalar", "None"):
            return word.rsplit("(", 1)[-1].rstrip(")]")
    return ""
