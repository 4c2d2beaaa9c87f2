"""How a bucket of gradients is exchanged without a server: one collective per message of its compressor.

Messages that can be summed on the way go through the strategy's collective. Others are gathered by everybody,
or each hop decodes, adds and encodes again; for sharded state every rank sends each owner its encoded part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sim.lowering.buckets import Bucket
from sim.lowering.switches import Part, adds_sparse, in_switches
from sim.models.compression import encode_seconds, requantise_passes, work_seconds
from sim.spec import Device
from sim.wire.compressor import Message

IntArray = npt.NDArray[np.int64]

if TYPE_CHECKING:
    from sim.lowering.plan import Plan


@dataclass(frozen=True)
class Exchange:
    """The exchange of buckets by one operation.

    Parameters
    ----------
    plan : Plan
    operation : str
        ``all_reduce`` or ``reduce_scatter``.
    algorithm : callable
        (bytes, expert) -> algorithm of that operation.
    """

    plan: Plan
    operation: str
    algorithm: Callable[[float, bool], str]

    def parts(self, bucket: Bucket) -> tuple[Part, ...]:
        """Collectives that exchange a bucket, one after another."""
        messages = self.plan.encoding.messages(bucket)
        if self.plan.strategy.in_network != "none" and not adds_sparse(self.plan):
            return tuple(part for message in messages for part in in_switches(self.plan, bucket, message))
        return tuple(self._part(bucket, message) for message in messages)

    def pieces(self, bucket: Bucket) -> int:
        """Encoded contributions that a rank decodes for each element it needs."""
        if self.plan.encoding.compressor.reducible or self.plan.strategy.compression_exchange == "requantize":
            return 1
        return self.ranks(bucket)

    def share(self, bucket: Bucket) -> float:
        """Part of a bucket that a rank decodes."""
        return 1 / self.ranks(bucket) if self._scatters else 1.0

    def groups(self, *, expert: bool) -> IntArray:
        """Groups of ranks that exchange buckets."""
        plan = self.plan
        return plan.shard_groups(expert=expert) if self._scatters else plan.gradient_groups(expert=expert)

    def ranks(self, bucket: Bucket) -> int:
        """Ranks of such a group."""
        plan, expert = self.plan, bucket.expert
        return plan.shard_size(expert=expert) if self._scatters else plan.gradient_span(expert=expert)[0]

    @property
    def _scatters(self) -> bool:
        return self.operation == "reduce_scatter"

    def _part(self, bucket: Bucket, message: Message) -> Part:
        mode, ranks = self.plan.strategy.compression_exchange, self.ranks(bucket)
        if message.shared and self._scatters:
            return Part("all_reduce", "ring", message.size)
        if mode == "requantize" and not message.shared:
            algorithm = self.algorithm(message.size, bucket.expert)
            return Part(self.operation, algorithm, message.size, self._hop_seconds(bucket, algorithm, ranks))
        if message.reducible:
            return Part(self.operation, self.algorithm(message.size, bucket.expert), message.size)
        if self._scatters:  # each part straight to its owner
            return Part(self.operation, "direct", message.size)
        chosen = self.plan.strategy.collective
        return Part("all_gather", "ring" if chosen == "auto" else chosen, message.size * ranks)

    def _hop_seconds(self, bucket: Bucket, algorithm: str, ranks: int) -> float:
        """Seconds that hops spend on one bucket; nothing where the network card does it at line rate."""
        plan = self.plan
        if plan.strategy.compression_engine == "nic":
            return 0.0
        content, compressor = plan.encoding.content(bucket), plan.encoding.compressor
        decodes, encodes = requantise_passes(algorithm, ranks)
        work = compressor.decode(content, plan.encoding.element_bytes, plan.encoding.options).times(decodes)
        work += compressor.encode(content, plan.encoding.element_bytes, plan.encoding.options).times(encodes)
        return max(work_seconds(work, device, plan.calibration) for device in plan.worker_devices)


def encoding_seconds(plan: Plan, bucket: Bucket, device: Device) -> float:
    """Seconds that a worker's device needs to encode a bucket."""
    if plan.strategy.compression_engine == "nic":
        return 0.0
    return encode_seconds(
        plan.encoding.compressor,
        plan.encoding.content(bucket),
        plan.encoding.element_bytes,
        plan.encoding.options,
        device,
        plan.calibration,
    )


def decoding_seconds(plan: Plan, bucket: Bucket, device: Device, pieces: int = 1) -> float:
    """Seconds that a device needs to decode ``pieces`` encoded buckets and add them up."""
    if plan.strategy.compression_engine == "nic":
        return 0.0
    work = plan.encoding.compressor.decode(
        plan.encoding.content(bucket), plan.encoding.element_bytes, plan.encoding.options, pieces
    )
    return work_seconds(work, device, plan.calibration)
