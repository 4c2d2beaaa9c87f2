"""The header of a strategy preset: which system it stands for, and what of it is modelled."""

from __future__ import annotations

from pydantic import Field

from sim.spec.base import CatalogSpec


class Preset(CatalogSpec):
    """What a preset file says beside the strategy's own fields."""

    alias_of: str | None = Field(
        None,
        description="preset whose fields this one starts from: the same system by another name, or a kin",
    )
    testbed: str = Field("", description="the cluster of the source, in words")
    cluster: str | None = Field(None, description="catalogue name of the nearest cluster")
    simplified: str = Field("", description="what of the system the model leaves out or takes as simpler")
