"""What the package imports is what it says it needs: an extra of the tests must not hide a missing line."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = {"pyyaml": "yaml"}
pytestmark = pytest.mark.packaging


def imported(file: Path) -> set[str]:
    """Top-level names of everything that a module imports, functions' own imports included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def required(lines: list[str]) -> set[str]:
    found = {re.split(r"[<>=\[; ]", line)[0].lower() for line in lines}
    return {MODULES.get(name, name.replace("-", "_")) for name in found}


def test_every_import_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = required(project["dependencies"])
    optional = required([line for name in ("record", "dask", "ray") for line in extras[name]])
    for file in sorted((ROOT / "sim").rglob("*.py")):
        others = imported(file) - set(sys.stdlib_module_names) - {"sim"}
        missing = others - declared - optional - DECLARED_BY.keys()
        assert not missing, f"{file.relative_to(ROOT)} imports {sorted(missing)}"


DECLARED_BY = {
    "typing_extensions": "pydantic",
    "annotated_types": "pydantic",
    "pydantic_core": "pydantic",
    "click": "typer",
    "_typeshed": "mypy",
}
"""Modules that come with a declared package, or exist for type checkers only."""
