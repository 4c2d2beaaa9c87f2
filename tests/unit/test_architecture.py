"""Generators: layer chains are consistent, splits are stated, bad parameters give one line."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sim import yamlio
from sim.architecture import GENERATORS, generate
from sim.catalog import Catalog
from sim.errors import InputError
from sim.spec.workload import Workload

TINY = {"num_layers": 2, "hidden": 64, "num_heads": 4, "vocabulary": 128, "sequence_length": 16}


@pytest.fixture(
    params=["alexnet", "resnet50", "inception-v3", "bert-base", "gpt2", "llama3-8b", "mixtral-8x7b"]
)
def workload(request: pytest.FixtureRequest, catalog: Catalog) -> Workload:
    return catalog.workload(request.param)


def test_tensors_sum_to_parameters(workload: Workload) -> None:
    for layer in workload.layers:
        assert sum(layer.tensors) == pytest.approx(layer.parameters + layer.expert_parameters)
        assert layer.tensor_parameters <= layer.parameters


def test_blocks_do_not_decrease(workload: Workload) -> None:
    blocks = [layer.block for layer in workload.layers]
    assert blocks == sorted(blocks)
    assert set(blocks) == set(range(max(blocks) + 1))


def test_stored_parts_nest(workload: Workload) -> None:
    for layer in workload.layers:
        assert layer.stored_selective_elements <= layer.stored_tensor_elements <= layer.stored_elements


def test_layer_names_are_unique(workload: Workload) -> None:
    names = [layer.name for layer in workload.layers]
    assert len(names) == len(set(names))


def test_transformer_blocks_are_pipeline_stages(catalog: Catalog) -> None:
    assert catalog.workload("gpt3-175b").num_blocks == 96


def test_residual_block_output_feeds_the_next(catalog: Catalog) -> None:
    layers = catalog.workload("resnet50").layers
    for before, after in pairwise(layers):
        if before.block != after.block:
            assert before.output_elements == after.input_elements


def test_stored_elements_follow_korthikanti() -> None:
    """arXiv:2205.05198, equation 2: s b h (10 + 24 / t + 5 a s / h t) bytes per block, 2 bytes an element."""
    s, h, a, t = 512.0, 1024.0, 16.0, 4.0
    params = {"num_layers": 1, "hidden": 1024, "num_heads": 16, "vocabulary": 128, "sequence_length": 512}
    block = generate("transformer", {**params, "max_positions": 512}).layers[1:3]
    stored = sum(
        layer.stored_elements - layer.stored_tensor_elements + layer.stored_tensor_elements / t
        for layer in block
    )
    assert 2 * stored == pytest.approx(s * h * (10 + 24 / t + 5 * a * s / (h * t)))
    selective = sum(layer.stored_selective_elements for layer in block)
    assert 2 * selective == pytest.approx(5 * a * s * s)


def test_grouped_queries_shrink_projections() -> None:
    plain = generate("transformer", TINY)
    grouped = generate("transformer", {**TINY, "num_kv_heads": 1})
    # Keys and values of 3 of 4 heads, each 64 x 16 weights and 16 biases, in 2 blocks.
    assert plain.num_parameters - grouped.num_parameters == 2 * 2 * 3 * (64 * 16 + 16)
    assert grouped.num_kv_heads == 1


def test_tied_head_names_what_it_shares() -> None:
    tied = generate("transformer", TINY).layers[-1]
    own = generate("transformer", {**TINY, "tied_embeddings": False}).layers[-1]
    assert tied.shared_parameters == own.tensor_parameters == 128 * 64
    assert own.shared_parameters == 0


def test_sequence_length_changes_shapes(catalog: Catalog) -> None:
    short = catalog.workload("llama3-8b", sequence_length=2048)
    assert short.sequence_length == 2048
    assert short.layers[0].output_elements == 2048 * 4096
    assert short.num_parameters == catalog.workload("llama3-8b").num_parameters


def test_image_size_changes_shapes() -> None:
    large = generate("cnn:resnet50", {"image_size": 448})
    assert large.layers[0].output_elements == 4 * generate("cnn:resnet50", {}).layers[0].output_elements


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("transformr", {}, "Did you mean transformer?"),
        ("transformer", {**TINY, "hiden": 3}, "Did you mean hidden?"),
        (
            "transformer",
            {key: value for key, value in TINY.items() if key != "hidden"},
            "workload.hidden: must be given",
        ),
        ("transformer", {**TINY, "num_heads": 7}, "workload.num_heads: must divide hidden (64). Got 7."),
        ("transformer", {**TINY, "num_layers": 0}, "workload.num_layers"),
        ("transformer", {**TINY, "sample_bytes": "3 parsecs"}, "workload.sample_bytes: must"),
        (
            "transformer",
            {**TINY, "max_positions": 8},
            "workload.sequence_length: must be at most max_positions (8). Got 16.",
        ),
        ("cnn:inception-v3", {"image_size": 75}, "workload.image_size"),
        (
            "moe",
            {**TINY, "num_experts": 4, "top_k": 5},
            "workload.top_k: must be at most num_experts (4). Got 5.",
        ),
    ],
)
def test_bad_parameters(name: str, params: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match="must") as caught:
        generate(name, params)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_kind_of_generator_is_in_the_catalogue(catalog: Catalog) -> None:
    families = {catalog.workload(name).family for name in catalog.names("workload")}
    assert families == {"cnn", "transformer", "moe", "recurrent", "recommender", "hybrid"}
    named = {
        yamlio.load(catalog.find_file("workload", n)).data["generator"] for n in catalog.names("workload")
    }
    assert {GENERATORS[name].shape for name in named} == {known.shape for known in GENERATORS.values()}
