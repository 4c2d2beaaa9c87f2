"""A recorder of image layers: shapes go in and come out, :class:`Layer` records accumulate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import Field

from sim.errors import InputError
from sim.spec.base import Spec
from sim.spec.layer import Convolution, Gemm, Layer, MemoryBound, Op

Size = int | tuple[int, ...]
"""One number for all dimensions, or one of each: depth (of volumes), rows, columns."""

INDEX_ELEMENTS = 2.0
"""Max-pooling indices are 8 bytes, two fp32 elements, per output (PyTorch stores int64)."""


@dataclass(frozen=True)
class Image:
    """Shape of one sample's activation; a volume has a depth."""

    channels: int
    height: int
    width: int
    depth: int = 1

    @property
    def pixels(self) -> int:
        """Positions of one channel."""
        return self.depth * self.height * self.width

    @property
    def elements(self) -> int:
        """Elements of one sample."""
        return self.channels * self.pixels

    def like(self, channels: int) -> Image:
        """As many pixels, other channels."""
        return replace(self, channels=channels)

    def taps(self, value: Size, flat: int) -> tuple[int, int, int]:
        """Depth, rows and columns of a kernel, stride (``flat`` in depth: 1) or padding (0)."""
        if isinstance(value, tuple):
            return (*(flat,) * (3 - len(value)), *value)  # type: ignore[return-value]
        return (value if self.depth > 1 else flat), value, value

    def through(self, channels: int, kernel: Size, stride: Size, padding: Size) -> Image:
        """Output of a kernel that slides over the image."""
        sizes = (self.depth, self.height, self.width)
        taps, steps, pads = self.taps(kernel, 1), self.taps(stride, 1), self.taps(padding, 0)
        depth, height, width = map(_output_size, sizes, taps, steps, pads)
        return Image(channels, height, width, depth)


def _output_size(size: int, kernel: int, stride: int, padding: int) -> int:
    result = (size + 2 * padding - kernel) // stride + 1
    if result < 1:
        raise InputError("workload.image_size", "be large enough for every kernel of the network")
    return result


