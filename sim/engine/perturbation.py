"""Random compute times: independent per task, and a slow state that workers fall into and leave (D17)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sim.graph.execution import BoolArray, ExecutionGraph, FloatArray, TaskKind
from sim.rng import derive_seed, uniform_hash

_BLOCK = 64  # steps worked out together


def jitter_factors(graph: ExecutionGraph, iteration: int) -> FloatArray:
    """Factors on the compute tasks of an iteration, by (seed, task, iteration) and (seed, rank, step).

    Lognormal of mean 1 and the graph's coefficient of variation; times the slow factor of workers in their
    slow state.
    """
    factors = np.ones(graph.num_tasks)
    tasks = np.flatnonzero(graph.kind == TaskKind.COMPUTE)
    if graph.jitter > 0:
        first = uniform_hash(graph.seed, tasks, np.full(len(tasks), 2 * iteration))
        second = uniform_hash(graph.seed, tasks, np.full(len(tasks), 2 * iteration + 1))
        normal = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)  # Box-Muller
        variance = np.log1p(graph.jitter**2)
        factors[tasks] = np.exp(np.sqrt(variance) * normal - variance / 2.0)
    if graph.slow_state is not None:
        enter, leave, factor = graph.slow_state
        workers = [row for row, kind in enumerate(graph.devices.kind) if kind == "worker"]
        ranks = tuple(graph.devices.rank[workers].tolist())
        steps = graph.steps_per_iteration
        state = np.zeros((steps, len(graph.devices.name)), bool)
        for step in range(steps):
            state[step, workers] = slow_workers(graph.seed, ranks, enter, leave, iteration * steps + step)
        tasks = tasks[graph.device[tasks] >= 0]
        slow = state[graph.step[tasks], graph.device[tasks]]
        factors[tasks] *= np.where(slow, factor, 1.0)
    return factors


def slow_workers(seed: int, ranks: tuple[int, ...], enter: float, leave: float, step: int) -> BoolArray:
    """Which ranks are in their slow state in a training step: a two-state Markov chain each.

    Parameters
    ----------
    enter, leave : float
        Chance per step to turn slow, and to recover. The chain starts in its stationary distribution, slow
        with probability enter / (enter + leave).
    """
    block, offset = divmod(step, _BLOCK)
    for earlier in range(block):  # fills the cache in order, so that no call recurs deeply
        _states(seed, ranks, enter, leave, earlier)
    result: BoolArray = _states(seed, ranks, enter, leave, block)[offset]
    return result


@lru_cache(maxsize=4096)
def _states(seed: int, ranks: tuple[int, ...], enter: float, leave: float, block: int) -> BoolArray:
    own = derive_seed(seed, "slow_state")
    at = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
    drawn = uniform_hash(own, np.array(ranks)[None, :], at[:, None])
    if block:
        state = _states(seed, ranks, enter, leave, block - 1)[-1]
    else:
        state = uniform_hash(own, np.array(ranks), np.full(len(ranks), -1)) < enter / (enter + leave)
    states = np.zeros(drawn.shape, bool)
    for row, chance in enumerate(drawn):
        state = np.where(state, chance >= leave, chance < enter)
        states[row] = state
    return states
