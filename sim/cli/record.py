"""``clusterloom record``: run real torch.distributed jobs here and store what they took."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.output import console, emit_json, note
from sim.errors import InputError


def command(
    output: Annotated[str, typer.Option("-o", "--output", help="Folder for CSV tables and traces.")],
    workload: Annotated[str, typer.Option(help="mlp, cnn, transformer, or module:function.")] = "mlp",
    ranks: Annotated[int, typer.Option(help="Processes.")] = 2,
    strategy: Annotated[
        list[str] | None,
        typer.Option(help="collectives, ddp, local, server, pipeline or fsdp; may repeat. ddp by default."),
    ] = None,
    emulate_compute: Annotated[
        bool, typer.Option("--emulate-compute", help="Sleep for the measured times instead of computing.")
    ] = False,
    hosts: Annotated[
        int | None, typer.Option(help="Emulate this many hosts, one per rank (Linux, root).")
    ] = None,
    link: Annotated[str, typer.Option(help="Rate of each emulated host's cable.")] = "1Gbps",
    delay: Annotated[str, typer.Option(help="One-way delay of each cable.")] = "100us",
    queued: Annotated[
        bool, typer.Option("--queued", help="One queue for data and control messages in the switch.")
    ] = False,
    slow_link: Annotated[str | None, typer.Option(help="HOST:RATE, as 3:200Mbps.")] = None,
    slow_rank: Annotated[str | None, typer.Option(help="RANK:FACTOR on its emulated compute.")] = None,
    bucket: Annotated[
        list[float] | None, typer.Option(help="DDP bucket capacity in MiB, 0 for torch's; may repeat.")
    ] = None,
    hook: Annotated[
        list[str] | None, typer.Option(help="DDP hook: none, fp16 or powersgdR; may repeat.")
    ] = None,
    no_overlap: Annotated[
        bool, typer.Option("--no-overlap", help="Also communicate after the backward, without DDP.")
    ] = False,
    local_steps: Annotated[
        list[int] | None, typer.Option(min=1, help="Local SGD: steps between averages; may repeat.")
    ] = None,
    rule: Annotated[
        list[str] | None, typer.Option(help="Parameter server: sync, async or ssp; may repeat.")
    ] = None,
    staleness: Annotated[int, typer.Option(min=0, help="Bound of ssp.")] = 2,
    schedule: Annotated[list[str] | None, typer.Option(help="Pipeline: gpipe or 1f1b; may repeat.")] = None,
    micro_batches: Annotated[int, typer.Option(min=1, help="Micro-batches of the pipeline.")] = 8,
    steps: Annotated[int, typer.Option(min=4, help="Measured steps of each job.")] = 16,
    real_time: Annotated[
        bool,
        typer.Option("--real-time", help="Real-time priorities: less noise, if the machine is idle."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Measure layer times, a ping and the jobs asked for, and store them where validate can read them.

    Needs torch: pip install 'clusterloom[record]'. Tables have the columns of validate recordings.
    """
    from sim.record.recorder import Recorder, Request
    from sim.units import parse_quantity

    if hosts is not None and hosts != ranks:
        raise InputError("--hosts", f"equal --ranks ({ranks}): one rank runs on each host", hosts)
    for given, known, name in (
        (rule, ("sync", "async", "ssp"), "--rule"),
        (schedule, ("gpipe", "1f1b"), "--schedule"),
    ):
        for value in given or ():
            if value not in known:
                raise InputError(name, f"be one of {', '.join(known)}", value)
    request = Request(
        workload=workload,
        ranks=ranks,
        strategies=tuple(strategy or ("ddp",)),
        emulate=emulate_compute,
        rate_mbit=parse_quantity(link, "bytes_per_second", "--link") * 8 / 1e6 if hosts else None,
        delay_us=parse_quantity(delay, "seconds", "--delay") * 1e6 if hosts else 0.0,
        slow_link=_pair(
            slow_link,
            "--slow-link",
            lambda text: parse_quantity(text, "bytes_per_second", "--slow-link") * 8e-6,
        ),
        slow_rank=_pair(slow_rank, "--slow-rank", float),
        queued=queued,
        buckets=tuple(bucket or (25.0,)),
        hooks=tuple(hook or ("none",)),
        overlaps=(True, False) if no_overlap else (True,),
        local_steps=tuple(local_steps or (4,)),
        rules=tuple(rule or ("sync", "async")),
        staleness=staleness,
        schedules=tuple(schedule or ("gpipe", "1f1b")),
        micro_batches=micro_batches,
        steps=steps,
        real_time=real_time,
    )
    written = Recorder(request, Path(output), progress=note).run()
    if json:
        emit_json({"output": output, "files": [str(path) for path in written]})
    else:
        for path in written:
            console().print(str(path))
    return 0


def _pair(text: str | None, name: str, read: Callable[[str], float]) -> tuple[int, float] | None:
    """``NUMBER:VALUE`` of an option."""
    if text is None:
        return None
    number, _, value = text.partition(":")
    try:
        return int(number), read(value)
    except ValueError:
        raise InputError(name, "be NUMBER:VALUE", text) from None
