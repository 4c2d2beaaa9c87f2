"""What the validity rules and the dimension table know about every pipeline schedule (dimension D12).

The order of work itself is in ``sim.models.schedules``, under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ScheduleFacts:
    """One pipeline schedule.

    Parameters
    ----------
    description : str
        For the table of dimensions.
    source : str
        Where it is published.
    chunks : int or None
        Different model chunks per rank, ``virtual_stages``; None: as many as the user wants, but several.
    bidirectional : bool
        Two replicas of the model run through the same ranks in opposite directions: rank s holds the stages s
        and p - 1 - s, and half of the micro-batches enter at either end.
    flushes : bool
        Whether all micro-batches of a step are done before the update.
    global_norm : bool
        Whether a stage's update waits for the gradient norm of all stages. Zero-bubble schedules update
        at once and validate afterwards; schedules without a flush have no common point in time.
    update_delay : int
        Steps between a step's gradients and the update that applies them.
    split_backward : bool
        Whether the gradients of weights are computed apart from those of inputs.
    even_stages : bool
        Whether it needs an even number of stages.
    micro_batches_of_stages : int
        At least so many times p micro-batches.
    even_micro_batches, whole_rounds : bool
        Whether micro-batches come in pairs, in multiples of p.
    """

    description: str
    source: str
    chunks: int | None = 1
    bidirectional: bool = False
    flushes: bool = True
    global_norm: bool = True
    update_delay: int = 0
    split_backward: bool = False
    even_stages: bool = False
    micro_batches_of_stages: int = 0
    even_micro_batches: bool = False
    whole_rounds: bool = False


_ZERO_BUBBLE = "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024"

SCHEDULES: Mapping[str, ScheduleFacts] = {
    "naive": ScheduleFacts("one micro-batch in the pipeline at a time", "layer-split model parallelism"),
    "gpipe": ScheduleFacts(
        "all forward, then all backward: bubble (p-1)/(m+p-1), m in flight",
        "Huang et al., GPipe, NeurIPS 2019",
    ),
    "1f1b": ScheduleFacts(
        "same bubble, at most p micro-batches in flight",
        "Narayanan et al., PipeDream, SOSP 2019, and SC 2021",
    ),
    "interleaved": ScheduleFacts(
        "v chunks per rank: bubble over v, v times the messages",
        "Narayanan et al., SC 2021, section 2.2",
        chunks=None,
        whole_rounds=True,
    ),
    "zb_h1": ScheduleFacts(
        "weight gradients fill the bubble: (p-1)(F+B-W), p micro-batches in flight",
        _ZERO_BUBBLE,
        global_norm=False,
        split_backward=True,
    ),
    "zb_h2": ScheduleFacts(
        "weight gradients fill the bubble: (p-1)(F+B-2W), 2p-1 micro-batches in flight",
        _ZERO_BUBBLE,
        global_norm=False,
        split_backward=True,
    ),
    "zb_v": ScheduleFacts(
        "two chunks per rank, there and back: no bubble if F = B = W, p micro-batches in flight",
        f"{_ZERO_BUBBLE}, section 6",
        chunks=2,
        global_norm=False,
        split_backward=True,
    ),
    "chimera": ScheduleFacts(
        "two replicas in opposite directions: p-2 slots of bubble, twice the weights",
        "Li and Hoefler, Chimera, SC 2021",
        bidirectional=True,
        even_stages=True,
        even_micro_batches=True,
    ),
    "dualpipe": ScheduleFacts(
        "two directions, forward and backward overlap: bubble (p/2-1)(F&B+B-3W), twice the weights",
        "DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 3.2.1",
        bidirectional=True,
        split_backward=True,
        even_stages=True,
        even_micro_batches=True,
        micro_batches_of_stages=2,
    ),
    "pipedream_async": ScheduleFacts(
        "1F1B that never flushes: no bubble, stage s works with weights p-1-s updates old",
        "Narayanan et al., PipeDream, SOSP 2019",
        flushes=False,
        global_norm=False,
    ),
    "2bw": ScheduleFacts(
        "no flush, gradients accumulated over m >= p micro-batches, weights one update old, two versions",
        "Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021",
        flushes=False,
        global_norm=False,
        update_delay=1,
        micro_batches_of_stages=1,
    ),
}
