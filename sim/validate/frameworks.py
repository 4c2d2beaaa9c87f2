"""What a training framework does when a row does not say: a documented default for each.

The key also names the framework's entries in the calibration (``framework/<key>/...``), such as the time its
host needs to launch a kernel.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

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
    flash_version : int
        FlashAttention, FlashAttention-2, or FlashAttention-3 (cuDNN's) where devices have it.
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
    fp32_gradients : str
        Regular expression for the precisions in which gradients are kept and exchanged in fp32.
    fused_accumulation : bool
        Weight gradients are added up by the products that compute them.
    fp32_norm, fp32_logits : bool
        Fused norms, a fused cross-entropy read copies cast to fp32.
    dynamic_scaling : bool
        8-bit products look for the largest magnitude of their operands and cast them each time.
    fsdp : bool
        PyTorch's FSDP shards: fp32 parameters that are their own master copy, and gradients that are
        scattered block by block where they alone are sharded (SHARD_GRAD_OP).
    early_stop : bool
        Full recomputation is PyTorch's without reentrance.
    shard_reduction : str
        How ZeRO-1 sums gradients.
    micro_batches_of_a_stage : int
        Micro-batches of a pipelined step over its stages where a row has no micro-batch; 0: by their tokens.
    pipelined_state : str
        Where state lies if the row says ``zero3`` and stages follow each other; as the row says if empty.
    optimizer : str
        Optimiser of its language models.
    source : str
    """

    key: str
    pattern: str
    flash: bool = False
    flash_version: int = 2
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
    fp32_gradients: str = "(?!)"
    fused_accumulation: bool = False
    fp32_norm: bool = False
    fp32_logits: bool = False
    dynamic_scaling: bool = False
    fsdp: bool = False
    early_stop: bool = False
    shard_reduction: str = "reduce_scatter"
    micro_batches_of_a_stage: int = 0
    pipelined_state: str = ""
    source: str = ""


_MEGATRON_CORE = (
    r"bridge|megatron[- ]?core|mcore|nemo[^0-9]{0,12}2[4-9]\.|nemo 2|dgx.?cloud|primus|swift|"
    r"transformer.?engine|mlperf.*nemo"
)
"""Megatron-Core by its own name, NeMo since 24.01 (which builds on it), AMD's Primus, NVIDIA's recipes."""
_AMP = r"amp|mixed|fp16(?! *pure)|bf16"
"""Automatic mixed precision: parameters and their gradients stay in fp32."""

