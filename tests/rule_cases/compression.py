"""Cases of the rules on compression."""

from __future__ import annotations

from tests.rule_cases.case import Case, cluster, cnn, gpt

REFUSED: list[Case] = [
    Case(
        "compression-scatter",
        {"compression": "powersgd", "state": "zero1"},
        "compression",
        "not be powersgd while state is sharded, because a rank cannot decode its part",
        advice="Try fp16 or none.",
    ),
    Case(
        "activation-compression",
        {"activation_compression": "fp8"},
        "activation_compression",
        "be none while tp and pp are 1, because only tensor parallel ranks",
        advice="Try none or strategy.tp=2.",
    ),
    Case(
        "activation-sums",
        {"activation_compression": "qsgd", "tp": 2},
        "activation_compression",
        "be a cast while tp is more than 1, because tensor parallel ranks sum",
        advice="Try fp8 or none.",
    ),
    Case(
        "compression-server",
        {"compression": "coarse_chunk", "state": "ps_dedicated"},
        "compression",
        "not be coarse_chunk while state is ps_dedicated, because workers agree by all-reduces",
        advice="Try fp16 or none.",
    ),
    Case(
        "compression-ratio",
        {"compression": "onebit", "compression_ratio": 0.1},
        "compression_ratio",
        "be absent while compression is onebit",
        advice="Try leaving it out or strategy.compression=topk.",
    ),
    Case(
        "compression-levels",
        {"compression": "terngrad", "compression_levels": 4},
        "compression_levels",
        "only qsgd",
        advice="Try leaving it out or strategy.compression=qsgd.",
    ),
    Case(
        "C2-6",
        {"compression": "topk", "collective": "ring"},
        "collective",
        "be auto for topk unless compression_exchange is requantize, because partial sums",
        advice="Try auto or strategy.compression_exchange=requantize.",
    ),
    Case(
        "C2-6",
        {"compression": "onebit", "collective": "hierarchical", "chunks": 2, "dp": 32},
        "collective",
        "be auto for onebit",
        advice="Try strategy.compression_exchange=requantize or strategy.collective=auto "
        "with strategy.chunks=1.",
    ),
    Case(
        "compression-exchange",
        {"compression": "fp16", "compression_exchange": "all_gather"},
        "compression_exchange",
        "be auto, because gradients that can be summed",
        advice="Try auto.",
    ),
    Case(
        "compression-exchange",
        {"compression": "powersgd", "compression_exchange": "requantize"},
        "compression_exchange",
        "Got requantize with compression powersgd",
        advice="Try auto.",
    ),
    Case(
        "compression-gather",
        {"compression": "topk", "compression_exchange": "all_gather", "collective": "tree"},
        "collective",
        "have an all-gather form",
        advice="Try ring or auto.",
    ),
    Case(
        "compression-peers",
        {"compression": "topk", "topology": "graph"},
        "compression",
        "be a cast unless gradients are summed over all workers",
        advice="Try none.",
    ),
    Case(
        "C2-9",
        {"compression": "topk", "state": "zero3"},
        "compression",
        "have no error feedback while state is zero3, because zero3 gathers weights",
        advice="Try fp16 or none.",
    ),
    Case(
        "compression-pull",
        {"compression": "onebit", "compress_pull": True},
        "compress_pull",
        "be false unless a synchronous parameter server",
        advice="Try false.",
    ),
    Case(
        "compression-engine",
        {"compression_engine": "nic"},
        "compression_engine",
        "there is nothing to encode",
        advice="Try device or strategy.compression=fp16.",
    ),
    Case(
        "compression-direct",
        {"compression": "qsgd", "state": "zero1"},
        "compression",
        "for more than 4096 ranks that share state",
        cnn(),
        cluster(*[8] * 1024),
        advice="Try strategy.compression_exchange=requantize or fp16.",
    ),
]

WARNED: list[Case] = [
    Case("C2-8", {"activation_compression": "fp8", "tp": 2}, "activation_compression", "no error feedback"),
    Case(
        "C2-8",
        {"activation_compression": "fp16", "tp": 2},
        "activation_compression",
        "fp16 saves nothing",
        gpt(dtype="fp16"),
    ),
    Case("compression-dtype", {"compression": "fp16"}, "compression", "saves nothing", gpt(dtype="fp16")),
    Case(
        "compression-dtype",
        {"compression": "topk", "compression_ratio": 0.9},
        "compression",
        "topk saves nothing: fp32 gradients have 32 bits",
    ),
    Case(
        "C2-7",
        {"compression": "topk", "compression_ratio": 0.05},
        "compression",
        "gathering topk gradients of 32 ranks moves 1.6 times the bytes of a plain all-reduce",
    ),
    Case(
        "C2-32",
        {"compression": "fp16", "synchronization": "local", "local_steps": 4},
        "compression",
        "sends no gradients",
    ),
]
