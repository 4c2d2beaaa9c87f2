"""Step time of a large run from a few small ones that differ in micro-batches, stages and layers.

Where a step is a steady pattern its time is multilinear: in the number of micro-batches (each adds the same
time once the pipeline is full), in the number of equal pipeline stages at a fixed ratio of micro-batches to
stages, and in the number of equal layers of a stage. Small runs at two values of each axis give the
coefficients; one more run, further out on every axis, tests that they hold. If it does not within
:data:`TOLERANCE`, the run is played whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sim.validate.runs_loader import Run

FloatArray = npt.NDArray[np.float64]

TOLERANCE = 0.005
"""Largest relative error of the test run."""
CLOSE = 0.001
"""The same of runs with the fewest micro-batches; above it larger ones are played."""

LARGEST_WHOLE = 4000
"""Largest run (blocks x micro-batches) played whole when the extrapolation's test fails."""

BLOCKS = ("transformer", "moe")
"""Generators whose blocks are all alike."""


@dataclass(frozen=True, order=True)
class Size:
    """What is changed: pipeline stages, micro-batches, layers of one model chunk, and chunks of a stage."""

    stages: int
    micro_batches: int
    depth: int
    chunks: int = 1


@dataclass(frozen=True)
class Axis:
    """One axis: two values to play, one to test with, and the one wanted."""

    low: float
    high: float
    test: float
    wanted: float

    @classmethod
    def fixed(cls, value: float) -> Axis:
        """An axis along which nothing is extrapolated."""
        return cls(value, value, value, value)

    @property
    def values(self) -> tuple[float, ...]:
        """Values to play."""
        return (self.low,) if self.low == self.high else (self.low, self.high)

    def weights(self, value: float) -> tuple[float, ...]:
        """Weights of the played values that give a linear function at ``value``."""
        if self.low == self.high:
            return (1.0,)
        share = (value - self.low) / (self.high - self.low)
        return (1.0 - share, share)


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step and of its parts, how many runs were played, and the error of the test."""

    seconds: FloatArray
    played: int
    error: float = 0.0


Axes = tuple[Axis, Axis, Axis, Axis]
Point = tuple[float, float, float, float]
MANY_CHUNKS = 6
"""Model chunks of a stage above which their number is extrapolated, too."""


def axes_of(run: Run, *, few: bool = False) -> Axes:
    """Stages, micro-batches per stage or micro-batches, layers per chunk, chunks per stage of a run.

    ``few``: as few micro-batches of an interleaved pipeline as show how it goes on.
    """
    stages, chunks = run.strategy.pp, run.strategy.virtual_stages
    blocks = int(run.params.get("num_layers", 0)) if run.generator in BLOCKS else 0
    blocks += run.ends if blocks else 0
    depth = blocks / (stages * chunks) if blocks else 0.0
    if stages == 1:
        layers = _axis(depth, 4, 6, 8) if blocks else Axis.fixed(depth)
        return Axis.fixed(1), _axis(run.micro_batches, 2, 3, 5), layers, Axis.fixed(chunks)
    layers = _axis(depth, 1, 2, 3) if blocks else Axis.fixed(depth)
    if not is_small(run):  # blocks that are alike add up; the test is of stages and micro-batches
        layers = replace(layers, test=layers.low)
    ranks = run.strategy.tp * run.strategy.cp * (run.strategy.dp or 1)
    per_host = run.cluster.devices_per_host[0]
    regular = ranks % per_host == 0 or per_host % ranks == 0 or run.cluster.size == 1
    pipeline = Axis.fixed(stages)
    if blocks and regular and (stages > 10 or (chunks > 1 and stages > 4)):
        pipeline = _axis(stages, 4, 8, 10) if chunks == 1 else _axis(stages, 2, 3, 4)
    if chunks > 1:
        several = _axis(chunks, 2, 3, 4) if blocks and chunks > MANY_CHUNKS else Axis.fixed(chunks)
        rounds = (1, 2, 3) if few else (2, 3, 4)
        return pipeline, _axis(run.micro_batches / stages, *rounds), layers, several
    # Micro-batches may leave a full pipeline in a rhythm of 2 or 4, so 8 lie between the values.
    first = pipeline.high + 2
    return pipeline, _axis(run.micro_batches, first, first + 8, first + 12), layers, Axis.fixed(chunks)


def _axis(wanted: float, low: float, high: float, test: float) -> Axis:
    """Extrapolate to ``wanted`` if that is beyond the test value or no whole number; else play it."""
    return Axis(low, high, test, wanted) if wanted > test or wanted % 1 else Axis.fixed(wanted)


def estimate(
    run: Run, play: Callable[[Size], FloatArray], known: Callable[[Size], bool] = lambda size: False
) -> Estimate | None:
    """Seconds of a run from small ones, or None if it is less work to play it whole.

    Parameters
    ----------
    run : Run
    play : callable
        Size -> seconds of the parts of its step.
    known : callable
        Size -> whether it was played before and costs nothing.
    """
    per_stage = run.strategy.virtual_stages > 1
    few = axes_of(run, few=True)
    if per_stage and few[0].low == few[0].high:  # where stages are extrapolated, too, the test is too far out
        found = _estimate(few, per_stage, play, known)
        if found is None or found.error <= CLOSE:
            return found
    return _estimate(axes_of(run), per_stage, play, known)


def is_small(run: Run) -> bool:
    """Whether the run is played whole if the test fails."""
    return int(run.params.get("num_layers", 1)) * run.micro_batches <= LARGEST_WHOLE


def _estimate(
    axes: Axes, per_stage: bool, play: Callable[[Size], FloatArray], known: Callable[[Size], bool]
) -> Estimate | None:
    corner_points, test, wanted = _points(axes)

    def size(point: Point) -> Size:
        s, m, d, chunks = point
        return Size(round(s), round(m * s if per_stage else m), round(d), round(chunks))

    work = sum(_work(point, per_stage) for point in {*corner_points, test} if not known(size(point)))
    if work >= _work(wanted, per_stage):
        return None

    def linear(point: Point) -> FloatArray:
        weights = [axis.weights(value) for axis, value in zip(axes, point, strict=True)]
        total = sum(
            float(np.prod(factor)) * corner
            for factor, corner in zip(itertools.product(*weights), corners, strict=True)
        )
        return np.asarray(total)

    corners = [play(size(point)) for point in corner_points]
    error = abs(float(linear(test)[0] / play(size(test))[0]) - 1.0)
    seconds = linear(wanted)
    parts = np.maximum(seconds[1:], 0.0)  # small ones may come out just below nothing
    seconds[1:] = parts * seconds[0] / parts.sum()
    return Estimate(seconds, len(corners) + 1, error)


def _points(axes: Axes) -> tuple[list[Point], Point, Point]:
    """Corners to play, the test and what is wanted."""
    corners: list[Point] = list(itertools.product(*(axis.values for axis in axes)))  # type: ignore[arg-type]
    test: Point = tuple(axis.test for axis in axes)  # type: ignore[assignment]
    wanted: Point = tuple(axis.wanted for axis in axes)  # type: ignore[assignment]
    return corners, test, wanted


def work_of(run: Run) -> float:
    """Tasks that a run takes, up to a factor: its small runs' or, where that is less, its own."""
    per_stage = run.strategy.virtual_stages > 1
    corners, test, wanted = _points(axes_of(run, few=True))
    return min(sum(_work(point, per_stage) for point in {*corners, test}), _work(wanted, per_stage))


def _work(point: Point, per_stage: bool) -> float:
    """Tasks of a run, up to a factor."""
    stages, micro, depth, chunks = point
    return stages * micro * (stages if per_stage else 1) * max(depth, 1) * chunks
