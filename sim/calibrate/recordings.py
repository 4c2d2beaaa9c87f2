"""A calibration of gloo and its machines: from layer traces, a ping and two parameter-server runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.errors import InputError
from sim.spec import Calibration
from sim.spec.calibration import Parameter
from sim.validate.recordings.intervals import USUAL_LATENCY_SPREAD
from sim.validate.recordings.machines import SERVER, WORKER
from sim.validate.recordings.predict import Predictor
from sim.validate.recordings.rows import Row
from sim.validate.recordings.trace import LayerTrace, Traces

GOODPUT = 1448 / 1538
"""Bytes of data in 1538 on the wire: Ethernet preamble, gap and headers, IP, TCP with timestamps."""
_PING_OPERATIONS = ("sendrecv_ring", "send")
_SERVER_STEPS = 12
START_SHARE = 0.15
"""Part of a ping's software time that an operation takes once: Python, and waking gloo's threads. Own
measurement, all-reduces of 1 to 64 KiB on 2 to 8 ranks beside the ping: 0.15 on an idle machine (taken),
0.35 to 0.44 on one whose cores others keep busy."""


@dataclass(frozen=True)
class Fit:
    """A calibration and the rows it has seen (file name and line)."""

    calibration: Calibration
    used: tuple[str, ...]


def fit(name: str, rows: Sequence[Row], traces: Traces, base: Calibration) -> Fit:
    """Fit latency, memory speed and the server's speed.

    Only these are looked at: the smallest exchange of two ranks (``sendrecv_ring`` or ``send`` of at most 1
    KiB), the layer traces, and the synchronous and the asynchronous parameter-server run with fewest workers.

    Parameters
    ----------
    name : str
        Of the new calibration.
    rows : sequence of Row
        Recorded rows of any kind.
    traces : Traces
    base : Calibration
        What the fit starts from: framework parameters of the ``gloo`` calibration.

    Raises
    ------
    InputError
        If there is no ping, or no trace.
    """
    ping = _ping(rows)
    found = [trace for trace in traces.all() if trace.optimizer_s > 0]
    if not found:
        raise InputError("recordings", "come with at least one layer trace", hint="Use --traces DIR.")
    whole = _latency(ping)
    latency, start = _part(whole, 1 - START_SHARE), _part(whole, 2 * START_SHARE)
    bandwidth = _bandwidth(found)
    calibration = Calibration(
        name=name,
        description="gloo and its machines, from layer traces, one ping and two parameter-server runs",
        source=f"fitted by clusterloom calibrate recordings: {ping.place}, {len(found)} layer traces",
        device={
            WORKER: {
                "memory_bandwidth": bandwidth,
                "memory_efficiency": _cited(1.0, "memory_bandwidth is what was measured"),
            },
            SERVER: {"memory_efficiency": _cited(1.0, "as a worker")},
        },
        link={"nic": {"bandwidth_efficiency": _cited(GOODPUT, "1448 of 1538 bytes per full TCP segment")}},
        library={
            "gloo": {
                "step_latency": latency, "step_latency_network": latency, "start_latency": start,
            }
        },
    )  # fmt: skip
    calibration = base.merge(calibration).model_copy(update={"name": name})
    runs = _server_runs(rows)
    if runs:
        server = {**calibration.device[SERVER], "memory_efficiency": _server_speed(calibration, traces, runs)}
        calibration = calibration.model_copy(update={"device": {**calibration.device, SERVER: server}})
    return Fit(calibration, tuple(row.place for row in (ping, *runs)))


def _cited(value: float, source: str) -> Parameter:
    return Parameter(value=value, source=source)


def _part(parameter: Parameter, share: float) -> Parameter:
    """A parameter times a share, with its interval."""
    update = {name: getattr(parameter, name) for name in ("value", "low", "high")}
    scaled = {name: None if value is None else value * share for name, value in update.items()}
    return parameter.model_copy(update=scaled)


def _ping(rows: Sequence[Row]) -> Row:
    fitting = [
        row
        for row in rows
        if row.kind == "collective" and row.text("op") in _PING_OPERATIONS and row.measured
        and row.number_of("bytes") <= 1024
        and (row.text("op") == "send" or row.number_of("world") == 2)
    ]  # fmt: skip
    if not fitting:
        raise InputError(
            "recordings", "have a ping: sendrecv_ring of two ranks, or send, of at most 1024 bytes",
            hint="Every clusterloom record -o DIR measures one.",
        )  # fmt: skip

    # The fastest link adds least to the latency that is looked for; nothing waits in one queue for everything
    # either while it is idle, but acknowledgements do.
    def preferred(row: Row) -> tuple[float, ...]:
        return (not row.queued, row.number_of("rate_mbit"), -row.number_of("bytes"), -row.delay)

    return max(fitting, key=preferred)


def _latency(ping: Row) -> Parameter:
    """Seconds per message and direction besides the cables: a message is a note and the data."""
    measured = ping.measured or 0.0
    on_wire = ping.number_of("bytes") / (ping.rate * GOODPUT)
    value = (measured - on_wire) / 2 - 2 * ping.delay
    if value <= 0:
        must = "be above the delay of four cables"
        raise InputError("median_us", must, ping.text("median_us"), where=ping.place)
    spread = max(USUAL_LATENCY_SPREAD, 1.28 * ping.amount_of("cv", 0.0))
    return Parameter(
        value=value, low=value * (1 - spread), high=value * (1 + spread),
        n=int(ping.amount_of("reps", 1)), source=f"ping of two ranks, {ping.place}",
    )  # fmt: skip


def _bandwidth(traces: Sequence[LayerTrace]) -> Parameter:
    """Bytes/s of a rank's memory, as the updates of the traces stream it."""
    values = np.array([trace.memory_bandwidth for trace in traces])
    return Parameter(
        value=float(np.median(values)), low=float(values.min()), high=float(values.max()), n=len(values),
        source="optimizer updates of the layer traces, 24 bytes per parameter",
    )  # fmt: skip


