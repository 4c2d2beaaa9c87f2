"""Every valid strategy of a product of axes, and why the others are refused."""

from __future__ import annotations

import builtins
import difflib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from sim.errors import InputError
from sim.spec.cluster import Cluster
from sim.spec.strategy import Strategy
from sim.spec.sweep import limit_points
from sim.spec.workload import Workload
from sim.taxonomy.context import ClusterFacts, Context, WorkloadFacts
from sim.taxonomy.rules import rule, violations


@dataclass(frozen=True)
class Enumeration:
    """The outcome of `enumerate`.

    Parameters
    ----------
    valid : list of Strategy
        Strategies no rule refuses, in the order of the product (last axis fastest).
    refused : Counter of str
        Refused points by rule id. A point counts once, under the first rule that refuses it, so
        ``len(valid) + refused.total()`` is the size of the product.
    examples : dict of str to Strategy
        The first strategy each rule refused.
    """

    valid: list[Strategy]
    refused: Counter[str]
    examples: dict[str, Strategy]

    @property
    def reasons(self) -> dict[str, str]:
        """Why, by rule id, for the rules that refused something; most frequent first."""
        return {identifier: rule(identifier).reason for identifier, _ in self.refused.most_common()}

    @property
    def total(self) -> int:
        """Number of points of the product."""
        return len(self.valid) + self.refused.total()


def enumerate(
    workload: Workload,
    cluster: Cluster,
    axes: Mapping[str, Iterable[Any]],
    *,
    base: Strategy | None = None,
) -> Enumeration:
    """Combine the values of some strategy fields freely and keep what means something.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    axes : mapping of str to iterable
        Strategy field (``"tp"`` or ``"strategy.tp"``) to the values it takes.
    base : Strategy, optional
        The strategy whose other fields are kept; the default strategy if absent.

    Raises
    ------
    InputError
        If an axis is no strategy field or a value is none of the field's.
    """
    names = [_field_name(axis) for axis in axes]
    values = [_parsed(name, axis_values) for name, axis_values in zip(names, axes.values(), strict=True)]
    limit_points(values, field="axes")
    base = base or Strategy()
    workload_facts, cluster_facts = WorkloadFacts.of(workload), ClusterFacts.of(cluster)
    valid: list[Strategy] = []
    refused: Counter[str] = Counter()
    examples: dict[str, Strategy] = {}
    for point in itertools.product(*values):
        strategy = base.model_copy(update=dict(zip(names, point, strict=True)))
        broken = violations(Context(strategy, workload, workload_facts, cluster_facts))
        if broken:
            identifier = broken[0][0].id
            refused[identifier] += 1
            examples.setdefault(identifier, strategy)
        else:
            valid.append(strategy)
    return Enumeration(valid, refused, examples)


def _field_name(axis: str) -> str:
    name = axis.removeprefix("strategy.")
    if name not in Strategy.model_fields:
        nearest = difflib.get_close_matches(name, Strategy.model_fields, 1)
        hint = f"Did you mean {nearest[0]}?" if nearest else f"Fields: {', '.join(Strategy.model_fields)}."
        raise InputError(f"axes.{axis}", "be a field of the strategy", hint=hint)
    return name


def _parsed(name: str, values: Iterable[Any]) -> list[Any]:
    parsed = []
    for index, value in builtins.enumerate(values):
        try:
            parsed.append(getattr(Strategy.model_validate({name: value}), name))
        except ValidationError as error:
            first = error.errors()[0]
            message = first.get("ctx", {}).get("must") or first["msg"]
            raise InputError(f"axes.{name}[{index}]", f"be a value of the field: {message}", value) from None
    return parsed
