"""From a sweep to points: products, bundles, filters, identities, bad points."""

from __future__ import annotations

import pytest

import sim
from sim import yamlio
from sim.errors import InputError
from sim.spec import Sweep
from sim.sweep.plan import plan_axes, plan_sweep

BASE = {"workload": "bert-base", "cluster": "v100-dlperf"}


def sweep_of(text: str) -> Sweep:
    return yamlio.validate(Sweep, yamlio.loads("schema: 1\nname: test\n" + text))


def test_axes_multiply_and_bundles_move_together():
    axes = {
        "strategy.tp": [1, 2, 4],
        "size": [
            {"cluster.num_hosts": 1, "strategy.dp": 2},
            {"cluster.num_hosts": 2, "strategy.dp": 4},
        ],
    }
    plan = plan_axes(BASE, axes)
    assert len(plan.points) == 6
    seen = {
        (p.parameters["strategy.tp"], p.parameters["num_hosts"], p.parameters["strategy.dp"])
        for p in plan.points
    }
    assert seen == {(tp, hosts, 2 * hosts) for tp in (1, 2, 4) for hosts in (1, 2)}


def test_workloads_clusters_and_presets_can_be_axes():
    axes = {
        "workload": ["resnet50", "bert-base"],
        "cluster": ["v100-dlperf", "dgx-1"],
        "strategy": ["pytorch_ddp", "ps_ssp", {"collective": "tree"}],
    }
    plan = plan_axes({}, axes)
    assert len(plan.points) == 12
    labels = {point.parameters["strategy"] for point in plan.points}
    assert labels == {"pytorch_ddp", "ps_ssp", "all-reduce tree, 25 MiB"}


def test_specs_serve_as_well_as_names():
    cluster = sim.cluster("v100-dlperf", num_hosts=2)
    by_spec = plan_axes({"workload": sim.workload("bert-base"), "cluster": cluster}, {"strategy.tp": [1, 2]})
    by_name = plan_axes({**BASE, "cluster.num_hosts": 2}, {"strategy.tp": [1, 2]})
    assert [p.key for p in by_spec.points] == [p.key for p in by_name.points]


def test_units_in_values():
    plan = plan_axes(BASE, {"strategy.bucket_size": ["25MiB", "100MiB"]})
    assert [p.parameters["strategy.bucket_size"] for p in plan.points] == [25 * 2**20, 100 * 2**20]


def test_a_condition_on_parameters_leaves_points_out_before_they_run():
    plan = plan_axes(BASE, {"strategy.tp": [1, 2, 4, 8]}, where="strategy.tp<4")
    assert [p.parameters["strategy.tp"] for p in plan.points] == [1, 2]
    assert plan.excluded == 2


def test_a_condition_on_results_waits_for_them():
    plan = plan_axes(BASE, {"strategy.tp": [1, 2, 4, 8]}, where="peak_memory_bytes<1GB")
    assert len(plan.points) == 4


def test_a_condition_that_leaves_nothing_says_so():
    said = r"where: must leave at least one point\. Got strategy\.tp>9\. It excludes all 2"
    with pytest.raises(InputError, match=said):
        plan_axes(BASE, {"strategy.tp": [1, 2]}, where="strategy.tp>9")


def test_equal_points_are_computed_once():
    plan = plan_axes(BASE, {"strategy.tp": [2, 2, 4]})
    assert len(plan.points) == 2


def test_keys_differ_where_scenarios_do_and_only_there():
    points = plan_axes(BASE, {"strategy.tp": [1, 2], "seed": [0, 1]}).points
    assert len({p.key for p in points}) == 4
    again = plan_axes(BASE, {"seed": [1], "strategy.tp": [2]}).points
    assert again[0].key == points[3].key


def test_one_bad_point_is_a_row_with_its_reason():
    plan = plan_axes(BASE, {"strategy.tp": [0, 1]})
    assert [bool(p.error) for p in plan.points] == [True, False]
    assert "strategy.tp: must be at least 1" in plan.points[0].error["message"]
    assert plan.points[0].parameters["strategy.tp"] == 0


@pytest.mark.parametrize(
    "axes", [{"strategy.tpp": [1, 2]}, {"workload": ["resnet5"]}, {"strategy.tp": []}, {"strategy.tp": "12"}]
)
def test_a_sweep_without_any_good_point_is_an_input_error(axes: dict[str, object]):
    with pytest.raises(InputError):
        plan_axes(BASE, axes)


def test_sweep_files_expand_with_their_grids():
    sweep = sweep_of(
        "workload: resnet50\ncluster: v100-dlperf\n"
        "axes: {workload.batch_per_device: [64, 128]}\n"
        "grids:\n  - axes: {strategy.dp: [8, 16]}\n"
        "  - {set: {strategy.state: zero1}, axes: {strategy.dp: [8]}}\n"
    )
    plan = plan_sweep(sweep)
    assert len(plan.points) == 6
    assert plan.points[0].parameters["workload.batch_per_device"] == 64


def test_set_fixes_a_field_in_all_points():
    sweep = sweep_of("workload: resnet50\ncluster: v100-dlperf\naxes: {strategy.dp: [8, 16]}\n")
    plan = plan_sweep(sweep, overrides={"strategy.dp": 32})
    assert [p.parameters["strategy.dp"] for p in plan.points] == [32]


