"""Every preset loads, is sourced, and plays somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.catalog import Catalog
from sim.errors import InputError
from sim.spec import Strategy
from sim.taxonomy import ARCHETYPES, archetype, check, resolve

CATALOG = Catalog()
PRESETS = CATALOG.names("strategy")
WHERE = {"megatron_3d": ("gpt3-175b", 64), "megascale": ("gpt3-175b", 64), "llama3_4d": ("llama3-405b", 512)}
"""Workload and number of DGX A100 hosts for presets that need many devices; others get something small."""


def _place(name: str, strategy: Strategy) -> tuple[str, int]:
    if name in WHERE:
        return WHERE[name]
    if strategy.is_spatial:
        return "resnet50", 4
    if strategy.ep > 1:
        return "mixtral-8x7b", 4
    return ("gpt3-1.3b" if strategy.tp * strategy.cp * strategy.pp > 1 else "resnet50"), 4


@pytest.mark.parametrize("name", PRESETS)
def test_preset_resolves_on_a_suitable_cluster(name: str) -> None:
    strategy = CATALOG.strategy(name)
    model, hosts = _place(name, strategy)
    cluster = CATALOG.cluster("dgx-a100", num_hosts=hosts)
    changes = {"global_batch_size": 256} if strategy.tp * strategy.cp * strategy.pp * strategy.ep > 1 else {}
    workload = CATALOG.workload(model, **changes)
    assert [str(refusal) for refusal in check(strategy, workload, cluster)] == []
    assert resolve(strategy, workload, cluster).dp == 8 * hosts // (strategy.tp * strategy.cp * strategy.pp)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    header = CATALOG.preset(name)
    assert header.name == name
    assert len(header.description) > 20
    assert len(header.source) > 10
    if header.cluster is not None:
        CATALOG.cluster(header.cluster)


def test_an_alias_starts_from_its_target_and_may_differ(tmp_path: Path) -> None:
    folder = tmp_path / "strategies"
    folder.mkdir()

    def write(name: str, body: str) -> None:
        text = f"schema: 1\nname: {name}\ndescription: d\nsource: s\n{body}"
        (folder / f"{name}.yaml").write_text(text)

    write("kin", "alias_of: horovod\nsimplified: everything\nbucket_size: 1MiB\n")
    write("second", "alias_of: kin\n")
    write("lost", "alias_of: horovodd\n")
    catalog = Catalog([tmp_path])
    assert catalog.strategy("kin") == catalog.strategy("horovod", bucket_size="1MiB")
    assert catalog.strategy("kin", collective="tree").collective == "tree"
    with pytest.raises(InputError, match=r"no alias itself.*second.yaml:5"):
        catalog.strategy("second")
    with pytest.raises(InputError, match="Try horovod"):
        catalog.strategy("lost")


def test_pipeline_presets_take_convolutional_models_too() -> None:
    for name in ("gpipe", "dapple"):
        workload, cluster = CATALOG.workload("resnet50"), CATALOG.cluster("dgx-1", num_hosts=1)
        assert check(CATALOG.strategy(name), workload, cluster) == ()


@pytest.mark.parametrize("kind", ARCHETYPES)
def test_archetypes_are_represented(kind: tuple[str, str]) -> None:
    for name in ARCHETYPES[kind]:
        assert archetype(CATALOG.strategy(name)) == kind


def test_presets_differ() -> None:
    """Two names for one strategy only where the systems cost the same."""
    by_strategy: dict[Strategy, set[str]] = {}
    for name in (name for name in PRESETS if CATALOG.preset(name).alias_of is None):
        by_strategy.setdefault(CATALOG.strategy(name), set()).add(name)
    shared = {frozenset(names) for names in by_strategy.values() if len(names) > 1}
    assert shared <= {
        frozenset({"theano_mpi", "caffeonspark"}),
        frozenset({"tf_ps_async", "tensorflowonspark"}),
        frozenset({"tf_ps_sync", "ps_colocated", "geeps"}),
        frozenset({"ps_async", "staleness_asgd"}),
        frozenset({"zero3", "fsdp"}),
    }
