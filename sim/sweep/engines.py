"""Where the points of a sweep are computed: this process, local workers, Dask or Ray."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from sim.errors import InputError
from sim.sweep.context import Context
from sim.sweep.evaluate import Outcome, Task, evaluate, lost
from sim.sweep.worker import receive, send

ENGINES = ("local", "dask", "ray")


class Engine(Protocol):
    """Computes tasks in any order."""

    def map(self, context: Context, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Yield every task with its outcome as it finishes."""


def engine(name: str = "local", num_workers: int | None = None) -> Engine:
    """Engine by name; ``num_workers`` defaults to the CPUs this process may use."""
    if name == "local":
        return LocalEngine(num_workers or usable_cpus())
    if name == "dask":
        return DaskEngine(num_workers)
    if name == "ray":
        return RayEngine(num_workers)
    raise InputError("--engine", f"be one of {', '.join(ENGINES)}", name)


def usable_cpus() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class SerialEngine:
    """Computes the tasks one after the other in this process."""

    def map(self, context: Context, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Yield every task with its outcome, in order."""
        for task in tasks:
            yield task, evaluate(context, task)


class LocalEngine:
    """Worker processes on this machine, each fed by a thread.

    A worker that dies (killed for memory, a crash in a library) costs one failed row and is replaced.
    """

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers

    def map(self, context: Context, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Yield every task with its outcome as it finishes."""
        if self.num_workers == 1 or len(tasks) <= 1:
            yield from SerialEngine().map(context, tasks)
            return
        waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for task in tasks:
            waiting.put(task)
        done: queue.SimpleQueue[tuple[Task, Outcome]] = queue.SimpleQueue()
        feeders = [_Feeder(context, waiting, done) for _ in range(min(self.num_workers, len(tasks)))]
        try:
            for _ in tasks:
                yield done.get()
        finally:
            for feeder in feeders:
                feeder.stop()


class _Feeder:
    """One worker process and the thread that hands it tasks."""

    def __init__(
        self,
        context: Context,
        waiting: queue.SimpleQueue[Task],
        done: queue.SimpleQueue[tuple[Task, Outcome]],
    ) -> None:
        self._context, self._waiting, self._done = context, waiting, done
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the worker; a point it is computing is abandoned."""
        self._stopped = True
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
        self._thread.join(timeout=5)

    def _serve(self) -> None:
        while not self._stopped:
            try:
                task = self._waiting.get_nowait()
            except queue.Empty:
                break
            outcome = self._compute(task)
            if not self._stopped:
                self._done.put((task, outcome))
        self._end()

    def _compute(self, task: Task) -> Outcome:
        try:
            if self._process is None:
                self._process = self._start()
            if self._stopped:  # stop() may have come while the process was starting
                self._process.kill()
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            send(self._process.stdin, task)  # type: ignore[arg-type]
            outcome: Outcome = receive(self._process.stdout)  # type: ignore[arg-type]
            return outcome
        except (EOFError, OSError) as error:
            code = self._end()  # the next task gets a fresh worker
            cause = (
                f"ended by signal {-code}" if code is not None and code < 0 else f"failed ({error or code})"
            )
            return lost(f"the worker process {cause}")

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        root = str(Path(__file__).resolve().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH", "")]))
        process = subprocess.Popen(
            [sys.executable, "-m", "sim.sweep.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert process.stdin is not None
        send(process.stdin, list(sys.path))  # type: ignore[arg-type]
        send(process.stdin, self._context)  # type: ignore[arg-type]
        return process

    def _end(self) -> int | None:
        """Close the pipes, which ends an idle worker, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        return process.wait()


class DaskEngine:
    """A Dask cluster: the one of ``DASK_SCHEDULER_ADDRESS`` if set, else a local one."""

    def __init__(self, num_workers: int | None) -> None:
        self._distributed = _optional("distributed", "dask")
        self.num_workers = num_workers

    def map(self, context: Context, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Yield every task with its outcome as it finishes."""
        address = os.environ.get("DASK_SCHEDULER_ADDRESS")
        options: dict[str, Any] = (
            {"address": address} if address else {"n_workers": self.num_workers or usable_cpus()}
        )
        if not address:
            options |= {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": 40}
        with self._distributed.Client(**options) as client:
            shared = client.scatter(context, broadcast=True)
            futures = {client.submit(evaluate, shared, task, pure=False): task for task in tasks}
            for future in self._distributed.as_completed(futures):
                error = future.exception()
                outcome = lost(f"Dask lost the point: {error}") if error is not None else future.result()
                yield futures[future], outcome


class RayEngine:
    """A Ray cluster: the one of ``RAY_ADDRESS`` if set, else a local one."""

    def __init__(self, num_workers: int | None) -> None:
        self._ray = _optional("ray", "ray")
        self.num_workers = num_workers

    def map(self, context: Context, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Yield every task with its outcome as it finishes."""
        ray = self._ray
        if not ray.is_initialized():
            count = None if os.environ.get("RAY_ADDRESS") else self.num_workers or usable_cpus()
            ray.init(num_cpus=count, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        remote = ray.remote(max_retries=1)(evaluate)
        shared = ray.put(context)
        running = {remote.remote(shared, task): task for task in tasks}
        while running:
            finished, _ = ray.wait(list(running), num_returns=1)
            for reference in finished:
                task = running.pop(reference)
                try:
                    yield task, ray.get(reference)
                except ray.exceptions.RayError as error:
                    yield task, lost(f"Ray lost the point: {error}")


def _optional(module: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        hint = f"Install it with `pip install clusterloom[{extra}]`, or use --engine local."
        raise InputError(
            "--engine", f"name an installed engine; {extra} is not installed", extra, hint=hint
        ) from None
