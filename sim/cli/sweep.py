"""``clusterloom sweep``: many scenarios, resumable; or the best of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.output import assignments, console, emit_json, existing_folders, note, records
from sim.errors import Terminated

if TYPE_CHECKING:
    from sim.sweep.plan import Plan
    from sim.sweep.runner import SweepResult

EXIT_NOTHING_FOUND, EXIT_FAILED_POINTS = 3, 4


def command(
    sweep: Annotated[str, typer.Argument(help="Sweep name or YAML file.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Fix a field in all points; may repeat."),
    ] = None,
    where: Annotated[
        str, typer.Option(help="Condition on columns, e.g. 'peak_memory_bytes<80GB and mfu>40%'.")
    ] = "",
    objective: Annotated[str, typer.Option(help="Column to rank by; its sensible direction is known.")] = "",
    best: Annotated[
        int | None, typer.Option(min=1, help="Search the N best; points that cannot win are pruned.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, dask or ray.")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; all CPUs if absent.")] = None,
    out: Annotated[
        str, typer.Option(help="Folder of the table, figures and timeline; NAME-output if absent.")
    ] = "",
    store: Annotated[str, typer.Option(help="Folder of the journal; OUT/store if absent.")] = "",
    top: Annotated[int, typer.Option(min=1, help="Rows to print per workload and device count.")] = 8,
    measured: Annotated[
        str, typer.Option(help="CSV of published runs to put beside; the built-in ones if absent.")
    ] = "",
    calibration: Annotated[
        list[str] | None, typer.Option(help="Calibration; may repeat, later ones win.")
    ] = None,
    catalog: Annotated[
        list[str] | None, typer.Option(help="Folder of your own catalogue; may repeat.")
    ] = None,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Write figures and a timeline.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> int:
    """Simulate many scenarios, or search the best; a restart continues where it stopped."""
    from sim.catalog import Catalog
    from sim.sweep.plan import plan_sweep

    folders = existing_folders(catalog or ())
    fixed: dict[str, Any] = {"calibration": tuple(calibration)} if calibration else {}
    found = Catalog(folders)
    fixed |= assignments(set_ or ())
    with found.located("sweep", sweep, fixed):
        plan = plan_sweep(
            found.sweep(sweep), overrides=fixed, where=where, objective=objective, folders=folders
        )
    folder = Path(out or f"{plan.name}-output")
    result = _compute(plan, best, engine, workers, Path(store) if store else folder / "store")
    return _report(result, plan, folder, best is not None, top, measured, plots=plots, json=json)


def _compute(plan: Plan, best: int | None, engine: str, workers: int | None, store: Path) -> SweepResult:
    from sim.cli.progress import progress_bar
    from sim.sweep.runner import run

    try:
        with progress_bar(plan.name) as progress:
            if best is None:
                return run(plan, engine=engine, num_workers=workers, store=store, progress=progress)
            from sim.sweep.best import Search, search

            wanted = Search(best, plan.objective or "step_time_s", where=plan.where)
            return search(plan, wanted, engine=engine, num_workers=workers, store=store, progress=progress)
    except (KeyboardInterrupt, Terminated):
        note(f"interrupted: finished points are kept in {store}; the same command continues")
        raise


def _report(
    result: SweepResult,
    plan: Plan,
    folder: Path,
    searched: bool,
    top: int,
    measured: str,
    *,
    plots: bool,
    json: bool,
) -> int:
    from sim.cli import sweep_report
    from sim.sweep.table import write_parquet

    for notice in result.notices:
        note(notice)
    table = result.best_table if searched else result.table
    if not searched and result.plan.where and not len(sweep_report.meeting(result, table)):
        note(f"no point meets the condition {result.plan.where!r}")
    files = [folder / ("best.parquet" if searched else "results.parquet")]
    write_parquet(table, files[0])
    runs = None if searched else sweep_report.published(result, table, measured)
    if plots and not searched:
        files += sweep_report.write_figures(result, table, runs, folder)
    if json:
        rows = table if searched else sweep_report.meeting(result, table)
        effects = None if searched else sweep_report.effects_of(result, table)
        extra = {} if effects is None else {"main_effects": records(effects)}
        emit_json({**_summary(result), **extra, "rows": records(rows)})
    else:
        sweep_report.show(console(), result, table, runs, top, searched=searched)
    note(sweep_report.summary_line(result))
    note("written: " + ", ".join(str(path) for path in files))
    if result.num_failed:
        return EXIT_FAILED_POINTS
    return EXIT_NOTHING_FOUND if searched and not result.best else 0


def _summary(result: SweepResult) -> dict[str, Any]:
    return {
        "name": result.plan.name,
        "points": len(result.plan.points),
        "excluded": result.plan.excluded,
        "counts": result.counts,
        "computed": result.computed,
        "resumed": result.resumed,
        "pruned": result.pruned,
        "unfit": result.unfit,
        "refused": {reason: len(points) for reason, points in result.refusals().items()},
    }
