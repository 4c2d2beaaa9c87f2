"""The columns of a results table: where each comes from, what it means, which way is better."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One measured column.

    Attributes
    ----------
    name : str
        Column name with its unit suffix; ratios have none.
    kind : str
        ``float``, ``int`` or ``text``: the type in the Parquet file.
    read : callable
        Result data -> value, or None.
    better : str
        ``min``, ``max``, or empty where neither way is better.
    meaning : str
        One line for ``--help`` and the documentation.
    """

    name: str
    kind: str
    read: Callable[[Data], Any]
    better: str
    meaning: str


def _at(*path: str) -> Callable[[Data], Any]:
    def read(data: Data) -> Any:
        value: Any = data
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    return read


def _bottleneck(key: str) -> Callable[[Data], Any]:
    def read(data: Data) -> Any:
        rows = data.get("bottlenecks") or []
        return rows[0].get(key) if rows else None

    return read


def _interval(index: int) -> Callable[[Data], Any]:
    def read(data: Data) -> Any:
        interval = data.get("step_time_interval_s")
        return interval[index] if interval else data.get("step_time_s")

    return read


def _warnings(data: Data) -> str:
    return "; ".join(str(item) for item in data.get("warnings") or ())


def _missing(data: Data) -> Any:
    peak, capacity = data.get("peak_memory_bytes"), data.get("memory_capacity_bytes")
    if data.get("status") != "infeasible":
        return None
    return peak - capacity if peak is not None and capacity is not None else data.get("missing_bytes")


def _text(name: str) -> Callable[[Data], Any]:
    return lambda data: str(data.get(name) or "")


MEASURED: tuple[Column, ...] = (
    Column(
        "status",
        "text",
        _text("status"),
        "",
        "ok, infeasible (memory), invalid (a rule refuses it) or failed",
    ),
    Column("message", "text", _text("message"), "", "why the point is not ok"),
    Column("step_time_s", "float", _at("step_time_s"), "min", "seconds of one training step"),
    Column("step_time_low_s", "float", _interval(0), "min", "lower end of the step time's interval"),
    Column("step_time_high_s", "float", _interval(1), "min", "upper end of the step time's interval"),
    Column("samples_per_step", "float", _at("samples_per_step"), "", "training samples of one step"),
    Column("samples_per_s", "float", _at("samples_per_s"), "max", "training samples per second, whole job"),
    Column(
        "tokens_per_s_per_device",
        "float",
        _at("tokens_per_s_per_device"),
        "max",
        "tokens per second and device",
    ),
    Column("mfu", "float", _at("mfu"), "max", "model FLOPs utilisation, fraction of the peak"),
    Column("num_devices", "int", _at("num_devices"), "min", "devices that compute"),
    Column("peak_memory_bytes", "float", _at("peak_memory_bytes"), "min", "memory of the fullest device"),
    Column("memory_capacity_bytes", "float", _at("memory_capacity_bytes"), "max", "memory of that device"),
    Column("missing_bytes", "float", _missing, "min", "bytes that an infeasible point lacks"),
    Column(
        "compute_s", "float", _at("breakdown", "compute_s"), "min", "computing, per step, critical device"
    ),
    Column(
        "exposed_comm_s", "float", _at("breakdown", "exposed_comm_s"), "min", "communication nothing hides"
    ),
    Column("bubble_s", "float", _at("breakdown", "bubble_s"), "min", "idle: nothing to do"),
    Column("wait_s", "float", _at("breakdown", "wait_s"), "min", "waiting for a peer"),
    Column("data_s", "float", _at("breakdown", "data_s"), "min", "waiting for input data"),
    Column("optimizer_s", "float", _at("breakdown", "optimizer_s"), "min", "optimiser update"),
    Column("communication_s", "float", _at("communication_s"), "min", "communicating, hidden or not"),
    Column("busy_fraction", "float", _at("busy_fraction"), "max", "share of time the devices compute"),
    Column(
        "overlap_fraction", "float", _at("overlap_fraction"), "max", "communication hidden behind compute"
    ),
    Column("bottleneck_link", "text", _bottleneck("link"), "", "most loaded link"),
    Column("bottleneck_kind", "text", _bottleneck("kind"), "", "kind of the most loaded link"),
    Column(
        "bottleneck_utilisation", "float", _bottleneck("utilisation"), "", "share of time it carries bytes"
    ),
    Column(
        "staleness_mean",
        "float",
        _at("staleness", "mean"),
        "min",
        "updates between a pull and its own update",
    ),
    Column(
        "staleness_p95", "float", _at("updates", "staleness_p95"), "min", "staleness of 95 % of the updates"
    ),
    Column("samples_per_update", "float", _at("updates", "samples_per_update"), "", "samples of one update"),
    Column(
        "effective_batch_size",
        "float",
        _at("updates", "effective_batch_size"),
        "",
        "samples whose gradients are applied together",
    ),
    Column(
        "bytes_per_update_per_worker",
        "float",
        _at("updates", "bytes_per_update_per_worker"),
        "min",
        "gradients and parameters a worker moves for an update",
    ),
    Column(
        "dropped_gradient_share",
        "float",
        _at("updates", "dropped_gradient_share"),
        "min",
        "gradients that came too late, by bytes",
    ),
    Column("epochs_to_target", "float", _at("convergence", "epochs_to_target"), "min", "by the user's curve"),
    Column("time_to_target_s", "float", _at("convergence", "time_to_target_s"), "min", "by the user's curve"),
    Column("cost_to_target", "float", _at("convergence", "cost_to_target"), "min", "dollars, by the curve"),
    Column("energy_joules_per_step", "float", _at("energy_joules_per_step"), "min", "energy of one step"),
    Column("price_per_step", "float", _at("price_per_step"), "min", "dollars of one step"),
    Column("price_per_sample", "float", _at("price_per_sample"), "min", "dollars per training sample"),
    Column("warnings", "text", _warnings, "", "what the model doubts about the point"),
)
DERIVED: tuple[Column, ...] = (
    Column(
        "scaling_efficiency", "float", _at("scaling_efficiency"), "max",
        "samples/s per device over that of the best point of the same workload with the fewest devices",
    ),
)  # fmt: skip
BY_NAME: dict[str, Column] = {column.name: column for column in (*MEASURED, *DERIVED)}


def names_hint(wanted: str, columns: Collection[str]) -> str:
    """What to try instead of a name that is no column: the nearest one, and those that can be ranked by."""
    close = difflib.get_close_matches(wanted, list(columns), 1, 0.4)
    listed = ", ".join(name for name, column in BY_NAME.items() if column.better and name in columns)
    return f"{f'Try {close[0]}. ' if close else ''}Columns: {listed}, and fields that vary."


def numeric_columns(parameters: Iterable[Mapping[str, Any]]) -> list[str]:
    """Columns that points can be ranked by: measured ones that are no text, and fields with numbers only.

    Parameters
    ----------
    parameters : iterable of mapping
        Leading columns of each point.
    """
    texts, seen = set[str](), dict[str, None]()
    for point in parameters:
        for name, value in point.items():
            seen[name] = None
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                texts.add(name)
    own = [name for name in seen if name not in texts]
    return own + [name for name, column in BY_NAME.items() if name not in seen and column.kind != "text"]


def direction(name: str) -> str:
    """``min`` or ``max`` for a column; parameters and unknown columns are minimised."""
    column = BY_NAME.get(name)
    return column.better if column is not None and column.better else "min"
