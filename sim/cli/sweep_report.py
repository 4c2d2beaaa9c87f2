"""What ``clusterloom sweep`` prints and writes: rankings, refusals, measurements, figures, a timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.cli.output import escape, grid, note, number, percent, seconds, size
from sim.errors import ClusterloomError, InputError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from sim.sweep.runner import SweepResult

DEFAULT_OBJECTIVE = "samples_per_s"
_BUILT_IN_RUNS = "measurements/training_runs_dlperf.csv"
_GROUP = ("workload", "cluster", "num_devices")
_MAX_REASONS = 12
_COLUMNS = (
    ("#", "right"), ("strategy", "left"), ("samples/s", "right"), ("scaling", "right"), ("step", "right"),
    ("exposed comm.", "right"), ("bubble + wait", "right"), ("memory", "right"), ("busiest link", "left"),
)  # fmt: skip


def show(
    screen: Console,
    result: SweepResult,
    table: pd.DataFrame,
    runs: pd.DataFrame | None,
    top: int,
    *,
    searched: bool,
) -> None:
    """Print everything a reader wants to know of a sweep."""
    from sim.sweep.columns import direction
    from sim.sweep.table import ranked

    objective = result.plan.objective or ("step_time_s" if searched else DEFAULT_OBJECTIVE)
    if searched:
        title = f"best by {objective} ({direction(objective)})"
        _ranking(screen, result.best_table, objective, len(result.best), title, mixed=True)
    else:
        rows = meeting(result, table)
        for (workload, cluster, devices), group in rows.groupby(list(_GROUP), sort=False, observed=True):
            part = ranked(group, objective, direction(objective))
            title = f"{workload} on {devices} device{'' if devices == 1 else 's'} of {cluster}"
            _ranking(screen, part, objective, top, title)
        _effects(screen, effects_of(result, table))
        if reminder := unequal_samples(rows):
            screen.print(f"{reminder}\n", soft_wrap=True)
    if runs is not None and len(runs):
        _measurements(screen, runs)
    _refusals(screen, result)


def unequal_samples(rows: pd.DataFrame) -> str:
    """One line for rankings in which a sample is not worth the same everywhere; empty where it is."""
    from sim.taxonomy.synchronizations import SYNCHRONIZATIONS

    ok = rows[rows["status"] == "ok"]
    if len(ok) and not ok["epochs_to_target"].isna().any():
        return ""
    used = [name for name in ok["strategy.synchronization"].dropna().unique() if name in SYNCHRONIZATIONS]
    loose = sorted(name for name in used if SYNCHRONIZATIONS[name].pace != "synchronous")
    if not loose or len(loose) == len(used):
        return ""
    return (
        f"samples/s leave out convergence: where workers drift apart ({', '.join(loose)}) a sample is worth "
        "less. With a curve of yours (--set convergence=FILE) the table has time_to_target_s."
    )


def meeting(result: SweepResult, table: pd.DataFrame) -> pd.DataFrame:
    """The rows that meet the sweep's condition; all of them without one."""
    from sim.sweep.where import Where

    if not result.plan.where:
        return table
    condition = Where.parse(result.plan.where)
    return table[[condition.matches(row) for row in table.to_dict("records")]]


def effects_of(result: SweepResult, table: pd.DataFrame) -> pd.DataFrame | None:
    """Main effects of a comparison (``axes: taxonomy``) over the rows that meet its condition; else None."""
    from sim.sweep.comparison import dimensions_of, main_effects

    if not dimensions_of(table):
        return None
    return main_effects(meeting(result, table), result.plan.objective or DEFAULT_OBJECTIVE)


def _effects(screen: Console, effects: pd.DataFrame | None) -> None:
    if effects is None:
        return
    for (workload, cluster, devices), part in effects.groupby(list(_GROUP), sort=False, observed=True):
        lines = []
        for _, values in part.groupby("dimension", sort=False):
            for row in values.sort_values("effect", ascending=False, kind="stable").to_dict("records"):
                effect = f"{100 * row['effect']:+.1f} %"
                lines.append(
                    [row["dimension"], row["value"], str(row["points"]), effect, number(row["best"])]
                )
        columns = [
            ("dimension", "left"), ("value", "left"), ("points", "right"),
            ("effect", "right"), ("best", "right"),
        ]  # fmt: skip
        title = f"what each value costs or gains: {workload} on {devices} devices of {cluster}"
        screen.print(grid(columns, lines, title=title))
        explained = percent(float(part["r_squared"].iloc[0]), 0)
        screen.print(f"  effects that add up explain {explained} of the variance of the logarithm\n")


