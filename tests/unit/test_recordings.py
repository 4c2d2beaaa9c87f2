"""Recorded rows: found, predicted (by hand where that is possible), scored and written back in order."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.catalog import default_catalog
from sim.cli.main import main
from sim.errors import InputError
from sim.validate.recordings.board import board, score
from sim.validate.recordings.left_out import chosen_widening, left_out_coverage, nested_coverage
from sim.validate.recordings.machines import WORKER
from sim.validate.recordings.predict import Predictor
from sim.validate.recordings.rows import Row, find_files, read_rows
from sim.validate.recordings.trace import LayerTrace, Traces

GOODPUT = 125e6 * 0.9415  # bytes/s of 1 Gbit/s
MESSAGE = 2 * (2 * 100e-6 + 118e-6)  # note and data, two cables and the library each
TRACE = {
    "model": "two",
    "opt_us": 1000.0,
    "bwd_tail_us": 100.0,
    "backward_order": ["b", "a"],
    "units": [
        {"name": "a", "fwd_us": 10_000.0, "bwd_us": 20_000.0, "params": [["weight", [1000, 500]]]},
        {
            "name": "b", "fwd_us": 5_000.0, "bwd_us": 8_000.0,
            "params": [["weight", [500, 200]], ["bias", [200]]],
        },
    ],
}  # fmt: skip
COLLECTIVE = {"tag": "fluid", "rate_mbit": "1000", "delay_us": "100", "world": "2", "median_us": "1000"}
TRAINING = {
    "tag": "fluid", "mode": "real", "algo": "ddp", "model": "two", "world": "2", "rate_mbit": "1000",
    "delay_us": "100", "bucket_mb": "25", "hook": "none", "k": "", "scale": "1", "slow": "",
    "median_step_us": "50000", "mean_step_us": "50000",
}  # fmt: skip
SERVER = {
    "tag": "fluid", "algo": "sync", "s": "", "model": "two", "workers": "1", "rate_mbit": "1000",
    "delay_us": "100", "slow": "", "params": "1000000", "compute_us": "50000", "updates_per_s": "8",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recording with one trace."""
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "two.json").write_text(json.dumps(TRACE))
    return tmp_path


@pytest.fixture
def predictor(folder: Path) -> Predictor:
    calibration = default_catalog().calibration(("default", "gloo"))
    return Predictor(calibration, Traces([folder / "traces"]))


def row(kind: str, base: dict[str, str], **cells: Any) -> Row:
    return Row(kind, Path("made.csv"), 2, base | {key: str(value) for key, value in cells.items()})


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_trace_is_read_in_replay_order(folder: Path) -> None:
    trace = LayerTrace.read(folder / "traces" / "two.json")
    assert [unit.name for unit in trace.units] == ["a", "b"]
    assert trace.compute_s == pytest.approx(0.0431)
    assert trace.num_parameters == 600_200
    assert trace.memory_bandwidth == pytest.approx(24 * 600_200 / 1e-3)


@pytest.mark.parametrize(
    "text", ["{}", "[1]", "no json", '{"units": [], "backward_order": ["x"], "opt_us": 1}']
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError, match="trace of layer times"):
        LayerTrace.read(path)


def test_a_message_is_a_note_and_the_data(predictor: Predictor) -> None:
    size = 2**20
    found = predictor.value(row("collective", COLLECTIVE, op="send", bytes=size))
    assert found == pytest.approx(MESSAGE + size / GOODPUT, rel=1e-6)


def test_one_rank_only_computes(predictor: Predictor) -> None:
    assert predictor.value(row("training", TRAINING, world=1)) == pytest.approx(0.0441)
    emulated = predictor.value(row("training", TRAINING, world=1, mode="replay"))
    assert emulated == pytest.approx(0.0441 + 4 * 1e-4)  # two units, two passes


def test_communication_after_the_backward_adds_up(predictor: Predictor) -> None:
    elements = 600_200
    bandwidth = predictor.calibration.value("device", WORKER, "memory_bandwidth")
    copies = 2 * 2 * 4 * elements / bandwidth
    reduced = 3 * 4 * elements / 2 / bandwidth  # what a rank adds up, some of it hidden
    ring = 4 * elements / GOODPUT + 2 * 2 * MESSAGE
    found = predictor.value(row("training", TRAINING, algo="blocking"))
    assert found == pytest.approx(0.0441 + copies + ring, abs=2 * reduced + 2 * MESSAGE)
    overlapped = predictor.value(row("training", TRAINING, bucket_mb=0.25))
    assert 0.0441 + copies < overlapped < found


def test_a_slow_rank_and_a_slow_link_slow_everybody(predictor: Predictor) -> None:
    plain = predictor.value(row("training", TRAINING, world=4))
    assert predictor.value(row("training", TRAINING, world=4, slow="3:2")) > plain + 0.03
    assert predictor.value(row("training", TRAINING, world=4, tag="fluid-hetero-link3-200")) > plain + 0.05


