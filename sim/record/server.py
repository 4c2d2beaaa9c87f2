"""A parameter server over gloo's send and receive: rank 0 serves, the others work with emulated compute."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from sim.record.clock import Load, sleep_until, variation
from sim.record.jobs import Row, Setting, _gather, _machine

_RATE = 1e-3
_DROPPED = 2  # first iterations of each worker


def parameter_server(
    setting: Setting, rule: str, staleness: int = 0, seconds: float = 10.0
) -> Callable[[int, int], Any]:
    """A worker computes, pushes its flat gradient and pulls the flat parameters.

    ``sync``: the server waits for all, sums, and answers all at once. ``async``: a thread per worker applies
    and answers at once. ``ssp``: the answer to a worker more than ``staleness`` ahead of the slowest waits.
    """

    def job(rank: int, ranks: int) -> list[Row]:
        assert setting.trace is not None
        size = int(setting.trace.num_parameters)
        begin = time.perf_counter()
        result = [0.0] * 6
        with Load() as load:
            if rank == 0:
                (_serve_all if rule == "sync" else _serve_each)(size, ranks, rule, staleness)
            else:
                compute = setting.trace.compute_s * setting.scale(rank)
                result = _work(size, compute, rule, begin + seconds)
        table = _gather(result, ranks)[1:]
        rates = (table[:, 0] / table[:, 1]).tolist()
        return [
            {
                **setting.network, "algo": rule, "s": staleness if rule == "ssp" else "",
                "model": setting.trace.model, "workers": ranks - 1, "slow": setting.slow, "seconds": seconds,
                "params": size, "compute_us": setting.trace.compute_s * 1e6, "updates_per_s": sum(rates),
                "median_iter_us": table[:, 2].median().item() * 1e6,
                "median_comm_us": table[:, 3].median().item() * 1e6, "cv": table[:, 4].median().item(),
                "mean_staleness": table[:, 5].mean().item(),
                "per_worker_iters_per_s": " ".join(f"{rate:.3f}" for rate in rates), **_machine(load),
            }
        ]  # fmt: skip

    return job


def _work(size: int, compute: float, rule: str, until: float) -> list[float]:
    """A worker's iterations, their span, median time, median communication, variation, mean staleness."""
    gradient, weights = torch.full((size + 1,), 1e-6), torch.empty(size + 1)
    gradient[size] = 0
    whole, communication, stale = [], [], []
    while True:
        begin = time.perf_counter()
        sleep_until(begin + compute)
        computed = time.perf_counter()
        if computed > until:
            gradient[size] = 1  # the last push says that this worker is done
            if rule != "sync":
                dist.send(gradient, 0)
                break
        dist.send(gradient, 0)
        dist.recv(weights, 0)
        end = time.perf_counter()
        whole.append(end - begin)
        communication.append(end - computed)
        stale.append(weights[size].item() if rule != "sync" else 0.0)
        if rule == "sync" and weights[size] > 0:
            break
    whole, communication, stale = (
        values[_DROPPED:] or values or [1.0] for values in (whole, communication, stale)
    )
    return [
        len(whole), sum(whole), statistics.median(whole), statistics.median(communication),
        variation(whole), statistics.fmean(stale),
    ]  # fmt: skip


def _serve_all(size: int, ranks: int, rule: str, staleness: int) -> None:
    weights = torch.zeros(size + 1)
    pushed = [torch.empty(size + 1) for _ in range(ranks)]
    while True:
        for request in [dist.irecv(pushed[r], r) for r in range(1, ranks)]:
            request.wait()
        done = any(bool(pushed[r][size] > 0) for r in range(1, ranks))
        for r in range(1, ranks):
            weights.add_(pushed[r], alpha=-_RATE / (ranks - 1))
        weights[size] = 1 if done else 0
        for request in [dist.isend(weights, r) for r in range(1, ranks)]:
            request.wait()
        if done:
            return


def _serve_each(size: int, ranks: int, rule: str, staleness: int) -> None:
    weights, lock = torch.zeros(size + 1), threading.Condition()
    clock = dict.fromkeys(range(1, ranks), 0)
    alive, updates = set(clock), [0]

    def serve(worker: int) -> None:
        pushed, answer, last = torch.empty(size + 1), torch.empty(size + 1), 0
        while True:
            dist.recv(pushed, worker)
            with lock:
                if pushed[size] > 0:
                    alive.discard(worker)
                    lock.notify_all()
                    return
                weights.add_(pushed, alpha=-_RATE)
                stale = updates[0] - last
                updates[0] += 1
                clock[worker] += 1
                lock.notify_all()
                if rule == "ssp":
                    lock.wait_for(lambda: _ahead(worker, clock, alive) <= staleness)
                answer.copy_(weights)
                last = updates[0]
            answer[size] = stale
            dist.send(answer, worker)

    threads = [threading.Thread(target=serve, args=(worker,)) for worker in clock]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _ahead(worker: int, clock: dict[int, int], alive: set[int]) -> int:
    """Iterations of a worker beyond the slowest that is still working."""
    return clock[worker] - min((clock[other] for other in alive), default=clock[worker])
