"""Memory of one device, by component, strategy and pipeline position.

States. Per parameter, in mixed precision: a 16-bit weight and gradient (2 + 2 bytes, or 2 + 4 where gradients
are kept in fp32) and, as optimiser state, the fp32 master weight and the moments (Adam: 4 + 4 + 4); in fp32
the weight is its own master copy.
ZeRO divides by the data-parallel degree the optimiser states (1), also the gradients (2), also the weights
(3) (Rajbhandari et al. 2020, arXiv:1910.02054, figure 1).

Activations. Per micro-batch in flight what backward needs (Korthikanti et al. 2022, arXiv:2205.05198, table
2); selective recomputation drops the attention core, full recomputation keeps each block's input and one
block's activations while it is recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sim.errors import InputError
from sim.models.checkpointing import KEPT_KINDS, alternate_elements, alternate_shares
from sim.models.schedules import SCHEDULES, peak
from sim.spec.calibration import Calibration
from sim.spec.layer import Attention, Gemm, Layer
from sim.spec.strategy import Strategy
from sim.spec.workload import DTYPE_BYTES, OPTIMIZER_STATES, Workload, kept_bytes
from sim.taxonomy.updates import UPDATES
from sim.wire.compressors import compressor_of

COMPONENTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "reserved")
LOGIT_BYTES = 4.0
"""The loss is computed on fp32 logits; the compute-type logits (later their gradient) lie beside them."""


def in_flight_micro_batches(strategy: Strategy, stage: int, num_micro_batches: int) -> float:
    """Micro-batches whose activations a pipeline stage holds at its peak, in units of the whole stage.

    Counted along the stage's own order of work, with equal chunks; an activation is held until the gradients
    of the weights have been computed.

    Parameters
    ----------
    strategy : Strategy
        Its ``pp``, ``schedule`` and ``virtual_stages``.
    stage : int
        Pipeline rank, 0 first.
    num_micro_batches : int
        Micro-batches per step.
    """
    if strategy.pp == 1:
        return 1.0
    schedule = SCHEDULES[strategy.schedule]
    chunks = schedule.num_chunks(strategy.virtual_stages)
    order = schedule.order(stage, strategy.pp, num_micro_batches, strategy.virtual_stages)
    return peak(order, [1.0] * chunks, [1.0] * chunks) / chunks


def activation_elements(layers: Sequence[Layer], strategy: Strategy) -> tuple[float, float]:
    """Elements that one sample of a chunk keeps on one rank.

    Returns
    -------
    kept : float
        From the forward to the backward, under the recomputation policy.
    deferred : float
        From the gradient of the input to that of the weights where a schedule separates them: all that the
        products need; the attention core has no weights.
    """
    if strategy.recompute == "full":
        kept = sum(_block_input(block) for block in _blocks(layers))
        kept /= strategy.cp * (strategy.tp if strategy.sequence_parallel else 1)
    elif strategy.recompute == "alternate":
        kept = _alternate_elements(layers, strategy)
    else:
        kept = sum(stored_elements(layer, strategy) for layer in layers)
    return kept, sum(stored_elements(layer, strategy, recompute="selective") for layer in layers)


def _alternate_elements(layers: Sequence[Layer], strategy: Strategy) -> float:
    """What ``alternate`` recomputation keeps: inputs of blocks, and the outputs that do not run again."""
    degree = strategy.tp if strategy.sequence_parallel else 1
    kept = sum(_block_input(block) for block in _blocks(layers)) / degree
    for layer, shares in zip(layers, alternate_shares(layers), strict=True):
        if layer.kind in KEPT_KINDS:
            kept += stored_elements(layer, strategy, recompute="none") * strategy.cp
            continue
        divided, whole = alternate_elements(layer, shares)
        kept += divided / strategy.tp + whole / degree
    return kept / strategy.cp


def _block_input(block: Sequence[Layer]) -> float:
    """A block recomputes from its input; the input of the embedding is token ids, too small to count."""
    return next((layer.input_elements for layer in block if layer.input_elements), 0.0)


def local_parameters(layer: Layer, strategy: Strategy) -> float:
    """Parameters of a layer on one rank before ZeRO: tensor- and expert-parallel shares."""
    shared = layer.parameters - layer.tensor_parameters + layer.tensor_parameters / strategy.tp
    return shared + expert_parameters(layer, strategy)


def expert_parameters(layer: Layer, strategy: Strategy) -> float:
    """Parameters of a layer's experts on one rank before ZeRO."""
    return layer.expert_parameters / (strategy.expert_tensor_degree * strategy.ep)