def test_the_demo_has_enough_ways_of_training(catalog):
    from sim.taxonomy import check

    plan = plan_sweep(catalog.sweep("demo"))
    valid: dict[tuple[str, int], int] = {}
    for point in plan.points:
        scenario = plan.context.scenario(point.overrides)
        if not check(scenario.strategy, scenario.workload, scenario.cluster):
            key = (scenario.workload.name, int(point.parameters["strategy.dp"]))
            valid[key] = valid.get(key, 0) + 1
    assert sum(valid.values()) >= 300
    for workload in ("resnet50", "vgg16", "bert-base"):
        assert valid[workload, 1] == 1
        assert valid[workload, 32] >= 60


def test_a_sweep_of_too_many_points_says_so_at_once() -> None:
    numbers = [*range(1, 1001)]
    axes: dict[str, list[int]] = {"strategy.tp": numbers, "strategy.pp": numbers, "strategy.dp": numbers}
    with pytest.raises(InputError, match=r"give at most 1000000 points. Got 1000000000. Vary fewer fields"):
        Sweep(name="huge", axes=axes).expand()
    with pytest.raises(InputError, match="give at most 1000000 points"):
        plan_axes({"workload": "resnet50", "cluster": "dgx-a100"}, axes)


def test_values_of_an_axis_may_be_mappings():
    axes = "axes:\n  strategy: [{tp: 2}, {tp: 4, state: zero1}]\n"
    single, torus = "{kind: single_switch, latency: 1us}", "{kind: torus, dims: [4], latency: 1us}"
    fabrics = f"  cluster.fabric:\n    - {single}\n    - {torus}\n"
    slow = "  perturbation.slow_ranks: [{0: 1.5}, {0: 1.5, 3: 1.2}]\n"
    plan = plan_sweep(sweep_of("workload: bert-base\ncluster: v100-dlperf\n" + axes + fabrics + slow))
    assert len(plan.points) == 8
    assert not any(point.error for point in plan.points)
    assert len({point.key for point in plan.points}) == 8
    last = plan.points[-1].parameters
    assert (last["strategy.tp"], last["cluster.fabric"]) == (4, "kind: torus, dims: [4]")
    assert last["perturbation.slow_ranks"] == "0: 1.5, 3: 1.2"
    assert plan.context.scenario(plan.points[-1].overrides).cluster.fabric.kind == "torus"
    python = plan_axes(BASE, {"cluster.fabric": [{"kind": "single_switch"}, {"kind": "torus", "dims": [4]}]})
    assert [point.parameters["cluster.fabric"] for point in python.points] == [
        "kind: single_switch",
        "kind: torus, dims: [4]",
    ]


def test_rows_that_share_a_strategy_show_what_else_differs():
    import pandas as pd

    from sim.cli.sweep_report import distinct_labels

    rows = pd.DataFrame(
        {
            "workload": ["a"] * 3,
            "num_devices": [8] * 3,
            "strategy": ["ring", "ring", "tree"],
            "cluster.fabric": ["kind: torus", "kind: ring", "kind: torus"],
            "strategy.placement": ["tp,dp", "tp,dp", "dp,tp"],
            "step_time_s": [1.0, 2.0, 3.0],
        }
    )
    assert distinct_labels(rows) == [
        "ring; cluster.fabric=kind: torus",
        "ring; cluster.fabric=kind: ring",
        "tree",
    ]


@pytest.mark.parametrize(
    ("rules", "known", "said"),
    [
        (["bsp", "asp", "ssp"], False, "workers drift apart (asp, ssp)"),
        (["bsp", "local"], False, "(local)"),
        (["bsp", "backup"], False, ""),
        (["asp"], False, ""),
        (["bsp", "asp"], True, ""),
    ],
)
def test_a_ranking_says_where_a_sample_is_not_worth_the_same(rules: list[str], known: bool, said: str):
    import pandas as pd

    from sim.cli.sweep_report import unequal_samples

    epochs = [90.0 if known else float("nan")] * len(rules)
    rows = pd.DataFrame({"status": "ok", "strategy.synchronization": rules, "epochs_to_target": epochs})
    line = unequal_samples(rows)
    assert said in line
    assert bool(said) == bool(line)
    assert "\n" not in line


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        (
            "a: [{strategy.tp: 1}, {strategy.tp: 2}], b: [{strategy.tp: 2}]",
            "axes.b: must set fields that no other axis sets. Got strategy.tp. Axis a sets",
        ),
        ("strategy: [{tp: 2}], strategy.tp: [4]", "Got strategy.tp. Axis strategy sets it too."),
        ("strategy.tp: 3", "axes.strategy.tp: must be a list of values. Got 3. (:5)"),
        ("7: [3]", "axes: must have names of fields or labels as keys. Got 7."),
    ],
)
def test_axes_are_lists_of_fields_of_their_own(axes: str, said: str):
    with pytest.raises(InputError) as error:
        sweep_of(f"workload: bert-base\ncluster: v100-dlperf\naxes: {{{axes}}}\n")
    assert said in str(error.value)


@pytest.mark.parametrize("objective", ["strategy", "status"])
def test_an_objective_has_numbers(objective: str):
    sweep = sweep_of("workload: bert-base\ncluster: v100-dlperf\naxes: {strategy.dp: [1, 2]}\n")
    with pytest.raises(InputError, match=f"--objective: must be a numeric column. Got {objective}"):
        plan_sweep(sweep, objective=objective)
    assert plan_sweep(sweep, objective="strategy.dp").objective == "strategy.dp"
