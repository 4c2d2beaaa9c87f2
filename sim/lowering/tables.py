"""Embedding tables of which a step touches few rows (taxonomy D2, mixed placement).

With sparse gradients a rank sends the rows that its samples looked up: to everybody, or to servers that hold
the tables, while all other gradients are all-reduced (Parallax: Kim et al., EuroSys 2019). Rows are looked up
with equal chances; skewed ones would be fewer.
"""

from __future__ import annotations

import math

from sim.spec import Layer, Workload

INDEX_BYTES = 8.0
"""A row travels with its number (int64, as frameworks have it)."""


def touched_rows(layer: Layer, samples: float) -> float:
    """Distinct rows that ``samples`` samples look up in the tables of a layer, on average.

    Of R rows, L look-ups with equal chances name R (1 - (1 - 1/R)^L).
    """
    return sum(
        -rows * math.expm1(samples * lookups * math.log1p(-1 / rows)) for rows, _, lookups in layer.tables
    )


def touched_elements(layer: Layer, samples: float) -> float:
    """Elements of those rows."""
    return touched_rows(layer, samples) * row_width(layer)


def row_width(layer: Layer) -> float:
    """Elements of a row of the layer's tables."""
    return layer.tables[0][1]


def table_elements(layer: Layer) -> float:
    """Elements of the tables of a layer."""
    return sum(rows * width for rows, width, _ in layer.tables)


def without_tables(workload: Workload, tables: frozenset[int], samples: float) -> Workload:
    """The workload as one rank sees it whose tables live on servers.

    Parameters
    ----------
    workload : Workload
    tables : frozenset of int
        Layers whose tables are elsewhere.
    samples : float
        Samples of one rank in a step; it keeps the rows that they look up, and their gradients.
    """
    if not tables:
        return workload
    layers = tuple(
        _served(layer, samples) if index in tables else layer for index, layer in enumerate(workload.layers)
    )
    return workload.model_copy(update={"layers": layers})


def _served(layer: Layer, samples: float) -> Layer:
    return layer.model_copy(
        update={
            "parameters": layer.parameters - table_elements(layer),
            "tensor_parameters": 0.0,
            "tensors": other_tensors(layer),
            "stored_elements": layer.stored_elements + 2 * touched_elements(layer, samples) / samples,
        }
    )


def other_tensors(layer: Layer) -> tuple[float, ...]:
    """Sizes of the tensors of a layer that are no tables."""
    sizes = [rows * width for rows, width, _ in layer.tables]
    kept = []
    for size in layer.tensors:
        if size in sizes:
            sizes.remove(size)
        else:
            kept.append(size)
    return tuple(kept)