FRAMEWORKS: tuple[Framework, ...] = (
    Framework(
        "megatron-core-graphs", r"container (26\.0[6-9]|26\.1|2[7-9])", flash=True, flash_version=3,
        fused=True, fused_loss=True, blocks_per_chunk=1, bucket=160 * MEBIBYTE, state="zero1",
        sequence_parallel=True, recompute="selective", fused_accumulation=True,
        source="as megatron-core; NVIDIA's containers from 26.06 launch most kernels from CUDA graphs",
    ),
    Framework(
        "megatron-core", _MEGATRON_CORE, flash=True, flash_version=3, fused=True,
        fused_loss=True, blocks_per_chunk=1, bucket=160 * MEBIBYTE, state="zero1", sequence_parallel=True,
        recompute="selective", fused_accumulation=True,
        source="Megatron-Core arguments: --use-distributed-optimizer, --overlap-grad-reduce; 40M elements; "
        "gradient_accumulation_fusion; NeMo's performance recipes: cross_entropy_loss_fusion, chunks of one "
        "block, grad_sync_dtype=bf16; Megatron-Bridge's: grad_reduce_in_fp32 = False",
    ),
    Framework(
        "nemo-megatron", r"nemo", flash=False, fused=True, blocks_per_chunk=1, bucket=125 * MEBIBYTE,
        sequence_parallel=False, fp32_gradients="bf16|fp8", fused_accumulation=True,
        source="NeMo-Megatron-Launcher of 2022, conf/training/gpt3: megatron_amp_O2 (fp32 gradients), "
        "fused_adam, grad_allreduce_chunk_size_mb 125, activations_checkpoint_method block with 0 layers, "
        "gradient_accumulation_fusion; distributed_fused_adam where stated: overlap_grad_sync, "
        "overlap_param_sync, grad_sync_dtype fp32",
    ),
    Framework(
        "megatron-deepspeed", r"megatron.*deepspeed|deepspeed.*megatron|gpt-?neox|bigscience", fused=True,
        overlap=False, bucket=500 * MEBIBYTE, recompute="full", fp32_gradients="bf16",
        source="Megatron-DeepSpeed: gradients in one contiguous buffer, reduced at the end of the step; "
        "DeepSpeed's BF16_Optimizer accumulates in fp32",
    ),
    Framework(
        "deepspeed", r"deepspeed|zero\+\+|zero-?[123]\b", fused=True, bucket=1e9, recompute="full",
        optimizer="adamw",
        source="DeepSpeed configuration: reduce_bucket_size 5e8 elements, overlap_comm; fused kernels; "
        "communication_data_type as the model's",
    ),
    Framework(
        "megascale", r"megascale", flash=True, fused=True, fused_loss=True, blocks_per_chunk=1,
        bucket=160 * MEBIBYTE, state="zero2", sequence_parallel=True, recompute="selective",
        fused_accumulation=True,
        source="Jiang et al. 2024, arXiv:2402.15627, section 3: ZeRO-2, FlashAttention-2, fused kernels",
    ),
    Framework(
        "megatron-lm", r"megatron", fused=True, overlap=False, bucket=500 * MEBIBYTE, recompute="full",
        fp32_gradients="bf16",
        source="Megatron-LM of 2020-21: gradients reduced after the last backward, in the model's fp16; "
        "accumulate_allreduce_grads_in_fp32 with bf16",
    ),
    Framework(
        "llm-foundry", r"foundry|composer|mosaic", flash=True, fused_loss=True, state="zero3",
        optimizer="adamw", fp32_gradients=".", fsdp=True, early_stop=True,
        source="llm-foundry yamls/pretrain: attn_impl flash, fused_crossentropy, FSDP, decoupled_adamw, "
        "activation_checkpointing_reentrant: false; "
        "Composer's get_mixed_precision: DEFAULT reduces in fp32, PURE in the compute type",
    ),
    Framework(
        "torchtitan", r"titan", flash=True, fused=True, fused_loss=True, state="zero3",
        sequence_parallel=True, recompute="alternate", optimizer="adamw", fp32_gradients=".",
        micro_batches_of_a_stage=1, pipelined_state="zero1", dynamic_scaling=True, fsdp=True,
        early_stop=True,
        source="torchtitan train_configs/llama3_*.toml: FSDP2, mixed_precision_reduce float32, compile (fp8 "
        "needs it), selective checkpointing by op; pipelined, parameters stay gathered and gradients are "
        "reduced in the last backward (parallelize_llama.py; torch/distributed/pipelining/stage.py), with as "
        "many micro-batches as stages (pipeline_parallel_microbatches)",
    ),
    Framework(
        "internevo", r"intern(evo|lm)|\bintern\b", flash=True, fused=True, fused_loss=True, state="zero1",
        bucket=1024 * MEBIBYTE, optimizer="adamw", fp32_norm=True, fp32_logits=True,
        shard_reduction="all_reduce",
        source="InternEvo configs/7B_sft.py: reduce_bucket_size 512 Mi elements, overlap_sync_grad, "
        "use_flash_attn; hybrid_zero_optim.py: reduce_tensor without a destination in the model's type, "
        "parameters broadcast in the zero1 group; modeling_internlm.py: norm(residual.float()); "
        "NaiveAMPModel output_to_fp32; cross-entropy and rotary embedding of flash-attn",
    ),
    Framework(
        "oneflow", r"oneflow", fused=True, fused_norm=True, bucket=16 * MEBIBYTE, fp32_gradients=_AMP,
        source="OneFlow-Benchmark: fuse_bn_relu, fuse_bn_add_relu, nccl_fusion_threshold_mb 16, "
        "enable_auto_mixed_precision (variables in fp32)",
    ),
    Framework(
        "mxnet", r"mxnet", fused=True, fused_norm=True, bucket=64 * MEBIBYTE,
        source="NGC MXNet: fused batch norm + ReLU; Horovod fusion threshold 64 MiB; optimizers with "
        "multi_precision keep gradients in the model's type",
    ),
    Framework(
        "paddle", r"paddle", fused_norm=True, bucket=32 * MEBIBYTE, fp32_gradients=r"amp|mixed",
        source="PaddlePaddle's BuildStrategy: fuse_all_reduce_ops (fuse_grad_size_in_MB 32), "
        "fuse_bn_add_act_ops by default, fuse_bn_act_ops in image recipes, fuse_elewise_add_act_ops off; "
        "AMP's gradients in fp32 unless fp16_allreduce, those of pure fp16 in fp16",
    ),
    Framework(
        "tensorflow-xla", r"(tensorflow|tf).*xla", fused=True, fused_norm=True, bucket=64 * MEBIBYTE,
        fp32_gradients=_AMP,
        source="XLA fuses element-wise chains; Horovod fusion threshold 64 MiB",
    ),
    Framework(
        "tensorflow", r"tensorflow|\btf\b|^tf|ngc tf", fused_norm=True, bucket=64 * MEBIBYTE,
        fp32_gradients=_AMP,
        source="cuDNN's fused batch norm of TensorFlow; Horovod fusion threshold 64 MiB; the mixed-precision "
        "graph rewrite keeps variables and their gradients in fp32",
    ),
    Framework(
        "mlperf", r"mlperf|mlcommons", flash=True, fused=True, fused_norm=True, fused_loss=True,
        bucket=64 * MEBIBYTE,
        source="NVIDIA's submissions to MLPerf Training: fused attention, apex kernels, NHWC batch norm + "
        "addition + ReLU; gradients in the model's type",
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
        optimizer="adamw", fsdp=True, early_stop=True,
        source="PyTorch FSDP: full sharding, eager kernels, SDPA, MixedPrecision casts fp32 shards; "
        "llama-recipes: NO_REENTRANT",
    ),
    Framework(
        "intel-gaudi", r"gaudi|habana|synapse", flash=True, fused=True, state="zero1", optimizer="adamw",
        source="Optimum Habana: FusedSDPA, lazy graphs fuse element-wise kernels",
    ),
    Framework(
        "pytorch", r"torch|apex|fairseq|hugging|accelerate|lightning", fp32_gradients=_AMP,
        source="PyTorch DDP: 25 MiB buckets, eager kernels; autocast and apex O1 keep parameters and "
        "gradients in fp32",
    ),
)  # fmt: skip