class Trace:
    """Builds a layer chain while a network's forward pass is written down.

    Parameters
    ----------
    fused_norm : bool
        Count batch norm, residual addition and ReLU as one kernel each way.
    channels_last : bool
        Layout of the tensors, see :class:`~sim.spec.layer.Convolution`.
    """

    def __init__(self, fused_norm: bool = False, channels_last: bool = True) -> None:
        self.fused_norm, self.channels_last = fused_norm, channels_last
        self.block = 0
        self._records: list[Layer] = []

    def layers(self) -> tuple[Layer, ...]:
        """Return the recorded chain, first layer first."""
        return tuple(self._records)

    def next_block(self) -> None:
        """Allow a pipeline cut here."""
        self.block += 1

    def convolution(
        self,
        image: Image,
        channels: int,
        kernel: Size,
        stride: Size = 1,
        padding: Size = 0,
        *,
        bias: bool = False,
        norm: bool = True,
        relu: bool = True,
        residual: bool = False,
        groups: int = 1,
        shared: bool = False,
        head: bool = False,
    ) -> Image:
        """Record a convolution with what follows it (batch norm, residual addition, ReLU).

        ``shared``: its weights are those of an earlier one and are not counted again.
        """
        out = image.through(channels, kernel, stride, padding)
        depth, rows, columns = image.taps(kernel, 1)
        convolution = Convolution(
            in_channels=image.channels,
            out_channels=channels,
            kernel=(depth * rows, columns),
            out_height=out.depth * out.height,
            out_width=out.width,
            stride=max(image.taps(stride, 1)),
            dimensions=3 if image.depth > 1 else 2,
            groups=groups,
            channels_last=self.channels_last,
        )
        weight = image.channels * channels * depth * rows * columns // groups
        tensors = () if shared else (float(weight),) + (float(channels),) * (bias + 2 * norm)
        # Kept for backward: the convolution's output (input of the norm) and the ReLU's output (input of the
        # next layer, written in place over the norm's output); the network's input once.
        copies = (1 if norm else 0) + (1 if relu or not norm else 0)
        stored = copies * out.elements + (0 if self._records else image.elements)
        self.record(
            "head" if head else "conv",
            (convolution, *self._elementwise(out.elements, norm, relu, residual)),
            tensors,
            image,
            out,
            stored,
        )
        return out

    def transposed(
        self, image: Image, channels: int, kernel: int = 2, stride: int = 2, *, bias: bool = False,
        norm: bool = False, relu: bool = False,
    ) -> Image:  # fmt: skip
        """Record a transposed convolution: a product per input pixel, whose taps are added to the output."""
        deep = image.depth > 1
        taps = kernel ** (3 if deep else 2)
        out = Image(
            channels, stride * image.height, stride * image.width, stride * image.depth if deep else 1
        )
        convolution = Convolution(
            in_channels=image.channels, out_channels=channels * taps, kernel=(1, 1),
            out_height=image.depth * image.height, out_width=image.width, channels_last=self.channels_last,
        )  # fmt: skip
        tensors = (float(image.channels * channels * taps),) + (float(channels),) * (bias + 2 * norm)
        stored = (norm + (relu or not norm)) * out.elements
        ops = (convolution, *self._elementwise(out.elements, norm, relu, False))
        self.record("conv", ops, tensors, image, out, stored)
        return out

    def norm(self, image: Image, *, relu: bool = True) -> Image:
        """Record a norm in front of what reads it (pre-activation), with its ReLU."""
        ops = self._elementwise(image.elements, True, relu, False)
        self.record("norm", tuple(ops), (float(image.channels),) * 2, image, image, image.elements)
        return image

    def upsample(self, image: Image, factor: int) -> Image:
        """Record an interpolation to ``factor`` times the rows and columns."""
        deep = factor if image.depth > 1 else 1
        out = Image(image.channels, factor * image.height, factor * image.width, deep * image.depth)
        traffic = float(image.elements + out.elements)
        self.record(
            "upsample", (MemoryBound(elements=traffic, backward_elements=traffic),), (), image, out,
            out.elements,
        )  # fmt: skip
        return out

    def _elementwise(self, elements: float, norm: bool, relu: bool, residual: bool) -> list[Op]:
        if self.fused_norm and norm:
            extra = 1.0 if residual else 0.0
            return [
                MemoryBound(
                    elements=(3 + extra) * elements, backward_elements=(5 + relu + 2 * extra) * elements
                )
            ]
        ops: list[Op] = []
        if norm:
            ops.append(MemoryBound(elements=3 * elements, backward_elements=5 * elements))
        if residual:
            ops.append(MemoryBound(elements=3 * elements, backward_elements=3 * elements))
        if relu:
            ops.append(MemoryBound(elements=2 * elements, backward_elements=3 * elements))
        return ops

    def squeeze_excite(self, image: Image, reduced: int) -> Image:
        """Record squeeze and excitation: pool, two products, scale the channels (Hu et al. 2018)."""
        matrix = float(image.channels * reduced)
        tensors = (matrix, float(reduced), matrix, float(image.channels))
        ops: tuple[Op, ...] = (
            MemoryBound(elements=float(image.elements), backward_elements=float(image.elements)),
            Gemm(rows=1, n=reduced, k=image.channels),
            Gemm(rows=1, n=image.channels, k=reduced),
            MemoryBound(elements=2.0 * image.elements, backward_elements=4.0 * image.elements),
        )
        self.record("squeeze_excite", ops, tensors, image, image, image.elements)
        return image

    def pool(
        self, image: Image, kernel: Size, stride: Size, padding: Size = 0, *, average: bool = False
    ) -> Image:
        """Record a max (or average) pooling."""
        out = image.through(image.channels, kernel, stride, padding)
        index = 0.0 if average else INDEX_ELEMENTS * out.elements
        op = MemoryBound(
            elements=image.elements + out.elements + index,
            backward_elements=image.elements + out.elements + index,
        )
        self.record("pool", (op,), (), image, out, out.elements + index)
        return out

    def adaptive_pool(self, image: Image, size: int) -> Image:
        """Record an average pooling to ``size x size``; nothing if the image already has that size."""
        out = Image(image.channels, size, size)
        if (image.height, image.width) != (size, size):
            traffic = float(image.elements + out.elements)
            self.record(
                "pool",
                (MemoryBound(elements=traffic, backward_elements=traffic),),
                (),
                image,
                out,
                out.elements,
            )
        return out

    def concatenate(self, *branches: Image, ends: bool = True) -> Image:
        """Record the copy that joins branches along the channels; ends the block unless told otherwise."""
        out = branches[0].like(sum(branch.channels for branch in branches))
        traffic = 2.0 * out.elements
        self.record(
            "concat", (MemoryBound(elements=traffic, backward_elements=traffic),), (), out, out, out.elements
        )
        if ends:
            self.next_block()
        return out

    def linear(
        self,
        features: int,
        outputs: int,
        *,
        relu: bool = False,
        dropout: bool = False,
        head: bool = False,
        side_branch_of: Image | None = None,
        rows: int = 1,
    ) -> int:
        """Record a fully connected layer with bias on ``rows`` vectors of a sample; returns ``outputs``."""
        ops: list[Op] = [Gemm(rows=rows, n=outputs, k=features)]
        passes = 2 * relu + 2 * dropout
        if passes:
            ops.append(MemoryBound(elements=float(passes * outputs * rows)))
        tensors = (float(features * outputs), float(outputs))
        source = Image(features, rows, 1)
        # The chain continues with what the side branch was taken from.
        out = side_branch_of or Image(outputs, rows, 1)
        stored = (1 + dropout) * outputs * rows
        self.record("head" if head else "linear", tuple(ops), tensors, source, out, stored)
        return outputs

    def passes(self, kind: str, elements: float) -> None:
        """Record element-wise work that moves so many elements, without parameters."""
        here = Image(1, 1, max(1, int(elements)))
        self.record(kind, (MemoryBound(elements=elements),), (), here, here, 0.0)

    def record(
        self,
        kind: str,
        ops: tuple[Op, ...],
        tensors: tuple[float, ...],
        source: Image,
        out: Image,
        stored: float,
    ) -> None:
        """Record a layer by what it computes, its parameter tensors, its shapes and what it keeps."""
        self._records.append(
            Layer(
                name=f"{kind}{len(self._records)}",
                kind=kind,
                block=self.block,
                ops=ops,
                parameters=sum(tensors),
                tensors=tensors,
                input_elements=source.elements,
                output_elements=out.elements,
                stored_elements=stored,
            )
        )


class TraceShape(Spec):
    """What shapes of recorded networks have in common: how their kernels and tensors are."""

    fused_norm: bool = Field(False, description="batch norm, residual addition and ReLU in one kernel")
    channels_last: bool = Field(True, description="layout of the tensors is that of tensor cores (NHWC)")

    def trace(self) -> Trace:
        """A recorder for a network of this shape."""
        return Trace(self.fused_norm, self.channels_last)
