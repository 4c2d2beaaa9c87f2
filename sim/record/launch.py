"""One process per rank, forked from one that has imported torch already."""

from __future__ import annotations

import os
import pickle
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from sim.errors import ClusterloomError, InputError
from sim.record import clock
from sim.record.network import EmulatedHosts, loopback

Job = Callable[[int, int], Any]


class RecordingFailed(ClusterloomError):
    """A rank of a recorded job failed, or the job took too long."""


def require_torch() -> Any:
    """Import torch.

    Raises
    ------
    InputError
        If it is not installed.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        import torch
        import torch._dynamo  # the first step of an optimizer does: once here, not in every rank
        import torch.distributed
    except ImportError:
        raise InputError(
            "record",
            "have torch",
            "it is not installed",
            hint="Install it: pip install 'clusterloom[record]'.",
        ) from None
    return torch


def run_ranks(
    job: Job,
    num_ranks: int,
    *,
    hosts: EmulatedHosts | None = None,
    cores: Sequence[int] = (),
    real_time: bool = False,
    timeout: float = 180.0,
) -> Any:
    """Run a job on every rank of a gloo process group; returns what rank 0 returned.

    Parameters
    ----------
    job : callable
        ``job(rank, num_ranks)``.
    num_ranks : int
    hosts : EmulatedHosts, optional
        Rank ``i`` runs on host ``i``; on this machine's loopback if absent.
    cores : sequence of int
        Rank ``i`` is bound to ``cores[i % len(cores)]``.
    real_time : bool
        Ask for real-time priorities, gloo's threads before the one that computes: far less noise, but on a
        busy machine the kernel's own threads may then starve.
    timeout : float
        Seconds.

    Raises
    ------
    RecordingFailed
        With the reason of the first rank that failed.
    """
    require_torch()
    port = _free_port()
    reading, writing = os.pipe()
    children: dict[int, int] = {}
    sys.stdout.flush()
    for rank in range(num_ranks):
        child = os.fork()
        if not child:
            os.close(reading)
            _be_rank(job, rank, num_ranks, hosts, port, cores, writing, real_time)
        children[child] = rank
    os.close(writing)
    return _collect(children, reading, timeout)


def _free_port() -> int:
    """A TCP port below those that a system hands out by itself, on which nobody listens here."""
    for _ in range(100):
        port = random.SystemRandom().randint(20000, 32000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise RecordingFailed("no free TCP port from 20000 to 32000")


def _be_rank(
    job: Job,
    rank: int,
    num_ranks: int,
    hosts: EmulatedHosts | None,
    port: int,
    cores: Sequence[int],
    writing: int,
    real_time: bool,
) -> None:
    """Body of a child; never returns."""
    code = 1
    clock.end_with_parent()
    try:
        address, interface = loopback() if hosts is None else (hosts.address(0), "eth0")
        os.environ |= {
            "RANK": str(rank), "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": address, "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": interface, "TP_SOCKET_IFNAME": interface,
        }  # fmt: skip
        if hosts is not None:
            hosts.enter(rank)
        if cores:
            os.sched_setaffinity(0, {cores[rank % len(cores)]})
        result = ("ok", _in_group(job, rank, num_ranks, real_time))
        code = 0
    except InputError as error:
        result = ("input", error)
    except BaseException as error:
        result = ("failed", f"rank {rank}: {_first_line(error)}")
        if os.environ.get("CLUSTERLOOM_DEBUG"):
            traceback.print_exc()
    if rank == 0 or code:
        os.write(writing, pickle.dumps(result))
    os._exit(code)


def _first_line(error: BaseException) -> str:
    """Kind and reason of an error: what follows is where in torch it happened."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _in_group(job: Job, rank: int, num_ranks: int, real_time: bool) -> Any:
    import datetime

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if real_time:
        clock.real_time(10)  # gloo's threads inherit it
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    if real_time:
        # Ending the group wakes the store's thread, which then spins until this one has gone on: it must not
        # keep this one from their core.
        clock.ordinary("pt_tcpstore")
        clock.real_time(5)  # what computes must not keep gloo's threads from their core
    result = job(rank, num_ranks)
    dist.barrier()
    dist.destroy_process_group()
    return result


def _collect(children: dict[int, int], reading: int, timeout: float) -> Any:
    """Wait for all children; ends those that are left when one has failed."""
    end, failed = time.monotonic() + timeout, ""
    left = dict(children)
    parts: list[bytes] = []
    os.set_blocking(reading, False)
    try:
        while left:
            parts += _available(reading)
            ended = {child: status for child in left if (status := _status(child)) is not None}
            for child, status in ended.items():
                rank = left.pop(child)
                failed = failed or _reason(rank, status)
            if not ended and (failed or time.monotonic() > end):
                break
            time.sleep(0.02)
        parts += _available(reading)
    finally:
        for child in left:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(reading)
    text = b"".join(parts)
    given: tuple[str, Any] = pickle.loads(text) if text else ("failed", failed or "the job took too long")
    state, value = given
    if isinstance(value, InputError):
        raise value
    if state != "ok" or failed or left:
        raise RecordingFailed(str(value) if state != "ok" else failed or "the job took too long")
    return value


def _reason(rank: int, status: int) -> str:
    """Why a rank failed, from its exit status; empty if it did not."""
    if os.WIFSIGNALED(status):
        return f"rank {rank} was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"rank {rank} failed" if status else ""


def _status(child: int) -> int | None:
    """Exit status of a child that has ended."""
    found, status = os.waitpid(child, os.WNOHANG)
    return status if found else None


def _available(reading: int) -> list[bytes]:
    parts = []
    while True:
        try:
            part = os.read(reading, 65536)
        except BlockingIOError:
            break
        if not part:
            break
        parts.append(part)
    return parts
