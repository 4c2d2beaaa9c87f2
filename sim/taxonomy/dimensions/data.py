"""Dimensions of what surrounds training: the data path, saved models, geography."""

from __future__ import annotations

from sim.taxonomy.dimensions.value import Dimension, Value, setting

_STORE = "strategy.store"
_SURVEYS = "Mayer and Jacobsen, CSUR 2020; Zhu et al. 2021"

DATA: tuple[Dimension, ...] = (
    Dimension(
        "D15",
        "data path",
        "Where do samples come from, and what must happen to them before they can be trained on?",
        (
            setting(_STORE, "cluster", "the cluster's shared store, or each host's disk where there is none"),
            setting(_STORE, "local", "each host's own disk"),
            setting(_STORE, "memory_cache", "the hosts' memory, which holds the data set after one epoch"),
            setting(_STORE, "staged_nvme", "each host's own disk, to which the data set was copied before"),
            setting("strategy.sample_format", "records", "samples packed in large files: few requests"),
            setting("strategy.sample_format", "files", "a file per sample: a request each"),
            setting("strategy.shuffle", "shard", "each host trains on its own shard"),
            setting("strategy.shuffle", "global", "samples are drawn from all hosts' shards"),
            setting("strategy.decode", "cpu", "decoded on processor cores", "strategy.decode_workers"),
            setting("strategy.decode", "device", "decoded on the device, in its compute stream"),
            Value("prefetch(d)", "the loader is d batches ahead", fields=("strategy.prefetch_batches",)),
            Value("shared store", "bandwidth, latency, requests per second", fields=("cluster.storage",)),
        ),
        f"{_SURVEYS}; Murray et al., tf.data, VLDB 2021; Mohan et al., CoorDL, VLDB 2021",
    ),
    Dimension(
        "D19",
        "checkpoints",
        "How often is the training state saved, and does training wait for it?",
        (
            setting(
                "strategy.checkpoint_mode",
                "sync",
                "training waits until the store has everything",
                "strategy.checkpoint_every",
                name="sync(n)",
            ),
            setting(
                "strategy.checkpoint_mode",
                "async",
                "training waits for a copy in host memory, which is written behind it",
                "strategy.checkpoint_every",
                name="async(n)",
            ),
        ),
        f"{_SURVEYS}; Mohan et al., CheckFreq, FAST 2021",
    ),
    Dimension(
        "D20",
        "geography",
        "How far apart are the hosts?",
        (
            Value(
                "one cluster",
                "one fabric; what every cluster is by default",
                {"cluster.fabric.uplink_latency": 0},
            ),
            Value(
                "sites(latency)",
                "each leaf of a leaf-spine fabric is a site, its uplink the wide-area link",
                {"cluster.fabric.kind": "leaf_spine"},
                ("cluster.fabric.uplink_latency", "cluster.fabric.uplink_bandwidth"),
            ),
            Value(
                "clients(fraction)",
                "edge clients around a server, of which some take part in a round",
                {"strategy.synchronization": "local", "strategy.state": "ps_dedicated"},
                ("strategy.participation", "strategy.availability"),
            ),
        ),
        f"{_SURVEYS}; Hsieh et al., Gaia, NSDI 2017; McMahan et al., AISTATS 2017",
    ),
)