def test_what_computes_shares_its_core_with_what_moves_bytes(predictor: Predictor) -> None:
    real = row("training", TRAINING, bucket_mb=0.25)
    speed = predictor.sharing(real).calibration.value("library", "gloo", "compute_speed_under_communication")
    assert speed == pytest.approx(1 - 4e-9 * GOODPUT, rel=1e-3)
    emulated = row("training", TRAINING, bucket_mb=0.25, mode="replay")
    assert predictor.sharing(emulated) is predictor
    undisturbed = replace(predictor).step(
        predictor.model(real), predictor.cluster(real, 2), bucket_size=2**18, first_bucket_size=2**18
    )
    assert undisturbed * 1.02 < predictor.value(real) < undisturbed + 0.05


def test_starved_threads_of_gloo_hardly_overlap(predictor: Predictor) -> None:
    small, whole = (row("training", TRAINING, bucket_mb=size, tag="fluid-sameprio") for size in (0.25, 25))
    assert predictor.value(small) == pytest.approx(predictor.value(whole), rel=0.1)
    assert predictor.value(small) > predictor.value(row("training", TRAINING, bucket_mb=0.25))


def test_a_slow_link_of_a_server_s_worker_and_of_the_server(predictor: Predictor) -> None:
    rates = {
        tag: predictor.value(row("server", SERVER, workers=2, tag=tag))
        for tag in ("fluid", "fluid-hetero-link2-200", "fluid-hetero-link0-200", "fluid-hetero-link3-200")
    }
    # A step: compute, push and pull. Host 2 is the second worker, host 0 the server for both, host 3 nobody.
    exchange = 2 * 4e6 / GOODPUT
    assert rates["fluid-hetero-link3-200"] == rates["fluid"]
    assert 2 / rates["fluid-hetero-link2-200"] == pytest.approx(0.05 + 5 * exchange, rel=0.05)
    assert 2 / rates["fluid-hetero-link0-200"] == pytest.approx(0.05 + 2 * 5 * exchange, rel=0.05)


def test_within_a_bound_fast_workers_get_ahead_while_they_are_observed(predictor: Predictor) -> None:
    """A slow worker takes 2.1 s a step: ten of them see the lead that the other gets, forty hardly do."""
    cells = {"workers": 2, "algo": "ssp", "s": 2, "slow": "2:40"}
    short, long = (predictor.value(row("server", SERVER, **cells, seconds=span)) for span in (20, 80))
    steady = 2 / 2.08
    assert long == pytest.approx(steady, rel=0.02)
    assert short > 1.04 * steady


def test_stages_that_exchange_at_one_time_send_one_after_the_other(predictor: Predictor) -> None:
    def step(micro_batches: int) -> float:
        cells = {"sched": "1f1b", "stages": "2", "microbatches": str(micro_batches), "act_bytes": "1000000"}
        times = {"stage_fwd_us": "20000 10000", "stage_bwd_us": "20000 10000", "median_step_us": "1"}
        return predictor.value(row("pipeline", COLLECTIVE, **cells, **times))

    # The first stage is the slower one: one more micro-batch is its work and an exchange both ways.
    assert step(9) - step(8) == pytest.approx(0.04 + MESSAGE + 2 * 1e6 / GOODPUT, rel=1e-3)


def test_a_receiver_that_waits_has_sent_its_note(predictor: Predictor) -> None:
    def step(delay: float) -> float:
        cells = {"sched": "gpipe", "stages": "2", "microbatches": "1", "act_bytes": "1000", "delay_us": delay}
        times = {"stage_fwd_us": "20000 10000", "stage_bwd_us": "10000 20000", "median_step_us": "1"}
        barrier = predictor.value(row("collective", COLLECTIVE, op="barrier", bytes=0, delay_us=delay))
        return predictor.value(row("pipeline", COLLECTIVE, **cells, **times)) - barrier

    # The second stage waits from the start, the first one while the second one computes: only the activation
    # and the gradient themselves take two cables each.
    assert step(1100.0) - step(100.0) == pytest.approx(2 * 2 * 1e-3, rel=1e-6)


def test_an_operation_starts_once(predictor: Predictor) -> None:
    def seconds(world: int) -> float:
        return predictor.value(row("collective", COLLECTIVE, op="all_reduce", bytes=64, world=world))

    network = predictor.calibration.value("library", "gloo", "step_latency_network")
    assert seconds(5) - seconds(3) == pytest.approx(4 * 2 * (2 * 100e-6 + network), rel=1e-3)
    start = predictor.calibration.value("library", "gloo", "start_latency")
    assert seconds(3) == pytest.approx(start + 4 * 2 * (2 * 100e-6 + network), rel=1e-3)


