"""Any ``torch.nn.Module`` as a workload: its forward pass is followed on the meta device."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from sim.errors import InputError
from sim.spec import Workload
from sim.spec.layer import Attention, Convolution, Embedding, Gemm, Layer, MemoryBound, Op

_KINDS: dict[type, str] = {
    Convolution: "conv",
    Attention: "attention",
    Embedding: "embedding",
    Gemm: "linear",
}


def workload_of(
    module: Any, inputs: Any, *, name: str = "", batch: int | None = None, **fields: Any
) -> Workload:
    """Describe a module by what its forward pass calls.

    Every module that owns parameters becomes a layer; what is called between two of them belongs to the
    earlier one. A pipeline may be cut where the numbered child of a container changes (``layers.3``).
    Products, convolutions, attention and look-ups keep their shapes, everything else counts the elements it
    moves, kernel by kernel as eager PyTorch runs them. Activations are the tensors that autograd saves.

    Parameters
    ----------
    module : torch.nn.Module
        Left as it is; a copy goes to the meta device, where it may be already.
    inputs : tensor, sequence or mapping
        Arguments of ``forward``, a mapping by keyword; tensors may be nested in dicts and lists. Values do
        not matter.
    name : str
        Name of the workload; the module's class if absent.
    batch : int, optional
        Samples in ``inputs``; the first dimension of the first tensor if absent.
    **fields
        Fields of the workload: ``global_batch_size`` or ``batch_per_device``, ``dtype``, ``optimizer`` ...

    Raises
    ------
    InputError
        If the forward pass cannot be followed (control flow on values), or has no layer.
    """
    there = copy.deepcopy(module).to("meta")
    arguments, keywords = _on_meta(inputs)
    samples = batch or _batch_of((*arguments, *keywords.values()))
    walk = _Walk(there, module, samples)
    try:
        with walk.following(), torch.autograd.graph.saved_tensors_hooks(walk.saved, lambda tensor: tensor):
            there(*arguments, **keywords)
    except Exception as error:
        must = f"have a forward pass that runs on the meta device ({type(error).__name__}: {error})"
        raise InputError("module", must, type(module).__name__) from None
    layers = walk.layers()
    if not layers:
        raise InputError("module", "call something that takes time", type(module).__name__)
    given = {"optimizer": "adamw", "dtype": "fp32", "family": "module", **fields}
    return Workload(name=name or type(module).__name__, source="torch.nn.Module", layers=layers, **given)


def _on_meta(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def move(value: Any) -> Any:
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    if isinstance(inputs, Mapping):
        return (), tree_map(move, dict(inputs))
    values = inputs if isinstance(inputs, Sequence) else (inputs,)
    return tree_map(move, tuple(values)), {}


def _batch_of(values: Sequence[Any]) -> int:
    for value in tree_leaves(values):
        if isinstance(value, torch.Tensor) and value.dim():
            return int(value.shape[0])
    raise InputError("batch", "be given where no input is a tensor with dimensions")


@dataclass
class _Record:
    """A layer in the making."""

    path: str
    ops: list[Op] = field(default_factory=list)
    stored: float = 0.0
    first_elements: float = 0.0
    last_elements: float = 0.0


class _Walk:
    """Follows one forward pass."""

    def __init__(self, module: Any, original: Any, samples: int) -> None:
        # The copy's parameters are no longer tied; the original's tell which are one.
        self.module, self.original, self.samples = module, original, samples
        self.stack: list[str] = []
        self.records: list[_Record] = []
        self.quiet = 0
        self.kept: set[int] = {p.untyped_storage()._cdata for p in module.parameters()}
        self.owners = {path for path, each in module.named_modules() if _own_parameters(each)}
        self.loose: list[Op] = []

    def following(self) -> Any:
        """Context in which calls are recorded."""
        stack = contextlib.ExitStack()
        for path, each in self.module.named_modules():
            stack.callback(each.register_forward_pre_hook(lambda *_, p=path: self._enter(p)).remove)
            stack.callback(each.register_forward_hook(lambda *_: self._leave()).remove)
        stack.enter_context(_Functions(self))
        stack.enter_context(_Operators(self))
        return stack

    def _enter(self, path: str) -> None:
        self.stack.append(path)
        if path in self.owners:
            self.records.append(_Record(path))
            self.records[-1].ops += self.loose
            self.loose = []

    def _leave(self) -> None:
        self.stack.pop()

    def add(self, op: Op, inside: float, outside: float) -> None:
        """Record an operation with the elements (per sample) that went in and came out."""
        if not self.records:
            self.loose.append(op)
            return
        record = self.records[-1]
        if not record.ops:
            record.first_elements = inside
        record.ops.append(op)
        record.last_elements = outside

    def saved(self, tensor: Any) -> Any:
        """Count a tensor that autograd keeps, once, parameters aside."""
        storage = tensor.untyped_storage()._cdata
        if storage not in self.kept and tensor.numel() >= self.samples:
            self.kept.add(storage)
            scale = tensor.element_size() / 4  # elements of fp32, in which the module was followed
            if self.records:
                self.records[-1].stored += tensor.numel() * scale / self.samples
        return tensor

    def layers(self) -> tuple[Layer, ...]:
        """What was recorded, as a chain."""
        found: list[Layer] = []
        counted: set[int] = set()
        belongs = self._silent()
        block, last = 0, ""
        for index, record in enumerate(self.records):
            key = _block_key(record.path)
            if found and key and key != last:
                block += 1
            last = key or last
            owned, shared = [], 0.0
            paths = [record.path, *belongs.pop(record.path, ())]
            own = [p for path in paths for p in _own_parameters(self.original.get_submodule(path))]
            for parameter in {id(each): each for each in own}.values():
                size = float(parameter.numel())
                if id(parameter) in counted:
                    shared += size
                else:
                    counted.add(id(parameter))
                    owned.append(size)
            found.append(
                Layer(
                    name=record.path or f"layer{index}",
                    kind=_kind(record.ops),
                    block=block,
                    ops=tuple(record.ops),
                    parameters=sum(owned),
                    shared_parameters=shared,
                    tensors=tuple(owned),
                    input_elements=record.first_elements,
                    output_elements=record.last_elements,
                    stored_elements=record.stored,
                )
            )
        return tuple(found)

    def _silent(self) -> dict[str, list[str]]:
        """Modules with parameters that were never called (their parent used these), by layer."""
        called = [record.path for record in self.records]
        found: dict[str, list[str]] = {}
        for path in sorted(self.owners - set(called)):
            best = max(called, key=lambda each: _common(each, path), default=None)
            if best is not None:
                found.setdefault(best, []).append(path)
        return found


def _common(a: str, b: str) -> int:
    """Leading parts two paths share."""
    pairs = zip(a.split("."), b.split("."), strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(a.count("."), b.count(".")) + 1)


def _own_parameters(module: Any) -> list[Any]:
    return list(module.parameters(recurse=False))


def _block_key(path: str) -> str:
    """The shortest prefix that ends in a number: ``encoder.layer.3`` of ``encoder.layer.3.attention``."""
    parts = path.split(".")
    for index, part in enumerate(parts):
        if part.isdigit() and index + 1 < len(parts):
            return ".".join(parts[: index + 1])
    return path if parts and parts[-1].isdigit() else ""


def _kind(ops: Sequence[Op]) -> str:
    for kind, name in _KINDS.items():
        if any(isinstance(op, kind) for op in ops):
            return name
    return "norm"


class _Functions(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Attention is seen as one call, before it is taken apart."""

    def __init__(self, walk: _Walk) -> None:
        super().__init__()
        self.walk = walk

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.nn.functional.scaled_dot_product_attention or self.walk.quiet:
            return func(*args, **kwargs)
        query, key, value = args[:3]
        self.walk.quiet += 1
        try:
            out = func(*args, **kwargs)
        finally:
            self.walk.quiet -= 1
        heads = query.shape[-3] if query.dim() > 3 else 1
        samples = self.walk.samples
        elements = query.numel() / samples
        op = Attention(
            query_length=query.shape[-2],
            key_length=key.shape[-2],
            heads=heads,
            kv_heads=key.shape[-3] if key.dim() > 3 else 1,
            head_dim=(query.shape[-1] + value.shape[-1]) // 2,
            causal=bool(kwargs.get("is_causal") or (len(args) > 5 and args[5])),
            flash=True,
            dropout=bool(kwargs.get("dropout_p") or (len(args) > 4 and args[4])),
        )
        self.walk.add(op, elements, out.numel() / samples)
        return out


