"""Gradients that switches add up (taxonomy D10): parts of a bucket's exchange, and their traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sim.lowering.buckets import Bucket
from sim.models.compression import work_seconds
from sim.models.in_network import aggregated, crosses
from sim.wire.aggregators import AGGREGATORS, INTEGER_BYTES, Aggregator
from sim.wire.compressor import Message, Work

if TYPE_CHECKING:
    from sim.lowering.plan import Plan

IntArray = npt.NDArray[np.int64]
SWITCHES = "switches"
"""Algorithm of an all-reduce by switches."""


@dataclass(frozen=True)
class Part:
    """One collective of a bucket's exchange.

    Attributes
    ----------
    operation, algorithm : str
        As in ``sim.models.collectives``.
    size : float
        Bytes in the meaning of nccl-tests.
    latency : float
        Seconds of decoding, adding and encoding on the way.
    """

    operation: str
    algorithm: str
    size: float
    latency: float = 0.0


def in_switches(plan: Plan, bucket: Bucket, message: Message) -> list[Part]:
    """How a message is summed: by switches, and the share that finds no slot among the ranks themselves.

    Workers convert to integers and back where switches know nothing else, inline as they do casts.
    """
    aggregator, strategy = AGGREGATORS[plan.strategy.in_network], plan.strategy
    size, seconds = message.size, 0.0
    if adds_integers(plan, aggregator):
        numbers = size / plan.gradient_bytes
        size = numbers * INTEGER_BYTES
        work = Work(2 * numbers * (plan.gradient_bytes + INTEGER_BYTES))
        seconds = max(work_seconds(work, device, plan.calibration) for device in plan.worker_devices)
    most = strategy.switch_max_message
    if most is not None and size > most:
        return [Part("all_reduce", "ring", message.size)]
    lost = strategy.switch_fallback
    parts = [Part("all_reduce", SWITCHES, size * (1 - lost), seconds)]
    return [*parts, Part("all_reduce", "ring", message.size * lost)] if lost else parts


def adds_sparse(plan: Plan) -> bool:
    """Whether switches sum rows of embedding tables, and no other gradients."""
    aggregator = AGGREGATORS.get(plan.strategy.in_network)
    return aggregator is not None and aggregator.sparse


def adds_integers(plan: Plan, aggregator: Aggregator) -> bool:
    """Whether gradients become integers on their way."""
    asked = plan.strategy.switch_numbers
    return asked == "int32" or (asked == "auto" and aggregator.integers)


def request_switches(plan: Plan, name: str, groups: IntArray) -> None:
    """Route all-reduces by switches; a worker has at most its slots' bytes on their way."""
    aggregator, ranks = AGGREGATORS[plan.strategy.in_network], groups.shape[1]
    if ranks < 2:
        return
    dims = plan.grid(groups, "in_network")
    dims = None if dims is None else (dims[0], ranks // dims[0])
    phases = aggregated(ranks, dims, steps=aggregator.steps, payload=aggregator.payload)
    slots = plan.strategy.switch_slots or aggregator.slots
    window = float("inf")
    if slots is not None:
        shards = 1 if dims is None else dims[0]
        share = slots / plan.strategy.switch_jobs
        window = share * aggregator.slot_bytes / aggregator.payload / shards
    windows = tuple(window if crosses(phase) else float("inf") for phase in phases)
    plan.request(name, groups, phases, algorithm="in_network", windows=windows)
