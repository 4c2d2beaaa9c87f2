"""Row -> scenario: architecture, host, fabric, precision, batch, degrees, sharding, recomputation, overlap.

What the row does not say is filled with the default of its framework (:mod:`sim.validate.frameworks`) or of
its system (:mod:`sim.validate.hardware`) and listed in :attr:`Run.assumed`. A row that cannot be simulated
becomes a :class:`Skipped` with the reason.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from sim.architecture import generate
from sim.catalog import Catalog
from sim.errors import ClusterloomError
from sim.models.checkpointing import KEPT_KINDS
from sim.spec import Calibration, Cluster, Device, Scenario, Strategy, Workload
from sim.spec.layer import Layer
from sim.spec.workload import DTYPE_BYTES, kept_bytes
from sim.validate.fits import made_to_fit
from sim.validate.frameworks import Framework, framework_of, overlaps_tensor
from sim.validate.hardware import Unsupported, build_cluster, gpu_count
from sim.validate.models import WORDS_PER_SAMPLE, default_batch, model_of
from sim.validate.named_models import GNMT_TOKENS, Params
from sim.validate.rows import Row
from sim.validate.throughput import measured_step

TIERS_REFUSED = ("X",)

_DTYPES = (
    (r"nvfp4|fp4", "fp4"),
    (r"fp8|float8|e4m3|hybrid", "fp8"),
    (r"bf16|bfloat", "bf16"),
    (r"\b(no|without|w/o) (amp|mixed)|\bo0\b", "fp32"),
    (r"fp16|float16|amp|mixed|half|\bo[12]\b|\b16[- ]?(bit|true|mixed)", "fp16"),
    (r"(?<!no )tf32(?! (off|disabled))", "tf32"),
    (r"fp32|float32|single|full precision|\b32[- ]?(bit|true)", "fp32"),
    (r"int8", "int8"),
)
"""What cells call a compute type, and what it is; the first that is found decides."""

_TYPES = r"nvfp4|fp4|fp8|float8|bf16|bfloat16|fp16|float16|tf32|int8"
_REFUSED = (
    rf"\b(?:no|non|not|without|w/o)[ -]+({_TYPES})\b|"
    rf"\b({_TYPES})\b[ =:]*(?:is |turned )?(?:off|disabled|false|not used)\b"
)
"""What cells say of a compute type that is not used."""


SCATTERING = ("megatron", "nemo", "deepspeed")
"""Frameworks whose tensor parallel ranks send parts to the next stage (Narayanan et al. 2021, section 4.1;
DeepSpeed's ``PartitionedTensor``)."""


@dataclass(frozen=True)
class Run:
    """A row that can be simulated.

    Attributes
    ----------
    row : Row
    generator, params : str, dict
        Model generator and its parameters, workload fields included.
    cluster, strategy : Cluster, Strategy
    framework : str
        Key of the framework in the calibration.
    micro_batches : int
        Micro-batches of a replica in a step.
    measured_s : float or None
        Measured step time in seconds.
    assumed : tuple of str
        Columns that the row leaves open.
    unmeasured : str
        Why what the row says was measured is no step time; empty where it is one or nothing is said.
    """

    row: Row
    generator: str
    params: Params
    cluster: Cluster
    strategy: Strategy
    framework: str
    micro_batches: int
    measured_s: float | None
    assumed: tuple[str, ...] = ()
    unmeasured: str = ""

    @property
    def regime(self) -> str:
        """One device, one host, or several hosts."""
        devices = self.strategy.tp * self.strategy.cp * self.strategy.pp * (self.strategy.dp or 1)
        if devices == 1:
            return "1 device"
        return "1 host" if self.cluster.size == 1 else "multi-host"

    @property
    def ends(self) -> int:
        """Embedding and head, where they count as blocks of the pipeline."""
        return self.strategy.embedding_in_split + self.strategy.head_in_split

    def workload(self, **changes: Any) -> Workload:
        """The workload; ``changes`` replace parameters of the generator.

        The layers are generated once for all runs of a model, whatever their batch and precision.
        """
        return workload_of(self.generator, {**self.params, **changes})

    @property
    def architecture(self) -> tuple[Layer, ...]:
        """Layer chain."""
        return self.workload().layers

    def scenario(self, calibration: Calibration) -> Scenario:
        """The whole run as one scenario."""
        return Scenario(
            workload=self.workload(),
            cluster=self.cluster,
            strategy=self.strategy,
            calibration=framework_calibration(calibration, self.framework),
        )


_VARIED = (
    "name",
    "dtype",
    "optimizer",
    "global_batch_size",
    "fp32_gradients",
    "fp32_parameters",
    "fused_accumulation",
)
"""Parameters on which the layers do not depend."""


def workload_of(generator: str, params: Params) -> Workload:
    """The workload of a generator's parameters; those that differ in batch or precision share its layers."""
    shape = tuple(sorted((k, v) for k, v in params.items() if k not in _VARIED and v is not None))
    varied = {name: params[name] for name in _VARIED if name in params}
    return _model(generator, shape).model_copy(update={**varied, "batch_per_device": None})


@lru_cache(maxsize=2048)
def _model(generator: str, shape: tuple[tuple[str, Any], ...]) -> Workload:
    return generate(generator, {"batch_per_device": 1, **dict(shape)})


@dataclass(frozen=True)
class Skipped:
    """A row that cannot be simulated, and why."""

    row: Row
    reason: str


@dataclass
class Loaded:
    """All rows of a file: those that can be simulated and those that cannot."""

    runs: list[Run] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def framework_calibration(calibration: Calibration, framework: str) -> Calibration:
    """The calibration with a framework's own parameters in place of the default ones."""
    return _of_framework(calibration, framework) if framework in calibration.framework else calibration


@lru_cache(maxsize=256)
def _of_framework(calibration: Calibration, framework: str) -> Calibration:
    own = calibration.framework[framework]
    if not own:
        return calibration
    merged = {**calibration.framework.get("default", {}), **own}
    return calibration.model_copy(update={"framework": {"default": merged}})


def load_runs(rows: Iterable[Row], catalog: Catalog | None = None, *, fit: bool = True) -> Loaded:
    """Turn rows into runs; every row is in one of the two lists. ``fit``: see :func:`load_run`."""
    catalog, loaded = catalog or Catalog(), Loaded()
    for row in rows:
        try:
            run = load_run(row, catalog, fit=fit)
            if fit and not run.architecture:  # sizes that make no model are refused here, row by row
                raise Unsupported("no layers")
            loaded.runs.append(run)
        except (Unsupported, ClusterloomError) as error:
            loaded.skipped.append(Skipped(row, str(error)))
        except (ValueError, ArithmeticError, LookupError, AssertionError) as error:  # one bad row is one row
            loaded.skipped.append(Skipped(row, f"cannot be read: {type(error).__name__}: {error}"))
    return loaded


def load_run(row: Row, catalog: Catalog, *, fit: bool = True) -> Run:
    """One row as a run; with ``fit`` what it leaves open is chosen so that it fits into memory.

    Raises
    ------
    Unsupported
        With the reason why it cannot be simulated.
    """
    if row.text("tier") in TIERS_REFUSED:
        raise Unsupported("tier X: rejected as evidence")
    if problem := row.problem():
        raise Unsupported(problem)
    framework = framework_of(row)
    generator, params, assumed = model_of(row, framework)
    cluster, more = build_cluster(row, catalog)
    assumed += more
    degrees = _degrees(row)
    batch, micro_batch, micro_batches = _batch(row, framework, degrees, params, assumed)
    if re.search(r"MBS of the alternative may be", row.text("notes")):
        assumed.append("mbs")
    degrees["chunks"] = _chunks(
        row, framework, degrees["pp"], micro_batches, params.get("num_layers"), assumed
    )
    strategy = _strategy(row, framework, degrees, micro_batch, assumed)
    strategy = _counting_ends(strategy, params.get("num_layers"))
    strategy = _sharing_tables(strategy, cluster, params, assumed)
    dtype = _dtype(row, generator, cluster.main_device, assumed)
    params = {
        **params,
        **_layout(generator, dtype),
        "name": row.text("model") or "unnamed",
        "dtype": dtype,
        "optimizer": _optimizer(row, framework, generator),
        "global_batch_size": batch,
    }
    params |= _gradients(row, framework, str(params["dtype"]))
    if framework.fsdp and strategy.state == "zero2":
        strategy = strategy.model_copy(update={"bucket_size": _block_bytes(generator, params)})
    run = Run(
        row=row,
        generator=generator,
        params=params,
        cluster=cluster,
        strategy=strategy,
        framework=framework.key,
        micro_batches=micro_batches,
        measured_s=None,
        assumed=tuple(dict.fromkeys(assumed)),
    )
    measured, reason = measured_step(run, _tokens(generator, params))
    run = replace(run, measured_s=measured, unmeasured=reason)
    return made_to_fit(run, catalog.calibration(("default",))) if fit else run


_LANGUAGE = ("transformer", "moe", "latent", "hybrid", "encoder-decoder")


def _dtype(row: Row, generator: str, device: Device, assumed: list[str]) -> str:
    """Compute type: as stated, else bf16 (or the device's fp16) for language models, TF32 or fp32 for others.

    cuDNN's convolutions are in TF32 by default in all frameworks, on devices that have it.
    """
    text, refused = _precision(row)
    for pattern, dtype in _DTYPES:
        if re.search(pattern, text):
            return dtype
    assumed.append("precision")
    if not row.text("family").endswith("lm") and generator not in _LANGUAGE:
        usual: tuple[str, ...] = ("tf32",)
    else:
        usual = ("bf16", "fp16")
    return next((dtype for dtype in usual if dtype in device.peak_flops and dtype not in refused), "fp32")


def _precision(row: Row) -> tuple[str, set[str]]:
    """What a row says of its precision without the types that it refuses, and these."""
    text = row.text("precision").lower()
    refused = {first or second for first, second in re.findall(_REFUSED, text)}
    return re.sub(_REFUSED, " ", text).strip(), refused


_STATED_GRADIENTS = r"(?:grad|reduc)\w*[ _-]*(?:in|sync|dtype)?[ _=:-]*(fp32|float32|bf16|fp16)"


def _gradients(row: Row, framework: Framework, dtype: str) -> dict[str, bool]:
    """How gradients are kept; the text of the precision tells mixed from pure 16-bit training."""
    fields = {
        "fused_accumulation": framework.fused_accumulation, "fp32_parameters": framework.fsdp,
    }  # fmt: skip
    if kept_bytes(dtype) >= 4:
        return {"fp32_gradients": False, **fields}
    text = _precision(row)[0] or dtype
    stated = re.search(
        r"(grad\w*|reduc\w*)[ _-]*(in|sync|dtype)?[ _=:-]*(fp32|float32|bf16|fp16)", row.text("notes").lower()
    )
    wide = stated[3] in ("fp32", "float32") if stated else bool(re.search(framework.fp32_gradients, text))
    return {"fp32_gradients": wide, **fields}


def _block_bytes(generator: str, params: Params) -> float:
    """Bytes of the gradients of a model's largest block; embedding and head are wrapped by themselves."""
    workload, sizes = workload_of(generator, params), Counter[int]()
    for layer in workload.layers:
        if layer.kind not in KEPT_KINDS:
            sizes[layer.block] += math.ceil(layer.parameters)
    return max(sizes.values()) * workload.gradient_bytes


def _layout(generator: str, dtype: str) -> Params:
    """Recipes ask for channels last with mixed precision and else leave the frameworks' default.

    That is channels first (``--memory-format``, ``--data_format`` and ``--input-layout`` of the ResNets of
    NVIDIA/DeepLearningExamples, whose settings others copied). SSD and Mask R-CNN there are channels last in
    every precision (``--data-layout``, ``NHWC``), and a speech model has one dimension.
    """
    return {"channels_last": DTYPE_BYTES[dtype] == 2} if generator.startswith("cnn:") else {}


def _degrees(row: Row) -> dict[str, int]:
    found = {axis: row.whole(axis) or 1 for axis in ("tp", "pp", "cp", "ep")}
    gpus = gpu_count(row) or 1
    replica = found["tp"] * found["pp"] * found["cp"]
    if gpus % replica:
        raise Unsupported("tp x pp x cp does not divide the GPU count")
    return {**found, "dp": gpus // replica}


def _batch(
    row: Row, framework: Framework, degrees: dict[str, int], params: Params, assumed: list[str]
) -> tuple[int, int, int]:
    """(Global batch, samples of a micro-batch, micro-batches)."""
    dp, pp = degrees["dp"], degrees["pp"]
    total, micro, count = row.whole("gbs"), row.whole("mbs"), row.whole("grad_accum")
    if params.get("target_length") == WORDS_PER_SAMPLE and micro:  # translation counts tokens, not sentences
        micro = max(1, micro // WORDS_PER_SAMPLE)
    if total is None and micro is None:
        micro = default_batch(row)
        assumed.append("mbs")
    if total is None and micro is None:
        raise Unsupported("batch size unknown")
    if micro is None:
        assert total is not None
        assumed.append("mbs")
        each = max(1, total // dp)
        if not count and pp > 1 and each % (pp * framework.micro_batches_of_a_stage or each + 1) == 0:
            count = pp * framework.micro_batches_of_a_stage
        size = _default_micro_batch(each, pp, params.get("sequence_length"))
        micro = max(1, each // count) if count else size
    if total is None:
        total = micro * dp * (count or 1)
    count = max(1, round(total / (micro * dp)))
    if count * micro * dp != total and total // dp < micro:
        micro, count = max(1, total // dp), 1
    return micro * count * dp, micro, count


def _default_micro_batch(each: int, pp: int, sequence: int | None) -> int:
    """Whole batch of a replica if it is not pipelined and at most 16,384 tokens, else a divisor for 4,096."""
    if not sequence:
        return each
    limit = max(1, (4096 if pp > 1 else 16384) // sequence)
    return max(size for size in range(1, min(each, limit) + 1) if each % size == 0)


def _strategy(
    row: Row, framework: Framework, degrees: dict[str, int], micro_batch: int, assumed: list[str]
) -> Strategy:
    degrees, chunks = {k: v for k, v in degrees.items() if k != "chunks"}, degrees["chunks"]
    folded = degrees["ep"] > 1 and degrees["dp"] * degrees["cp"] % degrees["ep"] > 0
    recompute, overlap = _recompute(row, framework, assumed), framework.overlap
    if re.search(r"\bno\b.*overlap", row.text("overlap").lower()):
        overlap = False
    replicas = degrees["dp"] * degrees["cp"]
    state = _state(row, framework, assumed) if replicas > 1 else "replicated"
    if state == "zero3" and degrees["pp"] > 1 and framework.pipelined_state:
        state = framework.pipelined_state
    sequence_parallel = degrees["tp"] > 1 and (folded or _sequence_parallel(row, framework, assumed))
    fields: dict[str, Any] = {
        **degrees,
        "micro_batch_size": micro_batch,
        "virtual_stages": chunks,
        "schedule": "interleaved" if chunks > 1 else "1f1b",
        "sequence_parallel": sequence_parallel,
        "overlap_tensor": sequence_parallel and overlaps_tensor(row),
        "recompute": recompute,
        "recompute_early_stop": recompute == "full" and framework.early_stop,
        "overlap": overlap,
        # More expert ranks than replicas: experts lie whole on tensor parallel ranks (Megatron-Bridge).
        "expert_tp": 1 if folded else None,
        "bucket_size": framework.bucket,
        "state": state,
        **_sharding(row, framework, state, degrees),
        "scatter_gather": min(degrees["tp"], degrees["pp"]) > 1 and framework.key.startswith(SCATTERING),
    }
    return Strategy(**(fields | _variable_update(row)))


def _sharing_tables(strategy: Strategy, cluster: Cluster, params: Params, assumed: list[str]) -> Strategy:
    """Embedding tables that no device holds beside the rest are spread: ranks ask their holders for rows.

    Trainers of recommenders place whole tables on devices (HugeCTR, TorchRec); here hosts hold them.
    """
    rows, width = params.get("table_rows", ()), params.get("embedding_dim", 0)
    if 4.0 * sum(rows) * width < SPREAD_TABLES * cluster.main_device.capacity or (strategy.dp or 1) == 1:
        return strategy
    assumed.append("shard")
    update = {"state": "replicated", "sparse_embeddings": "servers", "num_servers": cluster.size}
    return strategy.model_copy(update={**update, "recompute": "none"})


SPREAD_TABLES = 0.25
"""Bytes of embedding tables in fp32 over a device's memory above which they are not replicated."""


def _counting_ends(strategy: Strategy, blocks: int | None) -> Strategy:
    """Megatron's interleaved chunks are equal; where blocks alone do not divide, embedding and head count."""
    parts = strategy.pp * strategy.virtual_stages
    if not blocks or strategy.virtual_stages == 1 or blocks % parts == 0 or (blocks + 2) % parts:
        return strategy
    return strategy.model_copy(update={"embedding_in_split": True, "head_in_split": True})


def _chunks(
    row: Row, framework: Framework, pp: int, micro_batches: int, blocks: int | None, assumed: list[str]
) -> int:
    """Model chunks of a stage: as stated, else as many as the framework's recipes make."""
    stated = row.whole("vpp")
    if pp == 1 or stated:
        return stated or 1 if pp > 1 else 1
    size, looped = framework.blocks_per_chunk, row.text("vpp").lower().startswith("interleaved")
    if not (size or looped) or not blocks or micro_batches % pp:
        return 1
    assumed.append("vpp")
    if not size:  # the least that makes a schedule interleaved, as torchtitan's pipeline_llm does
        return 2
    whole = blocks if blocks % (pp * size) == 0 else blocks + 2  # then embedding and head count as blocks
    return whole // (pp * size) if whole % (pp * size) == 0 else 1


def _variable_update(row: Row) -> dict[str, Any]:
    """How tf_cnn_benchmarks keeps its variables (its README, section on variable_update)."""
    text = row.text("comm")
    if "variable_update" not in text:
        return {}
    if "parameter_server" in text and "=cpu" in text:
        return {"state": "ps_colocated", "num_servers": row.whole("nodes") or 1}
    if "distributed_replicated" in text:  # gradients are summed in a host before they leave it
        return {"collective": "hierarchical"} if (row.whole("nodes") or 1) > 1 else {}
    if "parameter_server" in text or "no NCCL" in text:
        return {"collective": "direct"}
    return {}


def _sequence_parallel(row: Row, framework: Framework, assumed: list[str]) -> bool:
    text = row.text("seq_parallel").lower()
    if not text:
        assumed.append("seq_parallel")
        return framework.sequence_parallel
    return text in ("yes", "true", "1")


_RECOMPUTATIONS: tuple[tuple[str, str], ...] = (
    (r"\(op\)|op-level|selective op|\bsac\b", "alternate"),
    (r"^(no|none|off|false|disabled?|0|without)\b|\b(no|without|w/o)\b[^,;]*\b(re-?comp|check-?point)",
     "none"),
    (r"^selective|selective (activation )?(re-?comp|check-?point)", "selective"),
    (r"^(full|uniform|block|all|yes|true|on|enabled|\d+ (layers|blocks))\b|^(ac|gc)\b"
     r"|full (activation )?(re-?comp|check-?point)|(activation|gradient)s?[- ](re-?comp|check-?point)",
     "full"),
)  # fmt: skip
"""What cells call a policy of recomputation, and what it is; the first that is found decides."""


def _recompute(row: Row, framework: Framework, assumed: list[str]) -> str:
    """As its column says, else the notes; else the framework's default."""
    text = row.text("recompute") or row.text("notes")
    found = next((policy for words, policy in _RECOMPUTATIONS if re.search(words, text.lower())), None)
    if found is not None:
        return found
    assumed.append("recompute")
    return framework.recompute


_SHARDINGS: tuple[tuple[str, str], ...] = (
    (r"zero ?\+\+|zeropp|hpz|qwz", "zero3"),
    (r"no[_ -]?shard", "replicated"),
    (r"grad[_ -]?op|stage[ _=:-]*2|zero[ _-]*(?:stage)?[ _=:-]*2", "zero2"),
    (r"stage[ _=:-]*3|zero[ _-]*(?:stage)?[ _=:-]*3", "zero3"),
    (r"stage[ _=:-]*1|zero[ _-]*(?:stage)?[ _=:-]*1|dist\w*[ _-]opt", "zero1"),
    (r"fsdp|full\w*[_ -]?shard|hybrid[_ -]?shard|hsdp|mics", "zero3"),
    (r"^(none|no|ddp|replicated|dp)\b|stage[ _=:-]*0|zero[ _-]*(?:stage)?[ _=:-]*0", "replicated"),
)
"""What cells call the sharding of state, and what it is; the first that is found decides."""


def _state(row: Row, framework: Framework, assumed: list[str]) -> str:
    """Where state lies: as the row says, or its framework's name ("DeepSpeed ZeRO-3"), else by default."""
    for column in ("shard", "framework"):
        text = row.text(column).lower()
        found = next((state for pattern, state in _SHARDINGS if re.search(pattern, text)), None)
        if found is not None:
            return found
    assumed.append("shard")
    return framework.state


def _shard_text(row: Row) -> str:
    return f"{row.text('shard')} {row.text('framework')}".lower()


def _sharding(row: Row, framework: Framework, state: str, degrees: dict[str, int]) -> dict[str, Any]:
    """Ranks that share one copy of sharded state, and how ZeRO-1 sums gradients.

    Groups are stated in GPUs ("zero1 within 8 GPUs") or as a host ("hybrid", "within a node").
    """
    fields: dict[str, Any] = {"shard_reduction": framework.shard_reduction} if state == "zero1" else {}
    text, replicas = row.text("shard").lower(), degrees["dp"] * degrees["cp"]
    stated = re.search(r"(?:within|group of|shard[_ ]?(?:size|group)[ =:]*) *(\d+)", text)
    size = int(stated[1]) if stated else 0
    if not stated and re.search(r"hybrid|hsdp|within (a|one|each|the)? ?(node|host)|mics", text):
        size = (row.whole("gpus_per_node") or 8) // degrees["tp"]
    if state.startswith("zero") and degrees["pp"] == 1 and re.search(r"offload|infinity", _shard_text(row)):
        fields["offload_optimizer"] = True
    if state == "zero3":
        fields |= _quantised(text, row.whole("gpus_per_node") or 8, replicas)
    if state.startswith("zero") and degrees["ep"] == 1 and 1 < size < replicas and replicas % size == 0:
        fields["shard_ranks"] = size
    return fields


def _quantised(text: str, per_host: int, replicas: int) -> dict[str, Any]:
    """ZeRO++ (arXiv:2306.10209): 8-bit gathers, a copy in each host, 4-bit gradients; or those named."""
    whole = re.search(r"zero ?\+\+|zeropp", text) and not re.search(r"hpz|qwz|qgz", text)
    fields: dict[str, Any] = {}
    if whole or "qwz" in text:
        fields["gather_bits"] = 8
    if (whole or "hpz" in text) and replicas % per_host == 0 and replicas > per_host:
        fields["backward_shard_ranks"] = per_host
    if whole or "qgz" in text:
        fields |= {"compression": "qsgd", "compression_levels": 8}
    return fields


_OPTIMIZERS = {"dlrm": "sgd", "dit": "adamw", "diffusion-unet": "adamw", "vit": "adamw", "clip": "adamw"}
_WITH_MOMENTUM = ("cnn:", "ssd", "mask-rcnn", "retinanet", "yolo", "unet", "deeplab")
"""Generators, by the beginning of their names, of networks that are trained with SGD and momentum."""


def _optimizer(row: Row, framework: Framework, generator: str) -> str:
    if row.text("family") in ("cnn", "detection") or generator.startswith(_WITH_MOMENTUM):
        return "momentum"
    if generator in _OPTIMIZERS:
        return _OPTIMIZERS[generator]
    if row.text("model").lower().startswith("bert-large") and (row.whole("gbs") or 0) >= 8192:
        return "lamb"
    return framework.optimizer


def _tokens(generator: str, params: Params) -> int | None:
    """Tokens of a sample that a throughput counts; GNMT's counts those of both languages, padding aside."""
    return GNMT_TOKENS if generator == "gnmt" else params.get("sequence_length")
