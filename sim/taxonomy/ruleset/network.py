"""Rules on switches that aggregate and on protocols (dimensions D9 and D10)."""

from __future__ import annotations

from sim.spec.fabric import SWITCH_TREES
from sim.taxonomy.context import Context
from sim.taxonomy.rule import Finding, Overrides, RuleSet
from sim.wire.aggregators import AGGREGATORS, Aggregator
from sim.wire.compressors import compressor_of
from sim.wire.transports import TRANSPORTS

RULES = RuleSet()

OFF: Overrides = {
    "strategy.in_network": "none",
    "strategy.switch_slots": None,
    "strategy.switch_numbers": "auto",
    "strategy.switch_fallback": 0.0,
    "strategy.switch_jobs": 1,
    "strategy.switch_max_message": None,
    "strategy.switch_hot_share": 0.5,
}
"""Strategies without switches that add."""


def _aggregator(c: Context) -> Aggregator | None:
    return AGGREGATORS.get(c.strategy.in_network)


@RULES.refuse(
    "in-network-options",
    "in_network switch_slots switch_numbers switch_fallback switch_jobs switch_max_message switch_hot_share",
    "no switch aggregates",
)
def options_have_a_switch(c: Context) -> Finding | None:
    """Options of switches that the strategy does not use or have."""
    strategy, aggregator = c.strategy, _aggregator(c)
    given = {
        "switch_slots": strategy.switch_slots is not None
        and (aggregator is None or aggregator.slots is None),
        "switch_numbers": strategy.switch_numbers != "auto" and aggregator is None,
        "switch_fallback": strategy.switch_fallback > 0 and (aggregator is None or not aggregator.falls_back),
        "switch_jobs": strategy.switch_jobs > 1 and aggregator is None,
        "switch_max_message": strategy.switch_max_message is not None
        and (aggregator is None or aggregator.trees is None),
        "switch_hot_share": strategy.switch_hot_share != OFF["strategy.switch_hot_share"]
        and (aggregator is None or not aggregator.sparse),
    }
    for name, wrong in given.items():
        if wrong:
            default = type(strategy).model_fields[name].default
            must = (
                f"be {default if default is not None else 'absent'} while in_network is {strategy.in_network}"
            )
            ways = ({f"strategy.{name}": default}, {"strategy.in_network": "atp"})
            return Finding(f"strategy.{name}", must, getattr(strategy, name), ways)
    return None


@RULES.refuse("switch-trees", "in_network switch_jobs", "switches have so many reduction trees, or slots")
def jobs_have_trees(c: Context) -> Finding | None:
    """More jobs than switches have trees for, or slots."""
    strategy, aggregator = c.strategy, _aggregator(c)
    if aggregator is None:
        return None
    most = aggregator.trees or strategy.switch_slots or aggregator.slots
    if most is None or strategy.switch_jobs <= most:
        return None
    must = f"be at most {most} while in_network is {aggregator.name}"
    ways = ({"strategy.switch_jobs": most}, OFF)
    return Finding("strategy.switch_jobs", must, strategy.switch_jobs, ways, explain=True)


@RULES.refuse(
    "switch-rows", "in_network sparse_embeddings", "such switches hold rows of tables and nothing else"
)
def rows_are_sparse(c: Context) -> Finding | None:
    """Switches for rows of tables without tables on servers."""
    aggregator = _aggregator(c)
    if aggregator is None or not aggregator.sparse or c.strategy.serves_tables:
        return None
    ways: tuple[Overrides, ...] = ({"strategy.sparse_embeddings": "servers"}, OFF)
    must = "go with sparse_embeddings servers"
    return Finding("strategy.in_network", must, c.strategy.in_network, ways, explain=True)


@RULES.refuse("C2-10", "in_network switch_numbers", "the adders of such switches know 32-bit integers only")
def integers_are_added(c: Context) -> Finding | None:
    """Floating-point numbers for a switch that adds integers."""
    aggregator = _aggregator(c)
    if aggregator is None or not aggregator.integers or c.strategy.switch_numbers != "float":
        return None
    ways: tuple[Overrides, ...] = (
        {"strategy.switch_numbers": "int32"},
        {"strategy.in_network": "sharp", "strategy.switch_slots": None, "strategy.switch_fallback": 0.0},
    )
    return Finding("strategy.switch_numbers", "be int32", "float", ways, explain=True)


