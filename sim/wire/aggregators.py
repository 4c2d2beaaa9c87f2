"""Switches that add up gradients (taxonomy D10), one entry each.

A slot holds a few numbers until all workers' have arrived; what a worker may have on its way at a time is
``slots * slot_bytes``, so that its rate is at most that over one round trip (Sapio et al., SwitchML, NSDI
2021, section 3.3).
"""

from __future__ import annotations

from dataclasses import dataclass

INTEGER_BYTES = 4.0
"""Programmable switches add 32-bit integers."""


@dataclass(frozen=True, kw_only=True)
class Aggregator:
    """One way of aggregating in switches.

    Attributes
    ----------
    name, description, source : str
        Name in the taxonomy, one line for a user, where the numbers come from.
    integers : bool
        Whether switches add 32-bit integers only, so that workers convert.
    slots : int, optional
        Slots a job has; ``None``: streaming, not limited by them.
    slot_bytes : float
        Bytes of a slot.
    payload : float
        Part of a packet on the wire that is gradients.
    tree : bool
        Whether several levels of switches work together; else all workers hang on one switch.
    steps : int
        Latencies of a round trip.
    falls_back : bool
        Whether what finds no slot is summed by end hosts.
    partial : bool
        Whether it sums the gradients of whichever workers come first, without waiting for all.
    sparse : bool
        Whether it sums only the rows of embedding tables that are looked up most.
    trees : int, optional
        Jobs that can have a reduction tree at a time; ``None``: they share slots instead.
    """

    name: str
    description: str
    source: str
    integers: bool = False
    slots: int | None = None
    slot_bytes: float = 0.0
    payload: float = 1.0
    tree: bool = True
    steps: int = 1
    falls_back: bool = False
    partial: bool = False
    sparse: bool = False
    trees: int | None = None


AGGREGATORS: dict[str, Aggregator] = {
    each.name: each
    for each in (
        Aggregator(
            name="sharp",
            description="InfiniBand switches reduce floating-point streams in a tree (SHARP)",
            source="Graham et al., COM-HPC 2016; Graham et al., ISC 2020 (SHARP v2, large messages)",
            steps=4,
            trees=63,
        ),
        Aggregator(
            name="switchml",
            description="a rack switch adds chunks of 32-bit integers in a pool of slots",
            source=(
                "Sapio et al., SwitchML, NSDI 2021: 32 integers per packet of 180 bytes, "
                "128 slots at 10 Gb/s, 512 at 100 Gb/s"
            ),
            integers=True,
            slots=512,
            slot_bytes=128.0,
            payload=128 / 180,
            tree=False,
        ),
        Aggregator(
            name="iswitch",
            description="switches with floating-point adders in an FPGA sum packets on the fly, in a tree",
            source="Li et al., iSwitch, ISCA 2019: fp32 adders, packets of up to 1,522 bytes, async mode",
            payload=1462 / 1522,
            partial=True,
        ),
        Aggregator(
            name="atp",
            description="switches add integers for many jobs, in two levels; the rest goes to hosts",
            source="Lao et al., ATP, NSDI 2021: 62 integers (248 bytes) per packet of 306 bytes",
            integers=True,
            slots=2048,
            slot_bytes=248.0,
            payload=248 / 306,
            falls_back=True,
        ),
        Aggregator(
            name="daiet",
            description="a switch adds ten numbers per packet, in a tree",
            source="Sapio et al., HotNets 2017: ten pairs of 20 bytes, of which 4 are the value",
            integers=True,
            slots=16384,
            slot_bytes=40.0,
            payload=40 / 254,
        ),
        Aggregator(
            name="libra",
            description="a rack switch adds the rows of embedding tables that are looked up most (Libra)",
            source=(
                "Pan et al., Libra: In-network Gradient Aggregation for Speeding up Distributed Sparse Deep "
                "Training, arXiv:2205.05243 (2022); packets as SwitchML's"
            ),
            integers=True,
            slots=512,
            slot_bytes=128.0,
            payload=128 / 180,
            tree=False,
            sparse=True,
        ),
    )
}
