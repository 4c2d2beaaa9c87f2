"""Parameters and forward FLOPs of every catalogue workload against what others published, within 1 %."""

from __future__ import annotations

import pytest

from sim.catalog import Catalog
from sim.models.compute import model_flops
from sim.spec.workload import Workload

TORCHVISION = (
    "docs.pytorch.org/vision/stable/models.html, table of weights: num_params, GFLOPS (multiply-adds)"
)
HUGGING_FACE = "model.num_parameters() of the released checkpoints"
GPT3 = "Brown et al. 2020, arXiv:2005.14165, table D.1 (params in millions)"

PARAMETERS = [
    ("alexnet", 61_100_840, TORCHVISION),
    ("vgg16", 138_357_544, TORCHVISION),
    ("vgg19", 143_667_240, TORCHVISION),
    ("resnet18", 11_689_512, TORCHVISION),
    ("resnet34", 21_797_672, TORCHVISION),
    ("resnet50", 25_557_032, TORCHVISION),
    ("resnet101", 44_549_160, TORCHVISION),
    ("resnet152", 60_192_808, TORCHVISION),
    ("inception-v3", 27_161_264, TORCHVISION),
    ("resnext101-32x4d", 44.2e6, "NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets"),
    ("se-resnext101-32x4d", 49.0e6, "NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets"),
    ("efficientnet-b0", 5_288_548, TORCHVISION),
    ("efficientnet-b4", 19_341_616, TORCHVISION),
    ("bart-large", 406_291_456, HUGGING_FACE + ": facebook/bart-large"),
    ("transformer-xl-base", 192e6, "NVIDIA/DeepLearningExamples, TensorFlow/LanguageModeling/Transformer-XL"),
    ("bert-base", 110_106_428, HUGGING_FACE + ": bert-base-uncased, BertForPreTraining"),
    ("bert-large", 336_226_108, HUGGING_FACE + ": bert-large-uncased, BertForPreTraining"),
    ("gpt2", 124_439_808, HUGGING_FACE),
    ("gpt2-medium", 354_823_168, HUGGING_FACE),
    ("gpt2-large", 774_030_080, HUGGING_FACE),
    ("gpt2-xl", 1_557_611_200, HUGGING_FACE),
    ("gpt3-125m", 125e6, GPT3),
    ("gpt3-350m", 356e6, GPT3),
    ("gpt3-760m", 760e6, GPT3),
    ("gpt3-1.3b", 1_320e6, GPT3),
    ("gpt3-2.7b", 2_650e6, GPT3),
    ("gpt3-6.7b", 6_660e6, GPT3),
    ("gpt3-13b", 12_850e6, GPT3),
    ("gpt3-175b", 174_600e6, GPT3),
    ("llama2-7b", 6_738_415_616, HUGGING_FACE + ": meta-llama/Llama-2-7b-hf"),
    ("llama2-13b", 13_015_864_320, HUGGING_FACE + ": meta-llama/Llama-2-13b-hf"),
    ("llama2-70b", 68_976_648_192, HUGGING_FACE + ": meta-llama/Llama-2-70b-hf"),
    ("llama3-8b", 8_030_261_248, HUGGING_FACE + ": meta-llama/Meta-Llama-3-8B"),
    ("llama3-70b", 70_553_706_496, HUGGING_FACE + ": meta-llama/Meta-Llama-3-70B"),
    ("llama3-405b", 405e9, "Llama team 2024, arXiv:2407.21783, table 3"),
    (
        "deepseek-v3",
        671_026_419_200,
        HUGGING_FACE + ": deepseek-ai/DeepSeek-V3, without its prediction module",
    ),
    ("deepseek-v2-lite", 15_706_484_224, HUGGING_FACE + ": deepseek-ai/DeepSeek-V2-Lite"),
    ("mamba2-2.7b", 2.7e9, "Dao and Gu 2024, arXiv:2405.21060, table 9"),
    ("nemotron-h-8b", 8.1e9, "NVIDIA 2025, arXiv:2504.03624, section 2"),
    ("gnmt", 160.7e6, "NVIDIA/DeepLearningExamples, PyTorch/Translation/GNMT"),
    ("jasper-10x5", 333e6, "Li et al. 2019, arXiv:1904.03288, table 2"),
    ("ncf", 31.9e6, "138,493 and 26,744 rows of 64 + 128, and the perceptron"),
    ("dlrm", 540e6, "facebookresearch/dlrm, Criteo Kaggle"),
    ("ssd300-resnet50", 22.9e6, "NVIDIA/DeepLearningExamples, PyTorch/Detection/SSD"),
    ("mask-rcnn-resnet50", 44.4e6, TORCHVISION),
    ("mixtral-8x7b", 46_702_792_704, HUGGING_FACE + ": mistralai/Mixtral-8x7B-v0.1"),
]

