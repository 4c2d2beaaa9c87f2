"""Links that give later connections less and let simultaneous starters share (``tcp``)."""

from __future__ import annotations

import numpy as np
import pytest

from sim.engine import play
from sim.engine.tcp import HEAD_START, LATER_SHARE, NEXT_SHARE
from sim.graph.builder import GraphBuilder
from sim.graph.execution import Cause, LinkTable, TaskKind


def ends(transfers: list[tuple[float, float, tuple[int, ...]]], service: str) -> list[float]:
    """End of each transfer, given (start, bytes, links); links carry 1 byte/s."""
    builder = GraphBuilder()
    device = builder.device("rank", 0)
    tasks = [
        builder.task(
            TaskKind.TRANSFER, f"t{i}", Cause.OTHER, device=device, work=start, flow_bytes=size,
            total_bytes=size, loads=builder.load_row(np.array(links), np.ones(len(links))),
        )
        for i, (start, size, links) in enumerate(transfers)
    ]  # fmt: skip
    builder.control("end", device=device, after=tasks, boundary=True)
    names = ("a", "b", "c")
    links = LinkTable(names, np.ones(3), np.ones(3, np.int64), ("nic",) * 3)
    run = play(builder.build(links, max_iterations=1, link_service=service))
    return [float(run.end[run.task == task][0]) for task in tasks]


def test_simultaneous_starters_share() -> None:
    assert ends([(1, 2, (0, 1)), (1, 2, (0, 2))], "tcp") == pytest.approx([5, 5])
    assert ends([(1, 2, (0, 1)), (1, 2, (0, 2))], "fifo") == pytest.approx([3, 5])


def test_a_later_connection_gets_less() -> None:
    q = LATER_SHARE
    # Two bytes each; when the second starts, one byte of the first is left, at 1 / (1 + q) bytes/s.
    first = 1 + (1 + q)
    assert ends([(0, 2, (0, 1)), (1, 2, (0, 2))], "tcp") == pytest.approx([first, 4])
    # What starts later still has q of that; those that started together have the same.
    found = ends([(1, 2, (0, 1)), (1, 2, (0, 2)), (2, 1, (0,))], "tcp")
    assert found[2] == pytest.approx(2 + (2 + q) / q)
    assert found[0] == found[1]
    assert max(found) == pytest.approx(6)  # five bytes from 1 s on


def test_shares_follow_the_order_of_those_that_are_left() -> None:
    """When the first of three has ended, the third gets q of the second, not q of q."""
    q = LATER_SHARE
    found = ends([(0, 1, (0,)), (0.5, 10, (0, 1)), (0.75, 10, (0, 2))], "tcp")
    left = 21 - found[0]  # bytes that the others still have to send
    sent = [(found[0] - 0.75) * q ** (i + 1) / (1 + q + q * q) for i in (0, 1)]
    sent[0] += 0.25 * q / (1 + q)
    assert left == pytest.approx(20 - sum(sent))
    assert found[1] == pytest.approx(found[0] + (10 - sent[0]) * (1 + q))


def test_one_route_is_one_line() -> None:
    assert ends([(1, 2, (0, 1)), (1, 2, (0, 1))], "tcp") == pytest.approx([3, 5])


def test_what_one_leaves_goes_to_those_behind() -> None:
    # The first two share link a until the short one has ended; the third has link b alone.
    assert ends([(0, 1, (0,)), (0, 3, (0, 2)), (1, 2, (1,))], "tcp") == pytest.approx([2, 4, 3])


def test_shared_places_are_work_conserving() -> None:
    # The third gets the half of link b that the first, held up on link a, leaves.
    found = ends([(0, 1, (0, 1)), (0, 2, (0, 2)), (0.5, 1, (1,))], "tcp")
    assert found[2] == pytest.approx(2.25)
    assert max(found) == pytest.approx(3)


def test_the_share_falls_with_the_head_start() -> None:
    """Two transfers of 10 bytes; while both last, the later one gets its share."""

    def share(apart: float) -> float:
        first, second = ends([(0, 10, (0, 1)), (apart, 10, (0, 2))], "tcp")
        assert second == pytest.approx(20)
        rate = (10 - apart) / (first - apart)  # of the first one beside the second
        return (1 - rate) / rate

    assert share(1e-6) == pytest.approx(NEXT_SHARE, rel=1e-3)
    middle = LATER_SHARE + (NEXT_SHARE - LATER_SHARE) / np.e
    assert share(HEAD_START) == pytest.approx(middle, rel=1e-6)
    assert share(1.0) == pytest.approx(LATER_SHARE, rel=1e-6)
