"""The tables of the taxonomy agree with the fields of the specs and with the collective algorithms."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from sim.errors import InputError
from sim.fabric.exchange import MAX_SUMMED_RANKS
from sim.lowering.context import CONTEXTS
from sim.lowering.fusion import FUSIONS
from sim.lowering.scheduling import ORDERED_STREAMS
from sim.models.collectives import plan
from sim.spec.fabric import FabricKind
from sim.spec.strategy import (
    CollectiveAlgorithm,
    Compression,
    ContextParallelism,
    Fusion,
    LogicalTopology,
    Negotiation,
    Recompute,
    Schedule,
    StatePlacement,
    Strategy,
    Synchronization,
    TransferOrder,
    UpdateSemantics,
)
from sim.spec.workload import DType, Workload
from sim.taxonomy import DIMENSIONS, dimension
from sim.taxonomy.dimensions import table
from sim.taxonomy.ruleset import collective


@pytest.mark.parametrize(
    ("dimension_id", "field", "values"),
    [
        ("D2", "strategy.state", StatePlacement),
        ("D3", "strategy.synchronization", Synchronization),
        ("D4", "strategy.update", UpdateSemantics),
        ("D5", "strategy.topology", LogicalTopology),
        ("D6", "strategy.collective", CollectiveAlgorithm),
        ("D7", "strategy.compression", Compression),
        ("D8", "strategy.fusion", Fusion),
        ("D8", "strategy.order", TransferOrder),
        ("D8", "strategy.negotiation", Negotiation),
        ("D11", "cluster.fabric.kind", FabricKind),
        ("D12", "strategy.schedule", Schedule),
        ("D13", "strategy.recompute", Recompute),
        ("D14", "workload.dtype", DType),
    ],
)
def test_a_dimension_lists_every_value_of_its_field(dimension_id: str, field: str, values: Any) -> None:
    listed = {v.settings[field] for v in dimension(dimension_id).values if field in v.settings}
    assert sorted(listed) == sorted(get_args(values))


def test_settings_and_fields_exist() -> None:
    for each in DIMENSIONS:
        for value in each.values:
            for name, setting in value.settings.items():
                owner, field = name.split(".", 1)
                if owner == "strategy":
                    Strategy.model_validate({field: setting})
            for name in value.fields:
                owner, field = name.split(".", 1)
                if owner in ("strategy", "workload"):
                    assert field in (Strategy if owner == "strategy" else Workload).model_fields


def test_transfer_scheduling_names_its_implementations() -> None:
    assert {"size", *FUSIONS} == set(get_args(Fusion))
    assert set(ORDERED_STREAMS) == set(get_args(TransferOrder))


def test_every_strategy_field_belongs_to_a_dimension() -> None:
    known = {
        name for each in DIMENSIONS for value in each.values for name in (*value.settings, *value.fields)
    }
    missing = {f"strategy.{name}" for name in Strategy.model_fields} - known
    assert not missing


def test_context_parallelism_names_its_lowerings() -> None:
    field = "strategy.context_parallelism"
    listed = [v.settings[field] for v in dimension("D1").values if field in v.settings]
    # Images are shared by rows without any attention: sim.lowering.halo.
    assert sorted(listed) == sorted(get_args(ContextParallelism)) == sorted([*CONTEXTS, "spatial"])


@pytest.mark.parametrize("algorithm", [name for name in get_args(CollectiveAlgorithm) if name != "auto"])
@pytest.mark.parametrize("ranks", [6, 8])
def test_sharding_rule_matches_the_algorithms_that_scatter(algorithm: str, ranks: int) -> None:
    refused = algorithm in collective.TREES_AND_BUTTERFLIES or (
        algorithm == "halving_doubling" and ranks == 6
    )
    try:
        for operation in ("reduce_scatter", "all_gather"):
            plan(operation, algorithm, ranks)
    except InputError:
        assert refused
    else:
        assert not refused


def test_limit_of_direct_exchanges_matches() -> None:
    assert collective.MAX_DIRECT_RANKS == MAX_SUMMED_RANKS


def test_dimensions_are_found_by_id_and_name() -> None:
    assert dimension("D3") is dimension("Synchronization") is dimension("synchronization")
    with pytest.raises(InputError, match="Did you mean synchronization"):
        dimension("syncronization")
    assert len({each.id for each in DIMENSIONS}) == len(DIMENSIONS)
    assert len(table()) == sum(len(each.values) for each in DIMENSIONS)
