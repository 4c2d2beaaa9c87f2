"""A scenario: everything one simulation needs, hashable."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from pydantic import Field

from sim.spec.base import CatalogSpec, Fraction, Spec
from sim.spec.calibration import Calibration
from sim.spec.cluster import Cluster
from sim.spec.convergence import Convergence
from sim.spec.strategy import Strategy
from sim.spec.workload import Workload

Fidelity = Literal["fluid", "analytic"]


class Perturbation(Spec):
    """Injected imperfections."""

    jitter: Fraction = Field(
        0,
        description="coefficient of variation of compute times, 0.05 for 5 % (lognormal, mean 1)",
    )
    speed_spread: Fraction = Field(
        0,
        description="coefficient of variation of the ranks' own speeds (lognormal, drawn once per rank)",
    )
    slow_probability: Fraction = Field(
        0, lt=1, description="chance per step that a rank turns slow (transient straggler)"
    )
    recovery_probability: Fraction = Field(1, gt=0, description="chance per step that a slow rank recovers")
    slow_factor: float = Field(
        1, ge=1, le=1e6, description="factor on the compute times of a rank in its slow state"
    )
    slow_ranks: dict[int, Annotated[float, Field(gt=0, le=1e6)]] = Field(
        {}, description="rank -> factor by which its compute takes longer"
    )


class Scenario(Spec):
    """Workload + cluster + strategy + calibration + seed, all resolved."""

    workload: Workload = Field(description="what is trained")
    cluster: Cluster = Field(description="where")
    strategy: Strategy = Field(Strategy(), description="how it is distributed")
    calibration: Calibration = Field(description="efficiencies")
    seed: int = Field(0, ge=0, description="root of all random draws")
    fidelity: Fidelity = Field("fluid", description="how the graph is played")
    perturbation: Perturbation = Field(Perturbation(), description="slow ranks and random times")
    confidence: Fraction = Field(
        0.02, gt=0, lt=1, description="relative half-width random runs are played to"
    )
    convergence: Convergence | None = Field(None, description="epochs to a target, for time and cost to it")
    fold: bool = Field(True, description="play one representative per class of equal ranks")

    def key(self) -> str:
        """Content key: SHA-256 over the canonical JSON of the scenario and the simulator's version."""
        from sim import __version__

        return hashlib.sha256(f"{__version__}:{self.fingerprint}".encode()).hexdigest()


class ScenarioFile(CatalogSpec):
    """A scenario as a YAML file states it: catalogue names (or paths), and changes to what they name."""

    name: str = Field("scenario", description="name of the scenario")
    workload: str = Field(description="catalogue name, or fields")
    cluster: str = Field(description="catalogue name, or fields")
    strategy: str | dict[str, Any] = Field({}, description="preset name, or the strategy's fields")
    calibration: tuple[str, ...] = Field((), description="merged over the default, in order")
    overrides: dict[str, Any] = Field({}, description="dotted field -> value, e.g. cluster.num_hosts: 4")
    seed: int = Field(0, ge=0, description="root of all random draws")
    fidelity: Fidelity = Field("fluid", description="how the graph is played")
    perturbation: Perturbation = Field(Perturbation(), description="slow ranks and random times")
    confidence: Fraction = Field(0.02, gt=0, lt=1, description="when a random run is long enough")
    convergence: str | Convergence | None = Field(None, description="file (YAML or CSV), or the curve itself")
    fold: bool = Field(True, description="whether ranks that behave alike are simulated once")
