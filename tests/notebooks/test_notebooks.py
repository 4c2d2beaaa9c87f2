"""Every notebook runs from a clean kernel in an empty folder, and its .ipynb has the cells of its script."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import jupytext
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "notebooks").glob("*.py"))


def _pairing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pair_notebooks", ROOT / "docs" / "pair_notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_notebooks() -> None:
    assert SCRIPTS


LONG = ("06_how_wrong_is_it", "07_tour_of_the_taxonomy")
"""Notebooks that take more than half a minute."""


@pytest.mark.parametrize(
    "script",
    [pytest.param(p, marks=pytest.mark.slow) if p.stem in LONG else p for p in SCRIPTS],
    ids=lambda path: path.stem,
)
def test_notebook_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERLOOM_TOUR", "short")
    _execute(script, tmp_path, monkeypatch)


@pytest.mark.slow
def test_the_whole_tour_compares_hundreds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLUSTERLOOM_TOUR", raising=False)
    notebook = _execute(
        ROOT / "notebooks" / "07_tour_of_the_taxonomy.py", tmp_path, monkeypatch, timeout=1200
    )
    table = next(
        output["data"]["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    )
    assert re.findall(r"<th>(\w+)</th>", table)[:2] == ["points", "valid"]
    rows = [re.findall(r"<td>(\d+)</td>", row) for row in table.split("<tr>")]
    valid = [int(row[1]) for row in rows if row]
    assert len(valid) == 3
    assert min(valid) >= 500


def _execute(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout: int = 120
) -> NotebookNode:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = jupytext.read(script)
    client = NotebookClient(notebook, timeout=timeout, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    shown = [kind for cell in code for output in cell.outputs for kind in output.get("data", {})]
    assert "image/png" in shown, "a notebook shows a figure"
    assert "text/html" in shown, "a notebook shows a table"
    return notebook


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_notebook_is_in_sync_with_its_script(script: Path) -> None:
    notebook = script.with_suffix(".ipynb")
    assert notebook.is_file()
    assert notebook.read_text(encoding="utf-8") == _pairing().paired(script), "run `make docs`"
