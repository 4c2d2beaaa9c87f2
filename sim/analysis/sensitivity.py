"""What a percent is worth: throughput gained per percent of each resource, by finite differences."""

from __future__ import annotations

import math

import pandas as pd

from sim.analysis.variants import (
    link_kinds,
    scale_devices,
    scale_host_links,
    scale_latencies,
    scale_network,
    throughput,
)
from sim.spec import Scenario


def variants(scenario: Scenario, factor: float) -> dict[str, Scenario]:
    """The scenario with one resource at a time improved by ``factor`` (latency: divided by it)."""
    result = {
        "device_flops": scale_devices(scenario, flops=factor),
        "memory_bandwidth": scale_devices(scenario, bandwidth=factor),
    }
    for kind in link_kinds(scenario):
        result[f"link_{kind}"] = scale_host_links(scenario, kind, factor)
    if scenario.cluster.size > 1:
        result["network_bandwidth"] = scale_network(scenario, factor)
    result["latency"] = scale_latencies(scenario, 1.0 / factor)
    return result


def sensitivity(scenario: Scenario, *, step: float = 0.05) -> pd.DataFrame:
    """Elasticity of throughput with respect to each resource.

    Parameters
    ----------
    scenario : Scenario
        A feasible scenario.
    step : float
        Relative change of the resource; the difference is taken one-sided, towards faster.

    Returns
    -------
    DataFrame
        ``resource``, ``percent_per_percent`` (percent of throughput per percent of the resource; for latency
        per percent less), ``samples_per_s`` with the resource improved by ``step``. Largest effect first.
    """
    base = throughput(scenario)
    rows = []
    for name, changed in variants(scenario, 1.0 + step).items():
        reached = throughput(changed)
        rows.append(
            {
                "resource": name,
                "percent_per_percent": math.log(reached / base) / math.log1p(step),
                "samples_per_s": reached,
            }
        )
    table = pd.DataFrame(rows)
    return table.sort_values("percent_per_percent", ascending=False, kind="stable", ignore_index=True)
