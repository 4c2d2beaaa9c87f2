"""One training step: forwards and backwards of all stages in schedule order, woven with communication.

The walk is stage by stage in an order in which every task is emitted after its predecessors, so that task
order is a topological order and program streams issue in schedule order.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import numpy.typing as npt

from sim.graph.builder import Block, Ends, source
from sim.graph.execution import Cause
from sim.lowering.activations import ActivationCode, CodedExchange
from sim.lowering.context import context_lowering, is_split
from sim.lowering.emitter import Emitter
from sim.lowering.ends import joined, pack, same_shape, unpack
from sim.lowering.halo import Halo
from sim.lowering.hop import Hop, noted
from sim.lowering.parked import ParkedActivations
from sim.lowering.state.base import StateLowering
from sim.lowering.tensor_overlap import TensorOverlap
from sim.models.checkpointing import KEPT_KINDS
from sim.models.schedules import Action, Kind, Slot
from sim.spec.layer import Gemm, Layer

FloatArray = npt.NDArray[np.float64]


Emission = Generator[None, None, list[Ends]]
"""Emits an action layer by layer; a slot of two actions takes turns. Returns the ends it hands on and, from
a gradient of the input, the ends that the gradients of the weights wait for."""


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
        self.schedule = self.plan.schedule
        self.layers = self.plan.workload.layers
        self.bytes = self.plan.element_bytes
        self.cut = TensorOverlap(self.strategy, self._tensor)
        self.code = ActivationCode(emitter)
        self.virtual = len(self.plan.chunks)
        self.blocks: dict[tuple[object, ...], tuple[Block, list[int]]] = {}
        # Where a message is a rendezvous, a stage posts its next receive when it has computed, and 1F1B
        # computes no further before its own sends have arrived (torch.distributed.pipelining).
        self.rendezvous = self.plan.messages and self.strategy.pp > 1
        self.hops: list[Hop] = []
        self.computed: dict[int, Ends] = {}
        self.sent: dict[int, Ends] = {}
        context = context_lowering(self.strategy)
        self.context = context(emitter) if context else None
        self.halo = Halo(emitter) if self.strategy.is_spatial else None
        self.parked = ParkedActivations(emitter) if self.strategy.offload_activations else None
        self.attends = [context is not None and is_split(layer) for layer in self.layers]
        self.shared_input = [_shared_input(layer) for layer in self.layers]
        # Steps by which each forward is ahead of its period, by (model chunk, micro-batch).
        self.ahead = {
            (self._virtual_stage(stage, action.chunk), action.micro_batch): action.ahead
            for stage, order in enumerate(self.plan.orders)
            for slot in order
            for action in slot
            if action.ahead
        }

    def emit(self, step: int) -> None:
        """Emit all forwards and backwards of one step."""
        self.step = step
        self.activations: dict[tuple[int, int], Ends] = {}
        self.gradients: dict[tuple[int, int], Ends] = {}
        self.done: dict[tuple[int, int], Ends] = {}
        self.awaited: dict[tuple[int, int], Ends] = {}
        self.split: dict[tuple[int, int], Ends] = {}
        orders = self.plan.orders
        position = [0] * len(orders)
        while any(p < len(order) for p, order in zip(position, orders, strict=True)):
            progressed = False
            for stage, order in enumerate(orders):
                while position[stage] < len(order) and self._ready(stage, order[position[stage]]):
                    self._slot(stage, order[position[stage]])
                    position[stage] += 1
                    progressed = True
                    if self.hops:
                        self._meet(
                            [o[p] if p < len(o) else None for o, p in zip(orders, position, strict=True)]
                        )
            assert progressed, "a pipeline schedule must not wait for itself"

    def _virtual_stage(self, stage: int, chunk: int) -> int:
        return self.schedule.virtual_stage(stage, chunk, self.strategy.pp)

    def _ready(self, stage: int, slot: Slot) -> bool:
        if self._waits_for_sends and any(hop.source == stage for hop in self.hops):
            return False
        return all(self._has_input(stage, action) for action in slot)

    def _has_input(self, stage: int, action: Action) -> bool:
        virtual = self._virtual_stage(stage, action.chunk)
        key = (virtual, action.micro_batch)
        if action.kind == "F":
            return virtual == 0 or key in self.activations or self._iterations_back(virtual, action) > 0
        if action.kind in "BI":
            return (virtual == self.virtual - 1 and key in self.done) or key in self.gradients
        return True  # the gradients of the weights and the update follow in the rank's own order

    def _iterations_back(self, virtual: int, action: Action) -> int:
        """How many periods before its own a forward's input was computed (schedules without a flush)."""
        return self.ahead.get((virtual - 1, action.micro_batch), 0) - action.ahead if virtual else 0

    def _holder(self, virtual: int, action: Action) -> tuple[int, int]:
        """Stage, and model chunk of it, that has a virtual stage of an action's replica."""
        places = self.schedule.holders(virtual, self.strategy.pp)
        return places[action.chunk if len(places) > 1 else 0]

    # -- one slot -----------------------------------------------------------------------------------

    def _slot(self, stage: int, slot: Slot) -> None:
        if slot[0].kind == "U":
            if self.plan.schedule_facts.update_delay:
                self.state.place_update(stage, self.step)
            return  # without delay it follows all gradients of the step
        entries = [self._entry(stage, action) for action in slot]
        entries[0] = self._after_sends(stage, entries[0])
        exits = self._repeated(stage, slot, entries)
        if len(slot) == 2:
            for action, ends in zip(slot, exits, strict=True):
                self._conclude(stage, action, [ends])
        else:
            self._conclude(stage, slot[0], exits)

    def _entry(self, stage: int, action: Action) -> Ends:
        """What an action waits for."""
        virtual, m = self._virtual_stage(stage, action.chunk), action.micro_batch
        if action.kind == "W":
            return self.split.pop((virtual, m))
        if action.kind != "F":
            ends = self.gradients.pop((virtual, m), None) or self.done[virtual, m]
        elif virtual == 0:
            return self.state.samples_ready(stage, self.step, m, self.state.input_ready(stage, self.step, m))
        elif back := self._iterations_back(virtual, action):
            ends = self._await(stage, (virtual, m), back)
        else:
            ends = self.activations.pop((virtual, m), {})
        return self._decoded(stage, virtual, action, ends)

    def _decoded(self, stage: int, virtual: int, action: Action, ends: Ends) -> Ends:
        """What came from another stage is decoded when this one gets to it."""
        other = virtual + (-1 if action.kind == "F" else 1)
        if self.code.plain or not 0 <= other < self.virtual or self._holder(other, action)[0] == stage:
            return ends
        chunk = self.plan.chunks[other]
        elements = self.layers[chunk[0]].input_elements
        if action.kind == "F":
            elements = self.layers[chunk[-1]].output_elements
        coded = self.code.hop(elements, micro_batch=action.micro_batch, step=self.step)
        return coded.decode(self.emitter.stage_classes[stage], ends)

    def _await(self, stage: int, key: tuple[int, int], back: int) -> Ends:
        """Wait for activations that arrived in an earlier period; they may be emitted only later on."""
        known = self.activations.pop(key, None)
        begin: Ends = {
            index: [
                self.emitter.builder.control(
                    "arrived", device=self.emitter.device_row[index], micro_batch=key[1], step=self.step
                )
            ]
            for index in self.emitter.stage_classes[stage]
        }
        if known is None:
            self.awaited[key] = begin
        else:
            self._link(begin, known, back)
        return begin

    def _link(self, begin: Ends, arrived: Ends, back: int) -> None:
        for index, tasks in begin.items():
            for task in tasks:
                for end in arrived.get(index, ()):
                    self.emitter.builder.edge(source(task), source(end), back)

    def _repeated(self, stage: int, slot: Slot, entries: list[Ends]) -> list[Ends]:
        """Emit a slot, or copy that of earlier micro-batches which differs in their numbers only."""
        virtual = [self._virtual_stage(stage, action.chunk) for action in slot]
        alike = all(
            self.state.repeats(action.kind, stage, place, action.micro_batch)
            for action, place in zip(slot, virtual, strict=True)
        )
        if not alike or self.parked:
            return self._emitted(stage, slot, entries)
        key = (*(action.kind for action in slot), *virtual, stage, self.step)
        known, entry = self.blocks.get(key), pack(entries)
        builder, numbers = self.emitter.builder, [action.micro_batch for action in slot]
        if known is not None and same_shape(known[0].entry, entry):
            return unpack(builder.repeat(known[0], entry, dict(zip(known[1], numbers, strict=True))))
        start = builder.num_tasks
        exits = self._emitted(stage, slot, entries)
        self.blocks[key] = builder.block(start, entry, pack(exits)), numbers
        return exits

    def _emitted(self, stage: int, slot: Slot, entries: list[Ends]) -> list[Ends]:
        """Emit a slot; the layers of two actions alternate, so that one computes while the other sends."""
        running = [self._emission(stage, a, e) for a, e in zip(slot, entries, strict=True)]
        results: list[list[Ends]] = [[] for _ in running]
        open_ones = dict(enumerate(running))
        while open_ones:
            for number, emission in list(open_ones.items()):
                try:
                    next(emission)
                except StopIteration as stop:
                    results[number] = stop.value
                    del open_ones[number]
        return [ends for each in results for ends in each]

    def _emission(self, stage: int, action: Action, ends: Ends) -> Emission:
        virtual, m = self._virtual_stage(stage, action.chunk), action.micro_batch
        if action.kind == "F":
            return self._chunk_forward(stage, virtual, m, ends)
        if action.kind == "W":
            return self._chunk_weights(stage, virtual, m, ends)
        return self._chunk_backward(stage, virtual, m, ends, split=action.kind == "I")

    def _conclude(self, stage: int, action: Action, exits: list[Ends]) -> None:
        """Remember what an action has done and hand its result on."""
        virtual, m = self._virtual_stage(stage, action.chunk), action.micro_batch
        ends = self.computed[stage] = exits[0]
        if action.kind == "W":
            return
        layers = self.plan.chunks[virtual]
        if action.kind == "F":
            self.done[virtual, m] = ends
            following, elements = virtual + 1, self.layers[layers[-1]].output_elements
        else:
            self.done.pop((virtual, m), None)
            if action.kind == "I":
                self.split[virtual, m] = exits[1]
            following, elements = virtual - 1, self.layers[layers[0]].input_elements
        if 0 <= following < self.virtual:
            target, chunk = self._holder(following, action)
            if target != stage:
                coded = self.code.hop(elements, micro_batch=m, step=self.step)
                ends = coded.encode(self.emitter.stage_classes[stage], ends)
            kind: Kind = "F" if action.kind == "F" else "B"
            self._hand_on(Hop(Action(kind, m, chunk, action.ahead), stage, target, elements, ends))

    # -- forward ------------------------------------------------------------------------------------

    def _chunk_forward(self, stage: int, virtual: int, m: int, ends: Ends) -> Emission:
        for index in self.plan.chunks[virtual]:
            ends = self.state.before_layer(stage, virtual, index, self.step, m, ends, backward=False)
            ends = yield from self._layer_forward(stage, virtual, index, m, ends, Cause.FORWARD)
            if self.parked:
                self.parked.leave(stage, index, m, self.step, ends)
            yield
        return [ends]

    def _layer_forward(
        self, stage: int, virtual: int, index: int, m: int, ends: Ends, cause: Cause
    ) -> Generator[None, None, Ends]:
        layer, classes = self.layers[index], self.emitter.stage_classes[stage]
        name = f"{layer.name}.{'forward' if cause is Cause.FORWARD else 'recompute'}"
        beside: Ends = {}
        if self.strategy.sequence_parallel:
            ends, beside = self.cut.begin("all_gather", stage, self.shared_input[index], layer, m, ends)
        if layer.tensor_all_reduce:
            scattered = self.cut.rest(self._reduction, stage, layer.output_elements, layer, m, ends)
            beside = joined(scattered, beside) if scattered else beside
        if layer.expert_elements:
            ends = self._expert(stage, layer, m, ends, "dispatch")
            yield
        if self.halo:
            ends = self.halo.exchange(stage, index, "halo", ends, micro_batch=m, step=self.step)
        if index in self.plan.held:
            ends = self._held("all_gather", stage, layer.input_elements, layer, m, ends)
        costs = {c: self.emitter.cost(c) for c in classes}
        core = self._cores(index, {c: costs[c].attention_forward_s for c in classes})
        seconds = {c: float(costs[c].forward_s[index]) - core.get(c, 0.0) for c in classes}
        stops = cause is Cause.RECOMPUTE and self.strategy.recompute_early_stop
        if stops:
            seconds = {c: each - float(costs[c].unneeded_s[index]) for c, each in seconds.items()}
        ends = self.emitter.compute(classes, seconds, name, cause, ends, micro_batch=m, step=self.step)
        if cause is Cause.FORWARD:
            own = {c: tasks for c, tasks in ends.items() if seconds[c] > 0}
            self.state.after_forward(stage, virtual, index, self.step, m, own)
        if core and self.context:
            ends = self.context.forward(stage, layer, core, ends, cause, micro_batch=m, step=self.step)
        if layer.expert_elements:
            yield
            ends = self._expert(stage, layer, m, ends, "combine")
        ends = joined(ends, beside)
        if stops and any(costs[c].unneeded_s[index] for c in classes):
            return ends
        if layer.tensor_all_reduce:
            shown = self.cut.shown(layer.output_elements, layer)
            ends = self._tensor(self._reduction, stage, shown, layer, m, ends)
        if self._hands_out(index):
            ends = self._held("all_to_all", stage, layer.output_elements, layer, m, ends)
        return ends

    # -- backward -----------------------------------------------------------------------------------

    def _chunk_backward(self, stage: int, virtual: int, m: int, ends: Ends, *, split: bool) -> Emission:
        weights = ends
        for block in reversed(self._blocks(self.plan.chunks[virtual])):
            if self.strategy.recompute == "full":
                if self.parked:
                    ends = self.parked.come_back(stage, block[0], m, self.step, ends)
                for index in block:
                    ends = self.state.before_layer(stage, virtual, index, self.step, m, ends, backward=True)
                    if self.layers[index].kind not in KEPT_KINDS:
                        ends = yield from self._layer_forward(stage, virtual, index, m, ends, Cause.RECOMPUTE)
            for index in reversed(block):
                ends = self.state.before_layer(stage, virtual, index, self.step, m, ends, backward=True)
                if self.layers[index].kind in self.strategy.recompute_layers:
                    ends = yield from self._layer_forward(stage, virtual, index, m, ends, Cause.RECOMPUTE)
                if self.parked and self.strategy.recompute != "full":
                    ends = self.parked.come_back(stage, index, m, self.step, ends)
                ends, weights = yield from self._layer_backward(stage, index, m, ends, weights, split=split)
                if not split:
                    self.state.after_backward(stage, virtual, index, self.step, m, weights)
                yield
        return [ends, weights] if split else [ends]

    def _chunk_weights(self, stage: int, virtual: int, m: int, ends: Ends) -> Emission:
        """The gradients of the weights by themselves, in the order of the backward."""
        options = {"micro_batch": m, "step": self.step}
        classes = self.emitter.stage_classes[stage]
        for index in reversed(self.plan.chunks[virtual]):
            layer, shared = self.layers[index], self.shared_input[index]
            seconds = {c: float(self.emitter.cost(c).backward_weight_s[index]) for c in classes}
            if self.strategy.sequence_parallel and any(seconds.values()):
                ends = self._tensor("all_gather", stage, shared, layer, m, ends)
            name = f"{layer.name}.backward.weight"
            ends = self.emitter.compute(classes, seconds, name, Cause.BACKWARD, ends, **options)
            self.state.after_backward(stage, virtual, index, self.step, m, ends)
            yield
        return [ends]

    def _blocks(self, chunk: list[int]) -> list[list[int]]:
        blocks: list[list[int]] = []
        for index in chunk:
            if not blocks or self.layers[blocks[-1][0]].block != self.layers[index].block:
                blocks.append([])
            blocks[-1].append(index)
        return blocks

    def _layer_backward(
        self, stage: int, index: int, m: int, ends: Ends, before: Ends, *, split: bool
    ) -> Generator[None, None, tuple[Ends, Ends]]:
        """Returns what the previous layer's backward and what the (``split``: weight) gradients wait for.

        ``before``: the gradients of the following layer's weights.
        """
        layer, classes = self.layers[index], self.emitter.stage_classes[stage]
        costs = {c: self.emitter.cost(c) for c in classes}
        options = {"micro_batch": m, "step": self.step}
        if self.strategy.recompute == "selective":
            repeated = {c: costs[c].recompute_selective_s for c in classes}
            ends = self._recompute_core(stage, index, repeated, ends, options)
        elif self.strategy.recompute == "alternate":
            runs = {c: float(costs[c].recompute_alternate_s[index]) for c in classes}
            ends = self.emitter.compute(
                classes, runs, f"{layer.name}.recompute", Cause.RECOMPUTE, ends, **options
            )
        gathers, shared, beside = self.strategy.sequence_parallel, self.shared_input[index], Ends()
        if gathers and layer.tensor_all_reduce:
            if not split:  # behind them, in the same stream, a norm is computed first
                ends = {c: [*ends[c], *(task for task in before[c] if task not in ends[c])] for c in classes}
            ends, beside = self.cut.begin("all_gather", stage, layer.output_elements, layer, m, ends)
        if layer.expert_elements:
            ends = self._expert(stage, layer, m, ends, "combine.backward")
            yield
        if self._hands_out(index):
            ends = self._held("all_to_all", stage, layer.output_elements, layer, m, ends)
        core = self._cores(index, {c: costs[c].attention_backward_s for c in classes})
        if core and self.context:
            ends = self.context.backward(stage, layer, core, ends, **options)
        inputs = {c: float(costs[c].backward_input_s[index]) - core.get(c, 0.0) for c in classes}
        weights = {c: float(costs[c].backward_weight_s[index]) for c in classes}
        name = f"{layer.name}.backward"
        if split:
            ends = self.emitter.compute(classes, inputs, f"{name}.input", Cause.BACKWARD, ends, **options)
            computed = ends = joined(ends, beside)
            ends = self._expert(stage, layer, m, ends, "dispatch.backward")
            return self._tensor(self._reduction, stage, shared, layer, m, ends), computed
        held = index in self.plan.held
        if not (self.strategy.tp > 1 and shared) and not layer.expert_elements and not held:
            both = {c: inputs[c] + weights[c] for c in classes}
            ends = self.emitter.compute(classes, both, name, Cause.BACKWARD, ends, **options)
            done = ends = joined(ends, beside)
            if self.halo and index:  # nobody needs the gradient of an image
                ends = self.halo.exchange(stage, index, "halo.backward", ends, **options)
            return ends, done
        again = ends
        if gathers:  # only a shard of the input was kept; it is gathered again beside the input gradients
            again = self._tensor("all_gather", stage, shared, layer, m, ends)
        ends = self.emitter.compute(classes, inputs, f"{name}.input", Cause.BACKWARD, ends, **options)
        ends = joined(ends, beside)
        before_weights = {c: [*ends[c], *again[c]] for c in classes} if gathers else ends
        if layer.expert_elements:
            yield
            ends = self._expert(stage, layer, m, ends, "dispatch.backward")
            yield
        if held and index:
            ends = self._held("reduce_scatter", stage, layer.input_elements, layer, m, ends)
        ends = self._tensor(self._reduction, stage, shared, layer, m, ends)
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

    def _tensor(self, operation: str, stage: int, elements: float, layer: Layer, m: int, ends: Ends) -> Ends:
        elements, name = elements * self.plan.local_samples, f"tp_{operation}"
        size = self.code.size(elements)
        degree = self.strategy.expert_tensor_degree if layer.num_experts else self.strategy.tp
        if degree != self.strategy.tp:
            size, name = size * degree / self.strategy.tp, f"expert_{name}"
            elements *= degree / self.strategy.tp
        if not size or degree == 1:
            return ends
        classes, options = self.emitter.stage_classes[stage], {"micro_batch": m, "step": self.step}
        family = self.plan.family_of(name, operation, size)
        label = f"{layer.name}.{operation}"
        coded = CodedExchange(self.code, operation, elements, degree, Cause.TENSOR_COMM, options)
        ends = self.emitter.collective(
            family, classes, size, label, Cause.TENSOR_COMM, coded.encode(classes, ends), stream="tp",
            **options,
        )  # fmt: skip
        return coded.decode(classes, ends)

    def _hands_out(self, index: int) -> bool:
        """Whether everybody's columns of a layer's output go back to whose samples they are."""
        held = self.plan.held
        return index in held and index + 1 < len(self.layers) and index + 1 not in held

    def _held(self, operation: str, stage: int, elements: float, layer: Layer, m: int, ends: Ends) -> Ends:
        """Exchange activations, or their gradients, of a layer that ranks hold by parts."""
        size, family = elements * self.plan.local_samples * self.bytes, f"held_{operation}"
        if operation != "all_to_all":  # of all ranks together
            size *= self.plan.gradient_span()[0]
            family = self.plan.family_of(family, operation, size)
        return self.emitter.collective(
            family, self.emitter.stage_classes[stage], size, f"{layer.name}.{operation}", Cause.TENSOR_COMM,
            ends, stream="held", micro_batch=m, step=self.step,
        )  # fmt: skip

    def _expert(self, stage: int, layer: Layer, m: int, ends: Ends, part: str) -> Ends:
        if not layer.expert_elements or self.strategy.ep == 1:
            return ends
        size = layer.expert_elements * self.plan.local_samples * self.bytes * self.strategy.expert_load
        if self.strategy.sequence_parallel:  # each tensor parallel rank routes the tokens it holds
            size /= self.strategy.tp
        return self.emitter.collective(
            "ep", self.emitter.stage_classes[stage], size, f"{layer.name}.{part}", Cause.EXPERT_COMM, ends,
            stream="ep", micro_batch=m, step=self.step,
        )  # fmt: skip

    def _hand_on(self, hop: Hop) -> None:
        """Send at once, or when the receiver is ready where that is a rendezvous."""
        key = (self._virtual_stage(hop.target, hop.action.chunk), hop.action.micro_batch)
        back = 0
        if hop.action.kind == "F":
            back = hop.action.ahead - self.ahead.get(key, 0)
        if self.rendezvous and not back and hop.target != hop.source:
            self.hops.append(hop)
            return
        arrived = self._deliver(hop, hop.ends)
        begin = self.awaited.pop(key, None) if back else None
        if begin is not None:
            self._link(begin, arrived, back)

    def _meet(self, upcoming: list[Slot | None]) -> None:
        """Send what the receivers' next actions wait for, after what they have computed last."""
        ready = [hop for hop in self.hops if hop.is_for(upcoming[hop.target])]
        self.hops = [hop for hop in self.hops if hop not in ready]
        for hop in ready:
            posted = self.computed.get(hop.target, {})
            crossed = self._waits_for_sends and any(hop.crosses(other) for other in ready)
            arrived = self._deliver(hop, hop.ends, posted, crossed=crossed)
            tasks = [task for ends in arrived.values() for task in ends]
            held = self.sent.setdefault(hop.source, {})
            for index in self.emitter.stage_classes[hop.source]:
                held[index] = [*held.get(index, []), *tasks]

    def _deliver(self, hop: Hop, ends: Ends, posted: Ends | None = None, *, crossed: bool = False) -> Ends:
        m, virtual = hop.action.micro_batch, self._virtual_stage(hop.target, hop.action.chunk)
        arrived = ends if hop.target == hop.source else self._send(hop, ends, posted, crossed)
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

    def _send(self, hop: Hop, ends: Ends, posted: Ends | None, crossed: bool) -> Ends:
        """Point-to-point activations or gradients; with sequence parallelism each rank sends its part.

        A receiver that has ``posted`` sends its note then: data that are ready later do not wait for it.
        Of two stages that exchange at one time (``crossed``) the one that comes later finds the other's note:
        its data leave at once, and its own note behind them.
        """
        size = self.code.size(hop.elements * self.plan.local_samples) / self.code.sharers
        route = hop.direction
        if self.schedule.placement != "loop":  # both ways carry both activations and gradients
            route = "forward" if hop.target > hop.source else "backward"
        family = f"pp_{route}"
        label = route if route == hop.direction else f"{route}_{hop.direction}"
        classes = self.emitter.stage_classes[hop.source]
        extra = size / self.emitter.idle_rate(family, classes) if crossed else 0.0
        if posted is not None:
            ends = noted(self.emitter, family, hop, self.step, ends, posted)
            extra -= self.emitter.note_latency(family, classes[0])
        sent = self.emitter.collective(
            family, classes, size, f"send.{hop.direction}",
            Cause.PIPELINE_COMM, ends, stream=(f"pp_send_{label}", f"pp_receive_{label}"),
            extra_latency=extra, micro_batch=hop.action.micro_batch, step=self.step,
        )  # fmt: skip
        sender_of = self.emitter.sender_of[family]
        arrived = {
            receiver: sent[sender_of[receiver, hop.source]]
            for receiver in self.emitter.stage_classes[hop.target]
        }
        if not self.strategy.scatter_gather or self.strategy.sequence_parallel or self.strategy.tp == 1:
            return arrived
        return self._gathered(hop, arrived)

    def _gathered(self, hop: Hop, ends: Ends) -> Ends:
        """The parts that the tensor parallel ranks of a stage got, gathered by all of them."""
        size = self.code.size(hop.elements * self.plan.local_samples)
        return self.emitter.collective(
            self.plan.family_of("tp_all_gather", "all_gather", size), self.emitter.stage_classes[hop.target],
            size, f"gather.{hop.direction}", Cause.PIPELINE_COMM, ends, stream=f"pp_gather_{hop.direction}",
            micro_batch=hop.action.micro_batch, step=self.step,
        )  # fmt: skip


def _shared_input(layer: Layer) -> float:
    """Elements, per sample, of the input that column-parallel products share and whose gradient they sum.

    The output projection is column-parallel without a row-parallel product behind it.
    """
    if layer.tensor_all_reduce:
        return layer.input_elements
    return sum(op.rows * op.k for op in layer.ops if isinstance(op, Gemm) and op.split == "vocabulary")