def frozen_parameters(layer: Layer, strategy: Strategy, *, expert: bool | None = None) -> float:
    """Untrained parameters of a layer on a rank before ZeRO; ``expert``: those of experts, or the others."""
    experts = layer.frozen_expert_parameters / (strategy.expert_tensor_degree * strategy.ep)
    whole = layer.frozen_parameters - layer.frozen_tensor_parameters
    shared = whole + layer.frozen_tensor_parameters / strategy.tp
    return experts * (expert is not False) + shared * (expert is not True)


def frozen_bytes(layer: Layer, workload: Workload) -> float:
    """Bytes of an untrained parameter."""
    return layer.frozen_bits / 8 if layer.frozen_bits else kept_bytes(workload.dtype)


def stored_elements(layer: Layer, strategy: Strategy, *, recompute: str | None = None) -> float:
    """Activation elements of one sample that a layer keeps for backward on one rank.

    Parameters
    ----------
    layer : Layer
        The layer.
    strategy : Strategy
        Its tensor and sequence parallelism, and its recomputation policy unless ``recompute`` is given.
    recompute : str, optional
        ``none`` or ``selective``; ``all``: whatever ``recompute_layers`` says, too.
    """
    policy = strategy.recompute if recompute is None else recompute
    if policy != "all" and layer.kind in strategy.recompute_layers:
        degree = strategy.tp if strategy.sequence_parallel else 1
        return layer.input_elements / degree / strategy.cp
    split, whole = layer.stored_tensor_elements, layer.stored_elements - layer.stored_tensor_elements
    if policy == "selective":
        split -= layer.stored_selective_elements
    whole_degree = strategy.tp if strategy.sequence_parallel else 1
    if layer.num_experts and strategy.expert_load != 1:  # what the tokens in front of and in experts keep
        more = strategy.expert_load - 1
        split += more * split
        whole += more * min(2 * layer.expert_elements, whole)
    return (split / strategy.tp + whole / whole_degree) / strategy.cp


