"""Dimensions of training itself: what is divided, exchanged and when."""

from __future__ import annotations

from sim.taxonomy.collectives import COLLECTIVES
from sim.taxonomy.dimensions.value import Dimension, Value
from sim.taxonomy.dimensions.value import setting as _setting
from sim.taxonomy.schedules import SCHEDULES
from sim.taxonomy.states import STATES, StateFacts
from sim.taxonomy.synchronizations import SYNCHRONIZATIONS, SynchronizationFacts
from sim.taxonomy.topologies import GRAPHS, TOPOLOGIES, TopologyFacts
from sim.taxonomy.updates import UPDATES, UpdateFacts
from sim.wire.compressor import Compressor
from sim.wire.compressors import ACTIVATION_COMPRESSORS, COMPRESSORS


def _compressor(each: Compressor) -> Value:
    label = f"{each.name}({each.parameter})" if each.parameter else each.name
    fields = (f"strategy.compression_{each.parameter}",) if each.parameter else ()
    return _setting("strategy.compression", each.name, each.description, *fields, name=label)


def _fields(each: StateFacts | SynchronizationFacts | UpdateFacts | TopologyFacts) -> tuple[str, ...]:
    return tuple(f"strategy.{field}" for field in each.fields)


_STATE, _SYNC, _COLLECTIVE = "strategy.state", "strategy.synchronization", "strategy.collective"
_UPDATE, _TOPOLOGY, _DIMS = "strategy.update", "strategy.topology", "strategy.collective_dims"
_SURVEYS = "Langer et al., TPDS 2020; Mayer and Jacobsen, CSUR 2020"

