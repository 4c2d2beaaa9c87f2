"""``clusterloom show dimension NAME``: its values, how to set them, and the rules that speak of it."""

from __future__ import annotations

from typing import Any

from sim.cli.output import console, emit_json, escape, grid
from sim.errors import InputError


def show_dimension(name: str, *, json: bool) -> int:
    """Explain one dimension of the taxonomy."""
    from sim.taxonomy import DIMENSIONS, dimension

    if not name:
        known = ", ".join(f"{each.id} ({each.name})" for each in DIMENSIONS)
        raise InputError("NAME", f"be the id or name of a dimension: {known}")
    found = dimension(name)
    rules = _rules(found)
    if json:
        values = [
            {
                "name": v.name,
                "description": v.description,
                "settings": dict(v.settings),
                "fields": list(v.fields),
            }
            for v in found.values
        ]
        head = {"id": found.id, "name": found.name, "question": found.question, "source": found.source}
        emit_json({**head, "values": values, "rules": rules})
        return 0
    screen = console()
    screen.print(f"[bold]{found.id} {escape(found.name)}[/bold]: {escape(found.question)}")
    screen.print(f"source: {escape(found.source)}", soft_wrap=True)
    screen.print()
    lines = [(v.name, _how(v), v.description) for v in found.values]
    screen.print(grid([("value", "left"), ("--set", "left"), ("meaning", "left")], lines))
    if rules:
        rows = [(rule["id"], rule["verdict"], rule["reason"]) for rule in rules]
        screen.print(grid([("rule", "left"), ("verdict", "left"), ("because", "left")], rows))
    return 0


def _how(value: Any) -> str:
    settings = [f"{name}={_text(setting)}" for name, setting in value.settings.items()]
    return " ".join([*settings, *(f"{name}=..." for name in value.fields)])


def _text(setting: object) -> str:
    return str(setting).lower() if isinstance(setting, bool) else str(setting)


def _rules(found: Any) -> list[dict[str, str]]:
    """Rules that look at a field which the dimension sets."""
    from sim.taxonomy import ALL_RULES

    fields = {name for value in found.values for name in (*value.settings, *value.fields)}
    short = fields | {name.removeprefix("strategy.") for name in fields}
    return [
        {"id": rule.id, "verdict": rule.verdict, "reason": rule.reason}
        for rule in ALL_RULES
        if short & set(rule.fields)
    ]
