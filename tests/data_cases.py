"""Cases of the rules on the data path and on checkpoints; the test cluster has no store at all."""

from __future__ import annotations

from typing import Any

REFUSED: list[tuple[Any, ...]] = [
    ("memory-cache-fits", {"store": "memory_cache"}, "store", "num_samples and sample_bytes"),
    ("store-local", {"store": "staged_nvme"}, "store", "local_storage"),
    ("shuffle-store", {"shuffle": "global"}, "shuffle", "be shard while the store is cluster"),
    ("decode-device", {"decode": "device"}, "decode", "device_decode_time_per_sample"),
    ("decode-workers", {"decode_workers": 9}, "decode_workers", "at most the host's cores (8)"),
    ("checkpoint-store", {"checkpoint_every": 100}, "checkpoint_every", "without storage"),
]
