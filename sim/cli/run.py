"""``clusterloom run``: simulate one scenario and show where its time, memory and money go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.output import assignments, console, existing_folders, note
from sim.cli.progress import progress_bar, ticking
from sim.errors import InputError

if TYPE_CHECKING:
    from sim.analysis.result import Result
    from sim.catalog import Catalog
    from sim.spec import Scenario

EXIT_CODES = {"ok": 0, "infeasible": 3, "invalid": 3, "failed": 1}


def command(
    workload: Annotated[str, typer.Argument(help="Workload name, or a scenario file (then no CLUSTER).")],
    cluster: Annotated[str, typer.Argument(help="Cluster name or file.")] = "",
    strategy: Annotated[
        str | None, typer.Option(help="Strategy preset or file; data parallel if absent.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="E.g. strategy.tp=8; may repeat.")
    ] = None,
    num_hosts: Annotated[int | None, typer.Option(min=1, help="Number of hosts of the cluster.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    fidelity: Annotated[str, typer.Option(help="fluid (links are shared) or analytic (idle network).")] = "",
    jitter: Annotated[str, typer.Option(help="Variation of compute times, e.g. 0.05 or 5%.")] = "",
    slow_rank: Annotated[
        list[str] | None, typer.Option(metavar="RANK=FACTOR", help="E.g. 3=1.2; may repeat.")
    ] = None,
    calibration: Annotated[
        list[str] | None, typer.Option(help="Calibration name or file; may repeat, later ones win.")
    ] = None,
    convergence: Annotated[
        str, typer.Option(help="Epochs to a target, YAML or CSV: adds time and cost to it.")
    ] = "",
    trace: Annotated[str, typer.Option(help="Write a Perfetto trace, e.g. run.json.gz.")] = "",
    catalog: Annotated[
        list[str] | None, typer.Option(help="Folder of your own catalogue; may repeat.")
    ] = None,
    interval: Annotated[
        bool,
        typer.Option("--interval", help="80 % interval from the calibration's; simulates some 60 times."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Simulate one scenario: step time, breakdown, bottleneck, memory, price, energy, critical path."""
    from sim.analysis.simulate import simulate
    from sim.catalog import Catalog

    fields = given_fields(strategy, set_, num_hosts, seed, fidelity, jitter, slow_rank, calibration)
    if convergence:
        fields["convergence"] = convergence
    known = Catalog(existing_folders(catalog or ()))
    with _located(known, workload, cluster, fields):
        scenario = build(known, workload, cluster, fields)
        if workload.endswith(".json"):
            note(f"workload: {scenario.workload.description} (--set workload.FIELD=VALUE)")
        with ticking("simulating") as progress:
            result = simulate(scenario, progress)
    if result.ok and interval:
        with progress_bar("interval") as moved:
            found = result.interval(moved)
        result.step_time_interval_s = (found.low_s, found.high_s)
    if result.ok and trace:
        save_trace(result, trace)
    if json:
        print(result.to_json(), end="")
    elif result.ok:
        from sim.cli.card import show_card

        show_card(console(), result)
    if not result.ok:
        message = _refusal(result, known, workload, cluster, fields) or result.message
        note(f"error: {' '.join(f'{result.status}: {message}'.split())}")
    return EXIT_CODES[result.status]


def given_fields(
    strategy: str | None,
    set_: list[str] | None,
    num_hosts: int | None,
    seed: int,
    fidelity: str,
    jitter: str,
    slow_rank: list[str] | None,
    calibration: list[str] | None,
) -> dict[str, Any]:
    """The options as dotted fields of a scenario; ``--set`` wins over the others."""
    from sim.units import parse_quantity

    fields: dict[str, Any] = {}
    if strategy is not None:
        fields["strategy"] = strategy
    if num_hosts is not None:
        fields["cluster.num_hosts"] = num_hosts
    if seed:
        fields["seed"] = seed
    if fidelity:
        fields["fidelity"] = fidelity
    if jitter:
        fields["perturbation.jitter"] = parse_quantity(jitter, "fraction", "--jitter")
    if slow_rank:
        fields["perturbation.slow_ranks"] = dict(_slow_rank(item) for item in slow_rank)
    if calibration:
        fields["calibration"] = tuple(calibration)
    return {**fields, **assignments(set_ or ())}


def build(catalog: Catalog, workload: str, cluster: str, fields: dict[str, Any]) -> Scenario:
    """Scenario of two names, or of a scenario file alone, with fields changed."""
    if cluster:
        return catalog.build_scenario({"workload": workload, "cluster": cluster, **fields})
    if workload.endswith((".yaml", ".yml")) or workload in catalog.names("scenario"):
        return catalog.scenario(workload, **fields)
    raise InputError("CLUSTER", "be given", hint="Example: clusterloom run resnet50 dgx-a100.")


@contextmanager
def _located(catalog: Catalog, workload: str, cluster: str, fields: dict[str, Any]) -> Iterator[None]:
    """Errors about what a file of the command line says carry its line."""
    named = {"workload": workload, "cluster": cluster} if cluster else {"scenario": workload}
    with ExitStack() as stack:
        for kind, name in {**named, "strategy": fields.get("strategy")}.items():
            if isinstance(name, str):
                stack.enter_context(catalog.located(kind, name, set(fields) - {kind}))
        yield


def _refusal(
    result: Result, catalog: Catalog, workload: str, cluster: str, fields: dict[str, Any]
) -> InputError | None:
    """Why a rule refuses the strategy, with the line of a file that says so."""
    try:
        with _located(catalog, workload, cluster, fields):
            if result.refusal is not None:
                raise result.refusal
    except InputError as refusal:
        return refusal
    return None


def save_trace(result: Result, path: str) -> None:
    """Write the trace; what goes wrong with the file is the user's to know."""
    try:
        result.save_trace(path)
    except OSError as error:
        raise InputError("--trace", f"be writable ({(error.strerror or str(error)).lower()})", path) from None
    note(f"trace: {path} (open it at https://ui.perfetto.dev)")


def _slow_rank(item: str) -> tuple[int, float]:
    rank, equals, factor = item.partition("=")
    try:
        if not equals:
            raise ValueError
        return int(rank), float(factor)
    except ValueError:
        raise InputError(
            "--slow-rank", "be RANK=FACTOR", repr(item), hint="Example: --slow-rank 3=1.2."
        ) from None
