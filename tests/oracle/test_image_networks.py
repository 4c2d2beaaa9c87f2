"""Image networks against the counts of torchvision's and timm's implementations.

Parameters and forward FLOPs (two per multiply-add of convolutions and products) of torchvision 0.29 and timm
1.0.31, counted by ``torch.utils.flop_counter`` at the resolution given, without auxiliary classifiers.
"""

from __future__ import annotations

import pytest

from sim.architecture import generate
from sim.models.compute import model_flops
from sim.validate.named_models import DIFFUSION

COUNTED = [
    ("cnn:densenet121", 224, 7_978_856, 5.668e9),
    ("cnn:densenet161", 224, 28_681_000, 15.456e9),
    ("cnn:densenet169", 224, 14_149_480, 6.720e9),
    ("cnn:densenet201", 224, 20_013_928, 8.583e9),
    ("cnn:mobilenet-v1", 224, 4_231_976, 1.1375e9),
    ("cnn:mobilenet-v2", 224, 3_504_872, 0.6015e9),
    ("cnn:mobilenet-v3-large", 224, 5_483_032, 0.4332e9),
    ("cnn:mobilenet-v3-small", 224, 2_542_856, 0.1130e9),
    ("cnn:mnasnet", 224, 4_383_312, 0.6288e9),
    ("cnn:googlenet", 224, 6_624_904, 2.997e9),
    ("cnn:inception-v4", 299, 42_679_816, 24.508e9),
    ("cnn:squeezenet", 224, 1_235_496, 0.6983e9),
    ("cnn:vgg11", 224, 132_863_336, 15.218e9),
    ("cnn:vgg13", 224, 133_047_848, 22.617e9),
    ("cnn:resnet200", 224, 64_673_832, 30.015e9),
    ("cnn:wide-resnet50-2", 224, 68_883_240, 22.796e9),
    ("cnn:resnext50-32x4d", 224, 25_028_904, 8.461e9),
    ("cnn:resnext101-64x4d", 224, 83_455_272, 30.921e9),
    ("cnn:resnext101-32x8d", 224, 88_791_336, 32.828e9),
    ("cnn:se-resnet50", 224, 28_088_024, 8.183e9),
    ("cnn:se-resnext50-32x4d", 224, 27_559_896, 8.466e9),
    ("cnn:efficientnet-b1", 240, 7_794_184, 1.3736e9),
    ("cnn:efficientnet-b2", 256, 9_109_994, 1.7197e9),
    ("cnn:efficientnet-b3", 288, 12_233_232, 3.1784e9),
    ("cnn:efficientnet-b5", 448, 30_389_784, 18.809e9),
    ("cnn:efficientnet-b7", 600, 66_347_960, 75.492e9),
    ("cnn:efficientnet-v2-s", 300, 21_458_488, 10.615e9),
    ("cnn:efficientnet-v2-m", 384, 54_139_356, 31.474e9),
    ("yolov3", 416, 61_949_149, 65.86e9),
    ("convnext-tiny", 224, 28_589_128, 8.911e9),
    ("convnext-small", 224, 50_223_688, 17.367e9),
    ("convnext-base", 224, 88_591_464, 30.709e9),
    ("convnext-large", 224, 197_767_336, 68.723e9),
    ("swin-tiny", 224, 28_288_354, 8.981e9),
    ("swin-small", 224, 49_606_258, 17.482e9),
    ("swin-base", 224, 87_768_224, 30.862e9),
    ("swin-large", 224, 196_532_476, 68.952e9),
]


@pytest.mark.parametrize(("name", "size", "parameters", "flops"), COUNTED, ids=[name for name, *_ in COUNTED])
def test_networks_have_the_counts_of_their_implementations(
    name: str, size: int, parameters: int, flops: float
) -> None:
    workload = generate(name, {"image_size": size, "batch_per_device": 1})
    assert workload.num_parameters == parameters
    assert model_flops(workload) == pytest.approx(flops, rel=1e-3)


