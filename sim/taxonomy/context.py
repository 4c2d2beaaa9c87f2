"""The numbers that validity rules reason about, derived once per (strategy, workload, cluster)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from sim.spec.cluster import Cluster
from sim.spec.fabric import Fabric
from sim.spec.host import Host
from sim.spec.layer import Attention, Convolution, Gemm, Layer
from sim.spec.strategy import Strategy
from sim.spec.workload import Workload
from sim.taxonomy.grid import sub_grid
from sim.taxonomy.schedules import SCHEDULES
from sim.taxonomy.states import STATES
from sim.taxonomy.topologies import TOPOLOGIES


@dataclass(frozen=True)
class WorkloadFacts:
    """What rules ask of a workload, found in one pass over its layers.

    Parameters
    ----------
    num_blocks : int
        Blocks between which a pipeline may be cut.
    num_layers : int
    kinds : frozenset of str
        Kinds of its layers.
    has_embedding, has_head : bool
        Whether the chain begins with an embedding (ends with a head) that shares its block with other layers.
    has_fully_connected : bool
        Whether the gradient of any layer is a sum of outer products.
    image_rows : int or None
        Rows of the smallest output of a convolution, if there is one.
    has_sparse_tables : bool
        Whether it looks up embedding tables that no output layer shares.
    is_causal : bool
        Whether it attends, and to earlier tokens only.
    has_attention, has_tensor_split, has_selective : bool
        Whether any layer has an attention core, is divided by tensor parallelism, or stores
        activations that selective recomputation drops.
    tensor_widths : frozenset of int
        Matrix dimensions that tensor parallelism divides.
    """

    num_blocks: int
    num_layers: int
    kinds: frozenset[str]
    has_embedding: bool
    has_head: bool
    has_fully_connected: bool
    has_sparse_tables: bool
    image_rows: int | None
    is_causal: bool
    has_attention: bool
    has_tensor_split: bool
    has_selective: bool
    tensor_widths: frozenset[int]

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, workload: Workload) -> WorkloadFacts:
        """Collect the facts of a workload."""
        widths: set[int] = set()
        attention, causal = False, True
        for layer in workload.layers:
            for op in layer.ops:
                if isinstance(op, Gemm) and op.split in ("column", "row"):
                    widths.add(int(op.n if op.split == "column" else op.k))
                attention = attention or isinstance(op, Attention)
                causal = causal and (op.causal if isinstance(op, Attention) else True)
        return cls(
            num_blocks=workload.num_blocks,
            num_layers=len(workload.layers),
            kinds=frozenset(layer.kind for layer in workload.layers),
            has_embedding=_shares_block(workload.layers[:2], "embedding"),
            has_head=_shares_block(workload.layers[:-3:-1], "head"),
            has_fully_connected=any(layer.fully_connected for layer in workload.layers),
            has_sparse_tables=bool(workload.sparse_tables),
            image_rows=min(
                (
                    op.out_height
                    for layer in workload.layers
                    for op in layer.ops
                    if isinstance(op, Convolution)
                ),
                default=None,
            ),
            is_causal=attention and causal,
            has_attention=attention,
            has_tensor_split=any(layer.tensor_parameters > 0 for layer in workload.layers),
            has_selective=any(layer.stored_selective_elements > 0 for layer in workload.layers),
            tensor_widths=frozenset(widths),
        )


def _shares_block(ends: Sequence[Layer], kind: str) -> bool:
    """Whether the outermost layer of an end of the chain is of a kind, in one block with the next one."""
    return len(ends) == 2 and ends[0].kind == kind and ends[0].block == ends[1].block


@dataclass(frozen=True)
class ClusterFacts:
    """What rules ask of a cluster.

    Parameters
    ----------
    devices_of_host : tuple of int
        Devices on each host, in host order.
    nvlink_domain : int
        Devices joined by NVLink on the host that has fewest of them; 1 without NVLink.
    dtypes_of_device : dict of str to tuple of str
        Precisions each device type states a peak for.
    server_processors, worker_processors : bool
        Whether hosts of their own for servers, and all hosts of workers, say which processors they have.
    library : str
        Collective library.
    memory_bytes : float
        Memory of all hosts together.
    cores : int
        Processor cores of the host that has fewest.
    has_local_storage, has_shared_storage : bool
        Whether all hosts have a disk, and whether the cluster has a store.
    torus : tuple of int
        Extents of a torus, ring or hypercube; empty for other fabrics.
    torus_of_devices : bool
        Whether its places are devices and not hosts.
    counts_exchanges : bool
        Whether all-to-all loads follow from counts (``Fabric.counts_exchanges``).
    fabric : Fabric
        As the cluster states it.
    nics : tuple of int
        The different numbers of network ports of its hosts, fewest first.
    server_nics : int
        Network ports of a host of its own for servers.
    rack_hosts : int
        Hosts, the first ones, that hang on one switch.
    protocol : str or None
    gpudirect_rdma : bool or None
        As the cluster states them.
    nvswitch_reduces : bool
        Whether the NVSwitches of every host add up.
    """

    num_devices: int
    devices_of_host: tuple[int, ...]
    nvlink_domain: int
    dtypes_of_device: dict[str, tuple[str, ...]]
    server_processors: bool
    worker_processors: bool
    library: str
    memory_bytes: float
    cores: int
    has_local_storage: bool
    has_shared_storage: bool
    fabric: Fabric
    nics: tuple[int, ...]
    server_nics: int
    torus: tuple[int, ...] = ()
    torus_of_devices: bool = False
    counts_exchanges: bool = True
    rack_hosts: int = 0
    protocol: str | None = None
    gpudirect_rdma: bool | None = None
    nvswitch_reduces: bool = False

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, cluster: Cluster) -> ClusterFacts:
        """Collect the facts of a cluster."""
        names = dict.fromkeys(name for host in cluster.host_types for name, _ in host.devices)
        workers = [host for host in cluster.host_types if host.devices]
        counts = [cluster.host_type_of.count(kind) for kind in range(len(cluster.host_types))]
        of_devices = cluster.fabric.attach == "device"
        places = cluster.num_devices if of_devices else len(cluster.devices_per_host)
        return cls(
            memory_bytes=sum(h.memory_bytes * n for h, n in zip(cluster.host_types, counts, strict=True)),
            cores=min((host.cpu_cores for host in workers), default=1),
            has_local_storage=all(host.local_storage is not None for host in workers),
            has_shared_storage=cluster.storage is not None,
            num_devices=cluster.num_devices,
            devices_of_host=cluster.devices_per_host,
            nvlink_domain=min(
                (nvlink_domain(host) for host in cluster.host_types if host.devices), default=1
            ),
            dtypes_of_device={name: tuple(cluster.device(name).peak_flops) for name in names},
            server_processors=cluster.server_type.cpu_device is not None,
            worker_processors=all(host.cpu_device is not None for host in cluster.host_types),
            library=cluster.library,
            torus=cluster.fabric.torus_extents(places),
            torus_of_devices=of_devices,
            counts_exchanges=cluster.fabric.counts_exchanges,
            fabric=cluster.fabric,
            nics=tuple(sorted({len(host.nics) for host in workers})) or (0,),
            server_nics=len(cluster.server_type.nics),
            rack_hosts=_rack_hosts(cluster),
            protocol=cluster.protocol,
            gpudirect_rdma=cluster.gpudirect_rdma,
            nvswitch_reduces=bool(workers) and all(host.nvswitch_reduces for host in workers),
        )

    def can_serve(self, state: str) -> bool:
        """Whether the hosts on which a state's servers run say which processors they have."""
        facts = STATES[state]
        own = self.server_processors or not facts.server_hosts
        return own and (self.worker_processors or not facts.worker_hosts)

    def hosts_for(self, ranks: int) -> tuple[Mapping[str, object], ...]:
        """A cluster with devices for so many ranks, as a way out; none where hosts differ or form a torus."""
        sizes = set(self.devices_of_host)
        if len(sizes) != 1 or self.torus or ranks > 1_000_000:
            return ()
        count = -(-ranks // sizes.pop())
        return ({"cluster.num_hosts": count},) if count > self.num_hosts else ()

    @property
    def num_hosts(self) -> int:
        """Hosts of the cluster, dedicated servers aside."""
        return len(self.devices_of_host)

    def hosts_of(self, ranks: np.ndarray) -> np.ndarray:
        """Host index of each rank; hosts are filled in order.

        Parameters
        ----------
        ranks : ndarray of int, shape (n,)

        Returns
        -------
        ndarray of int, shape (n,)
        """
        ends = np.cumsum(self.devices_of_host)
        return np.searchsorted(ends, ranks, side="right")


def _rack_hosts(cluster: Cluster) -> int:
    """Hosts below the first switch, or below the first switch of each rail.

    As many as fill half of a 64-port leaf if the fabric does not say, as its builder.
    """
    fabric = cluster.fabric
    if fabric.kind == "single_switch":
        return len(cluster.devices_per_host)
    if fabric.kind == "rail_optimized":
        return fabric.hosts_per_leaf or 32
    ports = max((len(host.nics) for host in cluster.host_types), default=1)
    return (fabric.hosts_per_leaf or max(1, 32 // ports)) if fabric.kind == "leaf_spine" else 1


def nvlink_domain(host: Host) -> int:
    """Devices in the largest group of a host that NVLink joins, also through switches; 1 without NVLink."""
    neighbours: dict[str, set[str]] = {}
    for link in host.expanded_links:
        if link.kind == "nvlink":
            neighbours.setdefault(link.a, set()).add(link.b)
            neighbours.setdefault(link.b, set()).add(link.a)
    largest, seen = 1, set[str]()
    for start in neighbours:
        group, frontier = set[str](), [start]
        while frontier:
            node = frontier.pop()
            if node not in seen:
                seen.add(node)
                group.add(node)
                frontier += neighbours[node]
        largest = max(largest, sum(node.startswith("gpu") for node in group))
    return largest


@dataclass(frozen=True)
class Context:
    """A strategy beside the workload and cluster it is meant for.

    All properties are plain numbers in samples, ranks and micro-batches. One that cannot be derived,
    because another rule already refuses the strategy, is ``None``; rules then keep silent.
    """

    strategy: Strategy
    workload: Workload
    workload_facts: WorkloadFacts
    cluster: ClusterFacts

    @classmethod
    def of(cls, strategy: Strategy, workload: Workload, cluster: Cluster) -> Context:
        """Derive the facts of a workload and a cluster and hold a strategy against them."""
        return cls(strategy, workload, WorkloadFacts.of(workload), ClusterFacts.of(cluster))

    @property
    def model_parallel(self) -> int:
        """Ranks that hold one model replica: tp x cp x pp."""
        return self.strategy.tp * self.strategy.cp * self.strategy.pp

    @cached_property
    def dp(self) -> int | None:
        """Data parallel degree: as given, else what fills the cluster; ``None`` if nothing does."""
        if self.strategy.dp is not None:
            return self.strategy.dp
        devices = self.cluster.num_devices
        return devices // self.model_parallel if devices % self.model_parallel == 0 and devices else None

    @cached_property
    def num_ranks(self) -> int | None:
        """Ranks of the job; ``None`` if they cannot be placed on the cluster."""
        if self.dp is None:
            return None
        ranks = self.dp * self.model_parallel
        return ranks if ranks <= self.cluster.num_devices else None

    @cached_property
    def replica_batch(self) -> int | None:
        """Samples one model replica trains on per step."""
        workload = self.workload
        if workload.batch_per_device is not None:
            return workload.batch_per_device
        if workload.global_batch_size is None or self.dp is None:
            return None
        replicas = self.dp * self.strategy.replicas_per_device
        return None if workload.global_batch_size % replicas else workload.global_batch_size // replicas

    @cached_property
    def num_micro_batches(self) -> int | None:
        """Micro-batches per replica and step (gradient accumulation, or the pipeline's m)."""
        if self.replica_batch is None:
            return None
        size = self.strategy.micro_batch_size or self.replica_batch
        return self.replica_batch // size if self.replica_batch % size == 0 else None

    @property
    def uses_servers(self) -> bool:
        """Whether parameters live on parameter servers."""
        return self.strategy.has_servers

    @property
    def uses_groups(self) -> bool:
        """Whether replicas form groups: of a partial all-reduce, a hybrid, or under an aggregator."""
        grouped = self.strategy.synchronization in ("partial_allreduce", "group_hybrid")
        return grouped or TOPOLOGIES[self.strategy.topology].grouped

    @property
    def group_size(self) -> int:
        """Replicas of a group: as given, else those that share a host."""
        if self.strategy.group_size is not None:
            return self.strategy.group_size
        devices = self.cluster.devices_of_host[0] if self.cluster.devices_of_host else 1
        return min(max(1, devices // self.model_parallel), self.dp or 1)

    @property
    def is_sharded(self) -> bool:
        """Whether optimiser state is sharded over the data parallel ranks (ZeRO)."""
        return self.strategy.sharding > 0

    @cached_property
    def used_hosts(self) -> int:
        """Hosts that carry at least one rank (all of them while the ranks cannot be placed)."""
        if self.num_ranks is None:
            return self.cluster.num_hosts
        return int(self.cluster.hosts_of(np.array([self.num_ranks - 1]))[0]) + 1

    @property
    def gradient_ranks(self) -> int:
        """Ranks that hold the same parameters and sum their gradients; 0 while ``dp`` is unknown."""
        replicas = 2 if SCHEDULES[self.strategy.schedule].bidirectional else 1
        return (self.dp or 0) * self.strategy.cp * replicas

    @cached_property
    def gradient_grid(self) -> tuple[int, ...] | None:
        """Extents of every gradient group, or ``None`` if some group is no grid.

        A gradient group is the dp x cp ranks that hold the same parameters. The grid is what a collective
        over several dimensions works on: the dimensions of a torus that the groups fill; elsewhere (ranks per
        host, hosts): first within hosts, then across them.
        """
        if self.num_ranks is None or self.dp is None:
            return None
        ranks = np.arange(self.num_ranks)
        coordinate = _coordinates(ranks, self.strategy, self.dp)
        stage, replicas = coordinate["pp"], 1
        if SCHEDULES[self.strategy.schedule].bidirectional:  # ranks s and p - 1 - s hold the same stages
            stage, replicas = np.minimum(stage, self.strategy.pp - 1 - stage), 2
        group = coordinate["tp"] + self.strategy.tp * stage
        hosts = self.cluster.hosts_of(ranks)
        if self.cluster.torus:
            members = np.argsort(group, kind="stable").reshape(-1, self.gradient_ranks)
            along = sub_grid(members if self.cluster.torus_of_devices else hosts[members], self.cluster.torus)
            if along is not None and (self.strategy.collective != "torus2d" or len(along) == 2):
                return along
        pairs = group * self.cluster.num_hosts + hosts
        counts = np.unique(pairs, return_counts=True)[1]
        per_host = int(counts[0])
        if np.any(counts != per_host):
            return None
        return per_host, self.dp * self.strategy.cp * replicas // per_host


def _coordinates(ranks: np.ndarray, strategy: Strategy, dp: int) -> dict[str, np.ndarray]:
    """Index of each rank along every axis, for the strategy's placement (fastest axis first)."""
    degree = {"tp": strategy.tp, "cp": strategy.cp, "dp": dp, "pp": strategy.pp}
    coordinates: dict[str, np.ndarray] = {}
    stride = 1
    for axis in strategy.placement:
        coordinates[axis] = ranks // stride % degree[axis]
        stride *= degree[axis]
    return coordinates
