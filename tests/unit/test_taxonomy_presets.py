"""Every preset loads, is sourced, and plays somewhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from sim.analysis.simulate import simulate
from sim.catalog import Catalog
from sim.errors import InputError
from sim.spec import Cluster, Strategy, Workload
from sim.taxonomy import ARCHETYPES, archetype, check, resolve

CATALOG = Catalog()
PRESETS = CATALOG.names("strategy")
WHERE = {"megatron_3d": ("gpt3-175b", 64), "megascale": ("gpt3-175b", 64), "llama3_4d": ("llama3-405b", 512)}
"""Workload and number of DGX A100 hosts for presets that need many devices; others get something small."""


SECTION_B = {
    "B.1": (
        "distbelief_downpour distbelief_sandblaster project_adam ps_li ssp_table petuum_bosen "
        "petuum_strads geeps singa mxnet_kvstore tf_ps_async tf_ps_sync sync_backup multiverso rudra "
        "staleness_asgd dc_asgd easgd sparknet deepspark mpca_sgd bigdl caffeonspark tensorflowonspark "
        "dl4j_avg dl4j_shared deep_image cots_hpc one_weird_trick omnivore flexrr hetero_ps phub parallax "
        "poseidon orpheus_sfb seide_1bit cntk bmuf paddlepaddle"
    ),
    "B.2": (
        "firecaffe baidu_allreduce horovod pytorch_ddp caffe2_gloo chainermn powerai_ddl blueconnect "
        "hier_ring_tencent torus2d_sony torus2d_tpu gradientflow s_caffe theano_mpi mpi_family caffe_mpi "
        "intel_caffe_mlsl matex dmath mxnet_mpi byteps kurth_summit"
    ),
    "B.3": (
        "hogwild dogwild buckwild strom d_psgd ad_psgd h_adpsgd gosgd gossipgrad sgp ako malt hop prague "
        "d2 choco local_sgd post_local_sgd crossbow_sma gaia fedavg diloco streaming_diloco"
    ),
    "B.4": (
        "tf_placement mirhoseini colocrl mayer_cp mesh_tensorflow flexflow_optcnn flexflow optcnn tofu "
        "ampnet gpipe pipedream pipedream_2bw pipemare hetpipe dapple chimera terapipe megatron_tp "
        "megatron_3d megatron_sp zero1 zero2 zero3 fsdp hsdp deepspeed_ulysses ring_attention cp gshard "
        "switch deepspeed_moe zb_h1 zb_h2 zb_v dualpipe llama3_4d megascale"
    ),
    "B.5": (
        "p3 tictac bytescheduler mg_wfbp nccl_ring nccl_tree nccl_nvls nccl_collnet blink sharp switchml "
        "iswitch daiet atp libra inceptionn bml eflops rail_optimized rail_only"
    ),
    "B.6": ("caffe caffe2 chainer cntk dl4j keras mxnet pytorch singa tensorflow horovod bigdl theano"),
    "B.8": (
        "speedo mariana elephas dist_keras tensorspark h2o minerva purine torch_distlearn lasagne "
        "caffe_con_troll chaos keuper_asgd graphlab harp_daal reef angel glint kunpeng multiverso ray "
        "tf_replicator phylanx lbann swcaffe tianhe3 digits nvcaffe dgx_stack large_batch_records"
    ),
}
"""Systems that the surveys name, by section of the table of presets (schedulers apart)."""
NAMED = sorted(" ".join(SECTION_B.values()).split())


def _place(name: str, strategy: Strategy) -> tuple[str, int]:
    if name in WHERE:
        return WHERE[name]
    if strategy.is_spatial:
        return "resnet50", 4
    if strategy.ep > 1:
        return "mixtral-8x7b", 4
    return ("gpt3-1.3b" if strategy.tp * strategy.cp * strategy.pp > 1 else "resnet50"), 4


@pytest.mark.parametrize("name", sorted({*NAMED}))
def test_every_named_system_is_in_the_catalogue(name: str) -> None:
    header = CATALOG.preset(name)
    assert header.simplified, "what the model leaves out"
    assert header.testbed, "the cluster of the source"
    assert header.cluster is not None


@cache
def _small(kind: str) -> tuple[Workload, Cluster]:
    """A workload and a cluster on which every preset of a kind fits and plays in a moment."""
    if kind == "experts":
        mixtral = CATALOG.workload("mixtral-8x7b", global_batch_size=64, num_layers=4)
        return mixtral, CATALOG.cluster("dgx-a100", num_hosts=4)
    if kind == "layers":
        gpt = CATALOG.workload("gpt3-350m", global_batch_size=32, num_layers=8)
        return gpt, CATALOG.cluster("dgx-a100", num_hosts=1)
    return CATALOG.workload("alexnet", batch_per_device=32), CATALOG.cluster("g4dn-12xlarge", num_hosts=2)


def _kind(strategy: Strategy) -> str:
    if strategy.ep > 1:
        return "experts"
    if strategy.context_parallelism == "spatial":
        return "replicas"
    return "layers" if strategy.tp * strategy.cp * strategy.pp > 1 else "replicas"


def test_every_preset_plays() -> None:
    """Each distinct strategy once; those of hundreds of devices are left to the test above."""
    played: set[Strategy] = set()
    for name in (name for name in PRESETS if name not in WHERE):
        strategy = CATALOG.strategy(name)
        if strategy in played:
            continue
        played.add(strategy)
        workload, cluster = _small(_kind(strategy))
        scenario = CATALOG.build_scenario(
            {"workload": workload, "cluster": cluster, "strategy": strategy, "fidelity": "analytic"}
        )
        result = simulate(scenario)
        assert result.status == "ok", (name, result.message)
        assert result.step_time_s is not None
        assert result.bound_s is not None
        assert result.step_time_s > 0, name
    assert len(played) > 100


def test_names_of_the_table_are_distinct() -> None:
    assert len(NAMED) == len({*NAMED}) + 5  # bigdl, cntk, horovod, multiverso, singa stand in two sections


@pytest.mark.parametrize("name", PRESETS)
def test_preset_resolves_on_a_suitable_cluster(name: str) -> None:
    strategy = CATALOG.strategy(name)
    model, hosts = _place(name, strategy)
    cluster = CATALOG.cluster("dgx-a100", num_hosts=hosts)
    changes = {"global_batch_size": 256} if strategy.tp * strategy.cp * strategy.pp * strategy.ep > 1 else {}
    workload = CATALOG.workload(model, **changes)
    assert [str(refusal) for refusal in check(strategy, workload, cluster)] == []
    assert resolve(strategy, workload, cluster).dp == 8 * hosts // (strategy.tp * strategy.cp * strategy.pp)


SUITABLE = ("resnet50", "gpt3-1.3b", "mixtral-8x7b", "bert-large", "gpt3-13b")


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in WHERE])
def test_preset_plays_on_the_cluster_it_names(name: str) -> None:
    """With one of a few models, and that cluster as the catalogue has it."""
    where, strategy = CATALOG.preset(name).cluster, CATALOG.strategy(name)
    if where is None:
        return
    cluster, refused = CATALOG.cluster(where), []
    for model in SUITABLE:
        batch = {} if model == "resnet50" else {"global_batch_size": 256}
        refusals = check(strategy, CATALOG.workload(model, **batch), cluster)
        if not refusals:
            return
        assert all(each.alternatives for each in refusals[:1]), str(refusals[0])
        refused.append(str(refusals[0]))
    raise AssertionError(refused)


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
        frozenset({"petuum_strads", "flexrr"}),
    }
