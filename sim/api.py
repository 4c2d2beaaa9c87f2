"""The public names of ``import sim``: describe, simulate, vary, compare. Everything heavy loads on use."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from sim import plot, taxonomy
    from sim.analysis.collective import CollectiveResult
    from sim.analysis.compare import Comparison
    from sim.analysis.result import Result
    from sim.catalog import Catalog
    from sim.spec import Calibration, Cluster, Device, Host, Scenario, Strategy, Workload
    from sim.spec.base import Spec
    from sim.sweep.runner import Sweep
    from sim.taxonomy import Enumeration, Refusal

__all__ = [
    "calibration",
    "check",
    "cluster",
    "collective",
    "compare",
    "device",
    "enumerate_strategies",
    "host",
    "list_names",
    "load_result",
    "plot",
    "read_scenario",
    "run",
    "scenario",
    "show",
    "simulate",
    "strategy",
    "sweep",
    "taxonomy",
    "workload",
    "workload_from_module",
]

_MODULES = frozenset({"plot", "taxonomy"})


def __getattr__(name: str) -> ModuleType:
    if name in _MODULES:
        return importlib.import_module(f"sim.{name}")
    raise AttributeError(f"module 'sim.api' has no attribute {name!r}")


# -- the catalogue ---------------------------------------------------------------------------------


def _catalog() -> Catalog:
    from sim.catalog import default_catalog

    return default_catalog()


def cluster(name: str, num_hosts: int | None = None, **overrides: Any) -> Cluster:
    """A cluster by catalogue name or YAML path.

    Parameters
    ----------
    name : str
        E.g. ``"dgx-a100"``.
    num_hosts : int, optional
        Number of machines; the file's own if absent.
    **overrides
        Fields of the cluster to replace, e.g. ``fabric={"kind": "single_switch"}``.
    """
    return _catalog().cluster(name, num_hosts, **overrides)


def workload(name: str, **overrides: Any) -> Workload:
    """A workload by catalogue name or YAML path; overrides are its fields or its generator's.

    Giving one of ``global_batch_size`` and ``batch_per_device`` takes the other away.
    """
    return _catalog().workload(name, **overrides)


def workload_from_module(
    module: Any, inputs: Any, *, name: str = "", batch: int | None = None, **fields: Any
) -> Workload:
    """A workload from a ``torch.nn.Module`` and example inputs; needs the extra ``record``.

    Parameters as in :func:`sim.record.module.workload_of`.
    """
    from sim.errors import InputError

    try:
        from sim.record.module import workload_of
    except ImportError:
        hint = "Install it with `pip install clusterloom[record]`."
        raise InputError("torch", "be installed to follow a module", hint=hint) from None
    return workload_of(module, inputs, name=name, batch=batch, **fields)


def strategy(name: str | None = None, **fields: Any) -> Strategy:
    """A strategy: a preset by name, or the defaults (data parallel), with some fields replaced."""
    from sim import yamlio
    from sim.spec import Strategy

    if name is not None:
        return _catalog().strategy(name, **fields)
    return yamlio.validate(Strategy, yamlio.Document({}), field_prefix="strategy", overrides=fields)


def calibration(*names: str) -> Calibration:
    """The default calibration with others merged over it, in order; later ones win per parameter."""
    return _catalog().calibration(names)


def device(name: str, **overrides: Any) -> Device:
    """A device by catalogue name or YAML path."""
    return _catalog().device(name, **overrides)


def host(name: str, **overrides: Any) -> Host:
    """A host by catalogue name or YAML path."""
    return _catalog().host(name, **overrides)


def list_names(kind: str) -> list[str]:
    """Names of one kind: devices, hosts, clusters, workloads, strategies, sweeps, calibrations."""
    return _catalog().names(kind)


def show(name: str | Spec, kind: str | None = None) -> Spec:
    """One entry of the catalogue, resolved; ``kind`` where a name exists in several.

    Parameters
    ----------
    name : str or Spec
        A catalogue name, a YAML path, or a spec (returned as it is).
    kind : str, optional
        E.g. ``"device"``; found by the name if absent.
    """
    from sim.errors import InputError

    if not isinstance(name, str):
        return name
    found = _catalog()
    if kind is not None:
        return found.get(kind, name)
    for candidate in ("workload", "cluster", "device", "host", "strategy", "calibration", "sweep"):
        if name in found.names(candidate):
            return found.get(candidate, name)
    raise InputError("name", "be in the catalogue", name, hint="See sim.list_names(kind).")


# -- scenarios and runs ----------------------------------------------------------------------------


def scenario(
    workload: str | Workload,
    cluster: str | Cluster,
    strategy: str | Strategy | Mapping[str, Any] | None = None,
    *,
    calibration: Calibration | str | Iterable[str] | None = None,
    seed: int = 0,
    fidelity: str = "fluid",
    jitter: float = 0.0,
    slow_ranks: Mapping[int, float] | None = None,
    **fields: Any,
) -> Scenario:
    """Everything one simulation needs, resolved and checked.

    Parameters
    ----------
    workload, cluster : str or spec
        Catalogue names, YAML paths, or specs.
    strategy : str, Strategy or mapping, optional
        Preset name, spec, or fields; data parallelism over all devices if absent.
    calibration : optional
        Names merged over the default calibration, or a Calibration.
    seed : int
        Seed of everything random.
    fidelity : str
        ``fluid`` (links are shared) or ``analytic`` (idle network).
    jitter : float
        Coefficient of variation of compute times.
    slow_ranks : mapping of int to float, optional
        Rank -> factor by which its compute takes longer.
    **fields
        Other fields of a Scenario: ``confidence``, ``fold``.
    """
    values: dict[str, Any] = {
        "workload": workload,
        "cluster": cluster,
        "strategy": strategy,
        "calibration": calibration if calibration is not None else (),
        "seed": seed,
        "fidelity": fidelity,
        "perturbation": {"jitter": jitter, "slow_ranks": dict(slow_ranks or {})},
    }
    return _catalog().build_scenario({**values, **fields})


def read_scenario(name: str, **overrides: Any) -> Scenario:
    """A scenario from a YAML file, by name or path; overrides are dotted fields."""
    return _catalog().scenario(name, **overrides)


def simulate(scenario: Scenario) -> Result:
    """Simulate a scenario."""
    from sim.analysis.simulate import simulate as implementation

    return implementation(scenario)


def run(
    workload: str | Workload,
    cluster: str | Cluster,
    strategy: str | Strategy | Mapping[str, Any] | None = None,
    *,
    calibration: Calibration | str | Iterable[str] | None = None,
    seed: int = 0,
    fidelity: str = "fluid",
    jitter: float = 0.0,
    slow_ranks: Mapping[int, float] | None = None,
    **fields: Any,
) -> Result:
    """Simulate one training step; parameters as in :func:`scenario`.

    Returns
    -------
    Result
        ``status`` is ``ok``, ``infeasible`` (does not fit the memory) or ``invalid`` (a rule refuses it).
    """
    described = scenario(
        workload,
        cluster,
        strategy,
        calibration=calibration,
        seed=seed,
        fidelity=fidelity,
        jitter=jitter,
        slow_ranks=slow_ranks,
        **fields,
    )
    return simulate(described)


def collective(
    operation: str,
    cluster: str | Cluster,
    size: float | str | Sequence[float | str] = "1GiB",
    *,
    algorithm: str = "auto",
    ranks: Any = None,
    num_hosts: int | None = None,
    calibration: Calibration | str | Iterable[str] = "collectives",
    chunks: int = 1,
    **shape: Any,
) -> CollectiveResult:
    """Simulate one bare collective, as nccl-tests would run it; ``.table()`` has time and bandwidths.

    Parameters
    ----------
    operation : str
        E.g. ``all_reduce``, ``all_to_allv``; see ``sim.models.collectives.OPERATIONS``.
    cluster : str or Cluster
    size : float, str, or a sequence of them
        Bytes in the meaning of nccl-tests (all-reduce: the buffer; all-gather: the result; all-to-all: the
        send buffer of a rank).
    algorithm : str
        ``auto`` for what the library would run, or one of ``sim.models.collectives.ALGORITHMS``.
    ranks : sequence of int, or of such sequences, optional
        Devices of one group, or of several that run at once; all devices if absent.
    num_hosts : int, optional
        Of a cluster given by name.
    calibration : Calibration, str, or names
        Merged over the default.
    chunks : int
        Parts that a collective of several dimensions is pipelined in.
    **shape
        ``dims`` (of a grid), ``radix`` (bcube, kary_tree), ``matrix`` or ``skew`` (all_to_allv).
    """
    from sim.analysis.collective import simulate_collective
    from sim.spec import Calibration
    from sim.units import parse_quantity

    where = _catalog().cluster(cluster, num_hosts) if isinstance(cluster, str) else cluster
    if not isinstance(calibration, Calibration):
        names = (calibration,) if isinstance(calibration, str) else tuple(calibration)
        calibration = _catalog().calibration(names)
    given = [size] if isinstance(size, str | int | float) else list(size)
    sizes = [
        parse_quantity(each, "bytes", "size") if isinstance(each, str) else float(each) for each in given
    ]
    return simulate_collective(
        operation, where, sizes, calibration, algorithm=algorithm, ranks=ranks, chunks=chunks, **shape
    )


def load_result(path: str | Path) -> Result:
    """A result saved by ``Result.save`` or ``clusterloom run --json``."""
    from sim.analysis.result import load_result as implementation

    return implementation(path)


def compare(first: Result | str | Path, second: Result | str | Path) -> Comparison:
    """Attribute the difference of two step times to causes; the parts add up.

    Parameters
    ----------
    first, second : Result, str or Path
        Results, or files they were saved to.
    """
    from sim.analysis.compare import compare as implementation

    pair = [load_result(item) if isinstance(item, str | Path) else item for item in (first, second)]
    return implementation(*pair)


# -- many of them ----------------------------------------------------------------------------------


def sweep(
    workload: str | Workload | None = None,
    cluster: str | Cluster | None = None,
    axes: Mapping[str, Sequence[Any]] | None = None,
    **options: Any,
) -> Sweep:
    """A resumable sweep over a product of axes; ``.run()`` computes it and returns a table.

    Parameters
    ----------
    workload, cluster : str or spec, optional
        The base; may be axes instead.
    axes : mapping of str to sequence
        Dotted field -> values, e.g. ``{"strategy.tp": [4, 8]}``.
    **options
        ``strategy``, ``calibration``, ``where``, ``name`` and what else :mod:`sim.sweep` takes.
    """
    from sim.sweep.runner import sweep as implementation

    return implementation(workload, cluster, axes or {}, **options)


def check(
    workload: str | Workload,
    cluster: str | Cluster,
    strategy: str | Strategy | Mapping[str, Any] | None = None,
) -> list[Refusal]:
    """Why the taxonomy refuses a strategy for a workload on a cluster; empty if it does not."""
    from sim.taxonomy import check as implementation

    described = scenario(workload, cluster, strategy)
    return list(implementation(described.strategy, described.workload, described.cluster))


def enumerate_strategies(
    workload: str | Workload, cluster: str | Cluster, axes: Mapping[str, Iterable[Any]]
) -> Enumeration:
    """Every valid strategy of a product of axes, and the refused ones counted by reason."""
    from sim.taxonomy import enumerate as implementation

    described = scenario(workload, cluster)
    return implementation(described.workload, described.cluster, axes)
