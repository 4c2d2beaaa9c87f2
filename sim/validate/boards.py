"""Reference designs of accelerator servers, by the name in the ``gpu`` column, and names for them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sim.validate.datasheets import PCIE

NVL72_DOMAIN = 64
"""GPUs of a rack-scale NVLink domain that jobs use: 64 of the 72, a power of two."""


@dataclass(frozen=True)
class Board:
    """Reference design of a GPU server.

    Attributes
    ----------
    device : str
        Catalogue name by memory size (GB), the default size first.
    gpus : int
        GPUs of a host.
    nvlink : float
        NVLink bandwidth of a GPU through switches, bytes/s in one direction; 0 without NVLink switches.
    ports : tuple of (int, float)
        Network ports and the Gb/s of each.
    pcie : float
        Bytes/s of a GPU's PCIe link in one direction.
    chip_link : float
        Bytes/s in one direction to the memory of a processor on the same module (NVLink-C2C); 0: over PCIe.
    """

    device: dict[int, str]
    gpus: int
    nvlink: float
    ports: tuple[int, float]
    pcie: float
    cpu: str
    chip_link: float = 0.0


BOARDS: dict[str, Board] = {
    "K80": Board({12: "k80"}, 8, 0.0, (1, 10.0), PCIE[3], "xeon-e5-2686v4"),
    "P100": Board({16: "p100-16gb"}, 8, 0.0, (4, 100.0), PCIE[3], "xeon-e5-2698v4"),
    "V100": Board({16: "v100-16gb", 32: "v100-32gb"}, 8, 0.0, (4, 100.0), PCIE[3], "xeon-e5-2698v4"),
    "V100-PCIE": Board({16: "v100-pcie-16gb"}, 8, 0.0, (1, 100.0), PCIE[3], "xeon-e5-2698v4"),
    "T4": Board({16: "t4"}, 4, 0.0, (1, 50.0), PCIE[3], "xeon-8259cl"),
    "A100": Board({80: "a100-80gb", 40: "a100-40gb"}, 8, 300e9, (8, 200.0), PCIE[4], "epyc-7742"),
    "A100-PCIE": Board(
        {80: "a100-pcie-80gb", 40: "a100-pcie-40gb"}, 8, 0.0, (1, 200.0), PCIE[4], "epyc-7742"
    ),
    "H100": Board({80: "h100-80gb", 96: "h100-96gb"}, 8, 450e9, (8, 400.0), PCIE[5], "xeon-8480c"),
    "H100-NVL": Board({94: "h100-nvl-94gb"}, 8, 0.0, (1, 400.0), PCIE[5], "xeon-8480c"),
    "H100-PCIE": Board({80: "h100-pcie-80gb"}, 8, 0.0, (1, 400.0), PCIE[5], "xeon-8480c"),
    "H200": Board({141: "h200-141gb"}, 8, 450e9, (8, 400.0), PCIE[5], "xeon-8480c"),
    "B200": Board({180: "b200-180gb"}, 8, 900e9, (8, 400.0), PCIE[5], "xeon-8480c"),
    "B300": Board({270: "b300-270gb"}, 8, 900e9, (8, 800.0), PCIE[5], "xeon-8480c"),
    "GB200": Board(
        {186: "gb200-186gb"}, NVL72_DOMAIN, 900e9, (NVL72_DOMAIN, 400.0), PCIE[5], "xeon-8480c", 225e9
    ),
    "GB300": Board(
        {279: "gb300-279gb"}, NVL72_DOMAIN, 900e9, (NVL72_DOMAIN, 800.0), PCIE[5], "xeon-8480c", 225e9
    ),
    "H800": Board({80: "h800-80gb"}, 8, 200e9, (8, 400.0), PCIE[5], "xeon-8480c"),
    "H20": Board({96: "h20-96gb"}, 8, 450e9, (8, 400.0), PCIE[5], "xeon-8480c"),
    "GH200": Board({96: "gh200-96gb"}, 4, 450e9, (4, 200.0), PCIE[5], "xeon-8480c", 450e9),
    "A800": Board({80: "a800-80gb"}, 8, 200e9, (8, 200.0), PCIE[4], "epyc-7742"),
    "A30": Board({24: "a30-24gb"}, 4, 0.0, (1, 100.0), PCIE[4], "epyc-7742"),
    "A40": Board({48: "a40-48gb"}, 8, 0.0, (1, 100.0), PCIE[4], "epyc-7742"),
    "A6000": Board({48: "a6000-48gb"}, 8, 0.0, (1, 100.0), PCIE[4], "epyc-7742"),
    "A10": Board({24: "a10-24gb"}, 4, 0.0, (1, 100.0), PCIE[4], "epyc-7742"),
    "A10G": Board({24: "a10g-24gb"}, 8, 0.0, (1, 100.0), PCIE[4], "epyc-7742"),
    "L4": Board({24: "l4-24gb"}, 8, 0.0, (1, 100.0), PCIE[4], "epyc-7742"),
    "L40S": Board({48: "l40s-48gb"}, 8, 0.0, (1, 200.0), PCIE[4], "epyc-7742"),
    "RTX-2080-TI": Board({11: "rtx-2080ti-11gb"}, 8, 0.0, (1, 25.0), PCIE[3], "xeon-5118"),
    "RTX-3090": Board({24: "rtx-3090-24gb"}, 8, 0.0, (1, 25.0), PCIE[4], "epyc-7742"),
    "RTX-4090": Board({24: "rtx-4090-24gb"}, 8, 0.0, (1, 25.0), PCIE[4], "epyc-7742"),
    "GTX-1080-TI": Board({11: "gtx-1080ti-11gb"}, 8, 0.0, (1, 10.0), PCIE[3], "xeon-5118"),
    "TITAN-RTX": Board({24: "titan-rtx-24gb"}, 8, 0.0, (1, 25.0), PCIE[3], "xeon-5118"),
    "P40": Board({24: "p40-24gb"}, 8, 0.0, (1, 25.0), PCIE[3], "xeon-e5-2698v4"),
    "M40": Board({12: "m40-12gb"}, 8, 0.0, (1, 10.0), PCIE[3], "xeon-e5-2686v4"),
    "K40": Board({12: "k40-12gb"}, 4, 0.0, (1, 10.0), PCIE[3], "xeon-e5-2686v4"),
    "RTX-3080": Board({10: "rtx-3080-10gb"}, 8, 0.0, (1, 25.0), PCIE[4], "epyc-7742"),
    "RTX-3070": Board({8: "rtx-3070-8gb"}, 8, 0.0, (1, 25.0), PCIE[4], "epyc-7742"),
    "RTX-5090": Board({32: "rtx-5090-32gb"}, 8, 0.0, (1, 25.0), PCIE[5], "xeon-8480c"),
    "RTX-PRO-6000": Board({96: "rtx-pro-6000-96gb"}, 8, 0.0, (1, 400.0), PCIE[5], "xeon-8480c"),
    "A5000": Board({24: "a5000-24gb"}, 8, 0.0, (1, 25.0), PCIE[4], "epyc-7742"),
    "A4000": Board({16: "a4000-16gb"}, 8, 0.0, (1, 25.0), PCIE[4], "epyc-7742"),
    "RTX-6000-ADA": Board({48: "rtx-6000-ada-48gb"}, 8, 0.0, (1, 100.0), PCIE[4], "epyc-7742"),
    "RTX-8000": Board({48: "rtx-8000-48gb"}, 8, 0.0, (1, 25.0), PCIE[3], "xeon-5118"),
    "RTX-6000": Board({24: "rtx-6000-24gb"}, 8, 0.0, (1, 25.0), PCIE[3], "xeon-5118"),
    "GTX-1080": Board({8: "gtx-1080-8gb"}, 8, 0.0, (1, 10.0), PCIE[3], "xeon-5118"),
    "TITAN-X-PASCAL": Board({12: "titan-x-pascal-12gb"}, 4, 0.0, (1, 10.0), PCIE[3], "xeon-e5-2686v4"),
    "TITAN-XP": Board({12: "titan-xp-12gb"}, 4, 0.0, (1, 10.0), PCIE[3], "xeon-5118"),
    "TITAN-X": Board({12: "titan-x-maxwell-12gb"}, 4, 0.0, (1, 10.0), PCIE[3], "xeon-e5-2686v4"),
    "TITAN-V": Board({12: "titan-v-12gb"}, 4, 0.0, (1, 10.0), PCIE[3], "xeon-5118"),
    "M60": Board({8: "m60-8gb"}, 4, 0.0, (1, 10.0), PCIE[3], "xeon-e5-2686v4"),
    "MI50": Board({16: "mi50-16gb"}, 8, 0.0, (1, 100.0), PCIE[4], "epyc-7742"),
    "MI60": Board({32: "mi60-32gb"}, 8, 0.0, (1, 100.0), PCIE[4], "epyc-7742"),
    "MI100": Board({32: "mi100-32gb"}, 8, 92e9, (1, 200.0), PCIE[4], "epyc-7742"),
    "MI210": Board({64: "mi210-64gb"}, 8, 92e9, (1, 200.0), PCIE[4], "epyc-7742"),
    "GAUDI": Board({32: "gaudi-32gb"}, 8, 87.5e9, (3, 800.0), PCIE[4], "xeon-8480c"),
    "TRAINIUM": Board({32: "trainium1-32gb"}, 16, 192e9, (8, 100.0), PCIE[4], "xeon-8480c"),
    "TRAINIUM2": Board({96: "trainium2-96gb"}, 16, 512e9, (16, 200.0), PCIE[5], "xeon-8480c"),
    "ASCEND-910": Board({32: "ascend-910-32gb"}, 8, 45e9, (8, 100.0), PCIE[4], "epyc-7742"),
    "ASCEND-910B": Board({64: "ascend-910b-64gb"}, 8, 196e9, (8, 200.0), PCIE[5], "xeon-8480c"),
    "MAX-1550": Board({128: "max-1550-128gb"}, 6, 159e9, (8, 200.0), PCIE[5], "xeon-8480c"),
    "TPU-V2": Board({16: "tpu-v2"}, NVL72_DOMAIN, 62e9, (NVL72_DOMAIN, 496.0), PCIE[3], "xeon-8124m"),
    "TPU-V7": Board({192: "tpu-v7"}, NVL72_DOMAIN, 600e9, (NVL72_DOMAIN, 4800.0), PCIE[5], "xeon-8480c"),
    "MI250X": Board({64: "mi250x-64gb", 128: "mi250x-128gb"}, 8, 200e9, (4, 200.0), PCIE[4], "epyc-7742"),
    "MI250": Board({64: "mi250x-64gb", 128: "mi250x-128gb"}, 8, 200e9, (4, 200.0), PCIE[4], "epyc-7742"),
    "MI300X": Board({192: "mi300x-192gb"}, 8, 448e9, (8, 400.0), PCIE[5], "xeon-8480c"),
    "MI300A": Board({128: "mi300a-128gb"}, 4, 384e9, (4, 200.0), PCIE[5], "xeon-8480c"),
    "MI325X": Board({256: "mi325x-256gb"}, 8, 448e9, (8, 400.0), PCIE[5], "xeon-8480c"),
    "MI355X": Board({288: "mi355x-288gb"}, 8, 538e9, (8, 400.0), PCIE[5], "xeon-8480c"),
    "GAUDI2": Board({96: "gaudi2-96gb"}, 8, 262.5e9, (3, 800.0), PCIE[4], "xeon-8480c"),
    "GAUDI3": Board({128: "gaudi3-128gb"}, 8, 525e9, (3, 1600.0), PCIE[5], "xeon-8480c"),
    "TPU-V3": Board({32: "tpu-v3"}, NVL72_DOMAIN, 82e9, (NVL72_DOMAIN, 656.0), PCIE[3], "xeon-8124m"),
    "TPU-V4": Board({32: "tpu-v4"}, NVL72_DOMAIN, 150e9, (NVL72_DOMAIN, 1200.0), PCIE[4], "epyc-7742"),
    "TPU-V5E": Board({16: "tpu-v5e"}, NVL72_DOMAIN, 100e9, (NVL72_DOMAIN, 800.0), PCIE[4], "epyc-7742"),
    "TPU-V5P": Board({95: "tpu-v5p"}, NVL72_DOMAIN, 300e9, (NVL72_DOMAIN, 2400.0), PCIE[4], "epyc-7742"),
    "TPU-V6E": Board({32: "tpu-v6e"}, NVL72_DOMAIN, 224e9, (NVL72_DOMAIN, 1792.0), PCIE[4], "epyc-7742"),
}
"""GPU boards by the name in the ``gpu`` column. Links between the accelerators of a host count as a switch
of their bandwidth, also where they join all pairs (Infinity Fabric, Gaudi) or form a torus (TPU), as rings
reach it. Sources: the vendors' datasheets, as in ``topologies/devices``; NVIDIA DGX and HGX user guides;
AMD MI300X platform data sheet; Jouppi et al. 2023, arXiv:2304.01433 (TPU v4); AWS Neuron documentation (768
GB/s and 2,048 GB/s of NeuronLink a chip, in and out); Intel Gaudi whitepapers;
NVIDIA GH200 and GB200 datasheets (900 GB/s of NVLink-C2C both ways, to one GPU and to two)."""

MESHES = {"P100": "dgx-1-p100", "V100": "dgx-1-v100"}
"""Catalogue hosts whose GPUs are joined by a hybrid cube mesh."""


VARIANTS = {("V100", r"DGX-2H|450 ?W"): "v100-sxm3-32gb"}
"""Devices sold under one name that differ in more than memory: board and pattern -> catalogue name."""

NICKNAMES: tuple[tuple[str, str], ...] = (
    (r"^(GRACE-?HOPPER)", "GH200"), (r"^HL-?225", "GAUDI2"), (r"^HL-?325", "GAUDI3"),
    (r"^HLS-?1|^HL-?20\d", "GAUDI"),
    (r"^(RTX-?)?PRO-?6000", "RTX-PRO-6000"), (r"^RTX-?A?6000-?ADA|^ADA-?6000", "RTX-6000-ADA"),
    (r"^RTX-?A([456]000)", r"A\1"), (r"^(RTX|GTX)?-?(5090|4090|30[789]0|1080)(?!\d|-?TI)", r"RTX-\2"),
    (r"^RTX-?1080", "GTX-1080"), (r"^(RTX)?-?3090-?TI", "RTX-3090"), (r"^(RTX)?-?3080-?TI", "RTX-3080"),
    (r"^(RTX)?-?2080-?TI", "RTX-2080-TI"), (r"^(GTX)?-?1080-?TI", "GTX-1080-TI"),
    (r"^(GTX-?)?TITAN-?XP?-?\(?PASCAL\)?", "TITAN-X-PASCAL"), (r"^PASCAL-?TITAN-?X", "TITAN-X-PASCAL"),
    (r"^GTX-?TITAN-?X", "TITAN-X"),
    (r"^MI350X", "MI355X"), (r"^(TPU-?)?V5-?LITE|^TPU-?V5-?LITE", "TPU-V5E"), (r"^TRILLIUM", "TPU-V6E"),
    (r"^TPU-?7X?|^IRONWOOD", "TPU-V7"), (r"^TPUV", "TPU-V"), (r"^TPU-V6(?!E)", "TPU-V6E"),
    (r"^TRAINIUM-?1|^TRN1N?\b", "TRAINIUM"), (r"^TRAINIUM-?2|^TRN2U?\b", "TRAINIUM2"),
    (r"^(DATA-CENTER-)?MAX-?(SERIES-)?1550|^PONTE-?VECCHIO|^PVC\b", "MAX-1550"),
    (r"^(HUAWEI-?)?(ATLAS.*)?ASCEND-?910", "ASCEND-910"),
    (r"^DGX-?2", "V100-32GB"), (r"^DGX-?1(?!\d)", "V100"), (r"^P3DN\b", "V100-32GB"),
    (r"^P3\b", "V100"), (r"^P4DE\b", "A100-80GB"), (r"^P4D\b", "A100-40GB"), (r"^P5EN?\b", "H200"),
    (r"^P5\b", "H100"), (r"^P6-B200", "B200"), (r"^P2\b", "K80"), (r"^G4DN\b", "T4"), (r"^G5\b", "A10G"),
    (r"^G6E\b", "L40S"), (r"^G6\b", "L4"), (r"^A3-(HIGH|MEGA).*", "H100"), (r"^A3-ULTRA.*", "H200"),
    (r"^A2-ULTRA.*", "A100-80GB"), (r"^A2-(HIGH|MEGA).*", "A100-40GB"), (r"^DL1\b", "GAUDI"),
    (r"^L40(?!S)", "L40S"), (r"^GAUDI-", "GAUDI"), (r"^MI300(?![0-9AX])", "MI300X"),
)  # fmt: skip
"""Other spellings of the names above, systems and cloud instances of one kind of GPU, near relatives: pattern
-> what it is read as."""

_MAKERS = (
    r"\b(NVIDIA|TESLA|AMD|RADEON|INSTINCT|INTEL|HABANA|GOOGLE|CLOUD|GEFORCE|QUADRO|GPU|AWS|HUAWEI)\b"
    r"|\(R\)|\(TM\)"
)


def _name(text: str) -> str:
    """What a row calls its GPU in the spelling of :data:`BOARDS`: upper case, hyphens, without makers."""
    name = re.sub(r"[\s_]+", "-", re.sub(_MAKERS, " ", text.upper()).strip())
    name = re.sub(r"^(\d+)-?X-?", "", name)  # "8x A100"
    for pattern, known in NICKNAMES:
        name = re.sub(pattern, known, name)
    return name


def board_key(text: str) -> str | None:
    """Key of :data:`BOARDS` for what a row calls its GPU; None if no design is known.

    A name at the beginning goes before one further on ("DGX-A100", "HGX H100 8-GPU").
    """
    name, keys = _name(text), sorted(BOARDS, key=len, reverse=True)
    for start in ("^", r"(?<![A-Z0-9])"):
        for known in keys:
            if re.search(rf"{start}{re.escape(known)}(?![0-9])", name):
                return known
    return None


def memory_in_name(text: str) -> float | None:
    """Gigabytes that a GPU's name states ("A100-SXM4-40GB", "V100 32 GB", "A100-80G")."""
    found = re.search(r"(?<![\d.])(\d{1,3})-?(?:GI?B|G)(?![A-Z/])", _name(text))
    return float(found[1]) if found else None


