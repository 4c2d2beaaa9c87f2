"""The compressors, by name (taxonomy D7)."""

from __future__ import annotations

from sim.spec.strategy import Strategy
from sim.wire.compressor import Compressor, Options
from sim.wire.compressors import casts, projections, quantisers, sparsifiers

COMPRESSORS: dict[str, Compressor] = {
    each.name: each
    for each in (
        *casts.COMPRESSORS,
        *quantisers.COMPRESSORS,
        *sparsifiers.COMPRESSORS,
        *projections.COMPRESSORS,
    )
}

ACTIVATION_COMPRESSORS: dict[str, Compressor] = {
    name: each for name, each in COMPRESSORS.items() if each.activations
}
"""Those that also suit activations between ranks of a replica."""


def compressor_of(strategy: Strategy) -> Compressor:
    """The compressor of a strategy."""
    return COMPRESSORS[strategy.compression]


def options_of(strategy: Strategy) -> Options:
    """The parameters of a strategy's compressor."""
    return Options(strategy.compression_ratio, strategy.compression_levels, strategy.compression_rank)
