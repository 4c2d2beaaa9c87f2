"""Closed forms of mechanisms of the taxonomy that one preset each stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.analysis.result import Result
from sim.analysis.simulate import simulate
from sim.graph.execution import Cause
from sim.lowering import lower, make_plan
from sim.lowering.state.peer_graph import exchanges
from sim.spec import Workload
from sim.spec.layer import Attention
from sim.spec.strategy import Strategy
from tests.clusters import switched_host
from tests.random_jobs import resolved
from tests.scenarios import even_workload, ideal, scenario, serving, serving_host, timed_layer, workload

N, M = 8, 1e6 * 4.0  # workers; bytes of the model
MODEL = even_workload(3, 0.01, 0.02, parameters=1e6)
RACK = serving(serving_host(1e9), N)
CALIBRATION = ideal(server_speed=0.2)


def run(model: Workload = MODEL, where: Any = RACK, **fields: Any) -> Result:
    result = simulate(scenario(model, where, calibration=CALIBRATION, **fields))
    assert result.ok, result.message
    return result


def moved(cause: Cause, where: Any = RACK, model: Workload = MODEL, **fields: Any) -> float:
    """Bytes of a cause that leave the ports of hosts in one period."""
    graph = lower(scenario(model, where, calibration=CALIBRATION, **fields))
    rows = graph.links.rows()
    size = graph.flow_bytes[rows] * graph.link_coefficient * (graph.cause[rows] == cause)
    return float((size * graph.link_table.members[graph.links.index]).sum()) / 2


# -- clients of a round (FedAvg) ---------------------------------------------------------------------------

ROUND: dict[str, Any] = {
    "state": "ps_dedicated", "num_servers": 1, "synchronization": "local", "local_steps": 4, "overlap": False,
}  # fmt: skip


@pytest.mark.parametrize(("share", "clients"), [(0.25, 2), (0.5, 4), (0.01, 1)])
def test_a_round_is_one_of_the_clients_that_take_part(share: float, clients: int) -> None:
    assert moved(Cause.GRADIENT_COMM, participation=share, **ROUND) == pytest.approx(clients * M)
    result, alone = run(participation=share, **ROUND), run(dp=clients, **ROUND)
    assert result.step_time_s == pytest.approx(alone.step_time_s, rel=1e-12)
    assert result.samples_per_s == pytest.approx(alone.samples_per_s, rel=1e-12)


def test_a_round_takes_who_is_there_and_no_more_than_it_wants() -> None:
    """Clients are there independently of each other: a binomial number, one at least."""
    there = [
        make_plan(scenario(MODEL, RACK, seed=seed, availability=0.5, **ROUND)).layout.num_ranks
        for seed in range(40)
    ]
    assert sum(there) / 40 == pytest.approx(N / 2, abs=3 * (N / 4 / 40) ** 0.5)
    assert min(there) >= 1
    assert len({*there}) > 2
    few = {
        make_plan(
            scenario(MODEL, RACK, seed=seed, availability=0.5, participation=0.25, **ROUND)
        ).layout.num_ranks
        for seed in range(20)
    }
    assert max(few) == 2
    hardly = make_plan(scenario(MODEL, RACK, availability=1e-9, **ROUND))
    assert hardly.layout.num_ranks == 1


def test_the_seed_draws_who_takes_part() -> None:
    """A round with the one slow client of eight takes longer; it is in a quarter of the rounds of two."""
    slow = {5: 3.0}
    times = [run(participation=0.25, seed=seed, slow_ranks=slow, **ROUND).step_time_s for seed in range(24)]
    fast = run(participation=0.25, **ROUND).step_time_s
    assert fast is not None
    late = [time for time in times if time is not None and time > 1.5 * fast]
    assert 1 <= len(late) <= 14
    assert min(times) == pytest.approx(fast)


# -- trees of aggregators ----------------------------------------------------------------------------------


def test_a_tree_of_levels_spares_the_server() -> None:
    """With f^L workers under every leader, n / f^L gradients reach the server."""
    tree: dict[str, Any] = {"state": "ps_dedicated", "num_servers": 1, "topology": "tree", "group_size": 2,
            "bucket_size": 1e9}  # fmt: skip
    for levels in (1, 2, 3):
        plan = make_plan(scenario(MODEL, RACK, **tree, tree_levels=levels))
        graph = lower(scenario(MODEL, RACK, calibration=CALIBRATION, fold=False, **tree, tree_levels=levels))
        pushes = [graph.names[name].endswith(".push") for name in graph.name]
        assert sum(pushes) == N / 2**levels
        assert plan.strategy.tree_levels == levels
        # Every other worker sends once: to its leader or to the server.
        assert moved(Cause.GRADIENT_COMM, **tree, tree_levels=levels) == pytest.approx(N * M)
        folded = run(**tree, tree_levels=levels).step_time_s
        assert folded == pytest.approx(run(**tree, tree_levels=levels, fold=False).step_time_s, rel=1e-9)


# -- slices of sequences (TeraPipe) ------------------------------------------------------------------------


def causal(stages: int) -> Workload:
    """Equal layers, and an attention that takes no time but is causal."""
    core = Attention(query_length=64, key_length=64, heads=1, kv_heads=1, head_dim=1, causal=True, flash=True)
    layers = [timed_layer(i, 0.01, 0.02) for i in range(stages)]
    layers[0] = layers[0].model_copy(update={"ops": (*layers[0].ops, core)})
    return workload(layers, batch=2, sequence_length=64)


@pytest.mark.parametrize("slices", [1, 4, 16])
def test_slices_of_sequences_shorten_the_bubble(slices: int) -> None:
    """(p-1)/(m s + p-1) of a step (Li et al., TeraPipe, ICML 2021, section 3)."""
    p, m = 4, 2
    fields: dict[str, Any] = {"pp": p, "dp": 1, "micro_batch_size": 1, "schedule": "gpipe"}
    result = run(causal(p), **fields, token_slices=slices)
    work = m * 0.03
    assert result.step_time_s == pytest.approx(work * (1 + (p - 1) / (m * slices)), rel=1e-3)
    assert result.samples_per_s == pytest.approx(m / result.step_time_s)  # type: ignore[operator]


# -- ZeRO++ ------------------------------------------------------------------------------------------------


def test_quantised_gathers_and_second_copies_cut_the_bytes_between_hosts() -> None:
    """Of 3 M: the forward's gather an eighth of fp32's M x 4, the backward's none (ZeRO++, table 1)."""
    where = resolved([(switched_host(4, 4), 2)])
    plain: dict[str, Any] = {"state": "zero3", "collective": "ring"}
    both = moved(Cause.PARAMETER_COMM, where, **plain)
    second = moved(Cause.PARAMETER_COMM, where, **plain, backward_shard_ranks=4)
    quantised = moved(Cause.PARAMETER_COMM, where, **plain, backward_shard_ranks=4, gather_bits=8)
    inside = moved(Cause.PARAMETER_COMM, resolved([(switched_host(4, 4), 1)]), **plain)
    assert second == pytest.approx(both / 2 + inside, rel=0.3)  # half across hosts, the rest inside them
    assert second - quantised == pytest.approx(0.75 * both / 2, rel=1e-9)
    footprint = make_plan(scenario(MODEL, where, **plain, backward_shard_ranks=4)).footprints[0]
    without = make_plan(scenario(MODEL, where, **plain)).footprints[0]
    assert footprint["weights"] - without["weights"] == pytest.approx(M / 4)


