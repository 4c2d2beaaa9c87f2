"""From the words of a published table to a cluster: device, links inside a host, network between hosts.

A row of ``measurements/collectives.csv`` names hardware the way its page does ("A100-SXM4-80GB", "NVLink4
NVSwitch (900 GB/s bidir)", "AWS EFA 4x100G (p4d.24xlarge)"). This module finds the spec-sheet numbers behind
the words. What a page leaves open takes the usual value for the device and is listed as an assumption; what
cannot be known is an :class:`UnknownHardware` with its reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from sim.validate.boards import BOARDS
from sim.validate.datasheets import GIGABIT, PCIE, device_bandwidth, ports_each


class UnknownHardware(Exception):
    """The row does not say enough to build a cluster; the message is the reason."""


@dataclass(frozen=True)
class Interior:
    """Links inside a host.

    Attributes
    ----------
    kind : str
        ``nvswitch``, ``mesh`` (every pair of devices), ``cube`` (DGX-1), ``pairs`` (bridges), ``pcie``.
    name : str
        Generation, part of calibration keys: ``nvlink3``, ``bridge3``, ``xgmi3`` ...
    bandwidth : float
        Bytes/s a device can send over them, all links of the device together, one direction.
    """

    kind: str
    name: str
    bandwidth: float


@dataclass(frozen=True)
class DeviceFacts:
    """What a datasheet says about links of a device.

    Attributes
    ----------
    name : str
        Short name.
    interior : Interior
        Links among devices of one host.
    per_host : int
        Devices of the usual machine.
    pcie : float
        Bytes/s of the slot, one direction.
    nic : float
        Bytes/s of network per device in the usual machine (0: unusual to have a fast one).
    """

    name: str
    interior: Interior
    per_host: int
    pcie: float
    nic: float


@dataclass(frozen=True)
class NetworkFacts:
    """The network between hosts: transport (part of calibration keys), NICs per host and bytes/s of each."""

    transport: str
    num_nics: int
    bandwidth: float


@dataclass
class Assumptions:
    """What was taken for granted, in words."""

    texts: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Note one."""
        self.texts.append(text)

    def __str__(self) -> str:
        return "; ".join(self.texts)


def _nvlink(generation: int, bandwidth: float, kind: str = "nvswitch") -> Interior:
    return Interior(kind, f"nvlink{generation}", bandwidth)


def _slot(generation: int) -> Interior:
    return Interior("pcie", f"pcie{generation}", PCIE[generation])


def _facts(name: str, interior: Interior, board: str, per_host: int = 0) -> DeviceFacts:
    """Links of a device; the machine around it is the reference design of training runs."""
    design = BOARDS[board]
    count, speed = design.ports
    nic = 0.0 if interior.kind == "pcie" else count * speed * GIGABIT / design.gpus
    return DeviceFacts(name, interior, per_host or design.gpus, design.pcie, nic)


def _usual(name: str, interior: Interior, board: str) -> DeviceFacts:
    """Any board on such a slot."""
    return DeviceFacts(name, interior, BOARDS[board].gpus, interior.bandwidth, 0.0)


