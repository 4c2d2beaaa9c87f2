"""The base of all specs: frozen, strict, hashable; and the quantity types that read text with units."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NoReturn, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from sim.errors import InputError
from sim.units import SIValue, format_quantity, parse_quantity

ERROR_TYPE = "clusterloom"


def refuse(must: str, got: object = None, *, hint: str = "", field: str = "") -> NoReturn:
    """Raise, inside a pydantic validator, an error that ``yamlio`` turns into one line.

    Parameters
    ----------
    must : str
        What the value must be, after the word "must".
    got : object
        What was given; None leaves it out.
    hint : str
        A full sentence with an alternative.
    field : str
        Dotted path below the validated object, for validators of a whole model.
    """
    context = {"must": must, "got": "" if got is None else str(got), "hint": hint, "field": field}
    text = f"must {must}." + (f" Got {got}." if got is not None else "") + (f" {hint}" if hint else "")
    raise PydanticCustomError(
        ERROR_TYPE, "{text}", {**context, "text": f"{field}: {text}" if field else text}
    )


@dataclass(frozen=True)
class Quantity:
    """Marker in a field's annotation: its dimension (see ``sim.units.DIMENSIONS``)."""

    dimension: str


def _reader(dimension: str) -> BeforeValidator:
    def read(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str):
            try:
                return parse_quantity(value, dimension)
            except InputError as error:
                refuse(error.must, error.got, hint=error.hint)
        if isinstance(value, bool):
            refuse("be a quantity", str(value).lower())
        if isinstance(value, SIValue):
            return float(value)
        strict = bool(info.context and info.context.get("strict_units"))
        if strict and dimension != "fraction" and isinstance(value, int | float) and value != 0:
            try:
                parse_quantity(f"{value!r}", dimension)
            except InputError as error:
                refuse(error.must, f"{value!r}", hint=error.hint)
        return value

    return BeforeValidator(read)


Bytes = Annotated[float, _reader("bytes"), Quantity("bytes")]
Seconds = Annotated[float, _reader("seconds"), Quantity("seconds")]
BytesPerSecond = Annotated[float, _reader("bytes_per_second"), Quantity("bytes_per_second")]
Flops = Annotated[float, _reader("flops"), Quantity("flops")]
FlopsPerSecond = Annotated[float, _reader("flops_per_second"), Quantity("flops_per_second")]
Watts = Annotated[float, _reader("watts"), Quantity("watts")]
DollarsPerHour = Annotated[float, _reader("dollars_per_hour"), Quantity("dollars_per_hour")]
Fraction = Annotated[float, _reader("fraction"), Quantity("fraction"), Field(ge=0, le=1)]


def _freeze(value: Any) -> Any:
    """A hashable stand-in for a field value."""
    if isinstance(value, Mapping):
        return frozenset((key, _freeze(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        if all(isinstance(item, int | float | str) for item in value):
            return tuple(value)
        return tuple(_freeze(item) for item in value)
    return value


class Spec(BaseModel):
    """A frozen description. Unknown fields, NaN and infinities are refused; equal specs hash equal."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    @cached_property
    def _content_hash(self) -> int:
        names = type(self).model_fields
        return hash((type(self).__name__, *(_freeze(getattr(self, name)) for name in names)))

    def __hash__(self) -> int:
        return self._content_hash

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)

    def __getstate__(self) -> dict[Any, Any]:
        # Cached values stay out of pickles: Python's string hashes differ from process to process.
        state = dict(super().__getstate__())
        state["__dict__"] = {k: v for k, v in state["__dict__"].items() if k in type(self).model_fields}
        return state

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy without validation; cached values are dropped."""
        copied = super().model_copy(update=update, deep=deep)
        for name in [name for name in copied.__dict__ if name not in type(self).model_fields]:
            del copied.__dict__[name]
        return copied

    def replace(self, **changes: Any) -> Self:
        """Copy with some fields changed; the result is validated."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**(values | changes))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the canonical JSON of all fields; equal in every process and on every machine."""
        return hashlib.sha256(self._canonical_json.encode()).hexdigest()

    @cached_property
    def _canonical_json(self) -> str:
        """All fields, keys sorted. Parts keep theirs: thousands of points of a sweep share a workload."""
        parts = {
            name: part for name in type(self).model_fields if isinstance(part := getattr(self, name), Spec)
        }
        rest = self.model_dump(mode="json", by_alias=True, exclude=set(parts))
        if not parts:
            return json.dumps(rest, sort_keys=True, separators=(",", ":"))
        texts = {
            name: json.dumps(value, sort_keys=True, separators=(",", ":")) for name, value in rest.items()
        }
        for name, part in parts.items():
            texts[type(self).model_fields[name].alias or name] = part._canonical_json
        return f"{{{','.join(f'{json.dumps(name)}:{texts[name]}' for name in sorted(texts))}}}"

    def to_data(self, *, exclude_defaults: bool = True, digits: int = 17) -> dict[str, Any]:
        """Plain mapping with quantities as text with units, as the YAML files state them."""
        result: dict[str, Any] = {}
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            if (
                exclude_defaults
                and not info.is_required()
                and value == info.get_default(call_default_factory=True)
            ):
                continue
            dimension = quantity_dimension(info.annotation, info.metadata)
            result[info.alias or name] = _plain(value, dimension, exclude_defaults, digits)
        return result


def quantity_dimension(annotation: Any, metadata: list[Any] | tuple[Any, ...] = ()) -> str | None:
    """Dimension of a field, looked for in its metadata and inside optional, tuple and dict types."""
    for item in (*metadata, *getattr(annotation, "__metadata__", ())):
        if isinstance(item, Quantity):
            return item.dimension
    for inner in (*getattr(annotation, "__args__", ()), getattr(annotation, "__origin__", None)):
        if inner is not None and not isinstance(inner, str) and (found := quantity_dimension(inner)):
            return found
    return None


def _plain(value: Any, dimension: str | None, exclude_defaults: bool, digits: int) -> Any:
    if isinstance(value, Spec):
        return value.to_data(exclude_defaults=exclude_defaults, digits=digits)
    if isinstance(value, Mapping):
        return {key: _plain(item, dimension, exclude_defaults, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, dimension, exclude_defaults, digits) for item in value]
    if dimension and isinstance(value, int | float) and not isinstance(value, bool):
        return format_quantity(float(value), dimension, digits)
    return value


class CatalogSpec(Spec):
    """A spec that has a file of its own in the catalogue."""

    schema_: int = Field(1, alias="schema", ge=1, le=1, description="version of the file format")
    name: str = Field(min_length=1, description="name in the catalogue, the file's stem")
    description: str = Field("", description="one line for a human")
    source: str = Field("", description="where the numbers come from")
