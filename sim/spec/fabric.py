"""The network between hosts."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from sim.spec.base import BytesPerSecond, Seconds, Spec, refuse
from sim.spec.host import expand_nodes, limit_pairs, pair_nodes

FabricKind = Literal[
    "single_switch", "leaf_spine", "fat_tree", "rail_optimized", "rail_only", "multi_plane", "torus", "ring",
    "hypercube", "dragonfly", "bcube", "dcell", "bigraph", "graph",
]  # fmt: skip
_EDGE_KINDS = ("host", "nic", "switch")
SMALLEST_CELL = 4
"""Hosts of a smallest cell (bcube, dcell) where neither the fabric says it nor one cell is enough."""
SWITCH_TREES = frozenset({"single_switch", "leaf_spine", "fat_tree", "rail_optimized"})
"""Kinds whose switches form a tree that every port reaches upwards: a reduction can run in them."""

# Fields that mean something for a kind, beside bandwidth, latency, routing and link_service.
_FIELDS: dict[str, frozenset[str]] = {
    "single_switch": frozenset(),
    "leaf_spine": frozenset(
        {"uplink_bandwidth", "uplink_latency", "oversubscription", "hosts_per_leaf", "num_spines"}
    ),
    "fat_tree": frozenset({"uplink_bandwidth", "uplink_latency", "oversubscription", "k"}),
    "rail_optimized": frozenset(
        {"uplink_bandwidth", "uplink_latency", "oversubscription", "hosts_per_leaf", "num_spines"}
    ),
    "rail_only": frozenset({"uplink_latency"}),
    "multi_plane": frozenset(
        {"uplink_bandwidth", "uplink_latency", "oversubscription", "hosts_per_leaf", "num_spines"}
    ),
    "torus": frozenset({"dims", "attach"}),
    "ring": frozenset({"attach"}),
    "hypercube": frozenset({"attach"}),
    "dragonfly": frozenset(
        {"uplink_bandwidth", "uplink_latency", "global_bandwidth", "global_latency", "hosts_per_leaf", "k"}
    ),
    "bcube": frozenset({"k"}),
    "dcell": frozenset({"k", "uplink_bandwidth", "uplink_latency"}),
    "bigraph": frozenset({"uplink_bandwidth", "uplink_latency", "hosts_per_leaf", "num_spines"}),
    "graph": frozenset({"edges"}),
}


class FabricEdge(Spec):
    """A full-duplex cable of an explicit graph: ``host0``.., ``switch0``.. (ranges as in HostLink)."""

    a: str = Field(description="one end: a host (host0) or a switch")
    b: str = Field(description="the other end")
    bandwidth: BytesPerSecond = Field(gt=0, description="one direction")
    latency: Seconds = Field(0, ge=0, description="of one direction")

    @model_validator(mode="after")
    def _nodes(self) -> FabricEdge:
        self.pairs()
        return self

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Node pairs this entry stands for."""
        return pair_nodes(expand_nodes(self.a, _EDGE_KINDS), expand_nodes(self.b, _EDGE_KINDS))


