"""What all points of a sweep share, and how one point becomes a Scenario: in the plan and in the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sim.catalog import Catalog
from sim.spec import Scenario

ALIASES = {"num_hosts": "cluster.num_hosts", "jitter": "perturbation.jitter"}
SIMULATE = "sim.analysis.simulate:simulate"
OPTIMIST = "sim.sweep.best:optimistic_row"


def canonical(name: str) -> str:
    """Full dotted name of a field, its short form resolved."""
    return ALIASES.get(name, name)


@dataclass(frozen=True)
class Context:
    """What all points of a sweep share; picklable.

    Attributes
    ----------
    base : dict
        Dotted field -> value; ``workload``, ``cluster``, ``strategy`` and ``calibration`` are names,
        paths of YAML files, or specs.
    folders : tuple of str
        Catalogue folders of the user, searched first.
    simulate, optimist : str
        ``module:function`` from a Scenario to a Result, and to the optimistic row of a search.
    """

    base: dict[str, Any] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    simulate: str = SIMULATE
    optimist: str = OPTIMIST

    def scenario(self, overrides: Mapping[str, Any]) -> Scenario:
        """The scenario of one point; raises `InputError` for what it cannot be made of."""
        values = {canonical(name): value for name, value in {**self.base, **overrides}.items()}
        return _catalog(self.folders).build_scenario(values)


@lru_cache(maxsize=4)
def _catalog(folders: tuple[str, ...]) -> Catalog:
    """One catalogue per process, so that its cache serves all points."""
    return Catalog(folders)
