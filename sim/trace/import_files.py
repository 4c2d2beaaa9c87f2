"""What ``clusterloom trace import`` writes: a workload, and the job as it happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sim.errors import InputError
from sim.files import write_whole
from sim.spec.device import Device
from sim.spec.workload import Workload
from sim.trace.issues import Issues
from sim.trace.model import Trace
from sim.trace.operations import Operations
from sim.trace.saved import SUFFIX, saved_operations
from sim.trace.to_graph import operations_of
from sim.trace.to_workload import ImportedWorkload, import_workload, stated_workload, workload_data
from sim.yamlio import dumps


def import_trace(
    trace: Trace,
    output: str,
    *,
    graph: str = "",
    name: str = "",
    batch: int | None = None,
    device: Device | None = None,
    price: Callable[[Operations], Operations] | None = None,
) -> dict[str, Any]:
    """Write the workload and the operations of a trace.

    Parameters
    ----------
    trace : Trace
        Read with ``host=True``.
    output : str
        ``WORKLOAD.yaml``; empty for the operations alone.
    graph : str
        File of the operations; ``WORKLOAD.npz`` beside the workload if empty.
    price : callable, optional
        Gives transfers of lists and schedules, which have none, their times.
    name, batch, device
        See :func:`~sim.trace.to_workload.import_workload`.

    Returns
    -------
    dict
        What was written and what could not be had: ``file``, ``graph``, ``layers``, ``parameters`` ...

    Raises
    ------
    InputError
        If the trace does not give what was asked for.
    """
    target = Path(output) if output else None
    if target is not None and target.suffix not in (".yaml", ".yml"):
        raise InputError("-o", "end in .yaml", output)
    if target is None and not graph:
        raise InputError("-o", "be given", "nothing", hint="Or give --graph OUT.npz.")
    place = Path(graph) if graph else None
    summary: dict[str, Any] = {"file": None, "graph": None}
    warnings: list[dict[str, Any]] = []
    if target is not None:
        place = place or target.with_suffix(SUFFIX)
        workload, described, issues = _workload(trace, name or target.stem, batch, device)
        _write(target, dumps(workload_data(workload)), "-o")
        summary |= {"file": output, **described}
        warnings += issues.to_json()
    assert place is not None
    try:
        operations = operations_of(trace)
    except InputError as error:
        if graph:
            raise
        warnings.append({"name": "no_graph", "count": 1, "text": str(error)})
    else:
        if price is not None:
            if not operations.groups:
                formats = ", ".join(sorted({rank.format for rank in trace.ranks}))
                must = "be given for a list or schedule of transfers (AICB, SimAI, GOAL)"
                raise InputError("--cluster", must, formats)
            operations = price(operations)
        _write(place, saved_operations(operations), "--graph")
        summary |= {"graph": str(place), "operations": len(operations)}
    return {**summary, "warnings": warnings}


def _workload(
    trace: Trace, name: str, batch: int | None, device: Device | None
) -> tuple[Workload, dict[str, Any], Issues]:
    """The workload, what to say about it, and findings."""
    stated = stated_workload(trace, name)
    if stated is not None:
        workload, strategy, issues = stated
        return workload, {**_describe(workload), "strategy": strategy}, issues
    try:
        imported = import_workload(trace, name=name, batch=batch, device=device)
    except InputError as error:
        hint = f"{error.hint} Or keep the job as it happened: --graph OUT.npz without -o."
        raise InputError(error.field, error.must, error.got, hint=hint) from None
    return imported.workload, {**_describe(imported.workload), **_measured(imported)}, imported.issues


def _describe(workload: Workload) -> dict[str, Any]:
    return {
        "layers": len(workload.layers),
        "parameters": workload.num_parameters,
        "batch_per_device": workload.batch_per_device,
        "dtype": workload.dtype,
        "optimizer": workload.optimizer,
        "num_heads": workload.num_heads,
        "hidden": workload.hidden,
    }


def _measured(imported: ImportedWorkload) -> dict[str, Any]:
    times = imported.times
    return {
        "device": imported.rank.device,
        "measured_on": imported.device.name if imported.device is not None else None,
        "measured_step_s": None if times is None else times.step_s,
        "measured_steps": None if times is None else times.steps,
        "trace_steps": len(imported.rank.steps) or None,
        "exposed_communication_s": None if times is None else times.exposed_s,
    }


def _write(path: Path, content: str | bytes, option: str) -> None:
    """Write a file; nothing half-written is left behind."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise InputError(option, "be a place that can be written", f"{path} ({error.strerror})") from None
