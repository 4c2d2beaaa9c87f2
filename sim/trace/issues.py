"""What a trace lacks or breaks: named, counted, said once. Nothing is dropped without a line here."""

from __future__ import annotations

from collections import Counter
from typing import Any

#: Name of a finding -> what it means and what was done about it.
MEANING: dict[str, str] = {
    "apple_double_member": "macOS resource-fork members in the archive; skipped",
    "archive_member_not_a_file": "links, devices or folders in the archive; skipped",
    "archive_member_not_a_trace": "archive members that are no known trace; skipped",
    "file_not_a_trace": "files of the folder that are no known trace; skipped",
    "truncated_container": "the compressed file ends early; what came before was read",
    "corrupt_container": "the compressed file is damaged; what came before was read",
    "truncated_file": "the file ends inside its data; what came before was read",
    "invalid_utf8": "bytes that are no UTF-8; replaced",
    "text_recoded": "files in UTF-16; read as text",
    "malformed_event": "entries that are no valid JSON; skipped",
    "event_not_an_object": "entries of the event list that are no objects; skipped",
    "missing_timestamp": "events without a usable timestamp; left out of the timeline",
    "text_timestamp": "timestamps or durations given as text; converted",
    "not_finite_time": "timestamps or durations that are NaN or infinite; left out of the timeline",
    "missing_duration": "complete events without a duration; taken as 0",
    "negative_duration": "negative durations; taken as 0 in unions, kept in plain sums as 0",
    "nanosecond_timestamp": "timestamps too late for microseconds since 1970; read, with durations, as ns",
    "coarse_timestamp": "fractional timestamps too large for nanoseconds; rounded to float64",
    "unclosed_begin": "begin events without an end; left out of the timeline",
    "end_without_begin": "end events without a begin; skipped",
    "duplicate_event": "exact duplicates of device events; kept, as in the plain sums",
    "zero_length_event": "device events of length 0; kept",
    "unordered_events": "device events out of time order in the file; sorted",
    "overlap_on_stream": "kernels that overlap on one stream; kept as measured",
    "launch_missing": "device events whose launch lies outside the trace; posted = start",
    "clock_of_launch_after_start": "device events that start before their launch was posted; posted = start",
    "integer_beyond_64_bit": "integers outside 64 bits; used as labels only",
    "rank_unknown": "the file does not say its rank",
    "rank_from_file_name": "the rank was taken from the file name",
    "world_size_unknown": "the file does not say the world size",
    "world_size_differs": "ranks that state another world size than the first; each keeps its own",
    "duplicate_rank": "several files claim the same rank; all are listed",
    "device_unknown": "the file does not name its device",
    "several_devices": "device events of several devices in one file; read together",
    "rank_of_device": "ranks taken from device numbers: one file holds several devices",
    "no_steps": "no iteration markers (ProfilerStep#, or --step-marker); the whole trace is one window",
    "no_device_events": "no device events in the file",
    "no_durations": "operations without measured durations",
    "no_timestamps": "operations without measured start times",
    "collective_without_metadata": "communication kernels without metadata; kind taken from the kernel name",
    "collective_without_size": "collectives without a size",
    "collective_without_group": "collectives without a process group; taken as one group per stream",
    "collective_without_kernel": "collectives issued by the host that no kernel in the file belongs to",
    "collective_kind_unknown": "communication kernels of an unknown kind",
    "group_count_mismatch": "the file counts more or fewer process groups than it lists",
    "unknown_field_type": "fields of an unexpected type; ignored",
    "unknown_category": "spans of categories without a meaning here; in the categories' counts only",
    "unknown_operation": "operations of an unknown type; kept as compute",
    "bad_row": "rows that cannot be read; skipped",
    "no_times": "the file describes a workload without measured times",
    "not_a_trace": "the file belongs to a trace set but holds no events",
    "dependency_missing": "dependencies on operations that are not in the file; ignored",
    "collective_not_simultaneous": "operations of one name and number whose spans do not overlap; kept apart",
    "collective_of_absent_ranks": "collectives whose other ranks are not in the trace; as long as measured",
    "collective_without_time": "collectives without times: they take none here; --cluster gives them some",
    "dependency_between_threads_unknown": "timelines that do not say what a thread waits for on others",
    "message_without_time": "messages without times: they take none; --cluster gives them some",
    "transfer_not_priced": "transfers whose ranks or bytes are not stated; their time stays as it is",
    "message_size_differs": "messages whose receive states other bytes than their send; the send's count",
    "peer_missing": "sends and receives without their counterpart; as long as measured",
    "et_operators_joined": "operators whose shapes come from the execution trace of the same rank",
    "et_operators_unmatched": "operators that the execution trace of the rank does not have; shapes unknown",
    "tensor_dependency": "kernels that wait for another stream by a tensor of the execution trace",
    "host_times": "no device spans: times are the host's and hold on any device; or give --device",
    "host_operators_replayed": "no device spans: operators of the host are replayed, one sequence per rank",
    "kernel_without_node": "kernels whose operator is not in the execution trace; order as measured",
    "device_not_in_catalogue": "the catalogue lacks the traced device; measured times are used on any device",
    "shapes_unknown": "operators without shapes (record_shapes=True); layers have times, no activation sizes",
    "gradients_unknown": "no gradient exchange to take parameters from; layers have none",
    "all_to_all_not_imported": "all-to-alls (sharded tables, experts) are in the replay, not in the workload",
    "batch_unknown": "no shapes to take the batch from; taken as 1: give --batch",
    "kernels_as_layers": "no operators with kernels: kernels are the layers, all as forward time",
    "kernel_without_launch": "kernels whose launch is not in the trace; they follow what ran before them",
    "folded_rank": "ranks that behave like one that is listed; simulated once and not listed",
    "dependency_in_a_circle": "control dependencies that contradict the data dependencies; dropped",
    "edit_without_effect": "edits for which the trace has no operation; nothing changed",
    "group_size_unknown": "collectives whose group size is not stated",
}


class Issues:
    """Findings of one reader run: counts by name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Count a finding; ``name`` is a key of :data:`MEANING`."""
        if name not in MEANING:
            raise KeyError(name)
        if count:
            self.counts[name] += count

    def merge(self, other: Issues) -> None:
        """Add the counts of another reader."""
        self.counts.update(other.counts)

    def to_json(self) -> list[dict[str, Any]]:
        """One entry per finding, by name."""
        return [{"name": n, "count": c, "text": MEANING[n]} for n, c in sorted(self.counts.items())]