CHIPS_OF_SLICES = {"2": 2, "3": 2, "4": 2, "5P": 2, "5E": 1, "6E": 1, "7": 2}
"""Cores of a chip by which the name of a slice of TPUs counts ("v4-128" is 64 chips, "v5e-256" 256)."""
SYSTEMS = (
    r"^(\d+-?X-?)?(DGX(?!-?(2|SPARK|STATION))|HGX|P3\.16|P3DN|P4DE?|P5EN?|P6-B200|A3-(HIGH|MEGA|ULTRA)|DL1)"
)
"""Systems of eight."""


def count_in_name(text: str) -> int | None:
    """Devices that a name counts ("8x A100", "TPU v5p-256", "16 x DGX H100"); None if it counts none."""
    name = re.sub(r"[\s_]+", "-", re.sub(_MAKERS, " ", text.upper()).strip())
    part = re.search(r"TPU-?V?(\d[EP]?)-(\d+)\b", name)
    if part:
        return max(1, int(part[2]) // CHIPS_OF_SLICES.get(part[1], 1))
    times = re.search(r"^(\d+)-?X-?(?=[A-Z])|[- ]X(\d+)$|(?<=\()(\d+)X\)$", name)
    systems = 8 if re.search(SYSTEMS, name) else 1
    return systems * int(next(filter(None, times.groups()))) if times else systems if systems > 1 else None


def stated_power(text: str) -> float | None:
    """Watts of a power limit in a text ("500 W cap", "power limit 300W", "@ 300W"); None without one."""
    found = re.search(r"(?<![\d.])(\d{2,4}) ?W\b", text)
    return float(found[1]) if found else None
