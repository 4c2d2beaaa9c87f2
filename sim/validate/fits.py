"""What a row leaves open is chosen so that its job fits: somebody ran it.

Sharding, recomputation, the micro-batch and the degrees of parallelism that a row does not state are first
the framework's default. Where the model of memory says that this is more than the device has, the next of
:func:`_ways` that fits is taken; if none does, the default stays and the prediction says how much memory it
takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sim.errors import ClusterloomError
from sim.lowering.plan import memory_by_stage
from sim.validate.boards import BOARDS, board_key
from sim.validate.frameworks import framework_of

if TYPE_CHECKING:
    from sim.spec import Calibration
    from sim.validate.runs_loader import Run

TOLERANCE = 1.1
"""Memory over the device's that the model is allowed to be wrong by; the worst run of the calibration split
that no other memory helped takes 1.06."""
OPEN = ("shard", "recompute", "mbs")
"""Columns that are chosen here where they are open."""
DEGREES = ("tp", "pp", "dp", "cp", "ep")
MODEL_PARALLEL = ("mega", "nemo")
"""Frameworks, by the beginning of their key, that cut the model before they shard its weights."""


def made_to_fit(run: Run, calibration: Calibration) -> Run:
    """The run with what it leaves open changed until it fits into memory, as little as possible."""
    if not set(OPEN) & set(run.assumed) or _fits(run, calibration, refused=True):
        return run
    board = BOARDS.get(board_key(run.row.text("gpu")) or "")
    if board and board.chip_link and "recompute" in run.assumed:
        return _spilled(run, calibration)
    return next((other for other in _ways(run) if _fits(other, calibration)), run)


def _spilled(run: Run, calibration: Calibration) -> Run:
    """The run with as few blocks as fit whose activations go to the memory of the processor beside the GPU.

    NVIDIA's recipes for Grace boards set ``cpu_offloading_num_layers`` so (Megatron-Bridge,
    scripts/performance/configs/llama: 20 to 92 of 80 and 126 layers): what is too much for the device need
    not be computed again. If not even all blocks suffice, the run stays as it is.
    """
    few, many = 1, run.workload().num_blocks
    if not _fits(_offloading(run, many), calibration, tolerance=1.0):
        return run
    while few < many:
        middle = (few + many) // 2
        fits = _fits(_offloading(run, middle), calibration, tolerance=1.0)
        few, many = (few, middle) if fits else (middle + 1, many)
    return _offloading(run, many)


def _offloading(run: Run, blocks: int) -> Run:
    strategy = run.strategy.model_copy(update={"offload_activations": True, "offload_blocks": blocks})
    return replace(run, strategy=strategy, assumed=(*run.assumed, "offload_activations"))


def _fits(run: Run, calibration: Calibration, *, refused: bool = False, tolerance: float = TOLERANCE) -> bool:
    """Whether a run fits; ``refused`` is the answer if a rule refuses it, which the prediction then says."""
    try:
        needed = max(sum(stage.values()) for stage in memory_by_stage(run.scenario(calibration)))
    except ClusterloomError:
        return refused
    return needed <= tolerance * run.cluster.main_device.capacity


def _ways(run: Run) -> Iterator[Run]:
    """Other choices, cheapest first."""
    cut = list(_cut(run)) if not any(run.row.text(name) for name in DEGREES) else []
    if run.framework.startswith(MODEL_PARALLEL):
        yield from cut
    yield from _sharded(run)
    if not run.framework.startswith(MODEL_PARALLEL):
        yield from cut


def _policies(run: Run) -> list[str]:
    own: str = run.strategy.recompute
    return [own] + ["full"] * ("recompute" in run.assumed and own != "full")


def _sharded(run: Run) -> Iterator[Run]:
    """Optimiser states sharded, recomputation, parameters sharded, both; then with a micro-batch of one."""
    strategy, free = run.strategy, set(run.assumed)
    states, replicas = [strategy.state], (strategy.dp or 1) * strategy.cp
    if "shard" in free and replicas > 1:
        states += [state for state in ("zero1", "zero3") if state > strategy.state or not strategy.sharding]
    ways: list[dict[str, Any]] = [
        {"state": state, "recompute": policy}
        for group in (states[:2], states[2:])
        for policy in _policies(run)
        for state in group
    ]
    for way in ways[1:]:
        yield _changed(run, way)
    if "mbs" in free and (run.strategy.micro_batch_size or 1) > 1:
        for way in ways:
            yield _changed(run, {**way, "micro_batch_size": 1})


def _cut(run: Run) -> Iterator[Run]:
    """The model cut, into as few parts as fit: experts first, then matrices inside a host, then stages."""
    devices, blocks = run.strategy.dp or 1, int(run.params.get("num_layers") or 0)
    experts = int(run.params.get("num_experts") or 0)
    widths = [tp for tp in (1, 2, 4, 8) if tp <= run.cluster.devices_per_host[0]]
    depths = [pp for pp in (2, 4, 8, 16, 32, 64) if 2 * pp <= blocks]
    spread = [ep for ep in (8, 16, 32, 64) if experts and experts % ep == 0]
    parts = [(1, 1, ep) for ep in spread]
    parts += [(tp, 1, max(spread, default=1)) for tp in widths[1:]]
    parts += [(widths[-1], pp, max(spread, default=1)) for pp in depths]
    for tp, pp, ep in parts:
        replicas = devices // (tp * pp)
        if devices % (tp * pp) or replicas * tp % ep:
            continue
        for policy in _policies(run):
            yield _changed(run, {**_degrees(run, tp, pp, ep, replicas), "recompute": policy})


def _degrees(run: Run, tp: int, pp: int, ep: int, replicas: int) -> dict[str, Any]:
    """Fields of a strategy of these degrees; experts lie whole on tensor parallel ranks."""
    state = "zero1" if "shard" in run.assumed else run.strategy.state
    fields: dict[str, Any] = {
        "tp": tp, "pp": pp, "dp": replicas, "ep": ep, "expert_tp": 1 if ep > 1 and tp > 1 else None,
        "sequence_parallel": tp > 1 and (ep > 1 or framework_of(run.row).sequence_parallel),
        "state": state if replicas > 1 else "replicated",
    }  # fmt: skip
    return {**fields, "micro_batch_size": 1} if "mbs" in run.assumed else fields


def _changed(run: Run, fields: dict[str, Any]) -> Run:
    """The run with another strategy; the batch stays, so that there are more micro-batches."""
    if fields["state"] != run.strategy.state:  # what only the other placement knows
        fields = {**dict.fromkeys(("shard_ranks", "gather_bits", "backward_shard_ranks")), **fields}
        fields["shard_reduction"] = "reduce_scatter"
    strategy = run.strategy.model_copy(update=fields)
    each = (strategy.micro_batch_size or 1) * (strategy.dp or 1)
    cut = tuple(name for name in ("tp", "pp", "ep") if getattr(strategy, name) != getattr(run.strategy, name))
    return replace(
        run,
        strategy=strategy,
        micro_batches=max(1, int(run.params["global_batch_size"]) // each),
        assumed=(*run.assumed, *cut),
    )
