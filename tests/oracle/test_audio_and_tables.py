"""Speech models and recommenders against the counts of their implementations and papers."""

from __future__ import annotations

import pytest

from sim.architecture import generate
from sim.architecture.recommender import CRITEO_TERABYTE_ROWS
from sim.catalog import Catalog
from sim.lowering.plan import memory_by_stage
from sim.models.compute import model_flops
from sim.validate.rows import Row
from sim.validate.runs_loader import load_run

TERABYTE = {
    "table_rows": CRITEO_TERABYTE_ROWS, "embedding_dim": 128, "bottom_mlp": (512, 256, 128),
    "top_mlp": (1024, 1024, 512, 256, 1),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fields", "parameters", "tolerance"),
    [
        ("tacotron2", {}, 28_193_153, 1e-9),  # torchaudio 2.11, Tacotron2(), as in DeepLearningExamples
        ("waveglow", {"channels": 256}, 87_731_816, 1e-9),  # the paper's; weight norms folded
        ("waveglow", {}, 267_999_848, 1e-9),  # DeepLearningExamples, wn-channels 512
        ("rnn-t", {}, 49e6, 0.01),  # MLPerf Training v1.0, README of rnn_speech_recognition
        ("wav2vec2", {}, 94_370_944, 1e-4),  # torchaudio, wav2vec2_base()
        ("wav2vec2", {"num_layers": 24, "hidden": 1024, "num_heads": 16}, 315_427_968, 1e-4),
        ("conformer", {}, 121e6, 0.01),  # NeMo's stt_en_conformer_ctc_large
        ("dlrm", TERABYTE, 26.1e9, 0.01),  # MLPerf Training v0.7: 204,184,588 rows of 128
        ("dlrm", {**TERABYTE, "cross_layers": 3}, 26.15e9, 0.01),
    ],
)
def test_parameters(name: str, fields: dict[str, object], parameters: float, tolerance: float) -> None:
    workload = generate(name, {**fields, "batch_per_device": 1})
    assert workload.num_parameters == pytest.approx(parameters, rel=tolerance)


def test_flops_of_wav2vec2() -> None:
    """torch.utils.flop_counter on ten seconds of sound."""
    workload = generate("wav2vec2", {"samples": 160_000, "batch_per_device": 1})
    assert model_flops(workload) == pytest.approx(148.13e9, rel=1e-3)


def test_flops_of_waveglow() -> None:
    """Every weight of its convolutions once per position: an eighth of the samples; the first per frame."""
    workload = generate("waveglow", {"batch_per_device": 1})
    first = 80 * 80 * 1024
    rest = workload.num_parameters - first
    assert model_flops(workload) == pytest.approx(2 * (rest * 1000 + first * 32), rel=0.002)


def test_flops_of_a_transducer() -> None:
    """Weights of the encoder once a frame or once every two, of the joint network once a pair."""
    workload = generate("rnn-t", {"frames": 400, "labels": 50, "batch_per_device": 1})
    cell = 4 * 1024
    encoder = 400 * cell * (240 + 3 * 1024) + 200 * cell * (3072 + 2 * 2048)
    predictor = 51 * 2 * 2048 * 1024
    joint = 200 * 1024 * 512 + 51 * 512**2 + 200 * 51 * 512 * 1024
    assert model_flops(workload) == pytest.approx(2 * (encoder + predictor + joint), rel=1e-6)


def test_flops_of_cross_layers() -> None:
    """DCN v2: two products of 3,456 by 512 in each of three layers, and the perceptrons."""
    workload = generate("dlrm", {**TERABYTE, "cross_layers": 3, "batch_per_device": 1})
    width = 27 * 128
    bottom = 13 * 512 + 512 * 256 + 256 * 128
    top = width * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256
    assert model_flops(workload) == 2 * (bottom + 3 * 2 * width * 512 + top)


def test_tables_that_fit_nowhere_are_spread(catalog: Catalog) -> None:
    """104 GB of tables on devices of 80 GB."""
    cells = {"id": "X-1", "gpu": "H100", "gpus": "64", "gbs": "65536", "precision": "fp16"}
    run = load_run(Row({**cells, "model": "DLRM-DCNv2"}), catalog)
    assert run.strategy.sparse_embeddings == "servers"
    assert "shard" in run.assumed
    needed = max(sum(stage.values()) for stage in memory_by_stage(run.scenario(catalog.calibration())))
    assert needed < run.cluster.main_device.capacity
    kaggle = load_run(Row({**cells, "model": "DLRM Kaggle"}), catalog)
    assert kaggle.strategy.sparse_embeddings == "never"
