"""Commands with many options: the fields of one dataclass are the options of a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import wraps
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")


def options_of(settings: type[Settings]) -> Callable[[Callable[[Settings], int]], Callable[..., int]]:
    """Make a command of a function that takes one settings object.

    Parameters
    ----------
    settings : dataclass
        Every field is annotated as ``Annotated[TYPE, typer.Option(...)]`` (or ``Argument``).

    Returns
    -------
    callable
        A decorator. The decorated function takes the fields as keyword arguments and has the signature
        that typer, and the reference of commands, read.
    """
    hints = get_type_hints(settings, include_extras=True)
    parameters = [
        Parameter(each.name, Parameter.KEYWORD_ONLY, default=_default(each), annotation=hints[each.name])
        for each in fields(settings)
    ]

    def decorate(function: Callable[[Settings], int]) -> Callable[..., int]:
        @wraps(function)
        def command(**given: Any) -> int:
            return function(settings(**given))

        command.__annotations__ = {**hints, "return": int}
        vars(command)["__signature__"] = Signature(parameters, return_annotation=int)
        return command

    return decorate


def _default(each: Field[Any]) -> Any:
    return Parameter.empty if each.default is MISSING else each.default