def _server_runs(rows: Sequence[Row]) -> tuple[Row, ...]:
    """One synchronous and one asynchronous run, of fewest workers and without what is slow.

    A server that answers workers one by one is hardly ever waited for: alone, such a run does not tell how
    fast the server is.
    """
    runs = []
    for rule in ("sync", "async"):
        mine = [
            row
            for row in rows
            if row.kind == "server" and row.text("algo") == rule and row.measured
            and not row.slow_ranks and not row.slow_links
        ]  # fmt: skip
        if mine:
            runs.append(min(mine, key=lambda row: (row.number_of("workers"), -row.number_of("rate_mbit"))))
    return tuple(runs)


def _server_speed(calibration: Calibration, traces: Traces, runs: Sequence[Row]) -> Parameter:
    """Fraction of a worker's memory speed at which the server sums and updates."""
    grid = np.geomspace(0.2, 2.0, _SERVER_STEPS)
    errors = []
    for value in grid:
        found = Parameter(value=float(value), source="trial")
        server = {**calibration.device[SERVER], "memory_efficiency": found}
        trial = calibration.model_copy(update={"device": {**calibration.device, SERVER: server}})
        predictor = Predictor(trial, traces)
        # Squares of relative errors: the synchronous and the asynchronous run count alike.
        errors.append(sum((predictor.value(row) / (row.measured or 1.0) - 1) ** 2 for row in runs))
    near = np.asarray(errors) <= 2 * min(errors) + 1e-4
    value = float(grid[int(np.argmin(errors))])
    return Parameter(
        value=value, low=float(grid[near].min()), high=float(grid[near].max()), n=len(runs),
        source="parameter-server runs " + ", ".join(row.place for row in runs),
    )  # fmt: skip
