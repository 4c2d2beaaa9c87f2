"""Modules followed on the meta device: parameters and operations as published. Needs torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import sim  # noqa: E402
from sim.errors import InputError  # noqa: E402
from sim.models.compute import model_flops  # noqa: E402
from sim.record.models import make  # noqa: E402
from sim.record.module import workload_of  # noqa: E402


class Tied(torch.nn.Module):
    """A language model whose output matrix is its table."""

    def __init__(self, blocks: int = 4, width: int = 256, vocabulary: int = 1000) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(vocabulary, width)
        layer = torch.nn.TransformerEncoderLayer
        self.layers = torch.nn.ModuleList(
            layer(width, 4, 4 * width, batch_first=True, dropout=0.0) for _ in range(blocks)
        )
        self.head = torch.nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_a_convolutional_network() -> None:
    """VGG-like: parameters as torch counts them; operations by hand, two per multiply-add."""
    model = make("cnn")
    found = workload_of(model.module, model.batch()[0], batch_per_device=16)
    assert found.num_parameters == sum(p.numel() for p in model.module.parameters())
    sizes = [(3, 64, 32), (64, 64, 32), (64, 128, 16), (128, 128, 16), (128, 256, 8), (256, 256, 8)]
    expected = sum(2 * 9 * a * b * s * s for a, b, s in sizes) + 2 * (4096 * 512 + 512 * 10)
    assert model_flops(found) == pytest.approx(expected, rel=1e-9)
    assert found.num_blocks > 6
    result = sim.run(found, "dgx-1")
    assert result.ok, result.message


class Nested(torch.nn.Module):
    """Takes a dict in a tuple and a keyword; calls one layer twice, another never; returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(32, 32), torch.nn.Linear(7, 7)
        self.recurrent = torch.nn.GRU(32, 64, 2, batch_first=True)

    def forward(self, batch: dict[str, list[torch.Tensor]], scale: float = 1.0) -> dict[str, torch.Tensor]:
        states, _ = self.recurrent(self.used(self.used(batch["x"][0])))
        return {"out": states * scale}


class TiedTwice(torch.nn.Module):
    """A table that two modules which are never called hold as well; their parent uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(100, 32)
        self.decoder = torch.nn.ModuleDict({name: torch.nn.Linear(32, 100, bias=False) for name in "ab"})
        self.decoder["norm"] = torch.nn.LayerNorm(32)
        for name in "ab":
            self.decoder[name].weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.decoder["norm"](self.table(tokens))
        return states @ self.decoder["a"].weight.T + states @ self.decoder["b"].weight.T


def test_weights_that_two_silent_modules_hold_are_shared_once() -> None:
    found = workload_of(TiedTwice(), (torch.zeros(4, 9, dtype=torch.long),), batch_per_device=4)
    assert found.num_parameters == 100 * 32 + 2 * 32
    assert sum(layer.shared_parameters for layer in found.layers) == 100 * 32


def test_nested_inputs_a_layer_twice_and_recurrence() -> None:
    found = workload_of(Nested(), ({"x": [torch.zeros(4, 9, 32)]},), batch_per_device=4)
    assert found.num_parameters == sum(p.numel() for p in Nested().parameters())
    gates = 3 * 2 * 9 * (32 * 64 + 64 * 64 + 2 * 64 * 64)
    assert model_flops(found) == pytest.approx(2 * 2 * 9 * 32 * 32 + gates, rel=1e-9)


@pytest.mark.parametrize("samples", [2, 16])
def test_counts_are_per_sample_and_tied_weights_count_once(samples: int) -> None:
    module = Tied()
    found = workload_of(module, torch.zeros(samples, 64, dtype=torch.long), batch_per_device=8)
    assert found.num_parameters == sum(p.numel() for p in module.parameters())
    assert found.layers[-1].shared_parameters == 256 * 1000
    width, tokens = 256, 64
    per_block = 2 * tokens * 12 * width**2 + 4 * tokens**2 * width
    expected = 4 * per_block + 2 * tokens * width * 1000
    assert model_flops(found) == pytest.approx(expected, rel=1e-6)
    assert found.num_blocks >= 5
    assert sim.run(found, "dgx-1", sim.strategy(pp=4, micro_batch_size=1)).ok


def test_large_models_need_no_memory() -> None:
    with torch.device("meta"):
        module = torch.nn.Sequential(*(torch.nn.Linear(65536, 65536) for _ in range(4)))
    found = workload_of(module, torch.zeros(2, 65536, device="meta"), global_batch_size=64)
    assert found.num_parameters == 4 * (65536**2 + 65536)


def test_what_cannot_be_followed_is_one_line() -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(InputError, match="forward pass") as caught:
        workload_of(Branches(), torch.zeros(2, 3))
    assert "Traceback" not in str(caught.value)


def test_the_example_of_the_how_to_page_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/your_own_model.md").read_text(encoding="utf-8")
    code, shown = re.findall(r"```py\n(.*?)```\n+```text\n(.*?)```", page, re.DOTALL)[0]
    exec(compile(code, "your_own_model.md", "exec"), {})
    assert capsys.readouterr().out == shown