def _ranking(
    screen: Console, rows: pd.DataFrame, objective: str, top: int, title: str, *, mixed: bool = False
) -> None:
    """Rows, best first; ``mixed`` ones differ in workload and size, and have no common base to scale from."""
    lead = [("workload", "left"), ("devices", "right")] if mixed else []
    extra = [] if objective in (DEFAULT_OBJECTIVE, "step_time_s") else [(objective, "right")]
    columns = [column for column in _COLUMNS if not (mixed and column[0] == "scaling")]
    lines = []
    labels = distinct_labels(rows)
    for rank, row in enumerate(rows.head(top).to_dict("records"), start=1):
        idle = (row["bubble_s"] or 0.0) + (row["wait_s"] or 0.0)
        where = [str(row["workload"]), str(row["num_devices"])] if mixed else []
        scaling = [] if mixed else [percent(row["scaling_efficiency"])]
        line = [
            str(rank), *where, labels[rank - 1], number(row["samples_per_s"]), *scaling,
            seconds(row["step_time_s"]), seconds(row["exposed_comm_s"]), seconds(idle),
            size(row["peak_memory_bytes"]), _link(row),
        ]  # fmt: skip
        lines.append([*line, *(number(row[name]) for name, _ in extra)])
    screen.print(grid([columns[0], *lead, *columns[1:], *extra], lines, title=title))
    if len(rows) > top:
        screen.print(f"  ... and {len(rows) - top} more in results.parquet\n")


def distinct_labels(rows: pd.DataFrame) -> list[str]:
    """The strategy of each row; where several rows show the same, also the fields in which these differ."""
    from sim.sweep.columns import BY_NAME
    from sim.sweep.comparison import PREFIX

    shown = [*_GROUP[::2], "strategy"]
    fields = [name for name in map(str, rows) if name not in BY_NAME and not name.startswith(PREFIX)]
    labels = rows["strategy"].astype(str).to_dict()
    for _, alike in rows.groupby(shown, sort=False, observed=True):
        differing = [name for name in fields if name not in shown and alike[name].nunique(dropna=False) > 1]
        for index, row in zip(alike.index, alike.to_dict("records"), strict=True):
            said = ", ".join(f"{name.removeprefix('strategy.')}={row[name]}" for name in differing)
            labels[index] += f"; {said}" if said else ""
    return list(labels.values())


def _link(row: Mapping[Any, Any]) -> str:
    name = row.get("bottleneck_link")
    if not isinstance(name, str):
        return "-"
    return f"{name} {percent(row.get('bottleneck_utilisation'), 0)}"


def _measurements(screen: Console, runs: pd.DataFrame) -> None:
    lines = [
        [
            str(row["workload"]), str(row["num_devices"]), f"{row['dtype']} x{row['batch_per_device']}",
            number(row["samples_per_s"], 5), number(row["measured_samples_per_s"], 5),
            str(row["framework"]), f"{100 * row['step_time_error']:+.1f} %",
            f"{number(row['slowest_samples_per_s'], 5)} ({row['frameworks']} frameworks)",
        ]
        for row in runs.to_dict("records")
    ]  # fmt: skip
    columns = [
        ("workload", "left"), ("devices", "right"), ("batch/device", "left"),
        ("predicted samples/s", "right"), ("measured, fastest", "right"), ("framework", "left"),
        ("step time error", "right"), ("slowest", "left"),
    ]  # fmt: skip
    screen.print(
        grid(columns, lines, title="published measurements beside the prediction (default data parallelism)")
    )
    error = float(runs["step_time_error"].abs().mean())
    screen.print(f"  mean absolute error of the step time {percent(error)} over {len(runs)} points\n")


def _refusals(screen: Console, result: SweepResult) -> None:
    reasons = result.refusals()
    if not reasons:
        return
    total = sum(len(points) for points in reasons.values())
    screen.print(f"[bold]refused, infeasible or failed: {total} point{'' if total == 1 else 's'}[/bold]")
    for reason, points in sorted(reasons.items(), key=lambda item: -len(item[1]))[:_MAX_REASONS]:
        names = Counter(points).most_common(2)
        examples = "; ".join(name for name, _ in names)
        more = ", ..." if len(set(points)) > len(names) else ""
        screen.print(f"  {len(points)} x {escape(reason)}", soft_wrap=True)
        screen.print(f"      {escape(examples)}{more}", soft_wrap=True, style="dim")
    if len(reasons) > _MAX_REASONS:
        screen.print(f"  ... and {len(reasons) - _MAX_REASONS} more reasons (column `message`)")


