"""The plan of a lowering: everything decided before the first task is emitted.

Resolves the strategy, lays out ranks, cuts stages, routes every family of process groups and folds alike
ranks into classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sim.errors import InputError
from sim.fabric.network import Network
from sim.lowering.arrays import distinct
from sim.lowering.bucketing import Bucketing
from sim.lowering.buckets import Bucket
from sim.lowering.encoding import Encoding
from sim.lowering.held import divided, held_layers
from sim.lowering.layout import Layout
from sim.lowering.library import LibraryTimes, achievable
from sim.lowering.stages import split_layers
from sim.lowering.tables import table_elements, touched_elements, without_tables
from sim.lowering.traffic import Traffic, reduction_rate, step_latency
from sim.models.compute import LayerCosts, Measurement, accumulation_bytes, accumulation_time, chain_cost
from sim.models.data_path import Checkpoint, DataPath, checkpoint, data_path
from sim.models.memory import (
    activation_elements,
    expert_parameters,
    frozen_bytes,
    frozen_parameters,
    local_parameters,
    server_memory,
    stage_memory,
)
from sim.models.schedules import SCHEDULES, Order, Schedule, peak, staleness
from sim.rng import seed_tree
from sim.spec import Calibration, Cluster, Device, Layer, Scenario, Strategy, Workload
from sim.spec.workload import kept_bytes
from sim.taxonomy import num_micro_batches, resolve
from sim.taxonomy.schedules import SCHEDULES as SCHEDULE_FACTS
from sim.taxonomy.schedules import ScheduleFacts
from sim.taxonomy.states import STATES

IntArray = npt.NDArray[np.int64]


@dataclass(kw_only=True)
class Plan(Traffic):
    """Resolved scenario, layout and stages, with their traffic. Built by :func:`make_plan`."""

    scenario: Scenario
    strategy: Strategy
    layout: Layout
    chunks: list[list[int]]
    micro_batches: int
    micro_batch_size: int
    num_servers: int
    server_endpoints: IntArray
    clients: int = 0
    participants: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    _spans: dict[bool, tuple[int, int]] = field(default_factory=dict)

    @property
    def library(self) -> str:
        """Collective library of the cluster."""
        return self.cluster.library

    @property
    def replica_samples(self) -> int:
        """Samples that the replicas of a group of ranks train on in a step."""
        strategy = self.strategy
        samples = self.micro_batches * self.micro_batch_size // strategy.token_slices
        return samples * strategy.replicas_per_device

    @property
    def step_samples(self) -> float:
        """Samples that one rank computes in a step."""
        return self.micro_batches * self.local_samples

    @cached_property
    def tables(self) -> frozenset[int]:
        """Layers whose embedding tables have sparse gradients."""
        never = self.strategy.sparse_embeddings == "never"
        return frozenset() if never else self.scenario.workload.sparse_tables

    def idle_elements(self, layer: int) -> float:
        """Parameters of a layer that no sample of a step looks up, so that nothing updates them."""
        if layer not in self.tables or self.strategy.serves_tables:
            return 0.0
        spec = self.scenario.workload.layers[layer]
        ranks = self.gradient_span()[0]
        return table_elements(spec) - touched_elements(spec, ranks * self.step_samples)

    @cached_property
    def held(self) -> frozenset[int]:
        """Layers that are held by parts across data parallel ranks."""
        return held_layers(
            self.scenario.workload,
            self.strategy,
            ranks=self.gradient_groups().shape[1],
            samples=self.step_samples,
        )

    @cached_property
    def workload(self) -> Workload:
        """The workload as one rank sees it: of layers held by parts its part, of served tables nothing."""
        if self.strategy.serves_tables:
            return without_tables(self.scenario.workload, self.tables, self.step_samples)
        if self.strategy.activation_exchange == "never":
            return self.scenario.workload
        return divided(self.scenario.workload, self.held, self.gradient_groups().shape[1])

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self.scenario.cluster

    @property
    def calibration(self) -> Calibration:
        """The calibration."""
        return self.scenario.calibration

    def device_of_rank(self, rank: int) -> Device:
        """Device spec of a rank."""
        return self.cluster.device_types[int(self.network.device_type[rank])]

    @cached_property
    def element_bytes(self) -> float:
        """Bytes of an activation or a parameter; 8-bit training keeps these in 16 bits."""
        return kept_bytes(self.workload.dtype)

    @cached_property
    def local_samples(self) -> float:
        """Samples of a micro-batch, or slice of one, that a rank computes; cp ranks share each of them."""
        return self.micro_batch_size / (self.strategy.cp * self.strategy.token_slices)

    @cached_property
    def server_shares(self) -> npt.NDArray[np.float64]:
        """Part of every tensor that each of ``server_endpoints`` serves.

        With k hosts of their own beside n workers' hosts, 2 (n - 1) / (n^2 + k n - 2 k) on each of the k and
        (n - k) / (n^2 + k n - 2 k) on each of the n load all ports alike (Jiang et al., OSDI 2020, 4.1).
        """
        count, k = len(self.server_endpoints), self.num_servers
        n = count - k
        if not self.strategy.servers_only_sum or n <= 0:
            return np.full(count, 1 / max(count, 1))
        return np.repeat([2 * (n - 1), n - k], [k, n]) / (n * n + k * n - 2 * k)

    @cached_property
    def data_path(self) -> DataPath:
        """How long one replica's samples of a step take to load, stage by stage."""
        return data_path(
            self.workload,
            self.cluster,
            self.strategy,
            samples=self.replica_samples,
            replicas=self.layout.degrees["dp"],
            hosts=self.used_hosts,
        )

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """What a checkpoint costs, if any are written."""
        return checkpoint(
            self.workload,
            self.cluster,
            self.strategy,
            hosts=self.used_hosts,
            replicas=self.layout.degrees["dp"],
            ranks=self.layout.num_ranks,
        )

    @property
    def used_hosts(self) -> int:
        """Hosts that carry a rank."""
        return int(self.network.device_host[self.layout.num_ranks - 1]) + 1

    @cached_property
    def encoding(self) -> Encoding:
        """What gradients look like on the wire."""
        return Encoding(self)

    @property
    def gradient_bytes(self) -> float:
        """Bytes on the wire of a gradient element that no bucket holds."""
        return self.encoding.gradient_bytes

    @cached_property
    def worker_devices(self) -> tuple[Device, ...]:
        """Distinct types of the devices that carry ranks."""
        kinds = distinct(self.network.device_type[: self.layout.num_ranks])
        return tuple(self.cluster.device_types[int(kind)] for kind in kinds)

    @property
    def parameter_kinds(self) -> tuple[bool, ...]:
        """Whether parameters belong to experts: those have fewer holders than the others."""
        return (False, True) if self.strategy.folds_experts else (False,)

    @property
    def schedule(self) -> Schedule:
        """The pipeline schedule."""
        return SCHEDULES[self.strategy.schedule]

    @property
    def schedule_facts(self) -> ScheduleFacts:
        """What the taxonomy says about it."""
        return SCHEDULE_FACTS[self.strategy.schedule]

    @cached_property
    def orders(self) -> list[Order]:
        """What every pipeline rank does in a step, in order."""
        p, v = self.strategy.pp, self.strategy.virtual_stages
        return [self.schedule.order(stage, p, self.micro_batches, v) for stage in range(p)]

    def chunks_of(self, stage: int) -> list[int]:
        """Model chunks of a pipeline rank: chunk 0 first."""
        chunks = self.schedule.num_chunks(self.strategy.virtual_stages)
        return [self.schedule.virtual_stage(stage, chunk, self.strategy.pp) for chunk in range(chunks)]

    def holders(self, virtual: int) -> list[int]:
        """Pipeline ranks that hold a model chunk: two if replicas run through the ranks both ways."""
        return [stage for stage, _ in self.schedule.holders(virtual, self.strategy.pp)]

    def partners(self, stage: int) -> list[int]:
        """The pipeline ranks that hold the same chunks as this one, in rank order; itself included."""
        return sorted(self.holders(self.chunks_of(stage)[0]))

    def first_micro_batch(self, stage: int, virtual: int) -> int:
        """The first micro-batch of a step that a rank takes through a chunk."""
        return self.schedule.first_micro_batch(self.chunks_of(stage).index(virtual), self.micro_batches)

    @cached_property
    def last_micro_batch(self) -> dict[tuple[int, int], int]:
        """By (pipeline rank, model chunk): the micro-batch that completes its gradients."""
        return {
            (stage, self.schedule.virtual_stage(stage, action.chunk, self.strategy.pp)): action.micro_batch
            for stage, order in enumerate(self.orders)
            for slot in order
            for action in slot
            if action.kind in "BW"
        }

    @cached_property
    def update_staleness(self) -> dict[int, float]:
        """Updates that a gradient's weights are old by -> share of (stage, micro-batch) pairs.

        Empty where all weights are new, or where only the run tells.
        """
        if self.schedule_facts.flushes:
            return {self.strategy.delay: 1.0} if self.strategy.delay else {}
        found = [s for order in self.orders for s in staleness(order, self.schedule_facts.update_delay)]
        return {age: found.count(age) / len(found) for age in sorted(set(found))}

    def _weight_versions(self, stage: int) -> int:
        facts = self.schedule_facts
        if facts.flushes:
            return 1
        if facts.update_delay:
            return 1 + facts.update_delay
        return 1 + max(staleness(self.orders[stage], 0)) if self.strategy.weight_stash else 1

    @cached_property
    def footprints(self) -> list[dict[str, float]]:
        """Peak bytes per device by component, one entry per pipeline stage."""
        return [self._footprint(stage) for stage in range(self.strategy.pp)]

    def _footprint(self, stage: int) -> dict[str, float]:
        held = self.chunks_of(stage)
        chunks = [[self.workload.layers[i] for i in self.chunks[chunk]] for chunk in held]
        return stage_memory(
            [layer for chunk in chunks for layer in chunk],
            strategy=self.strategy,
            workload=self.workload,
            micro_batch=self.micro_batch_size / self.strategy.token_slices,
            dp=self.layout.degrees["dp"] * self.strategy.cp * len(self.partners(stage)),
            calibration=self.calibration,
            num_micro_batches=self.micro_batches,
            stage=stage,
            in_flight=self._in_flight(stage, chunks),
            first=0 in held,
            last=len(self.chunks) - 1 in held,
            weight_versions=self._weight_versions(stage),
        )

    def _in_flight(self, stage: int, chunks: list[list[Layer]]) -> float:
        """Activations at a stage's peak, in micro-batches through all of its chunks."""
        elements = [activation_elements(chunk, self.strategy) for chunk in chunks]
        whole = sum(kept for kept, _ in elements)
        if self.strategy.pp == 1 or not whole:
            return 1.0
        kept, deferred = zip(*((k / whole, d / whole) for k, d in elements), strict=True)
        return peak(self.orders[stage], kept, deferred)

    @property
    def memory_capacity(self) -> float:
        """Memory in bytes of the smallest device that carries a rank."""
        return min(device.capacity for device in self.worker_devices)

    @property
    def server_footprint(self) -> dict[str, float]:
        """Bytes by component in the memory of each host with parameter servers; empty without servers."""
        hosts = len(distinct(self.server_endpoints))
        if not hosts:
            return {}
        workers = self.layout.degrees["dp"] * self.strategy.cp
        layers = self.scenario.workload.layers
        held = sum(table_elements(layers[index]) for index in self.tables)
        return server_memory(
            self.strategy,
            self.workload,
            workers=workers,
            hosts=hosts,
            parameters=held if self.strategy.serves_tables else None,
        )

    @property
    def server_memory_capacity(self) -> float:
        """Memory in bytes of the smallest host with parameter servers."""
        hosts = (self.server_endpoints - self.network.num_devices).tolist()
        return min(
            (
                self.cluster.host_of(host) if host < self.cluster.size else self.cluster.server_type
            ).memory_bytes
            for host in hosts
        )

    def gradient_groups(self, *, expert: bool = False) -> IntArray:
        """Groups of ranks that hold the same parameters and sum their gradients."""
        if expert:
            groups = self.layout.expert_replicas(self.strategy.ep, self.strategy.expert_tensor_degree)
        else:
            groups = self.layout.groups("cp", "dp")
        return self._joined(groups) if self.schedule.placement == "bidirectional" else groups

    def _joined(self, groups: IntArray) -> IntArray:
        """Join the groups of the two pipeline ranks that hold the same chunks: s and p - 1 - s."""
        stage = self.layout.coordinates["pp"][groups[:, 0]]
        last = self.strategy.pp - 1
        joined = [
            np.hstack([groups[stage == here], groups[stage == last - here]])
            for here in range(self.strategy.pp // 2)
        ]
        return np.sort(np.vstack(joined), axis=1)

    def shard_size(self, *, expert: bool = False) -> int:
        """Ranks that share one copy of sharded state; the others of a gradient group hold copies of it."""
        return self.strategy.shard_ranks or self.gradient_span(expert=expert)[0]

    def shard_groups(self, *, expert: bool = False) -> IntArray:
        """Groups of neighbours that share one copy of sharded state."""
        return self.gradient_groups(expert=expert).reshape(-1, self.shard_size(expert=expert))

    def replica_groups(self, *, expert: bool = False) -> IntArray:
        """Groups of ranks that hold the same shard."""
        groups, size = self.gradient_groups(expert=expert), self.shard_size(expert=expert)
        apart = groups.reshape(len(groups), -1, size).swapaxes(1, 2)
        return apart.reshape(-1, groups.shape[1] // size)

    def gradient_span(self, *, expert: bool = False) -> tuple[int, int]:
        """Ranks that share gradients, and the hosts they live on."""
        if expert not in self._spans:
            ranks = self.gradient_groups(expert=expert)[0]
            self._spans[expert] = len(ranks), len(distinct(self.router.endpoint_host[ranks]))
        return self._spans[expert]

    @property
    def tied_elements(self) -> float:
        """Parameters of the last chunk that are a copy of the first's (tied embeddings).

        None of them if the ranks that hold the last chunk hold the first as well.
        """
        if set(self.holders(0)) == set(self.holders(len(self.chunks) - 1)):
            return 0.0
        return sum(self.workload.layers[layer].shared_parameters for layer in self.chunks[-1])

    def local_elements(self, layer: int, *, expert: bool | None = None) -> float:
        """Parameters of a layer that one rank holds: all, or those of one of the ``parameter_kinds``."""
        spec, degrees = self.workload.layers[layer], self.strategy
        everything = local_parameters(spec, degrees)
        if expert is None:
            return everything
        experts = expert_parameters(spec, degrees) if degrees.folds_experts else 0.0
        return experts if expert else everything - experts

    def frozen_elements(self, layer: int, *, expert: bool = False) -> float:
        """Untrained parameters of a layer on one rank, in elements of the compute type."""
        spec = self.workload.layers[layer]
        own = None if not self.strategy.folds_experts else expert
        elements = 0.0 if own is None and expert else frozen_parameters(spec, self.strategy, expert=own)
        return elements * frozen_bytes(spec, self.workload) / self.element_bytes

    @cached_property
    def bucketing(self) -> Bucketing:
        """Which gradients travel together."""
        return Bucketing(self)

    def buckets(self, virtual: int) -> list[Bucket]:
        """Gradient buckets of a model chunk."""
        return self.bucketing.of(virtual)

    @property
    def all_buckets(self) -> list[Bucket]:
        """Gradient buckets of all model chunks."""
        return [bucket for virtual in range(len(self.chunks)) for bucket in self.buckets(virtual)]

    def slow_factor(self, rank: int) -> float:
        """Compute time of this rank relative to its peers."""
        return float(self.speed_factors[rank])

    @cached_property
    def speed_factors(self) -> npt.NDArray[np.float64]:
        """Compute time of every rank relative to its peers: slow ranks, times a speed of its own."""
        given, count = self.scenario.perturbation, max(self.layout.num_ranks, self.clients)
        factors = np.ones(count)
        for rank, factor in given.slow_ranks.items():
            if rank < count:
                factors[rank] = factor
        if given.speed_spread > 0:
            variance = np.log1p(given.speed_spread**2)
            normal = seed_tree(self.scenario.seed, "speed").standard_normal(count)
            factors *= np.exp(np.sqrt(variance) * normal - variance / 2.0)
        if count > self.layout.num_ranks:
            factors = factors[self.participants]
        return factors

    def layer_costs(self, device: Device) -> LayerCosts:
        """Compute times of all layers for one micro-batch on one device, adding up gradients included."""
        costs = chain_cost(
            self.workload.layers,
            device=device,
            dtype=self.workload.dtype,
            micro_batch=self.local_samples * self.strategy.replicas_per_device,
            tp=self.strategy.tp,
            sequence_parallel=self.strategy.sequence_parallel,
            ep=self.strategy.ep,
            expert_tp=self.strategy.expert_tensor_degree,
            expert_load=self.strategy.expert_load,
            calibration=self.calibration,
            slowest_of=self.layout.num_ranks if self.strategy.synchronization in ("bsp", "delayed") else 1,
            measured=self._measurement(device),
        )
        added = self._accumulation(device)
        if not added.any():
            return costs
        return replace(costs, backward_weight_s=costs.backward_weight_s + added)

    def _accumulation(self, device: Device) -> npt.NDArray[np.float64]:
        """Seconds of a micro-batch in which each layer's gradients are added up; measured times hold them."""
        sharding = self.strategy.sharding
        sharded = sharding == 3 or (sharding == 2 and self.strategy.pp == 1)
        each = accumulation_bytes(self.workload, micro_batches=self.micro_batches, sharded=sharded)
        if not each:
            return np.zeros(len(self.workload.layers))
        elements = [
            0.0 if layer.measured else local_parameters(layer, self.strategy)
            for layer in self.workload.layers
        ]
        second = accumulation_time(1.0, each, device=device, calibration=self.calibration)
        return np.array(elements) * second * self.strategy.replicas_per_device

    def _measurement(self, device: Device) -> Measurement:
        """Where the layers' measured times hold: on every device if the workload does not say."""
        given = self.workload.measured_on
        return Measurement(
            given if isinstance(given, Device) else device,
            self.workload.measured_dtype or self.workload.dtype,
        )

    def fold(self) -> None:
        """Classify ranks and servers; see :meth:`Traffic.classify`."""
        self.classify(self._endpoint_keys(), fold=self._may_fold())

    def _may_fold(self) -> bool:
        symmetric = self.strategy.synchronization in ("bsp", "local", "delayed")
        deterministic = not self._random_times and self.cluster.fabric.link_service == "fair"
        return self.scenario.fold and symmetric and deterministic

    @property
    def _random_times(self) -> bool:
        given = self.scenario.perturbation
        return given.jitter > 0 or given.slow_probability > 0

    def _endpoint_keys(self) -> IntArray:
        keys = np.full(len(self.router.endpoint_host), -1, np.int64)
        ranks = np.arange(self.layout.num_ranks)
        kind = (
            self.layout.coordinates["pp"] * len(self.cluster.device_types) + self.network.device_type[ranks]
        )
        speeds = self.speed_factors
        if (speeds != 1.0).any():
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
    micro_batches, clients = num_micro_batches(strategy, workload), strategy.dp or 1
    drawn = _participants(strategy, clients, scenario.seed)
    if len(drawn) < clients:
        strategy = strategy.model_copy(update={"dp": len(drawn)})
    layout = Layout.of(strategy)
    known = max(layout.num_ranks, clients)
    unknown = [rank for rank in scenario.perturbation.slow_ranks if not 0 <= rank < known]
    if unknown:
        raise InputError("perturbation.slow_ranks", f"name ranks between 0 and {known - 1}", unknown[0])
    dedicated = strategy.has_server_hosts
    served = strategy.has_servers or strategy.serves_tables
    servers = (strategy.num_servers or 1) if served else 0
    network = Network.build(cluster, num_server_hosts=servers if dedicated else 0)
    library_times = LibraryTimes.of(network, scenario.calibration)
    parts = strategy.pp * strategy.virtual_stages  # replicas that run both ways are no further parts
    device = cluster.device_types[int(network.device_type[0])]
    micro_batch_size = strategy.micro_batch_size or 1
    draft = Plan(
        scenario=scenario,
        strategy=strategy,
        layout=layout,
        network=network,
        capacity=achievable(network, scenario.calibration, library_times),
        library_times=library_times,
        step_latency=step_latency(scenario.calibration, cluster.library),
        reduction_rate=reduction_rate(cluster, scenario.calibration, strategy.compression),
        chunks=[],
        micro_batches=micro_batches * strategy.token_slices,
        micro_batch_size=micro_batch_size,
        num_servers=servers,
        clients=clients if len(drawn) < clients else 0,
        participants=drawn,
        server_endpoints=_server_endpoints(network, layout, strategy, servers),
    )
    if parts == 1:
        draft.chunks = [list(range(len(workload.layers)))]
    else:
        costs = draft.layer_costs(device)
        seconds = costs.forward_s + costs.backward_input_s + costs.backward_weight_s
        draft.chunks = split_layers(
            workload.layers, seconds.tolist(), parts, counts=strategy.stage_blocks,
            embedding=strategy.embedding_in_split, head=strategy.head_in_split,
        )  # fmt: skip
    return draft


def _participants(strategy: Strategy, clients: int, seed: int) -> IntArray:
    """Clients of the round that is simulated: of those that are there, as many as it wants, one at least."""
    there = np.arange(clients)
    if strategy.availability < 1:
        chance = seed_tree(seed, "availability").random(clients)
        there = np.flatnonzero(chance < max(strategy.availability, chance.min()) + 1e-15)
    wanted = max(1, round(clients * strategy.participation))
    if wanted >= len(there):
        return there
    return np.sort(seed_tree(seed, "participants").choice(there, wanted, replace=False))


def _server_endpoints(network: Network, layout: Layout, strategy: Strategy, servers: int) -> IntArray:
    """Host memory endpoints of the parameter servers; co-located ones go round the workers' hosts."""
    if not servers:
        return np.zeros(0, np.int64)
    used = distinct(network.device_host[np.arange(layout.num_ranks)])
    if strategy.has_server_hosts:
        hosts = np.arange(network.num_hosts, network.num_hosts + servers)
        if STATES[strategy.state].worker_hosts and servers < len(used):
            hosts = np.concatenate([hosts, used])
    else:
        hosts = used[np.arange(servers) * len(used) // servers] if servers <= len(used) else used
    return network.num_devices + hosts


def memory_by_stage(scenario: Scenario) -> list[dict[str, float]]:
    """Peak bytes per device by component, one entry per pipeline stage.

    Raises
    ------
    InvalidStrategyError
        If a taxonomy rule refuses the strategy.
    """
    return make_plan(scenario).footprints
