"""``clusterloom trace``: read real traces of any known format."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import typer

from sim.cli.output import MISSING, console, emit_json, escape, grid, note, number, percent, seconds, size
from sim.errors import InfeasibleError, InputError
from sim.trace.memory import return_memory

command = typer.Typer(
    help="Read real traces: Kineto, execution traces, Chakra, Nsight, XPlane, timelines, AICB, SimAI, GOAL.",
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


def _marker(value: str | None) -> str | None:
    """Refuse the empty name, with which every annotation begins."""
    if value is not None and not value.strip():
        raise InputError("--step-marker", "be the beginning of a name", repr(value))
    return value


Marker = Annotated[
    str | None,
    typer.Option(
        "--step-marker", metavar="NAME", callback=_marker, help="Annotations that begin so are the steps."
    ),
]


@command.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    return_memory()
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@command.command("info")
def info(files: Files, step_marker: Marker = None, json: Json = False) -> int:
    """Per rank: device, steps, kernels, compute, (exposed) communication, idle time, collectives."""
    from sim.trace.info import trace_info
    from sim.trace.read import read

    with progress_bar() as progress:
        document = trace_info(read(files, marker=step_marker or "", progress=progress))
    if json:
        emit_json(document)
    else:
        _print(document)
    return 0


@command.command("replay")
def replay_command(
    files: Files,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EDIT",
            help="Change the job; may repeat. Edits of traced operations: no-stragglers, no-launch-delays; "
            "TYPE=mean (typical time), TYPE=FACTOR, rank:3=FACTOR (times what they took: 2 takes twice as "
            "long), TYPE being a name of the table, a pattern such as *mm*, or compute, communication, host, "
            "forward, backward; links=SPEED, device=SPEED (times as fast: 2 halves what they took); "
            "latency=5us, bandwidth=25GB/s of messages of known size. Edits of the scenario, with --cluster: "
            "tp=2, dp=64, pp=4, bucket_size=50MB, compression=fp16, overlap=false, device=NAME, "
            "cluster=NAME, any field of strategy, workload or cluster.",
        ),
    ] = None,
    cluster: Annotated[str, typer.Option(help="Cluster that the traced job ran on, by name or file.")] = "",
    strategy: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="How it ran, e.g. tp=8; default: data parallel."),
    ] = None,
    workload: Annotated[
        str, typer.Option(help="The imported workload, if the trace itself does not hold it.")
    ] = "",
    slowdowns: Annotated[
        bool | None, typer.Option(help="Cost of stragglers by type of operation; default: for op tables.")
    ] = None,
    trace: Annotated[str, typer.Option(metavar="OUT", help="Write the replay for Perfetto.")] = "",
    step_marker: Marker = None,
    json: Json = False,
) -> int:
    """Play a trace as it happened: the replay error first, then breakdown and critical path; and what if."""
    from sim.analysis.trace_what_if import is_scenario_edit
    from sim.trace.replay import replay

    for option, value in (("--strategy", " ".join(strategy or [])), ("--workload", workload)):
        if value and not cluster:
            hint = "Name the cluster that the traced job ran on: --cluster NAME (clusterloom list clusters)."
            raise InputError(option, "be given with --cluster", value, hint=hint)
    found, operations = _operations(files, step_marker or "")
    table = slowdowns if slowdowns is not None else bool(operations.stages)
    edits = [edit for edit in what_if or [] if not is_scenario_edit(edit)]
    others = [edit for edit in what_if or [] if is_scenario_edit(edit)]
    elsewhere = None
    if cluster and operations.groups and not _has_layers(found):
        name = _cluster_of_list(others, cluster)
        there = _priced(operations, name)
        others, cluster = [], ""
        if any(mark[4] for mark in operations.marks):
            elsewhere = (f"cluster={name}", there)
        else:  # it took no time anywhere: the cluster's times are the job's
            operations = there
    simulated = bool(others or (cluster and not edits))
    if not simulated:
        found = None  # of a big trace this is most of the memory
    result, played = replay(operations, edits, slowdowns=table, elsewhere=elsewhere)
    if simulated:
        changed, assumed = _scenario_what_if(found, operations, others, cluster, strategy or [], workload)
        step = (result.what_if["step_s"] if result.what_if else result.replayed_step_s) * changed.ratio
        speedup = result.replayed_step_s / step if step else None
        if not result.measured_step_s or (found is not None and found.simai is not None):
            # What the trace does not time (SimAI's collectives, execution traces) only the model does.
            step, speedup = changed.changed.step_time_s, 1 / changed.ratio
        known = {"edits": [*edits, *others], "step_s": step, "speedup": speedup}
        result.what_if = {**known, "scenario": changed.to_json(), "note": assumed}
        if others and changed.ratio == 1:
            unchanged = f"{', '.join(others)} changes nothing in the simulated job"
            result.what_if["note"] = f"{assumed}; {unchanged}" if assumed else unchanged
    parts, path = _explain(played)
    if trace:
        from pathlib import Path

        from sim.analysis.export import save_trace

        save_trace(Path(trace), played.graph, played.run)
    if json:
        emit_json({**result.to_json(), "breakdown": parts, "critical_path": path})
    else:
        _print_replay(result, parts, path)
    return 0


def _has_layers(found: Any) -> bool:
    """Whether the trace describes a workload that can be simulated with its strategy."""
    return found is not None and found.simai is not None


def _cluster_of_list(others: list[str], cluster: str) -> str:
    """Cluster that a list or schedule runs on: that of the last ``cluster=NAME`` edit, if any."""
    named = [edit for edit in others if edit.startswith("cluster=")]
    if len(named) < len(others):
        first = next(edit for edit in others if edit not in named)
        hint = "A list of operations has no layers that another strategy could split: edit times."
        raise InputError("--what-if", "be an edit that the format allows", first, hint=hint)
    return named[-1].partition("=")[2] if named else cluster


def _priced(operations: Any, cluster: str) -> Any:
    """Operations of a list or schedule with the times of their transfers on a cluster."""
    from sim.analysis.trace_prices import priced

    return priced(operations, cluster)


def _operations(files: list[str], marker: str) -> tuple[Any, Any]:
    """The trace (None for a saved job) and its operations."""
    from sim.trace.read import read
    from sim.trace.saved import SUFFIX, load_operations
    from sim.trace.to_graph import operations_of

    if any(name.endswith(SUFFIX) for name in files):
        if len(files) > 1:
            raise InputError("FILE", f"be one {SUFFIX} file alone, or traces", " ".join(files)[:80])
        return None, load_operations(files[0])
    with progress_bar() as progress:
        found = read(files, host=True, marker=marker, progress=progress)
    return found, operations_of(found)


def _scenario_what_if(
    found: Any, operations: Any, edits: list[str], cluster: str, strategy: list[str], workload: str
) -> tuple[Any, str]:
    """The simulated what-if, and a note on what it rests on."""
    from sim.analysis.trace_what_if import scenario_what_if
    from sim.analysis.traced_workload import traced_workloads
    from sim.catalog import default_catalog
    from sim.cli.output import assignments

    if not cluster:
        hint = "It says what the traced job ran on; the edits change it."
        raise InputError("--cluster", "be given with this --what-if", edits[0], hint=hint)
    if found is None and not workload:
        hint = "A saved job holds no layers: give the workload that was imported with it."
        raise InputError("--workload", "be given with this --what-if", edits[0], hint=hint)
    sizes = [rank.world_size or 0 for rank in found.ranks] if found is not None else []
    world = max([*sizes, len(found.ranks) if found is not None else 1])
    given = assignments(strategy, "--strategy") if strategy else None
    known: Iterable[Any] = [(default_catalog().workload(workload), None, "")] if workload else ()
    error: InfeasibleError | None = None
    for described, stated, assumed in known or traced_workloads(
        found, operations, cluster, world, default_catalog()
    ):
        ran = given if given is not None else stated
        try:
            return scenario_what_if(described, cluster, edits, world_size=world, strategy=ran), assumed
        except InfeasibleError as too_big:
            error = error or too_big
    assert error is not None
    raise error


@command.command("import")
def import_command(
    files: Files,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="WORKLOAD.yaml", help="The workload file.")
    ] = "",
    graph: Annotated[
        str,
        typer.Option(metavar="OUT.npz", help="The job as it happened; default: beside the workload."),
    ] = "",
    batch: Annotated[
        int | None, typer.Option(min=1, help="Samples of a forward pass; default: of the first operator.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="Device it ran on, by catalogue name; default: what the trace says.")
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the workload; default: of the file.")] = "",
    cluster: Annotated[
        str,
        typer.Option(help="Of AICB, SimAI and GOAL: the cluster that gives the kept transfers their times."),
    ] = "",
    step_marker: Marker = None,
    json: Json = False,
) -> int:
    """Make a workload of the model in a trace, with its measured times, and keep the job as it happened."""
    from sim.catalog import default_catalog
    from sim.trace.import_files import import_trace
    from sim.trace.read import read

    with progress_bar() as progress:
        found = read(files, host=True, marker=step_marker or "", progress=progress)
    summary = import_trace(
        found,
        output,
        graph=graph,
        name=name,
        batch=batch,
        device=default_catalog().device(device) if device else None,
        price=partial(_priced, cluster=cluster) if cluster else None,
    )
    if json:
        emit_json(summary)
        return 0
    for key, value in summary.items():
        if key not in ("warnings", "measured_steps", "trace_steps") and value is not None:
            text = seconds(value) if key.endswith("_s") else _plain(value)
            text += _which_steps(summary) if key == "measured_step_s" else ""
            console().print(escape(f"{key.removesuffix('_s').replace('_', ' ')}: {text}"))
    for warning in summary["warnings"]:
        console().print(escape(f"{warning['name'].replace('_', ' ')}: {warning['text']}"))
    return 0


def _which_steps(summary: dict[str, Any]) -> str:
    """Of which steps a measured step is the mean: not of all, as that of ``trace info`` is."""
    used, all_ = summary["measured_steps"], summary["trace_steps"] or 1
    if used == all_:
        return ""
    return f" (mean of {used} of {all_} steps: the first, which warms up, and unusual ones are left out)"


def _plain(value: Any) -> str:
    return number(value, 12) if isinstance(value, float) else str(value)


@command.command("export")
def export_command(
    files: Files,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="OUT", help="x.json[.gz], x.goal, or prefix x of x.RANK.et."),
    ],
    form: Annotated[
        str, typer.Option("--format", help="perfetto, chakra or goal; default: by the name.")
    ] = "",
    json: Json = False,
) -> int:
    """Write a trace for others: Perfetto/Chrome JSON, Chakra execution traces, GOAL."""
    from pathlib import Path

    from sim.trace.export import export
    from sim.trace.read import read

    with progress_bar() as progress:
        found = read(files, host=True, progress=progress)
    written = [str(path) for path in export(found, Path(output), form)]
    if json:
        emit_json({"files": written})
    else:
        for path in written:
            console().print(escape(path))
    return 0


def _explain(played: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Breakdown of the slowest rank and the critical path by task and device, biggest first."""
    from sim.analysis.critical_path import critical_path
    from sim.analysis.trace_result import explain, steps_per_period

    parts, critical, overlap = explain(played)
    path = critical_path(played.graph, played.run)
    steps = played.graph.steps_per_iteration * steps_per_period(played)
    sums = path.groupby(["task", "device"])["duration_s"].sum().sort_values(ascending=False) / steps
    rows = [
        {"task": str(task), "device": str(device), "seconds_per_step": float(value)}
        for (task, device), value in sums.items()
        if value > 1e-12
    ]
    found = {**parts, "step_time_s": sum(parts.values()), "critical_device": critical}
    return {**found, "overlap_fraction": overlap}, rows[:20]


