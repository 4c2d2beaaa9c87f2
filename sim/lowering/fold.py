"""Folding: the coarsest equitable partition of ranks, groups and links.

Ranks whose program, device and network position are alike behave alike, so one representative per class is
lowered and multiplicities go into the link coefficients. Colour refinement (1-dimensional
Weisfeiler-Leman) over ranks, groups and links finds the partition for any layout; a straggler, an uneven
leaf or a mixed device splits exactly the classes that it can reach. Colours are 64-bit hashes of multisets.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.lowering.arrays import by_first_appearance, dense, distinct, first_places
from sim.lowering.patterns import Family

IntArray = npt.NDArray[np.int64]
HashArray = npt.NDArray[np.uint64]
FloatArray = npt.NDArray[np.float64]

_CACHED = 1 << 14  # elements


@dataclass(frozen=True)
class Partition:
    """Classes of endpoints, of each family's groups, and of links.

    Attributes
    ----------
    endpoint_class : int array
        Class of every endpoint (``-1`` for endpoints that take no part).
    representatives, multiplicity : int arrays, one entry per endpoint class
    group_class : tuple of int arrays
        Per family: class of each group, numbered from 0 within the family.
    group_representative : tuple of int arrays
        Per family and class: the group that is lowered.
    link_class : int array
        Class of every link (``-1`` if nothing loads it).
    link_representative, link_members : int arrays
    """

    endpoint_class: IntArray
    representatives: IntArray
    multiplicity: IntArray
    group_class: tuple[IntArray, ...]
    group_representative: tuple[IntArray, ...]
    link_class: IntArray
    link_representative: IntArray
    link_members: IntArray


def partition(
    families: Sequence[Family],
    endpoint_key: IntArray,
    capacity: FloatArray,
    *,
    fold: bool = True,
) -> Partition:
    """Coarsest equitable partition.

    Parameters
    ----------
    families : sequence of Family
    endpoint_key : int array
        Initial key of each endpoint: equal keys mean equal device, program and speed; ``-1`` takes no part.
    capacity : float array
        Bytes/s of each link.
    fold : bool
        ``False`` keeps every endpoint, group and link apart (random or order-dependent scenarios).
    """
    active = endpoint_key >= 0
    if not fold:
        endpoint = np.where(active, np.cumsum(active) - 1, -1)
        groups = [np.arange(f.num_groups) for f in families]
        used = np.zeros(len(capacity), bool)
        for family in families:
            for load in family.loads:
                used[load.load_link] = True
        return _number(endpoint, groups, np.where(used, np.cumsum(used) - 1, -1))
    colours, group_colours, link = _refine(families, endpoint_key, capacity)
    return _number(np.where(active, dense(colours), -1), [dense(g) for g in group_colours], link)


def _number(endpoint: IntArray, groups: Sequence[IntArray], link: IntArray) -> Partition:
    endpoint = by_first_appearance(endpoint)
    groups = tuple(by_first_appearance(g) for g in groups)
    link = by_first_appearance(link)
    representatives, multiplicity = _representatives(endpoint)
    link_representative, link_members = _representatives(link)
    return Partition(
        endpoint,
        representatives,
        multiplicity,
        groups,
        tuple(_representatives(g)[0] for g in groups),
        link,
        link_representative,
        link_members,
    )


def _representatives(classes: IntArray) -> tuple[IntArray, IntArray]:
    """First member and number of members of every class; classes are dense, -1 is none."""
    count = int(classes.max(initial=-1)) + 1
    return first_places(classes, count), np.bincount(classes + 1, minlength=count + 1)[1:]


def _mix(value: HashArray) -> HashArray:
    """splitmix64 finaliser: spreads any 64-bit pattern. Long arrays by parts that stay in the cache."""
    mixed = np.empty_like(value)
    for first in range(0, len(value), _CACHED):
        part = slice(first, first + _CACHED)
        shifted = value[part] >> np.uint64(30)
        into = np.bitwise_xor(value[part], shifted, out=mixed[part])
        for factor, shift in ((0xBF58476D1CE4E5B9, 27), (0x94D049BB133111EB, 31)):
            into *= np.uint64(factor)
            np.right_shift(into, np.uint64(shift), out=shifted)
            into ^= shifted
    return mixed


def _bits(value: FloatArray) -> HashArray:
    """Hashable bits of floats, blind to the last 12 of 52 mantissa bits (rounding of sums)."""
    raw = np.ascontiguousarray(value, np.float64).view(np.uint64)
    return (raw + np.uint64(0x800)) >> np.uint64(12)


@dataclass(frozen=True)
class _Incidence:
    """Labelled edges between two kinds of nodes; labels are odd, so that no bit of a colour is lost."""

    left: IntArray
    right: IntArray
    label: HashArray
    num_left: int
    num_right: int

    def renumbered(self, kept: npt.NDArray[np.bool_]) -> _Incidence:
        """The same edges with only the ``kept`` nodes on the right, numbered anew."""
        right = (np.cumsum(kept) - 1)[self.right]
        return replace(self, right=right, num_right=int(np.count_nonzero(kept)))

    def to_left(self, colour: HashArray) -> HashArray:
        return _segment_sum(self.left, self._spread(colour[self.right]), self.num_left)

    def to_right(self, colour: HashArray) -> HashArray:
        return _segment_sum(self.right, self._spread(colour[self.left]), self.num_right)

    def _spread(self, colour: HashArray) -> HashArray:
        """Colours of the other ends, times labels: both are well mixed, and so is what they add up to."""
        return np.multiply(colour, self.label, out=colour)


def _segment_sum(index: IntArray, value: HashArray, size: int) -> HashArray:
    out = np.zeros(size, np.uint64)
    np.add.at(out, index, value)
    return out


def _refine(
    families: Sequence[Family], endpoint_key: IntArray, capacity: FloatArray
) -> tuple[HashArray, list[HashArray], IntArray]:
    links, members, offsets = _incidences(families, len(endpoint_key), len(capacity))
    loaded = np.zeros(len(capacity), bool)
    loaded[links.right] = True
    links = links.renumbered(loaded)
    with np.errstate(over="ignore"):
        endpoint = _mix(endpoint_key.astype(np.uint64) + np.uint64(1))
        link = _mix(_bits(capacity[loaded]))
        group = _initial_group_colours(families)
        counts = (0, 0, 0)
        while True:
            group = _mix(group + links.to_left(link) + members.to_left(endpoint) * np.uint64(3))
            link = _mix(link + links.to_right(group))
            endpoint = _mix(endpoint + members.to_right(group))
            new = (len(distinct(group)), len(distinct(link)), len(distinct(endpoint)))
            if new == counts:
                break
            counts = new
    classes = np.full(len(capacity), -1)
    classes[loaded] = dense(link)
    return endpoint, [group[a:b] for a, b in itertools.pairwise(offsets)], classes


def _initial_group_colours(families: Sequence[Family]) -> HashArray:
    colours = []
    for index, family in enumerate(families):
        colour = np.full(family.num_groups, _mix(np.array([index + 7], np.uint64))[0])
        if family.marks is not None:
            colour = _mix(colour ^ _bits(family.marks))
        for phase, load in enumerate(family.loads):
            hop = _mix(_bits(load.flow_latency)) + _bits(load.flow_inverse_rate)
            owner = np.repeat(np.arange(family.num_groups), np.diff(load.flow_offsets))
            colour = colour + _segment_sum(owner, _mix(hop ^ np.uint64(phase * 977 + 13)), family.num_groups)
        colours.append(colour)
    return np.concatenate(colours) if colours else np.zeros(0, np.uint64)


def _incidences(
    families: Sequence[Family], num_endpoints: int, num_links: int
) -> tuple[_Incidence, _Incidence, list[int]]:
    offsets = np.concatenate([[0], np.cumsum([f.num_groups for f in families])]).astype(np.int64)
    group, link, label = [], [], []
    owner, endpoint, position = [], [], []
    for start, family in zip(offsets, families, strict=False):
        for phase, load in enumerate(family.loads):
            group.append(load.group_link + start)
            link.append(load.load_link)
            label.append(_mix(_bits(load.load_coefficient) + np.uint64(phase * 7919 + 1)))
        size = family.groups.shape[1]
        owner.append(np.repeat(np.arange(family.num_groups) + start, size))
        endpoint.append(family.groups.ravel())
        places = np.arange(size, dtype=np.uint64) if family.asymmetric else np.zeros(size, np.uint64)
        position.append(np.tile(_mix(places + np.uint64(101)), family.num_groups))
    total, one = int(offsets[-1]), np.uint64(1)
    return (
        _Incidence(_cat(group), _cat(link), _cat(label, np.uint64) | one, total, num_links),
        _Incidence(_cat(owner), _cat(endpoint), _cat(position, np.uint64) | one, total, num_endpoints),
        offsets.tolist(),
    )


def _cat(parts: Sequence[npt.NDArray[Any]], dtype: type[np.generic] = np.int64) -> npt.NDArray[Any]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def quotient_loads(
    families: Sequence[Family], parts: Partition
) -> list[list[list[tuple[IntArray, FloatArray]]]]:
    """Link rows of every transfer that is lowered: ``[family][phase][group class] -> (links, coefficients)``.

    The coefficient on a link class is what *all* groups of the class together put on one of its links.
    """
    num_links = len(parts.link_representative)
    is_representative = np.zeros(len(parts.link_class), bool)
    is_representative[parts.link_representative] = True
    out: list[list[list[tuple[IntArray, FloatArray]]]] = []
    for family, group_class in zip(families, parts.group_class, strict=True):
        classes = int(group_class.max()) + 1 if len(group_class) else 0
        phases = []
        for load in family.loads:
            keep = is_representative[load.load_link]
            key = group_class[load.group_link[keep]] * num_links + parts.link_class[load.load_link[keep]]
            keys, inverse = np.unique(key, return_inverse=True)
            total: FloatArray = np.bincount(
                inverse, weights=load.load_coefficient[keep], minlength=len(keys)
            ).astype(np.float64)
            bounds = np.searchsorted(keys, np.arange(classes + 1) * num_links)
            phases.append(
                [
                    (keys[a:b] - c * num_links, total[a:b])
                    for c, (a, b) in enumerate(itertools.pairwise(bounds))
                ]
            )
        out.append(phases)
    return out
