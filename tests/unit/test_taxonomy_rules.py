"""Every rule refuses (or warns of) what it should, in words a user can act on, and its advice works."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from sim.architecture import generate
from sim.errors import InvalidStrategyError
from sim.spec import Cluster, Device, Fabric, Host, Strategy, Workload
from sim.spec.host import HostLink, Nic
from sim.taxonomy import ALL_RULES, check, require_valid, warnings
from sim.taxonomy.context import Context
from sim.taxonomy.rules import apply, rule, violations
from tests import data_cases, sync_cases


@cache
def cluster(
    *devices_per_host: int,
    processors: bool = True,
    nvlink: bool = True,
    dtypes: tuple[str, ...] = ("fp32", "fp16"),
    routing: str = "ecmp",
) -> Cluster:
    """Hosts with the given numbers of devices."""
    device = Device(
        name="gpu",
        kind="gpu",
        peak_flops=dict.fromkeys(dtypes, 1e14),
        memory_bytes=8e10,
        memory_bandwidth=1e12,
        idle_power=50,
        peak_power=300,
        price_per_hour=1,
        num_multiprocessors=100,
    )
    cpu = device.model_copy(update={"name": "cpu", "kind": "cpu", "peak_flops": {"int8": 1e12}})
    sizes = sorted(set(devices_per_host))
    hosts = tuple(
        Host(
            name=f"host{size}",
            devices=(("gpu", size),),
            nics=(Nic(name="nic0", bandwidth=1e10),),
            cpu_cores=8,
            memory_bytes=1e11,
            cpu_device="cpu" if processors else None,
            links=(
                HostLink(
                    a=f"gpu[0-{size - 1}]", b="nvswitch0", bandwidth=1e11, kind="nvlink" if nvlink else "pcie"
                ),
            ),
        )
        for size in sizes
    )
    return Cluster(
        name="test",
        host=hosts[0],
        num_hosts=len(devices_per_host),
        fabric=Fabric(kind="single_switch", bandwidth=1e10, routing=routing),
        host_types=hosts,
        host_type_of=tuple(sizes.index(size) for size in devices_per_host),
        device_types=(device, cpu),
    )


HOST, PAIR, RACK = cluster(8), cluster(8, 8), cluster(8, 8, 8, 8)


@cache
def gpt(**changes: Any) -> Workload:
    """12 blocks of 12 heads (hidden 768) on 2048 tokens."""
    fields: dict[str, Any] = {
        "name": "gpt",
        "num_layers": 12,
        "hidden": 768,
        "num_heads": 12,
        "vocabulary": 50304,
        "sequence_length": 2048,
        "dtype": "fp32",
        "optimizer": "adam",
        "global_batch_size": 96,
    }
    return generate("transformer", fields | changes)


@cache
def moe() -> Workload:
    return generate(
        "moe",
        {
            "name": "moe",
            "num_layers": 4,
            "hidden": 512,
            "num_heads": 8,
            "num_experts": 6,
            "vocabulary": 1024,
            "sequence_length": 512,
            "dtype": "fp32",
            "optimizer": "adam",
            "batch_per_device": 4,
        },
    )


@cache
def cnn(**changes: Any) -> Workload:
    return generate("cnn:resnet50", {"name": "resnet50", "batch_per_device": 32, "dtype": "fp32"} | changes)


@dataclass
class Case:
    """A strategy one rule objects to: the field it blames and a piece of its text."""

    rule: str
    strategy: dict[str, Any]
    field: str
    text: str
    workload: Workload = field(default_factory=gpt)
    cluster: Cluster = RACK
    advice: str | None = None


REFUSED = [
    Case(
        "powersgd-state",
        {"compression": "powersgd", "state": "zero1"},
        "compression",
        "go with replicated state",
        advice="Try fp16 or none.",
    ),
    Case(
        "placement-axes",
        {"placement": ("tp", "dp", "pp", "pp")},
        "placement",
        "name each of tp, cp, dp, pp once",
    ),
    Case("tp-splits", {"tp": 2}, "tp", "no layer of resnet50 divides", cnn(), advice="Try 1."),
    Case("tp-heads", {"tp": 8, "dp": 1}, "tp", "divide num_heads (12). Got 8.", advice="Try 6 or 12."),
    Case(
        "tp-kv-heads",
        {"tp": 2, "dp": 4},
        "tp",
        "divide num_kv_heads (3) or be a multiple of it. Got 2.",
        gpt(num_kv_heads=3),
        advice="Try 1 or 3.",
    ),
    Case(
        "tp-hidden",
        {"tp": 4, "dp": 2},
        "tp",
        "divide the layer width 3070. Got 4.",
        gpt(ffn_hidden=3070),
        advice="Try 2 or 1.",
    ),
    Case(
        "sequence-parallel-tp",
        {"sequence_parallel": True},
        "sequence_parallel",
        "be false while tp is 1. Got true.",
    ),
    Case(
        "sequence-parallel-length",
        {"sequence_parallel": True, "tp": 4},
        "tp",
        "divide sequence_length (1022)",
        gpt(sequence_length=1022),
        advice="Try 2 or strategy.sequence_parallel=False.",
    ),
    Case(
        "cp-sequence",
        {"cp": 3, "dp": 4},
        "cp",
        "divide half of sequence_length (2048). Got 3.",
        advice="Try 2 or 4.",
    ),
    Case(
        "stage-blocks",
        {"stage_blocks": (5, 6), "pp": 2},
        "stage_blocks",
        "add up to the blocks of gpt (12). Got 5, 6 = 11.",
        advice="Try (6, 6) or None.",
    ),
    Case("stage-blocks", {"stage_blocks": (12,)}, "stage_blocks", "be absent while pp is 1. Got 12."),
    Case("stage-blocks", {"stage_blocks": (4, 4, 4), "pp": 2}, "stage_blocks", "virtual_stages (2) numbers"),
    Case("stage-blocks", {"stage_blocks": (6, 0, 6), "pp": 3}, "stage_blocks", "no chunk without a layer"),
    Case(
        "stage-blocks",
        {"stage_blocks": (6, 6), "pp": 2, "head_in_split": True},
        "stage_blocks",
        "be absent while the embedding or the head counts as a block",
    ),
    Case(
        "C2-26",
        {"cp": 8, "tp": 4, "context_parallelism": "ulysses"},
        "cp",
        "divide the heads of a tensor parallel rank (3) for ulysses. Got 8.",
        advice="Try 1 or strategy.context_parallelism=ring.",
    ),
    Case(
        "cp-synchronous",
        {"cp": 2, "state": "ps_dedicated", "synchronization": "asp"},
        "cp",
        "be 1 while synchronization is asp",
        advice="Try 1 or strategy.synchronization=bsp.",
    ),
    Case("C2-27", {"ep": 4}, "ep", "divide num_experts (6). Got 4.", moe(), advice="Try 2 or 1."),
    Case("C2-27", {"ep": 4}, "ep", "be 1, as gpt has no experts", advice="Try 1."),
    Case("ep-dp", {"ep": 3}, "ep", "divide dp (32). Got 3.", moe(), advice="Try 2 or 1."),
    Case(
        "ep-dp",
        {"ep": 3, "tp": 2, "expert_tp": 1, "sequence_parallel": True},
        "ep",
        "divide tp x dp / expert_tp (32). Got 3.",
        moe(),
        advice="Try 2 or 1.",
    ),
    Case(
        "shard-group",
        {"shard_ranks": 5, "state": "zero3"},
        "shard_ranks",
        "divide dp x cp (32). Got 5.",
        advice="Try 4 or 8.",
    ),
    Case(
        "offload-optimizer",
        {"offload_optimizer": True},
        "offload_optimizer",
        "be false on hosts without a cpu_device",
        cluster=cluster(8, processors=False),
        advice="Try False.",
    ),
    Case(
        "offload-optimizer",
        {"offload_optimizer": True, "state": "ps_dedicated"},
        "offload_optimizer",
        "be false unless every rank updates",
    ),
    Case(
        "C2-13",
        {"sufficient_factors": "always"},
        "sufficient_factors",
        "be never, as moe has no fully connected layer",
        moe(),
        advice="Try never.",
    ),
    Case(
        "C2-14",
        {"sufficient_factors": "always", "state": "zero1"},
        "sufficient_factors",
        "be never unless replicas sum uncompressed gradients",
        cnn(),
    ),
    Case("shard-group", {"shard_ranks": 4}, "shard_ranks", "be absent while state is replicated. Got 4."),
    Case(
        "shard-group",
        {"shard_ranks": 4, "state": "zero1", "collective": "hierarchical"},
        "shard_ranks",
        "be absent while collective is hierarchical",
    ),
    Case("expert-tp", {"expert_tp": 1}, "expert_tp", "be absent, as gpt has no experts. Got 1."),
    Case("expert-tp", {"expert_tp": 3, "tp": 4}, "expert_tp", "divide tp (4). Got 3.", moe()),
    Case("expert-tp", {"expert_tp": 1, "tp": 2}, "expert_tp", "be tp (2) without sequence_parallel", moe()),
    Case(
        "ranks-devices", {"dp": 64}, "dp", "no more ranks than devices (32). Got 64", advice="Try 32 or 16."
    ),
    Case(
        "ranks-devices",
        {"tp": 12, "pp": 4},
        "tp",
        "no more ranks than devices (32). Got 12",
        advice="Try 4 or 2.",
    ),
    Case(
        "ranks-fill-devices",
        {"pp": 5},
        "pp",
        "make tp x cp x pp divide the number of devices (32). Got 5",
        advice="Try 4 or 8.",
    ),
    Case(
        "C2-21",
        {"schedule": "gpipe"},
        "schedule",
        "be left at 1f1b while pp is 1. Got gpipe.",
        advice="Try 1f1b.",
    ),
    Case(
        "C2-21",
        {"schedule": "interleaved", "pp": 4, "micro_batch_size": 1},
        "virtual_stages",
        "be at least 2",
        advice="Try 2 or strategy.schedule=1f1b.",
    ),
    Case(
        "C2-21",
        {"schedule": "interleaved", "pp": 4, "virtual_stages": 2},
        "micro_batch_size",
        "a multiple of pp (4) micro-batches for the interleaved schedule. Got 12 (1 micro-batches)",
        advice="Try 3 or 1.",
    ),
    Case(
        "C2-21",
        {"schedule": "dualpipe", "pp": 4, "micro_batch_size": 2},
        "micro_batch_size",
        "at least 8 (for pp 4) micro-batches for the dualpipe schedule. Got 2 (6 micro-batches)",
        advice="Try 1 or strategy.schedule=1f1b.",
    ),
    Case(
        "C2-21",
        {"schedule": "chimera", "pp": 4, "micro_batch_size": 4},
        "micro_batch_size",
        "an even number of micro-batches for the chimera schedule. Got 4 (3 micro-batches)",
        advice="Try 6 or 3.",
    ),
    Case(
        "virtual-stages",
        {"schedule": "zb_v", "pp": 4, "micro_batch_size": 1},
        "virtual_stages",
        "be 2 for the zb_v schedule. Got 1.",
        advice="Try 2 or strategy.schedule=1f1b with strategy.virtual_stages=1.",
    ),
    Case(
        "order-barrier",
        {"order": "priority_layer", "pp": 4, "micro_batch_size": 1},
        "order",
        "be fifo while pp is more than 1, because urgency matters only where",
    ),
    Case(
        "order-barrier",
        {"order": "priority_layer", "state": "zero1"},
        "order",
        "be fifo while state is zero1 and synchronization bsp",
        advice="Try fifo.",
    ),
    Case(
        "order-library",
        {"order": "priority_layer"},
        "order",
        "be fifo with gloo, because gloo runs collectives in the order in which they were issued",
        cluster=RACK.model_copy(update={"library": "gloo"}),
    ),
    Case(
        "credit-pieces",
        {"credit": 4e6},
        "credit",
        "go with a partition_size. Got 4000000",
    ),
    Case(
        "credit-pieces",
        {"credit": 4e6, "partition_size": 8e6},
        "credit",
        "be at least partition_size (8e+06)",
    ),
    Case("cycle-time", {"fusion": "time"}, "cycle_time", "be greater than 0 for fusion time. Got 0.0"),
    Case("cycle-time", {"cycle_time": 1e-3}, "cycle_time", "be 0 without fusion time or a negotiation"),
    Case(
        "negotiation-collective",
        {"negotiation": "coordinator", "state": "ps_dedicated"},
        "negotiation",
        "be none while state is ps_dedicated",
        advice="Try none.",
    ),
    Case(
        "fusion-collective",
        {"fusion": "merge_plan", "state": "zero3"},
        "fusion",
        "be size or none while state is zero3",
        advice="Try size or none.",
    ),
    Case(
        "schedule-even",
        {"schedule": "chimera", "pp": 3, "dp": 8, "micro_batch_size": 1},
        "pp",
        "be even for the chimera schedule, because stages s and p - 1 - s share a rank",
        advice="Try 2 or 4.",
    ),
    Case(
        "schedule-replicas",
        {"schedule": "chimera", "pp": 4, "micro_batch_size": 1, "state": "zero3"},
        "state",
        "be replicated or zero1 for the chimera schedule",
        advice="Try replicated or zero1.",
    ),
    Case(
        "schedule-replicas",
        {"schedule": "chimera", "pp": 4, "micro_batch_size": 1, "synchronization": "local"},
        "synchronization",
        "be bsp or delayed for the chimera schedule",
    ),
    Case(
        "schedule-flush",
        {"schedule": "2bw", "pp": 4, "micro_batch_size": 1, "state": "zero1"},
        "state",
        "be replicated for the 2bw schedule",
        advice="Try replicated or strategy.schedule=1f1b.",
    ),
    Case(
        "schedule-flush",
        {"schedule": "pipedream_async", "pp": 4, "synchronization": "local"},
        "synchronization",
        "be bsp for the pipedream_async schedule",
    ),
    Case(
        "virtual-stages",
        {"virtual_stages": 2, "pp": 4},
        "virtual_stages",
        "be 1 for the 1f1b schedule. Got 2.",
    ),
    Case(
        "pp-blocks",
        {"pp": 16},
        "pp",
        "at most the number of blocks of gpt (12). Got 16.",
        advice="Try 8 or 4.",
    ),
    Case(
        "pp-blocks",
        {"pp": 4, "virtual_stages": 4, "schedule": "interleaved", "micro_batch_size": 1},
        "virtual_stages",
        "no more than the 12 blocks of gpt. Got 4 (pp 4).",
        advice="Try 3 or 2.",
    ),
    Case(
        "batch-given",
        {},
        "workload.global_batch_size",
        "be given, or batch_per_device. Got neither.",
        gpt(global_batch_size=None),
        advice="Try workload.batch_per_device=32 or 1024.",
    ),
    Case(
        "batch-given",
        {},
        "workload.global_batch_size",
        "not be given together with batch_per_device. Got 96 and 4.",
        gpt(batch_per_device=4),
    ),
    Case(
        "C2-28",
        {},
        "workload.global_batch_size",
        "be a multiple of dp (32). Got 100.",
        gpt(global_batch_size=100),
        advice="Try 96 or 128.",
    ),
    Case(
        "C2-28",
        {"micro_batch_size": 2},
        "micro_batch_size",
        "divide the batch of a replica (3). Got 2.",
        advice="Try 1 or 3.",
    ),
    Case("servers-state", {"num_servers": 4}, "num_servers", "be absent while state is replicated. Got 4."),
    Case(
        "servers-colocated",
        {"state": "ps_colocated", "num_servers": 9},
        "num_servers",
        "be at most the devices of the 1 worker hosts (8)",
        cluster=HOST,
        workload=cnn(),
        advice="Try 8 or strategy.state=ps_dedicated.",
    ),
    Case(
        "servers-processors",
        {"state": "ps_dedicated"},
        "state",
        "hosts without a cpu_device",
        cluster=cluster(8, processors=False),
        advice="Try replicated.",
    ),
    Case(
        "servers-experts", {"state": "ps_dedicated", "ep": 2}, "ep", "be 1 while state is ps_dedicated", moe()
    ),
    Case(
        "C2-1",
        {"state": "ps_dedicated", "collective": "ring"},
        "collective",
        "be auto while state is ps_dedicated, because a server aggregates",
        advice="Try auto or strategy.state=replicated.",
    ),
    Case(
        "C2-2",
        {"synchronization": "asp"},
        "synchronization",
        "be bsp or local while state is replicated, because a collective is a barrier",
        advice="Try strategy.state=ps_dedicated or bsp.",
    ),
    Case(
        "C2-2",
        {"synchronization": "ssp", "staleness": 3, "state": "zero1"},
        "synchronization",
        "be bsp while state is zero1",
    ),
    Case(
        "C2-3",
        {"synchronization": "backup", "backup_workers": 1},
        "synchronization",
        "every member must contribute",
    ),
    Case(
        "C2-4",
        {"synchronization": "asp", "state": "zero3"},
        "synchronization",
        "each layer gathers parameters",
    ),
    Case(
        "C2-36",
        {"synchronization": "backup", "state": "zero2"},
        "synchronization",
        "every shard owner is needed",
    ),
    Case(
        "local-state",
        {"synchronization": "local", "local_steps": 4, "state": "zero1"},
        "state",
        "be replicated or a parameter server for local SGD",
    ),
    Case(
        "local-replica",
        {"synchronization": "local", "local_steps": 4, "ep": 2},
        "ep",
        "be 1 for local SGD",
        moe(),
    ),
    Case(
        "backup-replica",
        {"synchronization": "backup", "backup_workers": 1, "state": "ps_dedicated", "tp": 2},
        "tp",
        "be 1 for backup workers",
        advice="Try 1 or strategy.synchronization=bsp with strategy.backup_workers=0.",
    ),
    Case(
        "staleness-ssp",
        {"staleness": 2, "synchronization": "asp", "state": "ps_dedicated"},
        "staleness",
        "be 0 while synchronization is asp. Got 2.",
        advice="Try 0 or strategy.synchronization=ssp.",
    ),
    Case(
        "backup-workers", {"backup_workers": 2}, "backup_workers", "be 0 while synchronization is bsp. Got 2."
    ),
    Case(
        "backup-workers",
        {"backup_workers": 8, "synchronization": "backup", "state": "ps_dedicated"},
        "backup_workers",
        "be less than dp (8). Got 8.",
        cluster=HOST,
        advice="Try 7.",
    ),
    Case(
        "local-steps",
        {"local_steps": 4},
        "local_steps",
        "be 1 while synchronization is bsp. Got 4.",
        advice="Try 1 or strategy.synchronization=local.",
    ),
    Case(
        "C2-20",
        {"collective": "hierarchical"},
        "collective",
        "group has 8 on each of 1 hosts",
        cluster=HOST,
        workload=cnn(),
        advice="Try ring or auto.",
    ),
    Case(
        "C2-20",
        {"collective": "torus2d"},
        "collective",
        "different numbers of ranks on its hosts",
        cluster=cluster(4, 8),
        workload=cnn(),
    ),
    Case(
        "C2-20",
        {"collective": "hierarchical", "pp": 2, "placement": ("dp", "tp", "cp", "pp")},
        "collective",
        "group has 8 on each of 1 hosts",
        cluster=PAIR,
    ),
    Case(
        "grid-experts",
        {"collective": "hierarchical", "ep": 2},
        "collective",
        "be a flat algorithm while ep is above 1",
        moe(),
    ),
    Case(
        "chunks-collective",
        {"chunks": 4},
        "chunks",
        "be 1 while collective is auto. Got 4.",
        advice="Try 1 or strategy.collective=hierarchical.",
    ),
    Case(
        "sharding-algorithm",
        {"collective": "tree", "state": "zero1"},
        "collective",
        "have a reduce-scatter form",
        advice="Try ring or strategy.state=replicated.",
    ),
    Case(
        "sharding-algorithm",
        {"collective": "halving_doubling", "state": "zero3", "dp": 6},
        "collective",
        "for 6 ranks, no power of two",
    ),
    Case(
        "direct-ranks",
        {"collective": "direct"},
        "collective",
        "of more than 4096 ranks on this fabric. Got direct (8192 ranks).",
        cnn(),
        cluster(*[8] * 1024, routing="hashed"),
        advice="Try ring or auto.",
    ),
    Case(
        "grid-shape",
        {"collective": "torus2d", "collective_dims": (4, 7)},
        "collective_dims",
        "multiply to the 32 ranks of a gradient group. Got [4, 7].",
        cnn(),
        advice="Try (4, 8) or (2, 16).",
    ),
    Case(
        "grid-shape",
        {"collective": "torus2d", "collective_dims": (2, 4, 4)},
        "collective_dims",
        "be two extents of at least 2",
        cnn(),
    ),
    Case(
        "grid-shape",
        {"collective": "ring", "collective_dims": (4, 8)},
        "collective_dims",
        "be given for bcube, blueconnect, hierarchical, torus2d only",
        cnn(),
    ),
    Case(
        "radix-collective",
        {"collective": "tree", "collective_radix": 4},
        "collective_radix",
        "be given for bcube and kary_tree",
        cnn(),
    ),
    Case(
        "radix-collective",
        {"collective": "bcube", "collective_radix": 4},
        "collective_radix",
        "be a base of which the 32 ranks",
        cnn(),
    ),
    Case(
        "grid-experts",
        {"collective": "bcube", "collective_radix": 2, "ep": 2},
        "collective",
        "be a flat algorithm while ep is above 1",
        moe(),
    ),
]

WARNED = [
    Case("C2-25", {"tp": 12, "dp": 1}, "tp", "an NVLink domain has 8 devices"),
    Case("C2-25", {"tp": 2}, "tp", "there is no NVLink between devices", cluster=cluster(8, nvlink=False)),
    Case("idle-devices", {"dp": 24}, "dp", "8 of 32 devices carry no rank"),
    Case(
        "few-micro-batches",
        {"pp": 4},
        "micro_batch_size",
        "1 micro-batch for 4 stages: at least 75% of a step is bubble",
    ),
    Case(
        "C2-33", {"order": "priority_layer", "bucket_size": 1e12}, "order", "one bucket holds all gradients"
    ),
    Case(
        "order-overlap",
        {"order": "priority_layer", "overlap": False},
        "order",
        "without overlap helps the next forward only",
    ),
    Case("buckets-unused", {"partition_size": 1e6, "state": "zero3"}, "partition_size", "has no effect"),
    Case("C2-22", {"pp": 4, "schedule": "pipedream_async"}, "schedule", "classified as delayed"),
    Case("C2-37", {"weight_stash": True}, "weight_stash", "changes nothing with schedule 1f1b"),
    Case(
        "C2-24",
        {"pp": 4, "schedule": "zb_h1", "micro_batch_size": 1, "recompute": "full"},
        "recompute",
        "the repeated forward precedes the gradient of the input",
    ),
    Case("C2-23", {"pp": 4, "state": "zero3"}, "state", "repeats its collectives per micro-batch"),
    Case("selective-recompute", {"recompute": "selective"}, "recompute", "changes nothing: resnet50", cnn()),
    Case("dtype-device", {}, "workload.dtype", "gpu has no bf16 units, only fp32, fp16", cnn(dtype="bf16")),
    Case("sharding-alone", {"dp": 1, "state": "zero1"}, "state", "shards nothing"),
    Case(
        "split-ends",
        {"embedding_in_split": True, "pp": 1},
        "embedding_in_split",
        "no effect while pp is 1",
    ),
    Case("expert-load", {"expert_imbalance": 1.5}, "expert_imbalance", "no effect, as gpt has no experts"),
    Case("context-cp", {"context_parallelism": "ulysses"}, "context_parallelism", "no effect while cp is 1"),
    Case(
        "reshard-state",
        {"reshard_after_forward": False},
        "reshard_after_forward",
        "while state is replicated",
    ),
    Case("prefetch-state", {"prefetch": 2}, "prefetch", "no effect while state is replicated"),
    Case("C2-15", {"synchronization": "local"}, "local_steps", "averages after every step"),
    Case(
        "ssp-zero", {"synchronization": "ssp", "state": "ps_dedicated"}, "staleness", "waits for every worker"
    ),
    Case(
        "backup-zero",
        {"synchronization": "backup", "state": "ps_dedicated"},
        "backup_workers",
        "waits for every gradient",
    ),
    Case(
        "C2-38",
        {"synchronization": "asp", "state": "ps_dedicated"},
        "synchronization",
        "lamb",
        gpt(optimizer="lamb"),
    ),
    Case("C2-19", {"collective": "halving_doubling", "dp": 24}, "collective", "on 24 ranks, no power of two"),
    Case("compression-dtype", {"compression": "fp16"}, "compression", "saves nothing", gpt(dtype="fp16")),
    Case(
        "C2-32",
        {"compression": "fp16", "synchronization": "local", "local_steps": 4},
        "compression",
        "sends no gradients",
    ),
    Case("no-peers", {"collective": "ring", "dp": 1}, "collective", "no gradient is exchanged"),
]


def _named(cases: list[Case]) -> list[Any]:
    return [pytest.param(case, id=f"{case.rule}-{index}") for index, case in enumerate(cases)]


REFUSED += [Case(*case) for case in (*sync_cases.REFUSED, *data_cases.REFUSED)]
WARNED += [Case(*case) for case in sync_cases.WARNED]


def _dotted(name: str) -> str:
    return name if "." in name else f"strategy.{name}"


@pytest.mark.parametrize("case", _named(REFUSED))
def test_rule_refuses_with_its_reason_and_a_way_out(case: Case) -> None:
    strategy = Strategy(**case.strategy)
    refusals = {refusal.rule: refusal for refusal in check(strategy, case.workload, case.cluster)}
    refusal = refusals[case.rule]
    assert refusal.field == _dotted(case.field)
    assert str(refusal).startswith(f"{_dotted(case.field)}: must ")
    assert case.text in str(refusal)
    assert refusal.reason == rule(case.rule).reason
    if case.advice is not None:
        assert str(refusal).endswith(case.advice)


@pytest.mark.parametrize("case", _named(REFUSED))
def test_the_advice_settles_the_rule_and_breaks_no_other(case: Case) -> None:
    context = Context.of(Strategy(**case.strategy), case.workload, case.cluster)
    before = {each.id for each, _ in violations(context)}
    refusal = next(r for r in check(context.strategy, case.workload, case.cluster) if r.rule == case.rule)
    assert refusal.alternatives, "a refusal must say what would be accepted"
    for overrides in refusal.alternatives:
        after = {each.id for each, _ in violations(apply(context, overrides))}
        assert case.rule not in after
        assert after < before


@pytest.mark.parametrize("case", _named(WARNED))
def test_rule_warns_but_the_strategy_plays(case: Case) -> None:
    strategy = Strategy(**case.strategy)
    assert check(strategy, case.workload, case.cluster) == ()
    reason = rule(case.rule).reason
    spoken = [line for line in warnings(strategy, case.workload, case.cluster) if reason in line]
    assert len(spoken) == 1
    assert spoken[0].startswith(f"{_dotted(case.field)}: ")
    assert case.text in spoken[0]


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in REFUSED} == {each.id for each in ALL_RULES if each.verdict == "invalid"}
    assert {case.rule for case in WARNED} == {each.id for each in ALL_RULES if each.verdict == "warn"}


def test_rules_are_named_once_and_explained() -> None:
    ids = [each.id for each in ALL_RULES]
    assert len(ids) == len(set(ids))
    for each in ALL_RULES:
        assert each.reason
        assert not each.reason.endswith(".")
        assert set(each.fields) <= set(Strategy.model_fields)
        assert each.find.__doc__


def test_plain_strategy_has_neither_refusals_nor_warnings() -> None:
    assert check(Strategy(), gpt(), RACK) == ()
    assert warnings(Strategy(), gpt(), RACK) == ()


def test_error_follows_the_grammar_and_names_its_rule() -> None:
    with pytest.raises(InvalidStrategyError) as caught:
        require_valid(Strategy(tp=7, dp=1), gpt(num_heads=96, hidden=768), RACK, where="job.yaml:12")
    assert str(caught.value) == "strategy.tp: must divide num_heads (96). Got 7. Try 6 or 8. (job.yaml:12)"
    assert caught.value.rule == "tp-heads"
    assert caught.value.exit_code == 3


def test_advice_that_breaks_another_rule_is_not_given() -> None:
    with pytest.raises(InvalidStrategyError, match=r"Got 7\. Try 8 or 4\.$"):
        require_valid(Strategy(tp=7), gpt(num_heads=96, hidden=768), RACK)  # 6 does not divide 32 devices