def _print_replay(result: Any, parts: dict[str, Any], path: list[dict[str, Any]]) -> None:
    screen = console()
    measured = f"measured {seconds(result.measured_step_s)} (worst {percent(result.worst_error, 2)})"
    error = percent(result.error, 2) if result.measured_step_s else "unknown"
    screen.print(
        f"replay error {error}: step {seconds(result.replayed_step_s)}, "
        f"{measured if result.measured_step_s else 'the trace does not say how long it was'}, "
        f"unmatched kernels {result.unmatched_kernels}"
    )
    if result.what_if:
        step, speedup = seconds(result.what_if["step_s"]), result.what_if["speedup"]
        edits = ", ".join(result.what_if["edits"]) or "simulated as it ran"
        than = "as traced it takes no time" if speedup is None else f"{number(speedup)} times as fast"
        screen.print(escape(f"what if {edits}: step {step}, {than}"))
        if result.what_if.get("note"):
            screen.print(escape(result.what_if["note"]))
    if result.ideal_step_s is not None:
        without = seconds(result.undelayed_step_s)
        screen.print(f"without launch delays {without}, without stragglers {seconds(result.ideal_step_s)}")
    for table in _replay_tables(result):
        screen.print(table)
    words = [f"{key.removesuffix('_s')} {seconds(parts[key])}" for key in parts if key.endswith("_s")]
    screen.print(escape(f"{parts['critical_device']}: " + ", ".join(words)))
    rows = [(p["task"][:60], p["device"] or "several", seconds(p["seconds_per_step"])) for p in path[:8]]
    screen.print(grid([("critical path", "left"), ("device", "left"), ("per step", "right")], rows))
    for warning in result.warnings:
        text = f"{warning['name'].replace('_', ' ')}: {warning['count']:,} ({warning['text']})"
        screen.print(escape(text))


