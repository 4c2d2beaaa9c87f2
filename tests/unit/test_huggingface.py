"""Hugging Face configurations: the sizes of real models, and what is wrong with other files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.cli.main import main
from sim.errors import InputError

LLAMA = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}

#: Published sizes of released checkpoints (their ``config.json`` in short) and their numbers of parameters.
MODELS: list[tuple[str, dict[str, Any], float]] = [
    ("Llama-3-8B", {**LLAMA, "model_type": "llama", "num_key_value_heads": 8, "intermediate_size": 14336,
     "vocab_size": 128256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16"}, 8_030_261_248),
    ("Mistral-7B", {**LLAMA, "model_type": "mistral", "num_key_value_heads": 8, "intermediate_size": 14336,
     "vocab_size": 32000, "max_position_embeddings": 32768}, 7_241_732_096),
    ("Qwen2.5-7B", {"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584,
     "num_attention_heads": 28,
     "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064}, 7_615_616_512),
    ("Qwen3-30B-A3B", {"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048,
     "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
     "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936,
     "tie_word_embeddings": False}, 30_532_122_624),
    ("Mixtral-8x7B", {**LLAMA, "model_type": "mixtral", "num_key_value_heads": 8, "intermediate_size": 14336,
     "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}, 46_702_792_704),
    ("DeepSeek-V3", {"model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
     "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
     "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
     "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
     "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280}, 671_026_419_200),
    ("gpt2", {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024,
     "vocab_size": 50257}, 124_439_808),
    ("opt-1.3b", {"model_type": "opt", "num_hidden_layers": 24, "hidden_size": 2048,
     "num_attention_heads": 32,
     "ffn_dim": 8192, "vocab_size": 50272, "max_position_embeddings": 2048}, 1_315_758_080),
    ("bloom-7b1", {"model_type": "bloom", "n_layer": 30, "hidden_size": 4096, "n_head": 32,
     "vocab_size": 250880},
     7_069_016_064),
    ("pythia-6.9b", {**LLAMA, "model_type": "gpt_neox", "intermediate_size": 16384, "vocab_size": 50432},
     6_857_302_016),
    ("falcon-7b", {"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544,
     "num_attention_heads": 71,
     "vocab_size": 65024, "multi_query": True}, 6_921_720_704),
    ("bert-base", {"model_type": "bert", "num_hidden_layers": 12, "hidden_size": 768,
     "num_attention_heads": 12,
     "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2},
     110_106_428),
    ("bart-large", {"model_type": "bart", "encoder_layers": 12, "decoder_layers": 12, "d_model": 1024,
     "encoder_attention_heads": 16, "encoder_ffn_dim": 4096, "vocab_size": 50265, "num_hidden_layers": 12,
     "max_position_embeddings": 1024}, 406_291_456),
    ("t5-large", {"model_type": "t5", "num_layers": 24, "num_decoder_layers": 24, "d_model": 1024,
     "num_heads": 16,
     "d_kv": 64, "d_ff": 4096, "vocab_size": 32128, "n_positions": 512, "feed_forward_proj": "relu"},
     737_668_096),
    ("mamba2-2.7b", {"model_type": "mamba2", "num_hidden_layers": 64, "hidden_size": 2560, "state_size": 128,
     "head_dim": 64, "n_groups": 1, "expand": 2, "vocab_size": 50288, "num_heads": 80}, 2.7026e9),
    ("Jamba-v0.1", {**LLAMA, "model_type": "jamba", "num_key_value_heads": 8, "intermediate_size": 14336,
     "vocab_size": 65536, "attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2,
     "expert_layer_offset": 1, "num_experts": 16, "num_experts_per_tok": 2, "mamba_d_state": 16,
     "mamba_expand": 2, "mamba_d_conv": 4}, 51.6e9),
]  # fmt: skip


def write(folder: Path, content: object) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.parametrize(("name", "config", "parameters"), MODELS, ids=[row[0] for row in MODELS])
def test_sizes_of_released_models(
    tmp_path: Path, name: str, config: dict[str, Any], parameters: float
) -> None:
    workload = sim.workload(
        write(tmp_path, {**config, "_name_or_path": f"maker/{name}"}), global_batch_size=64
    )
    assert workload.name == name
    assert workload.num_parameters == pytest.approx(parameters, rel=0.01)


def test_a_configuration_runs_and_its_fields_can_be_set(tmp_path: Path) -> None:
    path = write(tmp_path, MODELS[0][1])
    result = sim.run(
        sim.workload(path, global_batch_size=128, sequence_length=2048),
        "dgx-h100",
        sim.strategy(state="zero3"),
    )
    assert result.ok, result.message
    assert sim.workload(path).dtype == "bf16"
    assert not sim.run(sim.workload(path), "dgx-h100").ok  # the batch is the user's to give


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model_type": "brontosaurus"}, "model_type"),
        ({"architectures": []}, "model_type"),
        ([], "config.json"),
        ({"model_type": "llama", "hidden_size": 64}, "num_hidden_layers"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: object, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        sim.workload(write(tmp_path, content))
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="readable JSON"):
        sim.workload(str(tmp_path / "nothing.json"))


SMALL = {**LLAMA, "model_type": "llama", "vocab_size": 32000}


@pytest.mark.parametrize(
    ("called", "file", "name"),
    [
        ("maker/Tiny-1B", "config.json", "Tiny-1B"),
        ("Tiny-1B", "config.json", "Tiny-1B"),
        ("/checkpoints/step100", "config.json", "llama-32x4096"),
        ("./out", "config.json", "llama-32x4096"),
        ("a/b/c", "config.json", "llama-32x4096"),
        (None, "config.json", "llama-32x4096"),
        (None, "my-llama.json", "my-llama"),
    ],
)
def test_a_configuration_is_named_after_the_model_and_no_folder(
    tmp_path: Path, called: str | None, file: str, name: str
) -> None:
    (tmp_path / file).write_text(json.dumps({**SMALL, "_name_or_path": called}))
    assert sim.workload(str(tmp_path / file), global_batch_size=8).name == name


@pytest.mark.parametrize(
    ("extra", "length", "said"),
    [
        ({"max_position_embeddings": 4096}, 4096, "sequence_length 4096 (the configuration allows up to"),
        ({"max_position_embeddings": 131072}, 8192, "8192 (the configuration allows up to 131072)"),
        ({}, 2048, "sequence_length 2048 (the configuration states none), dtype bf16, optimizer adamw"),
    ],
)  # fmt: skip
def test_what_a_configuration_does_not_say_is_assumed_aloud(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: dict[str, Any], length: int, said: str
) -> None:
    path = write(tmp_path, {**SMALL, **extra, "num_hidden_layers": 2})
    found = sim.workload(path)
    assert found.sequence_length == length
    assert said in found.description.partition("; assumed: ")[2]
    given = sim.workload(path, sequence_length=1024, dtype="fp16", optimizer="sgd")
    assert "assumed" not in given.description
    assert main(["run", path, "dgx-h100", "--num-hosts", "1", "--set", "workload.batch_per_device=1"]) == 0
    assert said in capsys.readouterr().err
    assert main(["show", path]) == main(["check", path]) == 0