STACKS: tuple[tuple[str, ...], ...] = (
    (
        "megatron-lm", "megatron-core", "megatron-core-graphs", "megatron-deepspeed", "nemo-megatron",
        "megascale",
    ),
    ("tensorflow", "tensorflow-xla"),
)  # fmt: skip
"""Frameworks built from one another: NVIDIA's Megatron and its forks, with their fused kernels and schedules;
TensorFlow's graphs. What is built on PyTorch alone has less in common: taken as one stack, those that are
left out of a fit come out worse."""


def stack_of(key: str) -> str:
    """First framework of the stack that a framework belongs to; itself if it stands alone."""
    return next((stack[0] for stack in STACKS if key in stack), key)


DEFAULT = Framework("default", "", fp32_gradients=_AMP, source="PyTorch's defaults")


RECENT = (
    "H100", "H200", "H800", "H20", "GH200", "B200", "B300", "GB200", "GB300", "MI3", "L4", "GAUDI", "TPU-V5",
    "TPU-V6", "RTX-4090",
)  # fmt: skip
"""Devices that came with or after fused attention in every framework (PyTorch 2.0, March 2023)."""
SUCCESSORS = {"megatron-lm": "megatron-core", "nemo-megatron": "megatron-core"}
"""What Megatron-LM and NeMo had become by then."""


