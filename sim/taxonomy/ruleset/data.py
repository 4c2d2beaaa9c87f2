"""Rules on the data path and on checkpoints (dimensions D15 and D19)."""

from __future__ import annotations

from sim.taxonomy.context import Context
from sim.taxonomy.rule import Finding, RuleSet
from sim.units import format_quantity

RULES = RuleSet()

_STAGED = ("memory_cache", "staged_nvme")
_TO_CLUSTER = {"strategy.store": "cluster"}


@RULES.refuse("memory-cache-fits", "store", "a cache in memory holds a host's shard of the data set")
def cache_fits_into_memory(c: Context) -> Finding | None:
    """The data set fits into the memory of all hosts together."""
    samples, size = c.workload.num_samples, c.workload.sample_bytes
    if c.strategy.store != "memory_cache":
        return None
    if samples is None or not size:
        must = "be cluster or local for a workload that does not state num_samples and sample_bytes"
        return Finding("strategy.store", must, c.strategy.store, (_TO_CLUSTER,), explain=True)
    memory = c.cluster.memory_bytes
    if samples * size <= memory:
        return None
    needed, there = (format_quantity(value, "bytes", 3) for value in (samples * size, memory))
    must = f"be another store: the data set takes {needed}, the hosts' memory is {there}"
    return Finding("strategy.store", must, c.strategy.store, (_TO_CLUSTER, {"strategy.store": "staged_nvme"}))


@RULES.refuse("store-local", "store", "samples are read from a disk that each host has of its own")
def local_store_exists(c: Context) -> Finding | None:
    """Hosts that read from local disks have them."""
    if c.strategy.store not in ("local", "staged_nvme"):
        return None
    if c.cluster.has_local_storage:
        return None
    must = "be cluster while a host states no local_storage"
    return Finding("strategy.store", must, c.strategy.store, (_TO_CLUSTER,))


@RULES.refuse("shuffle-store", "shuffle", "only what hosts hold of the data set is exchanged between them")
def global_shuffle_needs_shards(c: Context) -> Finding | None:
    """A global shuffle is one among caches or staged shards; a shared store is read globally anyway."""
    if c.strategy.shuffle == "shard" or c.strategy.store in _STAGED:
        return None
    return Finding(
        "strategy.shuffle",
        f"be shard while the store is {c.strategy.store}",
        c.strategy.shuffle,
        ({"strategy.shuffle": "shard"}, {"strategy.store": "staged_nvme"}),
        explain=True,
    )


@RULES.refuse("decode-device", "decode", "the time a device needs to decode a sample is part of the workload")
def device_decoding_is_described(c: Context) -> Finding | None:
    """Decoding on the device needs its time."""
    if c.strategy.decode == "cpu" or c.workload.device_decode_time_per_sample > 0:
        return None
    must = "be cpu for a workload without device_decode_time_per_sample"
    return Finding("strategy.decode", must, c.strategy.decode, ({"strategy.decode": "cpu"},), explain=True)


@RULES.refuse("decode-workers", "decode_workers", "replicas of a host share its cores")
def decode_workers_fit_the_host(c: Context) -> Finding | None:
    """No more decoding workers than cores."""
    workers, cores = c.strategy.decode_workers, c.cluster.cores
    if workers is None or workers <= cores:
        return None
    return Finding(
        "strategy.decode_workers", f"be at most the host's cores ({cores})", workers,
        ({"strategy.decode_workers": cores},),
    )  # fmt: skip


@RULES.refuse("checkpoint-store", "checkpoint_every", "a checkpoint is written to the data store")
def checkpoints_have_a_store(c: Context) -> Finding | None:
    """There is something to write to."""
    if c.strategy.checkpoint_every is None or c.cluster.has_shared_storage or c.cluster.has_local_storage:
        return None
    must = "be absent on a cluster without storage"
    return Finding(
        "strategy.checkpoint_every", must, c.strategy.checkpoint_every, ({"strategy.checkpoint_every": None},)
    )
