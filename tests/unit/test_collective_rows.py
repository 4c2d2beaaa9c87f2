"""Words of published tables become clusters; the rest is assumed aloud or refused with a reason."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sim.catalog import default_catalog
from sim.errors import InputError
from sim.validate.collectives.load import load_table
from sim.validate.collectives.predict import predict
from sim.validate.collectives.rows import Row, library_of, read_rows
from sim.validate.collectives.variants import stated_algorithm
from sim.validate.datasheets import ports_each

BASE = {
    "id": "X1",
    "system": "mine",
    "hardware": "H100-SXM5-80GB",
    "gpus": 16,
    "nodes": 2,
    "intra_link": "NVLink4 NVSwitch (900 GB/s bidir)",
    "inter_network": "InfiniBand 8x400G NDR per node",
    "library_version": "NCCL 2.19.3+cuda12.2",
    "collective": "all_reduce",
    "message_bytes": 1 << 20,
    "dtype": "float",
    "time_us": 100.0,
}


def row(**changes: Any) -> Row:
    return read_rows(pd.DataFrame([{**BASE, **changes}]))[0]


def test_a_full_row() -> None:
    found = row()
    assert found.case is not None
    cluster = found.case.cluster
    assert (cluster.size, cluster.num_devices) == (2, 16)
    host = cluster.host_types[0]
    assert [nic.bandwidth for nic in host.nics] == [50e9] * 8
    assert {link.bandwidth for link in host.links if link.kind == "nvlink"} == {450e9}
    setting = found.case.setting
    assert (setting.library, setting.family, setting.interior, setting.transport) == (
        "nccl", "2.19", "nvlink4", "verbs",
    )  # fmt: skip
    assert found.time_s == pytest.approx(100e-6)
    assert found.message == ""


@pytest.mark.parametrize(
    ("text", "transport", "nics", "each"),
    [
        ("AWS EFA 4x100G (p4d.24xlarge)", "efa", 4, 12.5e9),
        ("AWS EFA 3200 Gb/s per node (p5.48xlarge)", "efa", 8, 50e9),
        ("RoCE (OCI BM.GPU.B4.8 cluster network)", "verbs", 8, 25e9),  # 16 x 100 Gb/s, two per device
        ("GPUDirect-TCPXO 8x200G (a3-megagpu-8g)", "tcpxo", 8, 25e9),
        ("RoCE, 8 ConnectX NICs per node", "verbs", 8, 50e9),
        ("Slingshot-11, 4x200G per node", "slingshot", 4, 25e9),
        ("InfiniBand 400Gb/s per GPU", "verbs", 8, 50e9),
        ("TCP sockets", "tcp", 1, 3.125e9),
    ],
)
def test_networks_by_their_words(text: str, transport: str, nics: int, each: float) -> None:
    found = row(inter_network=text)
    assert found.case is not None
    assert found.case.setting.transport == transport
    assert [nic.bandwidth for nic in found.case.cluster.host_types[0].nics] == pytest.approx([each] * nics)


def test_assumptions_are_said() -> None:
    assert row(inter_network="RoCE").message == "assumed 8 x 400 Gb/s"
    assert row(gpus=8, nodes=None).message == "assumed one host"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hardware": "Abacus"}, "device not known"),
        ({"inter_network": "not stated"}, "network between hosts not stated"),
        ({"collective": "prefix_sum"}, "collective not known"),
        ({"gpus": None}, "number of GPUs"),
        ({"gpus": 15}, "evenly"),
        ({"message_bytes": None}, "message size"),
    ],
)
def test_what_cannot_be_known_has_a_reason(changes: dict[str, Any], reason: str) -> None:
    found = row(**changes)
    assert found.case is None
    assert reason in found.message


def test_one_nvlink_domain_is_one_host() -> None:
    found = row(hardware="GB200", gpus=8, nodes=2, intra_link="NVLink5 MNNVL", inter_network="NVLink5 MNNVL")
    assert found.case is not None
    assert (found.case.cluster.size, found.case.num_ranks) == (1, 8)


@pytest.mark.parametrize("hardware", ["A100-SXM4-80GB", "V100-SXM2", "MI300X", "GH200", "B200", "L40S", "T4"])
@pytest.mark.parametrize("gpus", [1, 2, 3, 8])
def test_every_device_makes_a_host_of_any_size(hardware: str, gpus: int) -> None:
    found = row(hardware=hardware, gpus=gpus, nodes=1, intra_link="")
    assert found.case is not None
    assert found.case.num_ranks == gpus


def test_libraries_and_versions() -> None:
    assert library_of("NCCL 2.14.3+cuda11.7") == ("nccl", "2.14")
    assert library_of("RCCL 2.22.3 / ROCm 6.4.2")[0] == "rccl"
    assert library_of("nccl-tests, NCCL version not stated") == ("nccl", "")


def test_bands_and_missing_times() -> None:
    assert [row(message_bytes=size).band for size in (8, 1 << 16, 1 << 20, 1 << 30)] == [
        "<64KiB", "64KiB-1MiB", "1-64MiB", ">=64MiB",
    ]  # fmt: skip
    assert math.isnan(row(time_us=None).time_s)


def test_missing_columns_are_an_input_error() -> None:
    with pytest.raises(InputError, match="message_bytes"):
        read_rows(pd.DataFrame([{"system": "x"}]))


@pytest.mark.parametrize(
    ("hardware", "network", "shape"),
    [
        ("H100 SXM", "8x NDR InfiniBand", (8, 400, "verbs")),
        ("NVIDIA H100 80GB HBM3", "ConnectX-7 NDR400", (8, 400, "verbs")),
        ("H100", "8 x 400 Gb/s", (8, 400, "verbs")),
        ("p5.48xlarge", "EFA", (8, 400, "efa")),
        ("p4d.24xlarge", "AWS EFA", (4, 100, "efa")),
        ("a3-megagpu-8g", "TCPXO", (8, 200, "tcpxo")),
        ("ND96amsr_A100_v4", "InfiniBand HDR", (8, 200, "verbs")),
        ("MI250X", "Slingshot-11", (4, 200, "slingshot")),
        ("V100-SXM2-32GB", "EDR", (4, 100, "verbs")),
        ("RTX 6000 Ada", "25GbE", (1, 25, "tcp")),
    ],
)
def test_words_for_machines_and_ports(hardware: str, network: str, shape: tuple[int, int, str]) -> None:
    found = row(hardware=hardware, gpus=16, nodes=2, intra_link="", inter_network=network)
    assert found.case is not None, found.message
    nics = found.case.cluster.host_types[0].nics
    assert (len(nics), round(nics[0].bandwidth * 8e-9), found.case.setting.transport) == shape


def test_machines_beyond_knowledge_are_left_out_with_a_reason() -> None:
    for hardware in ("Trainium2", "TPU v4", "Gaudi2", "", "a machine"):
        assert "device not known" in row(hardware=hardware).message
    assert "more GPUs" in row(gpus=10**7, nodes=10**6).message
    assert "more GPUs" in row(collective="alltoall", gpus=8192, nodes=1024).message


def test_cells_with_units_and_missing_columns() -> None:
    """Only the collective and the size must be there; times also come from bandwidths."""
    (found,) = read_rows(pd.DataFrame([{"collective": "allreduce", "message_bytes": "16MiB"}]))
    assert found.size_bytes == 16 << 20
    assert found.case is None
    assert found.system == "unnamed"
    assert row(message_bytes="1MiB", time_us="1.5ms").time_s == pytest.approx(1.5e-3)
    assert row(time_us=None, algbw_GBs=10.0).time_s == pytest.approx(row().size_bytes / 10e9)
    rate = row(time_us=None, busbw_GBs=10.0, gpus=8, nodes=1)
    assert rate.time_s == pytest.approx(2 * 7 / 8 * rate.size_bytes / 10e9)
    assert np.isnan(row(time_us="soon").time_s)
    assert np.isnan(row(time_us=-1).time_s)


def test_hosts_follow_from_the_usual_machine_where_a_network_is_named() -> None:
    found = row(gpus=32, nodes=None, inter_network="RoCE")
    assert found.case is not None
    assert found.case.cluster.size == 4
    assert "assumed 4 hosts" in found.message


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ("", 1, ""), ("NVLS", 1, "nvls"), ("Ring (NVLS off)", 1, "ring"), ("NVLSTree Simple", 1, "nvls_tree"),
        ("CollnetDirect", 1, "collnet"), ("TREE/LL128", 1, "tree"), ("best", 1, ""),
        ("RING LL <=1MiB; NVLS SIMPLE >=2MiB", 1 << 20, "ring"),
        ("RING LL <=1MiB; NVLS SIMPLE >=2MiB", 1 << 21, "nvls"),
        ("RING LL <=1MiB; NVLS SIMPLE >2 XiB", 1.5 * 2**20, "nvls"),
    ],
)  # fmt: skip
def test_the_algorithm_that_a_row_states_is_the_one_predicted(text: str, size: float, expected: str) -> None:
    assert stated_algorithm(text, size) == expected


def test_a_stated_algorithm_is_predicted_even_where_another_is_faster() -> None:
    one_host = {"gpus": 8, "nodes": 1, "message_bytes": 1 << 30}
    rows = [row(algorithm=text, **one_host) for text in ("", "NVLS", "Ring (NVLS off)", "Tree")]
    found = predict(rows, default_catalog().calibration("collectives"))
    assert [name for name, _ in found.variant] == ["nvls", "nvls", "ring", "nvls"]  # no tree in one host
    assert found.time[2] > found.time[1] == found.time[0] == found.time[3]
    assert rows[1].case is not None
    assert rows[1].case.shape != rows[2].case.shape  # type: ignore[union-attr]


def test_any_operation_gets_a_prediction() -> None:
    """Barriers have no bytes, and gloo has rings only."""
    rows = [row(collective="barrier", message_bytes=0), row(library_version="gloo"), row(gpus="8 or so")]
    assert rows[2].message == "number of GPUs makes no sense: 8 or so"
    found = predict(rows[:2], default_catalog().calibration("collectives"))
    assert [name for name, _ in found.variant] == ["recursive_doubling", "ring"]
    assert (found.time > 1e-6).all()


def test_a_row_with_too_many_cells_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shifted.csv"
    path.write_text("id,collective,message_bytes\n1,all_reduce,8,,\n2,all_reduce,8,9\n")
    with pytest.raises(InputError, match=r"must have at most 3 cells in a row. Got 4. \(.*shifted.csv:3\)"):
        load_table(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8x400G NDR", (8, 400.0)), ("4 x HDR 200", (4, 200.0)), ("2 × 25GbE", (2, 25.0)),
        ("8x NVIDIA ConnectX-7", None), ("4 x 50 GB/s", None), ("InfiniBand", None), ("2x1G", (2, 1.0)),
    ],
)  # fmt: skip
def test_words_for_ports(text: str, expected: tuple[int, float] | None) -> None:
    assert ports_each(text) == expected


def test_a_table_without_rows_is_refused(tmp_path):
    path = tmp_path / "head.csv"
    path.write_text(",".join(BASE) + ",message_bytes\n")
    with pytest.raises(InputError, match="must have rows"):
        load_table(path)