# -- several replicas on a device (Crossbow) ---------------------------------------------------------------


@pytest.mark.parametrize("update", [None, "sma"])
def test_replicas_that_share_a_device_send_one_sum(update: str | None) -> None:
    fields: dict[str, Any] = {"update": update, "collective": "ring"}
    one, two = run(**fields), run(**fields, replicas_per_device=2)
    for cause in (Cause.GRADIENT_COMM,):
        assert moved(cause, **fields, replicas_per_device=2) == pytest.approx(moved(cause, **fields))
    assert two.samples_per_s * two.step_time_s == pytest.approx(2 * one.samples_per_s * one.step_time_s)  # type: ignore[operator]
    assert two.step_time_s > one.step_time_s  # type: ignore[operator]
    foot = [make_plan(scenario(MODEL, RACK, **fields, replicas_per_device=r)).footprints[0] for r in (1, 2)]
    for name in ("weights", "gradients", "activations"):
        assert foot[1][name] == 2 * foot[0][name]


# -- activations -------------------------------------------------------------------------------------------


def stored() -> Workload:
    layers = [
        timed_layer(
            i, 0.01, 0.02, parameters=1e6, stored_elements=1e6, output_elements=1e5, input_elements=1e5
        )
        for i in range(4)
    ]
    return workload(layers, batch=2)