# In order: the first pattern found in the text wins. Link speeds are those of the vendors' datasheets.
_DEVICES: tuple[tuple[str, DeviceFacts], ...] = (
    (r"GB300", _facts("gb200", _nvlink(5, BOARDS["GB300"].nvlink), "GB300", 4)),
    (r"GB200", _facts("gb200", _nvlink(5, BOARDS["GB200"].nvlink), "GB200", 4)),
    (r"\bB300", _facts("b200", _nvlink(5, BOARDS["B300"].nvlink), "B300")),
    (r"\bB200", _facts("b200", _nvlink(5, BOARDS["B200"].nvlink), "B200")),
    (r"GH200", _facts("gh200", _nvlink(4, BOARDS["GH200"].nvlink, "mesh"), "GH200")),
    (r"H100.*(PCIe|NVL)|H200.*NVL", _facts("h100-pcie", _slot(5), "H100-PCIE")),
    (r"H800", _facts("h800", _nvlink(4, BOARDS["H800"].nvlink), "H800")),
    (r"H[12]00|\bH20\b", _facts("h100", _nvlink(4, BOARDS["H100"].nvlink), "H100")),
    (r"A100.*PCIe", _facts("a100-pcie", _slot(4), "A100-PCIE")),
    (r"A800", _facts("a800", _nvlink(3, BOARDS["A800"].nvlink), "A800")),
    (r"A100", _facts("a100", _nvlink(3, BOARDS["A100"].nvlink), "A100")),
    (r"[DH]GX-?2", _facts("v100-dgx2", _nvlink(2, 150e9), "V100", 16)),
    (r"DGX-?1|V100", _facts("v100", _nvlink(2, 150e9, "cube"), "V100")),
    (r"P100", _facts("p100", _nvlink(1, 80e9, "cube"), "P100")),
    (
        r"L40|\bL20|\bL4\b|6000 ?Ada|\bA10G?\b|A40|A30|A6000|4090|3090",
        _usual("pcie4", _slot(4), "L40S"),
    ),
    (r"5090|RTX ?PRO ?6000", _usual("pcie5", _slot(5), "L40S")),
    (r"\bT4\b|P40|K80|1080|2080|Titan", _usual("pcie3", _slot(3), "T4")),
    (r"MI3\d\d", _facts("mi300x", Interior("mesh", "xgmi3", BOARDS["MI300X"].nvlink), "MI300X")),
    (r"MI250", DeviceFacts("mi250", Interior("mesh", "xgmi2", 350e9), 8, PCIE[4], 200 * GIGABIT)),
    (r"MI100|MI210", DeviceFacts("mi210", Interior("mesh", "xgmi2", 150e9), 4, PCIE[4], 100 * GIGABIT)),
)

# Machine types whose network the provider documents: (pattern, transport, NICs, Gb/s each).
_MACHINES: tuple[tuple[str, str, int, float], ...] = (
    (r"p3dn", "efa", 1, 100), (r"p4de?\b", "efa", 4, 100), (r"p5en", "efa", 16, 200),
    (r"p5e?\b", "efa", 32, 100), (r"\bp6", "efa", 8, 400), (r"g4dn\.metal", "efa", 1, 100),
    (r"g4dn", "efa", 1, 50), (r"\bg[56]\b", "efa", 1, 100), (r"trn1n", "efa", 16, 100),
    (r"trn1", "efa", 8, 100), (r"a3-?high", "tcpx", 4, 200),
    (r"a3-?mega", "tcpxo", 8, 200), (r"a3-?ultra|\ba4-", "roce", 8, 400),
    (r"BM\.GPU\.B?4\.8|BM\.GPU\.A100", "roce", 16, 100), (r"BM\.GPU\.H[12]00|BM\.GPU\.B200", "roce", 8, 400),
    (r"ND96.*A100|ND96asr|ND96amsr", "infiniband", 8, 200), (r"ND96.*H[12]00", "infiniband", 8, 400),
    (r"ND40rs", "infiniband", 1, 100),
)  # fmt: skip

# Devices of machine types, for tables that name the machine and not its GPU.
_DEVICE_OF_MACHINE: tuple[tuple[str, str], ...] = (
    (r"\bp3dn|\bp3\.|ND40rs|gpu3\.8", "V100"), (r"\bp4de?\b|\ba2-|BM\.GPU4\.8|BM\.GPU\.B4\.8", "A100"),
    (r"ND96a(sr|msr)|Perlmutter|Leonardo|Polaris|JUWELS|Selene", "A100"), (r"\bp5e|a3-?ultra", "H200"),
    (r"\bp5\b|\ba3-|ND96is(r|sr)", "H100"), (r"\bp6-?b200|\ba4-|BM\.GPU\.B200", "B200"),
    (r"\bg4dn", "T4"), (r"\bg5\b", "A10G"), (r"\bg6e\b", "L40S"), (r"\bg6\b", "L4"),
    (r"\balps\b|Isambard|JUPITER", "GH200"), (r"Frontier|LUMI", "MI250X"), (r"Summit|Sierra", "V100"),
)  # fmt: skip

