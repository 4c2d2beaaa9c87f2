"""What reading a file refuses beyond the range of a field: parts and wholes, chains, hosts nobody can use."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sim.catalog import Catalog
from sim.cli.main import main
from sim.errors import InputError
from sim.spec import Strategy
from sim.taxonomy import require_valid

HEADER = "schema: 1\nname: w\nfamily: moe\ndtype: fp32\noptimizer: sgd\nbatch_per_device: 4\nlayers:\n"
GENERATED = """
schema: 1
name: w
generator: transformer
num_layers: 2
hidden: 64
num_heads: 4
vocabulary: 100
sequence_length: 16
batch_per_device: 4
""".lstrip()
HOST = """
schema: 1
name: h
cpu_cores: 8
cpu_device: xeon-e5-2698v4
memory_bytes: 64GB
devices: [[v100-16gb, 2]]
nics: [{name: nic0, bandwidth: 100Gbps}]
links:
  - {a: "gpu[0-1]", b: cpu0, bandwidth: 16GB/s, kind: pcie}
  - {a: nic0, b: cpu0, bandwidth: 16GB/s, kind: pcie}
""".lstrip()


def written(folder: Path, text: str, name: str = "file.yaml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def chain(*layers: str) -> str:
    return HEADER + "".join(f"  - {{name: a, kind: linear, {layer}}}\n" for layer in layers)


@pytest.mark.parametrize(
    ("layers", "said", "line"),
    [
        (
            ["block: 0, parameters: 1000, tensors: [1100, -100]"],
            "tensors[1]: must be at least 0. Got -100.",
            8,
        ),
        (
            ["block: 0, parameters: 1000, tensors: [500, 400]"],
            "tensors: must sum to parameters + expert_parameters (1000). Got 900.",
            8,
        ),
        (
            ["block: 0, parameters: 1000, tensor_parameters: 2000"],
            "tensor_parameters: must be at most parameters (1000). Got 2000.",
            8,
        ),
        (
            ["block: 0, stored_elements: 1, stored_tensor_elements: 2"],
            "stored_tensor_elements: must be at most stored_elements (1). Got 2.",
            8,
        ),
        (
            ["block: 0, stored_elements: 3, stored_tensor_elements: 2, stored_selective_elements: 3"],
            "stored_selective_elements: must be at most stored_tensor_elements (2). Got 3.",
            8,
        ),
        (["block: 1", "block: 0"], "[1].block: must be at least that of the layer before (1). Got 0.", 9),
        (
            ["block: 0, parameters: 1000", "block: 0, shared_parameters: 5000"],
            "[1].shared_parameters: must be at most the parameters up to this layer (1000). Got 5000.",
            9,
        ),
    ],
)
def test_layers_keep_to_what_their_fields_say(
    tmp_path: Path, layers: list[str], said: str, line: int
) -> None:
    path = written(tmp_path, chain(*layers))
    with pytest.raises(InputError) as caught:
        Catalog().workload(path)
    assert said in str(caught.value)
    assert str(caught.value).endswith(f"({path}:{line})")


def test_layers_that_keep_to_it_are_read(tmp_path: Path) -> None:
    layers = (
        "block: 0, parameters: 1000, expert_parameters: 500, tensors: [600, 400, 500]",
        "block: 0, shared_parameters: 1000",
        "block: 2, stored_elements: 2, stored_tensor_elements: 2, stored_selective_elements: 2",
    )
    assert Catalog().workload(written(tmp_path, chain(*layers))).num_parameters == 1500


@pytest.mark.parametrize("name", ["num_layers", "num_heads", "sequence_length", "batch_per_device", "schema"])
def test_a_generator_takes_no_boolean_for_a_number(tmp_path: Path, name: str) -> None:
    lines = GENERATED.splitlines()
    number = next(i for i, line in enumerate(lines) if line.startswith(f"{name}:"))
    lines[number] = f"{name}: true"
    path = written(tmp_path, "\n".join(lines))
    with pytest.raises(InputError) as caught:
        Catalog().workload(path)
    where = f"({path}:{number + 1})"
    assert str(caught.value) == f"workload.{name}: must not be true or false. Got true. {where}"


def test_a_number_too_large_to_read_is_told_in_our_words(tmp_path: Path) -> None:
    path = written(tmp_path, GENERATED.replace("batch_per_device: 4", "batch_per_device: 1e308"))
    with pytest.raises(InputError, match=r"batch_per_device: must be a smaller whole number\. Got 1e\+308\."):
        Catalog().workload(path)
    path = written(
        tmp_path, HEADER.replace("device: 4", "device: 1e308") + "  - {name: a, kind: b, block: 0}\n"
    )
    with pytest.raises(InputError, match=r"batch_per_device: must be a smaller whole number\. Got 1e\+308\."):
        Catalog().workload(path)


def test_experts_are_those_the_layers_state(tmp_path: Path, catalog: Catalog) -> None:
    cluster = catalog.cluster("dgx-1", num_hosts=1)
    layers = ("block: 0, expert_parameters: 1000, num_experts: 8", "block: 0, num_experts: 12")
    workload = catalog.workload(written(tmp_path, chain(*layers)))
    assert workload.experts == 4
    require_valid(Strategy(ep=4), workload, cluster)
    with pytest.raises(InputError, match=r"divide num_experts \(4\)"):
        require_valid(Strategy(ep=8), workload, cluster)
    silent = catalog.workload(written(tmp_path, chain("block: 0, expert_parameters: 1000"), "silent.yaml"))
    with pytest.raises(InputError, match="be 1, as w does not state num_experts"):
        require_valid(Strategy(ep=8), silent, cluster)


@pytest.mark.parametrize(
    ("old", "new", "said", "line"),
    [
        ("v100-16gb", "v100-61gb", "host.devices[0]: must be the name of a known device", 6),
        ("xeon-e5-2698v4", "xeon-9", "host.cpu_device: must be the name of a known device", 4),
        ("{a: nic0, b: cpu0", "{a: nic0, b: cpu7", "host.links: must connect gpu0 and nic0.", 10),
        ("gpu[0-1]", "gpu0", "host.links: must connect gpu1 and nic0.", 10),
        ("nics: [{", "nics: [{name: nic0, wire: x}, {", "host.nics[0].wire: must be a known field", 7),
    ],
)
def test_check_finds_a_host_that_no_run_could_use(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, old: str, new: str, said: str, line: int
) -> None:
    assert old in HOST
    path = written(tmp_path, HOST.replace(old, new))
    cluster = written(
        tmp_path,
        f"schema: 1\nname: c\nhost: {path}\nnum_hosts: 2\nfabric: {{kind: single_switch}}\n",
        "c.yaml",
    )
    scenario = written(tmp_path, f"schema: 1\nname: s\nworkload: resnet50\ncluster: {cluster}\n", "s.yaml")
    for file in (path, cluster, scenario):
        assert main(["check", file]) == 2
        told = capsys.readouterr().out
        assert said in told
        assert f"({path}:{line})" in told
    assert main(["check", written(tmp_path, HOST), cluster, scenario]) == 0


@pytest.mark.parametrize("count", [3, 3000])
def test_many_ranges_are_refused_by_their_sum_before_any_is_written_out(tmp_path: Path, count: int) -> None:
    more = "".join(
        f'  - {{a: "plx[0-399999]", b: cpu{i}, bandwidth: 1GB/s, kind: pcie}}\n' for i in range(count)
    )
    start = time.monotonic()
    with pytest.raises(InputError, match=r"links: must stand for at most 1000000 links together. .*\(.*:8\)"):
        Catalog().host(written(tmp_path, HOST + more))
    edges = "".join(f'    - {{a: "host[0-399999]", b: "switch{i}"}}\n' for i in range(count))
    cluster = f"schema: 1\nname: c\nhost: dgx-1\nnum_hosts: 8\nfabric:\n  kind: graph\n  edges:\n{edges}"
    with pytest.raises(InputError, match=r"fabric.edges: must stand for at most 1000000 links together"):
        Catalog().cluster(written(tmp_path, cluster, "cluster.yaml"))
    assert time.monotonic() - start < 10


def test_a_host_of_too_many_devices_is_refused(tmp_path: Path) -> None:
    text = HOST.replace("[[v100-16gb, 2]]", "[[v100-16gb, 2], [v100-16gb, 1000000000]]")
    with pytest.raises(InputError, match=r"devices: must be at most 1000000 devices\. Got 1000000002\."):
        Catalog().host(written(tmp_path, text))
