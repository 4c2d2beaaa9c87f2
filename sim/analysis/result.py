"""The Result of one simulated scenario: numbers, tables on demand, canonical JSON."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sim.analysis.breakdown import PARTS
from sim.errors import ClusterloomError, InputError, InvalidStrategyError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from sim.analysis.uncertainty import Interval
    from sim.engine.record import RunRecord
    from sim.graph.execution import ExecutionGraph
    from sim.spec import Scenario
    from sim.timeline import Timeline

Status = Literal["ok", "infeasible", "invalid", "failed"]

#: Version of the JSON layout.
SCHEMA = 1
#: Fields that the JSON names otherwise, and those it does not hold.
JSON_NAMES = {"parts": "breakdown", "memory_bytes": "memory"}
UNSAVED = frozenset({"refusal", "scenario", "graph", "run"})


@dataclass
class Result:
    """One simulated scenario.

    Numbers are ``None`` unless ``status`` is ``ok`` (memory is known for ``infeasible`` too). Times in
    seconds, sizes in bytes, prices in dollars. ``to_json`` of equal scenarios is byte-identical.

    Parameters
    ----------
    status : str
        ``ok``; ``infeasible``: does not fit the memory; ``invalid``: refused by a taxonomy rule;
        ``failed``: the simulation raised an error. ``message`` says why.
    step_time_s : float
        Seconds per training step; under asynchrony the mean worker cycle.
    mfu : float
        Model FLOPs without recomputation over the peak of the compute dtype, 0 .. 1.
    parts : dict of str to float
        The breakdown of a step in seconds, adding up to ``step_time_s``.
    updates : dict
        What a step is worth: samples and bytes per update, effective batch, dropped gradients, staleness; see
        :func:`sim.analysis.update_statistics.update_statistics`.
    convergence : dict
        ``target``, ``epochs_to_target``, ``time_to_target_s``, ``cost_to_target`` where the scenario has a
        convergence curve that covers it.
    memory_bytes : dict of str to float
        Bytes per component on the device that needs most.
    server_memory_bytes : float or None
        What parameter servers keep on each of their hosts.
    memory_by_stage : list of dict
        The same for every pipeline stage.
    collectives : list of dict
        What the library ran, per family: operation, ranks, algorithm, protocol (empty without a library
        model), and the range of sizes.
    """

    status: Status
    message: str = ""
    rule: str = ""
    workload: str = ""
    cluster: str = ""
    strategy: dict[str, Any] = field(default_factory=dict)
    scenario_key: str = ""
    version: str = ""
    fidelity: str = ""
    num_devices: int | None = None
    step_time_s: float | None = None
    step_time_interval_s: tuple[float, float] | None = None
    samples_per_step: float | None = None
    samples_per_s: float | None = None
    tokens_per_s_per_device: float | None = None
    mfu: float | None = None
    bound_s: float | None = None
    peak_memory_bytes: float | None = None
    memory_capacity_bytes: float | None = None
    server_memory_bytes: float | None = None
    missing_bytes: float | None = None
    memory_bytes: dict[str, float] = field(default_factory=dict)
    memory_by_stage: list[dict[str, float]] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    critical_device: str = ""
    overlap_fraction: float | None = None
    communication_s: float | None = None
    busy_fraction: float | None = None
    bottlenecks: list[dict[str, Any]] = field(default_factory=list)
    collectives: list[dict[str, Any]] = field(default_factory=list)
    staleness: dict[str, Any] | None = None
    data_path: dict[str, Any] | None = None
    checkpoint: dict[str, Any] | None = None
    epoch_time_s: float | None = None
    updates: dict[str, Any] = field(default_factory=dict)
    convergence: dict[str, Any] = field(default_factory=dict)
    energy_joules_per_step: float | None = None
    energy_joules_per_sample: float | None = None
    price_per_step: float | None = None
    price_per_sample: float | None = None
    bytes_per_update: float | None = None
    task_seconds: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    converged: bool | None = None
    iterations: int | None = None
    refusal: InvalidStrategyError | None = field(default=None, repr=False, compare=False)
    scenario: Scenario | None = field(default=None, repr=False, compare=False)
    graph: ExecutionGraph | None = field(default=None, repr=False, compare=False)
    run: RunRecord | None = field(default=None, repr=False, compare=False)

    # -- plain data ------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names of the JSON contract; no arrays, no NaN."""
        data = {
            JSON_NAMES.get(f.name, f.name): _plain(getattr(self, f.name))
            for f in fields(self)
            if f.name not in UNSAVED
        }
        data["schema"] = SCHEMA
        return data

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, shortest exact floats, one trailing newline."""
        return (
            json.dumps(self.to_dict(), sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any], *, where: str = "") -> Result:
        """Read what :meth:`to_dict` wrote; tables that need the run are not available on it."""
        schema = data.get("schema")
        if schema != SCHEMA:
            raise InputError(
                "result.schema", f"be {SCHEMA}", schema, hint="Write the result again.", where=where
            )
        names = {saved: name for name, saved in JSON_NAMES.items()}
        known = {f.name for f in fields(cls)}
        values = {names.get(key, key): value for key, value in data.items() if key != "schema"}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InputError("result", "have known fields only", ", ".join(unknown), where=where)
        if values.get("step_time_interval_s") is not None:
            values["step_time_interval_s"] = tuple(values["step_time_interval_s"])
        return cls(**values)

    def save(self, path: str | Path) -> Path:
        """Write the JSON to a file."""
        target = Path(path)
        target.write_text(self.to_json(), encoding="utf-8")
        return target

    def detached(self) -> Result:
        """A copy without scenario, graph and run: small enough to send to another process."""
        return Result.from_dict(self.to_dict())

    @property
    def ok(self) -> bool:
        """Whether there are numbers."""
        return self.status == "ok"

    # -- tables ----------------------------------------------------------------------------------

    def breakdown(self) -> pd.DataFrame:
        """Cause, seconds per step and share of the step; the seconds add up to ``step_time_s``."""
        import pandas as pd

        step = self.step_time_s or 0.0
        seconds = [float(self.parts.get(name, 0.0)) for name in PARTS] if self.parts else []
        return pd.DataFrame(
            {
                "cause": [name.removesuffix("_s") for name in PARTS] if self.parts else [],
                "seconds": seconds,
                "share": [value / step if step else 0.0 for value in seconds],
            }
        )

    def memory(self) -> pd.DataFrame:
        """Bytes per pipeline stage (rows) and component (columns), with their sum."""
        import pandas as pd

        table = pd.DataFrame(self.memory_by_stage or ([self.memory_bytes] if self.memory_bytes else []))
        table.index.name = "stage"
        if len(table.columns):
            table["total"] = table.sum(axis=1)
        return table

    def links(self) -> pd.DataFrame:
        """Every link with its load, the busiest first."""
        from sim.analysis.links import link_table

        graph, run = self._played()
        return link_table(graph, run, _window_steps(graph, run))

    def critical_path(self) -> pd.DataFrame:
        """The chain of tasks that decided the length of the window."""
        from sim.analysis.critical_path import critical_path

        return critical_path(*self._played())

    def spans(self) -> Timeline:
        """The columnar timeline of the whole run."""
        from sim.analysis.timeline_from_run import timeline_from_run

        return timeline_from_run(*self._played())

    def timeline(self) -> pd.DataFrame:
        """The timeline as a table with names instead of numbers, ordered by start."""
        from sim.analysis.frames import timeline_frame

        return timeline_frame(self.spans().sorted())

    def sensitivity(self, step: float = 0.05) -> pd.DataFrame:
        """Percent of throughput per percent of device speed, memory bandwidth, link class and latency."""
        from sim.analysis.sensitivity import sensitivity

        return sensitivity(self._described(), step=step)

    def interval(self, progress: Callable[[int, int], None] | None = None) -> Interval:
        """80 % interval of the step time from the intervals of the calibration (simulates again).

        ``progress`` is called with the parameters that were moved and how many there are.
        """
        from sim.analysis.uncertainty import interval

        return interval(self._described(), progress)

    def save_trace(self, path: str | Path) -> Path:
        """Write a Perfetto / Chrome trace (``.json`` or ``.json.gz``) of the run."""
        from sim.analysis.export import save_trace

        return save_trace(Path(path), *self._played())

    # -- text ------------------------------------------------------------------------------------

    def summary(self) -> dict[str, str]:
        """The headline as text: label -> value with unit."""
        if not self.ok:
            return {"status": self.status, "reason": self.message}
        rows = {
            "step time": _seconds(self.step_time_s),
            "throughput": f"{self.samples_per_s:,.4g} samples/s" if self.samples_per_s is not None else "",
            "tokens": f"{self.tokens_per_s_per_device:,.4g} tokens/s/device"
            if self.tokens_per_s_per_device is not None
            else "",
            "MFU": f"{100 * self.mfu:.1f} %" if self.mfu is not None else "",
            "devices": f"{self.num_devices}",
            "peak memory": f"{self.peak_memory_bytes / 1e9:.2f} GB"
            if self.peak_memory_bytes is not None
            else "",
            "largest part": _largest_part(self.parts, self.step_time_s),
            "busiest link": _busiest_link(self.bottlenecks),
        }
        return {label: text for label, text in rows.items() if text}

    def __str__(self) -> str:
        head = f"{self.workload} on {self.cluster}" if self.workload else "result"
        return "\n".join([head, *(f"  {label:<12} {text}" for label, text in self.summary().items())])

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>"
            for label, text in self.summary().items()
        )
        head = escape(f"{self.workload} on {self.cluster}")
        table: str = (
            self.breakdown().to_html(index=False, float_format=lambda x: f"{x:.4g}") if self.parts else ""
        )
        return f"<h4>{head}</h4><table>{rows}</table>{table}"

    # -- helpers ---------------------------------------------------------------------------------

    def _played(self) -> tuple[ExecutionGraph, RunRecord]:
        if self.graph is None or self.run is None:
            reason = (
                self.message
                if not self.ok
                else "it was loaded from a file or came from a sweep; run it again"
            )
            raise ClusterloomError(f"this result holds no run: {reason}")
        return self.graph, self.run

    def _described(self) -> Scenario:
        if self.scenario is None or not self.ok:
            reason = (
                self.message
                if not self.ok
                else "it was loaded from a file or came from a sweep; run it again"
            )
            raise ClusterloomError(f"this result holds no scenario: {reason}")
        return self.scenario


def load_result(path: str | Path) -> Result:
    """Read a result that :meth:`Result.save` or ``run --json`` wrote."""
    source = Path(path)
    try:
        data = json.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("result", "be a readable file", str(path), hint=str(error.strerror or "")) from None
    except UnicodeDecodeError:
        raise InputError("result", "be JSON", "binary data", where=str(path)) from None
    except json.JSONDecodeError as error:
        raise InputError("result", "be JSON", str(error), where=str(path)) from None
    if not isinstance(data, dict):
        raise InputError("result", "be a JSON object", type(data).__name__, where=str(path))
    if data.get("schema") == SCHEMA:
        from sim.analysis.saved_result import check_saved

        check_saved(data, str(path))
    return Result.from_dict(data, where=str(path))


def _window_steps(graph: ExecutionGraph, run: RunRecord) -> float:
    from sim.analysis.breakdown import window_steps

    return window_steps(graph, run)


def _plain(value: Any) -> Any:
    """JSON-able copy: NumPy scalars unwrapped, non-finite numbers None."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} s"


def _largest_part(parts: dict[str, float], step: float | None) -> str:
    if not parts or not step:
        return ""
    name = max(parts, key=lambda part: parts[part])
    label = name.removesuffix("_s").replace("exposed_comm", "exposed communication")
    return f"{label} ({100 * parts[name] / step:.0f} % of the step)"


def _busiest_link(links: list[dict[str, Any]]) -> str:
    if not links:
        return ""
    return f"{links[0]['link']} ({100 * float(links[0]['utilisation']):.0f} % busy)"
