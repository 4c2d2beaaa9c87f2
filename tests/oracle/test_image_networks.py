"""Image networks against the counts of torchvision's and timm's implementations.

Parameters and forward FLOPs (two per multiply-add of convolutions and products) of torchvision 0.29 and timm
1.0.31, counted by ``torch.utils.flop_counter`` at the resolution given, without auxiliary classifiers.
"""

from __future__ import annotations

import pytest

from sim.architecture import generate
from sim.models.compute import model_flops

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
