"""gloo's messages: how many, how large, and the time of a whole collective worked out by hand."""

from __future__ import annotations

import pytest

from sim.engine import play
from sim.errors import InputError
from sim.lowering import lower_collective
from sim.models import gloo
from tests.clusters import cluster, plain_host
from tests.scenarios import ideal

MIB = 2.0**20
RATE, LATENCY = 125e6, 100e-6  # 1 Gbit/s, one cable; two cables from host to host
ONE_WAY = 2 * LATENCY


def seconds(op: str, ranks: int, size: float, service: str = "tcp") -> float:
    """Time of one collective on hosts of one switch."""
    hosts = cluster(plain_host(RATE), ranks, latency=LATENCY, link_service=service)
    hosts = hosts.model_copy(update={"library": "gloo"})
    # Without link efficiency or library latency; adding up takes no time that could be seen.
    fast = hosts.device_types[0].model_copy(update={"memory_bandwidth": 1e30})
    hosts = hosts.model_copy(update={"device_types": (fast,)})
    return play(lower_collective(hosts, op, "auto", size, calibration=ideal())).step_time


def test_ring_moves_the_bytes_that_were_counted() -> None:
    for op, sent in (("all_reduce", 2 * 3 / 4), ("reduce_scatter", 2 * 3 / 4), ("all_gather", 3 / 4)):
        moved = sum(message.size_bytes for message in gloo.messages(op, 4, 8 * MIB))
        assert moved == pytest.approx(sent * 8 * MIB)


def test_segments_are_at_most_one_mebibyte_and_at_least_two_per_step() -> None:
    small, large = gloo.messages("all_reduce", 4, 1024.0), gloo.messages("all_reduce", 4, 64 * MIB)
    assert (len(small), small[0].size_bytes) == (2 * 2 * 3, 1024 / 8)
    assert (len(large), large[0].size_bytes) == (2 * 16 * 3, MIB)
    assert max(m.size_bytes for m in gloo.messages("all_reduce", 3, 10 * MIB)) <= MIB


@pytest.mark.parametrize(("ranks", "steps"), [(2, 4), (4, 12), (8, 28)])
def test_small_all_reduce_costs_two_latencies_per_step(ranks: int, steps: int) -> None:
    assert seconds("all_reduce", ranks, 8.0) == pytest.approx(steps * ONE_WAY, rel=1e-2)


def test_large_ring_keeps_the_link_busy_but_at_start_and_half_time() -> None:
    size = 64 * MIB
    expected = 2 * 3 / 4 * size / RATE + 2 * 2 * ONE_WAY
    assert seconds("all_reduce", 4, size) == pytest.approx(expected, rel=1e-9)


def test_between_two_ranks_notes_wait_behind_the_data() -> None:
    size = 64 * MIB
    pairs = 32  # of segments of 1 MiB, each pair behind two latencies
    expected = size / RATE + pairs * 2 * ONE_WAY
    assert seconds("all_reduce", 2, size) == pytest.approx(expected, rel=2e-4)


def test_one_line_for_all_data_makes_rings_wait_for_notes() -> None:
    assert seconds("all_reduce", 4, 4 * MIB, "fifo") > 1.01 * seconds("all_reduce", 4, 4 * MIB)


def test_in_one_line_a_ring_s_segments_are_held_up_by_the_other_neighbour() -> None:
    def held(ranks: int, segment: float) -> set[float]:
        sent = gloo.messages("all_reduce", ranks, 2 * ranks * segment, queued=True)
        return {message.behind_bytes for message in sent if message.size_bytes > gloo.NOTE_BYTES}

    assert held(4, 128 * 1024) == held(8, 128 * 1024) == {128 * 1024}
    assert held(4, MIB) == {gloo.HELD * MIB / 4}  # the line holds half a MiB
    assert held(2, MIB) == {0}  # notes and data go the same way
    # A pair of segments takes three times the wire time of one, and the latencies of one message.
    pairs, segment = 6, 256 * 1024
    expected = pairs * (3 * segment / RATE + 2 * ONE_WAY)
    assert seconds("all_reduce", 4, 2 * MIB, "fifo") == pytest.approx(expected, rel=0.02)


def test_latency_counts_of_other_operations() -> None:
    for op, latencies in (
        ("all_gather", 6),
        ("broadcast", 3),
        ("reduce", 8),
        ("all_to_all", 2),
        ("barrier", 4),
    ):
        assert seconds(op, 4, 8.0) == pytest.approx(latencies * ONE_WAY, rel=2e-2), op


def test_broadcast_from_one_port_shares_it_among_children() -> None:
    # The root feeds ranks 1 and 2 together, then rank 1 feeds rank 3.
    expected = 3 * MIB / RATE + 3 * ONE_WAY
    assert seconds("broadcast", 4, MIB) == pytest.approx(expected, rel=1e-3)


def test_unknown_operation_is_refused() -> None:
    with pytest.raises(InputError, match="gloo"):
        gloo.message_plan("scan", 4)


def test_two_ranks_that_come_apart_gather_half_as_long_again() -> None:
    apart = gloo.messages("all_gather", 2, 4e6, apart=True)
    assert sum(m.size_bytes for m in apart) == 2e6
    assert sum(m.behind_bytes for m in apart) == 1e6
    assert gloo.messages("all_gather", 4, 4e6, apart=True) == gloo.messages("all_gather", 4, 4e6)
    assert gloo.messages("all_reduce", 2, 4e6, apart=True) == gloo.messages("all_reduce", 2, 4e6)
