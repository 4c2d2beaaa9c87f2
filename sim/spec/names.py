"""Fields whose values are the members of a family: the family's own table says which names there are.

A specification lies below the families (compressors, schedules, ...), so it knows only where a table is. That
is looked up when a value is checked, as an entry point of a plug-in would be.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pkgutil import resolve_name
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from sim.spec.base import refuse
from sim.units import nearest


@lru_cache(maxsize=64)
def _table(source: str) -> Iterable[str]:
    found: Iterable[str] = resolve_name(source)
    return found


@dataclass(frozen=True)
class Names:
    """Annotation of a text field that names a member of a family.

    Parameters
    ----------
    source : str
        ``module:attribute`` of the family's table, a mapping from names.
    extra : tuple of str
        Names beside the members, first.
    """

    source: str
    extra: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        """What the family's table knows of a member."""
        table: Any = _table(self.source)
        return table[name]

    @property
    def known(self) -> tuple[str, ...]:
        """All names, in the order of the table."""
        return tuple(dict.fromkeys((*self.extra, *_table(self.source))))

    def _checked(self, value: Any) -> Any:
        if value in self.known:
            return value
        close = nearest(str(value), list(self.known))
        return refuse(
            f"be one of {', '.join(self.known)}", repr(value), hint=f"Try {close}." if close else ""
        )

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the value before it is taken as text."""
        return core_schema.no_info_before_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """List the names."""
        return {**handler(schema), "enum": list(self.known)}


def names_of(annotation: Any) -> tuple[str, ...]:
    """Values of an annotated field type, whether its names are written out (``Literal``) or a family's.

    Parameters
    ----------
    annotation : type
        ``Literal[...]`` or ``Annotated[str, Names(...)]``.
    """
    for item in getattr(annotation, "__metadata__", ()):
        if isinstance(item, Names):
            return item.known
    return tuple(typing.get_args(annotation))