def test_workers_answered_first_compute_while_others_receive(predictor: Predictor) -> None:
    exchange = 3 * 4e6 / GOODPUT
    seconds = 3 / predictor.value(row("server", SERVER, workers=3))
    # In lockstep all would receive, compute and send one after the other.
    assert 2 * exchange < seconds < 2 * exchange + 0.05
    # The server takes no gradients before all have their answers.
    quick = 3 / predictor.value(row("server", SERVER, workers=3, compute_us=1000))
    assert quick > 2 * exchange


def test_halves_are_added_one_by_one(predictor: Predictor) -> None:
    def seconds(hook: str) -> float:
        return predictor.value(row("training", TRAINING, hook=hook, rate_mbit=1e6, delay_us=0))

    # On a fast network each of two ranks adds up half of the elements in two segments at a time; bf16 is
    # added up as fast as memory streams it, three times two bytes at 18 GB/s.
    longer = 600_200 / 4 * (2.1e-9 - 6 / 18e9)
    assert seconds("fp16") - seconds("bf16") == pytest.approx(longer, rel=0.05)


def test_local_sgd_averages_every_k_steps(predictor: Predictor) -> None:
    every, rarely = (predictor.value(row("training", TRAINING, algo="local", k=k)) for k in (1, 4))
    assert rarely - 0.0441 == pytest.approx((every - 0.0441) / 4, rel=1e-6)


def test_one_worker_of_a_server_alternates(predictor: Predictor) -> None:
    seconds = 0.05 + 2 * (MESSAGE + 4e6 / GOODPUT)
    rate = predictor.value(row("server", SERVER))
    assert 1 / rate == pytest.approx(seconds, rel=0.02)  # and the server's sum and update


def test_asynchronous_workers_take_turns_on_the_links(predictor: Predictor) -> None:
    sync = predictor.value(row("server", SERVER, workers=2))
    free = predictor.value(row("server", SERVER, workers=2, algo="async"))
    alone = predictor.value(row("server", SERVER, workers=1, algo="async"))
    assert sync < free <= 2 * alone * 1.001
    assert free == pytest.approx(2 * alone, rel=0.05)


def test_what_cannot_be_predicted_says_why(predictor: Predictor) -> None:
    for base, cells, reason in (
        (TRAINING, {"model": "other"}, "trace of other"),
        (TRAINING, {"hook": "magic"}, "hook"),
        (TRAINING, {"world": "many"}, "be a number"),
    ):
        prediction = predictor.predict(row("training", base, **cells))
        assert prediction.status == "skipped"
        assert reason in prediction.message


def test_board_counts_and_baselines(predictor: Predictor) -> None:
    rows = [row("collective", COLLECTIVE, op="all_reduce", bytes=size) for size in (1024, 4 * 2**20)]
    lines = board(score(rows, predictor))
    whole = next(line for line in lines if line.subset == "all")
    assert (whole.rows, whole.scored) == (2, 2)
    assert {line.subset for line in lines} == {"all", "all_reduce small (fluid)", "all_reduce large (fluid)"}
    assert whole.bandwidth_only is not None
    assert whole.one_latency is not None


