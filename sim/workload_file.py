"""A workload's file as a spec: listed layers, a generator with its parameters, a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim import yamlio
from sim.errors import InputError
from sim.spec.base import quantity_dimension
from sim.spec.workload import Workload
from sim.units import parse_quantity


def document_of(path: Path) -> yamlio.Document:
    """A catalogue file, or a Hugging Face configuration as the workload file it amounts to."""
    if path.suffix != ".json":
        return yamlio.load(path)
    from sim.architecture.huggingface import read_config

    data, assumed = read_config(path)
    return yamlio.Document(data, assumed=assumed)


def _assumptions(document: yamlio.Document, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The description, with what the file left open and nobody gave."""
    left = [text for field, text in document.assumed.items() if field not in overrides]
    description = document.data.get("description", "")
    return {"description": f"{description}; assumed: {', '.join(left)}"} if left else {}


def build_workload(document: yamlio.Document, overrides: Mapping[str, Any]) -> Workload:
    """Read a workload file: explicit layers, or a generator and its parameters."""
    from sim.architecture import generate

    data = {**document.data, **_assumptions(document, overrides)}
    batch = {"global_batch_size", "batch_per_device"}
    if batch & {name for name, value in overrides.items() if value is not None}:
        data = {name: value for name, value in data.items() if name not in batch}
    document = yamlio.Document(data, document.path, document.lines)
    if "generator" not in data:
        return yamlio.validate(Workload, document, field_prefix="workload", overrides=overrides)
    _refuse_bare_numbers(document)
    for name in overrides:
        if name.split(".")[0] == "layers":
            must = f"be left to the generator {data['generator']}, which makes the layers"
            raise InputError(f"workload.{name}", must, hint="A file that lists its layers can be changed.")
    params = {name: value for name, value in data.items() if name != "generator"}
    texts = {name: yamlio.read_value(value) for name, value in overrides.items() if isinstance(value, str)}
    _refuse_bare_numbers(yamlio.Document(texts))
    for name, value in {**overrides, **texts}.items():
        yamlio.set_path(params, name, value)
    try:
        return generate(str(data["generator"]), params)
    except InputError as error:
        field = error.field.removeprefix("workload.")
        if error.where or field in overrides:
            raise
        raise InputError(
            error.field, error.must, error.got, hint=error.hint, where=document.where((field,))
        ) from None


def _refuse_bare_numbers(document: yamlio.Document) -> None:
    for name, info in Workload.model_fields.items():
        value = document.data.get(name)
        dimension = quantity_dimension(info.annotation, info.metadata)
        if dimension and isinstance(value, int | float) and value != 0:
            try:
                parse_quantity(repr(value), dimension)
            except InputError as error:
                where = document.where((name,))
                raise InputError(
                    f"workload.{name}", error.must, value, hint=error.hint, where=where
                ) from None
