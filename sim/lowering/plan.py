"""The plan of a lowering: everything decided before the first task is emitted.

Resolves the strategy, lays out ranks, cuts stages, routes every family of process groups and folds alike
ranks into classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sim.fabric.network import Network
from sim.lowering.buckets import Bucket, make_buckets
from sim.lowering.fold import Partition, partition, quotient_loads
from sim.lowering.layout import Layout
from sim.lowering.patterns import Family, Router, StepLatency
from sim.lowering.stages import split_layers
from sim.models.collectives import Phase, plan
from sim.models.compute import LayerCosts, chain_cost
from sim.models.memory import local_parameters
from sim.spec import Calibration, Cluster, Device, Scenario, Strategy, Workload
from sim.spec.workload import DTYPE_BYTES
from sim.taxonomy import num_micro_batches, resolve

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass
class Plan:
    """Resolved scenario, layout, stages, families and classes. Built by :func:`make_plan`."""

    scenario: Scenario
    strategy: Strategy
    layout: Layout
    network: Network
    capacity: FloatArray
    chunks: list[list[int]]
    micro_batches: int
    micro_batch_size: int
    num_servers: int
    server_endpoints: IntArray
    families: dict[str, Family] = field(default_factory=dict)
    parts: Partition | None = None
    loads: dict[str, list[list[tuple[IntArray, FloatArray]]]] = field(default_factory=dict)
    _buckets: dict[int, list[Bucket]] = field(default_factory=dict)
    _spans: dict[bool, tuple[int, int]] = field(default_factory=dict)

    @property
    def workload(self) -> Workload:
        """The workload."""
        return self.scenario.workload

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self.scenario.cluster

    @property
    def calibration(self) -> Calibration:
        """The calibration."""
        return self.scenario.calibration

    @property
    def classes(self) -> Partition:
        """The partition into classes."""
        assert self.parts is not None
        return self.parts

    @property
    def library(self) -> str:
        """Collective library of the cluster."""
        return "nccl"

    def device_of_rank(self, rank: int) -> Device:
        """Device spec of a rank."""
        return self.cluster.device_types[int(self.network.device_type[rank])]

    @cached_property
    def element_bytes(self) -> float:
        """Bytes of an activation, a parameter or a gradient; 8-bit training keeps these in 16 bits."""
        return max(2.0, DTYPE_BYTES[self.workload.dtype])

    @cached_property
    def gradient_bytes(self) -> float:
        """Bytes of one gradient element on the wire."""
        return self.element_bytes if self.strategy.compression == "none" else 2.0

    @property
    def parameter_kinds(self) -> tuple[bool, ...]:
        """Whether parameters belong to experts: those have fewer holders than the others."""
        return (False, True) if self.strategy.ep > 1 else (False,)

    def gradient_groups(self, *, expert: bool = False) -> IntArray:
        """Groups of ranks that hold the same parameters and sum their gradients."""
        return self.layout.expert_replicas(self.strategy.ep) if expert else self.layout.groups("cp", "dp")

    def gradient_span(self, *, expert: bool = False) -> tuple[int, int]:
        """Ranks that share gradients, and the hosts they live on."""
        if expert not in self._spans:
            ranks = self.gradient_groups(expert=expert)[0]
            self._spans[expert] = len(ranks), len(np.unique(self.router.endpoint_host[ranks]))
        return self._spans[expert]

    @property
    def tied_elements(self) -> float:
        """Parameters of the last chunk that are a copy of the first's (tied embeddings)."""
        return sum(self.workload.layers[layer].shared_parameters for layer in self.chunks[-1])

    def local_elements(self, layer: int, *, expert: bool | None = None) -> float:
        """Parameters of a layer that one rank holds: all, or those of one of the ``parameter_kinds``."""
        spec, degrees = self.workload.layers[layer], self.strategy
        everything = local_parameters(spec, degrees)
        if expert is None:
            return everything
        experts = spec.expert_parameters / (degrees.tp * degrees.ep) if degrees.ep > 1 else 0.0
        return experts if expert else everything - experts

    def buckets(self, virtual: int) -> list[Bucket]:
        """Gradient buckets of a model chunk."""
        if virtual not in self._buckets:
            chunk, first = self.chunks[virtual], self.strategy.first_bucket_size
            self._buckets[virtual] = [
                bucket
                for expert in self.parameter_kinds
                for bucket in make_buckets(
                    chunk,
                    [self._local_tensors(layer, expert) for layer in chunk],
                    bucket_bytes=self.strategy.bucket_size,
                    first_bucket_bytes=self.strategy.bucket_size if first is None else first,
                    element_bytes=self.element_bytes,
                    expert=expert,
                )
            ]
        return self._buckets[virtual]

    def _local_tensors(self, layer: int, expert: bool) -> tuple[float, ...]:
        """Tensors of a layer on one rank; those of experts follow the others (see ``Layer.tensors``)."""
        spec, local = self.workload.layers[layer], self.local_elements(layer, expert=expert)
        if not local:
            return ()
        tensors = [size for size in spec.tensors if size]
        if len(self.parameter_kinds) > 1 and spec.expert_parameters:
            shared = int(np.searchsorted(np.cumsum(tensors), spec.parameters * (1 + 1e-12), side="right"))
            own = len(tensors[shared:]) // self.strategy.ep
            tensors = tensors[shared : shared + own] if expert else tensors[:shared]
        whole = sum(tensors)
        return tuple(size * (local / whole) for size in tensors) if whole else (local,)

    def slow_factor(self, rank: int) -> float:
        """Compute time of this rank relative to its peers."""
        return self.scenario.perturbation.slow_ranks.get(rank, 1.0)

    def layer_costs(self, device: Device) -> LayerCosts:
        """Compute times of all layers for one micro-batch on one device."""
        return chain_cost(
            self.workload.layers,
            device=device,
            dtype=self.workload.dtype,
            micro_batch=self.micro_batch_size,
            tp=self.strategy.tp,
            sequence_parallel=self.strategy.sequence_parallel,
            ep=self.strategy.ep,
            calibration=self.calibration,
        )

    @cached_property
    def router(self) -> Router:
        """Routes families of groups over the network."""
        latency = StepLatency(
            self.calibration.value("library", self.library, "step_latency"),
            self.calibration.value("library", self.library, "step_latency_network"),
        )
        return Router(self.network, self.capacity, latency)

    def request(
        self,
        name: str,
        groups: IntArray,
        phases: Sequence[Phase],
        *,
        algorithm: str = "",
        asymmetric: bool = False,
    ) -> None:
        """Route a family of groups."""
        self.families[name] = self.router.family(
            name, groups, phases, algorithm=algorithm, asymmetric=asymmetric
        )

    def request_collective(self, name: str, groups: IntArray, op: str, algorithm: str) -> None:
        """Route the collective ``op`` over equal-sized ``groups``, in the orders the library would use."""
        size = groups.shape[1]
        if size < 2:
            return
        dims = self._dims(groups) if algorithm in ("hierarchical", "torus2d", "tree") else None
        if algorithm in ("hierarchical", "torus2d") and (dims is None or min(dims) < 2):
            algorithm, dims = "ring", None
        self.request(name, groups, plan(op, algorithm, size, dims=dims), algorithm=algorithm)

    def _dims(self, groups: IntArray) -> tuple[int, int] | None:
        """(ranks per host, hosts) of a group, if its hosts carry equally many."""
        _, counts = np.unique(self.router.endpoint_host[groups[0]], return_counts=True)
        return (int(counts[0]), len(counts)) if len(set(counts.tolist())) == 1 else None

    def fold(self) -> None:
        """Partition endpoints, groups and links into classes and compute the folded loads."""
        families = self.router.load(list(self.families.values()))
        self.families = dict(zip(self.families, families, strict=True))
        self.parts = partition(families, self._endpoint_keys(), self.capacity, fold=self._may_fold())
        quotient = quotient_loads(families, self.parts)
        self.loads = dict(zip(self.families, quotient, strict=True))

    def _may_fold(self) -> bool:
        symmetric = self.strategy.synchronization in ("bsp", "local")
        deterministic = self.scenario.perturbation.jitter == 0 and self.cluster.fabric.link_service == "fair"
        return self.scenario.fold and symmetric and deterministic

    def _endpoint_keys(self) -> IntArray:
        keys = np.full(len(self.router.endpoint_host), -1, np.int64)
        ranks = np.arange(self.layout.num_ranks)
        kind = (
            self.layout.coordinates["pp"] * len(self.cluster.device_types) + self.network.device_type[ranks]
        )
        slow = self.scenario.perturbation.slow_ranks
        if slow:
            speeds = np.array([slow.get(int(rank), 1.0) for rank in ranks])
            kind = kind * len(ranks) + np.unique(speeds, return_inverse=True)[1]
        keys[ranks] = kind
        keys[self.server_endpoints] = keys.max() + 1
        return keys