@RULES.refuse(
    "C2-11",
    "in_network collective",
    "the reduction tree needs switches that every host's port reaches upwards, and is the only algorithm",
)
def trees_map_on_switches(c: Context) -> Finding | None:
    """Aggregation in switches with another algorithm, or on a fabric without a tree of switches."""
    strategy, aggregator = c.strategy, _aggregator(c)
    if aggregator is None:
        return None
    if strategy.collective != "auto" and not aggregator.sparse:
        ways: tuple[Overrides, ...] = (
            {"strategy.collective": "auto"},
            {"strategy.collective": "auto", "strategy.chunks": 1},
            OFF,
        )
        must = f"be auto while in_network is {strategy.in_network}"
        return Finding("strategy.collective", must, strategy.collective, ways, explain=True)
    if c.cluster.fabric_kind in SWITCH_TREES and (aggregator.tree or c.used_hosts <= c.cluster.rack_hosts):
        return None
    reach = "a fabric whose switches form a tree" if aggregator.tree else "hosts on one switch"
    got = f"{aggregator.name} with {c.used_hosts} hosts on {c.cluster.fabric_kind}"
    wider: Overrides = {**OFF, "strategy.in_network": "sharp"}
    return Finding("strategy.in_network", f"be none except for {reach}", got, (OFF, wider), explain=True)


@RULES.refuse(
    "C2-12",
    "in_network synchronization state topology update",
    "a slot waits for all workers, and sends every one of them the sum",
)
def slots_wait_for_all(c: Context) -> Finding | None:
    """Aggregation in switches without a sum over all workers that every worker gets."""
    strategy, aggregator = c.strategy, _aggregator(c)
    if aggregator is None:
        return None
    together = strategy.synchronization in ("bsp", "local", "delayed")
    together = together or (aggregator.partial and strategy.synchronization == "partial_allreduce")
    if strategy.state == "replicated" and together and not strategy.has_peers:
        return None
    got = f"{strategy.in_network} with state {strategy.state} and synchronization {strategy.synchronization}"
    must = "be none unless replicas all-reduce"
    ways: tuple[Overrides, ...] = (OFF, {"strategy.state": "replicated"})
    if aggregator.partial:
        ways = ({"strategy.synchronization": "partial_allreduce"}, *ways)
    return Finding("strategy.in_network", must, got, ways, explain=True)


@RULES.refuse("in-network-code", "in_network compression", "switches add numbers, not codes")
def switches_add_numbers(c: Context) -> Finding | None:
    """Encoded gradients that a switch cannot add, or casts that become 32-bit integers again."""
    strategy, aggregator = c.strategy, _aggregator(c)
    compressor = compressor_of(strategy)
    if aggregator is None or aggregator.sparse or (compressor.votes and not aggregator.integers):
        return None
    fits = compressor.name == "none" if aggregator.integers else compressor.reducible
    if fits:
        return None
    numbers = "none" if aggregator.integers else "a compressor whose codes can be summed"
    ways: tuple[Overrides, ...] = (
        {"strategy.compression": "none"},
        {
            "strategy.compression": "none",
            "strategy.compression_ratio": None,
            "strategy.compression_levels": None,
            "strategy.compression_exchange": "auto",
            "strategy.compression_engine": "device",
        },
        OFF,
    )
    must = f"be {numbers} while in_network is {aggregator.name}"
    return Finding("strategy.compression", must, compressor.name, ways, explain=True)


@RULES.refuse("C2-29", "state", "a network port reads device memory only by remote direct memory access")
def direct_access_has_rdma(c: Context) -> Finding | None:
    """GPUDirect RDMA over a protocol of processors."""
    protocol = c.cluster.protocol
    if protocol is None or TRANSPORTS[protocol].rdma or not c.cluster.gpudirect_rdma:
        return None
    ways: tuple[Overrides, ...] = ({"cluster.gpudirect_rdma": False}, {"cluster.protocol": "roce_v2"})
    return Finding("cluster.gpudirect_rdma", f"be false for {protocol}", "true", ways, explain=True)