class Fabric(Spec):
    """A fabric of one kind with its parameters.

    ``bandwidth`` and ``latency`` belong to one cable, one direction; the latency includes the switch it
    leads to, so a path over a single switch has two of them (and the NICs' own).
    """

    kind: FabricKind = Field(description="how switches and hosts are joined")
    bandwidth: BytesPerSecond | None = Field(
        None, gt=0, description="host cable; the NIC's bandwidth if absent"
    )
    latency: Seconds = Field(0, ge=0, description="one cable and the switch behind it")
    uplink_bandwidth: BytesPerSecond | None = Field(
        None, gt=0, description="switch-to-switch cable; as host cables if absent"
    )
    uplink_latency: Seconds | None = Field(
        None, ge=0, description="switch-to-switch cable; as `latency` if absent"
    )
    oversubscription: float = Field(
        1, gt=0, description="host bandwidth over uplink bandwidth of a leaf; 1 is non-blocking"
    )
    hosts_per_leaf: int | None = Field(
        None, ge=1, description="hosts below one leaf (rail_optimized: below one leaf group)"
    )
    num_spines: int | None = Field(
        None, ge=1, description="spine switches; as many as the uplinks need if absent"
    )
    k: int | None = Field(
        None,
        ge=2,
        description=(
            "fat_tree: ports of a switch; bcube, dcell: hosts of the smallest cell; dragonfly: routers of a"
            " group; the smallest (a balanced one) that holds the hosts if absent"
        ),
    )
    global_bandwidth: BytesPerSecond | None = Field(
        None, gt=0, description="dragonfly: cable between groups; as uplinks if absent"
    )
    global_latency: Seconds | None = Field(
        None, ge=0, description="dragonfly: cable between groups; as uplinks if absent"
    )
    dims: tuple[int, ...] | None = Field(
        None,
        description="torus extents, spare places allowed; the most square 2-D ones if absent",
    )
    attach: Literal["host", "device"] = Field(
        "host",
        description=(
            "what a torus or ring joins: hosts through their NICs, or devices directly (TPU), with"
            " `bandwidth` given"
        ),
    )
    edges: tuple[FabricEdge, ...] = Field((), description="cables of an explicit graph")
    routing: Literal["ecmp", "static", "hashed"] = Field(
        "ecmp",
        description=(
            "ecmp: each switch splits evenly over its shortest next hops; static: one path, by destination;"
            " hashed: one path per flow, by a hash of its two ports and `seed`, so that flows may collide"
        ),
    )
    seed: int = Field(0, description="of hashed routing")
    rail_forwarding: bool = Field(
        False,
        description=(
            "send over NVLink to the device whose NIC is on the receiver's rail (NCCL's PXN); always on for"
            " rail_only and multi_plane"
        ),
    )
    failed: tuple[str, ...] = Field(
        (),
        description="switches (`spine3`) and cables (`leaf0-spine1`) that are down; names as in load tables",
    )
    in_network_reduction: bool = Field(
        False,
        description=(
            "switches reduce (InfiniBand SHARP): `auto` of nccl then also considers collnet for all-reduces"
            " over several hosts; false, as NCCL's own default (NCCL_COLLNET_ENABLE=0)"
        ),
    )
    link_service: Literal["fair", "weighted", "fifo", "tcp"] = Field(
        "fair",
        description=(
            "fair: equal rates; weighted: rates drawn per transfer; fifo: whole transfers in order of "
            "start; tcp: connections that start later get less, those that start together share fairly"
        ),
    )

    def torus_extents(self, places: int) -> tuple[int, ...]:
        """Extents of a torus, ring or hypercube that joins so many places; empty for other kinds."""
        if self.kind == "ring":
            return (places,)
        if self.kind == "hypercube":
            return (2,) * max(1, (places - 1).bit_length())
        if self.kind != "torus":
            return ()
        if self.dims is not None:
            return self.dims
        side = next(k for k in range(math.isqrt(max(places, 1)), 0, -1) if places % k == 0)
        return places // side, side

    def bcube_base(self, hosts: int) -> int:
        """Hosts per switch of a BCube."""
        return self.k or min(SMALLEST_CELL, max(hosts, 2))

    def dcell_sizes(self, hosts: int) -> tuple[int, ...]:
        """Hosts of a DCell of each level, up to the first that holds so many."""
        sizes = [self.k or min(SMALLEST_CELL, max(hosts, 2))]
        while sizes[-1] < hosts:
            sizes.append(sizes[-1] * (sizes[-1] + 1))
        return tuple(sizes)

    def cables_per_host(self, hosts: int) -> int:
        """Cables of a host that forwards for others (bcube, dcell: one per level); 1 for other kinds."""
        if self.kind == "dcell":
            return len(self.dcell_sizes(hosts))
        levels = 1
        if self.kind == "bcube":
            base = max(2, self.bcube_base(hosts))
            while base**levels < hosts:
                levels += 1
        return levels

    def holds(self, hosts: int) -> bool:
        """Whether so many hosts have a place; fabrics that grow with their hosts always have one."""
        if self.kind == "torus" and self.dims is not None:
            return math.prod(self.dims) >= hosts
        if self.kind == "dcell":
            return hosts in self.dcell_sizes(hosts)
        named = [
            int(node[4:]) for e in self.edges for p in e.pairs() for node in p if node.startswith("host")
        ]
        return not named or max(named) + 1 >= hosts

    @property
    def counts_exchanges(self) -> bool:
        """Whether the loads of an all-to-all follow from counts of ranks, without a flow for every pair."""
        regular = ("single_switch", "leaf_spine", "fat_tree", "rail_optimized", "rail_only", "multi_plane")
        return self.kind in regular and self.routing == "ecmp" and not self.failed

    @field_validator("edges", mode="before")
    @classmethod
    def _limited(cls, value: Any) -> Any:
        return limit_pairs(value)

    @model_validator(mode="after")
    def _fields_of_kind(self) -> Fabric:
        known = _FIELDS[self.kind]
        every = frozenset[str]().union(*_FIELDS.values())
        for name in sorted((every - known) & self.model_fields_set):
            if getattr(self, name) != type(self).model_fields[name].default:
                refuse(f"not be given for kind {self.kind}", field=name)
        if self.in_network_reduction and self.kind not in SWITCH_TREES:
            possible = ", ".join(sorted(SWITCH_TREES))
            refuse(f"be false except for {possible}", self.kind, field="in_network_reduction")
        if self.kind == "graph" and not self.edges:
            refuse("have at least one entry for kind graph", field="edges")
        if self.kind == "fat_tree" and self.k is not None and self.k % 2:
            refuse("be even", self.k, hint=f"Try {self.k + 1}.", field="k")
        if self.attach == "device" and self.bandwidth is None:  # there is no NIC to take it from
            refuse("be given where attach is device", hint="Try 100GB/s.", field="bandwidth")
        if self.dims is not None and (not self.dims or min(self.dims) < 1):
            refuse("have extents of at least 1", self.dims, field="dims")
        return self
