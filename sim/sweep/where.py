"""Where expressions: ``peak_memory_bytes < 80GB and (strategy.tp == 8 or mfu >= 40%)``.

A small recursive-descent parser; nothing is ever handed to ``eval``. Numbers may carry a unit, which is
read in the dimension that the column's suffix names (``_bytes``, ``_s`` ...); a bare number is in the
column's own unit.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sim.errors import InputError
from sim.sweep.columns import BY_NAME as RESULT_COLUMNS
from sim.sweep.columns import names_hint
from sim.units import parse_quantity

_TOKEN = re.compile(
    r"\s*(?:(?P<operator><=|>=|==|!=|<>|&&|\|\||[<>=(),])"
    r"|(?P<text>'[^']*'|\"[^\"]*\")"
    r"|(?P<number>[-+]?\$?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?:\s?(?!(?:and|or|in|not)\b)[A-Za-z%][A-Za-z/%]*|/h)?)"
    r"|(?P<word>[A-Za-z_][\w.\-:]*))"
)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
}
_KEYWORDS = frozenset({"and", "or", "not", "in", "true", "false"})
_SUFFIX_DIMENSION = (
    ("bytes_per_s", "bytes_per_second"),
    ("per_s", ""),
    ("bytes", "bytes"),
    ("bucket_size", "bytes"),
    ("_s", "seconds"),
    ("mfu", "fraction"),
    ("fraction", "fraction"),
    ("efficiency", "fraction"),
    ("overlap_ratio", "fraction"),
    ("jitter", "fraction"),
    ("price_per_hour", "dollars_per_hour"),
)

Row = Mapping[Any, Any]


def column_dimension(column: str) -> str:
    """Dimension of a column by its name's suffix; empty for plain numbers."""
    for suffix, dimension in _SUFFIX_DIMENSION:
        if column.endswith(suffix):
            return dimension
    return ""


@dataclass(frozen=True)
class _Operand:
    """A column, a number (with its text, for units) or a string."""

    text: str
    kind: str  # column | number | text | boolean


@dataclass(frozen=True)
class _Comparison:
    operands: tuple[_Operand, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True)
class _Membership:
    operand: _Operand
    choices: tuple[_Operand, ...]


@dataclass(frozen=True)
class _Combination:
    kind: str  # and | or | not
    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Where:
    """A parsed filter; ``Where.parse(text)`` then ``matches(row)``.

    Attributes
    ----------
    text : str
        The expression as the user wrote it.
    """

    text: str
    _root: Any
    _field: str = "--where"

    @classmethod
    def parse(cls, text: str, *, field: str = "--where") -> Where:
        """Parse an expression; raise `InputError` that points at what is wrong."""
        parser = _Parser(text, field)
        return cls(text, parser.parse(), field)

    @property
    def columns(self) -> frozenset[str]:
        """Words of the expression that may be column names."""
        return frozenset(o.text for part in _comparisons(self._root) for o in part if o.kind == "column")

    def check(self, columns: Collection[str]) -> None:
        """Refuse a comparison that names no column of a table, or whose numbers do not fit its unit."""
        for operands in _comparisons(self._root):
            words = [operand.text for operand in operands if operand.kind == "column"]
            if not any(word in columns for word in words):
                word = words[0] if words else self.text
                hint = names_hint(word, columns)
                raise InputError(self._field, "name a column of the table", word, hint=hint)
            column = next(word for word in words if word in columns)
            for operand in operands:
                if operand.kind == "number":
                    _value(operand, {}, column_dimension(column), self._field)

    def decidable_by(self, columns: Collection[str]) -> bool:
        """Whether these columns suffice to decide."""
        words = [[o.text for o in operands if o.kind == "column"] for operands in _comparisons(self._root)]
        known = all(any(word in columns for word in group) for group in words)
        return known and not any(word in RESULT_COLUMNS and word not in columns for word in self.columns)

    def matches(self, row: Row) -> bool:
        """Whether a row passes; a comparison with a missing value never does."""
        return _evaluate(self._root, row, self._field)