# torchvision counts multiply-adds, at evaluation (without the auxiliary classifier).
MULTIPLY_ADDS = [
    ("alexnet", 0.714e9),
    ("vgg16", 15.47e9),
    ("vgg19", 19.63e9),
    ("resnet18", 1.81e9),
    ("resnet34", 3.66e9),
    ("resnet50", 4.09e9),
    ("resnet101", 7.80e9),
    ("resnet152", 11.51e9),
    ("inception-v3", 5.71e9),
    ("efficientnet-b0", 0.386e9),
    ("efficientnet-b4", 4.39e9),
    ("resnext101-32x4d", 8.01e9),  # Xie et al. 2017, arXiv:1611.05431; timm's table: 8.01
    ("se-resnext101-32x4d", 8.02e9),  # timm's table
]

DECODERS = [name for name, *_ in PARAMETERS if name.startswith(("gpt", "llama"))]


@pytest.mark.parametrize(("name", "published", "source"), PARAMETERS, ids=[row[0] for row in PARAMETERS])
def test_parameters(catalog: Catalog, name: str, published: float, source: str) -> None:
    # Checkpoints state exact counts; tables are rounded. BART's norms of the embeddings are left out.
    tolerance = 1e-9 if published % 1e5 and name != "bart-large" else 0.01
    assert catalog.workload(name).num_parameters == pytest.approx(published, rel=tolerance), source


@pytest.mark.parametrize(("name", "published"), MULTIPLY_ADDS)
def test_convolutional_flops(catalog: Catalog, name: str, published: float) -> None:
    assert model_flops(catalog.workload(name)) == pytest.approx(2 * published, rel=0.01)


def test_detectors_and_speech_flops(catalog: Catalog) -> None:
    """Convolutions counted by hand from the papers' tables.

    SSD300: conv4 of ResNet-50 runs at 38 x 38, and 8,732 boxes come out. Jasper: 333 million weights, each
    used once per output frame (half of the input's). Mask R-CNN at 800 x 1344: backbone, pyramid and region
    proposal at those strides, the heads on 512 and 128 regions.
    """
    ssd = catalog.workload("ssd300-resnet50")
    heads = sum(
        side**2 * boxes * 85 * 9 * width
        for side, boxes, width in zip(
            (38, 19, 10, 5, 3, 1), (4, 6, 6, 6, 4, 4), (1024, 512, 512, 256, 256, 256), strict=True
        )
    )
    stage = 38**2 * (256 * 1024 * 2 + 9 * 256**2)
    predictors = [layer.ops[0] for layer in ssd.layers if layer.kind == "conv"][-12:]
    outputs = [op.out_height * op.out_width * op.out_channels for op in predictors if op.op == "conv"]
    assert sum(outputs) == 8732 * 85
    assert model_flops(ssd) > 2 * (5 * stage + heads)
    jasper = catalog.workload("jasper-10x5")
    frames = (1230 + 1) // 2
    assert model_flops(jasper) == pytest.approx(2 * jasper.num_parameters * frames, rel=0.01)
    size = (800 * 1344) / 224**2
    backbone = 4.09e9 * size
    pyramid = sum(
        800 * 1344 / s**2 * (256 * c + 9 * 256**2) for s, c in ((4, 256), (8, 512), (16, 1024), (32, 2048))
    )
    proposals = sum(800 * 1344 / s**2 * (9 * 256**2 + 15 * 256) for s in (4, 8, 16, 32, 64))
    boxes = 512 * (256 * 49 * 1024 + 1024**2 + 1024 * 81 * 5)
    masks = 128 * (196 * (4 * 9 * 256**2 + 4 * 256**2) + 784 * 256 * 81)
    assert model_flops(catalog.workload("mask-rcnn-resnet50")) == pytest.approx(
        2 * (backbone + pyramid + proposals + boxes + masks), rel=0.01
    )


