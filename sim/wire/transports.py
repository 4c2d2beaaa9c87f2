"""What carries messages between hosts (taxonomy D9), one entry each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Transport:
    """One transport.

    Attributes
    ----------
    name, description, source : str
        Name in the taxonomy, one line for a user, where the numbers come from.
    rdma : bool
        Whether network cards move data without processors; then GPUDirect RDMA is possible.
    goodput : float
        Payload per byte on the wire, relative to InfiniBand.
    cpu_time : float
        Seconds of one processor core per byte, sent or received.
    latency : float
        Seconds that a message takes longer than over InfiniBand, one way.
    """

    name: str
    description: str
    source: str
    rdma: bool = True
    goodput: float = 1.0
    cpu_time: float = 0.0
    latency: float = 0.0


TRANSPORTS: dict[str, Transport] = {
    each.name: each
    for each in (
        Transport(
            name="rdma_ib",
            description="InfiniBand RDMA: network cards move the data",
            source="the reference: 4,096 of 4,148 bytes of a packet are data",
        ),
        Transport(
            name="roce_v2",
            description="RDMA over UDP and Ethernet",
            source=(
                "4,096 of 4,178 bytes on the wire are data (Ethernet with preamble and gap 38, IP 20, "
                "UDP 8, transport 16); losses and congestion control are not modelled"
            ),
            goodput=(4096 / 4178) / (4096 / 4148),
            latency=0.3e-6,
        ),
        Transport(
            name="iwarp",
            description="RDMA over TCP in the network card",
            source="1,408 of 1,538 bytes on the wire are data at an MTU of 1,500; latency assumed",
            goodput=(1408 / 1538) / (4096 / 4148),
            latency=3e-6,
        ),
        Transport(
            name="dpdk",
            description="packets in user space: cores poll the card, no kernel",
            source=(
                "1,430 of 1,538 bytes on the wire are data; 14 million packets per second and core (DPDK "
                "performance reports)"
            ),
            rdma=False,
            goodput=(1430 / 1538) / (4096 / 4148),
            cpu_time=1 / (14e6 * 1430),
            latency=2e-6,
        ),
        Transport(
            name="tcp",
            description="the kernel's TCP: a core per port copies every byte",
            source=(
                "1,448 of 1,538 bytes on the wire are data; 42 Gb/s per receiving core, sending costs about "
                "half (Cai et al., SIGCOMM 2021, sections 3.1 and 3.2), 0.14 ns per byte on average; 10 us "
                "per message through the stacks"
            ),
            rdma=False,
            goodput=(1448 / 1538) / (4096 / 4148),
            cpu_time=0.14e-9,
            latency=10e-6,
        ),
    )
}
