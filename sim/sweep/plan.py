"""From a Sweep (or a workload, a cluster and axes) to the list of points that will be computed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from sim.errors import ClusterloomError, InputError
from sim.spec import Scenario, Strategy, Sweep
from sim.spec.sweep import is_bundle, limit_points, refuse_shared
from sim.sweep.columns import BY_NAME, names_hint, numeric_columns
from sim.sweep.comparison import taxonomy_axes, with_labels
from sim.sweep.context import Context, canonical
from sim.sweep.evaluate import failure
from sim.sweep.label import describe
from sim.sweep.where import Where


@dataclass(frozen=True)
class Point:
    """One point of a sweep.

    Attributes
    ----------
    index : int
        Row of the table.
    overrides : dict
        Dotted field -> value, over the plan's base.
    key : str
        Identity of the scenario; empty for a point that cannot be made into one.
    parameters : dict
        Leading columns of the row.
    error : dict or None
        Result data of a point that is already known to be bad.
    refusal : ClusterloomError or None
        Why it is bad.
    """

    index: int
    overrides: dict[str, Any]
    key: str
    parameters: dict[str, Any]
    error: dict[str, Any] | None = None
    refusal: ClusterloomError | None = None


@dataclass(frozen=True)
class Plan:
    """Everything a sweep will do, decided before the first point runs; ``excluded`` points never run."""

    name: str
    context: Context
    points: tuple[Point, ...]
    excluded: int = 0
    where: str = ""
    objective: str = ""

    @property
    def columns(self) -> list[str]:
        """Columns the table will have."""
        own = dict.fromkeys(name for point in self.points for name in point.parameters)
        return [*own, *(name for name in BY_NAME if name not in own)]


def plan_sweep(
    sweep: Sweep,
    *,
    overrides: Mapping[str, Any] | None = None,
    where: str = "",
    objective: str = "",
    folders: tuple[str, ...] = (),
    **options: Any,
) -> Plan:
    """Plan of a Sweep spec.

    Parameters
    ----------
    sweep : Sweep
        What to vary.
    overrides : mapping, optional
        Dotted field -> value (from ``--set``) that replaces what the sweep says, axes included.
    where, objective : str
        Replace the sweep's own.
    folders : tuple of str
        Catalogue folders of the user.
    options
        ``simulate`` and ``optimist`` of the Context.
    """
    fixed = {canonical(name): value for name, value in (overrides or {}).items()}
    written, chosen = taxonomy_axes(sweep) if sweep.axes == "taxonomy" else (sweep, {})
    points = [{**point, **fixed} for point in written.expand()]
    context = Context(folders=folders, **options)
    try:
        plan = build_plan(sweep.name, context, points, where=where or sweep.where or "")
    except InputError as error:
        if error.field == "--where" and not where:
            error.field = "where"
        raise
    plan = with_labels(plan, chosen)
    wanted = objective or sweep.objective or ""
    if wanted:
        check_objective(plan, wanted, "--objective" if objective else "objective")
    return replace(plan, objective=wanted)


def check_objective(plan: Plan, wanted: str, field: str) -> None:
    """Refuse to rank by what is no column, or none of numbers."""
    numeric = numeric_columns(point.parameters for point in plan.points)
    if wanted not in numeric:
        known = wanted in plan.columns
        must = "be a numeric column" if known else "be a column of the table"
        raise InputError(field, must, wanted, hint=names_hint(wanted, numeric))


def plan_axes(
    base: Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]],
    *,
    where: str = "",
    name: str = "sweep",
    **options: Any,
) -> Plan:
    """Plan of a product of axes over a base of names or specs; what ``sim.sweep(...)`` uses."""
    for axis, values in axes.items():
        if isinstance(values, str) or not isinstance(values, Iterable) or not list(values):
            raise InputError(f"axes.{axis}", "be a list with at least one value", values)
    limit_points(axes.values())
    refuse_shared({canonical(axis): list(values) for axis, values in axes.items()})
    choices = [
        [item if is_bundle(canonical(axis), item) else {axis: item} for item in values]
        for axis, values in axes.items()
    ]
    points = [{k: v for part in parts for k, v in part.items()} for parts in product(*choices)]
    return build_plan(name, Context(base=dict(base), **options), points, where=where)


def build_plan(name: str, context: Context, points: Sequence[Mapping[str, Any]], *, where: str = "") -> Plan:
    """Resolve every point once: its key, its leading columns, or the error it will show.

    A ``where`` that speaks of the points' own columns only is applied here, so that what it excludes is
    never computed; any other is left to the results.
    """
    condition = Where.parse(where) if where else None
    flat = [_flatten(point) for point in points]
    varied = [name for name in dict.fromkeys(key for point in flat for key in point) if _varies(name, flat)]
    labels = {name: mapping_labels([point.get(name) for point in flat]) for name in varied}
    resolved: list[Point] = []
    excluded = 0
    seen: set[str] = set()
    for overrides in flat:
        point = _resolve(context, overrides, len(resolved), labels)
        if (
            condition is not None
            and condition.decidable_by(point.parameters)
            and not condition.matches(point.parameters)
        ):
            excluded += 1
            continue
        identity = point.key or repr(point.overrides)
        if identity not in seen:
            seen.add(identity)
            resolved.append(point)
    plan = Plan(name, context, tuple(resolved), excluded, where)
    if excluded and not resolved:
        raise InputError(
            "where", "leave at least one point", where or None, hint=f"It excludes all {excluded}."
        )
    if condition is not None:
        condition.check(plan.columns)
    _refuse_if_all_fail(resolved)
    return plan


Labels = Mapping[str, Mapping[str, str]]
"""Varied field -> ``repr`` of a value that is a mapping -> its short name."""


def mapping_labels(values: Iterable[Any]) -> dict[str, str]:
    """Short names for the values of an axis that are mappings, by their ``repr``: what sets them apart.

    ``{kind: torus, latency: 1us}`` and ``{kind: rail_only, latency: 1us}`` are ``kind: torus`` and
    ``kind: rail_only``.
    """
    mappings = {repr(value): value for value in values if isinstance(value, Mapping)}
    if not mappings:
        return {}
    entries = {key: {f"{name}: {item}" for name, item in value.items()} for key, value in mappings.items()}
    shared = set.intersection(*entries.values())
    for left_out in (shared, set[str]()):
        labels = {
            key: ", ".join(f"{n}: {v}" for n, v in value.items() if f"{n}: {v}" not in left_out)
            for key, value in mappings.items()
        }
        if all(labels.values()) and len(set(labels.values())) == len(labels):
            break
    return {key: label or "{}" for key, label in labels.items()}


def _varies(name: str, points: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a field differs between points, or is no column of its own anyway."""
    return len({repr(point.get(name)) for point in points}) > 1


