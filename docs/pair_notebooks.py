"""Keep every ``notebooks/*.ipynb`` in step with its percent script; ``--check`` only looks.

The script is the source. The notebook has the same cells and no outputs, so that it never shows old numbers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
import nbformat

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"


def paired(script: Path) -> str:
    """The text of the notebook that belongs to a script; equal for equal scripts."""
    notebook = jupytext.read(script)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    return str(nbformat.writes(notebook, version=4)) + "\n"


def outdated() -> list[Path]:
    """Scripts whose notebook is missing or differs."""

    def current(script: Path) -> str:
        path = script.with_suffix(".ipynb")
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    return [script for script in sorted(FOLDER.glob("*.py")) if current(script) != paired(script)]


def main(arguments: list[str]) -> int:
    """Write the notebooks, or check them."""
    stale = outdated()
    for script in stale:
        if arguments == ["--check"]:
            print(f"{script.name}: the notebook is out of date; run `make docs`", file=sys.stderr)
        else:
            script.with_suffix(".ipynb").write_text(paired(script), encoding="utf-8")
            print(f"written: notebooks/{script.stem}.ipynb")
    return 1 if stale and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
