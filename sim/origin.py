"""Where a refused field was written: file and line for errors that are found after a file was read.

A field of a scenario may be said in many ways: ``strategy: {tp: 3}``, ``overrides: {strategy.tp: 3}``,
an axis or a point of a sweep, ``tp: 3`` in a file of its own. In all of them the last keys that lead to the
value read as the field, or as the end of its name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from sim.errors import InputError
from sim.yamlio import Document, PathKey

_PARTS = re.compile(r"[^.\[\]]+")


@contextmanager
def located(document: Document, kind: str = "", given: Collection[str] = ()) -> Iterator[None]:
    """Add ``file:line`` to an InputError about a field of a file, unless it carries one already.

    Parameters
    ----------
    document : Document
        The file.
    kind : str
        Root of the fields that the file states (``cluster``: its ``host`` is ``cluster.host``); errors about
        other roots pass as they are. Empty for files that state fields of every root: scenarios and sweeps.
    given : collection of str
        Dotted fields that did not come from the file, such as those of ``--set``.
    """
    try:
        yield
    except InputError as error:
        if not error.where:
            error.where = where_is(document, error.field, error.got, kind=kind, given=given)
        raise


def where_is(
    document: Document, field: str, got: object = None, *, kind: str = "", given: Collection[str] = ()
) -> str:
    """``file:line`` of a field, or of the nearest part around it that the file states; see :func:`located`.

    Parameters
    ----------
    field : str
        Dotted, as messages name it.
    got : object
        The refused value: of several places that state the field, the one with this value is meant.
    """
    parts = _PARTS.findall(field)
    if field.startswith("--"):  # said on the command line
        return ""
    if any(_begins(parts, _PARTS.findall(name)) for name in given):
        return ""
    if kind:
        if parts[:1] != [kind]:
            return ""
        parts = parts[1:]
    while parts:
        places = [path for path in document.lines if _ends(path, parts)]
        if places:
            return document.where(min(places, key=lambda path: not _holds(document, path, got)))
        parts.pop()
    return document.where(())


def _begins(parts: list[str], start: list[str]) -> bool:
    return parts[: len(start)] == start


def _ends(path: PathKey, parts: list[str]) -> bool:
    """Whether the last keys of a path, each of which may be dotted, read as the field.

    The items of a list count as well: an axis lists the values of its field.
    """
    if path and str(path[-1]).startswith("key at "):
        return False
    words = [word for key in path for word in str(key).split(".")]
    item = path[-1:] != () and isinstance(path[-1], int)
    return words[-len(parts) :] == parts or (item and words[-len(parts) - 1 : -1] == parts)


def _holds(document: Document, path: PathKey, got: object) -> bool:
    value: Any = document.data
    try:
        for key in path:
            value = value[key]
    except (KeyError, IndexError, TypeError):
        return False
    return got is not None and str(got) in (str(value), repr(value), str(value).lower())
