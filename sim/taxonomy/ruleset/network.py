"""Rules on switches that aggregate and on protocols (dimensions D9 and D10)."""

from __future__ import annotations

import math

from sim.spec.fabric import SWITCH_TREES, Fabric
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
    if c.cluster.fabric.kind in SWITCH_TREES and (aggregator.tree or c.used_hosts <= c.cluster.rack_hosts):
        return None
    reach = "a fabric whose switches form a tree" if aggregator.tree else "hosts on one switch"
    got = f"{aggregator.name} with {c.used_hosts} hosts on {c.cluster.fabric.kind}"
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


def _server_hosts(c: Context) -> int:
    """Hosts of their own for servers."""
    return (c.strategy.num_servers or 1) if c.strategy.has_server_hosts else 0


def _without_server_hosts(c: Context) -> tuple[Overrides, ...]:
    if not _server_hosts(c):
        return ()
    return (
        {"strategy.state": "ps_colocated"},
        {"strategy.state": "replicated", "strategy.num_servers": None},
    )


@RULES.refuse(
    "C2-30", "state num_servers", "hosts are the switches of such a network: one port per level of cables"
)
def hosts_have_ports_to_forward(c: Context) -> Finding | None:
    """BCube or DCell with more levels than hosts have network ports."""
    fabric, servers = c.cluster.fabric, _server_hosts(c)
    hosts = c.cluster.num_hosts + servers
    levels = fabric.cables_per_host(hosts)
    ports = min(c.cluster.nics[0], c.cluster.server_nics) if servers else c.cluster.nics[0]
    if levels <= ports:
        return None
    sizes = (size for size in range(2, hosts + 1) if _levels(fabric, size, hosts) <= max(ports, 1))
    must = f"not be {fabric.kind} of {levels} levels for hosts with {_ports(ports)}"
    return Finding(
        "cluster.fabric.kind", must,
        f"{hosts} hosts, {fabric.kind}",
        (*({"cluster.fabric.k": size} for size in sizes), *_without_server_hosts(c)), explain=True,
    )  # fmt: skip


def _ports(count: int) -> str:
    return f"{count} network port{'' if count == 1 else 's'}"


def _levels(fabric: Fabric, size: int, hosts: int) -> int:
    """Levels with so many hosts per smallest cell; more than any host has ports where they do not fit."""
    changed = fabric.model_copy(update={"k": size})
    return changed.cables_per_host(hosts) if changed.holds(hosts) else hosts + 1


@RULES.refuse("C2-31", "placement", "port i of every host is the only way to rail i")
def hosts_have_a_port_per_rail(c: Context) -> Finding | None:
    """Rails on hosts that have fewer network ports than there are rails."""
    kind, (fewest, *_, rails) = c.cluster.fabric.kind, (*c.cluster.nics, c.cluster.nics[-1])
    if kind not in ("rail_optimized", "rail_only", "multi_plane") or fewest == rails:
        return None
    must = f"not be {kind} of {rails} rails for hosts with {_ports(fewest)}"
    return Finding(
        "cluster.fabric.kind", must, kind,
        ({"cluster.fabric.kind": "leaf_spine"},), explain=True,
    )  # fmt: skip


@RULES.refuse("fabric-places", "state num_servers", "every host, also one of servers, needs a place")
def hosts_have_places(c: Context) -> Finding | None:
    """More hosts, those of servers among them, than the fabric has places."""
    fabric, servers = c.cluster.fabric, _server_hosts(c)
    hosts = c.cluster.num_hosts + servers
    alone = fabric.attach == "device" and servers > 0
    if fabric.holds(hosts) and not alone:
        return None
    ways: list[Overrides] = list(_without_server_hosts(c))
    if fabric.kind == "dcell":
        ways += [{"cluster.num_hosts": size - servers} for size in fabric.dcell_sizes(hosts)[::-1]]
    if fabric.kind == "torus" and not alone and fabric.dims:
        ways += [{"cluster.fabric.dims": None}]
        ways += [{"cluster.num_hosts": math.prod(fabric.dims) - servers}]
    if fabric.kind == "graph":
        ways += [{"cluster.num_hosts": n - servers} for n in range(hosts - 1, servers, -1) if fabric.holds(n)]
    if servers:
        must = f"not need hosts of their own, of which this {fabric.kind} has no place for {servers}"
        return Finding("strategy.state", must, c.strategy.state, tuple(ways), explain=True)
    must = f"be {'what fills' if fabric.kind == 'dcell' else 'at most the places of'} this {fabric.kind}"
    return Finding("cluster.num_hosts", must, hosts, tuple(ways), explain=True)