def framework_of(row: Row) -> Framework:
    """Defaults of the row's framework, in its version on recent devices; PyTorch's where it is unknown.

    What a row says of its kernels (eager or compiled, fused attention, type of mixed precision) goes before.
    """
    text = row.text("framework").lower()
    found = next((known for known in FRAMEWORKS if re.search(known.pattern, text)), DEFAULT)
    renamed = found.key in SUCCESSORS and CORE_SINCE <= _month(row) < math.inf
    if (board_key(row.text("gpu")) or "").startswith(RECENT) or renamed:
        key = SUCCESSORS.get(found.key, found.key)
        later = next((known for known in FRAMEWORKS if known.key == key), found)
        found = replace(later, flash=True)
    for key, model, fields in RECIPES:
        if key == found.key and re.search(model, row.text("model").lower()):
            found = replace(found, **fields)
    stated = _stated(row)
    board = board_key(row.text("gpu")) or ""
    if _month(row) < SECOND_FLASH or board.startswith(WITHOUT_SECOND_FLASH):
        stated.setdefault("flash_version", 1)
    elif not board.startswith(WITH_THIRD_FLASH):
        stated.setdefault("flash_version", min(found.flash_version, 2))
    return replace(found, **stated)


CORE_SINCE = 2023
"""Megatron-LM and NeMo build on Megatron-Core, with fused attention, since this year."""


SECOND_FLASH = 2023 + 9 / 12
"""Frameworks took FlashAttention-2 (July 2023) up in autumn: llm-foundry 0.4, InternLM, Megatron-LM 23.08."""


WITHOUT_SECOND_FLASH = ("V100", "T4", "P100", "RTX-20", "TITAN")
"""Devices before Ampere, which FlashAttention-2 does not run on: other fused kernels are at most as fast as
the first version (Dao 2023, arXiv:2307.08691, section 4.1)."""


WITH_THIRD_FLASH = ("H100", "H200", "H800", "H20", "GH200", "B200", "B300", "GB200", "GB300")
"""Devices whose asynchronous tensor cores cuDNN's attention, which Transformer Engine calls, makes use of;
the kernels of flash-attn 2 and PyTorch do not (Shah et al. 2024, arXiv:2407.08608)."""


def _month(row: Row) -> float:
    """When a run was published at the earliest, in years; infinity where the row does not say."""
    found = re.search(r"(20[12]\d)(?:-(\d\d))?", row.text("date"))
    return int(found[1]) + (int(found[2] or 1) - 1) / 12 if found else math.inf


RECIPES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("pytorch", r"\bbert", {"bucket": 500e6, "fp32_gradients": "(?!)"}),
    ("tensorflow", r"\bbert", {"fp32_gradients": "(?!)"}),
    ("tensorflow-xla", r"\bbert", {"fp32_gradients": "(?!)"}),
)
"""What the scripts that others run do for a model: framework, pattern of its name, defaults. BERT of NVIDIA's
DeepLearningExamples: apex at O2 keeps gradients in fp16, ``DDP(message_size=250000000)`` counts elements;
Horovod sends fp16 (``Compression.fp16``) in TensorFlow's mixed precision."""


_STATED: tuple[tuple[str, dict[str, bool | str]], ...] = (
    (r"\beager\b", {"fused": False, "fused_loss": False}),
    (r"torch\.?compile|\bcompiled?\b", {"fused": True, "fused_loss": True}),
    (r"(no|without|w/o) flash|unfused attention|attn_impl=?:? *torch", {"flash": False}),
    (r"(?<!no )(?<!without )(?<!w/o )flash[ -]?att", {"flash": True}),
    (r"mp_mode=pure", {"fp32_gradients": "(?!)"}),
)
"""What a row says, and what it means for the defaults; sources: torchtitan's README, Composer's FSDP."""


def _stated(row: Row) -> dict[str, Any]:
    """Fields of the framework that the row itself states."""
    text = " ".join(
        row.text(name) for name in ("framework", "source_detail", "notes", "comm", "overlap")
    ).lower()
    return {
        field: value
        for pattern, given in _STATED
        if re.search(pattern, text)
        for field, value in given.items()
    }


def overlaps_tensor(row: Row) -> bool:
    """Whether a row says that tensor parallel exchanges run beside products."""
    text = f"{row.text('overlap')} {row.text('notes')} {row.text('comm')}".lower()
    return bool(re.search(r"async[ -]?tp|\btp\b[^;]*overlap|tp_comm_overlap|userbuffer", text))
