"""Tables (pandas) of what the lower layers keep as columns."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sim.timeline import Timeline


def timeline_frame(timeline: Timeline) -> pd.DataFrame:
    """A timeline as a table: names instead of numbers, units in the column names.

    Returns
    -------
    DataFrame
        ``name, device, stream, kind, cause, iteration, step, micro_batch, ready_s, posted_s, start_s, end_s,
        bytes, rank_class, multiplicity, dropped, task``; one row per participant, order kept.
    """
    times = {f"{name}_s": timeline[name] for name in ("ready", "posted", "start", "end")}
    return pd.DataFrame(
        {
            "name": _labels(timeline.names, timeline.integer("name")),
            "device": _labels(timeline.devices, timeline.integer("device")),
            "stream": _labels(timeline.streams, timeline.integer("stream")),
            "kind": _labels(timeline.kinds, timeline.integer("kind")),
            "cause": _labels(timeline.causes, timeline.integer("cause")),
            "iteration": timeline.integer("iteration"),
            "step": timeline.integer("step"),
            "micro_batch": timeline.integer("micro_batch"),
            **times,
            "bytes": timeline["bytes"],
            "rank_class": timeline.integer("rank_class"),
            "multiplicity": timeline.integer("multiplicity"),
            "dropped": np.asarray(timeline.columns["dropped"], bool),
            "task": timeline.integer("task"),
        }
    )


def _labels(names: tuple[str, ...], index: np.ndarray) -> np.ndarray:
    """Names by index; -1 becomes the empty string."""
    table = np.array([*names, ""], dtype=object)
    return np.asarray(table[index])
