"""Kineto traces and execution traces of the same ranks, put together: shapes, storages and kernel times.

The two number their operators differently, and an execution trace often holds one iteration of many. Where
the record function ids agree they decide; otherwise the order of the operators' names does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sim.trace.model import RankTrace, Trace
from sim.trace.operators import Operator
from sim.trace.readers.kineto_operators import typical_step
from sim.trace.tensors import partner


def join_execution_traces(trace: Trace) -> Trace:
    """Give the operators of Kineto ranks what the execution trace of the same rank knows.

    Parameters
    ----------
    trace : Trace
        Read with ``host=True``.

    Returns
    -------
    Trace
        The same ranks. A Kineto rank with an execution trace has its shapes and storages where the names
        agree; ``et_operators_joined`` and ``et_operators_unmatched`` count them.
    """
    timed = [rank for rank in trace.ranks if rank.format == "kineto"]
    graphs = [rank for rank in trace.ranks if rank.format == "pytorch-et"]
    for rank in timed:
        graph = partner(rank, timed, graphs)
        if graph is not None and graph.operators and rank.operators:
            _join(rank, graph)
    return trace


def _join(rank: RankTrace, graph: RankTrace) -> None:
    steps = []
    joined = unmatched = 0
    for operators in rank.operator_steps:
        match = aligned(operators, graph.operators)
        joined += len(match)
        unmatched += len(operators) - len(match)
        steps.append(
            tuple(
                _with_shapes(operator, graph.operators[match[i]]) if i in match else operator
                for i, operator in enumerate(operators)
            )
        )
    rank.operator_steps = tuple(steps)
    rank.operators = typical_step(steps)
    rank.optimizer = rank.optimizer or graph.optimizer
    rank.issues.add("et_operators_joined", joined)
    rank.issues.add("et_operators_unmatched", unmatched)


def _with_shapes(timed: Operator, known: Operator) -> Operator:
    """The timed operator with the other's shapes, results, types and storages."""
    return replace(
        timed,
        inputs=known.inputs or timed.inputs,
        output=known.output or timed.output,
        dtype=known.dtype or timed.dtype,
        storages=known.storages,
    )


def aligned(timed: Sequence[Operator], known: Sequence[Operator]) -> dict[int, int]:
    """Index of the known operator for each timed one: the longest common run of names, then in order.

    Operators whose shapes are stated on both sides and differ are not joined.
    """
    if not timed or not known:
        return {}
    names, other = [o.name for o in timed], [o.name for o in known]
    if names == other:
        pairs = {i: i for i in range(len(names))}
    else:
        from difflib import SequenceMatcher

        blocks = SequenceMatcher(None, names, other, autojunk=False).get_matching_blocks()
        pairs = {block.a + k: block.b + k for block in blocks for k in range(block.size)}
    return {
        i: j
        for i, j in pairs.items()
        if not (timed[i].inputs and known[j].inputs) or _agree(timed[i].inputs, known[j].inputs)
    }


def _agree(first: Sequence[tuple[int, ...]], second: Sequence[tuple[int, ...]]) -> bool:
    """Whether two lists of shapes are the same but for scalars, which the formats write differently."""
    return [s for s in first if s] == [s for s in second if s]
