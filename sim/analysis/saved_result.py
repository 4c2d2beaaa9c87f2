"""Check of a saved result before it is used: every field has its type, and the numbers make a result."""

from __future__ import annotations

import dataclasses
import math
import typing
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, Strict, create_model

from sim.analysis.breakdown import PARTS
from sim.analysis.result import JSON_NAMES, UNSAVED, Result
from sim.errors import InputError
from sim.yamlio import Document, validate

_ROUNDING = 1e-6  # of a step, by which its parts may miss it

#: Fields of which more is known than their type.
_RULES: dict[str, Any] = {
    "num_devices": Annotated[int | None, Field(ge=1)],
    "step_time_s": Annotated[float | None, Field(ge=0)],
    # JSON has lists only.
    "step_time_interval_s": Annotated[tuple[float, float] | None, Strict(False)],
}


@cache
def _model() -> type[BaseModel]:
    """The fields of :class:`Result` under their names in JSON; text is no number, numbers are finite."""
    unsaved = dict.fromkeys(("Scenario", "ExecutionGraph", "RunRecord"), Any)
    hints = typing.get_type_hints(Result, localns=unsaved)
    # A field called ``schema`` would hide a method of the model.
    fields: dict[str, Any] = {"schema_": (int, Field(alias="schema"))}
    for one in dataclasses.fields(Result):
        if one.name not in UNSAVED:
            name = JSON_NAMES.get(one.name, one.name)
            required = one.default is one.default_factory is dataclasses.MISSING
            fields[name] = (_RULES.get(name, hints[one.name]), ... if required else None)
    config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
    return create_model("result", __config__=config, **fields)


def check_saved(data: dict[str, Any], where: str) -> None:
    """Refuse a damaged result.

    Parameters
    ----------
    data : dict
        The JSON of a result of the present schema.
    where : str
        The file, for messages.

    Raises
    ------
    InputError
        If a field is unknown or not of its type, or a result with status ``ok`` lacks its step time or the
        parts that add up to it.
    """
    validate(_model(), Document(data, where), field_prefix="result")
    if data["status"] != "ok":
        return
    step, parts = data.get("step_time_s"), data.get("breakdown") or {}
    if step is None:
        raise InputError("result.step_time_s", "be given where status is ok", "null", where=where)
    absent = [name for name in PARTS if name not in parts]
    if absent:
        must = f"hold {', '.join(PARTS)}"
        raise InputError("result.breakdown", must, f"no {', '.join(absent)}", where=where)
    total = math.fsum(parts.values())
    if abs(total - step) > _ROUNDING * step:
        must = f"add up to step_time_s ({step:.6g} s)"
        raise InputError("result.breakdown", must, f"{total:.6g} s", where=where)