# Gb/s of a port by the name of its generation.
_GENERATIONS: tuple[tuple[str, float], ...] = (
    (r"\bXDR", 800), (r"NDR\s*-?200", 200), (r"\bNDR|ConnectX-?7|\bCX-?7|BlueField-?3", 400),
    (r"HDR\s*-?100", 100), (r"\bHDR|ConnectX-?6|\bCX-?6|Slingshot-?\s*11|cassini", 200),
    (r"\bEDR|ConnectX-?[45]|Slingshot-?\s*10", 100), (r"\bFDR", 56),
)  # fmt: skip

# NICs and Gb/s of each in the one kind of machine that has this transport and device.
_USUAL_NETWORK: dict[tuple[str, str], tuple[int, float]] = {
    ("efa", "a100"): (4, 100), ("efa", "v100"): (1, 100), ("tcpx", "h100"): (4, 200),
    ("tcpxo", "h100"): (8, 200), ("slingshot", "a100"): (4, 200), ("slingshot", "mi250"): (4, 200),
    ("slingshot", "gh200"): (4, 200),
}  # fmt: skip

# Transports in the words of network columns, most specific first.
_TRANSPORTS: tuple[tuple[str, str], ...] = (
    (r"tcpxo", "tcpxo"), (r"tcpx", "tcpx"), (r"\befa\b|elastic fabric", "efa"), (r"roce", "roce"),
    (r"slingshot|cassini|cxi", "slingshot"),
    (r"infiniband|\bib\b|hdr|ndr|edr|xdr|connectx|\bcx-?\d", "infiniband"),
    (r"socket|tcp|ethernet|\bena\b|gbe|gve", "tcp"), (r"nvlink|mnnvl|nvl72", "nvlink"),
)  # fmt: skip

_COUNT = re.compile(
    r"(?<![\w-])(\d{1,2})\s*[x×*]?\s*(?:NVIDIA |Mellanox )?"
    r"(?:ConnectX|CX-?\d|[EHNXF]DR|NICs?\b|HCAs?\b|Slingshot|BlueField)",
    re.IGNORECASE,
)
_SPEED_TOTAL = re.compile(
    r"(\d+(?:\.\d+)?)\s*([GT])(?:b/s|bps|bit/s)(?:\s*(?:per|/)\s*(node|host|gpu|nic))?", re.IGNORECASE
)


def find_device(hardware: str, intra_link: str, elsewhere: str = "") -> DeviceFacts:
    """Datasheet facts of the device a row names, with the links its row states.

    Parameters
    ----------
    hardware, intra_link : str
        Cells of the row.
    elsewhere : str
        What else may name the machine where ``hardware`` is empty: the network, the system.

    Raises
    ------
    UnknownHardware
        If nothing names a device whose links are known.
    """
    facts = _device(hardware) if hardware else _device(intra_link) or _device(elsewhere)
    if facts is None:
        if "1 gpu per node" not in intra_link.lower():
            raise UnknownHardware(f"device not known: {hardware or 'none given'}")
        facts = DeviceFacts("unknown", _slot(3), 1, PCIE[3], 0.0)
    return replace(facts, interior=_interior(intra_link, facts.interior))


def _device(text: str) -> DeviceFacts | None:
    """The device a text names, or whose machine it names."""
    named = next((facts for pattern, facts in _DEVICES if re.search(pattern, text, re.I)), None)
    if named is not None or not text:
        return named
    machine = next((name for pattern, name in _DEVICE_OF_MACHINE if re.search(pattern, text, re.I)), None)
    return _device(machine) if machine else None


