"""Shapes of gradient tensors, as far as layers tell them.

Layers list the sizes of their tensors but no shapes; the operations of a layer do: a matrix product has an
``n x k`` weight, a convolution ``out_channels x (in_channels / groups * kernel)``, a table ``rows x width``.
A tensor of no operation's size is a vector (bias, norm) if it is no longer than the layer's matrices are wide
or high; any other tensor has an unknown shape and counts as one square matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from sim.spec.layer import Convolution, Embedding, Gemm, Layer


class Tensor(NamedTuple):
    """A parameter tensor as a matrix: ``rows`` outputs by ``cols`` inputs; a vector has one column.

    ``known`` tells a shape that was read from the layer from a square that was assumed.
    """

    rows: float
    cols: float = 1.0
    known: bool = True

    @property
    def elements(self) -> float:
        """Numbers in it."""
        return self.rows * self.cols

    @property
    def is_matrix(self) -> bool:
        """Whether it has more than one column and row."""
        return self.cols > 1 and self.rows > 1

    def split(self, share: float, *, by_cols: bool = False) -> Tensor:
        """The part of it that one tensor parallel rank holds."""
        return self._replace(cols=self.cols * share) if by_cols else self._replace(rows=self.rows * share)


@dataclass(frozen=True)
class Content:
    """What one bucket holds.

    Parameters
    ----------
    elements : float
        Numbers in all.
    tensors : tuple of Tensor
        Its tensors; those of unknown shape are pooled as one square matrix.
    """

    elements: float
    tensors: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, tensors: Iterable[Tensor], elements: float | None = None) -> Content:
        """Pool the tensors of unknown shape."""
        every = tuple(tensors)
        known = tuple(tensor for tensor in every if tensor.known)
        unknown = sum(tensor.elements for tensor in every if not tensor.known)
        total = sum(tensor.elements for tensor in every) if elements is None else elements
        return cls(total, (*known, square(unknown)) if unknown else known)


def square(elements: float) -> Tensor:
    """The matrix that stands for tensors of unknown shape."""
    return Tensor(math.sqrt(elements), math.sqrt(elements), known=False)


@lru_cache(maxsize=4096)
def layer_tensors(layer: Layer) -> tuple[tuple[Tensor, bool], ...]:
    """Shape of each tensor of a layer (``Layer.tensors``), and whether tensor parallelism cuts its columns.

    A layer that lists no tensors has one of all its parameters.
    """
    sizes = layer.tensors or tuple(s for s in (layer.parameters, layer.expert_parameters) if s)
    shapes = _shapes_of_operations(layer)
    widths = [op.width for op in layer.ops if isinstance(op, Embedding)]
    longest = max((max(rows, cols) for rows, cols, _ in shapes), default=max(widths, default=0.0))
    return tuple(_shape(size, shapes, widths, longest, layer.kind) for size in sizes)


def _shapes_of_operations(layer: Layer) -> list[tuple[float, float, bool]]:
    """(rows, columns, whether columns are split) of every weight that an operation multiplies by."""
    found: list[tuple[float, float, bool]] = []
    for op in layer.ops:
        if isinstance(op, Gemm):
            found.append((op.n, op.k, op.split == "row"))
        elif isinstance(op, Convolution):
            inputs = op.in_channels // op.groups * op.kernel[0] * op.kernel[1]
            found.append((float(op.out_channels), float(inputs), False))
    return found


def _shape(
    size: float, shapes: Sequence[tuple[float, float, bool]], widths: list[float], longest: float, kind: str
) -> tuple[Tensor, bool]:
    for rows, cols, by_cols in shapes:
        if abs(rows * cols - size) < 0.5:
            return Tensor(rows, cols), by_cols
    if size <= longest or kind == "norm":
        return Tensor(size), False
    for width in widths:
        if size % width == 0:
            return Tensor(size / width, width), False
    return square(size), False
