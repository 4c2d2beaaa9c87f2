"""``clusterloom trace``: read real traces of any known format."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from sim.cli.output import MISSING, console, emit_json, escape, grid, note, seconds, size

command = typer.Typer(
    help="Read real traces: Kineto, execution traces, Chakra, Nsight, XPlane, timelines, AICB, SimAI, op tables, GOAL.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...", help="Trace files, archives or folders; all ranks of one job together."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON in SI units.")]


@command.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@command.command("info")
def info(files: Files, json: Json = False) -> int:
    """Per rank: device, steps, kernels, compute, communication, exposed communication, idle time, collectives."""
    from sim.trace.info import trace_info
    from sim.trace.read import read

    with progress_bar() as progress:
        document = trace_info(read(files, progress=progress))
    if json:
        emit_json(document)
    else:
        _print(document)
    return 0


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr for big files; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = ("reading", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update


def _print(document: dict[str, Any]) -> None:
    screen = console()
    for entry in document["files"]:
        ranks = "1 rank" if entry["ranks"] == 1 else f"{entry['ranks']} ranks"
        screen.print(escape(f"{entry['name']}  {entry['format']}, {ranks}"))
    if document["ranks"]:
        screen.print(_rank_table(document["ranks"]))
    _print_steps(screen, document)
    for rank in document["ranks"][:8]:
        if rank["collectives"]:
            screen.print(_collective_table(rank))
    hidden = len(document["ranks"]) - 8
    if hidden > 0:
        note(f"collectives of {hidden} more ranks: --json")
    _print_warnings(screen, document)


def _rank_table(ranks: list[dict[str, Any]]) -> Any:
    columns = [
        (name, "right")
        for name in ("rank", "kernels", "compute", "comm", "exposed", "idle", "span", "comm sum")
    ]
    columns[1:1] = [("of", "right"), ("device", "left"), ("steps", "right"), ("mean step", "right")]
    rows = []
    for rank in ranks:
        times = [step["duration_s"] for step in rank["steps"] if step["duration_s"] is not None]
        rows.append(
            (
                _text(rank["rank"]),
                _text(rank["world_size"]),
                rank["device"] or MISSING,
                str(len(rank["steps"])),
                seconds(sum(times) / len(times)) if times else MISSING,
                f"{rank['num_compute']} + {rank['num_comm']}",
                *(
                    seconds(rank[key])
                    for key in ("compute_s", "comm_s", "exposed_comm_s", "idle_s", "span_s")
                ),
                seconds(rank["comm_sum_s"]),
            )
        )
    return grid(columns, rows)


def _print_steps(screen: Any, document: dict[str, Any]) -> None:
    steps = document["steps"]
    if steps:
        times = [step["duration_s"] for step in steps]
        mean = sum(times) / len(times)
        screen.print(
            f"job: {len(steps)} steps, mean {seconds(mean)} ({seconds(min(times))} .. {seconds(max(times))})"
        )


def _collective_table(rank: dict[str, Any]) -> Any:
    columns = [
        ("collective", "left"),
        ("group", "left"),
        ("ranks", "right"),
        ("size", "right"),
        ("count", "right"),
    ]
    columns += [("sum", "right"), ("min", "right"), ("max", "right")]
    ordered = sorted(rank["collectives"], key=lambda c: -(c["sum_s"] or 0.0))
    rows = [
        (
            c["kind"],
            c["group"] or MISSING,
            _text(c["group_size"]),
            size(c["size_bytes"]),
            str(c["count"]),
            *(seconds(c[key]) for key in ("sum_s", "min_s", "max_s")),
        )
        for c in ordered[:12]
    ]
    title = f"rank {_text(rank['rank'])}"
    return grid(columns, rows, title=title if len(ordered) <= 12 else f"{title}, 12 of {len(ordered)} rows")


def _print_warnings(screen: Any, document: dict[str, Any]) -> None:
    total: dict[str, list[Any]] = {}
    for source in (document, *document["ranks"]):
        for warning in source["warnings"]:
            entry = total.setdefault(warning["name"], [0, warning["text"]])
            entry[0] += warning["count"]
    for name, (count, text) in sorted(total.items()):
        screen.print(escape(f"{name.replace('_', ' ')}: {count:,} ({text})"))


def _text(value: Any) -> str:
    return MISSING if value is None else str(value)