def _interior(text: str, usual: Interior) -> Interior:
    low = text.lower()
    generation = re.search(r"(nvlink|pcie|xgmi)\s*(\d)", low)
    name = f"{generation[1]}{generation[2]}" if generation else usual.name
    stated = device_bandwidth(text)
    bandwidth = usual.bandwidth if stated is None else stated
    if "pairs" in low or "bridge" in low:
        return Interior("pairs", "bridge3", 300e9 if stated is None else bandwidth)
    if "pcie" in low and "nvlink" not in low:
        number = int(generation[2]) if generation and generation[1] == "pcie" else 4
        return Interior("pcie", f"pcie{number}", PCIE.get(number, PCIE[4]))
    if "cube" in low:
        return Interior("cube", usual.name, bandwidth)
    if "all-to-all" in low or "mesh" in low or "infinity" in low:
        return Interior("mesh", usual.name, bandwidth)
    if "nvswitch" in low or "mnnvl" in low or "nvl72" in low:
        return Interior("nvswitch", name, bandwidth)
    return Interior(usual.kind, name, bandwidth)


def find_network(
    text: str, device: DeviceFacts, devices_per_host: int, notes: Assumptions, hardware: str = ""
) -> NetworkFacts:
    """Transport, NICs and their speed of a network column; the hardware column may name the machine."""
    transport = next((name for pattern, name in _TRANSPORTS if re.search(pattern, text, re.I)), "")
    machine = next((m for m in _MACHINES if re.search(m[0], f"{text} {hardware}", re.I)), None)
    if transport == "nvlink":
        return NetworkFacts("nvlink", 0, 0.0)
    each = ports_each(text)
    if each:
        return NetworkFacts(transport or "infiniband", each[0], each[1] * GIGABIT)
    if machine:
        return NetworkFacts(transport or machine[1], machine[2], machine[3] * GIGABIT)
    total = _SPEED_TOTAL.search(text)
    if total:
        speed = float(total[1]) * GIGABIT * (1000 if total[2].upper() == "T" else 1)
        of = (total[3] or "").lower()
        return NetworkFacts(transport or "infiniband", *_divided(speed, of, device.per_host))
    generation = next((speed for pattern, speed in _GENERATIONS if re.search(pattern, text, re.I)), 0.0)
    count = _COUNT.search(text)
    if generation and (count or (transport, device.name) not in _USUAL_NETWORK):
        usual = round(device.nic * device.per_host / (generation * GIGABIT))
        number = int(count[1]) if count else min(max(1, usual), device.per_host)
        if not count:
            notes.add(f"assumed {number} x {generation:g} Gb/s")
        return NetworkFacts(transport or "infiniband", number, generation * GIGABIT)
    if not transport:
        raise UnknownHardware("network between hosts not stated")
    return _usual_network(transport, device, devices_per_host, notes)


def _divided(speed: float, of: str, devices: int) -> tuple[int, float]:
    """NICs and the speed of each: one per device where the speed is a GPU's, or more than one port has."""
    if of == "gpu":
        return devices, speed
    return (devices, speed / devices) if speed > 400 * GIGABIT else (1, speed)


def _usual_network(
    transport: str, device: DeviceFacts, devices_per_host: int, notes: Assumptions
) -> NetworkFacts:
    if transport == "tcp":
        notes.add("assumed one 25 Gb/s port")
        return NetworkFacts("tcp", 1, 25 * GIGABIT)
    if transport == "efa" and devices_per_host == 1:
        notes.add("assumed one 50 Gb/s port")
        return NetworkFacts("efa", 1, 50 * GIGABIT)
    usual = _USUAL_NETWORK.get((transport, device.name))
    if usual:
        notes.add(f"assumed {usual[0]} x {usual[1]:g} Gb/s")
        return NetworkFacts(transport, usual[0], usual[1] * GIGABIT)
    if device.nic == 0.0:
        raise UnknownHardware(f"{transport} speed not stated")
    count = device.per_host if device.nic >= 100 * GIGABIT else device.per_host // 2
    speed = device.nic * device.per_host / count
    notes.add(f"assumed {count} x {speed / GIGABIT:g} Gb/s")
    return NetworkFacts(transport, count, speed)
