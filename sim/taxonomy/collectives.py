"""The catalogue of gradient collectives (dimension D6): what rules and the table of dimensions know of each.

The algorithms themselves are in ``sim.models.collectives``, under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CollectiveFacts:
    """One algorithm.

    Parameters
    ----------
    description : str
        For the table of dimensions.
    label : str
        Its name there, with the number it takes; its plain name if empty.
    scatters : bool
        Whether it has a reduce-scatter form, which leaves every rank its own part of the sum.
    power_of_two : bool
        Whether that form, and its plain cost, need a number of ranks that is a power of two.
    grid : bool
        Whether ranks form a grid, along whose dimensions it works.
    digits : bool
        Whether it works digit by digit of a rank's number.
    radix : bool
        Whether it has a base or a number of children to choose.
    """

    description: str
    label: str = ""
    scatters: bool = True
    power_of_two: bool = False
    grid: bool = False
    digits: bool = False
    radix: bool = False

    @property
    def shaped(self) -> bool:
        """Whether it has several phases, each along one dimension, that chunks can pipeline through."""
        return self.grid or self.digits

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields that a user chooses beside it."""
        return (
            *(("strategy.chunks",) if self.grid else ()),
            *(("strategy.collective_radix",) if self.radix else ()),
            *(("strategy.collective_dims",) if self.shaped else ()),
        )


COLLECTIVES: Mapping[str, CollectiveFacts] = {
    "ring": CollectiveFacts("2(n-1) steps, 2(n-1)/n of the bytes: bandwidth-optimal"),
    "tree": CollectiveFacts("double binary tree: logarithmic latency, pipelined", scatters=False),
    "halving_doubling": CollectiveFacts("2 log n steps, 2(n-1)/n of the bytes", power_of_two=True),
    "recursive_doubling": CollectiveFacts(
        "log n steps of the whole message", scatters=False, power_of_two=True
    ),
    "hierarchical": CollectiveFacts("first within hosts, then across them", grid=True),
    "torus2d": CollectiveFacts("rings along two dimensions", grid=True),
    "leaders": CollectiveFacts(
        "groups of k all-reduce, one of each takes part in a ring and spreads the sum: "
        "4(k-1) + 2(n/k-1) steps",
        label="leaders(k)",
        scatters=False,
        grid=True,
    ),
    "direct": CollectiveFacts("everybody to everybody, one step each way"),
    "blueconnect": CollectiveFacts(
        "rings along any number of dimensions, by default the tiers of the network",
        label="blueconnect(p1..pk)",
        grid=True,
    ),
    "bcube": CollectiveFacts(
        "direct exchange digit by digit: 2 log_b n steps over all ports",
        label="bcube(b)",
        digits=True,
        radix=True,
    ),
    "binomial_tree": CollectiveFacts("reduce and broadcast, 2 log n steps of all bytes", scatters=False),
    "kary_tree": CollectiveFacts(
        "one tree of f children per rank, pipelined", label="tree(f)", scatters=False, radix=True
    ),
    "nvls": CollectiveFacts(
        "NVSwitches add up (NVLink SHARP); over hosts all-reduces are trees of them, all else rings"
    ),
    "packed_trees": CollectiveFacts(
        "as many spanning trees as the links of a host hold (Blink)", scatters=False
    ),
}


def facts_of(name: str) -> CollectiveFacts:
    """Facts of an algorithm; ``auto``, which chooses for itself, has none of the special ones."""
    return COLLECTIVES.get(name, CollectiveFacts("as a library would choose, by size and ranks"))
