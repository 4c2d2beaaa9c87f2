"""``clusterloom record``: run real torch.distributed jobs here and store what they took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.output import console, emit_json, note
from sim.cli.settings import options_of
from sim.errors import InputError
from sim.units import parse_quantity

if TYPE_CHECKING:
    from sim.record.recorder import Request


@dataclass(frozen=True, kw_only=True)
class Options:
    """What ``clusterloom record`` is asked for."""

    output: Annotated[str, typer.Option("-o", "--output", help="Folder for CSV tables and traces.")]
    workload: Annotated[str, typer.Option(help="mlp, cnn, transformer, or module:function.")] = "mlp"
    ranks: Annotated[int, typer.Option(help="Processes.")] = 2
    strategy: Annotated[
        list[str] | None,
        typer.Option(help="collectives, ddp, local, server, pipeline or fsdp; may repeat. ddp by default."),
    ] = None
    emulate_compute: Annotated[
        bool, typer.Option("--emulate-compute", help="Sleep for the measured times instead of computing.")
    ] = False
    hosts: Annotated[
        int | None, typer.Option(help="Emulate this many hosts, one per rank (Linux, root).")
    ] = None
    link: Annotated[str, typer.Option(help="Rate of each emulated host's cable.")] = "1Gbps"
    delay: Annotated[str, typer.Option(help="One-way delay of each cable.")] = "100us"
    queued: Annotated[
        bool, typer.Option("--queued", help="One queue for data and control messages in the switch.")
    ] = False
    slow_link: Annotated[str | None, typer.Option(help="HOST:RATE, as 3:200Mbps.")] = None
    slow_rank: Annotated[str | None, typer.Option(help="RANK:FACTOR on its emulated compute.")] = None
    size: Annotated[
        list[str] | None, typer.Option(help="Bytes of a collective, as 64KiB; may repeat. 1KiB to 4MiB.")
    ] = None
    bucket: Annotated[
        list[float] | None, typer.Option(help="DDP bucket capacity in MiB, 0 for torch's; may repeat.")
    ] = None
    hook: Annotated[list[str] | None, typer.Option(help="DDP hook: none, fp16 or powersgdR; may repeat.")] = (
        None
    )
    no_overlap: Annotated[
        bool, typer.Option("--no-overlap", help="Also communicate after the backward, without DDP.")
    ] = False
    local_steps: Annotated[
        list[int] | None, typer.Option(min=1, help="Local SGD: steps between averages; may repeat.")
    ] = None
    rule: Annotated[
        list[str] | None, typer.Option(help="Parameter server: sync, async or ssp; may repeat.")
    ] = None
    staleness: Annotated[int, typer.Option(min=0, help="Bound of ssp.")] = 2
    schedule: Annotated[list[str] | None, typer.Option(help="Pipeline: gpipe or 1f1b; may repeat.")] = None
    micro_batches: Annotated[int, typer.Option(min=1, help="Micro-batches of the pipeline.")] = 8
    steps: Annotated[int, typer.Option(min=4, help="Measured steps of each job.")] = 16
    real_time: Annotated[
        bool,
        typer.Option("--real-time", help="Real-time priorities: less noise, if the machine is idle."),
    ] = False
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False

    def request(self) -> Request:
        """The recording that these options describe."""
        from sim.record.recorder import Request

        if self.hosts is not None and self.hosts != self.ranks:
            raise InputError(
                "--hosts", f"equal --ranks ({self.ranks}): one rank runs on each host", self.hosts
            )
        return Request(
            workload=self.workload,
            ranks=self.ranks,
            strategies=tuple(self.strategy or ("ddp",)),
            emulate=self.emulate_compute,
            rate_mbit=_mbit(self.link, "--link") if self.hosts else None,
            delay_us=parse_quantity(self.delay, "seconds", "--delay") * 1e6 if self.hosts else 0.0,
            slow_link=_pair(self.slow_link, "--slow-link", lambda text: _mbit(text, "--slow-link")),
            slow_rank=_pair(self.slow_rank, "--slow-rank", float),
            queued=self.queued,
            overlaps=(True, False) if self.no_overlap else (True,),
            staleness=self.staleness,
            micro_batches=self.micro_batches,
            steps=self.steps,
            real_time=self.real_time,
            **self._lists(),
        )

    def _lists(self) -> dict[str, Any]:
        """Options that may repeat, where they were given: the others have defaults of their own."""
        given = {
            "buckets": self.bucket,
            "hooks": self.hook,
            "local_steps": self.local_steps,
            "rules": self.rule,
            "schedules": self.schedule,
            "sizes": [int(parse_quantity(size, "bytes", "--size")) for size in self.size or ()],
        }
        return {name: tuple(values) for name, values in given.items() if values}


@options_of(Options)
def command(options: Options) -> int:
    """Measure layer times, a ping and the jobs asked for, and store them where validate can read them.

    Needs torch: pip install 'clusterloom[record]'. Tables have the columns of validate recordings.
    """
    from sim.record.recorder import Recorder

    written = Recorder(options.request(), Path(options.output), progress=note).run()
    if options.json:
        emit_json({"output": options.output, "files": [str(path) for path in written]})
    else:
        for path in written:
            console().print(str(path))
    return 0


def _mbit(text: str, option: str) -> float:
    return parse_quantity(text, "bytes_per_second", option) * 8e-6


def _pair(text: str | None, name: str, read: Callable[[str], float]) -> tuple[int, float] | None:
    """``NUMBER:VALUE`` of an option."""
    if text is None:
        return None
    number, _, value = text.partition(":")
    try:
        return int(number), read(value)
    except ValueError:
        raise InputError(name, "be NUMBER:VALUE", text) from None