def test_sequence_model_flops(catalog: Catalog) -> None:
    """Two per multiply-add and matrix weight: every weight but tables once a token, and scores."""
    gnmt = catalog.workload("gnmt")
    h, source, target, vocabulary = 1024, 29, 31, 32_320
    cells = 8 * h**2  # input and state, four gates
    encoder = source * (2 * cells + (cells + 4 * h**2) + 2 * cells)  # both directions; the next reads both
    decoder = target * (cells + 3 * (cells + 4 * h**2))
    attention = (source + target) * h**2 + 2 * source * target * h
    classifier = target * h * vocabulary
    assert model_flops(gnmt) == pytest.approx(2 * (encoder + decoder + attention + classifier), rel=0.01)
    bert = catalog.workload("bert-large")
    length = bert.sequence_length
    assert length is not None
    body = bert.model_copy(update={"layers": bert.layers[:-1]})
    per_token = 24 * (12 * 1024**2 + 2 * length * 1024)  # Vaswani et al. 2017, table 1
    assert model_flops(body) == pytest.approx(2 * length * per_token, rel=0.001)
    bart = catalog.workload("bart-large")
    s = bart.sequence_length
    assert s is not None
    weights = (
        12 * 12 * 1024**2 + 12 * 16 * 1024**2 + 50265 * 1024
    )  # encoder, decoder with cross-attention, head
    scores = 12 * 3 * 2 * s * 1024
    assert model_flops(bart) == pytest.approx(2 * s * (weights + scores), rel=0.02)


def test_inception_without_auxiliary_classifier(catalog: Catalog) -> None:
    # Szegedy et al.; torchvision's Inception3(aux_logits=False).
    from sim.architecture import generate

    assert generate("cnn:inception-v3", {"auxiliary": False}).num_parameters == 23_834_568


@pytest.mark.parametrize(("name", "encoder"), [("bert-base", 109_482_240), ("bert-large", 335_141_888)])
def test_bert_encoder_and_pooler(catalog: Catalog, name: str, encoder: int) -> None:
    """Hugging Face's BertModel: without the heads (transform, norm, bias, next sentence)."""
    workload = catalog.workload(name)
    hidden, vocabulary = workload.hidden, workload.vocabulary
    assert hidden is not None
    assert vocabulary is not None
    heads = hidden**2 + hidden + 2 * hidden + vocabulary + 2 * hidden + 2
    assert workload.num_parameters - heads == encoder


def test_bert_base_flops(catalog: Catalog) -> None:
    """22.5 GFLOPs for 128 tokens (Jiao et al. 2020, arXiv:1909.10351, table 1), prediction heads aside."""
    workload = catalog.workload("bert-base")
    body = workload.model_copy(update={"layers": workload.layers[:-1]})
    assert model_flops(body) == pytest.approx(22.5e9, rel=0.01)


def _narayanan_forward_flops(workload: Workload, num_layers: int) -> float:
    """Narayanan et al. 2021, arXiv:2104.04473, appendix: 24 s l h^2 (1 + s / 6h) + 2 s h V per sequence."""
    s, h, v = workload.sequence_length, workload.hidden, workload.vocabulary
    assert s is not None
    assert h is not None
    assert v is not None
    return 24.0 * s * num_layers * h**2 * (1 + s / (6 * h)) + 2 * s * h * v


@pytest.mark.parametrize("name", [name for name in DECODERS if name.startswith("gpt")])
def test_gpt_flops(catalog: Catalog, name: str) -> None:
    workload = catalog.workload(name)
    assert model_flops(workload) == pytest.approx(
        _narayanan_forward_flops(workload, workload.num_blocks), rel=1e-9
    )


def test_gpt3_training_flops(catalog: Catalog) -> None:
    """3.14e23 FLOPs for 300e9 tokens, attention scores left out (Brown et al. 2020, table D.1)."""
    workload = catalog.workload("gpt3-175b")
    assert workload.sequence_length == 2048
    scores = 4.0 * 2048**2 * 12288 * 96
    per_token = 3 * (model_flops(workload) - scores) / 2048
    assert per_token * 300e9 == pytest.approx(3.14e23, rel=0.01)


def test_llama_training_flops(catalog: Catalog) -> None:
    """3.8e25 FLOPs for 15.6e12 tokens (Llama team 2024, section 1), attention scores left out."""
    workload = catalog.workload("llama3-405b")
    scores = 4.0 * 8192**2 * 16384 * 126
    per_token = 3 * (model_flops(workload) - scores) / 8192
    assert per_token * 15.6e12 == pytest.approx(3.8e25, rel=0.01)


def test_mixtral_active_parameters(catalog: Catalog) -> None:
    """A token uses 13B of the 47B parameters (Jiang et al. 2024, arXiv:2401.04088, section 2)."""
    workload = catalog.workload("mixtral-8x7b")
    active = sum(layer.parameters + layer.expert_parameters * 2 / 8 for layer in workload.layers)
    assert active == pytest.approx(12.9e9, rel=0.01)
    scores = 4.0 * 4096**2 * 4096 * 32
    table = 32000 * 4096
    assert (model_flops(workload) - scores) / 4096 == pytest.approx(2 * (active - table), rel=0.001)
