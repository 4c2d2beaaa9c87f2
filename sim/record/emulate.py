"""Compute replaced by sleeps: real parameters, autograd, buckets, hooks and gloo, but no arithmetic.

The forward of a unit sleeps for its measured time, its backward too, and then hands out gradients of the
right shapes. Many ranks then fit on few cores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sim.record.clock import sleep_until
from sim.validate.recordings.trace import LayerTrace


class _Sleep(torch.autograd.Function):
    """Forward and backward of a unit."""

    @staticmethod
    def forward(ctx: Any, x: Any, unit: Any, *parameters: Any) -> Any:
        """Sleep, and return an activation of the unit's shape."""
        end = time.perf_counter() + unit.forward_s
        ctx.unit, ctx.shapes, ctx.inside = unit, [p.shape for p in parameters], x.shape
        y = x.new_empty(unit.shape) if unit.shape else x.clone()
        sleep_until(end)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Sleep, and return gradients for input and parameters."""
        end = time.perf_counter() + ctx.unit.backward_s
        given = gradients[0]
        found = [torch.full(shape, 1e-6) for shape in ctx.shapes]
        if given.shape != ctx.inside:
            given = given.new_empty(ctx.inside)
        sleep_until(end)
        return (given, None, *found)


class SleepingUnit(nn.Module):
    """A module that takes as long as one was measured to take.

    Parameters
    ----------
    forward_s, backward_s : float
        Seconds.
    shapes : sequence of shapes
        Of its parameters.
    shape : tuple of int
        Of its output; that of its input if empty.
    """

    def __init__(
        self,
        forward_s: float,
        backward_s: float,
        shapes: Sequence[tuple[int, ...]],
        shape: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.forward_s, self.backward_s, self.shape = forward_s, backward_s, shape
        self.held = nn.ParameterList([nn.Parameter(torch.zeros(each)) for each in shapes])

    def forward(self, x: Any) -> Any:
        """Sleep for the forward time."""
        return _Sleep.apply(x, self, *self.held)


def sleeping_model(
    trace: LayerTrace, *, scale: float = 1.0, shape: tuple[int, ...] = (), merge_s: float = 0.0
) -> list[SleepingUnit]:
    """Units of a trace; neighbours are joined until forward and backward take ``merge_s`` seconds."""
    groups: list[list[Any]] = []
    for unit in trace.units:
        last = sum(u.forward_s + u.backward_s for u in groups[-1]) * scale if groups else 0.0
        if groups and last < merge_s:
            groups[-1].append(unit)
        else:
            groups.append([unit])
    return [
        SleepingUnit(
            sum(u.forward_s for u in group) * scale,
            sum(u.backward_s for u in group) * scale,
            [each for u in group for each in u.shapes],
            shape,
        )
        for group in groups
    ]
