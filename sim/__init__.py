"""clusterloom: a discrete-event simulator of GPU clusters for distributed deep learning.

Public names live in ``sim.api`` and load on first use (PEP 562), so that ``import sim`` stays fast.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

# Public functions that share their name with a package; the function wins as an attribute of ``sim``.
_FUNCTIONS = frozenset({"sweep"})


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    # Modules first: ``from sim import units`` inside the package must not load the whole API.
    if name not in _FUNCTIONS:
        try:
            return importlib.import_module(f"sim.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"sim.{name}":
                raise
    try:
        return getattr(importlib.import_module("sim.api"), name)
    except AttributeError:
        raise AttributeError(f"module 'sim' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *importlib.import_module("sim.api").__all__})


class _Package(ModuleType):
    """Keeps ``sim.sweep`` the public function: importing the package ``sim.sweep`` would hide it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _FUNCTIONS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
