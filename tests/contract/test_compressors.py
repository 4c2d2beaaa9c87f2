"""Every compressor keeps the contract of its family: sizes, work, exchange, bytes on links."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sim.engine import play
from sim.lowering import lower, make_plan
from sim.lowering.exchange import encoding_seconds
from sim.models.compression import work_seconds
from sim.spec import Scenario, Strategy, Workload
from sim.spec.names import names_of
from sim.spec.strategy import ActivationCompression, CollectiveAlgorithm, Compression
from sim.taxonomy import check, dimension, warnings
from sim.taxonomy.collectives import facts_of
from sim.wire.compressor import Compressor, Options
from sim.wire.compressors import ACTIVATION_COMPRESSORS, COMPRESSORS
from sim.wire.tensors import Content, Tensor
from tests.clusters import switched_host
from tests.random_jobs import CLUSTERS, DENSE, resolved
from tests.scenarios import scenario, serving, serving_host, timed_layer, workload

ALL = pytest.mark.parametrize("compressor", COMPRESSORS.values(), ids=COMPRESSORS)
LOSSY = [each for each in COMPRESSORS.values() if each.name != "none"]
GATHERED = [each for each in COMPRESSORS.values() if not each.reducible]
CONTENT = Content.of([Tensor(1024, 4608), Tensor(1024), Tensor(1000, 2048), Tensor(1000)])
M, N = 40e6, 4


def model(batch: int = 1) -> Workload:
    """10 million parameters in two layers whose shapes nobody tells."""
    layers = [timed_layer(i, 0.1, 0.2, parameters=5e6, tensors=(4e6, 1e6)) for i in range(2)]
    return workload(layers, batch=batch)


def network(hosts: int = N) -> Any:
    return serving(serving_host(1e9), hosts)


def wire_bytes(one: Scenario) -> float:
    """Bytes that leave ports in one iteration."""
    graph = lower(one)
    moved = graph.flow_bytes[graph.links.rows()] * graph.link_coefficient
    return float((moved * graph.link_table.members[graph.links.index]).sum()) / 2


def test_registry_strategy_and_taxonomy_agree() -> None:
    assert sorted(COMPRESSORS) == sorted(names_of(Compression))
    values = [value.settings.get("strategy.compression") for value in dimension("D7").values]
    assert sorted(filter(None, values)) == sorted(COMPRESSORS)
    assert all(name == each.name for name, each in COMPRESSORS.items())
    coded = [value.settings.get("strategy.activation_compression") for value in dimension("D7").values]
    assert (
        ["none", *filter(None, coded)]
        == list(ACTIVATION_COMPRESSORS)
        == list(names_of(ActivationCompression))
    )
    assert not any(each.error_feedback for each in ACTIVATION_COMPRESSORS.values())


@ALL
@pytest.mark.parametrize("element_bytes", [4.0, 2.0])
def test_sizes_are_positive_and_at_most_dense(compressor: Compressor, element_bytes: float) -> None:
    size = compressor.size(CONTENT, element_bytes, Options())
    narrow = compressor.name in ("fp16", "bf16") and element_bytes == 2
    assert 0 < size <= CONTENT.elements * element_bytes
    assert narrow or compressor.name == "none" or size < CONTENT.elements * element_bytes
    for tensor in (Tensor(3.0), Tensor(2.0, 2.0), Tensor(1.5)):
        tiny = Content.of([tensor])
        dense = max(tiny.elements * element_bytes, tiny.elements * 2)
        control = 4.0 if compressor.name in ("fp8", "coarse_chunk") else 0.0
        assert 0 < compressor.size(tiny, element_bytes, Options()) <= dense + control


@ALL
def test_work_is_positive_and_grows(compressor: Compressor) -> None:
    twice = Content.of([*CONTENT.tensors, *CONTENT.tensors])
    work = [compressor.encode(each, 4.0, Options()) for each in (CONTENT, twice)]
    assert work[1].traffic == pytest.approx(2 * work[0].traffic, rel=1e-9)
    assert (work[0].traffic > 0) == (compressor.name != "none")
    one, many = (compressor.decode(CONTENT, 4.0, Options(), pieces) for pieces in (1, 8))
    assert many.traffic >= one.traffic >= 0


GROWING = {"ratio": [0.001, 0.01, 0.1, 0.5], "levels": [2, 4, 16, 256], "rank": [1, 2, 4, 16]}


@ALL
def test_sizes_grow_with_the_parameter(compressor: Compressor) -> None:
    if not compressor.parameter:
        chosen = Options(ratio=0.3, levels=7, rank=3)
        assert compressor.size(CONTENT, 4.0, chosen) == compressor.size(CONTENT, 4.0, Options())
        return
    values: list[Any] = GROWING[compressor.parameter]
    sizes = [compressor.size(CONTENT, 4.0, replace(Options(), **{compressor.parameter: v})) for v in values]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


@ALL
def test_a_sum_is_no_smaller_than_a_part_and_no_larger_than_dense(compressor: Compressor) -> None:
    sizes = [compressor.aggregate_size(CONTENT, 4.0, Options(), ranks) for ranks in (1, 4, 64, 100_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] == pytest.approx(compressor.size(CONTENT, 4.0, Options()), rel=1e-12)
    assert sizes[-1] <= CONTENT.elements * 4 * (1 + 1e-12)


@ALL
@pytest.mark.parametrize("collective", names_of(CollectiveAlgorithm))
def test_reducible_ones_play_with_every_algorithm(compressor: Compressor, collective: str) -> None:
    grid = facts_of(collective).grid
    where = resolved([(switched_host(4, 4), 2)]) if grid else network(8)
    if collective == "nvls":
        where = resolved([(switched_host(4, 4, nvlink=450e9), 2)])
    strategy: dict[str, Any] = {"compression": compressor.name, "collective": collective}
    refusals = check(Strategy(**strategy), model(), where)
    if compressor.reducible or collective == "auto":
        assert not refusals
    else:
        assert [refusal.rule for refusal in refusals] == ["C2-6"]
        assert "partial sums" in str(refusals[0])
        assert refusals[0].alternatives
        strategy["compression_exchange"] = "requantize"
        if collective == "nvls":  # switches do not decode
            assert "nvls-switches" in {r.rule for r in check(Strategy(**strategy), model(), where)}
            return
    lower(scenario(model(), where, **strategy))


@ALL
@pytest.mark.parametrize(("bucket", "fold"), [(1e18, True), (5e6, False)])
def test_links_carry_what_the_compressor_says(compressor: Compressor, bucket: float, fold: bool) -> None:
    """All-reduce of what can be summed, all-gather of the rest; pushes to servers; per update."""
    one = scenario(model(), network(), compression=compressor.name, bucket_size=bucket, fold=fold)
    plan = make_plan(one)
    messages = [message for each in plan.buckets(0) for message in plan.encoding.messages(each)]
    summed = sum(message.size for message in messages if message.reducible)
    gathered = sum(message.size for message in messages if not message.reducible)
    ring = scenario(
        model(), network(), compression=compressor.name, bucket_size=bucket, fold=fold,
        collective="ring" if compressor.reducible else "auto",
    )  # fmt: skip
    assert (gathered > 0) != compressor.reducible
    expected = 2 * (N - 1) * summed + N * (N - 1) * gathered
    assert wire_bytes(ring) == pytest.approx(expected, rel=1e-9)
    assert plan.encoding.bytes_per_update == pytest.approx(summed + gathered, rel=1e-9)
    if compressor.served:
        fields = {"state": "ps_dedicated", "num_servers": 2, "compression": compressor.name}
        pushed = scenario(model(), network(), bucket_size=bucket, fold=fold, **fields)
        assert wire_bytes(pushed) == pytest.approx(N * (summed + gathered) + N * M, rel=1e-9)
        both = scenario(model(), network(), bucket_size=bucket, fold=fold, compress_pull=True, **fields)
        if compressor.name != "none":
            assert N * (summed + gathered) < wire_bytes(both) < wire_bytes(pushed)


@pytest.mark.parametrize("compressor", GATHERED, ids=lambda each: each.name)
def test_requantised_sums_cost_bytes_of_one_message(compressor: Compressor) -> None:
    """Seide et al. 2014: each rank sends parts to their owners, these send back encoded sums."""
    one = scenario(
        model(), network(), compression=compressor.name, compression_exchange="requantize",
        collective="direct", bucket_size=1e18,
    )  # fmt: skip
    plan = make_plan(one)
    size = sum(message.size for message in plan.encoding.messages(plan.buckets(0)[0]))
    assert wire_bytes(one) == pytest.approx(2 * (N - 1) * size, rel=1e-9)


@pytest.mark.parametrize("state", ["zero1", "zero2", "zero3"])
@ALL
def test_sharded_state_moves_encoded_gradients_to_their_owners(compressor: Compressor, state: str) -> None:
    fields = {"compression": compressor.name, "state": state, "bucket_size": 1e18}
    refused = {refusal.rule for refusal in check(Strategy(**fields), model(), network())}
    expected = set() if compressor.scatters else {"compression-scatter"}
    assert refused == expected | ({"C2-9"} if state == "zero3" and compressor.error_feedback else set())
    if refused:
        return
    one = scenario(model(), network(), **fields)
    plan = make_plan(one)
    messages = plan.encoding.messages(plan.buckets(0)[0])
    shared = sum(message.size for message in messages if message.shared)
    parts = sum(message.size for message in messages if not message.shared)
    gathers = 2 if state == "zero3" else 1
    expected_bytes = (N - 1) * (gathers * M + parts + 2 * shared)
    assert wire_bytes(one) == pytest.approx(expected_bytes, rel=1e-2 if state == "zero3" else 1e-9)


@pytest.mark.parametrize("compressor", LOSSY, ids=lambda each: each.name)
def test_encoders_occupy_the_device(compressor: Compressor) -> None:
    """Work appears on the compute stream, or as a longer first message; network cards take none of it."""
    slow = scenario(model(), network(), compression=compressor.name, bucket_size=1e18)
    graph, plan = lower(slow), make_plan(slow)
    names = np.array(graph.names)[graph.name]
    bucket = plan.buckets(0)[0]
    seconds = encoding_seconds(plan, bucket, plan.worker_devices[0])
    encoders = np.flatnonzero(np.char.endswith(names, ".encode"))
    assert seconds > 0
    if compressor.inline:
        sent = np.flatnonzero(np.char.endswith(names, ".all_reduce"))
        assert len(encoders) == 0
        assert graph.work[sent].max() >= seconds
    else:
        assert graph.work[encoders].tolist() == [seconds]
        stream = graph.streams.index[graph.streams.offsets[encoders[0]]]
        assert graph.stream_table.name[stream] == "compute"
    other = lower(scenario(model(), network(), compression=compressor.name, compression_engine="nic"))
    assert not any(name.endswith((".encode", ".decode")) for name in other.names)


@pytest.mark.parametrize("compressor", [each for each in LOSSY if each.error_feedback], ids=lambda c: c.name)
def test_error_feedback_keeps_one_more_array_of_gradients(compressor: Compressor) -> None:
    with_residual = make_plan(scenario(model(), network(), compression=compressor.name)).footprints[0]
    without = make_plan(scenario(model(), network())).footprints[0]
    assert with_residual["gradients"] - without["gradients"] == pytest.approx(M)


@pytest.mark.parametrize(("ranks", "worse"), [(4, False), (8, False), (16, True), (24, True)])
def test_gathered_top_k_beats_dense_until_n_r_is_one(ranks: int, worse: bool) -> None:
    """Rule C2-7: entries of 8 bytes, n r = 1 at 16 ranks and r = 1/16."""
    fields = {"compression": "topk", "compression_ratio": 1 / 16.001 if ranks < 16 else 1 / 16}
    dense = wire_bytes(scenario(model(), network(ranks), collective="ring"))
    sparse = wire_bytes(scenario(model(), network(ranks), **fields))
    assert (sparse >= dense * (1 - 1e-12)) == worse
    said = warnings(Strategy(**fields), model(), network(ranks))
    assert any("gathering topk" in text for text in said) == worse


def test_local_sgd_encodes_its_average() -> None:
    one = scenario(
        model(), network(), synchronization="local", local_steps=3, compression="fp16", collective="ring"
    )
    assert wire_bytes(one) == pytest.approx(2 * (N - 1) * M / 2, rel=1e-9)
    sparse = scenario(model(), network(), synchronization="local", local_steps=3, compression="topk")
    assert wire_bytes(sparse) == pytest.approx(N * (N - 1) * 0.02 * M, rel=1e-9)


@pytest.mark.parametrize("name", ["onebit", "topk", "powersgd"])
def test_folded_equals_unfolded_on_a_fabric(name: str) -> None:
    times = [
        play(lower(scenario(model(), CLUSTERS["oversubscribed"], compression=name, fold=fold))).step_time
        for fold in (True, False)
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-9)


@pytest.mark.parametrize(
    "fields",
    [{"fusion": "none"}, {"fusion": "merge_plan"}, {"partition_size": 3e6}, {"bucket_size": 1e6}],
    ids=lambda fields: next(iter(fields)),
)
def test_fused_and_cut_tensors_keep_their_shapes(fields: dict[str, Any]) -> None:
    """What deep gradient compression sends depends on tensors, not on how they travel together."""
    import sim

    cnn = sim.workload("alexnet", batch_per_device=4)
    whole, cut = (
        make_plan(scenario(cnn, CLUSTERS["switch"], compression="dgc", **options)).encoding.bytes_per_update
        for options in ({"bucket_size": 1e18}, fields)
    )
    assert cut == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("name", ACTIVATION_COMPRESSORS)
def test_activations_between_stages_are_encoded_sent_and_decoded(name: str) -> None:
    """Two stages and one micro-batch: both ways, one after another, beside the layers' own times."""
    elements, bandwidth = 1e7, 1e9
    layers = [
        timed_layer(i, 0.1, 0.2, input_elements=i * elements, output_elements=elements) for i in range(2)
    ]
    one = scenario(workload(layers), serving(serving_host(bandwidth), 2), pp=2, activation_compression=name)
    plan, compressor = make_plan(one), ACTIVATION_COMPRESSORS[name]
    content = Content(elements, (Tensor(elements),))
    size = compressor.size(content, 4.0, Options())
    assert wire_bytes(one) == pytest.approx(2 * size, rel=1e-12)
    device = plan.device_of_rank(0)
    works = compressor.encode(content, 4.0, Options()) + compressor.decode(content, 4.0, Options())
    ends = work_seconds(works, device, plan.calibration)
    assert (ends > 0) == (name != "none")
    assert play(lower(one)).step_time == pytest.approx(0.6 + 2 * (ends + size / bandwidth), rel=1e-9)


