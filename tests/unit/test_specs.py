"""Specs: derived sizes, ranges of links, hashing, merging, expansion."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys

import pytest
from pydantic import ValidationError

from sim.catalog import Catalog
from sim.errors import InputError
from sim.spec import (
    Calibration,
    Cluster,
    Device,
    Fabric,
    Grid,
    Host,
    HostLink,
    Nic,
    Scenario,
    Strategy,
    Sweep,
)
from sim.spec.host import expand_nodes, pair_nodes


def plain_host(**fields: object) -> Host:
    defaults = {
        "name": "h",
        "devices": (("d", 4),),
        "nics": (Nic(name="nic0", bandwidth=1e9), Nic(name="nic1", bandwidth=1e9)),
        "cpu_cores": 8,
        "memory_bytes": 1e9,
    }
    return Host(**{**defaults, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("gpu3", ("gpu3",)),
        ("gpu[0-2]", ("gpu0", "gpu1", "gpu2")),
        ("gpu[0,2-3,7]", ("gpu0", "gpu2", "gpu3", "gpu7")),
    ],
)
def test_node_ranges(pattern: str, names: tuple[str, ...]) -> None:
    assert expand_nodes(pattern) == names


@pytest.mark.parametrize("pattern", ["gpu", "gpu[3-1]", "GPU0", "gpu[0-]", "disk0", "gpu0 "])
def test_bad_node_ranges(pattern: str) -> None:
    with pytest.raises(ValidationError):
        HostLink(a=pattern, b="cpu0", bandwidth=1e9, kind="pcie")


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("gpu[0-999999999999]", 10**12), ("gpu[0-999999,7]", 10**6 + 1), ("gpu[0-9" + 19 * "9" + "]", 10**20)],
)
def test_a_range_of_nodes_is_bounded(pattern: str, count: int) -> None:
    with pytest.raises(ValidationError, match=f"name 1 to 1000000 nodes.*{count} names"):
        HostLink(a=pattern, b="cpu0", bandwidth=1e9, kind="pcie")


def test_pairs_are_one_to_one_or_consecutive_blocks() -> None:
    four, two = expand_nodes("gpu[0-3]"), expand_nodes("plx[0-1]")
    assert pair_nodes(four, two) == (("gpu0", "plx0"), ("gpu1", "plx0"), ("gpu2", "plx1"), ("gpu3", "plx1"))
    assert pair_nodes(two, four)[3] == ("plx1", "gpu3")
    assert pair_nodes(four, ("cpu0",))[2] == ("gpu2", "cpu0")
    with pytest.raises(ValidationError):
        HostLink(a="gpu[0-3]", b="plx[0-2]", bandwidth=1e9, kind="pcie")


def test_nearest_nic_defaults_to_even_blocks() -> None:
    assert plain_host().device_nics == (0, 0, 1, 1)
    assert plain_host(nic_of_device=(1, 1, 0, 0)).device_nics == (1, 1, 0, 0)
    with pytest.raises(ValidationError):
        plain_host(nic_of_device=(0, 1))
    with pytest.raises(ValidationError):
        plain_host(nic_of_device=(0, 0, 0, 2))


def test_a_server_is_the_host_without_devices() -> None:
    links = (
        HostLink(a="gpu[0-3]", b="plx[0-1]", bandwidth=1e9, kind="pcie"),
        HostLink(a="nic[0-1]", b="plx[0-1]", bandwidth=1e9, kind="pcie"),
        HostLink(a="gpu[0-3]", b="nvswitch0", bandwidth=1e9, kind="nvlink"),
    )
    server = plain_host(links=links).without_devices
    assert server.num_devices == 0
    assert [(link.a, link.b) for link in server.links] == [("nic0", "plx0"), ("nic1", "plx1")]
    assert len(server.nics) == 2


def test_equal_specs_are_equal_keys() -> None:
    a, b = Strategy(tp=8), Strategy(tp=8, pp=1)
    assert a == b
    assert hash(a) == hash(b)
    assert a.fingerprint == b.fingerprint
    assert len({a, b, Strategy(tp=4)}) == 2
    assert hash(a.replace(tp=4)) == hash(Strategy(tp=4))
    assert hash(a.model_copy(update={"tp": 4})) == hash(Strategy(tp=4))
    device = Device(
        name="d", kind="gpu", peak_flops={"fp32": 1.0, "fp16": 2.0}, memory_bytes=1, memory_bandwidth=1,
        idle_power=0, peak_power=1, price_per_hour=0, num_multiprocessors=1,
    )  # fmt: skip
    swapped = device.replace(peak_flops={"fp16": 2.0, "fp32": 1.0})
    assert hash(device) == hash(swapped)
    assert device.fingerprint == swapped.fingerprint


def test_specs_are_frozen_and_refuse_nan() -> None:
    with pytest.raises(ValidationError):
        Strategy().tp = 2  # type: ignore[misc]
    for bad in (float("nan"), float("inf"), -1.0, 0.0):
        with pytest.raises(ValidationError):
            Strategy(bucket_size=bad)


def test_scenario_key_is_the_same_in_another_process(catalog: Catalog) -> None:
    fields = {"workload": "resnet50", "cluster": "dgx-1", "cluster.num_hosts": 2, "strategy.overlap": False}
    scenario = catalog.build_scenario(fields)
    code = f"from sim.catalog import Catalog; print(Catalog().build_scenario({fields!r}).key())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == scenario.key()
    restored = pickle.loads(pickle.dumps(scenario))
    assert (restored, hash(restored), restored.key()) == (scenario, hash(scenario), scenario.key())
    assert scenario.replace(seed=1).key() != scenario.key()


def test_calibration_falls_back_merges_and_moves_to_bounds() -> None:
    def one(name: str, **values: object) -> Calibration:
        return Calibration(name=name, device=values)  # type: ignore[arg-type]

    base = one(
        "base",
        default={
            "e": {"value": 0.5, "low": 0.4, "high": 0.7, "source": "s"},
            "kernel_latency": {"value": "5us", "source": "s"},
        },
    )
    mine = one("mine", v100={"e": {"value": 0.6, "n": 9, "source": "t"}})
    both = base.merge(mine)
    assert both.value("device", "v100", "e") == 0.6
    assert both.value("device", "t4", "e") == 0.5
    assert both.value("device", "v100", "kernel_latency") == pytest.approx(5e-6)
    assert base.value("device", "v100", "e") == 0.5
    assert both.at_bounds("device", "t4", "e", "high").value("device", "k80", "e") == 0.7
    assert both.at_bounds("device", "v100", "e", "low").value("device", "v100", "e") == 0.6
    assert both.uncertain() == (("device", "default", "e"),)
    with pytest.raises(InputError, match=r"kernel_latenzy.*Try kernel_latency"):
        both.value("device", "v100", "kernel_latenzy")


def test_sweep_is_a_product_of_axes_and_a_union_of_grids() -> None:
    sweep = Sweep(
        name="s",
        workload="resnet50",
        axes={"cluster.num_hosts": [1, 2]},
        grids=(
            Grid(set={"strategy.state": "replicated"}, axes={"strategy.overlap": [True, False]}),
            Grid(
                axes={
                    "together": [{"strategy.tp": 2, "strategy.pp": 1}, {"strategy.tp": 1, "strategy.pp": 2}]
                }
            ),
            Grid(points=({"strategy": "horovod"}, {"strategy": "horovod"})),
        ),
    )
    points = sweep.expand()
    assert len(points) == 2 * (2 + 2 + 1)
    assert points == sweep.expand()
    assert all(point["workload"] == "resnet50" for point in points)
    assert {(p.get("strategy.tp"), p.get("strategy.pp")) for p in points} == {(None, None), (2, 1), (1, 2)}
    assert len(Sweep(name="s", workload="w").expand()) == 1
    with pytest.raises(ValidationError):
        Sweep(name="s", axes={"strategy.tp": []})


def test_naming_a_preset_drops_earlier_fields_of_the_strategy() -> None:
    sweep = Sweep(name="s", strategy={"tp": 8}, points=({"strategy": "horovod"}, {"strategy.pp": 2}))
    assert sweep.expand() == [
        {"seed": 0, "strategy": "horovod"},
        {"seed": 0, "strategy.tp": 8, "strategy.pp": 2},
    ]


def test_cluster_sizes(catalog: Catalog) -> None:
    cluster = catalog.cluster("dgx-a100", num_hosts=3)
    assert (cluster.size, cluster.num_devices, cluster.devices_per_host) == (3, 24, (8, 8, 8))
    assert cluster.with_hosts(5).num_devices == 40
    assert cluster.with_hosts(5).host_type_of == (0,) * 5
    assert cluster.with_hosts(3) is cluster
    for bad in (0, -1, 1.5, True):
        with pytest.raises(InputError, match="whole number"):
            cluster.with_hosts(bad)  # type: ignore[arg-type]


def test_mixed_clusters_fill_groups_in_order(catalog: Catalog) -> None:
    groups = (
        {"host": "dgx-a100", "count": 2},
        {"host": "single-gpu", "count": 1},
        {"host": "dgx-a100", "count": 1},
    )
    mixed = catalog.resolve(Cluster(name="m", hosts=groups, fabric=Fabric(kind="single_switch")))  # type: ignore[arg-type]
    assert mixed.host_type_of == (0, 0, 1, 0)
    assert mixed.devices_per_host == (8, 8, 1, 8)
    assert mixed.num_devices == 25
    with pytest.raises(InputError, match="sum of its groups"):
        mixed.with_hosts(9)
    with pytest.raises(ValidationError):
        Cluster(name="m", fabric=Fabric(kind="single_switch"))


def test_price_counts_hosts_and_devices(catalog: Catalog) -> None:
    assert catalog.cluster("dgx-1", num_hosts=2).price_per_hour == pytest.approx(2 * 24.48)


def test_scenario_parts(catalog: Catalog) -> None:
    scenario = catalog.build_scenario(
        {"workload": "resnet50", "workload.global_batch_size": 256, "cluster": "dgx-1", "strategy": "horovod",
         "strategy.overlap": False, "perturbation.jitter": 0.1, "seed": 3}
    )  # fmt: skip
    assert isinstance(scenario, Scenario)
    assert (scenario.workload.global_batch_size, scenario.workload.batch_per_device) == (256, None)
    assert (scenario.strategy.overlap, scenario.perturbation.jitter, scenario.seed) == (False, 0.1, 3)
    specs = {name: getattr(scenario, name) for name in ("workload", "cluster", "strategy")}
    again = catalog.build_scenario({**specs, "cluster.num_hosts": 2})
    assert again.cluster.num_devices == 16
    assert again.workload is scenario.workload


def test_a_fingerprint_is_that_of_the_whole_json() -> None:
    """Parts keep their text, and yet nothing but the fields decides."""
    catalog = Catalog()
    specs = [catalog.cluster("dgx-a100"), catalog.workload("gpt2"), catalog.calibration(), Strategy(tp=8)]
    for spec in [*specs, specs[0].model_copy(update={"num_hosts": 3})]:
        text = json.dumps(spec.model_dump(mode="json", by_alias=True), sort_keys=True, separators=(",", ":"))
        assert spec.fingerprint == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("kind", ["torus", "ring", "hypercube"])
def test_links_of_devices_need_a_bandwidth(kind: str) -> None:
    with pytest.raises(ValidationError, match="be given where attach is device") as refused:
        Fabric(kind=kind, attach="device")  # type: ignore[arg-type]
    assert refused.value.errors()[0]["ctx"]["field"] == "bandwidth"
    assert Fabric(kind=kind, attach="device", bandwidth=1e9).attach == "device"  # type: ignore[arg-type]
