"""The shape of a group of ranks that a collective works on: its grid, and the links among its ranks.

A grid is given by the user, or follows the hardware: the dimensions of a torus, the devices of a host and the
hosts below a leaf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.errors import InputError
from sim.fabric.builders.fat_tree import FatTree
from sim.fabric.builders.torus import Torus
from sim.fabric.builders.two_tier import TwoTier
from sim.fabric.host_graph import host_graph
from sim.fabric.network import Network
from sim.models.collectives import GRID_ALGORITHMS
from sim.models.tree_packing import MAX_UNITS, Matrix, pack_trees
from sim.taxonomy.grid import sub_grid

IntArray = npt.NDArray[np.int64]

Dims = tuple[int, ...] | None
_OF_HOSTS = (*GRID_ALGORITHMS, "tree", "nvls_tree", "collnet", "in_network", "packed_trees")


def group_dims(
    network: Network, endpoint_host: IntArray, groups: IntArray, algorithm: str, given: Dims = None
) -> Dims:
    """Extents of the dimensions, innermost first, that all ``groups`` have for an algorithm.

    ``None`` where the algorithm needs none, or the groups are no grid.

    Parameters
    ----------
    groups : int[g, n]
        Endpoints; a group's rank i is its i-th.
    given : tuple of int, optional
        What the user wants.

    Raises
    ------
    InputError
        If the extents given do not multiply to the number of ranks.
    """
    size = groups.shape[1]
    if given is not None and (algorithm in GRID_ALGORITHMS or algorithm == "bcube"):
        if math.prod(given) != size:
            raise InputError("collective.dims", f"multiply to the number of ranks ({size})", list(given))
        return given
    if algorithm not in _OF_HOSTS:
        return None
    if algorithm in GRID_ALGORITHMS:
        along = torus_dims(network, groups)
        if along is not None and (algorithm != "torus2d" or len(along) == 2):
            return along
    hosts = endpoint_host[groups]
    if algorithm == "blueconnect":
        return nested_dims([hosts, *_switches(network, hosts)])
    return nested_dims([hosts])


def nested_dims(labels: Sequence[IntArray]) -> Dims:
    """Ranks per innermost label, innermost labels per next one, ... and what is left.

    A level whose runs are not equally long in all groups is left out; the first has to be there.

    Parameters
    ----------
    labels : sequence of int[g, n]
        Host, leaf, pod ... of each rank of each group.
    """
    size, extents = labels[0].shape[1], []
    inner = 1
    for number, label in enumerate(labels):
        run = _even_run(np.sort(label, axis=1))
        if run is None and number == 0:
            return None
        if run is not None and run % inner == 0 and run > inner:
            extents.append(run // inner)
            inner = run
    if labels and not extents:
        extents = [1]
    return (*extents, size // inner) if size > inner or len(extents) == 1 else tuple(extents)


def _even_run(label: IntArray) -> int | None:
    """Length of the runs of equal labels, if all of all groups are equally long."""
    size = label.shape[1]
    changes = label[:, 1:] != label[:, :-1]
    breaks = np.flatnonzero(changes[0]) + 1
    run = int(breaks[0]) if len(breaks) else size
    even = np.array_equal(breaks, np.arange(run, size, run)) and size % run == 0
    return run if even and bool((changes == changes[0]).all()) else None


def _switches(network: Network, hosts: IntArray) -> list[IntArray]:
    """Leaf (and pod) of each rank's host, by the host's first port."""
    wiring, ports = network.wiring, network.ports
    if ports.devices or not len(ports):
        return []
    port = np.searchsorted(ports.host, hosts)
    if isinstance(wiring, TwoTier):
        return [wiring.leaf[port]]
    if isinstance(wiring, FatTree):
        edge = port // wiring.half
        return [edge, edge // wiring.half]
    return []


def torus_dims(network: Network, groups: IntArray) -> Dims:
    """Extents of the sub-grid of a torus that every group fills; ``None`` elsewhere."""
    wiring = network.wiring
    if not isinstance(wiring, Torus) or (groups >= network.num_devices).any():
        return None
    place = groups if network.ports.devices else network.device_host[groups]
    return sub_grid(place, wiring.dims)


def group_links(network: Network, groups: IntArray, per_host: int) -> Matrix | None:
    """NVLinks among the first ``per_host`` ranks of every group, in units of the narrowest; the least of all.

    ``None`` where they do not join these ranks (NVSwitch, PCIe): then all pairs are alike.
    """
    least: npt.NDArray[np.float64] | None = None
    for members in np.unique(_local(network, groups).reshape(-1, per_host + 1), axis=0):
        graph = host_graph(network.host_types[int(members[0])])
        local = members[1:].tolist()
        wide = np.array([[graph.nvlink.get((a, b), 0.0) for b in local] for a in local])
        least = wide if least is None else np.minimum(least, wide)
    if least is None or not least.any():
        return None
    unit = max(float(least[least > 0].min()), float(least.sum(1).max()) / MAX_UNITS)
    matrix = tuple(tuple(int(value / unit + 1e-9) for value in row) for row in least)
    return matrix if all(pack_trees(matrix, root) for root in range(per_host)) else None


def _local(network: Network, groups: IntArray) -> IntArray:
    """Host type, then local device indices, of each host's part of the groups."""
    devices = groups.reshape(len(groups), -1)
    hosts = network.device_host[devices]
    run = _even_run(hosts)
    parts = devices.reshape(-1, run or devices.shape[1])
    host = network.device_host[parts[:, :1]]
    return np.concatenate([network.host_kind[host], parts - network.first_device[host]], axis=1)
