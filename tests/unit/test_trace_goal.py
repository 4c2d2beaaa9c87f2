"""GOAL schedules as graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.errors import InputError
from sim.trace.export import export
from sim.trace.operations import Operations
from sim.trace.read import read
from sim.trace.replay import replay
from sim.trace.to_graph import operations_of
from tests.trace_samples import two_stream_rank, write

#: Rank 0 computes 1 us, sends 1000 bytes, computes 2 us meanwhile; rank 1 computes 0.5 us behind the message.
PAIR = """num_ranks 2
rank 0 {
l2 requires l1
l1: calc 1000
l2: send 1000b to 1 tag 7
l3: calc 2000
l3 requires l1
}
rank 1 {
l1: recv 1000b from 0 tag 7
l2: calc 500
l2 requires l1
}
"""
#: Both send before they receive: a circle only if a send waited for its receive.
EXCHANGE = "num_ranks 2\n" + "".join(
    f"rank {me} {{\nl1: send 100b to {1 - me} tag 0\nl2: recv 100b from {1 - me} tag 0\n"
    "l2 requires l1\nl3: calc 10\nl3 requires l2\n}\n"
    for me in (0, 1)
)


def schedule(folder: Path, text: str) -> Operations:
    return operations_of(read([write(folder, text, "job.goal")], host=True))


def step(ops: Operations, *edits: str) -> float:
    result, _ = replay(ops, list(edits))
    return result.replayed_step_s if not edits else result.what_if["step_s"]  # type: ignore[index]


def test_computation_and_messages(tmp_path: Path) -> None:
    ops = schedule(tmp_path, PAIR)
    assert step(ops) == pytest.approx(3e-6)  # rank 0: 1 + 2
    assert step(ops, "latency=5us") == pytest.approx((1 + 5 + 0.5) * 1e-6)
    assert step(ops, "latency=5us", "bandwidth=1GB/s") == pytest.approx((1 + 5 + 1 + 0.5) * 1e-6)
    assert step(ops, "bandwidth=1GB/s", "calc=2") == pytest.approx(6e-6)
    assert ops.issues.counts["message_without_time"] == 1


def test_a_send_does_not_wait_for_its_receive(tmp_path: Path) -> None:
    assert step(schedule(tmp_path, EXCHANGE), "latency=1us") == pytest.approx(1.01e-6)


def test_messages_of_a_port_follow_each_other_and_processors_do_not(tmp_path: Path) -> None:
    text = "num_ranks 2\nrank 0 {\nl1: send 1000b to 1 tag 1\nl2: send 1000b to 1 tag 2\n"
    text += "l3: calc 700 cpu 0\nl4: calc 700 cpu 1\n}\nrank 1 {\n"
    text += "l1: recv 1000b from 0 tag 2\nl2: recv 1000b from 0 tag 1\n}\n"
    ops = schedule(tmp_path, text)
    assert step(ops) == pytest.approx(0.7e-6)
    assert step(ops, "bandwidth=1GB/s") == pytest.approx(2e-6)


def test_what_may_start_with_another(tmp_path: Path) -> None:
    text = "num_ranks 1\nrank 0 {\nl1: calc 100\nl2: calc 1000\nl3: calc 1000 cpu 1\n"
    ops = schedule(tmp_path, text + "l2 requires l1\nl3 irequires l2\n}\n")
    assert step(ops) == pytest.approx(1.1e-6)


def test_missing_partners_are_counted_and_circles_refused(tmp_path: Path) -> None:
    text = "num_ranks 2\nrank 0 {\nl1: send 8b to 1 tag 1\n}\nrank 1 {\nl1: recv 8b from 0 tag 2\n}\n"
    assert schedule(tmp_path, text).issues.counts["peer_missing"] == 2
    with pytest.raises(InputError, match="circle"):
        schedule(
            tmp_path, "num_ranks 1\nrank 0 {\nl1: calc 1\nl2: calc 1\nl1 requires l2\nl2 requires l1\n}\n"
        )


def test_messages_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    text = (
        "num_ranks 2\nrank 0 {\nl1: send 10b to 1\nl2: send 8b to 7\n}\n"
        "rank 1 {\nl1: recv -5b from 0\nl2: recv 20b from 0\n}\n"
    )
    counts = schedule(tmp_path, text).issues.counts
    assert (counts["message_size_differs"], counts["peer_missing"], counts["bad_row"]) == (1, 1, 1)


def test_a_job_without_any_time_gets_the_edited_step(tmp_path: Path) -> None:
    text = "num_ranks 2\nrank 0 {\nl1: send 10b to 1 tag 0\n}\nrank 1 {\n}\n"
    result, _ = replay(schedule(tmp_path, text), ["latency=5us", "bandwidth=1GB/s"])
    assert result.what_if is not None
    assert result.what_if["step_s"] == pytest.approx(5.01e-6)
    assert result.what_if["speedup"] is None


@pytest.mark.parametrize("edit", ["latency=5", "latency=0s", "bandwidth=3us", "bandwidth=", "latency=-1us"])
def test_what_is_no_quantity_is_refused(tmp_path: Path, edit: str) -> None:
    with pytest.raises(InputError, match="--what-if") as error:
        step(schedule(tmp_path, PAIR), edit)
    assert "\n" not in str(error.value)


def test_prices_need_messages(tmp_path: Path) -> None:
    ops = operations_of(read([write(tmp_path, two_stream_rank(0))], host=True))
    with pytest.raises(InputError, match="messages"):
        step(ops, "latency=5us")


def test_an_export_is_read_back(tmp_path: Path) -> None:
    """Computation stays as long as it was; the all-reduce of 4096 bytes is two steps of 2048 bytes."""
    paths = [write(tmp_path, two_stream_rank(r), f"rank{r}.json") for r in (0, 1)]
    trace = read(paths, host=True)
    before = operations_of(trace)
    (path,) = export(trace, tmp_path / "job.goal")
    after = operations_of(read([path], host=True))
    sends = [after.size[o] for o in range(len(after)) if after.type[o] == "send"]
    assert sends == [2048.0] * 4
    without = step(before, "communication=1e-9")
    assert step(after) == pytest.approx(without, abs=2e-6)
    # 4096 bytes in 140 us
    exact = step(after, f"bandwidth={4096 / 140e-6:.6f}B/s")
    assert exact == pytest.approx(step(before), rel=0.01)
