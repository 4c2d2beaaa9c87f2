"""One training step: forwards and backwards of all stages in schedule order, woven with communication.

The walk is stage by stage in an order in which every task is emitted after its predecessors, so that task
order is a topological order and program streams issue in schedule order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim.graph.builder import Block, Ends
from sim.graph.execution import Cause
from sim.lowering.context import context_lowering, is_split
from sim.lowering.emitter import Emitter
from sim.lowering.plan import Plan
from sim.lowering.schedule import SCHEDULES, Action
from sim.lowering.state.base import StateLowering
from sim.models.collectives import plan as collective_plan
from sim.spec.layer import Gemm, Layer

FloatArray = npt.NDArray[np.float64]


def request_families(plan: Plan) -> None:
    """Families of tensor, expert and pipeline parallelism."""
    strategy, layout = plan.strategy, plan.layout
    if strategy.tp > 1:
        groups = layout.groups("tp")
        operations = ("all_gather", "reduce_scatter") if strategy.sequence_parallel else ("all_reduce",)
        for operation in operations:
            plan.request_by_size(f"tp_{operation}", groups, operation)
    context = context_lowering(strategy)
    if context is not None:
        context.request_families(plan)
    if strategy.ep > 1:
        plan.request_collective("ep", layout.expert_groups(strategy.ep), "all_to_all", "direct")
    if strategy.pp > 1:
        ring = layout.groups("pp")
        wrap = strategy.virtual_stages > 1
        ahead = np.concatenate(
            [ring[:, [s, (s + 1) % strategy.pp]] for s in range(strategy.pp - (0 if wrap else 1))]
        )
        phases = collective_plan("send", "direct", 2)
        sent = ("send", "direct")
        plan.request("pp_forward", ahead, phases, asymmetric=True, collective=sent)
        plan.request("pp_backward", ahead[:, ::-1], phases, asymmetric=True, collective=sent)
        if plan.tied_elements:
            plan.request_collective("embedding", ring[:, [0, -1]], "all_reduce", "ring")


class _Hop(NamedTuple):
    """Activations or gradients on their way to a stage that has not posted its receive yet."""

    direction: str
    source: int
    target: int
    action: Action
    elements: float
    ends: Ends


class StepLowering:
    """Emits training steps.

    Parameters
    ----------
    emitter : Emitter
    state : StateLowering
        Where parameters and optimiser state live: gradient exchange and update.
    """

    def __init__(self, emitter: Emitter, state: StateLowering) -> None:
        self.emitter, self.state = emitter, state
        self.plan = emitter.plan
        self.strategy = self.plan.strategy
        self.layers = self.plan.workload.layers
        self.bytes = self.plan.element_bytes
        self.virtual = self.strategy.pp * self.strategy.virtual_stages
        self.blocks: dict[tuple[str, int, int], Block] = {}
        # Where a message is a rendezvous, a stage posts its next receive when it has computed, and 1F1B
        # computes no further before its own sends have arrived (torch.distributed.pipelining).
        self.rendezvous = self.plan.messages and self.strategy.pp > 1
        self.hops: list[_Hop] = []
        self.computed: dict[int, Ends] = {}
        self.sent: dict[int, Ends] = {}
        context = context_lowering(self.strategy)
        self.context = context(emitter) if context else None
        self.attends = [context is not None and is_split(layer) for layer in self.layers]
        self.shared_input = [_shared_input(layer) for layer in self.layers]

    def emit(self, step: int) -> None:
        """Emit all forwards and backwards of one step."""
        self.step = step
        self.activations: dict[tuple[int, int], Ends] = {}
        self.gradients: dict[tuple[int, int], Ends] = {}
        self.done: dict[tuple[int, int], Ends] = {}
        schedule = SCHEDULES[self.strategy.schedule if self.strategy.pp > 1 else "1f1b"]
        orders = [
            schedule(s, self.strategy.pp, self.plan.micro_batches, self.strategy.virtual_stages)
            for s in range(self.strategy.pp)
        ]
        position = [0] * len(orders)
        while any(p < len(order) for p, order in zip(position, orders, strict=True)):
            progressed = False
            for stage, order in enumerate(orders):
                while position[stage] < len(order) and self._ready(stage, order[position[stage]]):
                    self._action(stage, order[position[stage]])
                    position[stage] += 1
                    progressed = True
                    self._meet([o[p] if p < len(o) else None for o, p in zip(orders, position, strict=True)])
            assert progressed, "a pipeline schedule must not wait for itself"

    def _virtual_stage(self, stage: int, chunk: int) -> int:
        return chunk * self.strategy.pp + stage

    def _ready(self, stage: int, action: Action) -> bool:
        virtual = self._virtual_stage(stage, action.chunk)
        key = (virtual, action.micro_batch)
        if self._waits_for_sends and any(hop.source == stage for hop in self.hops):
            return False
        if action.kind == "F":
            return virtual == 0 or key in self.activations
        return (virtual == self.virtual - 1 and key in self.done) or key in self.gradients

    def _action(self, stage: int, action: Action) -> None:
        if action.kind == "F":
            self._forward(stage, action)
        else:
            self._backward(stage, action)

    # -- forward ------------------------------------------------------------------------------------

    def _forward(self, stage: int, action: Action) -> None:
        virtual, m = self._virtual_stage(stage, action.chunk), action.micro_batch
        ends = self.activations.pop((virtual, m), {})
        if virtual == 0:
            ends = self.state.input_ready(stage, self.step, m)
            ends = self.state.samples_ready(stage, self.step, m, ends)
        ends = self._after_sends(stage, ends)
        ends = self._repeated(
            action, virtual, ends, lambda entry: self._chunk_forward(stage, virtual, m, entry)
        )
        self.done[virtual, m] = self.computed[stage] = ends
        if virtual + 1 < self.virtual:
            elements = self.layers[self.plan.chunks[virtual][-1]].output_elements
            following = (stage + 1) % self.strategy.pp
            target = Action("F", m, (virtual + 1) // self.strategy.pp)
            self._hand_on(_Hop("forward", stage, following, target, elements, ends))

    def _chunk_forward(self, stage: int, virtual: int, m: int, ends: Ends) -> Ends:
        for index in self.plan.chunks[virtual]:
            ends = self.state.before_layer(stage, virtual, index, self.step, m, ends, backward=False)
            ends = self._layer_forward(stage, index, m, ends, Cause.FORWARD)
        return ends

    def _layer_forward(self, stage: int, index: int, m: int, ends: Ends, cause: Cause) -> Ends:
        layer, classes = self.layers[index], self.emitter.stage_classes[stage]
        name = f"{layer.name}.{'forward' if cause is Cause.FORWARD else 'recompute'}"
        if self.strategy.sequence_parallel:
            ends = self._tensor("all_gather", stage, self.shared_input[index], layer.name, m, ends)
        ends = self._expert(stage, layer, m, ends, "dispatch")
        costs = {c: self.emitter.cost(c) for c in classes}
        core = self._cores(index, {c: costs[c].attention_forward_s for c in classes})
        seconds = {c: float(costs[c].forward_s[index]) - core.get(c, 0.0) for c in classes}
        ends = self.emitter.compute(classes, seconds, name, cause, ends, micro_batch=m, step=self.step)
        if cause is Cause.FORWARD:
            own = {c: tasks for c, tasks in ends.items() if seconds[c] > 0}
            self.state.after_forward(index, self.step, m, own)
        if core and self.context:
            ends = self.context.forward(stage, layer, core, ends, cause, micro_batch=m, step=self.step)
        ends = self._expert(stage, layer, m, ends, "combine")
        if layer.tensor_all_reduce:
            ends = self._tensor(self._reduction, stage, layer.output_elements, layer.name, m, ends)
        return ends

    # -- backward -----------------------------------------------------------------------------------

    def _backward(self, stage: int, action: Action) -> None:
        virtual, m = self._virtual_stage(stage, action.chunk), action.micro_batch
        ends = self.gradients.pop((virtual, m), None) or self.done[virtual, m]
        ends = self._after_sends(stage, ends)
        ends = self._repeated(
            action, virtual, ends, lambda entry: self._chunk_backward(stage, virtual, m, entry)
        )
        self.done.pop((virtual, m))
        self.computed[stage] = ends
        if virtual > 0:
            elements = self.layers[self.plan.chunks[virtual][0]].input_elements
            previous = (stage - 1) % self.strategy.pp
            target = Action("B", m, (virtual - 1) // self.strategy.pp)
            self._hand_on(_Hop("backward", stage, previous, target, elements, ends))

    def _chunk_backward(self, stage: int, virtual: int, m: int, ends: Ends) -> Ends:
        for block in reversed(self._blocks(self.plan.chunks[virtual])):
            if self.strategy.recompute == "full":
                for index in block:
                    ends = self.state.before_layer(stage, virtual, index, self.step, m, ends, backward=True)
                    if self.layers[index].kind not in _KEPT:
                        ends = self._layer_forward(stage, index, m, ends, Cause.RECOMPUTE)
            for index in reversed(block):
                ends = self.state.before_layer(stage, virtual, index, self.step, m, ends, backward=True)
                ends, weights = self._layer_backward(stage, index, m, ends)
                self.state.after_backward(stage, virtual, index, self.step, m, weights)
        return ends

    def _repeated(self, action: Action, virtual: int, entry: Ends, emit: Callable[[Ends], Ends]) -> Ends:
        """Emit an action, or copy that of an earlier micro-batch which differs in its number only."""
        if not self.state.repeats(action.kind, action.micro_batch):
            return emit(entry)
        key = (action.kind, virtual, self.step)
        block = self.blocks.get(key)
        if block is not None and _alike(block.entry, entry):
            return self.emitter.builder.repeat(block, entry, action.micro_batch)
        start = self.emitter.builder.num_tasks
        ends = emit(entry)
        self.blocks[key] = self.emitter.builder.block(start, entry, ends)
        return ends

    def _blocks(self, chunk: list[int]) -> list[list[int]]:
        blocks: list[list[int]] = []
        for index in chunk:
            if not blocks or self.layers[blocks[-1][0]].block != self.layers[index].block:
                blocks.append([])
            blocks[-1].append(index)
        return blocks

    def _layer_backward(self, stage: int, index: int, m: int, ends: Ends) -> tuple[Ends, Ends]:
        """Returns what the previous layer's backward and what the gradients wait for."""
        layer, classes = self.layers[index], self.emitter.stage_classes[stage]
        costs = {c: self.emitter.cost(c) for c in classes}
        options = {"micro_batch": m, "step": self.step}
        if self.strategy.recompute == "selective":
            repeated = {c: costs[c].recompute_selective_s for c in classes}
            ends = self._recompute_core(stage, index, repeated, ends, options)
        gathers, shared = self.strategy.sequence_parallel, self.shared_input[index]
        if gathers and layer.tensor_all_reduce:
            ends = self._tensor("all_gather", stage, layer.output_elements, layer.name, m, ends)
        ends = self._expert(stage, layer, m, ends, "combine.backward")
        core = self._cores(index, {c: costs[c].attention_backward_s for c in classes})
        if core and self.context:
            ends = self.context.backward(stage, layer, core, ends, **options)
        inputs = {c: float(costs[c].backward_input_s[index]) - core.get(c, 0.0) for c in classes}
        weights = {c: float(costs[c].backward_weight_s[index]) for c in classes}
        name = f"{layer.name}.backward"
        if not (self.strategy.tp > 1 and shared) and not layer.expert_elements:
            both = {c: inputs[c] + weights[c] for c in classes}
            ends = self.emitter.compute(classes, both, name, Cause.BACKWARD, ends, **options)
            return ends, ends
        again = ends
        if gathers:  # only a shard of the input was kept; it is gathered again beside the input gradients
            again = self._tensor("all_gather", stage, shared, layer.name, m, ends)
        ends = self.emitter.compute(classes, inputs, f"{name}.input", Cause.BACKWARD, ends, **options)
        before_weights = {c: [*ends[c], *again[c]] for c in classes} if gathers else ends
        ends = self._expert(stage, layer, m, ends, "dispatch.backward")
        ends = self._tensor(self._reduction, stage, shared, layer.name, m, ends)
        gradients = self.emitter.compute(
            classes, weights, f"{name}.weight", Cause.BACKWARD, before_weights, **options
        )
        return ends, gradients

    def _cores(self, index: int, seconds: dict[int, FloatArray]) -> dict[int, float]:
        """Time of a layer's attention core by class, where it is emitted by itself; else empty."""
        return {c: float(times[index]) for c, times in seconds.items()} if self.attends[index] else {}

    def _recompute_core(
        self, stage: int, index: int, times: dict[int, FloatArray], ends: Ends, options: dict[str, int]
    ) -> Ends:
        """Selective recomputation: the attention core's forward once more, with its exchange."""
        layer, core = self.layers[index], {c: float(array[index]) for c, array in times.items()}
        if self.context and self.attends[index] and any(core.values()):
            return self.context.forward(stage, layer, core, ends, Cause.RECOMPUTE, **options)
        classes = self.emitter.stage_classes[stage]
        return self.emitter.compute(
            classes, core, f"{layer.name}.recompute", Cause.RECOMPUTE, ends, **options
        )

    # -- communication ------------------------------------------------------------------------------

    @property
    def _reduction(self) -> str:
        return "reduce_scatter" if self.strategy.sequence_parallel else "all_reduce"

    def _tensor(self, operation: str, stage: int, elements: float, name: str, m: int, ends: Ends) -> Ends:
        size = elements * self.plan.local_samples * self.bytes
        if not size or self.strategy.tp == 1:
            return ends
        classes = self.emitter.stage_classes[stage]
        family = self.plan.family_of(f"tp_{operation}", operation, size)
        return self.emitter.collective(
            family, classes, size, f"{name}.{operation}", Cause.TENSOR_COMM, ends, stream="tp",
            micro_batch=m, step=self.step,
        )  # fmt: skip

    def _expert(self, stage: int, layer: Layer, m: int, ends: Ends, part: str) -> Ends:
        if not layer.expert_elements or self.strategy.ep == 1:
            return ends
        size = layer.expert_elements * self.plan.local_samples * self.bytes
        if self.strategy.sequence_parallel:  # each tensor parallel rank routes the tokens it holds
            size /= self.strategy.tp
        return self.emitter.collective(
            "ep", self.emitter.stage_classes[stage], size, f"{layer.name}.{part}", Cause.EXPERT_COMM, ends,
            stream="ep", micro_batch=m, step=self.step,
        )  # fmt: skip

    def _hand_on(self, hop: _Hop) -> None:
        """Send at once, or when the receiver is ready where that is a rendezvous."""
        if self.rendezvous:
            self.hops.append(hop)
        else:
            self._deliver(hop, hop.ends)

    def _meet(self, upcoming: list[Action | None]) -> None:
        """Send what the receivers' next actions wait for, after what they have computed last."""
        ready = [hop for hop in self.hops if upcoming[hop.target] == hop.action]
        self.hops = [hop for hop in self.hops if hop not in ready]
        for hop in ready:
            posted = self.computed.get(hop.target, {})
            arrived = self._deliver(hop, {**posted, **hop.ends})
            tasks = [task for ends in arrived.values() for task in ends]
            held = self.sent.setdefault(hop.source, {})
            for index in self.emitter.stage_classes[hop.source]:
                held[index] = [*held.get(index, []), *tasks]

    def _deliver(self, hop: _Hop, ends: Ends) -> Ends:
        m, virtual = hop.action.micro_batch, self._virtual_stage(hop.target, hop.action.chunk)
        arrived = self._send(hop.direction, hop.source, hop.target, hop.elements, m, ends)
        (self.activations if hop.action.kind == "F" else self.gradients)[virtual, m] = arrived
        return arrived

    @property
    def _waits_for_sends(self) -> bool:
        return self.rendezvous and self.strategy.schedule == "1f1b"

    def _after_sends(self, stage: int, ends: Ends) -> Ends:
        """Add the stage's own sends, where it waits for them."""
        sent = self.sent.pop(stage, {})
        if not self._waits_for_sends or not sent:
            return ends
        return {c: [*ends.get(c, []), *sent.get(c, [])] for c in self.emitter.stage_classes[stage]}

    def _send(self, direction: str, stage: int, target: int, elements: float, m: int, ends: Ends) -> Ends:
        """Point-to-point activations or gradients; with sequence parallelism each rank sends its part."""
        size = elements * self.plan.local_samples * self.bytes
        if self.strategy.tp > 1 and self.strategy.sequence_parallel:
            size /= self.strategy.tp
        family = f"pp_{direction}"
        sent = self.emitter.collective(
            family, self.emitter.stage_classes[stage], size, f"send.{direction}", Cause.PIPELINE_COMM, ends,
            stream=(f"pp_send_{direction}", f"pp_receive_{direction}"), micro_batch=m, step=self.step,
        )  # fmt: skip
        sender_of = self.emitter.sender_of[family]
        return {receiver: sent[sender_of[receiver, stage]] for receiver in self.emitter.stage_classes[target]}


_KEPT = ("embedding", "head")
"""Layers outside the checkpointed blocks: full recomputation does not run them again (Megatron-LM)."""


def _shared_input(layer: Layer) -> float:
    """Elements, per sample, of the input that column-parallel products share and whose gradient they sum.

    The output projection is column-parallel without a row-parallel product behind it.
    """
    if layer.tensor_all_reduce:
        return layer.input_elements
    return sum(op.rows * op.k for op in layer.ops if isinstance(op, Gemm) and op.split == "vocabulary")


def _alike(a: Ends, b: Ends) -> bool:
    """Whether two sets of ends have the same shape."""
    return a.keys() == b.keys() and all(len(a[index]) == len(b[index]) for index in a)
