"""A fabric drawn with its links coloured by load: hosts below, switches in tiers above; tori as a grid.

Layers of more nodes than can be told apart are drawn in bins of neighbours, each link with the largest load
of those it stands for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sim.fabric.builders.torus import Torus
from sim.fabric.network import Network
from sim.plot.style import INK, Chart, new_chart
from sim.spec import Cluster

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FloatArray = npt.NDArray[np.float64]
Edge = tuple[str, str]

MAX_LAYER = 48  # nodes of one layer drawn one by one
MAX_SIDE = 24  # places along one side of a torus drawn one by one
MAX_PLAYED = 256  # devices up to which a training step is played unfolded to know every single link
_UNUSED = "#C9C9C9"


@dataclass
class _Picture:
    """Nodes with places and labels, undirected edges with loads (NaN: not known)."""

    place: dict[str, tuple[float, float]] = field(default_factory=dict)
    label: dict[str, str] = field(default_factory=dict)
    inside: dict[str, float] = field(default_factory=dict)
    edges: dict[Edge, float] = field(default_factory=dict)
    pitch: tuple[float, float] = (0.0, 1.0)  # distance of neighbours along a row and a column


def fabric(source: Any, *, utilisation: Mapping[str, float] | None = None, title: str = "") -> Chart:
    """Draw the fabric of a cluster, links coloured by utilisation.

    Parameters
    ----------
    source : Cluster, CollectiveResult or Result
        A cluster alone has no loads. Of a training step of up to 256 devices every link is known; of a larger
        one alike links are (all from hosts to leaves, say), at the load of the busiest of them.
    utilisation : mapping of str to float, optional
        Link name as in load tables -> 0 .. 1, in place of the source's own.
    title : str
        Above the figure.

    Returns
    -------
    Chart
        Hosts are squares, filled with the load of the busiest link inside; switches are dots.
    """
    cluster, known = _loads(source)
    network = Network.build(cluster)
    values = known if utilisation is None else _by_name(network, utilisation)
    picture = _collect(network, values)
    torus = network.wiring if isinstance(network.wiring, Torus) else None
    small = _on_grid(picture, torus) if torus is not None else _in_layers(picture)
    width, height = (7.2, 6.2) if torus is not None else (max(7.2, min(14.0, 0.24 * _widest(small))), 4.8)
    chart, axes = new_chart(width, height)
    _draw(chart, axes, small, loaded=values is not None)
    usual = f"{cluster.name}: {cluster.size} hosts, {cluster.fabric.kind}"
    axes.set_title(title or usual, fontsize=11, color=INK)
    return chart


# --- loads ----------------------------------------------------------------------------------------------


def _loads(source: Any) -> tuple[Cluster, FloatArray | None]:
    """The cluster and the utilisation of each link, if the source has any."""
    if isinstance(source, Cluster):
        return source, None
    if hasattr(source, "link_utilisation"):
        return source.cluster, source.link_utilisation
    scenario = source.scenario
    if scenario is None:
        raise ValueError("this result holds no scenario: run it again, or give a cluster and utilisation")
    network = Network.build(scenario.cluster)
    if source.num_devices and source.num_devices <= MAX_PLAYED:
        from sim.analysis.simulate import simulate

        table = simulate(scenario.model_copy(update={"fold": False})).links()
        each = dict(zip(table["link"], table["utilisation"], strict=True))
        return scenario.cluster, _by_name(network, each)
    table = source.links()
    alike: dict[str, float] = {}
    for name, value in zip(table["link"], table["utilisation"], strict=True):
        alike[_stem(name)] = max(alike.get(_stem(name), 0.0), float(value))
    names = (network.link_name(link) for link in range(network.num_links))
    return scenario.cluster, np.array([alike.get(_stem(name), 0.0) for name in names])


def _stem(name: str) -> str:
    return re.sub(r"\d+", "", name)


def _by_name(network: Network, utilisation: Mapping[str, float]) -> FloatArray:
    return np.array([utilisation.get(network.link_name(link), 0.0) for link in range(network.num_links)])


def _collect(network: Network, values: FloatArray | None) -> _Picture:
    """Hosts and switches, cables as undirected edges with the load of their busier direction."""
    picture = _Picture()
    first = network.num_links - len(network.wiring.capacity)
    for link in range(len(network.wiring.capacity)):
        a, b = (_node(network, name) for name in network.wiring.ends(link))
        value = math.nan if values is None else float(values[first + link])
        key = (a, b) if _order(a) < _order(b) else (b, a)
        if a != b:
            picture.edges[key] = _larger(picture.edges.get(key, math.nan), value)
    for node in sorted({node for edge in picture.edges for node in edge} | _hosts(network), key=_order):
        picture.label[node] = node
    if values is not None:
        for host in range(network.num_hosts):
            begin, end = network.host_links(host)
            if end > begin and not network.ports.devices:
                picture.inside[f"host{host}"] = float(values[begin:end].max())
    return picture


def _hosts(network: Network) -> set[str]:
    return set() if network.ports.devices else {f"host{host}" for host in range(network.num_hosts)}


def _node(network: Network, name: str) -> str:
    """A host's ports are the host, unless devices are what is joined."""
    return name if network.ports.devices else name.split("/")[0]


