"""Generators: a few parameters become a :class:`~sim.spec.workload.Workload` with real shapes."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from sim.architecture import (
    albert,
    audio,
    clip,
    cnn,
    detection,
    diffusion,
    electra,
    encoder_decoder,
    hierarchical,
    hybrid,
    inception,
    latent,
    mobile,
    moe,
    one_stage,
    recommender,
    recurrent,
    segmentation,
    speech,
    transformer,
    transformer_xl,
    vision,
)
from sim.architecture.common import Generator
from sim.errors import InputError
from sim.spec.workload import Workload

GENERATORS: dict[str, Generator[Any]] = {
    "transformer": transformer.generate,
    "moe": moe.generate,
    "encoder-decoder": encoder_decoder.generate,
    "transformer-xl": transformer_xl.generate,
    "electra": electra.generate,
    "latent": latent.generate,
    "hybrid": hybrid.generate,
    "gnmt": recurrent.generate,
    "jasper": speech.generate,
    "vit": vision.generate,
    "clip": clip.generate,
    "albert": albert.generate,
    "ncf": recommender.generate_ncf,
    "dlrm": recommender.generate_dlrm,
    "ssd300": detection.generate_ssd300,
    "mask-rcnn": detection.generate_mask_rcnn,
    **audio.GENERATORS,
    **diffusion.GENERATORS,
    **one_stage.GENERATORS,
    **segmentation.GENERATORS,
    **hierarchical.GENERATORS,
    **{
        f"cnn:{name}": generator
        for module in (cnn, inception, mobile)
        for name, generator in module.GENERATORS.items()
    },
}


def generate(name: str, params: Mapping[str, Any]) -> Workload:
    """Build a workload with generator ``name`` from its parameters.

    Parameters
    ----------
    name : str
        A key of ``GENERATORS``: ``transformer``, ``moe``, ``encoder-decoder``, ``cnn:<network>`` ...
    params : mapping
        Fields of the generator and of the workload together.

    Raises
    ------
    InputError
        The generator or one of its parameters is unknown or out of range.
    """
    if name not in GENERATORS:
        near = get_close_matches(name, GENERATORS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(sorted(GENERATORS))}."
        raise InputError("workload.generator", "be a known generator", got=name, hint=hint)
    return GENERATORS[name](**params)


__all__ = ["GENERATORS", "generate"]
