"""Two results side by side: the difference of their step times, attributed to causes."""

from __future__ import annotations

import math

import pandas as pd

from sim.analysis.breakdown import PARTS
from sim.analysis.result import Result
from sim.errors import InputError

_HEADLINE = (
    "step_time_s",
    "samples_per_s",
    "tokens_per_s_per_device",
    "mfu",
    "num_devices",
    "peak_memory_bytes",
    "overlap_fraction",
    "busy_fraction",
    "energy_joules_per_step",
    "price_per_sample",
)


class Comparison:
    """What changed between two results.

    Parameters
    ----------
    first, second : Result
        Both with status ``ok``.
    """

    def __init__(self, first: Result, second: Result) -> None:
        for name, result in (("first", first), ("second", second)):
            if not result.ok:
                raise InputError(
                    f"compare.{name}", "be a result with status ok", result.status, hint=result.message
                )
            if result.step_time_s is None:
                raise InputError(f"compare.{name}", "have a step time", "none")
        self.first, self.second = first, second

    @property
    def difference_s(self) -> float:
        """Step time of the second minus the first (s)."""
        return float(self.second.step_time_s or 0.0) - float(self.first.step_time_s or 0.0)

    def parts(self) -> dict[str, float]:
        """Seconds by which each cause changed; ``math.fsum`` of the values is exactly ``difference_s``.

        Rounding (below 1e-9 of a step) goes to the largest part.
        """
        change = {name: self.second.parts.get(name, 0.0) - self.first.parts.get(name, 0.0) for name in PARTS}
        largest = max(change, key=lambda name: abs(change[name]))
        # fsum may need two corrections: the first can itself round.
        for _ in range(4):
            rest = math.fsum([self.difference_s, *(-value for value in change.values())])
            if rest == 0.0:
                break
            change[largest] += rest
        return change

    def breakdown(self) -> pd.DataFrame:
        """Per cause: seconds in both, the change, and its share of the whole change."""
        change, total = self.parts(), self.difference_s
        rows = [
            {
                "cause": name.removesuffix("_s"),
                "first_s": self.first.parts.get(name, 0.0),
                "second_s": self.second.parts.get(name, 0.0),
                "change_s": change[name],
                "share": change[name] / total if total else 0.0,
            }
            for name in PARTS
        ]
        return pd.DataFrame(rows)

    def tasks(self) -> pd.DataFrame:
        """Task seconds per step over all devices by cause of the task, overlapped or not."""
        causes = sorted(set(self.first.task_seconds) | set(self.second.task_seconds))
        first = [self.first.task_seconds.get(cause, 0.0) for cause in causes]
        second = [self.second.task_seconds.get(cause, 0.0) for cause in causes]
        change = [after - before for before, after in zip(first, second, strict=True)]
        return pd.DataFrame({"cause": causes, "first_s": first, "second_s": second, "change_s": change})

    def headline(self) -> pd.DataFrame:
        """The main numbers of both and the ratio second / first."""
        rows = []
        for name in _HEADLINE:
            before, after = getattr(self.first, name), getattr(self.second, name)
            ratio = after / before if before and after is not None else None
            rows.append({"metric": name, "first": before, "second": after, "ratio": ratio})
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "first_step_time_s": self.first.step_time_s,
            "second_step_time_s": self.second.step_time_s,
            "difference_s": self.difference_s,
            "parts": self.parts(),
            "tasks": self.tasks().to_dict(orient="records"),
        }

    def __str__(self) -> str:
        before, after = self.first.step_time_s, self.second.step_time_s
        lines = [f"step time {before:.6g} s -> {after:.6g} s ({self.difference_s:+.6g} s)"]
        lines += [
            f"  {name.removesuffix('_s'):<14} {value:+.6g} s" for name, value in self.parts().items() if value
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        table: str = self.breakdown().to_html(index=False)
        return table


def compare(first: Result, second: Result) -> Comparison:
    """Attribute the difference between two step times to causes.

    Parameters
    ----------
    first, second : Result
        Simulated, or loaded by :func:`sim.load_result`.
    """
    return Comparison(first, second)
