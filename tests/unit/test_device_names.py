"""What published tables call accelerators: the device that is simulated, and how many a name counts."""

from __future__ import annotations

import pytest

from sim.catalog import Catalog
from sim.validate.boards import BOARDS, board_key, count_in_name
from sim.validate.hardware import device_name, gpu_count
from sim.validate.rows import Row

NAMES = {
    "RTX 3080": "rtx-3080-10gb", "GeForce RTX 3070": "rtx-3070-8gb", "RTX A5000": "a5000-24gb",
    "NVIDIA RTX A4000": "a4000-16gb", "RTX A6000": "a6000-48gb", "RTX 6000 Ada": "rtx-6000-ada-48gb",
    "Quadro RTX 8000": "rtx-8000-48gb", "Quadro RTX 6000": "rtx-6000-24gb", "RTX 5090": "rtx-5090-32gb",
    "RTX PRO 6000 Blackwell": "rtx-pro-6000-96gb", "GTX 1080": "gtx-1080-8gb",
    "GTX1080Ti": "gtx-1080ti-11gb", "RTX2080Ti": "rtx-2080ti-11gb", "GTX Titan X": "titan-x-maxwell-12gb",
    "TITAN X (Pascal)": "titan-x-pascal-12gb", "Titan Xp": "titan-xp-12gb", "TITAN V": "titan-v-12gb",
    "TITAN RTX": "titan-rtx-24gb", "Tesla M60": "m60-8gb", "Tesla K40m": "k40-12gb",
    "P100-PCIe-16GB": "p100-16gb", "A100-PCIe-40GB": "a100-pcie-40gb", "A100 40 GB PCIe": "a100-pcie-40gb",
    "A100-SXM4-80GB": "a100-80gb", "H100 SXM 80GB": "h100-80gb", "H100-80GB-HBM3": "h100-80gb",
    "H100 NVL": "h100-nvl-94gb", "GH200": "gh200-96gb", "GB200 NVL72": "gb200-186gb",
    "HGX H200": "h200-141gb",
    "DGX B200": "b200-180gb", "AMD Instinct MI100": "mi100-32gb", "MI210": "mi210-64gb",
    "Radeon Instinct MI60": "mi60-32gb", "MI50": "mi50-16gb", "MI300X": "mi300x-192gb",
    "MI250X GCD": "mi250x-64gb", "MI350X": "mi355x-288gb", "Habana Gaudi": "gaudi-32gb",
    "Gaudi 3": "gaudi3-128gb", "HLS-1": "gaudi-32gb", "TPU v2": "tpu-v2", "TPU v3-8": "tpu-v3",
    "TPUv4": "tpu-v4", "TPU v5p-256": "tpu-v5p", "Cloud TPU v5e": "tpu-v5e", "TPU v5 lite": "tpu-v5e",
    "Trillium": "tpu-v6e", "TPU7x": "tpu-v7", "Ironwood": "tpu-v7", "Trainium": "trainium1-32gb",
    "AWS Trainium2": "trainium2-96gb", "trn1.32xlarge": "trainium1-32gb", "Ascend 910": "ascend-910-32gb",
    "Ascend 910B": "ascend-910b-64gb", "Intel Data Center GPU Max 1550": "max-1550-128gb",
    "Ponte Vecchio": "max-1550-128gb", "a3-highgpu-8g": "h100-80gb", "a2-highgpu-8g": "a100-40gb",
    "p4de.24xlarge": "a100-80gb", "p5en.48xlarge": "h200-141gb", "g5.48xlarge": "a10g-24gb",
    "g6.12xlarge": "l4-24gb",
}  # fmt: skip


@pytest.mark.parametrize(("text", "device"), NAMES.items())
def test_names_of_devices(text: str, device: str) -> None:
    assert device_name(Row({"gpu": text})) == device


def test_every_board_has_its_devices(catalog: Catalog) -> None:
    for name, board in BOARDS.items():
        assert board_key(name) == name
        for gigabytes, device in board.device.items():
            assert catalog.device(device).memory_bytes / 1e9 == pytest.approx(gigabytes, rel=0.08)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8x A100", 8), ("8 x MI300X", 8), ("V100 x8", 8), ("A100 (8x)", 8), ("16 x DGX H100", 128),
        ("DGX A100", 8), ("p4d.24xlarge", 8), ("TPU v3-8", 4), ("TPU v5p-256", 128), ("TPU v5e-256", 256),
        ("A100", None), ("RTX 3090", None), ("DGX-2", None), ("H100 SXM5", None),
    ],
)  # fmt: skip
def test_counts_in_names(text: str, count: int | None) -> None:
    assert count_in_name(text) == count
    assert gpu_count(Row({"gpu": text})) == count
    assert gpu_count(Row({"gpu": text, "gpus": "24"})) == 24


def test_nodes_without_a_count_have_the_usual_devices() -> None:
    assert gpu_count(Row({"gpu": "H100", "nodes": "4"})) == 32
