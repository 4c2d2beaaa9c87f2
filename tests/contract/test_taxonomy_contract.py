"""The tables of the taxonomy agree with the fields of the specs and with the collective algorithms."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

import sim
import sim.architecture
import sim.spec
from sim.errors import InputError
from sim.fabric.exchange import MAX_SUMMED_RANKS
from sim.lowering.context import CONTEXTS
from sim.lowering.fusion import FUSIONS
from sim.lowering.scheduling import ORDERED_STREAMS
from sim.lowering.state.base import StateLowering
from sim.lowering.state.peer_graph import FIXED_GRAPHS
from sim.lowering.state.server_rules import SERVER_RULES
from sim.models.collectives import ALGORITHMS, GRID_ALGORITHMS, IN_NETWORK_ALGORITHMS, PAIRS, plan
from sim.spec.base import Spec
from sim.spec.fabric import FabricKind
from sim.spec.names import names_of
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
from sim.taxonomy.collectives import COLLECTIVES
from sim.taxonomy.dimensions import table
from sim.taxonomy.ruleset import collective
from sim.taxonomy.schedules import SCHEDULES
from sim.taxonomy.states import STATES
from sim.taxonomy.synchronizations import SYNCHRONIZATIONS
from sim.taxonomy.topologies import GRAPHS, TOPOLOGIES
from sim.taxonomy.updates import UPDATES
from sim.wire.aggregators import AGGREGATORS
from sim.wire.compressors import COMPRESSORS


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
    assert sorted(listed) == sorted(names_of(values))


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
    assert {"size", *FUSIONS} == set(names_of(Fusion))
    assert set(ORDERED_STREAMS) == set(names_of(TransferOrder))


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
    assert sorted(listed) == sorted(names_of(ContextParallelism)) == sorted([*CONTEXTS, "spatial"])


@pytest.mark.parametrize("algorithm", [name for name in names_of(CollectiveAlgorithm) if name != "auto"])
@pytest.mark.parametrize("ranks", [6, 8])
def test_sharding_rule_matches_the_algorithms_that_scatter(algorithm: str, ranks: int) -> None:
    facts = COLLECTIVES[algorithm]
    refused = not facts.scatters or (facts.power_of_two and ranks == 6)
    try:
        for operation in ("reduce_scatter", "all_gather"):
            plan(operation, algorithm, ranks)
    except InputError:
        assert refused
    else:
        assert not refused


def test_families_are_the_same_in_the_catalogue_and_where_they_are_built() -> None:
    """What a strategy may name is what is built: nothing else has to list it."""
    assert set(COLLECTIVES) <= set(ALGORITHMS)
    assert {name for op, name in PAIRS if op == "all_reduce"} == {*COLLECTIVES, *IN_NETWORK_ALGORITHMS}
    for name, facts in COLLECTIVES.items():
        assert facts.grid == (name in GRID_ALGORITHMS)
    of_replicas = {name for name, facts in SYNCHRONIZATIONS.items() if facts.lowering}
    assert set(SERVER_RULES) | of_replicas == set(SYNCHRONIZATIONS)
    assert {name for name, facts in GRAPHS.items() if not facts.drawn} == set(FIXED_GRAPHS)
    for name, rule in SERVER_RULES.items():
        assert rule.drops == SYNCHRONIZATIONS[name].drops
        assert (rule.updates == "collected") != SYNCHRONIZATIONS[name].barrier_free


def test_entries_name_lowerings_that_exist() -> None:
    catalogues: tuple[Mapping[str, Any], ...] = (STATES, SYNCHRONIZATIONS, UPDATES, TOPOLOGIES)
    named = {
        place
        for catalogue in catalogues
        for facts in catalogue.values()
        for place in (facts.lowering, getattr(facts, "server_lowering", ""))
        if place
    }
    assert len(named) > 5
    for place in named:
        assert issubclass(pkgutil.resolve_name(place), StateLowering), place


@pytest.mark.parametrize(
    ("catalogue", "field", "like", "fields"),
    [
        (STATES, "state", "zero2", {}),
        (STATES, "state", "ps_dedicated", {"num_servers": 2}),
        (UPDATES, "update", "outer_optimizer", {"synchronization": "local", "local_steps": 3}),
        (UPDATES, "update", "push_sum", {"topology": "graph", "graph": "exponential"}),
        (TOPOLOGIES, "topology", "tree", {"state": "ps_dedicated", "group_size": 2}),
        (TOPOLOGIES, "topology", "full_mesh", {"update": "gradient_sum"}),
    ],
)
def test_an_entry_is_all_that_a_new_member_needs(
    monkeypatch: pytest.MonkeyPatch, catalogue: Any, field: str, like: str, fields: dict[str, Any]
) -> None:
    """A copy of an entry under another name is valid where the first is, and plays as it does."""
    cluster = sim.cluster("single-gpu", num_hosts=4)
    monkeypatch.setitem(catalogue, "newcomer", catalogue[like])
    first = sim.run("alexnet", cluster, Strategy(**fields, **{field: like}), fidelity="analytic")
    second = sim.run("alexnet", cluster, Strategy(**fields, **{field: "newcomer"}), fidelity="analytic")
    assert first.status == second.status == "ok", second.message
    assert second.step_time_s == pytest.approx(first.step_time_s)


def test_unknown_members_are_refused_with_the_names_there_are() -> None:
    for field, members in (
        ("schedule", SCHEDULES),
        ("compression", COMPRESSORS),
        ("in_network", AGGREGATORS),
        ("state", STATES),
        ("update", UPDATES),
        ("topology", TOPOLOGIES),
        ("graph", GRAPHS),
    ):
        name = next(iter(members))
        with pytest.raises(ValidationError, match=f"must be one of .*{name}.* Got '{name}x'. Try {name}"):
            Strategy.model_validate({field: f"{name}x"})
        with pytest.raises(ValidationError, match="must be one of"):
            Strategy.model_validate({field: 3})
        schema = Strategy.model_json_schema()["properties"][field]
        assert set(schema.get("enum") or schema["anyOf"][0]["enum"]) >= set(members)


def test_limit_of_direct_exchanges_matches() -> None:
    assert collective.MAX_DIRECT_RANKS == MAX_SUMMED_RANKS


def test_dimensions_are_found_by_id_and_name() -> None:
    assert dimension("D3") is dimension("Synchronization") is dimension("synchronization")
    with pytest.raises(InputError, match="Did you mean synchronization"):
        dimension("syncronization")
    assert len({each.id for each in DIMENSIONS}) == len(DIMENSIONS)
    assert len(table()) == sum(len(each.values) for each in DIMENSIONS)


def specs(base: type[Spec] = Spec) -> set[type[Spec]]:
    return {each for child in base.__subclasses__() for each in (child, *specs(child))}


def test_every_field_of_every_description_says_what_it_is() -> None:
    for package in (sim.spec, sim.architecture):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    missing = {
        f"{each.__name__}.{name}"
        for each in specs()
        if each.__module__.startswith("sim.")
        for name, info in each.model_fields.items()
        if not info.description
    }
    assert not missing