def stage_memory(
    layers: Sequence[Layer],
    *,
    strategy: Strategy,
    workload: Workload,
    micro_batch: float,
    dp: int,
    calibration: Calibration | None = None,
    num_micro_batches: int = 1,
    stage: int = 0,
    in_flight: float | None = None,
    first: bool = True,
    last: bool = True,
    gradient_copy: bool = False,
    weight_versions: int = 1,
) -> dict[str, float]:
    """Peak bytes on one device of a pipeline stage.

    Parameters
    ----------
    layers : sequence of Layer
        The layers of this stage (all its chunks).
    strategy, workload
        Degrees, state placement, recomputation; precision and optimiser.
    micro_batch : float
        Samples per micro-batch.
    dp : int
        Ranks that hold the same parameters (dp x cp), over which ZeRO shards.
    calibration : Calibration, optional
        For ``framework/default/memory_reserved_bytes``; nothing is reserved without it.
    num_micro_batches : int
        Micro-batches per step.
    stage : int
        Pipeline rank.
    in_flight : float, optional
        Micro-batches held at the peak; from the schedule if absent.
    first, last : bool
        Whether this is the model's first, last stage. A tied output table on a stage without the embedding
        is a copy.
    gradient_copy : bool
        Keep an fp32 copy of the sharded gradient beside the states, as DeepSpeed's ZeRO optimiser does.
    weight_versions : int
        Versions of the weights that are in use at a time (schedules without a flush).

    Returns
    -------
    dict
        Bytes by component, in the order of :data:`COMPONENTS`.
    """
    if micro_batch <= 0 or dp < 1:
        raise InputError("strategy.micro_batch_size", "be greater than 0", got=micro_batch)
    shared, experts = _parameters(layers, strategy, copy_tied=not first)
    held = in_flight_micro_batches(strategy, stage, num_micro_batches) if in_flight is None else in_flight
    shards = min(dp, strategy.shard_ranks or dp)
    expert_dp = max(1, dp * strategy.tp // (strategy.ep * strategy.expert_tensor_degree))
    expert_dp = min(expert_dp, strategy.shard_ranks or expert_dp)
    states = _states(shared, strategy, workload, shards, gradient_copy)
    for name, size in _states(experts, strategy, workload, expert_dp, gradient_copy).items():
        states[name] += size
    result = dict.fromkeys(COMPONENTS, 0.0)
    if strategy.backward_shard_ranks is not None and strategy.sharding == 3:  # the second copy (hpZ)
        states["weights"] += shared * kept_bytes(workload.dtype) / strategy.backward_shard_ranks
    for layer in layers:
        for expert, holders in ((False, shards), (True, expert_dp)):
            kept = frozen_parameters(layer, strategy, expert=expert) * frozen_bytes(layer, workload)
            states["weights"] += kept / (holders if strategy.sharding == 3 else 1)
    result.update(states)
    result["weights"] *= weight_versions
    result["activations"] = _activations(layers, strategy, workload, micro_batch, held)
    for name in ("weights", "gradients", "optimizer", "activations"):
        result[name] *= strategy.replicas_per_device
    if last:
        result["logits"] = _logits(layers, strategy, workload, micro_batch)
    result["buffers"] = _buffers(
        layers, strategy, workload, micro_batch, shards, shared + experts, num_micro_batches
    )
    if calibration is not None:
        result["reserved"] = calibration.value("framework", "default", "memory_reserved_bytes")
    return result


def _parameters(layers: Sequence[Layer], strategy: Strategy, *, copy_tied: bool) -> tuple[float, float]:
    experts = sum(expert_parameters(layer, strategy) for layer in layers)
    shared = sum(local_parameters(layer, strategy) for layer in layers) - experts
    if copy_tied:
        shared += sum(layer.shared_parameters for layer in layers) / strategy.tp
    return shared, experts


def _states(
    parameters: float, strategy: Strategy, workload: Workload, dp: int, gradient_copy: bool
) -> dict[str, float]:
    element = kept_bytes(workload.dtype)
    mixed = element < 4
    level = strategy.sharding
    single = workload.fp32_parameters and mixed and level == 3  # the shard is the master copy
    master = mixed and not single
    state = 4.0 * (OPTIMIZER_STATES[workload.optimizer] + master) + 4.0 * (gradient_copy and mixed)
    if strategy.has_servers and not (strategy.updates_locally or strategy.servers_only_sum):
        state = 0.0  # the servers hold it
    if strategy.offload_optimizer:
        state = 0.0  # the host's memory holds it
    state += UPDATES[strategy.update_semantics].centre_bytes
    residual = 1.0 if compressor_of(strategy).error_feedback else 0.0  # of all gradients, whatever is sharded
    copies = (1 + strategy.delay) / (dp if level >= 2 else 1)
    width = 4.0 if single else element
    kept = 0.0 if strategy.offload_parameters else width / (dp if level >= 3 else 1)
    return {
        "weights": parameters * kept,
        "gradients": parameters * (4.0 if single else workload.gradient_bytes) * (copies + residual),
        "optimizer": parameters * state / (dp if level >= 1 else 1),
    }


def server_memory(
    strategy: Strategy, workload: Workload, *, workers: int, hosts: int, parameters: float | None = None
) -> dict[str, float]:
    """Bytes that parameter servers keep in the memory of each of their hosts, by component.

    Parameters
    ----------
    strategy, workload : Strategy, Workload
        With a state on servers.
    workers : int
        Workers that push the same part of the model.
    hosts : int
        Hosts over which the model is spread evenly.
    parameters : float, optional
        Parameters they hold where these are not all: embedding tables.

    Notes
    -----
    In fp32: parameters (unless the servers only sum), the sum of received gradients or models, states of the
    optimiser where the servers update; the model each worker pulled where delays are compensated (Zheng et
    al., DC-ASGD, ICML 2017).
    """
    share = 4.0 * (workload.num_parameters if parameters is None else parameters) / hosts
    sums = strategy.servers_only_sum
    update = strategy.serves_tables or not (strategy.updates_locally or sums)
    states = OPTIMIZER_STATES[workload.optimizer] if update else 0
    return {
        "weights": 0.0 if sums else share,
        "gradients": share,
        "optimizer": share * states,
        "pulled models": share * workers * strategy.delay_compensation,
    }


def _activations(
    layers: Sequence[Layer], strategy: Strategy, workload: Workload, micro_batch: float, held: float
) -> float:
    per_element = micro_batch * kept_bytes(workload.dtype)

    def stored(layer: Layer, recompute: str) -> float:
        elements = stored_elements(layer, strategy, recompute=recompute)
        return elements - narrow_elements(layer, strategy, workload)

    away = [layer for layer in layers if leaves(layer, strategy)]
    # Activations of the block at hand, and of the one that comes or goes.
    coming = max((_kept(block, strategy, stored) for block in _blocks(away)), default=0.0)
    passing = 2 * per_element * coming
    stay = [layer for layer in layers if not leaves(layer, strategy)]
    if strategy.recompute not in ("full", "alternate"):
        again = [layer for layer in layers if layer.kind in strategy.recompute_layers]
        most = max((stored(layer, "all") for layer in again), default=0.0)
        return passing + per_element * (held * _kept(stay, strategy, stored) + most)
    block_peak = max(
        (sum(stored(layer, "none") for layer in block) for block in _blocks(layers)),
        default=0.0,
    )
    return passing + per_element * (held * _kept(stay, strategy, stored) + block_peak)


def _kept(layers: Sequence[Layer], strategy: Strategy, stored: Callable[[Layer, str], float]) -> float:
    """Elements of one sample that layers keep from forward to backward; ``stored`` says what one does."""
    if strategy.recompute in ("full", "alternate"):
        return activation_elements(layers, strategy)[0]
    return sum(stored(layer, strategy.recompute) for layer in layers)


def leaves(layer: Layer, strategy: Strategy) -> bool:
    """Whether a layer's activations go to the host's memory."""
    limit = strategy.offload_blocks
    return strategy.offload_activations and (limit is None or layer.block < limit)


def narrow_elements(layer: Layer, strategy: Strategy, workload: Workload) -> float:
    """Elements of one sample that need not be kept as inputs of products are kept quantised.

    Training in 8 or fewer bits keeps what a product needs for its weight gradient as the product read it
    (Transformer Engine's Linear). The output of attention is kept in 16 bits by its core all the same, the
    head's and the router's products stay in 16 bits.
    """
    share = 1 - DTYPE_BYTES[workload.dtype] / kept_bytes(workload.dtype)
    if share <= 0 or layer.kind == "head":
        return 0.0
    attends = any(isinstance(op, Attention) for op in layer.ops)
    whole_degree = strategy.tp if strategy.sequence_parallel else 1
    elements = 0.0
    for op in layer.ops:
        if not isinstance(op, Gemm) or (op.split == "none" and layer.num_experts and not op.expert):
            continue
        if op.split == "row":
            elements += 0.0 if attends else op.rows * op.k * op.batch / strategy.tp
        else:
            elements += op.rows * op.k * op.batch / whole_degree
    return share * min(elements / strategy.cp, stored_elements(layer, strategy, recompute="selective"))


def _blocks(layers: Sequence[Layer]) -> list[list[Layer]]:
    blocks: dict[int, list[Layer]] = {}
    for layer in layers:
        blocks.setdefault(layer.block, []).append(layer)
    return list(blocks.values())


def _logits(layers: Sequence[Layer], strategy: Strategy, workload: Workload, micro_batch: float) -> float:
    """The output of the head, once: on the last stage at most one micro-batch is between its passes."""
    elements = sum(layer.output_elements for layer in layers if layer.kind == "head")
    return micro_batch * elements * (LOGIT_BYTES + kept_bytes(workload.dtype)) / (strategy.tp * strategy.cp)


def _gathered_keys(layers: Sequence[Layer], strategy: Strategy) -> float:
    """Elements of a sample's keys and values from other context parallel ranks, times cp, in one layer.

    A ring holds the next block beside its own, gathering holds all; Ulysses exchanges parts of its own size.
    """
    blocks = {"ring": 1, "all_gather": strategy.cp}.get(strategy.context_parallelism, 0)
    if strategy.cp == 1 or not blocks:
        return 0.0
    keys = (
        2 * op.key_length * op.head_dim * max(op.kv_heads / strategy.tp, 1.0)
        for layer in layers
        for op in layer.ops
        if isinstance(op, Attention)
    )
    return blocks * max(keys, default=0.0)


def _buffers(
    layers: Sequence[Layer],
    strategy: Strategy,
    workload: Workload,
    micro_batch: float,
    dp: int,
    parameters: float,
    num_micro_batches: int,
) -> float:
    """Communication buffers, and the gradients of activations while backward passes through a layer."""
    element, gradient = kept_bytes(workload.dtype), workload.gradient_bytes
    largest = max(
        (layer.input_elements + (0.0 if layer.kind == "head" else layer.output_elements) for layer in layers),
        default=0.0,
    )
    transient = micro_batch * element * (largest + _gathered_keys(layers, strategy)) / strategy.cp
    communication = 0.0
    if strategy.sharding == 3:
        # Weights of the block in use and of those gathered ahead, and one unsharded gradient of a block.
        sizes = [
            sum(local_parameters(layer, strategy) + frozen_parameters(layer, strategy) for layer in block)
            for block in _blocks(layers)
        ]
        if not strategy.reshard_after_forward:  # all gathered at the end of forward, and one gradient
            return transient + (sum(sizes) * element + max(sizes, default=0.0) * gradient) * (dp > 1)
        whole = element * (1 + strategy.prefetch) + gradient
        communication = max(sizes, default=0.0) * whole if dp > 1 else 0.0
    elif strategy.sharding == 2:
        communication = 2 * strategy.bucket_size if dp > 1 else 0.0
        if num_micro_batches > 1 and strategy.pp > 1:
            # Accumulating over a pipeline's micro-batches keeps the unsharded sum until the last backward.
            communication += parameters * gradient * (1 - 1 / dp)
    elif strategy.sharding == 1:
        # Gradients lie in one contiguous buffer and are reduced where they are (Megatron, DeepSpeed).
        communication = 2 * min(strategy.bucket_size, parameters * gradient) if dp > 1 else 0.0
    elif dp > 1 or strategy.has_servers:
        # PyTorch DDP copies gradients into buckets; the buckets together are as large as the gradients.
        communication = parameters * gradient
    return transient + communication