def test_parked_activations_cross_to_the_host_and_back() -> None:
    model, where = stored(), resolved([(switched_host(4, 4), 1)])
    plain, parked = run(model, where), run(model, where, offload_activations=True)
    graph = parked.graph
    assert graph is not None
    wanted = [f"layer{i}.{way}" for i in range(4) for way in ("offload", "reload")]
    moves = np.isin(np.array(graph.names)[graph.name], wanted)
    assert moves.sum() == 2 * 8  # two classes of devices
    assert graph.total_bytes[moves] == pytest.approx(2 * 1e6 * 4)
    slot = 32e9 / 2  # two devices share a PCIe switch: the last one's way back is in nobody's shadow
    assert parked.step_time_s >= plain.step_time_s + 2 * 1e6 * 4 / slot  # type: ignore[operator]
    foot = [
        make_plan(scenario(model, RACK, offload_activations=way)).footprints[0]["activations"]
        for way in (False, True)
    ]
    assert foot == pytest.approx([4 * 2 * 1e6 * 4, 2 * 2 * 1e6 * 4])


def test_stages_park_the_inputs_of_blocks_that_they_compute_again() -> None:
    """Two stages of two blocks, four micro-batches: what leaves is a block's input, once each way."""
    model, where = stored(), resolved([(switched_host(4, 4), 1)])
    model = model.model_copy(update={"batch_per_device": 4})
    fields: dict[str, Any] = {
        "pp": 2,
        "micro_batch_size": 1,
        "recompute": "full",
        "offload_activations": True,
    }
    parked = run(model, where, **fields)
    graph = parked.graph
    assert graph is not None
    for way in ("offload", "reload"):
        moves = np.isin(np.array(graph.names)[graph.name], [f"layer{i}.{way}" for i in range(4)])
        bytes_each = graph.total_bytes[moves] * graph.devices.multiplicity[graph.device[moves]]
        assert bytes_each.sum() == pytest.approx(
            4 * 4 * 4 * 1e5 * 4 / 2
        )  # ranks: a stage has half the layers
    # At a time: the inputs of two blocks, and the insides of one.
    plan = make_plan(scenario(model, RACK, **fields))
    assert plan.footprints[0]["activations"] == pytest.approx((2 * 1e5 + 1e6) * 4)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "chimera", "naive"])
def test_parking_never_saves_time_and_bounds_memory(schedule: str) -> None:
    model, where = stored(), resolved([(switched_host(4, 4), 1)])
    model = model.model_copy(update={"batch_per_device": 4})
    fields: dict[str, Any] = {"pp": 2, "micro_batch_size": 1, "schedule": schedule}
    plain, parked = run(model, where, **fields), run(model, where, **fields, offload_activations=True)
    assert parked.step_time_s >= plain.step_time_s * (1 - 1e-9)  # type: ignore[operator]
    for stages in (parked.memory_by_stage,):
        assert max(stage["activations"] for stage in stages) <= 2 * 1e6 * 4 * (1 + 1e-9)


def test_some_kinds_of_layers_run_forward_again() -> None:
    """Of the two layers of the kind only inputs are kept, and at a time the one that is computed again."""
    model = stored()
    layers = tuple(
        layer.model_copy(update={"kind": "norm"}) if i % 2 else layer for i, layer in enumerate(model.layers)
    )
    model = model.model_copy(update={"layers": layers})
    plain, again = run(model), run(model, recompute_layers=("norm",))
    assert again.step_time_s - plain.step_time_s == pytest.approx(2 * 2 * 0.01, rel=1e-3)  # type: ignore[operator]
    foot = [
        make_plan(scenario(model, RACK, recompute_layers=kinds)).footprints[0]["activations"]
        for kinds in ((), ("norm",))
    ]
    sample = 2 * 4  # samples times bytes
    assert foot == pytest.approx([4e6 * sample, (2e6 + 2e5 + 1e6) * sample])


