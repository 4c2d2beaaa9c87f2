"""A strategy: one point of the taxonomy (dimensions D1 to D14)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sim.spec.base import Bytes, Fraction, Seconds, Spec
from sim.spec.names import Names

Synchronization = Annotated[str, Names("sim.taxonomy.synchronizations:SYNCHRONIZATIONS")]
_UPDATES = Names("sim.taxonomy.updates:UPDATES")
_TOPOLOGIES = Names("sim.taxonomy.topologies:TOPOLOGIES")
_STATES = Names("sim.taxonomy.states:STATES")
UpdateSemantics = Annotated[str, _UPDATES]
LogicalTopology = Annotated[str, _TOPOLOGIES]
PeerGraph = Annotated[str, Names("sim.taxonomy.topologies:GRAPHS")]
StatePlacement = Annotated[str, _STATES]
CollectiveAlgorithm = Annotated[str, Names("sim.taxonomy.collectives:COLLECTIVES", ("auto",))]
Schedule = Annotated[str, Names("sim.taxonomy.schedules:SCHEDULES")]
ShardReduction = Literal["reduce_scatter", "all_reduce"]
Recompute = Literal["none", "selective", "alternate", "full"]
SufficientFactors = Literal["never", "cheaper", "always"]
SparseEmbeddings = Literal["never", "gather", "servers"]
ActivationExchange = Literal["never", "cheaper", "always"]
Fusion = Literal["none", "size", "time", "merge_plan"]
TransferOrder = Literal["fifo", "priority_layer", "critical_path"]
Negotiation = Literal["none", "coordinator", "hier_coordinator"]
ContextParallelism = Literal["ring", "ulysses", "all_gather", "spatial"]
Store = Literal["cluster", "local", "memory_cache", "staged_nvme"]
Compression = Annotated[str, Names("sim.wire.compressors:COMPRESSORS")]
ActivationCompression = Annotated[str, Names("sim.wire.compressors:ACTIVATION_COMPRESSORS")]
CompressionExchange = Literal["auto", "all_gather", "requantize"]
CompressionEngine = Literal["device", "nic"]
InNetwork = Annotated[str, Names("sim.wire.aggregators:AGGREGATORS", ("none",))]
SwitchNumbers = Literal["auto", "int32", "float"]
Axis = Literal["tp", "cp", "dp", "pp"]


class Strategy(Spec):
    """How a workload is distributed over a cluster.

    Degrees multiply to the number of ranks; ``dp`` is derived when it is not given. The rules that say
    which combinations mean something live in ``sim.taxonomy``, not here.
    """

    tp: int = Field(1, ge=1, description="tensor parallel degree (D1)")
    cp: int = Field(1, ge=1, description="context parallel degree (D1)")
    context_parallelism: ContextParallelism = Field(
        "ring",
        description=(
            "how attention reaches the keys of other context parallel ranks; spatial: ranks share images by "
            "rows and exchange those that convolutions overlap in (D1)"
        ),
    )
    context_balance: bool = Field(
        True,
        description=(
            "each context parallel rank takes an early and a late part of the sequence, so that causal "
            "attention is equal work for all (zigzag); without effect for ulysses"
        ),
    )
    ep: int = Field(1, ge=1, description="expert parallel degree, folded into tp x cp x dp (D1)")
    expert_tp: int | None = Field(
        None, ge=1, description="tensor parallel degree inside an expert; equal to tp if absent (D1)"
    )
    expert_imbalance: float = Field(
        1.0, ge=1, description="tokens of the busiest expert parallel rank over the mean; it decides the pace"
    )
    expert_capacity: float | None = Field(
        None, gt=0, description="capacity factor: experts take this many times the mean, padded or dropped"
    )
    pp: int = Field(1, ge=1, description="pipeline parallel degree (D1)")
    dp: int | None = Field(
        None, ge=1, description="data parallel degree; derived from the device count if absent"
    )
    placement: tuple[Axis, ...] = Field(
        ("tp", "cp", "dp", "pp"), description="order in which ranks fill devices, fastest axis first"
    )
    micro_batch_size: int | None = Field(
        None, ge=1, description="samples per micro-batch; the per-replica batch if absent"
    )
    schedule: Schedule = Field("1f1b", description="pipeline schedule (D12); without effect at pp=1")
    virtual_stages: int = Field(
        1,
        ge=1,
        le=1000,
        description="different model chunks per pipeline rank: interleaved schedule, 2 for zb_v",
    )
    weight_stash: bool = Field(
        False,
        description="keep the weights of every micro-batch in flight for its backward (pipedream_async, D13)",
    )
    stage_blocks: tuple[int, ...] | None = Field(
        None, description="blocks of every model chunk in forward order, pp x virtual_stages numbers"
    )
    embedding_in_split: bool = Field(
        False, description="the embedding counts as a block when blocks are divided over chunks (Megatron)"
    )
    head_in_split: bool = Field(
        False, description="the head and its loss count as a block when blocks are divided over chunks"
    )
    sequence_parallel: bool = Field(
        False, description="Megatron sequence parallelism: all-reduce becomes reduce-scatter + all-gather"
    )
    overlap_tensor: bool = Field(
        False,
        description=(
            "tensor parallel gathers and scatters run in tp pieces beside the products they feed or follow "
            "(asynchronous tensor parallelism, userbuffers), with sequence_parallel (D8)"
        ),
    )
    scatter_gather: bool = Field(
        False,
        description=(
            "tensor parallel ranks each send a part of what goes to the next stage, whose ranks gather it "
            "(Megatron-LM's scatter-gather, DeepSpeed's partitioned tensors); needless with sequence_parallel"
        ),
    )
    token_slices: int = Field(
        1,
        ge=1,
        le=4096,
        description="parts of every sequence that follow each other through the stages of gpipe (TeraPipe)",
    )
    recompute: Recompute = Field("none", description="activation recomputation (D13)")
    recompute_early_stop: bool = Field(
        False,
        description=(
            "full recomputation of a block stops at what its backward needs: neither its last product nor "
            "what is behind it runs again (PyTorch's checkpoint without reentrance, since 2.1) (D13)"
        ),
    )
    recompute_layers: tuple[str, ...] = Field(
        (),
        description="kinds of layers (conv, norm, mlp, attention ...) of which only the input is kept; they"
        " run forward again before their backward (D13)",
    )
    state: StatePlacement = Field("replicated", description="where optimiser state and parameters live (D2)")
    sufficient_factors: SufficientFactors = Field(
        "never",
        description=(
            "fully connected layers send their gradient's factors, samples x (rows + columns) numbers, to "
            "all ranks: never, where that is fewer bytes than an all-reduce, or always (D4)"
        ),
    )
    activation_exchange: ActivationExchange = Field(
        "never",
        description=(
            "fully connected layers are held by parts across data parallel ranks, which exchange activations "
            "instead of gradients: never, where that is fewer bytes than an all-reduce, or always (D4)"
        ),
    )
    replicas_per_device: int = Field(
        1, ge=1, le=64, description="model replicas that train beside each other on a device (Crossbow, D1)"
    )
    sparse_embeddings: SparseEmbeddings = Field(
        "never",
        description=(
            "gradients of embedding tables as the rows that a step looked up: never (whole tables), gathered "
            "by all ranks, or on servers beside workers that hold the tables and answer with rows (D2)"
        ),
    )
    offload_optimizer: bool = Field(
        False, description="optimiser state in host memory, updated by the host's processors (D13)"
    )
    offload_parameters: bool = Field(
        False, description="ZeRO-3: shards of parameters come from the offload target for every gather (D13)"
    )
    offload_target: Literal["host", "nvme"] = Field(
        "host", description="where offloaded state and parameters live: host memory, or hosts' disks (D13)"
    )
    offload_activations: bool = Field(
        False, description="activations go to host memory after forward and come back before backward (D13)"
    )
    offload_blocks: int | None = Field(
        None,
        ge=1,
        description=(
            "blocks of the model, the first ones, whose activations are offloaded; all if absent (Megatron's "
            "cpu_offloading_num_layers; D13)"
        ),
    )
    shard_ranks: int | None = Field(
        None, ge=1, description="ranks that share one copy of sharded state; all dp x cp if absent (D2)"
    )
    shard_reduction: ShardReduction = Field(
        "reduce_scatter",
        description=(
            "ZeRO-1: how gradients reach the owners of their shards, summed for them alone or, with an "
            "all_reduce, for everybody (D2)"
        ),
    )
    reshard_after_forward: bool = Field(
        True, description="ZeRO-3: free gathered parameters after forward and gather them again for backward"
    )
    gather_bits: Literal[4, 8] | None = Field(
        None, description="ZeRO-3: bits per parameter of gathers, quantised (ZeRO++ qwZ); all if absent"
    )
    backward_shard_ranks: int | None = Field(
        None,
        ge=1,
        description="ZeRO-3: neighbours that share a second copy, gathered for the backward (ZeRO++ hpZ)",
    )
    num_servers: int | None = Field(
        None,
        ge=1,
        description=(
            "parameter servers; one per host if co-located and absent, else 1; mixed: only those on hosts of "
            "their own"
        ),
    )
    synchronization: Synchronization = Field("bsp", description="synchronisation rule (D3)")
    staleness: int = Field(0, ge=0, description="SSP bound s: clocks a worker may be ahead of the slowest")
    backup_workers: int = Field(0, ge=0, description="late gradients dropped per step under `backup`")
    local_steps: int = Field(
        1, ge=1, description="steps between two exchanges (tau) of local SGD, elastic averaging or Downpour"
    )
    synchronous_steps: int = Field(
        0,
        ge=0,
        description="post-local SGD: bsp steps per period beside local_steps, in their share of the run",
    )
    gradients_per_update: int = Field(1, ge=1, description="soft_sync: gradients c that make an update")
    delay: int = Field(0, ge=0, le=1000, description="delayed: steps d that a gradient is applied late")
    reads: Literal["lazy", "eager"] = Field(
        "lazy",
        description="ssp: parameters pulled when the clock allows (lazy) or once updated (eager, ESSP)",
    )
    group_size: int | None = Field(
        None,
        ge=1,
        description="replicas of a partial all-reduce, of a hybrid's group, or under an aggregator of a tree;"
        " those of a host if absent",
    )
    update: UpdateSemantics | None = Field(
        None, description="what an exchange carries (D4); models for local SGD and graphs, else gradients"
    )
    delay_compensation: bool = Field(
        False,
        description="asynchronous servers keep the model a worker pulled and correct its gradient (DC-ASGD)",
    )
    moving_rate: Fraction | None = Field(
        None, description="elastic averaging: how far models and centre move (alpha); no effect on time"
    )
    participation: float = Field(
        1.0,
        gt=0,
        le=1,
        description="local SGD on servers: share of the clients (replicas) that a round takes, drawn by seed",
    )
    availability: float = Field(
        1.0,
        gt=0,
        le=1,
        description="chance that a client is there when a round begins; a round takes no more than there are",
    )
    topology: LogicalTopology = Field(
        "auto", description="who talks to whom (D5); auto: as the state implies"
    )
    graph: PeerGraph = Field("fixed", description="peers of topology `graph`: neighbours, drawn, or 2^k away")
    graph_degree: int = Field(2, ge=1, description="peers that a replica sends to in an exchange")
    graph_draws: int = Field(
        16,
        ge=1,
        le=256,
        description="exchanges that are drawn before a random graph repeats itself; fewer (2 at least) where "
        "nodes draw more than 2048 peers in them",
    )
    tree_levels: int = Field(
        1, ge=1, le=16, description="topology tree: levels of aggregators, each of group_size below it"
    )
    push_probability: float = Field(
        1.0, gt=0, le=1, description="chance that a replica of a random graph starts an exchange in a step"
    )
    fragments: int = Field(
        1, ge=1, le=1000, description="parts of the model, exchanged in turn (Ako, streaming DiLoCo)"
    )
    exchange_overlap: int = Field(
        0, ge=0, description="local SGD: steps computed while an exchange goes on (streaming DiLoCo's tau)"
    )
    exchange_bits: Literal[4, 8, 16, 32] | None = Field(
        None, description="bits per element of exchanged models; those of a parameter if absent"
    )
    collective: CollectiveAlgorithm = Field("auto", description="gradient collective algorithm (D6)")
    collective_dims: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None,
        min_length=1,
        description=(
            "extents of the grid of a hierarchical, torus2d, blueconnect or leaders collective, innermost"
            " first, or the digits of bcube; multiply to the ranks of a gradient group. Absent: those of a"
            " torus, else devices of a host, (blueconnect: of a leaf, of a pod,) and hosts"
        ),
    )
    collective_radix: int | None = Field(
        None, ge=2, description="base of bcube (prime factors if absent), children of kary_tree (2 if absent)"
    )
    chunks: int = Field(1, ge=1, le=1000, description="chunks a hierarchical collective is pipelined in")
    compression: Compression = Field("none", description="wire format of gradients (D7)")
    activation_compression: ActivationCompression = Field(
        "none",
        description=(
            "wire format of activations and their gradients between tensor parallel ranks and pipeline stages"
            " (D7); without error feedback"
        ),
    )
    compression_rank: int = Field(1, ge=1, description="rank of PowerSGD's factors")
    compression_ratio: float | None = Field(
        None,
        gt=0,
        le=1,
        description=(
            "fraction of the elements a sparse compressor sends (vector_quant, sketch: of the bytes; 3lc: "
            "non-zero values); as published if absent"
        ),
    )
    compression_levels: int | None = Field(
        None, ge=2, description="magnitudes qsgd rounds to, zero included; as published if absent"
    )
    compression_exchange: CompressionExchange = Field(
        "auto",
        description=(
            "of gradients that cannot be summed while encoded; auto: everybody gathers all (sharded state: "
            "each part goes straight to its owner); requantize: each hop decodes, adds and encodes again"
        ),
    )
    compression_engine: CompressionEngine = Field(
        "device", description="who encodes and decodes; nic: network cards, at line rate"
    )
    in_network: InNetwork = Field("none", description="switches that add up gradients (D10)")
    switch_slots: int | None = Field(
        None, ge=1, description="slots of the switch that this job has; as published if absent"
    )
    switch_numbers: SwitchNumbers = Field(
        "auto", description="what switches add; auto: 32-bit integers where they know nothing else"
    )
    switch_jobs: int = Field(1, ge=1, description="jobs that share the switches' slots or trees equally")
    switch_max_message: Bytes | None = Field(
        None, gt=0, description="larger gradients are summed by end hosts; unlimited if absent (sharp)"
    )
    switch_hot_share: Fraction = Field(
        0.5, description="share of looked-up rows that switches sum, the others go to servers (libra)"
    )
    switch_fallback: Fraction = Field(
        0, description="share of the gradients that finds no slot and is summed by end hosts (atp)"
    )
    compress_pull: bool = Field(
        False, description="parameter servers answer with the encoded sum of gradients instead of parameters"
    )
    overlap: bool = Field(
        True, description="wait-free backpropagation: communicate a bucket as soon as it is ready (D8)"
    )
    bucket_size: Bytes = Field(25 * 2.0**20, gt=0, description="gradient bucket capacity (D8)")
    first_bucket_size: Bytes | None = Field(
        None, gt=0, description="capacity of the first bucket; 1 MiB when bucket_size is left at its default"
    )
    fusion: Fusion = Field(
        "size",
        description=(
            "gradients that travel together (D8): none, up to bucket_size, those of a cycle_time, or an "
            "optimal plan for the exchange's start-up time and bandwidth"
        ),
    )
    cycle_time: Seconds = Field(
        0.0, ge=0, description="period at which ready gradients are looked for: fusion `time`, negotiation"
    )
    partition_size: Bytes | None = Field(
        None, gt=0, description="gradients are cut into pieces of at most so many bytes; uncut if absent (D8)"
    )
    order: TransferOrder = Field(
        "fifo",
        description=(
            "which of several waiting gradients is sent first (D8): what was ready first, what the next "
            "forward needs first, or (critical_path, servers) only parameters by need"
        ),
    )
    credit: Bytes | None = Field(
        None, gt=0, description="bytes of pieces that may be under way at a time; one piece if absent (D8)"
    )
    negotiation: Negotiation = Field(
        "none",
        description="how ranks agree on what is ready everywhere (D8): not, through one rank, or up a tree",
    )
    prefetch: int = Field(1, ge=0, description="ZeRO-3: layers whose parameters are gathered ahead")

    @property
    def update_semantics(self) -> str:
        """What an exchange carries (D4), derived where ``update`` leaves it open."""
        if self.update is not None:
            return self.update
        if _TOPOLOGIES[self.topology].chosen_peers:
            return "gossip_average"
        return "model_average" if self.synchronization == "local" else "gradient_sum"

    @property
    def has_peers(self) -> bool:
        """Whether replicas exchange with peers of a logical graph, without collective or server."""
        return bool(_TOPOLOGIES[self.topology].peers)

    @property
    def has_servers(self) -> bool:
        """Whether parameters live on servers."""
        return bool(_STATES[self.state].servers)

    @property
    def sharding(self) -> int:
        """What ranks divide among them (ZeRO): 1 optimiser state, 2 gradients too, 3 parameters too."""
        return int(_STATES[self.state].sharding)

    @property
    def exchanges_models(self) -> bool:
        """Whether models travel instead of gradients."""
        return bool(_UPDATES[self.update_semantics].models)

    @property
    def is_spatial(self) -> bool:
        """Whether ranks share images by rows."""
        return self.cp > 1 and self.context_parallelism == "spatial"

    @property
    def serves_tables(self) -> bool:
        """Whether embedding tables live on servers beside workers that hold the rest."""
        return self.sparse_embeddings == "servers"

    @property
    def has_server_hosts(self) -> bool:
        """Whether servers have hosts of their own."""
        return bool(_STATES[self.state].server_hosts)

    @property
    def servers_only_sum(self) -> bool:
        """Whether servers add gradients up and every worker updates its own parameters (BytePS)."""
        return bool(_STATES[self.state].only_sums)

    @property
    def updates_locally(self) -> bool:
        """Whether every replica runs an optimiser of its own."""
        return not self.has_servers or self.local_steps > 1 or self.exchanges_models

    store: Store = Field(
        "cluster",
        description=(
            "where samples are read from (D15): the cluster's shared store if it has one, each host's disk, "
            "its memory, or its disk after staging"
        ),
    )
    sample_format: Literal["records", "files"] = Field(
        "records", description="records: one request per batch; files: one per sample (D15)"
    )
    shuffle: Literal["shard", "global"] = Field(
        "shard", description="samples come from the host's own shard, or from all hosts' caches (D15)"
    )
    decode: Literal["cpu", "device"] = Field("cpu", description="where samples are decoded (D15)")
    decode_workers: int | None = Field(
        None, ge=1, description="processor cores that decode for one replica; its share of all if absent"
    )
    prefetch_batches: int = Field(1, ge=1, le=1000, description="batches the loader is ahead (D15)")
    checkpoint_every: int | None = Field(None, ge=1, description="steps between two checkpoints (D19)")
    checkpoint_mode: Literal["sync", "async"] = Field(
        "sync", description="training waits for the store, or for a copy in host memory only (D19)"
    )

    @property
    def expert_tensor_degree(self) -> int:
        """Ranks that share one expert's matrices."""
        return self.tp if self.expert_tp is None else self.expert_tp

    @property
    def expert_load(self) -> float:
        """Tokens of the rank that decides the pace, over the mean: its capacity, else the imbalance."""
        return self.expert_imbalance if self.expert_capacity is None else self.expert_capacity

    @property
    def folds_experts(self) -> bool:
        """Whether experts are held by other groups of ranks than everything else."""
        return self.ep > 1 or self.expert_tensor_degree != self.tp
