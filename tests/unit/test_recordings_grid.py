"""Rows that nobody recorded, of other sizes, rates and bounds: finite, and monotone where they must be."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

from sim.catalog import default_catalog
from sim.validate.recordings.predict import Predictor
from sim.validate.recordings.rows import Row
from sim.validate.recordings.trace import Traces
from tests.unit.test_recordings import COLLECTIVE, SERVER, TRACE, TRAINING, row

RATES = (100, 1000, 25_000)  # Mbit/s
WORLDS = (2, 3, 5, 8, 16)
SLACK = 1e-3  # a step is the mean of a run that has settled to half a percent at most


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    folder = tmp_path_factory.mktemp("recording")
    (folder / "two.json").write_text(json.dumps(TRACE))
    return Predictor(default_catalog().calibration(("default", "gloo")), Traces([folder]))


def values(predictor: Predictor, rows: list[Row]) -> list[float]:
    found = [predictor.value(one) for one in rows]
    assert all(math.isfinite(value) and value > 0 for value in found)
    return found


def grows(found: list[float]) -> bool:
    return all(later >= before * (1 - SLACK) for before, later in itertools.pairwise(found))


def collective(**cells: Any) -> Row:
    return row("collective", COLLECTIVE, **{"op": "all_reduce", "bytes": 1 << 20, "world": 4} | cells)


def training(**cells: Any) -> Row:
    return row("training", TRAINING, **{"mode": "replay", "world": 4} | cells)


def server(**cells: Any) -> Row:
    return row("server", SERVER, **{"workers": 3} | cells)


def pipeline(stages: int, micro_batches: int, **cells: Any) -> Row:
    base = {"tag": "fluid", "rate_mbit": "1000", "delay_us": "100", "act_bytes": "1048576", "sched": "1f1b"}
    times = {f"stage_{way}_us": " ".join([str(us)] * stages) for way, us in (("fwd", 4000), ("bwd", 8000))}
    return row("pipeline", base, **{**times, "stages": stages, "microbatches": micro_batches} | cells)


@pytest.mark.parametrize("tag", ["fluid", "fifo"])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "broadcast", "all_to_all", "barrier"])
def test_collectives(predictor: Predictor, op: str, tag: str) -> None:
    sizes = [1 << 10, 1 << 18, 1 << 23]
    assert grows(values(predictor, [collective(op=op, tag=tag, bytes=size) for size in sizes]))
    assert grows(values(predictor, [collective(op=op, tag=tag, world=world) for world in WORLDS]))
    assert grows(values(predictor, [collective(op=op, tag=tag, delay_us=us) for us in (10, 100, 1000)]))
    assert grows(values(predictor, [collective(op=op, tag=tag, rate_mbit=r) for r in reversed(RATES)]))


def test_training_steps(predictor: Predictor) -> None:
    assert grows(values(predictor, [training(world=world) for world in (1, *WORLDS)]))
    assert grows(values(predictor, [training(rate_mbit=rate) for rate in reversed(RATES)]))
    buckets = values(predictor, [training(bucket_mb=size) for size in (0, 0.25, 1, 25, 100)])
    alone = predictor.value(training(world=1))
    assert min(buckets) >= alone
    blocking = predictor.value(training(algo="blocking"))
    assert max(buckets) <= blocking * 1.2  # more messages cost more latency, overlap pays for some
    assert grows(values(predictor, [training(hook=hook, rate_mbit=100) for hook in ("fp16", "none")]))
    slow = values(predictor, [training(slow=text) for text in ("", "1:1.5", "1:3")])
    assert grows(slow)
    averaged = [training(algo="local", k=k, rate_mbit=100) for k in (64, 8, 2, 1)]
    assert grows(values(predictor, averaged))


@pytest.mark.parametrize("rate", [RATES[0], RATES[-1]])
def test_parameter_servers(predictor: Predictor, rate: int) -> None:
    """More workers never lower the sum of updates; waiting for fewer of them never does, either."""
    for rule in ("sync", "async"):
        assert grows(values(predictor, [server(algo=rule, rate_mbit=rate, workers=w) for w in (1, 2, 5, 16)]))
    bounds = [server(algo="ssp", s=s, rate_mbit=rate, slow="1:2") for s in (0, 1, 4, 1000)]
    ends = [server(algo=rule, rate_mbit=rate, slow="1:2") for rule in ("sync", "async")]
    found = values(predictor, [ends[0], *bounds, ends[1]])
    assert all(later >= before * (1 - 0.02) for before, later in itertools.pairwise(found))


def test_pipelines_and_sharding(predictor: Predictor) -> None:
    assert grows(values(predictor, [pipeline(stages, 8) for stages in (2, 3, 16)]))
    assert grows(values(predictor, [pipeline(4, count) for count in (1, 2, 3, 12)]))
    assert grows(values(predictor, [pipeline(3, 4, rate_mbit=rate) for rate in reversed(RATES)]))
    sharded = [row("sharded", TRAINING, world=w, mode="replay", groups=2, reshard=1) for w in WORLDS]
    assert grows(values(predictor, sharded))
