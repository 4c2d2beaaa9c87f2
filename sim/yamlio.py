"""Strict YAML with line numbers, and one-line errors ``field: must ... Got ... (file:line)``.

Stricter than YAML 1.1: duplicate keys, anchors and tags are refused; only ``true`` and ``false`` are
booleans; there are no dates, no octal and no base-60 numbers.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from sim.errors import InputError
from sim.units import SIValue, nearest

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
ModelT = TypeVar("ModelT", bound=BaseModel)
PathKey = tuple[str | int, ...]

_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan"
)
_MOST_DIGITS = 400
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map")}


class _Loader(_Base):  # type: ignore[misc]
    """Composes nodes with our own scalar rules; nothing is constructed by PyYAML."""

    yaml_implicit_resolvers: typing.ClassVar[dict[str, Any]] = {}


def _read_scalar(text: str) -> Any:
    """Value of a plain (unquoted) scalar."""
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        # Of more digits Python reads no integer; as a number it is infinite, which every field refuses.
        return int(digits) if len(digits := text.replace("_", "")) <= _MOST_DIGITS else float(digits)
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
    return text


@dataclass(frozen=True)
class Document:
    """Plain data of one file and the line of every entry; what a reader assumed of it, by field."""

    data: dict[str, Any]
    path: str = ""
    lines: dict[PathKey, int] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)

    def line(self, path: PathKey) -> int:
        """Line of the entry at ``path``, or of its nearest ancestor; 0 if there is no file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def where(self, path: PathKey) -> str:
        """``file:line`` of the entry at ``path``; empty if there is no file."""
        line = self.line(path)
        return f"{self.path}:{line}" if line else self.path

    def part(self, key: str) -> Document:
        """The mapping below ``key`` as a document of its own; an absent one is empty."""
        lines = {path[1:]: line for path, line in self.lines.items() if path[:1] == (key,)}
        data = self.data.get(key)
        return Document(data if isinstance(data, dict) else {}, self.path, lines)

    def without(self, *keys: str) -> Document:
        """The same document without some top-level keys."""
        return Document({k: v for k, v in self.data.items() if k not in keys}, self.path, self.lines)


class _Builder:
    """Turns composed nodes into plain data and remembers lines."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.lines: dict[PathKey, int] = {}
        self._seen: set[int] = set()
        self._keep: list[Any] = []

    def build(self, node: yaml.Node, path: PathKey) -> Any:
        # An alias has the node, and so the line, of its anchor; the key's own line is known already.
        line = self.lines.setdefault(path, node.start_mark.line + 1)
        # Every node is visited once unless it is reached again through an alias.
        if id(node) in self._seen:
            raise self._error(path, "not use YAML anchors and aliases", line)
        self._seen.add(id(node))
        self._keep.append(node)
        if node.tag not in _TAGS and not (isinstance(node, yaml.ScalarNode) and node.tag in ("", "!")):
            raise self._error(path, "not use YAML tags", line, node.tag)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        plain = getattr(node, "style", None) in (None, "") and node.tag != "!"
        return _read_scalar(str(node.value)) if plain else str(node.value)

    def _mapping(self, node: yaml.MappingNode, path: PathKey) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(path, "have plain text or numbers as keys", line)
            key = self.build(key_node, (*path, f"key at {line}:{key_node.start_mark.column}"))
            key = "null" if key is None else key
            if key in result:
                raise self._error(
                    (*path, key), f"be given once; it is also on line {self.lines[(*path, key)]}", line
                )
            self.lines[(*path, key)] = line
            result[key] = self.build(value_node, (*path, key))
        return result

    def _error(self, path: PathKey, must: str, line: int, got: object = None) -> InputError:
        return InputError(dotted(path) or Path(self.label).name, must, got, where=f"{self.label}:{line}")


def dotted(path: typing.Sequence[str | int]) -> str:
    """``("nics", 0, "bandwidth")`` -> ``nics[0].bandwidth``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def loads(text: str, label: str = "") -> Document:
    """Read YAML text whose top level is a mapping; ``label`` stands for the file in messages."""
    name = Path(label).name or "YAML"
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise InputError(name, "not be empty", where=label)
        builder = _Builder(label)
        data = builder.build(node, ())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        raise InputError(name, f"be valid YAML: {problem}", where=f"{label}{line}") from None
    except RecursionError:
        raise InputError(name, "not be nested so deeply", where=label) from None
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(data, dict):
        raise InputError(name, "be a mapping of fields at the top", type(data).__name__, where=f"{label}:1")
    return Document(data, label, builder.lines)


