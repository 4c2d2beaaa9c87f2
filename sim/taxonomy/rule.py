"""One validity rule: a pure function with a name, a verdict and the reason a user reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sim.errors import InvalidStrategyError
from sim.taxonomy.context import Context

Verdict = Literal["invalid", "warn"]
Overrides = Mapping[str, object]


@dataclass(frozen=True)
class Finding:
    """What a rule objects to.

    Parameters
    ----------
    field : str
        Dotted field, e.g. ``"strategy.tp"``.
    must : str
        The requirement, after the word "must"; for a warning the whole sentence.
    got : object
        The offending value.
    ways_out : tuple of mappings
        Candidate changes ``{dotted field: value}``, nearest first. They are tried before they are shown.
    explain : bool
        Whether the error line carries the rule's reason, where the requirement does not speak for itself.
    """

    field: str
    must: str
    got: object = None
    ways_out: tuple[Overrides, ...] = ()
    explain: bool = False


@dataclass(frozen=True)
class Rule:
    """A rule of the taxonomy.

    Parameters
    ----------
    id : str
        ``C2-n`` for row n of the table of invalid combinations, else a short name such as ``tp-heads``.
    fields : tuple of str
        Strategy fields the rule looks at.
    reason : str
        Why, in one sentence.
    verdict : {"invalid", "warn"}
    find : callable
        ``Context -> Finding | None``; pure.
    """

    id: str
    fields: tuple[str, ...]
    reason: str
    verdict: Verdict
    find: Callable[[Context], Finding | None]


@dataclass(frozen=True)
class Refusal:
    """A rule's objection to a strategy, with the nearest changes that would settle it.

    ``str()`` gives the line a user reads: ``strategy.tp: must divide num_heads (96). Got 7. Try 6 or 8.``
    """

    rule: str
    field: str
    must: str
    got: object
    reason: str
    alternatives: tuple[Overrides, ...] = dataclasses.field(default=(), compare=False)

    @property
    def hint(self) -> str:
        """The alternatives as a sentence; empty if there are none."""
        if not self.alternatives:
            return ""
        return f"Try {' or '.join(_spell(self.field, overrides) for overrides in self.alternatives)}."

    def error(self, where: str = "") -> InvalidStrategyError:
        """The exception for this refusal.

        Parameters
        ----------
        where : str
            ``file:line`` of the value, if it came from a file.
        """
        error = InvalidStrategyError(self.field, self.must, self.got, hint=self.hint, where=where)
        error.rule = self.rule
        return error

    def __str__(self) -> str:
        return str(self.error())


def _spell(field_name: str, overrides: Overrides) -> str:
    """One alternative: the value itself where it is of the field that is blamed."""
    if tuple(overrides) == (field_name,):
        value = overrides[field_name]
        return "leaving it out" if value is None else _text(value)
    given = [f"{name}={_text(value)}" for name, value in overrides.items() if value is not None]
    absent = [name for name, value in overrides.items() if value is None]
    if not given:
        return f"leaving out {' and '.join(absent)}"
    return " with ".join(given) + (f" without {' and '.join(absent)}" if absent else "")


def _text(value: object) -> str:
    """A value as YAML states it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


class RuleSet(list[Rule]):
    """A list of rules that functions join by decoration."""

    def _join(
        self, identifier: str, fields: str, reason: str, verdict: Verdict
    ) -> Callable[[Callable[[Context], Finding | None]], Callable[[Context], Finding | None]]:
        def decorate(find: Callable[[Context], Finding | None]) -> Callable[[Context], Finding | None]:
            self.append(Rule(identifier, tuple(fields.split()), reason, verdict, find))
            return find

        return decorate

    def refuse(
        self, identifier: str, fields: str, reason: str
    ) -> Callable[[Callable[[Context], Finding | None]], Callable[[Context], Finding | None]]:
        """Decorator: the function refuses strategies."""
        return self._join(identifier, fields, reason, "invalid")

    def warn(
        self, identifier: str, fields: str, reason: str
    ) -> Callable[[Callable[[Context], Finding | None]], Callable[[Context], Finding | None]]:
        """Decorator: the function only warns; the strategy plays."""
        return self._join(identifier, fields, reason, "warn")


def near_divisors(value: int, of: int, *, most: int | None = None) -> list[int]:
    """Divisors of ``of`` around ``value``: the nearest below, then the nearest above, then further ones.

    Parameters
    ----------
    value : int
        The value that does not divide.
    of : int
        The number to divide.
    most : int, optional
        Largest divisor of interest.
    """
    limit = of if most is None else min(of, most)
    divisors = [d for d in _divisors(of) if d <= limit and d != value]
    below = sorted((d for d in divisors if d < value), reverse=True)
    above = sorted(d for d in divisors if d > value)
    ordered: list[int] = []
    for index in range(max(len(below), len(above))):
        ordered += below[index : index + 1] + above[index : index + 1]
    return ordered


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def ways(field_name: str, values: Sequence[object]) -> tuple[Overrides, ...]:
    """One single-field change per value."""
    return tuple({field_name: value} for value in values)
