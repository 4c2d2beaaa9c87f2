"""What the gradients of a plan look like on the wire: compressor, shapes of tensors, messages of buckets."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from sim.lowering.buckets import Bucket
from sim.wire.compressor import Message
from sim.wire.compressors import compressor_of, options_of
from sim.wire.compressors.casts import Cast
from sim.wire.tensors import Content, Tensor, layer_tensors, square

if TYPE_CHECKING:
    from sim.lowering.plan import Plan


class Encoding:
    """Wire format of the gradients of a plan.

    Attributes
    ----------
    compressor : Compressor
    options : Options
        Its parameters.
    element_bytes : float
        Bytes of a gradient element before compression.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.compressor = compressor_of(plan.strategy)
        self.options = options_of(plan.strategy)
        self.element_bytes = plan.workload.gradient_bytes
        self._contents: dict[Bucket, Content] = {}
        self._shapes: dict[tuple[int, bool], tuple[Tensor, ...]] = {}

    @cached_property
    def gradient_bytes(self) -> float:
        """Bytes on the wire of a gradient element that no bucket holds: only casts apply to it."""
        compressor = self.compressor
        return compressor.width(self.element_bytes) if isinstance(compressor, Cast) else self.element_bytes

    def content(self, bucket: Bucket) -> Content:
        """What a bucket holds, with the shapes of its tensors on one rank; a piece has a part of each."""
        if bucket not in self._contents:
            tensors = (self.shapes(layer, bucket.expert)[at] for layer, at in bucket.tensors)
            if bucket.share < 1:
                tensors = (tensor.split(bucket.share) for tensor in tensors)
            self._contents[bucket] = Content.of(tensors, bucket.elements)
        return self._contents[bucket]

    def messages(self, bucket: Bucket) -> tuple[Message, ...]:
        """What one rank sends for a bucket, one collective after another."""
        return self.compressor.messages(self.content(bucket), self.element_bytes, self.options)

    @cached_property
    def bytes_per_update(self) -> float:
        """Bytes of one full set of gradients on the wire, all parts of the model together."""
        plan = self.plan
        if isinstance(self.compressor, Cast) and not self.compressor.scaled:
            return self._exchanged * self.gradient_bytes
        sent = sum(message.size for bucket in plan.all_buckets for message in self.messages(bucket))
        held = sum(bucket.elements for bucket in plan.all_buckets)
        return self._exchanged * sent / held if held else 0.0

    @property
    def _exchanged(self) -> float:
        """Parameters whose gradients are exchanged."""
        workload = self.plan.workload
        return workload.num_parameters - sum(workload.layers[layer].parameters for layer in self.plan.held)

    def shapes(self, layer: int, expert: bool) -> tuple[Tensor, ...]:
        """Shapes of ``Bucketing.local_tensors``, one each."""
        key = layer, expert
        if key not in self._shapes:
            plan, spec = self.plan, self.plan.workload.layers[layer]
            sizes = plan.bucketing.local_tensors(layer, expert)
            found = [each for each in layer_tensors(spec) if each[0].elements]
            found = found[plan.bucketing.own_tensors(layer, expert)]
            if len(found) != len(sizes):
                found = [(square(size), False) for size in sizes]
            self._shapes[key] = tuple(
                tensor.split(size / tensor.elements, by_cols=by_cols) if tensor.known else square(size)
                for size, (tensor, by_cols) in zip(sizes, found, strict=True)
            )
        return self._shapes[key]
