"""What a row measured -> seconds of a step: times, throughputs, FLOP/s, shares of the peak."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sim.models.compute import model_flops
from sim.validate.hardware import gpu_count
from sim.validate.models import WORDS_PER_SAMPLE

if TYPE_CHECKING:
    from sim.validate.runs_loader import Run

_PER = r"\s*(?:/|per)\s*"
_SECOND = rf"{_PER}s(?:ec(?:ond)?s?)?\b"
_STEP = r"(?:it(?:er(?:ation)?)?s?|steps?|batch(?:es)?|updates?)"
_SAMPLE = r"(?:images?|img|sequences?|seqs?|samples?|sentences?|utterances?|examples?|items?|pairs?|volumes?)"
_TOKEN = r"(?:tokens?|toks?)"
_DEVICE = rf"{_PER}(?:gpu|chip|device|accelerator|card|hpu|tpu|gcd|core)s?\b|\beach gpu"
SCALES = {"k": 1e3, "m": 1e6, "thousand ": 1e3, "million ": 1e6}
FLOPS = {"t": 1e12, "p": 1e15, "g": 1e9}
PASSES = 3.0
"""A step computes the forward's FLOPs three times; recomputation is not counted (model FLOPs)."""


SHORTEST, LONGEST = 1e-6, 1e7
"""Seconds; a step time outside is taken for a slip."""


def measured_step(run: Run, tokens: int | None) -> tuple[float | None, str]:
    """Seconds of a step, or None and why there are none; no reason where the row states nothing."""
    found = step_seconds(run, tokens)
    if found is not None:
        inside = SHORTEST <= found <= LONGEST
        wrong = f"step time: must be from {SHORTEST:g} s to {LONGEST:g} s. Got {found:.4g} s."
        return (found, "") if inside else (None, wrong)
    row = run.row
    for column in ("value_native", "step_time_s"):
        text, value = row.text(column), row.number(column)
        if text and (value is None or value <= 0):
            return None, f"{column}: must be a number above 0. Got {text[:40]}."
    unit = row.text("unit_native")
    if row.text("value_native"):
        must = "a unit such as tokens/s, samples/s/GPU, TFLOP/s/GPU, s"
        return None, f"unit_native: must be {must}. Got {unit[:40] or 'nothing'}."
    return None, ""


def step_seconds(run: Run, tokens: int | None) -> float | None:
    """Seconds of a step: as stated, else from the row's metric; ``tokens`` are those a sample counts for.

    A unit is read as "what / s", with "/ GPU" behind it where the number is one device's; TFLOP/s and MFU
    count model FLOPs.
    """
    row = run.row
    stated = row.number("step_time_s")
    if stated is not None and stated > 0:
        return stated
    value, unit = row.number("value_native"), row.text("unit_native").lower().strip()
    if value is None or value <= 0:
        return None
    timed = re.fullmatch(rf"(ms|milliseconds?|s|sec(?:ond)?s?)(?:{_PER}{_STEP})?", unit)
    if timed:
        return value * (1e-3 if timed[1].startswith("m") else 1.0)
    if re.match(rf"{_STEP}{_SECOND}", unit):
        return 1 / value
    each = (gpu_count(row) or 1) if re.search(_DEVICE, unit) else 1
    scale, rest = _scaled(unit)
    return _by_count(run, value * scale * each, rest, tokens) or _by_flops(run, value, unit, each)


def _scaled(unit: str) -> tuple[float, str]:
    """Factor in front of a unit ("ktokens/s", "million samples/s"), and the unit without it."""
    for word, factor in SCALES.items():
        if re.match(rf"{word}[- ]?(?:{_TOKEN}|{_SAMPLE})", unit):
            return factor, unit[len(word) :].lstrip("- ")
    return 1.0, unit


def _by_count(run: Run, rate: float, unit: str, tokens: int | None) -> float | None:
    batch = int(run.params["global_batch_size"])
    if re.match(rf"{_SAMPLE}{_SECOND}", unit):
        return batch / rate
    if re.match(rf"words{_SECOND}", unit):
        return batch * WORDS_PER_SAMPLE / rate
    return batch * tokens / rate if re.match(rf"{_TOKEN}{_SECOND}", unit) and tokens else None


def _by_flops(run: Run, value: float, unit: str, each: int) -> float | None:
    """From FLOP/s of the job or of a device, or a share of the peak."""
    count, device = gpu_count(run.row) or 1, run.cluster.main_device
    work = PASSES * model_flops(run.workload()) * int(run.params["global_batch_size"])
    found = re.match(r"([tpg])flops?", unit)
    if found:
        return work / (value * FLOPS[found[1]] * each)
    if re.fullmatch(
        r"(%|percent|fraction)?\s*(of )?(mfu|model flops utili[sz]ation|peak)?\s*(%|percent)?", unit
    ) and ("mfu" in f"{unit} {run.row.text('metric_native').lower()}"):
        share = value / 100 if value > 1 else value
        return work / (share * device.peak(str(run.params["dtype"])) * count)
    return None