def test_states_on_disks_are_read_and_written() -> None:
    """Two passes over the fp32 master copy and states, at the bandwidth of the disk."""
    from sim.spec.host import Storage

    disk = Storage(kind="local_ssd", bandwidth=1e8)
    host = serving_host(1e9).model_copy(update={"local_storage": disk})
    where = serving(host, N)
    fields: dict[str, Any] = {"state": "zero1", "offload_optimizer": True}
    memory, nvme = run(where=where, **fields), run(where=where, **fields, offload_target="nvme")
    seconds = 2 * 4 * 1e6 / N / 1e8
    assert nvme.step_time_s - memory.step_time_s == pytest.approx(seconds, rel=0.2)  # type: ignore[operator]


def test_parameters_off_the_device_come_for_every_gather() -> None:
    """Each rank fetches its N-th for forward and backward, which the disk has read, and writes it once."""
    from sim.spec.host import Storage

    disk = Storage(kind="local_ssd", bandwidth=1e8)
    where = serving(serving_host(1e9).model_copy(update={"local_storage": disk}), N)
    fields: dict[str, Any] = {"state": "zero3", "offload_optimizer": True, "overlap": False}
    near = run(where=where, **fields, offload_target="nvme")
    far = run(where=where, **fields, offload_target="nvme", offload_parameters=True)
    graph = far.graph
    assert graph is not None
    names = np.array(graph.names)[graph.name]
    reads = graph.work[np.char.endswith(names, ".read")].sum()
    assert reads == pytest.approx(2 * M / N / 1e8)
    # Nothing overlaps here: two reads and a write of the disk come on top, the way up after the update goes.
    extra = far.step_time_s - near.step_time_s  # type: ignore[operator]
    assert extra == pytest.approx(3 * M / N / 1e8, rel=0.05)
    inside = run(where=resolved([(switched_host(4, 4), 1)]), **fields, offload_parameters=True).graph
    assert inside is not None
    fetched = np.char.endswith(np.array(inside.names)[inside.name], ".fetch") & (inside.device == 0)
    assert inside.total_bytes[fetched].sum() == pytest.approx(2 * M / 4)
    weights = [
        make_plan(scenario(MODEL, where, **fields, offload_parameters=off)).footprints[0]["weights"]
        for off in (False, True)
    ]
    assert weights == [pytest.approx(M / N), 0]


# -- meshes of peers ---------------------------------------------------------------------------------------


def test_everybody_sends_what_the_compressor_leaves_to_all_others() -> None:
    """Strom, Interspeech 2015: n (n - 1) messages of the elements above the threshold."""
    mesh: dict[str, Any] = {"topology": "full_mesh", "update": "gradient_sum", "synchronization": "asp"}
    dense = moved(Cause.GRADIENT_COMM, **mesh)
    assert dense == pytest.approx(N * (N - 1) * M)
    sparse = moved(Cause.GRADIENT_COMM, **mesh, compression="topk", compression_ratio=0.01)
    assert sparse == pytest.approx(N * (N - 1) * M * 0.01 * 2)  # an index beside every value


def test_sites_exchange_through_their_first_workers() -> None:
    """Gaia (Hsieh et al., NSDI 2017): two sites of four workers, significant updates both ways."""
    sites: dict[str, Any] = {
        "topology": "full_mesh", "update": "gradient_sum", "synchronization": "group_hybrid", "group_size": 4,
        "compression": "topk", "compression_ratio": 0.01,
    }  # fmt: skip
    between, inside = 2 * M * 0.02, 2 * 2 * 3 * M
    assert moved(Cause.GRADIENT_COMM, **sites) == pytest.approx(between + inside)
    folded = run(**sites).step_time_s
    assert folded == pytest.approx(run(**sites, fold=False).step_time_s, rel=1e-9)


def test_a_random_graph_repeats_after_the_draws_that_are_asked_for() -> None:
    graph = Strategy(topology="graph", graph="random", synchronization="asp", graph_draws=40)
    found = exchanges(graph, 8, 0)
    assert len(found) == 40
    assert len({tuple(map(tuple, targets)) for targets in found}) > 30


def test_many_nodes_need_fewer_draws_of_a_random_graph() -> None:
    graph = Strategy(topology="graph", graph="random", synchronization="asp")
    assert [len(exchanges(graph, nodes, 0)) for nodes in (8, 128, 256, 2048)] == [16, 16, 8, 2]
