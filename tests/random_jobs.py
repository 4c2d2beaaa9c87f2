"""Random small jobs: every state, schedule and group layout on clusters of every shape, quick to play."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from sim.spec import Cluster, Host, Scenario, Workload
from sim.spec.layer import Attention, Gemm, Layer
from sim.taxonomy.states import STATES as FACTS
from tests.clusters import cluster, dgx1, plain_host, switched_host
from tests.scenarios import ideal, processor, scenario, serving_host, timed_layer, workload


def model(*, experts: bool = False) -> Workload:
    """Eight layers in four blocks, alternately dense and (if wanted) of experts, with a tied output table."""
    layers = [
        timed_layer(
            i, 1e-3 * (1 + i % 3), 2e-3 * (1 + i % 2), block=i // 2,
            parameters=2e6 + 1e5 * i, tensor_parameters=2e6, tensor_all_reduce=True,
            input_elements=0 if i == 0 else 4e5, output_elements=4e5,
            expert_parameters=4e6 if experts and i % 2 else 0,
            expert_elements=4e5 if experts and i % 2 else 0, num_experts=4 if experts and i % 2 else 0,
        )
        for i in range(8)
    ]  # fmt: skip
    core = Attention(
        query_length=512, key_length=512, heads=8, kv_heads=4, head_dim=64, causal=True, flash=True
    )
    for i in (1, 4, 5):
        layers[i] = layers[i].model_copy(update={"ops": (*layers[i].ops, core)})
    layers[-1] = layers[-1].model_copy(update={"shared_parameters": 1e6})
    return workload(
        layers, batch=4, sequence_length=512, num_heads=8, num_kv_heads=4, num_experts=4 if experts else None
    )  # fmt: skip


DENSE, MIXTURE = model(), model(experts=True)


def _matrix(name: str, n: int, k: int) -> Layer:
    """A fully connected layer of its own block."""
    return Layer(
        name=name, kind="linear", block=4, ops=(Gemm(rows=1, n=n, k=k),), parameters=n * k, tensors=(n * k,),
        input_elements=k, output_elements=n, stored_elements=k,
    )  # fmt: skip


_ENDS = (_matrix("fc0", 2000, 40000), _matrix("fc1", 1000, 2000), timed_layer(10, 1e-4, 2e-4, block=4))
MATRICES = DENSE.model_copy(update={"layers": (*DENSE.layers[:-1], *_ENDS)})
SERVING = {"cpu_device": "processor"}


def resolved(hosts: list[tuple[Host, int]], **fabric: Any) -> Cluster:
    """A cluster of several kinds of hosts, each of which can serve parameters."""
    kinds = [host.model_copy(update=SERVING) for host, _ in hosts]
    one = cluster(kinds[0], sum(count for _, count in hosts), **fabric)
    of = tuple(kind for kind, (_, count) in enumerate(hosts) for _ in range(count))
    types = (*one.device_types, processor())
    return one.model_copy(update={"host_types": tuple(kinds), "host_type_of": of, "device_types": types})


SPINE = {"kind": "leaf_spine", "hosts_per_leaf": 3, "num_spines": 2, "latency": 1e-6}
CLUSTERS = {
    "switch": resolved([(serving_host(1e10, 1e-6), 8)]),
    "uneven leaves": resolved([(serving_host(1e10, 1e-6), 8)], **SPINE),
    "oversubscribed": resolved([(serving_host(1e10), 8)], **SPINE, oversubscription=2),
    "nvswitch": resolved([(switched_host(4, 2, nvlink=1e11, nic=1e10), 2)], latency=1e-6),
    "rails": resolved(
        [(switched_host(4, 4), 4)], kind="rail_optimized", hosts_per_leaf=2, oversubscription=2
    ),
    "mesh": resolved([(dgx1(1), 2)]),
    "torus": resolved([(plain_host(1e10), 8)], kind="torus", dims=(4, 3)),
    "mixed": resolved([(switched_host(4, 2), 1), (plain_host(1e10, 2e-6), 4)], **SPINE),
}
STATES = [*FACTS, "local"]


_TWO = {"pp": 2, "micro_batch_size": 1}


def schedules(state: str) -> list[dict[str, Any]]:
    """Pipeline schedules that go with a state, each with what it needs; the model has four blocks."""
    found: list[dict[str, Any]] = [
        {"schedule": name} for name in ("naive", "gpipe", "1f1b", "zb_h1", "zb_h2")
    ]
    found += [{"schedule": name, "virtual_stages": 2, **_TWO} for name in ("interleaved", "zb_v")]
    if state not in ("local", "zero2", "zero3"):
        found += [{"schedule": "chimera", "micro_batch_size": 1}, {"schedule": "dualpipe", **_TWO}]
    if state == "replicated":
        found += [{"schedule": "pipedream_async"}, {"schedule": "2bw", "micro_batch_size": 1}]
    return found


def transfers(state: str, pp: int) -> list[dict[str, Any]]:
    """Ways to schedule transfers (D8) that go with a state and a pipeline."""
    found: list[dict[str, Any]] = [{}, {}, {"fusion": "none"}, {"partition_size": 4e6}]
    if state in ("replicated", "zero1", "zero2"):
        found += [
            {"fusion": "time", "cycle_time": 2e-3, "negotiation": "coordinator"},
            {"fusion": "merge_plan", "negotiation": "hier_coordinator", "cycle_time": 1e-3},
        ]
    if pp == 1 and state in ("replicated", "ps_dedicated", "ps_colocated"):
        urgent = {"order": "priority_layer", "partition_size": 3e6}
        found += [urgent, urgent | {"credit": 6e6}, {"order": "critical_path", "fusion": "none"}]
    return found


def _wire_formats(state: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Compressors, and switches that aggregate, that go with a state and a collective."""
    found: list[dict[str, Any]] = [{"compression": name} for name in ("fp8", "qsgd", "vector_quant")]
    if state == "replicated" and fields.get("collective", "auto") == "auto":
        found += [{"compression": name} for name in ("onebit", "topk", "powersgd")]
        found += [{"in_network": name} for name in ("sharp", "atp")]
    elif fields.get("collective", "auto") != "auto":
        found = [{"compression": name, "compression_exchange": "requantize"} for name in ("fp8", "topk")]
    elif state.startswith("ps_"):
        found += [{"compression": "onebit", "compress_pull": True}]
    return found


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A job that folding may simplify, in every way its ranks can differ."""
    where = draw(st.sampled_from(sorted(CLUSTERS)))
    state = draw(st.sampled_from(STATES))
    pp = draw(st.sampled_from([1, 1, 2, 4]))
    fields: dict[str, Any] = {
        "tp": draw(st.sampled_from([1, 1, 2])),
        "pp": pp,
        "micro_batch_size": draw(st.sampled_from([1, 2, 4])),
        "overlap": draw(st.booleans()),
        "bucket_size": draw(st.sampled_from([1e9, 1.2e7])),
        "recompute": draw(st.sampled_from(["none", "full"])),
        "placement": draw(st.sampled_from([("tp", "cp", "dp", "pp"), ("dp", "cp", "pp", "tp")])),
        "ep": draw(st.sampled_from([1, 2])),
        "cp": draw(st.sampled_from([1, 1, 2])),
    }
    if fields["ep"] > 1 and draw(st.booleans()):
        fields["expert_imbalance"] = draw(st.sampled_from([1.0, 1.5]))
        if fields["tp"] > 1:
            fields |= {"expert_tp": 1, "sequence_parallel": True}
    if fields["cp"] > 1:
        fields["context_parallelism"] = draw(st.sampled_from(["ring", "ulysses", "all_gather"]))
        fields["context_balance"] = draw(st.booleans())
    if pp > 1:
        fields |= draw(st.sampled_from(schedules(state)))
        if fields["pp"] == 2 and "virtual_stages" not in fields and draw(st.booleans()):
            fields["stage_blocks"] = draw(st.sampled_from([(1, 3), (3, 1)]))
    if state == "replicated" and fields["tp"] == pp == fields["cp"] == fields["ep"] == 1:
        fields["activation_exchange"] = draw(st.sampled_from(["never", "cheaper", "always"]))
    if state in ("replicated", "zero1", "zero2", "zero3"):
        fields["offload_optimizer"] = draw(st.sampled_from([False, False, True]))
    if fields.get("schedule") not in ("zb_h1", "zb_h2", "zb_v", "dualpipe", "pipedream_async", "2bw"):
        fields["offload_activations"] = draw(st.sampled_from([False, False, True]))
    whole = fields["tp"] == pp == fields["cp"] == fields["ep"] == 1
    if whole and state in ("replicated", "local") and fields.get("activation_exchange", "never") == "never":
        fields |= draw(st.sampled_from([{}, {"replicas_per_device": 2, "offload_activations": False}]))
    if state == "local":
        fields |= {"synchronization": "local", "local_steps": 2, "ep": 1, "cp": 1, "expert_tp": None}
    else:
        fields["state"] = state
    if state.startswith("ps_"):
        fields |= {"num_servers": draw(st.sampled_from([1, 2, 3])), "ep": 1, "expert_tp": None}
    elif state.startswith("zero") and draw(st.booleans()):
        fields |= {"shard_ranks": 2, "reshard_after_forward": draw(st.booleans())}
    elif state == "zero3":
        fields["prefetch"] = draw(st.sampled_from([0, 1, 2]))
        fields |= draw(st.sampled_from([{}, {"gather_bits": 8}, {"backward_shard_ranks": 2}]))
        fields["offload_parameters"] = fields["offload_optimizer"]
    elif state in ("replicated", "local"):
        fields["collective"] = draw(
            st.sampled_from(
                [
                    "auto",
                    "ring",
                    "tree",
                    "hierarchical",
                    "direct",
                    "bcube",
                    "kary_tree",
                    "packed_trees",
                    "blueconnect",
                ]
            )
        )
        fields["chunks"] = 2 if fields["collective"] in ("hierarchical", "bcube") else 1
    fields |= draw(st.sampled_from(transfers(state, fields["pp"])))
    if fields["ep"] == 1 and draw(st.booleans()):
        fields |= draw(st.sampled_from(_wire_formats(state, fields)))
    if fields["tp"] > 1 or fields["pp"] > 1:
        fields["activation_compression"] = draw(st.sampled_from(["none", "none", "fp8"]))
    slow = draw(st.sampled_from([{}, {}, {3: 1.3}, {0: 1.1, 5: 1.1}]))
    speed = draw(st.sampled_from([1.0, 0.8]))
    return {"where": where, "slow_ranks": slow, "speed": speed, **fields}


def build(where: str, speed: float, **fields: Any) -> Scenario:
    """The scenario of a job that :func:`jobs` drew."""
    calibration = ideal(
        server_speed=0.1, compute_speed_under_communication=speed, communication_speed_under_compute=speed
    )
    model = MATRICES if "activation_exchange" in fields else MIXTURE if fields["ep"] > 1 else DENSE
    return scenario(model, CLUSTERS[where], calibration=calibration, **fields)
