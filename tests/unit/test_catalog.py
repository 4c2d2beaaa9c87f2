"""The catalogue: every file loads and says where it is from; names, folders and plug-ins are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim import catalog as catalog_module
from sim import yamlio
from sim.catalog import FOLDERS, Catalog, kind_of
from sim.errors import InputError
from sim.spec import Device

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for folder in FOLDERS.values() for path in (ROOT / folder).glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_file_loads_and_states_its_source(path: Path, catalog: Catalog) -> None:
    kind = kind_of({"models": "workload"}.get(path.parent.name, path.parent.name))
    data = yamlio.load(path).data
    assert data["schema"] == 1
    assert data["name"] == path.stem
    assert len(data["description"]) >= 10
    assert "\n" not in data["description"]
    assert len(data["source"]) > 10
    catalog.get(kind, path.stem)


def test_the_promised_entries_exist(catalog: Catalog) -> None:
    devices = {"k80", "p100-16gb", "v100-16gb", "v100-32gb", "t4", "a100-40gb", "a100-80gb", "h100-80gb",
               "h200-141gb", "b200-180gb", "tpu-v3"}  # fmt: skip
    hosts = {"dgx-1-v100", "dgx-a100", "dgx-h100", "p2.8xlarge", "g4dn.12xlarge", "single-gpu", "v100-dlperf"}
    assert devices <= set(catalog.names("devices"))
    assert hosts <= set(catalog.names("hosts"))
    kinds = {catalog.cluster(name).fabric.kind for name in catalog.names("clusters")}
    assert {"single_switch", "leaf_spine", "fat_tree", "rail_optimized", "torus", "graph"} <= kinds


def test_no_python_lies_among_the_data() -> None:
    # They would become importable packages in an editable install.
    assert not [
        path
        for folder in ("topologies", "workloads", "measurements")
        for path in (ROOT / folder).rglob("*.py")
    ]


@pytest.mark.parametrize(
    ("name", "dtype", "tera", "gigabytes", "gigabytes_per_second", "watts"),
    [
        # vendors' datasheets, dense
        ("k80", "fp32", 4.37, 12, 240, 150),
        ("p100-16gb", "fp16", 21.2, 16, 732, 300),
        ("v100-16gb", "fp16", 125, 16, 900, 300),
        ("v100-32gb", "fp32", 15.7, 32, 900, 300),
        ("t4", "fp16", 65, 16, 320, 70),
        ("a100-40gb", "bf16", 312, 40, 1555, 400),
        ("a100-80gb", "tf32", 156, 80, 2039, 400),
        ("h100-80gb", "bf16", 989.4, 80, 3350, 700),
        ("h100-80gb", "fp8", 1978.9, 80, 3350, 700),
        ("h200-141gb", "bf16", 989.4, 141, 4800, 700),
        ("b200-180gb", "fp8", 4500, 180, 8000, 1000),
        ("tpu-v3", "bf16", 123, 32 * 1.073741824, 900, 262),
    ],
)
def test_datasheet_values(
    catalog: Catalog,
    name: str,
    dtype: str,
    tera: float,
    gigabytes: float,
    gigabytes_per_second: float,
    watts: float,
) -> None:
    device = catalog.device(name)
    assert device.peak_flops[dtype] == pytest.approx(tera * 1e12)
    assert device.memory_bytes == pytest.approx(gigabytes * 1e9)
    assert device.memory_bandwidth == pytest.approx(gigabytes_per_second * 1e9)
    assert device.peak_power == watts
    assert device.idle_power < 0.5 * device.peak_power


def test_narrower_types_are_never_slower(catalog: Catalog) -> None:
    for name in catalog.names("devices"):
        device = catalog.device(name)
        peaks = [device.peak(dtype) for dtype in ("fp32", "tf32", "fp16", "fp8")]
        assert peaks == sorted(peaks), name


def test_types_a_device_lacks_run_as_wider_ones(catalog: Catalog) -> None:
    v100 = catalog.device("v100-16gb")
    assert v100.peak("bf16") == v100.peak("tf32") == v100.peak_flops["fp32"]
    assert v100.peak("fp8") == v100.peak_flops["fp16"]
    assert catalog.device("k80").peak("fp16") == catalog.device("k80").peak_flops["fp32"]


@pytest.mark.parametrize(
    ("name", "cable", "cables"), [("dgx-1-v100", 25e9, 6), ("v100-dlperf", 25e9, 6), ("dgx-1-p100", 20e9, 4)]
)
def test_cube_mesh_uses_every_nvlink(catalog: Catalog, name: str, cable: float, cables: int) -> None:
    links = [link for link in catalog.host(name).expanded_links if link.kind == "nvlink"]
    for gpu in range(8):
        assert sum(link.bandwidth for link in links if f"gpu{gpu}" in (link.a, link.b)) == cable * cables
        # within a quad all are neighbours, beyond it only the twin
        peers = {
            int(node[3:]) for link in links for node in (link.a, link.b) if f"gpu{gpu}" in (link.a, link.b)
        }
        assert peers == {q for q in range(8) if q // 4 == gpu // 4} | {(gpu + 4) % 8}


@pytest.mark.parametrize(
    ("name", "bandwidth"), [("dgx-a100", 300e9), ("dgx-h100", 450e9), ("dgx-b200", 900e9)]
)
def test_nvswitch_hosts(catalog: Catalog, name: str, bandwidth: float) -> None:
    host = catalog.host(name)
    links = [link for link in host.expanded_links if link.kind == "nvlink"]
    assert {(link.a, link.b) for link in links} == {(f"gpu{i}", "nvswitch0") for i in range(8)}
    assert {link.bandwidth for link in links} == {bandwidth}
    assert host.device_nics == tuple(range(8))


def test_every_device_reaches_its_nic_and_processor(catalog: Catalog) -> None:
    import networkx as nx

    for name in catalog.names("hosts"):
        host = catalog.host(name)
        graph = nx.Graph((link.a, link.b) for link in host.expanded_links)
        graph.add_nodes_from(host.nodes)
        assert nx.is_connected(graph), name


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("device", "a100", "a100-80gb"),
        ("cluster", "dgx-a10", "dgx-a100"),
        ("workload", "resnet5", "resnet50"),
        ("strategy", "horovodd", "horovod"),
        ("host", "DGX-A100", "dgx-a100"),
    ],
)
def test_unknown_names_get_the_nearest(catalog: Catalog, kind: str, name: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        catalog.find_file(kind, name)
    assert f"Got '{name}'. Try {hint[:4]}" in str(caught.value)
    assert caught.value.exit_code == 2


def test_unknown_kind_and_nothing_near(catalog: Catalog) -> None:
    with pytest.raises(InputError, match="Try devices"):
        catalog.names("divices")
    with pytest.raises(InputError, match="clusterloom list strategies"):
        catalog.find_file("strategy", "%%%%")
    with pytest.raises(InputError, match="existing YAML file"):
        catalog.find_file("strategy", "none/such.yaml")


def test_user_folders_win_and_edits_are_seen(tmp_path: Path) -> None:
    folder = tmp_path / "devices"
    folder.mkdir()
    text = (ROOT / "topologies/devices/t4.yaml").read_text()
    (folder / "t4.yaml").write_text(text.replace("70W", "75W"))
    (folder / "mine.yaml").write_text(text.replace("name: t4", "name: mine"))
    mine = Catalog([tmp_path])
    assert mine.device("t4").peak_power == 75
    assert mine.device("mine").name == "mine"
    assert {"mine", "t4", "k80"} <= set(mine.names("devices"))
    assert mine.cluster("g4dn-12xlarge").main_device.peak_power == 75
    assert Catalog().device("t4").peak_power == 70
    (folder / "mine.yaml").write_text(text.replace("name: t4", "name: other"))
    assert mine.device("mine").name == "other"
    with pytest.raises(InputError, match="existing folder"):
        Catalog([tmp_path / "none"])


def test_a_name_may_be_a_path(tmp_path: Path, catalog: Catalog) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(
        (ROOT / "topologies/clusters/dgx-1.yaml").read_text().replace("num_hosts: 4", "num_hosts: 2")
    )
    assert catalog.cluster(str(path)).num_devices == 16
    path.write_text("schema: 1\nname: x\nhost: dgx-9\nfabric: {kind: single_switch}")
    with pytest.raises(InputError, match="Got 'dgx-9'"):
        catalog.cluster(str(path))


def test_plugins_come_before_built_in_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "devices").mkdir()
    text = (ROOT / "topologies/devices/t4.yaml").read_text().replace("70W", "71W")
    (tmp_path / "devices" / "t4.yaml").write_text(text)

    class Entry:
        name = "test"

        @staticmethod
        def load() -> object:
            return lambda: tmp_path

    monkeypatch.setattr(
        catalog_module.metadata, "entry_points", lambda group: [Entry] if "catalog" in group else []
    )
    catalog_module._plugin_roots.cache_clear()
    try:
        assert Catalog().device("t4").peak_power == 71
    finally:
        catalog_module._plugin_roots.cache_clear()


def test_overrides_and_their_errors(catalog: Catalog) -> None:
    cluster = catalog.cluster(
        "dgx-a100", num_hosts=2, **{"fabric.oversubscription": 3, "fabric.latency": "1us"}
    )
    assert (cluster.size, cluster.fabric.oversubscription, cluster.fabric.latency) == (2, 3, 1e-6)
    assert catalog.workload("gpt3-175b", global_batch_size=64).batch_per_device is None
    assert catalog.workload("gpt3-175b", num_layers=2).num_blocks < 10
    for call, message in [
        (lambda: catalog.cluster("dgx-a100", num_hosts=0), "cluster.num_hosts: must be at least 1. Got 0."),
        (
            lambda: catalog.cluster("dgx-a100", **{"fabric.latency": "1"}),
            "cluster.fabric.latency: must have a unit",
        ),
        (lambda: catalog.workload("resnet50", sample_bytes="5"), "workload.sample_bytes: must have a unit"),
        (lambda: catalog.workload("resnet50", batch=5), "workload.batch: must be"),
        (lambda: catalog.build_scenario({"workload": "resnet50"}), "cluster: must be given."),
        (lambda: catalog.build_scenario({"workload": "resnet50", "cluster": "dgx-1", "sed": 1}), "Try seed."),
        (
            lambda: catalog.build_scenario({"workload": "resnet50", "cluster": "dgx-1", "seed": -1}),
            "seed: must be",
        ),
        (
            lambda: catalog.build_scenario({"workload": "resnet50", "cluster": "dgx-1", "strategy.tpp": 1}),
            "strategy.tpp: must be a known field. Try tp.",
        ),
    ]:
        with pytest.raises(InputError) as caught:
            call()
        assert message in str(caught.value)


def test_fields_of_a_clusters_host_can_be_changed(catalog: Catalog) -> None:
    slow = catalog.cluster(
        "dgx-a100", **{"host.nics.*.bandwidth": "10Gbps", "host.nics.1.bandwidth": "1Gbps"}
    )
    assert [nic.bandwidth for nic in slow.host_types[0].nics[:3]] == [1.25e9, 1.25e8, 1.25e9]
    again = catalog.build_scenario(
        {"workload": "resnet50", "cluster": slow, "cluster.host.cpu_cores": 7}
    ).cluster
    assert again.host_types[0].cpu_cores == 7
    assert again.host_types[0].nics == slow.host_types[0].nics
    with pytest.raises(InputError, match=r"cluster\.host_types.*must be left to the catalogue"):
        catalog.cluster("dgx-a100", **{"host_types.0.cpu_cores": 7})


def test_generator_errors_point_into_the_file(tmp_path: Path, catalog: Catalog) -> None:
    text = (ROOT / "workloads/models/gpt2.yaml").read_text().replace("num_layers: 12", "num_layers: -3")
    (tmp_path / "bad.yaml").write_text(text)
    line = 1 + text[: text.index("num_layers")].count("\n")
    with pytest.raises(InputError) as caught:
        catalog.workload(str(tmp_path / "bad.yaml"))
    assert str(caught.value).startswith("workload.num_layers: must be")
    assert str(caught.value).endswith(f"bad.yaml:{line})")


def test_scenario_file(tmp_path: Path, catalog: Catalog) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "workload: resnet50\ncluster: v100-dlperf\nstrategy: {overlap: false, bucket_size: 4MB}\n"
        "overrides: {cluster.num_hosts: 2, workload.batch_per_device: 32}\n"
        "perturbation: {jitter: 0.1}\nseed: 4\n"
    )
    scenario = catalog.scenario(str(path))
    assert (scenario.cluster.num_devices, scenario.workload.batch_per_device, scenario.seed) == (16, 32, 4)
    assert (scenario.strategy.overlap, scenario.strategy.bucket_size) == (False, 4e6)
    assert catalog.scenario(str(path), **{"strategy.overlap": "true"}).strategy.overlap is True
    path.write_text("workload: resnet50\ncluster: v100-dlperf\nclustr: x\n")
    with pytest.raises(
        InputError, match=r"scenario.clustr: must be a known field. Try cluster. .*job.yaml:3"
    ):
        catalog.scenario(str(path))


def test_written_specs_read_back(catalog: Catalog) -> None:
    for name in catalog.names("devices"):
        device = catalog.device(name)
        text = yamlio.dumps(device.to_data())
        assert yamlio.validate(Device, yamlio.loads(text)) == device