def test_predictions_keep_rows_and_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(folder / "ddp.csv", [TRAINING, TRAINING | {"hook": "magic"}, TRAINING | {"world": "4"}])
    out = folder / "pred.csv"
    assert main(["validate", "recordings", str(path), "--out", str(out), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["rows"] == 3
    assert [entry["row"] for entry in answer["skipped"]] == ["ddp.csv:3"]
    with open(out, newline="") as file:
        found = list(csv.DictReader(file))
    assert [cells["status"] for cells in found] == ["ok", "skipped", "ok"]
    assert [cells["world"] for cells in found] == ["2", "2", "4"]
    first = found[0]
    assert float(first["low_us"]) <= float(first["predicted_us"]) <= float(first["high_us"])


def test_servers_are_predicted_in_updates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = write(folder / "ps.csv", [SERVER]), folder / "pred.csv"
    assert main(["validate", "recordings", str(path), "--out", str(out)]) == 0
    assert "server" in capsys.readouterr().out
    with open(out, newline="") as file:
        assert float(next(csv.DictReader(file))["predicted_updates_per_s"]) > 0


def test_calibration_finds_the_latency_of_the_ping(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    on_wire = 1024 / (125e6 * 1448 / 1538)
    ping = COLLECTIVE | {
        "op": "sendrecv_ring", "bytes": "1024", "reps": "20", "cv": "0.03",
        "median_us": f"{(2 * (200e-6 + 90e-6) + on_wire) * 1e6:.4f}",
    }  # fmt: skip
    write(folder / "coll.csv", [ping])
    out = folder / "mine.yaml"
    assert main(["calibrate", "recordings", str(folder), "-o", str(out), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = {(entry["key"], entry["name"]): entry["value"] for entry in answer["parameters"]}
    # 15 % of the 180 us of both ways are paid once per operation.
    assert found["library/gloo", "step_latency_network"] == pytest.approx(76.5e-6, rel=1e-3)
    assert found["library/gloo", "start_latency"] == pytest.approx(27e-6, rel=1e-3)
    assert found["device/recorded-rank", "memory_bandwidth"] == pytest.approx(24 * 600_200 / 1e-3, rel=1e-3)
    fitted = default_catalog().calibration(("default", "gloo", str(out)))
    assert fitted.value("library", "gloo", "step_latency_network") == pytest.approx(76.5e-6, rel=1e-3)


def test_files_are_told_apart_by_their_columns(folder: Path) -> None:
    path = write(folder / "any.csv", [SERVER])
    write(folder / "other.csv", [{"a": "1"}])
    assert find_files([str(folder)]) == [path]
    assert read_rows(path)[1][0].kind == "server"
    with pytest.raises(InputError, match="columns of one kind"):
        find_files([str(folder / "other.csv")])
    with pytest.raises(InputError, match="exist"):
        find_files([str(folder / "none.csv")])


def test_recording_refuses_what_it_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "-o", "nowhere", "--ranks", "2", "--hosts", "3"]) == 2
    assert "equal --ranks" in capsys.readouterr().err
    assert main(["record", "-o", "nowhere", "--strategy", "magic"]) == 2
    assert "--strategy" in capsys.readouterr().err
    assert main(["record", "-o", "nowhere", "--real-time"]) == 2
    assert "--real-time: must come with --hosts" in capsys.readouterr().err


@pytest.mark.parametrize(
    "cells",
    [
        {"op": "all_reduce", "world": "2.5", "bytes": "1"},
        {"op": "all_reduce", "world": "1e6", "bytes": "1"},
        {"op": "all_reduce", "bytes": "1e99"},
        {"op": "all_reduce", "bytes": "-1"},
        {"op": "all_reduce", "bytes": "1", "rate_mbit": "0"},
        {"op": "foo", "bytes": "1"},
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(predictor: Predictor, cells: dict[str, str]) -> None:
    found = predictor.predict(row("collective", COLLECTIVE, **cells))
    assert found.status == "skipped"
    assert "must" in found.message
    assert found.value is None


def test_an_interval_widens_with_the_repeats(predictor: Predictor) -> None:
    calm = predictor.predict(row("training", TRAINING, cv="0", steps="10"))
    noisy = predictor.predict(row("training", TRAINING, cv="0.2", steps="10"))
    assert calm.low is not None
    assert calm.high is not None
    assert noisy.high is not None
    assert calm.value is not None
    assert calm.low < calm.value < calm.high < noisy.high


def test_a_group_is_held_by_the_spread_of_the_others() -> None:
    """Errors of two groups from 0 to 0.1 and of a third up to 0.2: its upper half needs twice the spread."""
    ratios = [
        (row("collective", COLLECTIVE, op="all_reduce", bytes=2**20, rate_mbit=rate), scale * part / 10)
        for rate, scale in ((100, 0.1), (200, 0.1), (400, 0.2))
        for part in range(11)
    ]
    # Of a narrow group the others hold all; of the wide one the parts to 0.09 of 0.1, hence 5 of 11.
    assert left_out_coverage(ratios, 1.0) == pytest.approx((11 + 11 + 5) / 33)
    assert left_out_coverage(ratios, 2.0) == pytest.approx((11 + 11 + 10) / 33)
    assert left_out_coverage(ratios, 3.0) == 1.0


def test_widening_is_chosen_on_what_is_left_out() -> None:
    ratios = [
        (row("collective", COLLECTIVE, op="all_reduce", bytes=2**20, rate_mbit=rate), scale * part / 10)
        for rate, scale in ((100, 0.1), (200, 0.1), (400, 0.2))
        for part in range(11)
    ]
    factor = chosen_widening(ratios, 0.9)
    assert left_out_coverage(ratios, factor) >= 0.9 > left_out_coverage(ratios, factor - 0.05)
    # Of the wide group neither spread nor factor knows: less of it is inside.
    assert nested_coverage(ratios, 0.9) < left_out_coverage(ratios, factor)


@pytest.mark.parametrize(
    "text", ["tag,op,world,rate_mbit,bytes\n", "op,world,rate_mbit,bytes\nmagic,2,1,1\n"]
)
def test_a_file_without_any_usable_row_is_refused(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "coll.csv").write_text(text)
    assert main(["validate", "recordings", str(tmp_path)]) == 2
    assert "row that can be predicted" in capsys.readouterr().err
    assert main(["validate", "recordings", str(tmp_path), "--traces", str(tmp_path / "none")]) == 2
    assert "--traces: must be a folder" in capsys.readouterr().err
