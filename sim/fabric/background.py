"""Background traffic: bytes/s that flows of constant rate take from each link."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sim.errors import InputError

if TYPE_CHECKING:
    from sim.fabric.network import Network

FloatArray = npt.NDArray[np.float64]


def background_load(network: Network) -> FloatArray:
    """Bytes/s on each link, float[L].

    A flow between hosts goes from port to port: links inside hosts are not loaded.

    Raises
    ------
    InputError
        If a flow names a link or a host that there is not.
    """
    total = np.zeros(network.num_links)
    flows = network.cluster.background
    by_name = _numbers(network) if any(flow.link is not None for flow in flows) else {}
    for number, flow in enumerate(flows):
        if flow.link is not None:
            if flow.link not in by_name:
                known = ", ".join(list(by_name)[-3:])
                raise InputError(
                    f"cluster.background.{number}.link", "name a link", flow.link, hint=f"Some are {known}."
                )
            total[by_name[flow.link]] += flow.rate
            continue
        ports = [_port(network, number, name, host) for name, host in _ends(flow.source, flow.target)]
        hops = network.wiring.route(*(np.array([port]) for port in ports))
        listed = hops.link[0] >= 0
        first = network.num_links - len(network.wiring.capacity)
        np.add.at(total, hops.link[0][listed] + first, hops.share[0][listed] * flow.rate)
    return total


def _ends(source: int | None, target: int | None) -> list[tuple[str, int]]:
    return [("source", -1 if source is None else source), ("target", -1 if target is None else target)]


def _port(network: Network, number: int, name: str, host: int) -> int:
    """First port of a host."""
    if host >= network.num_hosts:
        must = f"be a host below {network.num_hosts}"
        raise InputError(f"cluster.background.{number}.{name}", must, host)
    return int(np.searchsorted(network.ports.host, host))


def _numbers(network: Network) -> dict[str, int]:
    return {network.link_name(link): link for link in range(network.num_links)}
