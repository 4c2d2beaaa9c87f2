"""What all generators share: parameters in, a validated :class:`Workload` out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from sim import yamlio
from sim.architecture.adapters import Adapters, adapted
from sim.errors import InputError
from sim.spec.base import ERROR_TYPE
from sim.spec.layer import Gemm, Layer
from sim.spec.workload import Workload

Shape = TypeVar("Shape", bound=BaseModel)
Built = TypeVar("Built", bound=BaseModel)


def assemble(
    shape_type: type[Shape],
    build: Callable[[Shape], tuple[Layer, ...]],
    describe: Callable[[Shape], Mapping[str, Any]],
    params: Mapping[str, Any],
) -> Workload:
    """Split ``params`` into the architecture's shape and the workload's fields, and build the workload.

    Parameters
    ----------
    shape_type : type
        Pydantic model of the architecture's own fields (layers, hidden size, ...).
    build : callable
        Shape to layer chain.
    describe : callable
        Shape to the workload fields that follow from it (family, heads, hidden size, ...).
    params : mapping
        Fields of the shape and of :class:`~sim.spec.workload.Workload` together, as in a workload file.

    Raises
    ------
    InputError
        A field is unknown, missing or out of range.
    """
    workload_fields = {info.alias or name for name, info in Workload.model_fields.items()} | set(
        Workload.model_fields
    )
    freezing = {key: params[key] for key in Adapters.model_fields if key in params}
    params = {key: value for key, value in params.items() if key not in freezing}
    own = {key: value for key, value in params.items() if key in shape_type.model_fields}
    shape = construct(shape_type, own | {k: v for k, v in params.items() if k not in workload_fields})
    rest = {key: value for key, value in params.items() if key in workload_fields}
    layers = adapted(build(shape), construct(Adapters, freezing))
    fields = {
        **rest,
        **describe(shape),
        "layers": rescaled(layers) if rest.get("dynamic_scaling") else layers,
    }
    fields.setdefault("name", "unnamed")
    return construct(Workload, fields)


@dataclass(frozen=True)
class Generator(Generic[Shape]):
    """Turns fields of a shape and of the workload into a workload, see :func:`assemble`.

    Attributes
    ----------
    shape : type
        Pydantic model of the architecture's own fields.
    build, describe : callable
    """

    shape: type[Shape]
    build: Callable[[Shape], tuple[Layer, ...]]
    describe: Callable[[Shape], Mapping[str, Any]]

    def __call__(self, **params: Any) -> Workload:
        """Build the workload."""
        return assemble(self.shape, self.build, self.describe, params)


def rescaled(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layers with products whose operands are scaled and cast for each of them.

    Equal operations stay one object, so that their cost is computed once.
    """
    known = {op: op for layer in layers for op in layer.ops}
    scaled = {
        op: op.model_copy(update={"dynamic_scaling": True}) if isinstance(op, Gemm) else op for op in known
    }
    return tuple(layer.model_copy(update={"ops": tuple(scaled[op] for op in layer.ops)}) for layer in layers)


def construct(model: type[Built], fields: Mapping[str, Any]) -> Built:
    """Validate ``fields`` as ``model``; the first problem becomes one :class:`InputError`."""
    try:
        built = model.model_validate(dict(fields))
    except ValidationError as error:
        raise _input_error(model, error) from None
    yamlio.check_booleans(built, dict(fields), (), yamlio.Document({}), "workload")
    return built


def _input_error(model: type[BaseModel], error: ValidationError) -> InputError:
    from difflib import get_close_matches

    problem = error.errors()[0]
    if problem["type"] == ERROR_TYPE:
        context = problem.get("ctx", {})
        path = ".".join(str(part) for part in (*problem["loc"], context["field"]) if part != "")
        return InputError(f"workload.{path}", context["must"], context["got"] or None, hint=context["hint"])
    name = ".".join(str(part) for part in problem["loc"]) or model.__name__
    if problem["type"] == "extra_forbidden":
        known = sorted({*model.model_fields, *Workload.model_fields})
        near = get_close_matches(str(problem["loc"][-1]), known, n=1)
        hint = f"Did you mean {near[0]}?" if near else ""
        return InputError(f"workload.{name}", "be a field of the generator or of the workload", hint=hint)
    if problem["type"] == "missing":
        return InputError(f"workload.{name}", "be given")
    must = yamlio.requirement(problem["type"], problem.get("ctx", {}), problem["msg"])
    return InputError(f"workload.{name}", must, got=problem["input"])
