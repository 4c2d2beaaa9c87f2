"""Small models to record with, and any model of the user's: ``module:function``."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sim.errors import InputError


@dataclass(frozen=True)
class Model:
    """What a step needs.

    Attributes
    ----------
    name : str
    module : torch.nn.Module
    batch : callable
        Returns (input, target).
    loss : callable
        ``loss(output, target)``.
    """

    name: str
    module: Any
    batch: Callable[[], tuple[Any, Any]]
    loss: Callable[[Any, Any], Any]


class _Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """Return ``x`` after attention and feed-forward."""
        samples, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(samples, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(samples, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def _mlp() -> Model:
    sizes = (784, 1024, 1024, 1024)
    parts: list[Any] = []
    for inside, outside in itertools.pairwise(sizes):
        parts += [nn.Linear(inside, outside), nn.ReLU()]
    module = nn.Sequential(*parts, nn.Linear(sizes[-1], 10))
    return Model("mlp", module, _classified((256, 784)), functional.cross_entropy)


def _cnn() -> Model:
    """VGG-like, 3.2 million parameters, 32 x 32 pixels."""
    parts: list[Any] = []
    channels = 3
    for outside, pool in ((64, False), (64, True), (128, False), (128, True), (256, False), (256, True)):
        parts += [nn.Conv2d(channels, outside, 3, padding=1), nn.ReLU()]
        parts += [nn.MaxPool2d(2)] if pool else []
        channels = outside
    module = nn.Sequential(*parts, nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10))
    return Model("cnn", module, _classified((16, 3, 32, 32)), functional.cross_entropy)


def _transformer() -> Model:
    """Four blocks of width 256, 3.7 million parameters, 64 tokens."""
    width, vocabulary, tokens, samples = 256, 1000, 64, 8
    module = nn.Sequential(
        nn.Embedding(vocabulary, width), *(_Block(width, 4) for _ in range(4)), nn.LayerNorm(width),
        nn.Linear(width, vocabulary), nn.Flatten(0, 1),
    )  # fmt: skip

    def batch() -> tuple[Any, Any]:
        inputs = torch.randint(0, vocabulary, (samples, tokens))
        return inputs, torch.randint(0, vocabulary, (samples * tokens,))

    return Model("transformer", module, batch, functional.cross_entropy)


def _classified(shape: tuple[int, ...], classes: int = 10) -> Callable[[], tuple[Any, Any]]:
    return lambda: (torch.randn(shape), torch.randint(0, classes, (shape[0],)))


_MODELS: dict[str, Callable[[], Model]] = {"mlp": _mlp, "cnn": _cnn, "transformer": _transformer}


def make(name: str) -> Model:
    """A model by name, or by ``module:function``, which returns (module, batch function, loss function).

    Raises
    ------
    InputError
        If there is no such model.
    """
    torch.manual_seed(0)
    if name in _MODELS:
        return _MODELS[name]()
    place, colon, function = name.partition(":")
    if not colon:
        raise InputError("--workload", f"be one of {', '.join(_MODELS)}, or module:function", name)
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        made = getattr(importlib.import_module(place), function)()
        module, batch, loss = made
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        must = "name a function that returns (module, batch function, loss function)"
        raise InputError("--workload", must, f"{name}: {error}") from None
    return Model(function, module, batch, loss)
