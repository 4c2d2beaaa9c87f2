"""Documentation against code: generated tables, contract tables, examples with their outputs, links."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from sim.analysis.result import Result
from sim.graph.execution import ExecutionGraph
from sim.spec import Calibration, Parameter
from sim.timeline import COLUMNS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXAMPLES = _script("run_examples")


def _first_column(page: str) -> list[str]:
    """Names in the first column of all tables of a reference page, in order."""
    text = (DOCS / "reference" / page).read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_generated_pages_are_up_to_date() -> None:
    assert _script("generate_reference").outdated() == [], "run `make docs`"


def test_a_changed_description_makes_a_page_outdated(tmp_path: Path) -> None:
    reference = _script("generate_reference")
    for name, make in reference.PAGES.items():
        (tmp_path / name).write_text(make(), encoding="utf-8")
    assert reference.outdated(tmp_path) == []
    page = tmp_path / "strategy.md"
    page.write_text(page.read_text(encoding="utf-8").replace("tensor parallel", "tensor"), encoding="utf-8")
    assert reference.outdated(tmp_path) == ["strategy.md"]


def test_execution_graph_page_lists_every_column_in_order() -> None:
    assert _first_column("execution_graph.md") == [f.name for f in dataclasses.fields(ExecutionGraph)]


def test_timeline_page_lists_every_column_in_order() -> None:
    text = (DOCS / "reference" / "timeline.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.MULTILINE)
    assert rows == list(COLUMNS.items())


def test_calibration_page_lists_sections_and_columns() -> None:
    sections = [
        name for name in Calibration.model_fields if name in ("device", "link", "library", "framework")
    ]
    assert _first_column("calibration.md") == [*sections, *Parameter.model_fields]


def test_result_page_lists_every_field() -> None:
    assert sorted(_first_column("result.md")) == sorted(Result("ok").to_dict())


LONG = ("what_if", "best_strategy", "first_sweep", "models")
"""Pages whose examples take more than twenty seconds; `make docs` writes what they print."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.slow) if p.stem in LONG else p for p in EXAMPLES.pages()],
    ids=lambda path: path.stem,
)
def test_examples_run_and_print_what_the_page_shows(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    with EXAMPLES.empty_folder():
        assert EXAMPLES.updated(text) == text, "run `make docs`"


def test_outputs_are_compared() -> None:
    page = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    assert EXAMPLES.updated(page) == page.replace("3", "2")


def test_a_failing_command_is_noticed() -> None:
    with pytest.raises(EXAMPLES.ExampleError, match="exit code 2"):
        EXAMPLES.updated("```bash\nclusterloom run resnet50 no-such-cluster\n```\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}, target


def test_readme_has_the_two_commands_and_the_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
    assert (DOCS / "images" / "demo_scaling.png").stat().st_size < 150_000
