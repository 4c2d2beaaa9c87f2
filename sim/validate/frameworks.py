"""What a training framework does when a row does not say: a documented default for each.

The key also names the framework's entries in the calibration (``framework/<key>/...``), such as the time its
host needs to launch a kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from sim.validate.boards import board_key
from sim.validate.rows import Row

MEBIBYTE = 2.0**20


@dataclass(frozen=True)
class Framework:
    """Defaults of one framework.

    Attributes
    ----------
    key : str
        Name in the calibration.
    pattern : str
        Regular expression found in the ``framework`` cell, case ignored.
    flash : bool
        Fused attention.
    fused : bool
        Element-wise kernels of a transformer are fused.
    fused_norm : bool
        Batch norm, addition and ReLU of a CNN are one kernel.
    fused_loss : bool
        Cross-entropy of a language model is one kernel each way.
    blocks_per_chunk : int
        Transformer blocks of a model chunk where a pipelined row leaves interleaving open; 0: no chunks.
    overlap : bool
        Gradients are exchanged while backward runs.
    bucket : float
        Bytes of gradients that are exchanged together.
    state : str
        Where optimiser state lies if the row has no ``shard``.
    sequence_parallel : bool
        Whether tensor parallelism also divides the sequence.
    recompute : str
        Policy if the row has none.
    optimizer : str
        Optimiser of its language models.
    source : str
    """

    key: str
    pattern: str
    flash: bool = False
    fused: bool = False
    fused_norm: bool = False
    fused_loss: bool = False
    blocks_per_chunk: int = 0
    overlap: bool = True
    bucket: float = 25 * MEBIBYTE
    state: str = "replicated"
    sequence_parallel: bool = False
    recompute: str = "none"
    optimizer: str = "adam"
    source: str = ""


_MEGATRON_CORE = (
    r"bridge|megatron[- ]?core|mcore|nemo[^0-9]{0,12}2[4-9]\.|nemo 2|dgx.?cloud|primus|swift|"
    r"transformer.?engine|mlperf.*nemo"
)
"""Megatron-Core by its own name, NeMo since 24.01 (which builds on it), AMD's Primus, NVIDIA's recipes."""

FRAMEWORKS: tuple[Framework, ...] = (
    Framework(
        "megatron-core-graphs", r"container (26\.0[6-9]|26\.1|2[7-9])", flash=True, fused=True,
        fused_loss=True, blocks_per_chunk=1, bucket=160 * MEBIBYTE, state="zero1", sequence_parallel=True,
        recompute="selective",
        source="as megatron-core; NVIDIA's containers from 26.06 launch most kernels from CUDA graphs",
    ),
    Framework(
        "megatron-core", _MEGATRON_CORE, flash=True, fused=True,
        fused_loss=True, blocks_per_chunk=1, bucket=160 * MEBIBYTE, state="zero1", sequence_parallel=True,
        recompute="selective",
        source="Megatron-Core arguments: --use-distributed-optimizer, --overlap-grad-reduce; 40M elements; "
        "NeMo's performance recipes: cross_entropy_loss_fusion, chunks of one block",
    ),
    Framework(
        "nemo-megatron", r"nemo", flash=False, fused=True, blocks_per_chunk=1, bucket=100 * MEBIBYTE,
        state="zero1", sequence_parallel=False, recompute="selective",
        source="NeMo-Framework-Launcher conf/training/gpt3: distributed_fused_adam, overlap_grad_sync",
    ),
    Framework(
        "megatron-deepspeed", r"megatron.*deepspeed|deepspeed.*megatron|gpt-?neox|bigscience", fused=True,
        overlap=False, bucket=500 * MEBIBYTE, recompute="full",
        source="Megatron-DeepSpeed: gradients in one contiguous buffer, reduced at the end of the step",
    ),
    Framework(
        "deepspeed", r"deepspeed|zero\+\+|zero-?[123]\b", fused=True, bucket=1e9, recompute="full",
        optimizer="adamw",
        source="DeepSpeed configuration: reduce_bucket_size 5e8 elements, overlap_comm; fused kernels",
    ),
    Framework(
        "megascale", r"megascale", flash=True, fused=True, fused_loss=True, blocks_per_chunk=1,
        bucket=160 * MEBIBYTE, state="zero2", sequence_parallel=True, recompute="selective",
        source="Jiang et al. 2024, arXiv:2402.15627, section 3: ZeRO-2, FlashAttention-2, fused kernels",
    ),
    Framework(
        "megatron-lm", r"megatron", fused=True, overlap=False, bucket=500 * MEBIBYTE, recompute="full",
        source="Megatron-LM of 2020-21: gradients reduced after the last backward",
    ),
    Framework(
        "llm-foundry", r"foundry|composer|mosaic", flash=True, fused_loss=True, state="zero3",
        optimizer="adamw",
        source="llm-foundry yamls/pretrain: attn_impl flash, fused_crossentropy, FSDP, decoupled_adamw",
    ),
    Framework(
        "torchtitan", r"titan", flash=True, fused=True, fused_loss=True, state="zero3",
        sequence_parallel=True, recompute="selective", optimizer="adamw",
        source="torchtitan train_configs/llama3_*.toml: FSDP2, compile, op-level checkpointing",
    ),
    Framework(
        "internevo", r"intern", flash=True, fused=True, fused_loss=True, state="zero1",
        bucket=512 * MEBIBYTE, optimizer="adamw",
        source="InternEvo configs/7B_sft.py: hybrid zero, overlap_sync_grad; cross-entropy of flash-attn",
    ),
    Framework(
        "oneflow", r"oneflow", fused=True, fused_norm=True,
        source="OneFlow 0.2: static graph, fused kernels, gradients exchanged as they become ready",
    ),
    Framework(
        "mxnet", r"mxnet", fused=True, fused_norm=True, bucket=64 * MEBIBYTE,
        source="NGC MXNet: fused batch norm + ReLU; Horovod fusion threshold 64 MiB",
    ),
    Framework(
        "paddle", r"paddle", fused_norm=False, fused=True, bucket=32 * MEBIBYTE,
        source="PaddlePaddle 1.8: fuse_all_reduce_ops, fuse_bn_act_ops",
    ),
    Framework(
        "tensorflow-xla", r"(tensorflow|tf).*xla", fused=True, fused_norm=True, bucket=64 * MEBIBYTE,
        source="XLA fuses element-wise chains; Horovod fusion threshold 64 MiB",
    ),
    Framework(
        "tensorflow", r"tensorflow|\btf\b|^tf|ngc tf", fused_norm=True, bucket=64 * MEBIBYTE,
        source="cuDNN's fused batch norm of TensorFlow; Horovod fusion threshold 64 MiB",
    ),
    Framework(
        "colossal-ai", r"coloss", flash=True, fused=True, state="zero1", recompute="full", optimizer="adamw",
        source="ColossalAI examples/language/llama: hybrid parallel plugin, zero_stage 1",
    ),
    Framework(
        "maxtext", r"maxtext|\bjax\b|praxis|pax\b|t5x|levanter|axlearn|easylm|\bflax\b|gspmd", flash=True,
        fused=True, fused_norm=True, fused_loss=True, state="zero3", recompute="full", optimizer="adamw",
        source="MaxText configs/base.yml: flash attention, remat_policy full, FSDP axis; XLA fuses",
    ),
    Framework(
        "pytorch-compiled", r"nanotron|nanogpt|torch\.?compile|litgpt|lightning.*fsdp|olmo|picotron",
        flash=True, fused=True, optimizer="adamw",
        source="torch.compile fuses element-wise kernels; scaled_dot_product_attention is FlashAttention-2",
    ),
    Framework(
        "pytorch-fsdp", r"fsdp|fairscale|meta.*(llama|pytorch)|llama.?recipes", flash=True, state="zero3",
        optimizer="adamw", source="PyTorch FSDP: full sharding, eager kernels, SDPA",
    ),
    Framework(
        "intel-gaudi", r"gaudi|habana|synapse", flash=True, fused=True, state="zero1", optimizer="adamw",
        source="Optimum Habana: FusedSDPA, lazy graphs fuse element-wise kernels",
    ),
    Framework("pytorch", r"torch|apex|fairseq|hugging", source="PyTorch DDP: 25 MiB buckets, eager kernels"),
)  # fmt: skip

DEFAULT = Framework("default", "", source="PyTorch's defaults")


RECENT = (
    "H100", "H200", "H800", "H20", "GH200", "B200", "B300", "GB200", "GB300", "MI3", "L4", "GAUDI", "TPU-V5",
    "TPU-V6", "RTX-4090",
)  # fmt: skip
"""Devices that came with or after fused attention in every framework (PyTorch 2.0, March 2023)."""
SUCCESSORS = {"megatron-lm": "megatron-core", "nemo-megatron": "megatron-core"}
"""What Megatron-LM and NeMo had become by then."""


def framework_of(row: Row) -> Framework:
    """Defaults of the row's framework, in its version on recent devices; PyTorch's where it is unknown."""
    text = row.text("framework").lower()
    found = next((known for known in FRAMEWORKS if re.search(known.pattern, text)), DEFAULT)
    if not (board_key(row.text("gpu")) or "").startswith(RECENT):
        return found
    key = SUCCESSORS.get(found.key, found.key)
    later = next((known for known in FRAMEWORKS if known.key == key), found)
    return replace(later, flash=True)
