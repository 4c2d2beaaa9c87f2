"""What all commands share: JSON and tables to stdout, progress and notes to stderr, text for numbers."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MISSING = "-"


def console(*, stderr: bool = False) -> Console:
    """A rich console; plain text of a fixed width where the output is no terminal."""
    from rich.console import Console

    class _Screen(Console):
        def on_broken_pipe(self) -> None:  # rich would leave with exit code 1
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 160
    return _Screen(file=stream, width=width, highlight=False, soft_wrap=False)


def note(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr)


def emit_json(data: Any) -> None:
    """Strict JSON on stdout: sorted keys, no NaN."""
    print(json.dumps(plain(data), sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False))


def plain(value: Any) -> Any:
    """JSON-able copy: numbers unwrapped, missing and non-finite ones None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str | bool | None):
        return value
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) else (None if type(value).__name__ == "NAType" else str(value))


def records(table: Any) -> list[dict[str, Any]]:
    """Rows of a DataFrame as JSON data."""
    return [plain(row) for row in table.to_dict("records")]


def grid(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], *, title: str = "") -> Table:
    """A rich table; a column is (heading, ``left`` or ``right``)."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        box=SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False
    )
    for heading, justify in columns:
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    for row in rows:
        table.add_row(*[escape(cell) for cell in row])
    return table


def escape(text: str) -> str:
    """Text in which brackets are no rich markup."""
    from rich.markup import escape as rich_escape

    return rich_escape(text)


def number(value: Any, digits: int = 4) -> str:
    """A number with thousands separators; a dash if there is none."""
    if is_missing(value):
        return MISSING
    size = abs(float(value))
    if size >= 10 ** (digits - 1):
        return f"{float(value):,.0f}"
    return f"{float(value):.{digits}g}"


def is_missing(value: Any) -> bool:
    """None, NaN or pandas' NA."""
    return (
        value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value))
    )


def seconds(value: Any) -> str:
    """A time in a readable unit."""
    if is_missing(value):
        return MISSING
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    # Below half a picosecond lies what rounding leaves: the engine's clock tells no more.
    return "0 s" if abs(value) < 0.5e-12 else f"{value * 1e9:.4g} ns"


def size(value: Any) -> str:
    """Bytes in a readable unit (decimal)."""
    if is_missing(value):
        return MISSING
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} B"


def percent(value: Any, digits: int = 1) -> str:
    """A fraction as percent."""
    if is_missing(value):
        return MISSING
    text = f"{100 * float(value):.{digits}f}"
    return f"{text.removeprefix('-') if float(text) == 0 else text} %"


def assignments(items: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """``field=value`` texts as a mapping; values are read like YAML scalars or lists."""
    from sim.yamlio import read_value

    result: dict[str, Any] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise InputError(option, "be FIELD=VALUE", repr(item), hint="Example: --set strategy.tp=8.")
        result[name.strip()] = read_value(value)
    return result


def given_columns(given: Sequence[str]) -> dict[str, str]:
    """``COLUMN=VALUE`` texts of the option ``--set``."""
    columns: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise InputError("--set", "be COLUMN=VALUE", repr(item), hint="Example: --set hardware=H100-SXM.")
        columns[name.strip()] = value.strip()
    return columns


def existing_folders(folders: Sequence[str]) -> tuple[str, ...]:
    """Catalogue folders as absolute paths, so that workers find them wherever they start."""
    for folder in folders:
        if not Path(folder).is_dir():
            raise InputError("--catalog", "be an existing folder", folder)
    return tuple(str(Path(folder).resolve()) for folder in folders)


def save_fabric(source: Any, path: str) -> None:
    """Draw the fabric of a cluster or collective into a file and say so."""
    from sim import plot

    try:
        plot.fabric(source).save(path)
    except (OSError, ValueError) as error:
        raise InputError("--plot", f"be a writable figure file ({error})", path) from None
    note(f"figure: {path}")


def refuse_overwriting(option: str, path: str | None, other: str, given: str | None) -> None:
    """Refuse an output that is the very file that is read.

    Raises
    ------
    InputError
        ``path`` of ``option`` and ``given`` of ``other`` are the same file.
    """
    if path and given and os.path.realpath(path) == os.path.realpath(given):
        raise InputError(option, f"be another file than {other}", path)
