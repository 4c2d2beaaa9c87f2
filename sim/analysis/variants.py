"""Scenarios with one resource made faster: what sensitivity and uncertainty simulate."""

from __future__ import annotations

from collections.abc import Callable

from sim.analysis.result import Result
from sim.errors import ClusterloomError
from sim.spec import Calibration, Cluster, Device, Fabric, Host, Scenario

Change = Callable[[Scenario], Scenario]


def with_cluster(scenario: Scenario, cluster: Cluster) -> Scenario:
    """The scenario on another cluster."""
    return scenario.model_copy(update={"cluster": cluster})


def with_calibration(scenario: Scenario, calibration: Calibration) -> Scenario:
    """The scenario under another calibration."""
    return scenario.model_copy(update={"calibration": calibration})


def scale_devices(scenario: Scenario, *, flops: float = 1.0, bandwidth: float = 1.0) -> Scenario:
    """All device peaks and memory bandwidths multiplied."""

    def faster(device: Device) -> Device:
        peaks = {dtype: peak * flops for dtype, peak in device.peak_flops.items()}
        return device.model_copy(
            update={"peak_flops": peaks, "memory_bandwidth": device.memory_bandwidth * bandwidth}
        )

    cluster = scenario.cluster
    return with_cluster(
        scenario, cluster.model_copy(update={"device_types": tuple(map(faster, cluster.device_types))})
    )


def _scale_hosts(cluster: Cluster, change: Callable[[Host], Host]) -> Cluster:
    server = cluster.server_host_type
    return cluster.model_copy(
        update={
            "host_types": tuple(map(change, cluster.host_types)),
            "server_host_type": None if server is None else change(server),
        }
    )


def scale_host_links(scenario: Scenario, kind: str, factor: float) -> Scenario:
    """Links of one kind inside hosts (nvlink, pcie, qpi, memory) multiplied in bandwidth."""

    def faster(host: Host) -> Host:
        links = tuple(
            link.model_copy(update={"bandwidth": link.bandwidth * factor}) if link.kind == kind else link
            for link in host.links
        )
        return host.model_copy(update={"links": links})

    return with_cluster(scenario, _scale_hosts(scenario.cluster, faster))


def scale_network(scenario: Scenario, factor: float) -> Scenario:
    """Network ports, host cables and switch cables multiplied in bandwidth."""

    def faster(host: Host) -> Host:
        nics = tuple(nic.model_copy(update={"bandwidth": nic.bandwidth * factor}) for nic in host.nics)
        return host.model_copy(update={"nics": nics})

    cluster = _scale_hosts(scenario.cluster, faster)
    fabric = cluster.fabric
    update: dict[str, object] = {
        name: getattr(fabric, name) * factor
        for name in ("bandwidth", "uplink_bandwidth")
        if getattr(fabric, name) is not None
    }
    update["edges"] = tuple(
        edge.model_copy(update={"bandwidth": edge.bandwidth * factor}) for edge in fabric.edges
    )
    return with_cluster(scenario, cluster.model_copy(update={"fabric": fabric.model_copy(update=update)}))


def scale_latencies(scenario: Scenario, factor: float) -> Scenario:
    """Every latency of links, ports, cables and collective steps multiplied; not kernel launches."""

    def change(host: Host) -> Host:
        links = tuple(link.model_copy(update={"latency": link.latency * factor}) for link in host.links)
        nics = tuple(nic.model_copy(update={"latency": nic.latency * factor}) for nic in host.nics)
        return host.model_copy(update={"links": links, "nics": nics})

    cluster = _scale_hosts(scenario.cluster, change)
    cluster = cluster.model_copy(update={"fabric": _scale_fabric_latency(cluster.fabric, factor)})
    calibration = scenario.calibration
    sections = {}
    for section in ("link", "library"):
        table = getattr(calibration, section)
        sections[section] = {
            key: {
                name: parameter.model_copy(
                    update={"value": parameter.value * factor, "low": None, "high": None}
                )
                if "latency" in name
                else parameter
                for name, parameter in parameters.items()
            }
            for key, parameters in table.items()
        }
    changed = calibration.model_copy(update=sections)
    return with_calibration(with_cluster(scenario, cluster), changed)


def _scale_fabric_latency(fabric: Fabric, factor: float) -> Fabric:
    edges = tuple(edge.model_copy(update={"latency": edge.latency * factor}) for edge in fabric.edges)
    uplink = None if fabric.uplink_latency is None else fabric.uplink_latency * factor
    return fabric.model_copy(
        update={"latency": fabric.latency * factor, "uplink_latency": uplink, "edges": edges}
    )


def link_kinds(scenario: Scenario) -> tuple[str, ...]:
    """Kinds of links inside the hosts of a scenario, in order of name."""
    hosts = scenario.cluster.host_types
    return tuple(sorted({link.kind for host in hosts for link in host.links} - {"nic"}))


def throughput(scenario: Scenario) -> float:
    """Samples per second (steps per second where samples are unknown) of a scenario that must be feasible."""
    from sim.analysis.simulate import simulate

    result: Result = simulate(scenario)
    if not result.ok or not result.step_time_s:
        raise ClusterloomError(f"a variant of the scenario is {result.status}: {result.message}")
    return result.samples_per_s or 1.0 / result.step_time_s
