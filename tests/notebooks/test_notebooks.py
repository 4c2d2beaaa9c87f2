"""Every notebook runs from a clean kernel in an empty folder, and its .ipynb has the cells of its script."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import jupytext
import pytest
from nbclient import NotebookClient

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


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_notebook_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = jupytext.read(script)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    shown = [kind for cell in code for output in cell.outputs for kind in output.get("data", {})]
    assert "image/png" in shown, "a notebook shows a figure"
    assert "text/html" in shown, "a notebook shows a table"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_notebook_is_in_sync_with_its_script(script: Path) -> None:
    notebook = script.with_suffix(".ipynb")
    assert notebook.is_file()
    assert notebook.read_text(encoding="utf-8") == _pairing().paired(script), "run `make docs`"