def make_plan(scenario: Scenario) -> Plan:
    """Resolve a scenario up to (not including) its families.

    Raises
    ------
    InvalidStrategyError
        If a taxonomy rule refuses the strategy.
    """
    workload, cluster = scenario.workload, scenario.cluster
    strategy = resolve(scenario.strategy, workload, cluster)
    layout = Layout.of(strategy)
    dedicated = strategy.state == "ps_dedicated"
    servers = (strategy.num_servers or 1) if strategy.state.startswith("ps_") else 0
    network = Network.build(cluster, num_server_hosts=servers if dedicated else 0)
    parts = strategy.pp * strategy.virtual_stages
    device = cluster.device_types[int(network.device_type[0])]
    micro_batch_size = strategy.micro_batch_size or 1
    draft = Plan(
        scenario=scenario,
        strategy=strategy,
        layout=layout,
        network=network,
        capacity=network.effective_capacity(scenario.calibration),
        chunks=[],
        micro_batches=num_micro_batches(strategy, workload),
        micro_batch_size=micro_batch_size,
        num_servers=servers,
        server_endpoints=_server_endpoints(network, layout, servers, dedicated=dedicated),
    )
    if parts == 1:
        draft.chunks = [list(range(len(workload.layers)))]
    else:
        costs = draft.layer_costs(device)
        seconds = costs.forward_s + costs.backward_input_s + costs.backward_weight_s
        draft.chunks = split_layers(workload.layers, seconds.tolist(), parts)
    return draft


def _server_endpoints(network: Network, layout: Layout, servers: int, *, dedicated: bool) -> IntArray:
    """Host memory endpoints of the parameter servers; co-located ones go round the workers' hosts."""
    if not servers:
        return np.zeros(0, np.int64)
    if dedicated:
        hosts = np.arange(network.num_hosts, network.num_hosts + servers)
    else:
        used = np.unique(network.device_host[np.arange(layout.num_ranks)])
        hosts = used[np.arange(servers) * len(used) // servers] if servers <= len(used) else used
    return network.num_devices + hosts
