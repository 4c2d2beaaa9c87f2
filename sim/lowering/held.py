"""Fully connected layers held by parts across data parallel ranks (taxonomy D4, activation exchange).

Each of n ranks keeps an n-th of a layer's columns and computes them for everybody's samples: inputs are
gathered before its forward, the gradients of the inputs summed and scattered behind its backward, and those
of the columns are complete where they are (Krizhevsky, One weird trick, 2014, arXiv:1404.5997; Wu et al.,
Deep Image, 2015, arXiv:1501.02876).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from sim.spec import Layer, Strategy, Workload
from sim.spec.layer import Gemm


def held_layers(workload: Workload, strategy: Strategy, *, ranks: int, samples: float) -> frozenset[int]:
    """Layers that are held by parts.

    Parameters
    ----------
    workload : Workload
    strategy : Strategy
        Its ``activation_exchange``; ``cheaper`` compares what a rank sends in a step: inputs and their
        gradients, 2 (n - 1) samples x columns, against 2 (n - 1) / n parameters of an all-reduce.
    ranks : int
        Data parallel ranks n.
    samples : float
        Samples of one rank in a step.
    """
    choice = strategy.activation_exchange
    if choice == "never" or ranks < 2:
        return frozenset()
    found = []
    for index, layer in enumerate(workload.layers):
        op = layer.fully_connected
        if op is None or op.n < ranks:
            continue
        if choice == "always" or samples * op.rows * op.k * ranks < layer.parameters:
            found.append(index)
    return frozenset(found)


def divided(workload: Workload, held: AbstractSet[int], ranks: int) -> Workload:
    """The workload as one rank sees it: of held layers some columns, for the samples of all ranks."""
    if not held:
        return workload
    layers = tuple(
        _part(layer, ranks) if index in held else layer for index, layer in enumerate(workload.layers)
    )
    return workload.model_copy(update={"layers": layers})


def _part(layer: Layer, ranks: int) -> Layer:
    ops = tuple(
        op.model_copy(update={"rows": op.rows * ranks, "n": op.n / ranks}) if isinstance(op, Gemm) else op
        for op in layer.ops
    )
    return layer.model_copy(
        update={
            "ops": ops,
            "parameters": layer.parameters / ranks,
            "tensors": tuple(size / ranks for size in layer.tensors),
            # Everybody's inputs are kept for the gradients of the columns.
            "stored_elements": layer.stored_elements + (ranks - 1) * layer.input_elements,
        }
    )
