"""Tensor parallel exchanges beside the products they feed or follow."""

from __future__ import annotations

import pytest

from sim.analysis.breakdown import Breakdown, breakdown
from sim.analysis.timeline_from_run import timeline_from_run
from sim.catalog import Catalog
from sim.engine import play
from sim.graph.execution import Cause
from sim.lowering import lower
from sim.spec import Scenario, Strategy
from tests.unit.test_gradients import llama


def parts_of(scenario: Scenario) -> Breakdown:
    graph = lower(scenario)
    record = play(graph)
    return breakdown(graph, record, timeline_from_run(graph, record, window=record.window))


def job(catalog: Catalog, **fields: object) -> Scenario:
    return Scenario(
        workload=llama(sequence_length=2048, batch_per_device=8),
        cluster=catalog.cluster("dgx-h100").with_hosts(1),
        strategy=Strategy(tp=8, micro_batch_size=8, sequence_parallel=True, **fields),
        calibration=catalog.calibration(("default",)),
    )


def test_the_same_bytes_travel_and_less_of_them_shows(catalog: Catalog) -> None:
    plain, cut = job(catalog), job(catalog, overlap_tensor=True)
    sent = []
    for scenario in (plain, cut):
        graph = lower(scenario)
        sent.append(graph.total_bytes[graph.cause == Cause.TENSOR_COMM].sum())
    assert sent[1] == pytest.approx(sent[0])
    before, after = (parts_of(scenario) for scenario in (plain, cut))
    assert after.step_time_s < before.step_time_s
    assert after.parts["exposed_comm_s"] < 0.6 * before.parts["exposed_comm_s"]


def test_pieces_do_not_wait_for_the_product_they_run_beside(catalog: Catalog) -> None:
    """A layer's product waits for the first piece of its gather, the rest runs beside it."""
    graph = lower(job(catalog, overlap_tensor=True))
    names = [graph.names[name] for name in graph.name.tolist()]
    gathers = [task for task, name in enumerate(names) if name == "block1.mlp.all_gather"]
    product = names.index("block1.mlp.forward")
    waits = set(graph.predecessors.row(product).tolist())
    first, rest = gathers[:2]
    assert first in waits
    assert rest not in waits
    assert graph.total_bytes[rest] == pytest.approx(7 * graph.total_bytes[first])
