"""A phase of a collective: steps whose flows are proportional."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Phase:
    """Consecutive steps of a collective whose flows are proportional.

    Attributes
    ----------
    src, dst : int[f]
        Sender and receiver of each flow, local ranks 0 .. n-1.
    relative : float[f]
        Bytes of each flow relative to the elementary flow; at most 1.
    fraction : float
        Bytes of an elementary flow over all steps of the phase, as a fraction of ``size_bytes``.
    steps : int
        Latencies that add up (the longest dependent chain of messages).
    dimension : int
        Dimension of a hierarchical algorithm (0 = innermost); phases of one dimension share a stream.
    operation : str
        What the phase does: ``reduce_scatter``, ``all_gather``, ``all_reduce`` ...
    everyone : int
        Not 0: every one of so many ranks sends one elementary flow to every other. These flows are too many
        to be written down; ``src`` and ``dst`` are empty, and loads are counted
        (:mod:`sim.fabric.exchange`).
    """

    src: IntArray
    dst: IntArray
    relative: FloatArray
    fraction: float
    steps: int
    dimension: int = 0
    operation: str = ""
    everyone: int = 0

    @property
    def num_elementary(self) -> float:
        """Elementary flows, each times its relative bytes."""
        return float(self.everyone * (self.everyone - 1)) if self.everyone else float(self.relative.sum())


Plan = tuple[Phase, ...]


def equal_flows(
    src: IntArray, dst: IntArray, fraction: float, steps: int, dimension: int = 0, operation: str = ""
) -> Phase:
    """A phase of flows with equal bytes."""
    return Phase(src, dst, np.ones(len(src)), fraction, steps, dimension, operation)
