"""Run the examples of the README and of these pages, and keep the outputs that they show true.

In a page, in order:

* a ``yaml`` block whose first line is ``# some/file.yaml`` is written to that file;
* a ``python`` block is executed, all of a page in one namespace;
* in a ``bash`` block, lines that start with ``clusterloom`` are executed (``| head -N``, ``> FILE`` and a
  trailing ``# exit code N`` are understood); any other command is the reader's business;
* a ``text`` block directly after a ``python`` or ``bash`` block is what that block prints;
* any other block is only shown (``py``: what needs torch, which a test of its own environment executes).

``python docs/run_examples.py`` writes current outputs into the pages; ``--check`` only says which pages show
something else (exit code 1). Every page runs in an empty folder of its own.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXCERPTS = frozenset({"taxonomy.md"})
"""Pages whose code is shown, not run."""

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\S+\.ya?ml)\n")


class ExampleError(Exception):
    """An example that does not work."""


def pages() -> list[Path]:
    """The README and every page of the documentation that is written by hand."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        path
        for path in found
        if path.name not in EXCERPTS and not path.read_text(encoding="utf-8").startswith("<!-- Generated")
    ]


def updated(text: str) -> str:
    """The text of a page with the outputs of its examples as they are now."""
    runners: dict[str, Callable[[str], str]] = {"yaml": _write, "bash": _commands, "python": _python({})}
    pieces, position, output, end = [], 0, "", -1
    for match in _FENCE.finditer(text):
        kind, body = match[1], match[2]
        if kind == "text" and output and not text[end : match.start()].strip():
            pieces += [text[position : match.start(2)], output]
            position = match.end(2)
        elif kind in runners:
            try:
                output = runners[kind](body)
            except (Exception, SystemExit) as error:
                raise ExampleError(f"{type(error).__name__}: {error}\nin the example\n{body}") from error
        elif kind != "text":
            output = ""
        end = match.end()
    return "".join([*pieces, text[position:]])


@contextlib.contextmanager
def empty_folder() -> Iterator[None]:
    """Work in a temporary folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _write(body: str) -> str:
    named = _FILE.match(body)
    if named is not None:
        path = Path(named[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body, encoding="utf-8")
    return ""


def _python(namespace: dict[str, Any]) -> Callable[[str], str]:
    def run(body: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(body, "<example>", "exec"), namespace)
        return _clean(printed.getvalue())

    return run


def _commands(body: str) -> str:
    return "".join(_command(line) for line in body.splitlines() if line.startswith("clusterloom "))


def _command(line: str) -> str:
    from sim.cli.main import main

    words, _, comment = line.partition("  # exit code ")
    words, _, limit = words.partition(" | head -")
    words, _, target = words.partition(" > ")
    arguments = [word for text in shlex.split(words)[1:] for word in sorted(glob.glob(text)) or [text]]
    with (
        contextlib.redirect_stdout(io.StringIO()) as printed,
        contextlib.redirect_stderr(io.StringIO()) as notes,
    ):
        code = main(arguments)
    if code != int(comment or 0):
        raise ExampleError(f"{words} ended with exit code {code}: {notes.getvalue()}{printed.getvalue()}")
    if target:
        Path(target.strip()).write_text(printed.getvalue(), encoding="utf-8")
        return ""
    text = _clean(printed.getvalue() + (notes.getvalue() if code else ""))
    return "".join(text.splitlines(keepends=True)[: int(limit)]) if limit else text


def _clean(text: str) -> str:
    """No trailing blanks, and no empty lines at the ends."""
    lines = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
    return f"{lines}\n" if lines else ""


def main(arguments: list[str]) -> int:
    """Write or check the outputs of all pages, or of those named."""
    check = "--check" in arguments
    chosen = [Path(name).resolve() for name in arguments if name != "--check"] or pages()
    stale = 0
    for path in chosen:
        text = path.read_text(encoding="utf-8")
        with empty_folder():
            now = updated(text)
        if now == text:
            continue
        stale += 1
        print(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}")
        if not check:
            path.write_text(now, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
