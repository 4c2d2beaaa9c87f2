"""What a user knows about convergence: epochs to a target, by batch, staleness, tau and compression (D16)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from sim.spec.base import Spec

Positive = Annotated[float, Field(gt=0, le=1e12)]
NonNegative = Annotated[float, Field(ge=0, le=1e12)]


class Convergence(Spec):
    """Epochs to the target at every batch, and factors on them for what makes a step worth less.

    Values between those given are interpolated, epochs and factors over the logarithm of the batch, of tau or
    of one plus staleness; beyond them there is no answer. What the user does not state has no influence.
    """

    samples_per_epoch: Positive = Field(description="samples of one pass over the training data")
    epochs: dict[Positive, Positive] = Field(
        min_length=1, description="effective batch -> epochs to the target, synchronous and uncompressed"
    )
    staleness: dict[NonNegative, Positive] = Field(
        {}, description="mean staleness -> factor on the epochs; 0 means 1"
    )
    local_steps: dict[Positive, Positive] = Field({}, description="tau -> factor on the epochs; 1 means 1")
    compression: dict[str, Positive] = Field({}, description="compressor -> factor on the epochs")
    target: str = Field("target", description="what is reached, e.g. 75.9 % top-1")

    @model_validator(mode="after")
    def _neutral(self) -> Convergence:
        for name, at in (("staleness", 0.0), ("local_steps", 1.0)):
            given: dict[float, float] = getattr(self, name)
            if given.get(at, 1.0) != 1.0:
                raise ValueError(f"{name}: {at:g} must have factor 1, the case that epochs describes")
        return self