def summary_line(result: SweepResult) -> str:
    """One line: how many points, from where, how fast."""
    counts = ", ".join(
        f"{count} {status}" for status, count in sorted(result.counts.items(), key=lambda i: -i[1])
    )
    rate = (
        f", {result.computed / result.wall_s:.1f} points/s" if result.computed and result.wall_s > 0 else ""
    )
    parts = [
        f"{len(result.plan.points)} points: {counts}",
        f"{result.computed} simulated in {result.wall_s:.1f} s{rate}",
    ]
    if result.resumed:
        parts.append(f"{result.resumed} taken from the store")
    if result.pruned:
        parts.append(f"{result.pruned} pruned by the bound")
    if result.unfit:
        parts.append(f"{result.unfit} cannot meet the condition")
    if result.plan.excluded:
        parts.append(f"{result.plan.excluded} excluded by the condition")
    return "; ".join(parts)


def published(result: SweepResult, table: pd.DataFrame, path: str) -> pd.DataFrame | None:
    """Measured runs of the table's own workloads on its clusters; None if there are none."""
    from sim.catalog import default_catalog
    from sim.sweep.measured import as_named, beside, read_runs

    if not (table["status"] == "ok").any():
        return None
    if not path:
        try:
            path = str(default_catalog().data_file(_BUILT_IN_RUNS))
        except InputError:
            return None
    joined = beside(table[as_named(result)], read_runs(path))
    return joined if len(joined) else None


def write_figures(
    result: SweepResult, table: pd.DataFrame, runs: pd.DataFrame | None, folder: Path
) -> list[Path]:
    """Pareto, scaling and breakdown figures and a timeline; a full disk is one error."""
    from sim import plot

    ok = table[table["status"] == "ok"]
    if ok.empty:
        return []
    written = []
    try:
        written.append(plot.pareto(ok, "peak_memory_bytes", "samples_per_s").save(folder / "pareto.png"))
        if ok["num_devices"].nunique() > 1:
            beside = None if runs is None else _measured_points(runs)
            written.append(plot.scaling(ok, measured=beside).save(folder / "scaling.png"))
        written.append(plot.breakdown(_spread(ok)).save(folder / "breakdown.png"))
        effects = effects_of(result, table)
        if effects is not None:
            written.append(plot.main_effects(effects).save(folder / "main_effects.png"))
        written += _timeline(result, ok, folder)
    except OSError as error:
        raise InputError("--out", f"be writable ({(error.strerror or str(error)).lower()})", folder) from None
    return written


def _measured_points(runs: pd.DataFrame) -> pd.DataFrame:
    points = runs[["workload", "num_devices", "measured_samples_per_s"]].rename(
        columns={"measured_samples_per_s": "samples_per_s"}
    )
    return points.assign(series="fastest framework")


def _spread(ok: pd.DataFrame, count: int = 5) -> pd.DataFrame:
    """Strategies of each workload at its largest size, from the fastest to the slowest, labelled."""
    import pandas as pd

    parts = []
    for workload in dict.fromkeys(ok["workload"]):
        rows = ok[ok["workload"] == workload]
        rows = rows[rows["num_devices"] == rows["num_devices"].max()].sort_values(
            "step_time_s", kind="stable"
        )
        wanted = sorted({round(i * (len(rows) - 1) / (count - 1)) for i in range(count)})
        part = rows.iloc[wanted]
        parts.append(part.assign(strategy=f"{workload}: " + part["strategy"].astype(str)))
    joined: pd.DataFrame = pd.concat(parts)
    return joined


def _timeline(result: SweepResult, ok: pd.DataFrame, folder: Path) -> list[Path]:
    """Simulate the fastest largest point of the first workload again, for its trace."""
    from sim.analysis.simulate import simulate

    first = ok[ok["workload"] == ok["workload"].iloc[0]]
    row = int(first.sort_values(["num_devices", "samples_per_s"], ascending=False, kind="stable").index[0])
    kept = [point for point, data in zip(result.plan.points, result.results, strict=True) if data is not None]
    try:
        again = simulate(result.plan.context.scenario(kept[row].overrides))
        return [again.save_trace(folder / "timeline.json.gz")]
    except ClusterloomError as error:
        note(f"no timeline: {error}")
        return []
