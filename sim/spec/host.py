"""A host: devices, NICs, processors and the links between them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from sim.spec.base import Bytes, BytesPerSecond, CatalogSpec, DollarsPerHour, Seconds, Spec, Watts, refuse

LinkKind = Literal["nvlink", "pcie", "qpi", "nic", "memory"]

_NODE = re.compile(r"([a-z]+)(?:(\d+)|\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\])")
_NODE_KINDS = ("gpu", "nic", "cpu", "plx", "nvswitch")
MAX_NODES = 1_000_000
"""Names that the patterns of one file may stand for."""


def _ranges(text: str) -> tuple[list[range], int]:
    """Ranges of ``0-2,7`` and how many numbers they are."""
    ends = [part.partition("-")[::2] for part in text.split(",")]
    ranges = [range(int(first), int(last or first) + 1) for first, last in ends]
    # Not len(): that of a range beyond 2^63 does not exist.
    return ranges, sum(max(0, numbers.stop - numbers.start) for numbers in ranges)


def limit_pairs(links: Any) -> Any:
    """Refuse links, as a file lists them, that stand for too many pairs, before any is written out."""
    total = 0
    for link in links if isinstance(links, list | tuple) else ():
        ends = [link.get(end) if isinstance(link, Mapping) else getattr(link, end, None) for end in "ab"]
        found = [_NODE.fullmatch(end) for end in ends if isinstance(end, str)]
        count = max((_ranges(match[3])[1] if match[3] else 1 for match in found if match), default=0)
        total += count
        if total > MAX_NODES >= count:  # one that is too long itself is named where it stands
            refuse(f"stand for at most {MAX_NODES} links together", f"{total} or more")
    return links


def expand_nodes(pattern: str, kinds: tuple[str, ...] = _NODE_KINDS) -> tuple[str, ...]:
    """Node names of a pattern: ``gpu3`` -> gpu3; ``gpu[0-2,7]`` -> gpu0 gpu1 gpu2 gpu7."""
    match = _NODE.fullmatch(pattern)
    if match is None or match[1] not in kinds:
        refuse(
            f"be a node such as {kinds[0]}0 or {kinds[0]}[0-7], of the kinds {', '.join(kinds)}",
            repr(pattern),
        )
    if match[2] is not None:
        return (pattern,)
    ranges, count = _ranges(match[3])
    if not 1 <= count <= MAX_NODES:
        refuse(f"name 1 to {MAX_NODES} nodes", f"{pattern!r}, {count} names")
    return tuple(f"{match[1]}{i}" for numbers in ranges for i in numbers)


def pair_nodes(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Pair two lists of nodes: one to one if equally long, else the shorter side in consecutive blocks.

    ``gpu[0-3]`` with ``plx[0-1]`` gives gpu0-plx0, gpu1-plx0, gpu2-plx1, gpu3-plx1.
    """
    longest = max(len(a), len(b))
    if longest % len(a) or longest % len(b):
        refuse("pair equally many nodes, or a multiple", f"{len(a)} and {len(b)}")
    step_a, step_b = longest // len(a), longest // len(b)
    return tuple((a[i // step_a], b[i // step_b]) for i in range(longest))


class HostLink(Spec):
    """A cable or bus between two nodes of a host; both directions.

    ``a`` and ``b`` may be ranges (``gpu[0-7]``): equal lengths pair one to one, otherwise the shorter
    side is repeated in consecutive blocks.
    """

    a: str = Field(description="one end; a range stands for several (gpu[0-7])")
    b: str = Field(description="the other end")
    bandwidth: BytesPerSecond = Field(gt=0, description="one direction")
    latency: Seconds = Field(0, ge=0, le=1e4, description="one way")
    kind: LinkKind = Field(description="what the link is")
    duplex: Literal["full", "half"] = Field("full", description="half: one bus that both directions load")

    @field_validator("a", "b")
    @classmethod
    def _nodes(cls, value: str) -> str:
        expand_nodes(value)
        return value

    @model_validator(mode="after")
    def _pairs(self) -> HostLink:
        if any(x == y for x, y in self.pairs()):
            refuse("join two different nodes", f"{self.a} and {self.b}", field="b")
        return self

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Node pairs this entry stands for."""
        return pair_nodes(expand_nodes(self.a), expand_nodes(self.b))


class Nic(Spec):
    """A network port. ``latency`` is one way, through the adapter and its driver."""

    name: str = Field(description="name of the port in links")
    bandwidth: BytesPerSecond = Field(gt=0, description="one direction")
    latency: Seconds = Field(0, ge=0, le=1e4, description="of a message through the port")


class Storage(Spec):
    """Where training data is read from and checkpoints are written to."""

    kind: Literal["local_ssd", "shared_fs", "parallel_fs", "object_store"] = Field(
        "local_ssd", description="what it is, for the reader; the numbers below decide"
    )
    bandwidth: BytesPerSecond = Field(gt=0, description="of the store, all its clients together")
    latency: Seconds = Field(0, ge=0, le=1e4, description="from a request to its first byte")
    operations_per_second: float | None = Field(
        None, gt=0, description="requests per second the store answers (IOPS); no limit if absent"
    )
    client_bandwidth: BytesPerSecond | None = Field(
        None, gt=0, description="of one host, where that is less than the store's"
    )


class Host(CatalogSpec):
    """One machine. Nodes are named gpu0.. nic0.. cpu0.. plx0.. nvswitch0..; gpuI is the I-th device."""

    devices: tuple[tuple[str, int], ...] = Field((), description="(device name, count) in index order")
    nics: tuple[Nic, ...] = Field(min_length=1, description="network ports")
    links: tuple[HostLink, ...] = Field((), description="links inside the host, ports included")
    nic_of_device: tuple[int, ...] | None = Field(
        None, description="index of each device's nearest NIC; spread evenly in consecutive blocks if absent"
    )
    price_per_hour: DollarsPerHour = Field(0, ge=0, description="the machine without its devices")
    power: Watts = Field(0, ge=0, description="everything but the devices, under load")
    cpu_cores: int = Field(ge=1, description="physical cores")
    cpu_device: str | None = Field(None, description="device name of its processors, for parameter servers")
    memory_bytes: Bytes = Field(gt=0, description="memory of the processors")
    local_storage: Storage | None = Field(None, description="its own disk")

    @field_validator("devices")
    @classmethod
    def _counts(cls, value: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        for name, count in value:
            if count < 1:
                refuse("have counts of at least 1", f"{name}: {count}")
        if (total := sum(count for _, count in value)) > MAX_NODES:
            refuse(f"be at most {MAX_NODES} devices", total)
        return value

    @field_validator("links", mode="before")
    @classmethod
    def _limited(cls, value: Any) -> Any:
        return limit_pairs(value)

    @model_validator(mode="after")
    def _consistent(self) -> Host:
        known = {f"gpu{i}" for i in range(self.num_devices)} | {nic.name for nic in self.nics}
        for i, nic in enumerate(self.nics):
            if nic.name != f"nic{i}":
                refuse(f"be nic{i} (NICs are numbered in order)", repr(nic.name), field=f"nics.{i}.name")
        for i, link in enumerate(self.links):
            for node in (*expand_nodes(link.a), *expand_nodes(link.b)):
                if node.startswith(("gpu", "nic")) and node not in known:
                    refuse("name a device or NIC of this host", repr(node), field=f"links.{i}")
        if self.nic_of_device is not None:
            if len(self.nic_of_device) != self.num_devices:
                refuse(
                    f"have one entry per device ({self.num_devices})",
                    len(self.nic_of_device),
                    field="nic_of_device",
                )
            if any(not 0 <= nic < len(self.nics) for nic in self.nic_of_device):
                refuse(f"be indices below {len(self.nics)}", self.nic_of_device, field="nic_of_device")
        return self

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return sum(count for _, count in self.devices)

    @cached_property
    def device_names(self) -> tuple[str, ...]:
        """Device type name of gpu0, gpu1, ..."""
        return tuple(name for name, count in self.devices for _ in range(count))

    @cached_property
    def device_nics(self) -> tuple[int, ...]:
        """Index of the nearest NIC of each device."""
        if self.nic_of_device is not None:
            return self.nic_of_device
        return tuple(i * len(self.nics) // max(self.num_devices, 1) for i in range(self.num_devices))

    @cached_property
    def expanded_links(self) -> tuple[HostLink, ...]:
        """Links with ranges written out, one entry per node pair."""
        return tuple(
            link if (a, b) == (link.a, link.b) else link.model_copy(update={"a": a, "b": b})
            for link in self.links
            for a, b in link.pairs()
        )

    @cached_property
    def nvswitch_reduces(self) -> bool:
        """Whether its NVSwitches add up (NVLink SHARP): those of NVLink 4 and later, 450 GB/s per device.

        Told from the bandwidth: more than half way, in proportion, from the 300 GB/s of NVLink 3.
        """
        wide = (link.bandwidth for link in self.expanded_links if (link.a, link.kind) == ("gpu0", "nvlink")
                and link.b.startswith("nvswitch"))  # fmt: skip
        return sum(wide) > math.sqrt(300e9 * 450e9)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """All node names: devices, NICs, then what the links add, in order of appearance."""
        names = [*(f"gpu{i}" for i in range(self.num_devices)), *(nic.name for nic in self.nics)]
        names += [node for link in self.expanded_links for node in (link.a, link.b)]
        return tuple(dict.fromkeys(names))

    @cached_property
    def without_devices(self) -> Host:
        """The same machine with no devices: a dedicated parameter server with the same NICs."""
        kept = tuple(
            link
            for link in self.expanded_links
            if not link.a.startswith(("gpu", "nvswitch")) and not link.b.startswith(("gpu", "nvswitch"))
        )
        return self.replace(name=f"{self.name}-server", devices=(), nic_of_device=None, links=kept)
