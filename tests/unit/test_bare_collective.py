"""A bare collective from the API and the command line, and the figure of its loads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import sim
from sim.cli.main import main
from sim.errors import InputError
from sim.fabric.network import Network
from sim.spec import Fabric


def test_a_table_as_nccl_tests_prints_it() -> None:
    found = sim.collective("all_reduce", "dgx-h100", ["64KiB", "1GiB"], num_hosts=1)
    table = found.table()
    assert table["size_bytes"].tolist() == [65536.0, 2.0**30]
    assert table["algorithm"].tolist() == ["ring", "nvls"]  # NVLink SHARP for large ones, from Hopper on
    np.testing.assert_allclose(
        table["algorithm_bandwidth_bytes_per_s"], table["size_bytes"] / table["time_s"]
    )
    ratio = table["bus_bandwidth_bytes_per_s"] / table["algorithm_bandwidth_bytes_per_s"]
    np.testing.assert_allclose(ratio, 2 * 7 / 8)
    assert sim.collective("all_reduce", "dgx-a100", num_hosts=1).rows[0]["algorithm"] == "ring"


@pytest.mark.parametrize("calibration", ["collectives", "ideal"])
def test_auto_runs_collnet_where_switches_between_hosts_reduce(calibration: str) -> None:
    """NCCL prefers it for all-reduces over several hosts: half the bytes of a ring through the NICs."""
    plain = sim.cluster("a100-leaf-spine-2to1", num_hosts=8)
    fabric = plain.fabric.model_copy(update={"in_network_reduction": True})
    reducing = plain.model_copy(update={"fabric": fabric})

    def row(where: sim.Cluster, operation: str = "all_reduce", **options: object) -> dict[str, object]:
        return sim.collective(operation, where, "1GiB", calibration=calibration, **options).rows[0]

    found, usual = row(reducing), row(plain)
    assert found["algorithm"] == "collnet"
    assert usual["algorithm"] in ("ring", "tree")
    assert found["time_s"] < 0.75 * usual["time_s"]  # type: ignore[operator]
    assert row(plain, algorithm="collnet")["time_s"] == pytest.approx(found["time_s"], rel=1e-9)
    assert row(reducing, "all_gather")["algorithm"] == "ring"
    assert row(reducing, ranks=range(8))["algorithm"] == "ring"  # one host
    assert row(reducing, ranks=[0, 1, 8])["algorithm"] != "collnet"  # unevenly spread


@pytest.mark.parametrize("calibration", ["collectives", "ideal"])
def test_a_barrier_takes_rounds_and_no_bytes(calibration: str) -> None:
    few, many = (
        sim.collective("barrier", "dgx-a100", 0, num_hosts=n, calibration=calibration).rows[0] for n in (1, 8)
    )
    assert 0 < few["time_s"] < many["time_s"]
    assert few["algorithm"] == "recursive_doubling"


def test_a_training_step_uses_switches_that_reduce() -> None:
    """Gradients by `auto`, with and without the library model; groups inside a host stay rings."""
    plain = sim.cluster("a100-leaf-spine-2to1", num_hosts=8)
    reducing = plain.model_copy(
        update={"fabric": plain.fabric.model_copy(update={"in_network_reduction": True})}
    )
    for calibration in ((), "collectives"):
        bound = {"strategy": sim.strategy(overlap=False), "calibration": calibration}
        before, after = (sim.run("bert-large", where, **bound).step_time_s for where in (plain, reducing))
        assert after < 0.98 * before


@pytest.mark.parametrize(
    ("library", "algorithm", "message"),
    [
        ("gloo", "tree", "must be auto or ring with gloo, which runs its own algorithm"),
        ("nccl", "collnet", "must not reduce in switches except on fat_tree"),
    ],
)
def test_what_the_library_or_fabric_cannot_run_is_refused(library: str, algorithm: str, message: str) -> None:
    fabric = {"kind": "torus", "dims": (2, 2)} if library == "nccl" else {"kind": "single_switch"}
    where = sim.cluster("dgx-a100", num_hosts=4).model_copy(
        update={"library": library, "fabric": Fabric.model_validate(fabric)}
    )
    with pytest.raises(InputError, match=message):
        sim.collective("all_reduce", where, algorithm=algorithm)
    if library == "gloo":
        found = [sim.collective("all_reduce", where, "1MiB", algorithm=a).rows[0] for a in ("auto", "ring")]
        assert found[0]["time_s"] == found[1]["time_s"]


@pytest.mark.parametrize(
    ("operation", "algorithm"), [("all_reduce", "ring"), ("all_to_all", "direct"), ("all_reduce", "bcube")]
)
def test_link_bytes_are_what_the_engine_moves(operation: str, algorithm: str) -> None:
    found = sim.collective(operation, "a100-leaf-spine-2to1", 1e8, algorithm=algorithm, num_hosts=8)
    links = found.links()
    assert found.link_utilisation.max() == pytest.approx(found.rows[0]["busiest_link_utilisation"], rel=1e-6)
    sent = links[links["link"].str.contains("gpu.*->nvswitch", regex=True)]["bytes"].sum()
    assert sent > 0
    network = Network.build(found.cluster)
    up = found.link_bytes[[network.link_name(i).startswith("leaf") and "spine" in network.link_name(i)
                           for i in range(network.num_links)]]  # fmt: skip
    assert up.sum() == pytest.approx(
        found.link_bytes[[network.link_name(i).startswith("spine") for i in range(network.num_links)]].sum()
    )


def test_the_command_prints_and_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "load.png"
    arguments = ["collective", "all_reduce", "tpu-v3-pod", "--num-hosts", "16", "--algorithm", "torus2d"]
    assert main([*arguments, "--size", "1MiB:16MiB:4", "--plot", str(figure), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["size_bytes"] for row in data["rows"]] == [2**20, 2**22, 2**24]
    assert {row["algorithm"] for row in data["rows"]} == {"torus2d"}
    assert figure.stat().st_size > 10_000
    groups = ["--ranks", "0-15:2", "--ranks", "1-15:2", "--size", "1GiB"]
    assert main(["collective", "all_reduce", "dgx-a100", "--num-hosts", "2", *groups]) == 0
    assert "8 ranks, 2 groups at once" in capsys.readouterr().out


def test_a_matrix_gives_the_size(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bytes.csv"
    path.write_text("0,1MB,1MB,2MB\n1MB,0,1MB,2MB\n1000000,1MB,0,2MB\n0,0,0,0\n")
    arguments = [
        "collective",
        "all_to_allv",
        "single-gpu",
        "--num-hosts",
        "4",
        "--matrix",
        str(path),
        "--json",
    ]
    assert main(arguments) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert row["size_bytes"] == 3e6


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["all_reduce", "dgx-a100", "--algorithm", "nope"], "collective.algorithm: must be one of"),
        (["nope", "dgx-a100"], "collective.operation: must be one of"),
        (["all_reduce", "dgx-a100", "--size", "large"], "--size: must be a number with a unit"),
        (["all_reduce", "dgx-a100", "--size", "-1"], "--size: must not be negative. Got -1."),
        (["all_reduce", "dgx-a100", "--size", "1GiB:1MiB"], "--size: must be SIZE"),
        (["all_reduce", "dgx-a100", "--size", "1B:1PB:1.000001"], "--size: must give at most 200"),
        (["all_reduce", "dgx-a100", "--ranks", "7-0"], "--ranks: must be device numbers"),
        (["all_reduce", "dgx-a100", "--ranks", "0-9999"], "collective.ranks"),
        (["all_reduce", "dgx-a100", "--dims", "a"], "--dims: must be whole numbers"),
        (["all_to_allv", "dgx-a100", "--matrix", "no.csv"], "--matrix: must be a CSV file"),
        (["all_reduce", "dgx-a100", "--num-hosts", "1", "--size", "1MiB", "--plot", "a.no"], "--plot: must"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["collective", *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert text in error
    assert "\n" not in error


@pytest.mark.parametrize(
    "name", ["dgx-a100", "a100-fat-tree", "a100-leaf-spine-2to1", "tpu-v3-pod", "dumbbell", "dgx-h100-rail"]
)
def test_every_fabric_can_be_drawn(name: str) -> None:
    chart = sim.plot.fabric(sim.cluster(name))
    assert len(chart.axes) == 1  # no loads, no colour bar
    assert chart.axes[0].get_title().startswith(name)


def test_a_large_fabric_is_binned_and_a_training_step_coloured() -> None:
    chart = sim.plot.fabric(sim.cluster("a100-fat-tree", num_hosts=512))
    assert len(chart.axes[0].lines) <= 4 * 48
    result = sim.run("vgg16", sim.cluster("v100-dlperf", 2))
    chart = sim.plot.fabric(result)
    assert len(chart.axes) == 2
    colours = {tuple(colour) for colour in chart.axes[0].collections[0].get_colors()}
    assert colours


@pytest.mark.parametrize(
    ("options", "content", "message"),
    [
        (
            ["--chunks", "1000000000", "--algorithm", "torus2d"],
            "",
            "collective.chunks: must be at most 1000.",
        ),
        (["--dims=-4,-2", "--algorithm", "torus2d"], "", "collective.dims: must be at least 1 each."),
        (["--ranks", "0-9"], "", "collective.ranks: must differ and be from 0 to 7. Got [8, 9]."),
        ([], "1,nan\n3,4\n", "--matrix: must have sizes only, from 0 to 1e24 bytes. Got nan."),
        ([], "1,-2\n3,4\n", "--matrix: must have sizes only, from 0 to 1e24 bytes. Got -2."),
        ([], "1,2\n3,1e308\n", "--matrix: must have sizes only, from 0 to 1e24 bytes. Got 1e308."),
        ([], "é" * 9, "--matrix: must be a CSV file of sizes in UTF-8."),
        ([], "a" * 200_000, "--matrix: must be a CSV file of sizes in UTF-8."),
    ],
)
def test_odd_options_are_refused_at_once(
    options: list[str], content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "matrix.csv"
    file.write_text(content, encoding="latin-1")
    more = ["--matrix", str(file)] if content else []
    operation = "all_to_allv" if content else "all_reduce"
    assert main(["collective", operation, "dgx-h100", "--num-hosts", "1", *options, *more]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.filterwarnings("error")
def test_a_skew_beyond_what_numbers_hold_sends_everything_to_the_first() -> None:
    arguments = ["collective", "all_to_allv", "dgx-h100", "--num-hosts", "1", "--size", "1MiB"]
    assert main([*arguments, "--skew", "400"]) == 0


@pytest.mark.parametrize("algorithm", ["nvls", "nvls_tree"])
def test_switches_that_do_not_add_up_are_not_asked_to(algorithm: str) -> None:
    with pytest.raises(InputError, match="NVSwitches that add up"):
        sim.collective("all_reduce", "dgx-a100", "1MiB", num_hosts=2, algorithm=algorithm)


def test_less_than_the_rounding_of_a_launch_takes_the_launch(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--size", "1e-300B", "--size", "1e-20B", "--size", "1B"]
    assert main(["collective", "all_reduce", "single-gpu", "--num-hosts", "2", *sizes, "--json"]) == 0
    tiny, small, byte = (row["time_s"] for row in json.loads(capsys.readouterr().out)["rows"])
    assert 0 < tiny == pytest.approx(small, rel=1e-9) == pytest.approx(byte, rel=1e-3)


@pytest.mark.parametrize(
    ("hosts", "algorithm", "bus_bandwidth"),
    [
        (2, "ring", 400e9),
        (8, "ring", 400e9),
        (8, "tree", 400e9 * 63 / 64),
        (64, "tree", 400e9 * 511 / 512),
        (2, "hierarchical", 1 / (2 * 7 / 8 / 450e9 + 1 / 400e9) * 2 * 15 / 16),
        (16, "hierarchical", 1 / (2 * 7 / 8 / 450e9 + 2 * 15 / 16 / 400e9) * 2 * 127 / 128),
    ],
)
def test_large_all_reduces_fill_all_eight_ports(hosts: int, algorithm: str, bus_bandwidth: float) -> None:
    """Ideal efficiencies, 8 ports of 400 Gb/s, NVLink of 450 GB/s: nothing is lost to rails or channels."""
    found = sim.collective(
        "all_reduce", "dgx-h100", ["8GiB"], num_hosts=hosts, algorithm=algorithm, calibration="ideal"
    )
    assert found.rows[0]["bus_bandwidth_bytes_per_s"] == pytest.approx(bus_bandwidth, rel=0.01)
