"""Rules on batch and precision (dimensions D14 and D16)."""

from __future__ import annotations

from sim.taxonomy.context import Context
from sim.taxonomy.rule import Finding, RuleSet, near_divisors, ways

RULES = RuleSet()


@RULES.refuse(
    "batch-given",
    "",
    "a fixed global batch is strong scaling, a fixed batch per replica weak scaling; they exclude each other",
)
def batch_is_stated_once(c: Context) -> Finding | None:
    """Exactly one of the two batch fields is given."""
    total, each = c.workload.global_batch_size, c.workload.batch_per_device
    if (total is None) != (each is None):
        return None
    if total is None:
        example = 32 * (c.dp or 1)
        missing = ways("workload.batch_per_device", [32]) + ways("workload.global_batch_size", [example])
        return Finding("workload.global_batch_size", "be given, or batch_per_device", "neither", missing)
    return Finding(
        "workload.global_batch_size",
        "not be given together with batch_per_device",
        f"{total} and {each}",
        ({"workload.batch_per_device": None}, {"workload.global_batch_size": None}),
    )


@RULES.refuse(
    "C2-28", "dp micro_batch_size", "every replica trains on the same number of whole micro-batches"
)
def batch_divides_into_micro_batches(c: Context) -> Finding | None:
    """The global batch divides by dp x micro_batch_size."""
    total, size, dp = c.workload.global_batch_size, c.strategy.micro_batch_size, c.dp
    if dp is not None:
        dp *= c.strategy.replicas_per_device
    if total is not None and dp is not None and total % dp:
        unit = dp * (size or 1)
        below, above = total // unit * unit, (total // unit + 1) * unit
        fewer = near_divisors(dp, total, most=dp) if c.strategy.dp is not None else []
        near = ways("workload.global_batch_size", [batch for batch in (below, above) if batch > 0])
        return Finding(
            "workload.global_batch_size",
            f"be a multiple of dp ({dp})",
            total,
            near + ways("strategy.dp", fewer),
        )
    if size is None or c.replica_batch is None or c.replica_batch % size == 0:
        return None
    return Finding(
        "strategy.micro_batch_size",
        f"divide the batch of a replica ({c.replica_batch})",
        size,
        ways("strategy.micro_batch_size", near_divisors(size, c.replica_batch)),
    )


@RULES.warn("dtype-device", "", "a device computes a type it has no units for as a wider one")
def device_computes_in_dtype(c: Context) -> Finding | None:
    """A device type without a peak for the compute precision."""
    dtype = c.workload.dtype
    for device, dtypes in c.cluster.dtypes_of_device.items():
        if dtype not in dtypes:
            return Finding("workload.dtype", f"{device} has no {dtype} units, only {', '.join(dtypes)}")
    return None
