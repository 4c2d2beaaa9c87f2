"""What if a traced job ran with another strategy, cluster or device: the imported workload, simulated twice.

Changes of a traced graph's durations need no model and act on the graph (:mod:`sim.trace.replay`). What
changes who computes and sends what needs another lowering: the workload that the trace shows is simulated as
it ran and as it would run, and the measured step is scaled by the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.analysis.result import Result
from sim.analysis.simulate import simulate
from sim.catalog import Catalog, default_catalog
from sim.errors import InfeasibleError, InputError, InvalidStrategyError
from sim.spec import Cluster, Strategy, Workload
from sim.trace.replay import edited_factor
from sim.units import nearest
from sim.yamlio import read_value

_ROOTS = ("strategy", "workload", "cluster", "perturbation")
_DEGREES = ("tp", "cp", "pp", "dp")


@dataclass(frozen=True)
class ScenarioWhatIf:
    """A traced job under other circumstances.

    Attributes
    ----------
    edits : tuple of str
    base, changed : Result
        Simulations of the imported workload as it ran, and with the edits.
    fields : dict
        What the edits set.
    """

    edits: tuple[str, ...]
    base: Result
    changed: Result
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Step time with the edits over that without."""
        return float(self.changed.step_time_s or 0.0) / float(self.base.step_time_s or 1.0)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "edits": list(self.edits),
            "modelled_base_step_s": self.base.step_time_s,
            "modelled_step_s": self.changed.step_time_s,
            "step_ratio": self.ratio,
            "base_samples_per_s": self.base.samples_per_s,
            "samples_per_s": self.changed.samples_per_s,
            "base_num_devices": self.base.num_devices,
            "num_devices": self.changed.num_devices,
            "breakdown": dict(self.changed.parts),
        }


def is_scenario_edit(edit: str) -> bool:
    """Whether an edit changes the scenario, not the durations of the traced graph."""
    name, equals, value = edit.partition("=")
    if not equals:
        return False
    if name == "cluster" or (name == "device" and edited_factor(value) is None):
        return True
    return (name.partition(".")[0] in _ROOTS and "." in name) or name in Strategy.model_fields


def scenario_what_if(
    workload: Workload,
    cluster: str | Cluster,
    edits: Sequence[str],
    *,
    world_size: int = 1,
    strategy: dict[str, Any] | None = None,
    catalog: Catalog | None = None,
) -> ScenarioWhatIf:
    """Simulate an imported workload as it ran and with edits.

    Parameters
    ----------
    workload : Workload
        From :func:`sim.trace.to_workload.import_workload`.
    cluster : str or Cluster
        What it ran on; as many hosts as the ranks need.
    edits : sequence of str
        ``FIELD=VALUE`` with a field of the strategy (``tp=2``, ``bucket_size=50MB``, ``compression=fp16``,
        ``overlap=false``), a dotted field of the scenario (``cluster.fabric.oversubscription=2``),
        ``device=NAME`` or ``cluster=NAME``.
    world_size : int
        Ranks of the traced job.
    strategy : dict, optional
        How it ran; data parallel over all ranks if absent.

    Raises
    ------
    InputError, InvalidStrategyError, InfeasibleError
        If one of the two cannot be simulated.
    """
    places = catalog or default_catalog()
    as_it_ran = strategy if strategy is not None else {"dp": world_size}
    base_fields = {f"strategy.{name}": value for name, value in as_it_ran.items()}
    changes, target = _changes(edits, places, cluster)
    fields = {**base_fields, **changes}
    if "strategy.dp" not in changes and _degree(changes):
        # Other degrees at the same number of devices: data parallelism takes the rest.
        fields["strategy.dp"] = max(1, _ranks(base_fields) // _ranks(changes))
    ran = f"Say how the {world_size} traced ranks ran on {_name(cluster)}, e.g. --strategy dp={world_size}."
    base = _simulate(workload, cluster, base_fields, places, ("--strategy", _text(as_it_ran), ran))
    made = (edit.partition("=")[0] for edit in edits)
    rest = f"The job ran with {_text(as_it_ran)}; these edits change {', '.join(dict.fromkeys(made))}."
    changed = base
    if edits:
        changed = _simulate(workload, target, fields, places, ("--what-if", " ".join(edits), rest))
    return ScenarioWhatIf(tuple(edits), base, changed, changes)


def _name(cluster: str | Cluster) -> str:
    return cluster if isinstance(cluster, str) else cluster.name


def _text(fields: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in fields.items()) or "one device"


def _changes(
    edits: Sequence[str], catalog: Catalog, cluster: str | Cluster
) -> tuple[dict[str, Any], str | Cluster]:
    """Scenario fields of the edits, and the cluster they run on."""
    fields: dict[str, Any] = {}
    target: str | Cluster = cluster
    device = ""
    for edit in edits:
        name, _, text = edit.partition("=")
        value = read_value(text)
        if name == "cluster":
            target = str(value)
        elif name == "device":
            device = str(value)
        elif name in Strategy.model_fields:
            fields[f"strategy.{name}"] = value
        elif name.partition(".")[0] in _ROOTS:
            fields[name] = value
        else:
            close = nearest(name, list(Strategy.model_fields))
            raise InputError("--what-if", "name a field", name, hint=f"Try {close}." if close else "")
    return fields, _with_device(target, device, catalog) if device else target


def _with_device(cluster: str | Cluster, name: str, catalog: Catalog) -> Cluster:
    """The cluster with all devices of its hosts replaced."""
    found = catalog.cluster(cluster) if isinstance(cluster, str) else catalog.resolve(cluster)
    catalog.device(name)
    if len(found.host_types) > 1:
        raise InputError("--what-if", "change the device of a cluster with equal hosts", found.name)
    host = found.host_types[0]
    counts = sum(count for _, count in host.devices)
    changed = host.replace(devices=((name, counts),))
    bare = {"host_types": (), "host_type_of": (), "device_types": (), "server_host_type": None}
    return catalog.resolve(found.model_copy(update={"host": changed, **bare}))


def _degree(fields: dict[str, Any]) -> int:
    """Product of the stated degrees; 0 if none is stated. What is no number the strategy itself refuses."""
    stated = [fields[f"strategy.{name}"] for name in _DEGREES if f"strategy.{name}" in fields]
    whole = (int(value) for value in stated if isinstance(value, int | float) and math.isfinite(value))
    return math.prod(whole) if stated else 0


def _ranks(fields: dict[str, Any]) -> int:
    return max(1, _degree(fields))


def _simulate(
    workload: Workload,
    cluster: str | Cluster,
    fields: dict[str, Any],
    catalog: Catalog,
    asked: tuple[str, str, str],
) -> Result:
    """Simulate one of the two; ``asked``: the option that made it what it is, its value, and what to do."""
    option, given_text, advice = asked
    found = catalog.cluster(cluster) if isinstance(cluster, str) else catalog.resolve(cluster)
    given = dict(fields)
    if "cluster.num_hosts" not in given and len(found.host_types) == 1:
        per_host = max(1, sum(count for _, count in found.host_types[0].devices))
        given["cluster.num_hosts"] = max(1, -(-_ranks(fields) // per_host))
    result = simulate(catalog.build_scenario({"workload": workload, "cluster": found, **given}))
    if result.status == "infeasible":
        raise InfeasibleError(
            f"{option} {given_text}: {result.message} {advice}", result.missing_bytes or 0.0
        )
    if not result.ok:
        known = InvalidStrategyError if result.status == "invalid" else InputError
        raise known(
            option, "be a strategy that the traced job can run", given_text, hint=f"{result.message} {advice}"
        )
    return result
