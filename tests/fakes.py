"""Stand-ins for the simulator, so that tests of sweeps are about sweeps."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from sim.errors import Deadlock, InfeasibleError, InvalidStrategyError
from sim.spec import Scenario

SIMULATE, OPTIMIST = "tests.fakes:simulate", "tests.fakes:optimist"


def simulate(scenario: Scenario) -> dict[str, Any]:
    """A step time that depends on tp and the seed; special seeds misbehave."""
    log = os.environ.get("CLUSTERLOOM_TEST_LOG")
    if log:
        with open(log, "a") as file:
            file.write(f"{scenario.strategy.tp} {scenario.seed}\n")
    misbehave(scenario.seed)
    return numbers(scenario, 1.0 / scenario.strategy.tp + 0.1 * scenario.seed)


def misbehave(seed: int) -> None:
    if seed == 666:
        raise ZeroDivisionError("a bug")
    if seed == 667:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == 668:
        raise Deadlock("rank0 waits for rank1")
    if seed == 669:
        raise InfeasibleError("3 GB missing", 3e9)
    if seed == 670:
        error = InvalidStrategyError("strategy.tp", "divide num_heads (12)", 7)
        error.rule = "tp-heads"
        raise error
    if seed == 671:
        time.sleep(60)
    time.sleep(float(os.environ.get("CLUSTERLOOM_TEST_SLEEP", "0")))


def optimist(scenario: Scenario) -> dict[str, Any]:
    """A bound of 80 % of the step time."""
    return numbers(scenario, 0.8 * (1.0 / scenario.strategy.tp + 0.1 * scenario.seed))


def numbers(scenario: Scenario, step: float) -> dict[str, Any]:
    tp = scenario.strategy.tp
    return {
        "status": "ok",
        "step_time_s": step,
        "samples_per_step": 8.0,
        "samples_per_s": 8.0 / step,
        "num_devices": tp,
        "peak_memory_bytes": 64e9 / tp,
        "memory_capacity_bytes": 80e9,
        "price_per_sample": step * tp,
        "breakdown": {"compute_s": step, "exposed_comm_s": 0.0, "bubble_s": 0.0, "wait_s": 0.0},
        "bottlenecks": [{"link": "nic0", "kind": "nic", "utilisation": 0.5, "bytes": 1e6}],
        "warnings": [],
    }