SHAPED = [
    ("retinanet", {"image_width": 1344, "num_classes": 91, "backbone": "resnet50"}, 34_068_119, 508.94e9),
    ("deeplab", {"image_size": 520, "backbone_depth": 50, "plus": False}, 39_638_869, 337.46e9),
    ("deeplab", {"image_size": 520, "plus": False}, 58_630_997, 497.50e9),
    # monai's DynUNet as NVIDIA's nnU-Net configures it; MLPerf's 3D U-Net has the same convolutions.
    ("unet", {}, 31_190_243, 954.60e9),
    # Ronneberger et al. 2015: 572 x 572 in, 388 x 388 out.
    (
        "unet",
        {"image_size": 572, "depth": 1, "filters": (64, 128, 256, 512, 1024), "pooled": True, "padded": False,
         "norm": False, "num_classes": 2},
        31_030_658, 300.86e9,
    ),
    # diffusers' UNet2DConditionModel of runwayml/stable-diffusion-v1-5, stabilityai/stable-diffusion-2-1 and
    # stabilityai/stable-diffusion-xl-base-1.0
    ("diffusion-unet", {"text_encoders": ()}, 859_520_964, 803.27e9),
    ("diffusion-unet", {"text_encoders": (), "context": 1024, "head_dim": 64}, 865_910_724, 804.26e9),
    ("diffusion-unet", {**DIFFUSION[0][2], "text_encoders": ()},
     2_567_463_684, 6761.24e9),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fields", "parameters", "flops"), SHAPED, ids=[f"{row[0]}{i}" for i, row in enumerate(SHAPED)]
)
def test_detectors_segmentation_and_diffusion(
    name: str, fields: dict[str, object], parameters: int, flops: float
) -> None:
    workload = generate(name, {**fields, "batch_per_device": 1})
    assert workload.num_parameters == parameters
    assert model_flops(workload) == pytest.approx(flops, rel=1e-3)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "millions", "multiply_adds"),
    [(28, 1152, 16, 675, 118.64e9), (24, 1024, 16, 458, 80.71e9), (12, 768, 12, 130, 23.01e9)],
)
def test_diffusion_transformers(
    layers: int, hidden: int, heads: int, millions: float, multiply_adds: float
) -> None:
    """Peebles & Xie 2023, table 4: DiT-XL/2, L/2 and B/2 on 256 x 256 images."""
    workload = generate(
        "dit", {"num_layers": layers, "hidden": hidden, "num_heads": heads, "batch_per_device": 1}
    )
    assert workload.num_parameters / 1e6 == pytest.approx(millions, rel=0.005)
    assert model_flops(workload) == pytest.approx(2 * multiply_adds, rel=0.001)


def test_frozen_encoders_of_stable_diffusion() -> None:
    """CLIP ViT-L's text model (123.06 million) and the autoencoder's encoder (34.16 million; 558 GMACs)."""
    alone = generate("diffusion-unet", {"text_encoders": (), "batch_per_device": 1})
    text = generate("diffusion-unet", {"batch_per_device": 1})
    assert text.frozen_parameters == pytest.approx(123_060_480, rel=1e-3)
    assert text.num_parameters == alone.num_parameters
    whole = generate("diffusion-unet", {"image_encoder": True, "batch_per_device": 1})
    assert whole.frozen_parameters - text.frozen_parameters == 34_163_592
    assert model_flops(whole) - model_flops(text) == pytest.approx(1116.66e9, rel=1e-3)


def test_other_backbones() -> None:
    """MLPerf's SSD300 on ResNet-34 has 8,732 boxes; Faster R-CNN of torchvision 41.8 million parameters."""
    small = generate("ssd300", {"backbone": "resnet34", "batch_per_device": 1})
    assert small.num_parameters == pytest.approx(20.0e6, rel=0.01)
    boxes = generate("mask-rcnn", {"masks": False, "num_classes": 91, "batch_per_device": 1})
    assert boxes.num_parameters == 41_808_406