def _refuse_if_all_fail(points: Sequence[Point]) -> None:
    """A sweep in which no point makes sense is an input error, not a table of failures."""
    if not points:
        raise InputError("sweep", "have at least one point")
    refusals = {str(point.refusal) for point in points}
    first = points[0].refusal
    if first is None or len(refusals) > 1:
        return
    if not isinstance(first, InputError):
        raise InputError("sweep", "have a point that can run", hint=f"Every one fails with: {first}")
    hint = f"{first.hint} It stops every point of the sweep.".strip()
    raise InputError(first.field, first.must, first.got, hint=hint, where=first.where)


def _flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping for a root is its fields (and ``name``, what they change)."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and canonical(name) in ("workload", "cluster", "strategy"):
            inner = dict(value)
            if "name" in inner:
                flat[name] = inner.pop("name")
            flat |= {f"{name}.{key}": item for key, item in inner.items()}
        else:
            flat[canonical(name)] = value
    return flat


def _resolve(context: Context, overrides: dict[str, Any], index: int, varied: Labels) -> Point:
    try:
        scenario = context.scenario(overrides)
    except ClusterloomError as error:
        values = {**context.base, **overrides}
        parameters = {name: _label(values.get(name)) for name in ("workload", "cluster", "strategy")}
        fields = {name: _scalar(value) for name, value in values.items() if name.startswith("strategy.")}
        parameters |= {**fields, **_other(overrides, varied)}
        return Point(index, overrides, "", parameters, failure(error), error)
    key = f"{scenario.key()}-{code_digest()}"
    return Point(index, overrides, key, _parameters(scenario, context, overrides, varied))


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Digest of the simulator's own source: a point computed by other code is not the same point.

    The version alone does not tell two states of a checkout apart; a journal would then hand out results
    of yesterday's models.
    """
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _parameters(
    scenario: Scenario, context: Context, overrides: Mapping[str, Any], varied: Labels
) -> dict[str, Any]:
    strategy = scenario.strategy
    preset = overrides.get("strategy", context.base.get("strategy"))
    own = any(
        name.startswith("strategy.") and name != "strategy.dp" for name in {**context.base, **overrides}
    )
    label = preset if isinstance(preset, str) and not own else describe(strategy)
    return {
        "workload": scenario.workload.name,
        "cluster": scenario.cluster.name,
        "num_hosts": scenario.cluster.num_hosts,
        "dtype": scenario.workload.dtype,
        "strategy": label,
        **{f"strategy.{name}": _scalar(getattr(strategy, name)) for name in Strategy.model_fields},
        **_other(overrides, varied),
    }


def _other(overrides: Mapping[str, Any], varied: Labels) -> dict[str, Any]:
    """Varied fields that have no column of their own."""
    taken = {"workload", "cluster", "strategy", "cluster.num_hosts", "workload.dtype"}
    names = [name for name in varied if name not in taken and not name.startswith("strategy.")]
    return {name: varied[name].get(repr(overrides.get(name)), _scalar(overrides.get(name))) for name in names}


def _label(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(getattr(value, "name", value))


def _scalar(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value