class _Operators(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Every other operator that moves data."""

    def __init__(self, walk: _Walk) -> None:
        super().__init__()
        self.walk = walk

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.walk.quiet and not _is_view(func):
            self._record(func, args, out)
        return out

    def _record(self, func: Any, args: Any, out: Any) -> None:
        samples = self.walk.samples
        tensors = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor)]  # cat takes a list
        results = [
            each
            for each in (out if isinstance(out, (tuple, list)) else (out,))
            if isinstance(each, torch.Tensor)
        ]
        if not results:
            return
        outside = results[0].numel() / samples
        inside = tensors[0].numel() / samples if tensors else outside
        op = _operation(func.overloadpacket.__name__, args, results[0], samples)
        if op is None:
            moved = sum(each.numel() for each in (*tensors, *results) if each.numel() >= samples) / samples
            if not moved:
                return
            op = MemoryBound(elements=moved)
        self.walk.add(op, inside, outside)


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return any(each.alias_info is not None and not each.alias_info.is_write for each in returns) or (
        func.overloadpacket.__name__ in ("detach", "empty", "zeros", "ones", "full", "arange")
    )


def _operation(name: str, args: Any, out: Any, samples: int) -> Op | None:
    """The operation with its shapes; None for what only moves data."""
    if name in ("mm", "addmm"):
        a, b = args[-2:] if name == "mm" else args[1:3]
        rows = a.shape[0] / samples
        return Gemm(rows=max(rows, 1e-9), n=b.shape[1], k=a.shape[1])
    if name in ("bmm", "baddbmm"):
        a, b = args[:2] if name == "bmm" else args[1:3]
        return Gemm(rows=a.shape[1], n=b.shape[2], k=a.shape[2], batch=a.shape[0] / samples)
    if name == "convolution":
        return _convolution(args, out)
    if name == "embedding":
        return Embedding(rows=args[1].numel() / samples, width=args[0].shape[1])
    return None


def _convolution(args: Any, out: Any) -> Convolution:
    """Of one, two or three dimensions; transposed ones do the work of the one they are the gradient of."""
    source, weight, transposed = args[0], args[1], args[6]
    groups = args[8]
    wide = source if transposed else out
    sizes, kernel = list(wide.shape[2:]), list(weight.shape[2:])
    stride = max(args[3]) if not transposed else 1
    flat = (math.prod(sizes[:-1]) or 1, sizes[-1])
    edges = (math.prod(kernel[:-1]) or 1, kernel[-1])
    channels = (source.shape[1], out.shape[1])
    return Convolution(
        in_channels=channels[0],
        out_channels=channels[1],
        kernel=edges,
        out_height=flat[0],
        out_width=flat[1],
        stride=stride,
        groups=groups,
    )