def _order(name: str) -> tuple[Any, ...]:
    stem = _stem(name)
    return (stem, [int(part) for part in re.findall(r"\d+", name)])


def _larger(a: float, b: float) -> float:
    return b if math.isnan(a) else a if math.isnan(b) else max(a, b)


# --- layout ---------------------------------------------------------------------------------------------


def _in_layers(picture: _Picture) -> _Picture:
    """Hosts at the bottom, each switch as high as it is far from a host; wide layers in bins."""
    neighbours: dict[str, list[str]] = {node: [] for node in picture.label}
    for a, b in picture.edges:
        neighbours[a].append(b)
        neighbours[b].append(a)
    height = {node: 0 for node in picture.label if node.startswith("host")}
    queue = list(height)
    for node in queue:
        for other in neighbours[node]:
            if other not in height:
                height[other] = height[node] + 1
                queue.append(other)
    layers: dict[int, list[str]] = {}
    for node in picture.label:
        layers.setdefault(height.get(node, 0), []).append(node)
    bins: dict[str, str] = {}
    result = _Picture()
    for level, nodes in layers.items():
        per_bin = -(-len(nodes) // MAX_LAYER)
        groups = [nodes[i : i + per_bin] for i in range(0, len(nodes), per_bin)]
        for index, members in enumerate(groups):
            bins.update(dict.fromkeys(members, members[0]))
            result.place[members[0]] = ((index + 0.5) / len(groups), float(level))
            result.label[members[0]] = _span(members)
    return _binned(picture, bins, result)


def _on_grid(picture: _Picture, torus: Torus) -> _Picture:
    """Places of a torus on a plane: the first two dimensions, further ones as planes beside each other."""
    extents = [*torus.dims, 1, 1]
    across = math.ceil(math.sqrt(math.prod(extents[2:])))
    step = [max(1, -(-extent // MAX_SIDE)) for extent in extents[:2]]
    bins: dict[str, str] = {}
    result = _Picture(pitch=(float(step[0]), float(step[1])))
    names = [torus.place_name(place) for place in range(torus.num_places)]
    joined = {node: number for number, node in enumerate(names)}
    pairs = [(a, b) if a in joined else (b, a) for a, b in picture.edges if (a in joined) != (b in joined)]
    hosts = dict(pairs)
    for node, place in joined.items():
        x, y, slab = place % extents[0], place // extents[0] % extents[1], place // (extents[0] * extents[1])
        corner = x // step[0] * step[0] + extents[0] * (y // step[1] * step[1] + extents[1] * slab)
        first = names[corner]
        bins[node] = first
        if node in hosts:  # a host is drawn as its router
            bins[hosts[node]] = first
        left, down = slab % across * (extents[0] + 2), slab // across * (extents[1] + 2)
        column, row = corner % extents[0], corner // extents[0] % extents[1]
        result.place[first] = float(left + column), float(down + row)
        result.label[first] = hosts.get(first, first)
    return _binned(picture, bins, result)


def _span(members: list[str]) -> str:
    if len(members) == 1:
        return members[0]
    numbers = re.findall(r"\d+", members[-1])
    return f"{members[0]}..{numbers[-1] if numbers else members[-1]}"


def _binned(picture: _Picture, bins: Mapping[str, str], result: _Picture) -> _Picture:
    """Edges and hosts of a picture between the bins of another."""
    for (a, b), value in picture.edges.items():
        key = tuple(sorted((bins[a], bins[b])))
        if key[0] != key[1]:
            result.edges[key[0], key[1]] = _larger(result.edges.get((key[0], key[1]), math.nan), value)
    for node, value in picture.inside.items():
        home = bins.get(node, node)
        result.inside[home] = max(result.inside.get(home, 0.0), value)
    return result


def _widest(picture: _Picture) -> int:
    levels = [y for _, y in picture.place.values()]
    return max((levels.count(level) for level in set(levels)), default=1)


# --- drawing --------------------------------------------------------------------------------------------


def _draw(chart: Chart, axes: Axes, picture: _Picture, *, loaded: bool) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(0, 100), colormaps["plasma_r"])
    edges = sorted(picture.edges.items(), key=lambda item: -1.0 if math.isnan(item[1]) else item[1])
    lines = [_line(picture.place[a], picture.place[b], picture.pitch) for (a, b), _ in edges]
    loads = [value for _, value in edges]
    colours = [_colour(scale, value) for value in loads]
    widths = [0.7 if not value > 0 else 1.0 + 1.6 * min(value, 1.0) for value in loads]
    axes.add_collection(LineCollection(lines, colors=colours, linewidths=widths, zorder=1))
    for node, (x, y) in picture.place.items():
        is_host = picture.label[node].startswith("host")
        value = picture.inside.get(node, math.nan)
        fill = _colour(scale, value) if value > 0 else "white"
        axes.plot(
            [x], [y], marker="s" if is_host else "o", markersize=6, color=fill,
            markeredgecolor=INK, markeredgewidth=0.7, zorder=2,
        )  # fmt: skip
    _write_labels(axes, picture)
    axes.margins(0.05, 0.12)
    axes.set_axis_off()
    if loaded:
        bar = chart.colorbar(scale, ax=axes, fraction=0.03, pad=0.02)
        bar.set_label("utilisation (%)", fontsize=9, color=INK)
        bar.ax.tick_params(labelsize=8)


def _colour(scale: Any, value: float) -> Any:
    return _UNUSED if not value > 0 else scale.to_rgba(100 * min(value, 1.0))


def _line(a: tuple[float, float], b: tuple[float, float], pitch: tuple[float, float]) -> FloatArray:
    """A straight line, or an arc between nodes of one row or column that are no neighbours."""
    (x0, y0), (x1, y1) = a, b
    t = np.linspace(0, 1, 13)
    along_x = y0 == y1
    apart, usual = (abs(x1 - x0), pitch[0]) if along_x else (abs(y1 - y0), pitch[1])
    if (y0 != y1 and x0 != x1) or apart <= 1.01 * usual:
        return np.array([a, b])
    bend = 0.18 * (usual or 1.0)
    x = x0 + (x1 - x0) * t + (0.0 if along_x else bend) * 4 * t * (1 - t)
    y = y0 + (y1 - y0) * t + (bend if along_x else 0.0) * 4 * t * (1 - t)
    return np.stack([x, y], axis=1)


def _write_labels(axes: Axes, picture: _Picture) -> None:
    """Names of all nodes if they fit, of the first and last of each row if not."""
    rows: dict[float, list[str]] = {}
    for node, (_, y) in picture.place.items():
        rows.setdefault(y, []).append(node)
    for nodes in rows.values():
        shown = nodes if len(nodes) <= 16 else [nodes[0], nodes[-1]]
        for node in shown:
            x, y = picture.place[node]
            axes.annotate(
                picture.label[node], (x, y), xytext=(0, -10 if picture.label[node].startswith("host") else 6),
                textcoords="offset points", ha="center", va="center", fontsize=6.5, color=INK,
                bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.7},
            )  # fmt: skip
