"""Protocols and variants of a collective library: limits that must hold whatever the parameters."""

from __future__ import annotations

import numpy as np
import pytest

from sim.lowering.collective_paths import collective_paths
from sim.models.library import NAMES, PARAMETERS, Path, Problem, variants
from tests.clusters import cluster, plain_host, switched_host

GUESS = {name: PARAMETERS[name].guess for name in NAMES}
IDEAL = {**GUESS, **{name: 1.0 for name in NAMES if name.endswith(("efficiency", "ratio"))}} | {
    name: 0.0 for name in NAMES if name.endswith("latency") or "ramp" in name
}
SIZES = 2.0 ** np.arange(3, 34)


def problem(paths: tuple[Path, ...], ranks: int, hosts: int, sizes: np.ndarray = SIZES) -> Problem:
    count = len(sizes)
    return Problem.of(sizes.tolist(), [paths] * count, ["nvlink3"] * count, [ranks] * count, [hosts] * count)


def test_without_latency_at_datasheet_speed_a_ring_is_its_closed_form() -> None:
    """2 (n - 1) / n S / B on NVLink; the PCIe share is fixed and not in the way."""
    paths = collective_paths(cluster(switched_host(), 1), "all_reduce")
    times = variants(problem(paths, 8, 1), IDEAL).best()
    np.testing.assert_allclose(times, 2 * 7 / 8 * SIZES / 300e9, rtol=1e-12)


@pytest.mark.parametrize("hosts", [1, 2, 16])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all", "broadcast"])
def test_time_rises_with_size_and_never_beats_the_links(op: str, hosts: int) -> None:
    paths = collective_paths(cluster(switched_host(), hosts), op)
    times = variants(problem(paths, 8 * hosts, hosts), GUESS).best()
    assert (np.diff(times) > 0).all()
    assert (times > min(path.ideal for path in paths) * SIZES).all()


def test_small_messages_take_a_low_latency_protocol_and_large_ones_simple() -> None:
    paths = collective_paths(cluster(switched_host(), 2), "all_reduce")
    chosen = variants(problem(paths, 16, 2), GUESS).chosen()
    assert chosen[0][1] == "ll"
    assert chosen[-1][1] == "simple"
    assert chosen[0][0] == "tree"  # few steps


def test_several_parameter_sets_at_once_give_what_each_gives() -> None:
    paths = collective_paths(cluster(switched_host(), 2), "all_reduce")
    mine = problem(paths, 16, 2)
    other = {name: value * 1.1 for name, value in GUESS.items()}
    both = {name: np.array([[GUESS[name]], [other[name]]]) for name in NAMES}
    together = variants(mine, both).seconds
    np.testing.assert_allclose(together[:, 0], variants(mine, GUESS).seconds, rtol=1e-14)
    np.testing.assert_allclose(together[:, 1], variants(mine, other).seconds, rtol=1e-14)


def test_rounded_corners_stay_close_to_the_minimum() -> None:
    paths = collective_paths(cluster(switched_host(), 2), "all_reduce")
    found = variants(problem(paths, 16, 2), GUESS)
    ratio = found.smooth() / found.best()
    assert ((ratio >= 1) & (ratio < 1.05)).all()


def test_reduction_in_the_switch_needs_the_buffer_once_each_way() -> None:
    """NVLS: S / B whatever the ranks, against 2 (n - 1) / n S / B of a ring."""
    ring, nvls = collective_paths(cluster(switched_host(), 1), "all_reduce", in_switch=True)
    assert nvls.algorithm == "nvls"
    assert nvls.local == pytest.approx(1 / 300e9)
    assert ring.local == pytest.approx(2 * 7 / 8 / 300e9)
    _, _, tree = collective_paths(cluster(switched_host(), 2), "all_reduce", in_switch=True)
    assert tree.local == pytest.approx(1 / 300e9)
    assert tree.network == pytest.approx(1 / 8 / 25e9)  # each NIC: an eighth of the buffer up and down


def test_one_rank_needs_nothing() -> None:
    (path,) = collective_paths(cluster(plain_host(), 1), "all_reduce")
    assert path.ideal == 0.0
