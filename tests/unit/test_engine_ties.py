"""Links that serve in order of start but let simultaneous starters share (``tcp``)."""

from __future__ import annotations

import numpy as np
import pytest

from sim.engine import play
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


def test_a_later_one_waits_for_both() -> None:
    assert ends([(1, 2, (0, 1)), (1, 2, (0, 2)), (2, 1, (0,))], "tcp") == pytest.approx([5, 5, 6])


def test_one_route_is_one_line() -> None:
    assert ends([(1, 2, (0, 1)), (1, 2, (0, 1))], "tcp") == pytest.approx([3, 5])


def test_what_one_leaves_goes_to_those_behind() -> None:
    # The first two share link a until the short one has ended; the third has link b alone.
    assert ends([(0, 1, (0,)), (0, 3, (0, 2)), (1, 2, (1,))], "tcp") == pytest.approx([2, 4, 3])


def test_shared_places_are_work_conserving() -> None:
    # The third gets the half of link b that the first leaves, then all of it.
    found = ends([(0, 1, (0, 1)), (0, 2, (0, 2)), (0.5, 1, (1,))], "tcp")
    assert found == pytest.approx([2, 3, 2.25])
