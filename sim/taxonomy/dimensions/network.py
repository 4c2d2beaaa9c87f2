"""Dimensions of what carries and adds up messages: protocols of hosts, switches that aggregate."""

from __future__ import annotations

from sim.taxonomy.dimensions.value import Dimension, Value, setting
from sim.wire.aggregators import AGGREGATORS
from sim.wire.transports import TRANSPORTS

NETWORK: tuple[Dimension, ...] = (
    Dimension(
        "D9",
        "transport",
        "What do messages between hosts cost beside cables?",
        (
            *(setting("cluster.protocol", each.name, each.description) for each in TRANSPORTS.values()),
            Value("processor cores", "cores per port that move bytes", fields=("cluster.protocol_cores",)),
            setting("cluster.gpudirect_rdma", True, "ports read device memory", name="gpudirect_rdma on"),
            setting(
                "cluster.gpudirect_rdma", False, "copies through host memory", name="gpudirect_rdma off"
            ),
            setting("cluster.gpudirect_p2p", True, "PCIe between devices", name="gpudirect_p2p on"),
            setting(
                "cluster.gpudirect_p2p", False, "copies through host memory", name="gpudirect_p2p off"
            ),
        ),
        "Zhu et al. 2021; Cai et al., SIGCOMM 2021; Li et al., GPUDirect, 2019 (arXiv:1903.04611)",
    ),
    Dimension(
        "D10",
        "in-network aggregation",
        "Do switches add up gradients?",
        (
            setting("strategy.in_network", "none", "no"),
            *(
                setting(
                    "strategy.in_network", each.name, each.description,
                    *(("strategy.switch_slots",) if each.slots else ()),
                    *(("strategy.switch_fallback",) if each.falls_back else ()),
                    *(("strategy.switch_max_message",) if each.trees else ()),
                    *(("strategy.switch_hot_share",) if each.sparse else ()),
                    "strategy.switch_jobs",
                )
                for each in AGGREGATORS.values()
            ),
            setting(
                "cluster.fabric.in_network_reduction", True, "the library may have switches reduce (CollNet)",
                name="collnet",
            ),
            setting("strategy.switch_numbers", "int32", "workers convert to 32-bit integers and back"),
            setting("strategy.switch_numbers", "float", "switches add floating-point numbers"),
            setting(
                "strategy.state", "ps_dedicated", "a server with many ports on the rack's switch",
                "cluster.server_host", name="rack_ps",
            ),
        ),
        "Zhu et al. 2021; Graham et al. 2016; Sapio et al., NSDI 2021; Luo et al., PHub, SoCC 2018",
    ),
)  # fmt: skip