def load(path: str | Path) -> Document:
    """Read a YAML file whose top level is a mapping.

    Raises
    ------
    InputError
        If the file cannot be read or is not strict YAML.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            str(path), f"be a readable file: {(error.strerror or 'unreadable').lower()}"
        ) from None
    except UnicodeDecodeError:
        raise InputError(str(path), "be UTF-8 text") from None
    return loads(text, str(path))


def read_value(text: str) -> Any:
    """Value of a command line override: a scalar, or a flow list such as ``[1, 2]``."""
    stripped = text.strip()
    if stripped[:1] in ("[", "{"):
        return loads(f"value: {stripped}", "--set").data["value"]
    return _read_scalar(stripped)


class _Dumper(yaml.SafeDumper):
    """Indents sequences below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML quotes what YAML 1.1 would misread; our number rules are a little wider (1e5), and it writes
    # some control characters as they are.
    plain = isinstance(_read_scalar(text), str) and text.replace("\n", "").isprintable()
    style = None if plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _jsonable(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _jsonable(value.model_dump(by_alias=True))
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return value


def dumps(data: Any) -> str:
    """Write plain data (or a model) as YAML that ``loads`` reads back."""
    return yaml.dump(_jsonable(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def set_path(data: Any, path: str, value: Any) -> None:
    """Set ``a.b.0.c`` in nested plain data, in place; missing mappings are created, ``*`` is every index."""
    *parents, last = path.split(".")
    target: Any = data
    for depth, part in enumerate([*parents, last]):
        if part == "*" and isinstance(target, list):
            rest = ".".join([*parents, last][depth + 1 :])
            for index in range(len(target)):
                if not rest or not isinstance(target[index], dict | list):
                    target[index] = value if not rest else {}
                if rest:
                    set_path(target[index], rest, value)
            return
        if depth == len(parents):
            break
        if isinstance(target, list):
            target = target[_index(target, part, path)]
            continue
        if not isinstance(target.get(part), dict | list):
            target[part] = {}
        target = target[part]
    if isinstance(target, list):
        target[_index(target, last, path)] = value
    else:
        target[last] = value


def _index(items: list[Any], part: str, path: str) -> int:
    if not part.isdigit() or int(part) >= len(items):
        raise InputError(path, f"use an index below {len(items)}", part)
    return int(part)


def validate(
    model_type: type[ModelT],
    document: Document | Mapping[str, Any],
    *,
    field_prefix: str = "",
    overrides: Mapping[str, Any] | None = None,
) -> ModelT:
    """Build a model from a document; the first error becomes one ``InputError`` line.

    Parameters
    ----------
    model_type : type
        The pydantic model.
    document : Document or mapping
        Values from a YAML file are read strictly (a bare number where a unit belongs is refused);
        a plain mapping from Python may give SI numbers.
    field_prefix : str
        Put before the field in messages, e.g. ``"strategy"``.
    overrides : mapping
        Dotted field -> text, as ``--set`` gives it, or a Python value in SI; wins over the document.
    """
    strict = isinstance(document, Document)
    if not isinstance(document, Document):
        document = Document(dict(document))
    data = document.data
    if overrides:
        data = _copy(data)
        for path, text in overrides.items():
            set_path(data, path, read_value(text) if isinstance(text, str) else _as_si(text))
    try:
        model = model_type.model_validate(data, context={"strict_units": strict})
        if strict:
            check_booleans(model, data, (), document, field_prefix)
        return model
    except ValidationError as error:
        raise _one_line(
            error, model_type, Document(data, document.path, document.lines), field_prefix, overrides
        ) from None


def check_booleans(model: Any, data: Any, path: PathKey, document: Document, prefix: str) -> None:
    """Refuse ``tp: true`` and ``overlap: yes``, which pydantic would convert.

    Parameters
    ----------
    model : object
        What was built from ``data``, which lies at ``path`` of ``document``.
    data : object
        Plain data.
    path : tuple
        Keys that lead to it.
    document : Document
        Knows the lines.
    prefix : str
        Put before the field in messages.

    Raises
    ------
    InputError
        A boolean stands where something else is asked, or the other way round.
    """
    if isinstance(data, dict):
        for key, item in data.items():
            value = model.get(key) if isinstance(model, Mapping) else getattr(model, str(key), None)
            check_booleans(value, item, (*path, key), document, prefix)
    elif isinstance(data, list) and isinstance(model, tuple | list):
        for i, (value, item) in enumerate(zip(model, data, strict=False)):
            check_booleans(value, item, (*path, i), document, prefix)
    elif isinstance(model, bool) != isinstance(data, bool) and model is not None:
        name = dotted((prefix, *path) if prefix else path)
        must = "be true or false" if isinstance(model, bool) else "not be true or false"
        raise InputError(name, must, _show(data), where=document.where(path))


def _as_si(value: Any) -> Any:
    """Mark the numbers of a Python value as SI, so that strict reading of units lets them pass."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        return SIValue(value) if isinstance(value, float) else value
    if isinstance(value, Mapping):
        return {key: _as_si(item) for key, item in value.items()}
    return [_as_si(item) for item in value] if isinstance(value, list | tuple) else value


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value


def _one_line(
    error: ValidationError,
    model_type: type[BaseModel],
    document: Document,
    prefix: str,
    overrides: Mapping[str, Any] | None,
) -> InputError:
    details = error.errors(include_url=False)
    # A misspelt field usually also makes a required one missing; the spelling is what the user wants to hear.
    first = min(details, key=lambda item: item["type"] != "extra_forbidden")
    path = _data_path(first["loc"], document.data)
    context = first.get("ctx", {})
    if extra := context.get("field"):
        path = (*path, *(int(part) if part.isdigit() else part for part in str(extra).split(".")))
    if first["type"] == "union_tag_invalid":
        path = (*path, str(context.get("discriminator", "")).strip("'"))
    # Validators may have converted the value already; the user should see what was written.
    first["input"] = _value_at(document.data, path, first["input"])
    must, got, hint = _describe(first["type"], context, first, model_type)
    name = dotted((prefix, *path) if prefix else path)
    given = dotted(path) in (overrides or {}) or ".".join(map(str, path)) in (overrides or {})
    return InputError(
        name or model_type.__name__.lower(), must, got, hint=hint, where="" if given else document.where(path)
    )


def _data_path(loc: tuple[int | str, ...], data: Any) -> PathKey:
    """Drop from a pydantic location the tags of unions, which are no keys of the data."""
    path: PathKey = ()
    for i, part in enumerate(loc):
        is_key = (isinstance(data, Mapping) and part in data) or (
            isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
        )
        if is_key:
            data = data[part]
            path = (*path, part)
        elif i == len(loc) - 1 and isinstance(data, Mapping) and part != "[key]":
            path = (*path, part)
    return path


def _value_at(data: Any, path: PathKey, default: Any) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return default
    return data


def _show(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _describe(
    kind: str, context: dict[str, Any], item: Any, model_type: type[BaseModel]
) -> tuple[str, str | None, str]:
    """Requirement, given value and hint of one pydantic error."""
    value = item["input"]
    if kind == "clusterloom":
        return str(context["must"]), str(context["got"]) or None, str(context["hint"])
    if kind == "invalid_key":
        return "be the name of a field", None, ""
    if kind == "missing":
        return "be given", None, ""
    if kind == "extra_forbidden":
        owner = _model_at(model_type, item["loc"][:-1])
        names = [info.alias or name for name, info in owner.model_fields.items()] if owner else []
        close = nearest(str(item["loc"][-1]), names)
        hint = (
            f"Try {close}."
            if close
            else (f"Known fields: {', '.join(names)}." if 0 < len(names) <= 20 else "")
        )
        return "be a known field", None, hint
    if kind in ("literal_error", "enum", "union_tag_invalid"):
        expected = context.get("expected") or context.get("expected_tags", "")
        choices = [text.strip("'") for text in re.findall(r"'[^']*'|[-+.\w]+", str(expected)) if text != "or"]
        given = context.get("tag", value)
        close = nearest(str(given), choices)
        return f"be one of {', '.join(choices)}", _show(given), f"Try {close}." if close else ""
    return requirement(kind, context, item["msg"]), _show(value), ""


def requirement(kind: str, context: Mapping[str, Any], message: str) -> str:
    """What a value must be, after the word "must", from the kind, context and message of a pydantic error."""
    simple = _BOUNDS.get(kind)
    if simple:
        return simple.format(**{k: _number(v) for k, v in context.items()})
    return _TYPES.get(kind, _lower_message(message))


def _number(value: Any) -> Any:
    return f"{value:g}" if isinstance(value, float) else value


def _lower_message(message: str) -> str:
    text = message.removeprefix("Value error, ").removeprefix("Input should ").rstrip(".")
    return text if text.startswith(("be ", "have ")) else f"be valid: {text[:1].lower()}{text[1:]}"


_BOUNDS = {
    "greater_than": "be greater than {gt}",
    "greater_than_equal": "be at least {ge}",
    "less_than": "be less than {lt}",
    "less_than_equal": "be at most {le}",
    "multiple_of": "be a multiple of {multiple_of}",
    "too_short": "have at least {min_length} entries",
    "too_long": "have at most {max_length} entries",
    "string_too_short": "have at least {min_length} characters",
}
_TYPES = {
    "int_type": "be a whole number",
    "int_parsing": "be a whole number",
    "int_from_float": "be a whole number",
    "int_parsing_size": "be a smaller whole number",
    "float_type": "be a number",
    "float_parsing": "be a number",
    "finite_number": "be finite",
    "bool_type": "be true or false",
    "bool_parsing": "be true or false",
    "string_type": "be text",
    "tuple_type": "be a list",
    "list_type": "be a list",
    "dict_type": "be a mapping",
    "model_type": "be a mapping of fields",
    "model_attributes_type": "be a mapping of fields",
}


def _model_at(annotation: Any, loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model class that the location ends in."""
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not loc:
            return annotation
        for name, info in annotation.model_fields.items():
            if loc[0] in (name, info.alias):
                return _model_at(info.annotation, loc[1:])
        # The tag of a union stands in the location before the member's own fields.
        return _model_at(annotation, loc[1:]) if _is_tag(annotation, loc[0]) else None
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        found = [_model_at(argument, loc) for argument in arguments if argument is not type(None)]
        return next((model for model in found if model is not None), None)
    if origin in (tuple, list) and loc:
        return next((m for a in arguments if a is not ... and (m := _model_at(a, loc[1:]))), None)
    if origin is dict and loc:
        return _model_at(arguments[1], loc[1:])
    return None


def _is_tag(model: type[BaseModel], tag: int | str) -> bool:
    return tag == model.__name__ or any(info.default == tag for info in model.model_fields.values())
