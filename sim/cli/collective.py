"""``clusterloom collective``: one bare collective over sizes, as nccl-tests prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.output import (
    console,
    emit_json,
    existing_folders,
    grid,
    number,
    percent,
    save_fabric,
    seconds,
    size,
)
from sim.errors import InputError

if TYPE_CHECKING:
    from sim.analysis.collective import CollectiveResult

_MOST_SIZES = 200
_MOST_BYTES = 1e24  # of a cell of a matrix: sums of them stay numbers


def command(
    operation: Annotated[str, typer.Argument(help="all_reduce, all_gather, all_to_all, all_to_allv ...")],
    cluster: Annotated[str, typer.Argument(help="Cluster name or file.")],
    size_: Annotated[
        list[str] | None,
        typer.Option(
            "--size", help="1GiB, or a range 8B:1GiB or 8B:1GiB:4 (factor, 2 if absent); may repeat."
        ),
    ] = None,
    num_hosts: Annotated[int | None, typer.Option(min=1, help="Number of hosts of the cluster.")] = None,
    algorithm: Annotated[str, typer.Option(help="auto: as the library would; ring, tree ...")] = "auto",
    ranks: Annotated[
        list[str] | None,
        typer.Option(help="Devices of a group: 0-7,16 or 0-63:8 (every 8th); repeat for groups at once."),
    ] = None,
    dims: Annotated[str, typer.Option(help="Extents of a grid, innermost first: 8,4.")] = "",
    radix: Annotated[int | None, typer.Option(min=2, help="Base of bcube, children of kary_tree.")] = None,
    chunks: Annotated[int, typer.Option(min=1, help="Parts a grid collective is pipelined in.")] = 1,
    matrix: Annotated[str, typer.Option(help="all_to_allv: CSV file, bytes from rank (row) to rank.")] = "",
    skew: Annotated[float, typer.Option(help="all_to_allv: rank j gets a share (j + 1)^-skew.")] = 0.0,
    calibration: Annotated[
        list[str] | None, typer.Option(help="Calibration name or file; may repeat. Default: collectives.")
    ] = None,
    plot: Annotated[str, typer.Option(help="Draw the fabric, coloured by load, e.g. load.png.")] = "",
    catalog: Annotated[
        list[str] | None, typer.Option(help="Folder of your own catalogue; may repeat.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in SI units.")] = False,
) -> int:
    """Simulate one collective: time, algorithm bandwidth, bus bandwidth and busiest link per size."""
    from sim.analysis.collective import simulate_collective
    from sim.catalog import Catalog

    found = Catalog(existing_folders(catalog or ()))
    shape: dict[str, Any] = {"radix": radix, "skew": skew}
    if dims:
        shape["dims"] = tuple(_numbers("--dims", dims))
    sizes = _sizes(size_ or [])
    if matrix:
        shape["matrix"] = _read_matrix(matrix)
        sizes = sizes or [float(shape["matrix"].sum()) / len(shape["matrix"])]
    result = simulate_collective(
        operation,
        found.cluster(cluster, num_hosts=num_hosts),
        sizes or _sizes(["1MiB:1GiB:4"]),
        found.calibration(tuple(calibration or ("collectives",))),
        algorithm=algorithm,
        ranks=[_ranks(text) for text in ranks] if ranks else None,
        chunks=chunks,
        **shape,
    )
    if plot:
        save_fabric(result, plot)
    if json:
        emit_json({**result.to_dict(), "links": result.links().head(20).to_dict("records")})
        return 0
    _show(result)
    return 0


def _show(result: CollectiveResult) -> None:
    screen = console()
    groups = f", {result.num_groups} groups at once" if result.num_groups > 1 else ""
    screen.print(f"{result.operation} on {result.cluster.name}: {result.num_ranks} ranks{groups}")
    columns = [
        ("size", "right"), ("algorithm", "left"), ("protocol", "left"), ("time", "right"),
        ("algbw GB/s", "right"), ("busbw GB/s", "right"), ("busiest link", "left"), ("load", "right"),
    ]  # fmt: skip
    rows = [
        (
            size(row["size_bytes"]), row["algorithm"], row["protocol"] or "-", seconds(row["time_s"]),
            number(row["algorithm_bandwidth_bytes_per_s"] / 1e9),
            number(row["bus_bandwidth_bytes_per_s"] / 1e9),
            row["busiest_link"] or "-", percent(row["busiest_link_utilisation"], 0),
        )
        for row in result.rows
    ]  # fmt: skip
    screen.print(grid(columns, rows))


def _size(text: str) -> float:
    from sim.units import parse_quantity

    if text.strip().startswith("-"):
        raise InputError("--size", "not be negative", text)
    return parse_quantity(text, "bytes", "--size")


def _sizes(texts: list[str]) -> list[float]:
    sizes: list[float] = []
    for text in texts:
        first, *rest = text.split(":")
        low = _size(first)
        if not rest:
            sizes.append(low)
            continue
        high = _size(rest[0])
        factor = _factor(rest[1]) if len(rest) == 2 else 2.0
        if len(rest) > 2 or low <= 0 or high < low or factor <= 1:
            raise InputError("--size", "be SIZE, LOW:HIGH or LOW:HIGH:FACTOR", text)
        while low <= high * (1 + 1e-12) and len(sizes) <= _MOST_SIZES:
            sizes.append(low)
            low *= factor
    if len(sizes) > _MOST_SIZES:
        raise InputError("--size", f"give at most {_MOST_SIZES} sizes", " ".join(texts))
    return sizes


def _factor(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(option, "be whole numbers with commas between", text) from None


def _ranks(text: str) -> list[int]:
    """``0-7,16`` or ``0-63:8``."""
    found: list[int] = []
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        try:
            begin, end, every = int(first), int(last if dash else first), int(step or 1)
        except ValueError:
            begin, end, every = 0, -1, 0
        if every < 1 or end < begin or end - begin > 10_000_000:
            raise InputError("--ranks", "be device numbers such as 0-7,16 or 0-63:8", text)
        found += range(begin, end + 1, every)
    return found


def _read_matrix(path: str) -> Any:
    """Rows of bytes, split at commas; units as in YAML, or plain numbers."""
    import csv
    from pathlib import Path

    import numpy as np

    from sim.units import parse_quantity

    rows: list[list[float]] = []
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            for line, row in enumerate(csv.reader(file), 1):
                try:
                    rows.append([_bytes(cell.strip(), parse_quantity) for cell in row if row])
                except InputError as error:
                    must = "have sizes only, from 0 to 1e24 bytes"
                    raise InputError("--matrix", must, error.got, where=f"{path}:{line}") from None
    except (csv.Error, UnicodeDecodeError):
        raise InputError("--matrix", "be a CSV file of sizes in UTF-8", path) from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError("--matrix", f"be a CSV file that can be read ({why})", path) from None
    if not rows or any(len(row) != len(rows) for row in rows):
        raise InputError("--matrix", "be as many rows as columns", path)
    return np.array(rows)


def _bytes(cell: str, parse: Any) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = float(parse(cell, "bytes"))
    if not 0.0 <= value <= _MOST_BYTES:
        raise InputError("--matrix", "be from 0 to 1e24 bytes", cell)
    return value