def test_decoding_waits_for_its_turn() -> None:
    """GPipe: a stage decodes a micro-batch when it gets to it, and computes earlier ones meanwhile."""
    layers = [timed_layer(i, 0.1, 0.2, input_elements=i * 1e6, output_elements=1e6) for i in range(2)]
    where = serving(serving_host(1e12), 2)
    times = [
        play(
            lower(
                scenario(
                    workload(layers, batch=8), where, pp=2, micro_batch_size=1, schedule=schedule,
                    activation_compression=code,
                )
            )
        ).step_time
        for schedule in ("gpipe", "1f1b")
        for code in ("none", "fp8")
    ]  # fmt: skip
    assert times[0] < times[1] < 1.01 * times[0]
    assert times[2] < times[3] < 1.01 * times[2]


def test_tensor_parallel_ranks_sum_codes() -> None:
    """A quarter of the bytes and 4 for the scale, in every all-reduce and beside sequence parallelism."""
    where = serving(serving_host(1e9), 2)
    for sequence in (False, True):
        plain, coded = (
            wire_bytes(scenario(DENSE, where, tp=2, sequence_parallel=sequence, activation_compression=code))
            for code in ("none", "fp8")
        )
        assert coded == pytest.approx(plain / 4, rel=1e-5)
        assert plain > 0
