"""What to try instead of a name that the catalogue does not know."""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from functools import lru_cache

from sim.spec.names import names_of
from sim.spec.strategy import Strategy
from sim.units import nearest

_SHOWN = 6
_SHORTEST = 2  # letters of a name that stands within others


@lru_cache(maxsize=1)
def _fields_by_value() -> dict[str, str]:
    """Value -> the field of a strategy that takes it; of several fields the first."""
    found: dict[str, str] = {}
    for field, annotation in typing.get_type_hints(Strategy, include_extras=True).items():
        for value in names_of(annotation):
            if isinstance(value, str):
                found.setdefault(value, field)
    return found


def near_names(name: str, known: Sequence[str]) -> list[str]:
    """Names that begin with the given one or have it as a part, else the one that looks most like it."""
    word = _plain(name)
    same = [each for each in known if _plain(each) == word]
    # A whole part ("ps" of "hetero_ps") says more than letters within a name ("ps" of "hops").
    whole = [each for each in known if name.lower() in re.split(r"[^a-z0-9]+", each.lower())]
    begun, within = [], []
    if len(word) > _SHORTEST:
        begun = [each for each in known if _plain(each).startswith(word)]
        within = [each for each in known if word in _plain(each)]
    for found in (same, [*begun, *whole], within):
        if found:
            return list(dict.fromkeys(found))[:_SHOWN]
    close = nearest(name, list(known))
    return [close] if close else []


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def setting_of(word: str) -> str:
    """``strategy.compression=powersgd`` for the value, ``strategy.tp=VALUE`` for the field; else empty."""
    word = word.lower().replace("-", "_")
    by_value = _fields_by_value()
    if word in by_value:
        return f"strategy.{by_value[word]}={word}"
    return f"strategy.{word}=VALUE" if word in Strategy.model_fields else ""


def strategy_hint(name: str, presets: Sequence[str]) -> str:
    """What a word that is no preset may have meant: a field, a value of a field, presets like it."""
    if "=" in name:
        field, _, value = (part.strip() for part in name.partition("="))
        return f"Fields are set with --set strategy.{field.removeprefix('strategy.')}={value or '...'}."
    if setting := setting_of(name):
        return f"Fields are set with --set {setting}."
    if found := near_names(name, presets):
        return f"Try {_listed(found)}."
    return "See: clusterloom list strategies. Fields are set with --set, e.g. --set strategy.tp=8."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def name_hint(kind: str, name: str, known: Sequence[str], plural: str) -> str:
    """Hint of the message about a name of a kind that the catalogue does not know.

    Parameters
    ----------
    kind, plural : str
        ``strategy``, ``strategies``.
    name : str
        What was given.
    known : sequence of str
        Names of that kind.
    """
    if kind == "strategy":
        return strategy_hint(name, known)
    found = near_names(name, known)
    hint = f"Try {_listed(found)}." if found else f"See: clusterloom list {plural}."
    return f"{hint} Files of your own: --catalog FOLDER." if kind in ("device", "host") else hint