def _replay_tables(result: Any) -> Iterator[Any]:
    times = [("measured", "right"), ("replayed", "right")]
    if result.ranks:
        yield grid(
            [("rank", "right"), *times, ("error", "right")],
            [
                (
                    str(r["rank"]),
                    seconds(r["measured_s"]) if r["measured_s"] else MISSING,
                    seconds(r["replayed_s"]),
                    percent(r["error"], 2) if r["measured_s"] else MISSING,
                )
                for r in result.ranks
            ],
        )
    keys, more, title = ["measured_s", "replayed_s", "work_s"], [], "operations, with waiting; work: without"
    if result.kinds and "edited_s" in result.kinds[0]:
        keys, more = [*keys, "edited_s", "edited_work_s"], [("edited", "right"), ("its work", "right")]
        title += "; edited: with the edits"
    kinds = [(k["type"][:60], str(k["count"]), *(seconds(k[key]) for key in keys)) for k in result.kinds[:12]]
    columns = [("operation", "left"), ("count", "right"), *times, ("work", "right"), *more]
    yield grid(columns, kinds, title=title)
    slow = [row for row in result.slowdowns if row["slowdown"] > 1.00005]
    if slow:
        yield grid(
            [("straggling of", "left"), ("slowdown", "right")],
            [(row["type"], f"{row['slowdown']:.4f}") for row in slow],
        )


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