TRAINING: tuple[Dimension, ...] = (
    Dimension(
        "D1",
        "parallelism",
        "How is one step's work divided among ranks?",
        (
            Value(
                "dp", "replicas train on different samples and exchange gradients", fields=("strategy.dp",)
            ),
            Value(
                "tp", "matrices are divided; two all-reduces per layer and direction", fields=("strategy.tp",)
            ),
            Value(
                "sequence_parallel",
                "divides the activations tp leaves whole; an all-reduce becomes reduce-scatter + all-gather",
                {"strategy.sequence_parallel": True},
            ),
            Value(
                "pp",
                "layers are divided into stages that pass activations on; equally, or as told",
                fields=(
                    "strategy.pp",
                    "strategy.stage_blocks",
                    "strategy.embedding_in_split",
                    "strategy.head_in_split",
                    "strategy.scatter_gather",
                ),
            ),
            Value(
                "cp_ring",
                "parts of the sequence; keys and values go round while attention works on the block at hand",
                {"strategy.context_parallelism": "ring"},
                ("strategy.cp", "strategy.context_balance"),
            ),
            Value(
                "sp_ulysses",
                "parts of the sequence become parts of the heads: four all-to-alls per layer and direction",
                {"strategy.context_parallelism": "ulysses"},
                ("strategy.cp",),
            ),
            Value(
                "cp_all_gather",
                "parts of the sequence; keys and values are gathered before attention",
                {"strategy.context_parallelism": "all_gather"},
                ("strategy.cp", "strategy.context_balance"),
            ),
            Value(
                "spatial",
                "rows of images; convolutions exchange those they overlap in with the neighbours",
                {"strategy.context_parallelism": "spatial"},
                ("strategy.cp",),
            ),
            Value(
                "ep",
                "experts are divided; tokens reach them by all-to-all; the busiest expert decides",
                fields=(
                    "strategy.ep",
                    "strategy.expert_tp",
                    "strategy.expert_imbalance",
                    "strategy.expert_capacity",
                ),
            ),
            Value(
                "replicas_per_device",
                "several model replicas train beside each other on a device (Crossbow)",
                fields=("strategy.replicas_per_device",),
            ),
            Value(
                "token_slices",
                "parts of a sequence follow each other through the stages (TeraPipe)",
                {"strategy.schedule": "gpipe"},
                ("strategy.token_slices",),
            ),
            Value("placement", "the order in which the axes fill devices", fields=("strategy.placement",)),
        ),
        f"{_SURVEYS}; Narayanan et al., SC 2021; Lepikhin et al. 2020",
    ),
    Dimension(
        "D2",
        "state placement",
        "Where do parameters and optimiser state live, and who updates them?",
        (
            *(_setting(_STATE, name, each.description, *_fields(each)) for name, each in STATES.items()),
            Value(
                "zero1+all_reduce",
                "as zero1, but every rank receives the sum of all gradients (InternEvo, PyTorch's "
                "ZeroRedundancyOptimizer)",
                {_STATE: "zero1", "strategy.shard_reduction": "all_reduce"},
            ),
            Value(
                "hybrid(k)",
                "groups of k ranks hold a sharded copy each; shards are summed over the copies (HSDP, MiCS)",
                fields=("strategy.shard_ranks",),
            ),
            Value(
                "zero++",
                "quantised gathers, and a second copy nearby for those of the backward",
                {_STATE: "zero3"},
                ("strategy.gather_bits", "strategy.backward_shard_ranks"),
            ),
            _setting(
                "strategy.sparse_embeddings",
                "servers",
                "embedding tables on servers beside workers, which push and pull the rows a step looks up; "
                "everything else replicated and all-reduced (Parallax)",
                "strategy.num_servers",
                name="mixed by sparsity",
            ),
            _setting(
                "strategy.sparse_embeddings",
                "gather",
                "replicated; the rows of tables that a step looked up are gathered by all ranks",
                name="gathered rows",
            ),
            Value(
                "central_hierarchical",
                "workers of a group reduce first, one of each talks to the servers",
                {_STATE: "ps_dedicated", "strategy.topology": "tree"},
                ("strategy.group_size", "strategy.tree_levels"),
            ),
        ),
        f"{_SURVEYS}; Rajbhandari et al., ZeRO, SC 2020; Jiang et al., BytePS, OSDI 2020",
    ),
    Dimension(
        "D3",
        "synchronization",
        "When may a worker start its next step?",
        tuple(
            _setting(
                _SYNC,
                name,
                each.description,
                *_fields(each),
                name=each.label,
            )
            for name, each in SYNCHRONIZATIONS.items()
        ),
        f"{_SURVEYS}; Ho et al., SSP, NIPS 2013; Chen et al., Revisiting Distributed Synchronous SGD, 2016",
    ),
    Dimension(
        "D4",
        "update semantics",
        "What do workers exchange?",
        (
            *(_setting(_UPDATE, name, each.description, *_fields(each)) for name, each in UPDATES.items()),
            Value(
                "sufficient_factors",
                "factors of fully connected layers' gradients, samples x (rows + columns), to every rank",
                {"strategy.sufficient_factors": "always"},
            ),
            Value(
                "activation_exchange",
                "activations of fully connected layers, which data parallel ranks hold by parts",
                {"strategy.activation_exchange": "always"},
            ),
            Value(
                "delay_compensated",
                "gradients, corrected on the server by how far the model moved since the pull (DC-ASGD)",
                {"strategy.delay_compensation": True},
            ),
        ),
        f"{_SURVEYS}; Zhang et al., EASGD, NIPS 2015; Lian et al., NIPS 2017; Douillard et al., DiLoCo, 2023",
    ),
    Dimension(
        "D5",
        "logical topology",
        "Who talks to whom?",
        (
            *(
                _setting(_TOPOLOGY, name, each.description, *_fields(each), name=each.label)
                for name, each in TOPOLOGIES.items()
            ),
            *(
                Value(
                    name,
                    f"a collective's: {description}",
                    {_TOPOLOGY: "auto", **settings},
                    fields,
                )
                for name, description, settings, fields in (
                    ("ring", "every rank with the next one", {_COLLECTIVE: "ring"}, ()),
                    ("multi_ring", "rings along every tier of the network", {_COLLECTIVE: "blueconnect"}, ()),
                    ("grid", "rings along two dimensions", {_COLLECTIVE: "torus2d"}, (_DIMS,)),
                    (
                        "hierarchical",
                        "inside groups, then across them",
                        {_COLLECTIVE: "hierarchical"},
                        (_DIMS,),
                    ),
                    ("in_network_tree", "switches add up", {"strategy.in_network": "sharp"}, ()),
                )
            ),
            *(
                Value(
                    f"{name} graph",
                    each.description,
                    {_TOPOLOGY: "graph", "strategy.graph": name},
                    ("strategy.graph_degree",),
                )
                for name, each in GRAPHS.items()
            ),
        ),
        f"{_SURVEYS}; Lian et al., AD-PSGD, ICML 2018; Assran et al., SGP, ICML 2019",
    ),
    Dimension(
        "D6",
        "collective algorithm",
        "How are gradients summed without a server?",
        (
            _setting(_COLLECTIVE, "auto", "as a library would choose, by size and ranks"),
            *(
                _setting(_COLLECTIVE, name, each.description, *each.fields, name=each.label)
                for name, each in COLLECTIVES.items()
            ),
        ),
        "Thakur et al., IJHPCA 2005; Patarasuk and Yuan, JPDC 2009; Mikami et al. 2018; Cho et al. 2019; "
        "Wang et al., Blink, MLSys 2020",
    ),
    Dimension(
        "D7",
        "compression",
        "What do gradients look like on the wire?",
        (
            *(_compressor(each) for each in COMPRESSORS.values()),
            _setting(
                "strategy.compression_exchange",
                "all_gather",
                "everybody gathers what cannot be summed while encoded, and decodes n pieces",
            ),
            _setting(
                "strategy.compression_exchange", "requantize", "each hop decodes, adds and encodes again"
            ),
            *(
                _setting(
                    "strategy.activation_compression",
                    name,
                    f"activations between tensor parallel ranks and pipeline stages: {each.description}",
                    name=f"activations {name}",
                )
                for name, each in ACTIVATION_COMPRESSORS.items()
                if name != "none"
            ),
            _setting("strategy.compression_engine", "nic", "network cards encode and decode at line rate"),
            _setting(
                "strategy.compress_pull",
                True,
                "servers answer with encoded sums, too",
                name="compressed pull",
            ),
        ),
        f"{_SURVEYS}; each compressor's own paper",
    ),
    Dimension(
        "D8",
        "transfer scheduling",
        "When is a gradient sent, and with which others?",
        (
            _setting("strategy.overlap", False, "after the whole backward pass", name="none"),
            _setting(
                "strategy.overlap", True, "as soon as its bucket is full, while backward goes on", name="wfbp"
            ),
            _setting(
                "strategy.overlap_tensor",
                True,
                "tensor parallel exchanges in pieces beside the products they feed or follow",
                name="async_tp",
            ),
            Value(
                "double_buffer",
                "beside the whole next step: gradients are applied one step late",
                {_SYNC: "delayed", "strategy.delay": 1},
            ),
            _setting("strategy.fusion", "none", "every tensor by itself", name="fusion none"),
            _setting(
                "strategy.fusion",
                "size",
                "gradients travel in buckets of F bytes",
                "strategy.bucket_size",
                "strategy.first_bucket_size",
                name="fusion size(F)",
            ),
            _setting(
                "strategy.fusion",
                "time",
                "what has become ready within a cycle travels together",
                "strategy.cycle_time",
                name="fusion time(cycle)",
            ),
            _setting(
                "strategy.fusion",
                "merge_plan",
                "the merges after which the last exchange ends first",
                name="fusion merge_plan",
            ),
            Value("slice(P)", "gradients are cut into pieces", fields=("strategy.partition_size",)),
            _setting("strategy.order", "fifo", "in the order in which gradients become ready"),
            _setting("strategy.order", "priority_layer", "what the next forward needs first goes first"),
            _setting("strategy.order", "critical_path", "workers receive parameters in the order of need"),
            Value("credit(c)", "c bytes of pieces may be under way at a time", fields=("strategy.credit",)),
            _setting("strategy.negotiation", "none", "ranks know the order", name="negotiation none"),
            _setting(
                "strategy.negotiation",
                "coordinator",
                "one rank hears from all what is ready and answers all",
                "strategy.cycle_time",
                name="coordinator(cycle)",
            ),
            _setting("strategy.negotiation", "hier_coordinator", "the same up and down a tree of ranks"),
        ),
        "Zhang et al., Poseidon, ATC 2017; Li et al., PyTorch Distributed, VLDB 2020; Shi et al., MG-WFBP, "
        "INFOCOM 2019; Jayarajan et al., P3, MLSys 2019; Peng et al., ByteScheduler, SOSP 2019; Kurth et al. "
        "2018",
    ),
    Dimension(
        "D11",
        "physical topology",
        "Which links join hosts?",
        (
            _setting("cluster.fabric.kind", "single_switch", "one non-blocking switch"),
            _setting("cluster.fabric.kind", "leaf_spine", "two tiers, possibly oversubscribed"),
            _setting("cluster.fabric.kind", "fat_tree", "three tiers of k-port switches"),
            _setting(
                "cluster.fabric.kind", "rail_optimized", "the i-th network port of every host on one leaf"
            ),
            _setting("cluster.fabric.kind", "rail_only", "the i-th network port of every host on one switch"),
            _setting(
                "cluster.fabric.kind", "multi_plane", "a leaf-spine fabric of its own for the i-th port"
            ),
            _setting("cluster.fabric.kind", "torus", "neighbours in two or three dimensions"),
            _setting("cluster.fabric.kind", "ring", "two neighbours each"),
            _setting("cluster.fabric.kind", "hypercube", "one neighbour per dimension"),
            _setting("cluster.fabric.kind", "dragonfly", "groups of routers, every two joined"),
            _setting("cluster.fabric.kind", "bcube", "hosts forward; one switch per digit of their number"),
            _setting("cluster.fabric.kind", "dcell", "hosts forward; cells of cells, every two joined"),
            _setting(
                "cluster.fabric.kind", "bigraph", "two rows of switches, each joined to all of the other"
            ),
            _setting("cluster.fabric.kind", "graph", "an explicit list of edges"),
        ),
        "Al-Fares et al., SIGCOMM 2008; Wang et al., Rail-only, 2023",
    ),
    Dimension(
        "D12",
        "pipeline schedule",
        "In which order do stages work on micro-batches?",
        tuple(
            _setting(
                "strategy.schedule",
                name,
                each.description,
                *(("strategy.virtual_stages",) if each.chunks is None else ()),
                name=f"{name}(v)" if each.chunks is None else "",
            )
            for name, each in SCHEDULES.items()
        ),
        "; ".join(dict.fromkeys(each.source for each in SCHEDULES.values())),
    ),
    Dimension(
        "D13",
        "memory policy",
        "Which activations are kept for the backward pass?",
        (
            _setting("strategy.recompute", "none", "all"),
            _setting("strategy.recompute", "selective", "all but the attention core's, computed again"),
            _setting(
                "strategy.recompute",
                "alternate",
                "outputs of attention and of every second matrix product (torchtitan's selective op)",
            ),
            _setting("strategy.recompute", "full", "only the inputs of blocks; one more forward pass"),
            Value(
                "full(early stop)",
                "the same, but a block's last product does not run again (PyTorch without reentrance)",
                {"strategy.recompute": "full", "strategy.recompute_early_stop": True},
            ),
            Value(
                "layers(kinds)",
                "of some kinds of layers only the input; each runs forward again before its backward",
                fields=("strategy.recompute_layers",),
            ),
            Value(
                "offload_cpu",
                "optimiser state in host memory; gradients go down, parameters come up (ZeRO-Offload)",
                {"strategy.offload_optimizer": True},
            ),
            Value(
                "offload_nvme",
                "optimiser state on the hosts' disks, read and written beside the update (ZeRO-Infinity)",
                {"strategy.offload_optimizer": True, "strategy.offload_target": "nvme"},
            ),
            Value(
                "offload_parameters",
                "shards of parameters as well: each gather fetches them first (ZeRO-Infinity)",
                {
                    _STATE: "zero3",
                    "strategy.offload_optimizer": True,
                    "strategy.offload_parameters": True,
                },
                ("strategy.offload_target",),
            ),
            Value(
                "offload_activations",
                "activations in host memory between forward and backward",
                {"strategy.offload_activations": True},
                ("strategy.offload_blocks",),
            ),
            Value(
                "weight_stash",
                "the weights of every micro-batch in flight are kept for its backward",
                {"strategy.weight_stash": True},
            ),
        ),
        "Chen et al., 2016; Korthikanti et al., MLSys 2023",
    ),
    Dimension(
        "D14",
        "precision",
        "In which format is computed?",
        tuple(
            _setting("workload.dtype", dtype, description)
            for dtype, description in (
                ("fp32", "32-bit floating point"),
                ("tf32", "fp32 storage, 19-bit products on tensor cores"),
                ("fp16", "16-bit, with fp32 master weights"),
                ("bf16", "16-bit with the range of fp32, with fp32 master weights"),
                ("fp8", "8-bit products, with fp32 master weights"),
                ("fp4", "4-bit products, with fp32 master weights"),
                ("int8", "8-bit integers"),
            )
        ),
        "Micikevicius et al., Mixed Precision Training, ICLR 2018",
    ),
    Dimension(
        "D16",
        "batch",
        "How many samples make a step, and how are they cut?",
        (
            Value(
                "global batch",
                "fixed whatever the cluster: strong scaling",
                fields=("workload.global_batch_size",),
            ),
            Value(
                "batch per replica",
                "grows with the cluster: weak scaling",
                fields=("workload.batch_per_device",),
            ),
            Value(
                "micro-batch",
                "the part of a replica's batch computed at a time; gradients of several are added up",
                fields=("strategy.micro_batch_size",),
            ),
            Value(
                "optimizer",
                "what an update reads, writes and keeps (lamb also takes norms of layers)",
                fields=("workload.optimizer",),
            ),
            Value(
                "convergence",
                "epochs to a target by batch, staleness, tau and compression, which the user knows: adds time"
                " and cost to the target (run --convergence FILE)",
                fields=("scenario.convergence",),
            ),
        ),
        f"{_SURVEYS}; Goyal et al. 2017; You et al., LAMB, ICLR 2020; Shallue et al., JMLR 2019",
    ),
    Dimension(
        "D17",
        "heterogeneity",
        "How do devices differ, and who is slow when?",
        (
            Value("mixed hosts", "a cluster of several host types", fields=("cluster.hosts",)),
            Value(
                "jitter",
                "random compute times with a given coefficient of variation",
                fields=("perturbation.jitter",),
            ),
            Value(
                "lognormal speeds",
                "every rank has a speed of its own with a given coefficient of variation",
                fields=("perturbation.speed_spread",),
            ),
            Value(
                "markov",
                "ranks turn slow and recover with given chances per step (transient stragglers)",
                fields=(
                    "perturbation.slow_probability",
                    "perturbation.recovery_probability",
                    "perturbation.slow_factor",
                ),
            ),
            Value("slow ranks", "some ranks are slower by a factor", fields=("perturbation.slow_ranks",)),
        ),
        _SURVEYS,
    ),
)
