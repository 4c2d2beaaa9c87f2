"""The data path: how fast samples reach a replica (taxonomy D15), and what a checkpoint costs (D19)."""

from __future__ import annotations

from dataclasses import dataclass

from sim.spec.cluster import Cluster
from sim.spec.host import Host, Storage
from sim.spec.strategy import Strategy
from sim.spec.workload import DTYPE_BYTES, OPTIMIZER_STATES, Workload

FP32 = 4.0


@dataclass(frozen=True)
class DataPath:
    """Seconds each stage needs for one replica's samples of a step; the stages work beside each other.

    Attributes
    ----------
    read_s : float
        From the store: its bandwidth and operations shared by everybody who reads at the same time.
    fetch_s : float
        From other hosts' caches over the network, where samples are shuffled across hosts.
    decode_s : float
        On the processor's cores.
    device_s : float
        On the device, in its compute stream (DALI); takes part in no overlap.
    """

    read_s: float
    fetch_s: float
    decode_s: float
    device_s: float

    @property
    def seconds(self) -> float:
        """What the producers need for a batch: samples pass the stages one by one, the slowest decides."""
        return max(self.read_s, self.fetch_s, self.decode_s)

    @property
    def bottleneck(self) -> str:
        """The slowest producer: read, fetch or decode."""
        stages = {"read": self.read_s, "fetch": self.fetch_s, "decode": self.decode_s}
        return max(stages, key=lambda stage: stages[stage])


def data_path(
    workload: Workload, cluster: Cluster, strategy: Strategy, *, samples: float, replicas: int, hosts: int
) -> DataPath:
    """Stage times of loading one replica's samples of a step.

    Parameters
    ----------
    workload, cluster, strategy
        ``sample_bytes``, ``input_time_per_sample`` (seconds of a whole worker), ``decode_time_per_sample``
        (core-seconds); the stores; ``store``, ``sample_format``, ``decode``, ``shuffle``.
    samples : float
        Samples of one replica and step.
    replicas, hosts : int
        Replicas that train, and the hosts they are on.

    Notes
    -----
    The steady state is described: ``memory_cache`` and ``staged_nvme`` have been filled before (the first
    epoch and the staging are :func:`staging_seconds`). tf.data (Murray et al., VLDB 2021) and CoorDL (Mohan
    et al., VLDB 2021) describe the stages.
    """
    host = cluster.host_of(0)
    store, shared = _store(cluster, strategy)
    per_host = max(1.0, replicas / hosts)
    size = workload.sample_bytes
    read = 0.0
    if store is not None and size:
        read = _read_seconds(store, samples, size, replicas if shared else per_host, per_host, strategy)
    fetch = 0.0
    if strategy.store in ("memory_cache", "staged_nvme") and strategy.shuffle == "global" and hosts > 1:
        ports = sum(nic.bandwidth for nic in host.nics)
        fetch = samples * size * (hosts - 1) / hosts * per_host / ports
    decode = samples * workload.input_time_per_sample
    device = 0.0
    if strategy.decode == "device":
        device = samples * workload.device_decode_time_per_sample
    else:
        cores = strategy.decode_workers or max(1.0, host.cpu_cores / per_host)
        decode += samples * workload.decode_time_per_sample / cores
    return DataPath(read, fetch, decode, device)


def _store(cluster: Cluster, strategy: Strategy) -> tuple[Storage | None, bool]:
    """Where samples are read from in the steady state, and whether all hosts share it."""
    local = cluster.host_of(0).local_storage
    if strategy.store == "memory_cache":
        return None, False
    if strategy.store in ("local", "staged_nvme") or cluster.storage is None:
        return local, False
    return cluster.storage, True


def _read_seconds(
    store: Storage, samples: float, size: float, readers: float, per_host: float, strategy: Strategy
) -> float:
    """Latency, then the slowest of bytes, operations and one client's share."""
    operations = samples if strategy.sample_format == "files" else 1.0
    seconds = samples * size * readers / store.bandwidth
    if store.operations_per_second is not None:
        seconds = max(seconds, operations * readers / store.operations_per_second)
    if store.client_bandwidth is not None:
        seconds = max(seconds, samples * size * per_host / store.client_bandwidth)
    return store.latency + seconds


def staging_seconds(workload: Workload, cluster: Cluster, strategy: Strategy, hosts: int) -> float | None:
    """Seconds to fill caches or local disks once from the shared store; None where nothing is staged.

    Each host holds its shard of the data set.
    """
    if strategy.store not in ("memory_cache", "staged_nvme") or not workload.num_samples:
        return None
    source = cluster.storage or cluster.host_of(0).local_storage
    if source is None or not workload.sample_bytes:
        return None
    total = workload.num_samples * workload.sample_bytes
    seconds = total / source.bandwidth if cluster.storage else total / hosts / source.bandwidth
    if source.client_bandwidth is not None:
        seconds = max(seconds, total / hosts / source.client_bandwidth)
    return source.latency + seconds


@dataclass(frozen=True)
class Checkpoint:
    """What writing the training state costs.

    Attributes
    ----------
    bytes_total : float
        fp32 parameters and optimiser states, each once.
    write_s : float
        Until the store has everything.
    stall_s : float
        How long training stands still for one checkpoint.
    every_steps : int
    """

    bytes_total: float
    write_s: float
    stall_s: float
    every_steps: int


def checkpoint(
    workload: Workload, cluster: Cluster, strategy: Strategy, *, hosts: int, replicas: int, ranks: int
) -> Checkpoint | None:
    """Cost of one checkpoint; None without ``checkpoint_every``.

    ``sync``: training waits for the store. ``async``: it waits until the state is copied to the hosts'
    memory (over the devices' PCIe links), and the write goes on behind it (CheckFreq, Mohan et al., FAST
    2021). Replicated state is written by one replica's hosts, sharded state by all.
    """
    if strategy.checkpoint_every is None:
        return None
    states = OPTIMIZER_STATES[workload.optimizer]
    low_precision = DTYPE_BYTES[workload.dtype] < FP32
    total = workload.num_parameters * (
        FP32 * (1 + states) + (DTYPE_BYTES[workload.dtype] if low_precision else 0)
    )
    writers = float(hosts)
    if strategy.has_servers:
        writers = float(strategy.num_servers or 1) if strategy.has_server_hosts else float(hosts)
    elif not strategy.sharding:
        writers = max(1.0, hosts / replicas)
    host = cluster.host_of(0)
    store = cluster.storage or host.local_storage
    write = 0.0
    if store is not None:
        write = total / (store.bandwidth if cluster.storage else store.bandwidth * writers)
        if store.client_bandwidth is not None:
            write = max(write, total / writers / store.client_bandwidth)
        write += store.latency
    devices = ranks if strategy.sharding else ranks / replicas
    copy = total / (devices * _device_bandwidth(host))
    stall = write if strategy.checkpoint_mode == "sync" else copy
    return Checkpoint(total, write, stall, strategy.checkpoint_every)


def _device_bandwidth(host: Host) -> float:
    """Bytes/s from one device to its host's memory: its PCIe link, else its share of the network ports."""
    pcie = [
        link.bandwidth
        for link in host.expanded_links
        if link.kind == "pcie" and (link.a.startswith("gpu") or link.b.startswith("gpu"))
    ]
    total = sum(pcie) or sum(nic.bandwidth for nic in host.nics)
    return total / max(host.num_devices, 1)