class _Parser:
    """Tokens -> tree; one method per grammar rule."""

    def __init__(self, text: str, field: str) -> None:
        self.text, self.field, self.position = text, field, 0
        self.tokens = self._tokenise()

    def _tokenise(self) -> list[tuple[str, str]]:
        tokens, at = [], 0
        while at < len(self.text.rstrip()):
            match = _TOKEN.match(self.text, at)
            if match is None:
                raise self.error(f"be an expression; {self.text[at:].strip()[:20]!r} is not understood")
            kind = str(match.lastgroup)
            tokens.append((kind, match.group(kind)))
            at = match.end()
        return tokens

    def error(self, must: str) -> InputError:
        return InputError(
            self.field, must, repr(self.text), hint="Example: 'peak_memory_bytes<80GB and num_devices>=8'."
        )

    def peek(self) -> str:
        return self.tokens[self.position][1] if self.position < len(self.tokens) else ""

    def take(self, *texts: str) -> bool:
        if (
            self.position < len(self.tokens)
            and self.tokens[self.position][0] != "text"
            and self.peek() in texts
        ):
            self.position += 1
            return True
        return False

    def parse(self) -> Any:
        root = self.any_of()
        if self.position < len(self.tokens):
            raise self.error(f"join comparisons with `and` or `or`; {self.peek()!r} is not expected there")
        return root

    def any_of(self) -> Any:
        parts = [self.all_of()]
        while self.take("or", "||"):
            parts.append(self.all_of())
        return parts[0] if len(parts) == 1 else _Combination("or", tuple(parts))

    def all_of(self) -> Any:
        parts = [self.negation()]
        while self.take("and", "&&", ","):
            parts.append(self.negation())
        return parts[0] if len(parts) == 1 else _Combination("and", tuple(parts))

    def negation(self) -> Any:
        if self.take("not"):
            return _Combination("not", (self.negation(),))
        if self.take("("):
            inner = self.any_of()
            if not self.take(")"):
                raise self.error("close every parenthesis")
            return inner
        return self.comparison()

    def comparison(self) -> Any:
        operands = [self.operand()]
        if self.take("in"):
            return _Membership(operands[0], self.choices())
        operators = []
        while self.peek() in _COMPARE and self.tokens[self.position][0] == "operator":
            operators.append(self.peek())
            self.position += 1
            operands.append(self.operand())
        return _Comparison(tuple(operands), tuple(operators))

    def choices(self) -> tuple[_Operand, ...]:
        if not self.take("("):
            raise self.error("list choices as `in (a, b)`")
        choices = [self.operand()]
        while self.take(","):
            choices.append(self.operand())
        if not self.take(")"):
            raise self.error("close every parenthesis")
        return tuple(choices)

    def operand(self) -> _Operand:
        if self.position >= len(self.tokens):
            raise self.error("end with a value")
        kind, text = self.tokens[self.position]
        self.position += 1
        if kind == "number":
            return _Operand(text, "number")
        if kind == "text":
            return _Operand(text[1:-1], "text")
        if kind == "word" and text.lower() in ("true", "false"):
            return _Operand(text.lower(), "boolean")
        if kind == "word" and text not in _KEYWORDS:
            return _Operand(text, "column")
        raise self.error(f"have a column or a value where {text!r} stands")


def _comparisons(node: Any) -> list[tuple[_Operand, ...]]:
    """Operands of each comparison; at least one of them must be a column."""
    if isinstance(node, _Combination):
        return [operands for part in node.parts for operands in _comparisons(part)]
    return [(node.operand, *node.choices) if isinstance(node, _Membership) else node.operands]


def _evaluate(node: Any, row: Row, field: str) -> bool:
    if isinstance(node, _Combination):
        results = (_evaluate(part, row, field) for part in node.parts)
        if node.kind == "not":
            return not next(results)
        return all(results) if node.kind == "and" else any(results)
    if isinstance(node, _Membership):
        return any(_compare("==", node.operand, choice, row, field) for choice in node.choices)
    if not node.operators:
        return bool(_value(node.operands[0], row, "", field) is True)
    pairs = zip(node.operands, node.operators, node.operands[1:], strict=False)
    return all(_compare(symbol, left, right, row, field) for left, symbol, right in pairs)


def _compare(symbol: str, left: _Operand, right: _Operand, row: Row, field: str) -> bool:
    dimension = column_dimension(_column_of(left, row) or _column_of(right, row))
    a, b = _value(left, row, dimension, field), _value(right, row, dimension, field)
    if _missing(a) or _missing(b):
        return False
    if isinstance(a, str) != isinstance(b, str):
        if symbol in ("==", "=", "!=", "<>"):
            return symbol in ("!=", "<>")
        raise InputError(field, "compare a number with a number", f"{left.text} {symbol} {right.text}")
    return bool(_COMPARE[symbol](a, b))


def _column_of(operand: _Operand, row: Row) -> str:
    return operand.text if operand.kind == "column" and operand.text in row else ""


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _value(operand: _Operand, row: Row, dimension: str, field: str) -> Any:
    if operand.kind == "column":
        return row.get(operand.text, operand.text)
    if operand.kind == "boolean":
        return operand.text == "true"
    if operand.kind == "text":
        return operand.text
    try:
        return float(operand.text)
    except ValueError:
        pass
    if not dimension:
        raise InputError(field, "be a plain number for a column without a unit", operand.text)
    try:
        return parse_quantity(operand.text, dimension)
    except InputError as error:
        raise InputError(field, error.must, operand.text, hint=error.hint) from None
