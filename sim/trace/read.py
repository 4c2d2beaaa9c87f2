"""Read trace files of any known format into one :class:`~sim.trace.model.Trace`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.errors import InputError
from sim.trace.detect import detect
from sim.trace.issues import Issues
from sim.trace.model import FileSummary, RankTrace, Trace
from sim.trace.readers import chakra, chrome, nsys, pytorch_et, straggler, workload_text, xplane
from sim.trace.readers.container import Member, Progress, members
from sim.trace.readers.json_stream import JsonStream
from sim.trace.readers.ranges import apply_marker

_ARRAYS = ("traceEvents", "nodes", "workload_graph")
#: JSON documents of trace collections that hold results or settings, not events: a key that tells them.
_RESULTS = {"job_meta", "step_t_base", "Ms", "Mw", "tideal"}


@dataclass(frozen=True)
class _Options:
    """How to read: keep what the host did, and what marks a step."""

    host: bool
    marker: str


def read(
    paths: Sequence[str | Path], *, host: bool = False, marker: str = "", progress: Progress | None = None
) -> Trace:
    """Read files and folders; archives are opened, several ranks may lie in one file.

    Parameters
    ----------
    paths : sequence of str or Path
        Files, or folders whose files are read in the order of their names.
    host : bool
        Keep host operators and runtime calls (needed to rebuild the execution, not for statistics).
    marker : str
        Spans whose names begin with it are the steps, instead of ``ProfilerStep#N``.
    progress : callable, optional
        Called with (bytes read, total bytes) of the file at hand.

    Returns
    -------
    Trace
        Ranks sorted by rank within each file.

    Raises
    ------
    InputError
        If a file is no trace, cannot be read, or nothing was found.
    """
    trace, options = Trace([], [], Issues()), _Options(host, marker)
    if not paths:
        raise InputError("files", "name at least one trace", "none")
    for given in paths:
        path = Path(given)
        listed = path.is_dir()
        inside = _inside(path) if listed else [path]
        found = sum(_read_file(file, trace, options, progress, listed=listed) for file in inside)
        if not found:
            raise InputError("folder" if listed else "file", "hold at least one trace", path.name)
    trace.ranks = nsys.join_reports(trace.ranks, marker)
    if marker:
        apply_marker(trace.ranks, marker)
    _finish(trace)
    return trace


def _inside(folder: Path) -> list[Path]:
    """All files below a folder, but hidden ones; links to folders are not followed."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = (Path(place) / name for name in names if not name.startswith("."))
        found += sorted(file for file in files if file.is_file())
    if not found:
        raise InputError("folder", "hold at least one file", folder.name)
    return found


def _read_file(
    path: Path, trace: Trace, options: _Options, progress: Progress | None, *, listed: bool
) -> int:
    """Read one file; how many traces it held. What a folder or an archive holds besides is counted."""
    found = 0
    try:
        for member in members(path, trace.issues, progress):
            try:
                _read_member(member, trace, options)
                found += 1
            except InputError:
                if member.label == path.name:
                    raise
                trace.issues.add("archive_member_not_a_trace")
    except InputError:
        if not listed:
            raise
        trace.issues.add("file_not_a_trace")
    return found


def _read_member(member: Member, trace: Trace, options: _Options) -> None:
    if not member.head.strip():
        raise InputError("file", "not be empty", member.label)
    issues = Issues()
    form, ranks = _ranks(member, issues, options)
    ranks.sort(key=lambda rank: (rank.rank is None, rank.rank or 0))
    if not ranks:
        trace.issues.merge(issues)
        trace.issues.add("not_a_trace")
    trace.files.append(FileSummary(member.label, form, len(ranks)))
    trace.ranks.extend(ranks)


def _ranks(member: Member, issues: Issues, options: _Options) -> tuple[str, list[RankTrace]]:
    """Format and ranks of one file."""
    form = detect(member.head, member.label)
    if form == "json":
        return _json(member, issues, options)
    if form == "chakra":
        nodes, _ = chakra.read_protobuf(member, issues)
        return form, [chakra.build(nodes, member.label, form, issues)]
    if form == "settings":
        return form, []
    if form in ("sqlite", "nsys-csv"):
        ranges = {"sqlite": nsys.read_sqlite, "nsys-csv": nsys.read_csv}
        ranks = ranges[form](member, issues, options.marker)
        return (ranks[0].format if ranks else form), ranks
    readers = {
        "parquet": straggler.read_parquet,
        "xplane": xplane.read,
        "aicb-csv": workload_text.read_aicb,
        "simai-text": workload_text.read_simai,
        "goal": workload_text.read_goal,
    }
    ranks = readers[form](member, issues)
    return (ranks[0].format if ranks else form), ranks


def _json(member: Member, issues: Issues, options: _Options) -> tuple[str, list[RankTrace]]:
    """JSON: the key of its long array says what it is; a bare array is a list of trace events."""
    stream = JsonStream(member.stream, member.label, issues, _ARRAYS)
    if stream.key == "nodes":
        return "pytorch-et", pytorch_et.read(stream, member.label, issues, host=options.host)
    if stream.key == "workload_graph":
        nodes = chakra.read_json(stream, member.label, issues)
        world = stream.header.get("ngpus")
        size = world if isinstance(world, int) and 0 < world < 10**9 else None
        return "chakra-json", [chakra.build(nodes, member.label, "chakra-json", issues, size)]
    if stream.key is None:
        if _RESULTS & set(stream.header):
            return "results", []
        if not {"distributedInfo", "deviceProperties", "schemaVersion"} & set(stream.header):
            keys = ", ".join(str(key)[:20] for key in list(stream.header)[:5])
            raise InputError(
                "file", f"hold one of {', '.join(_ARRAYS)}", keys or "nothing", where=member.label
            )
    ranks = chrome.read(stream, member.label, issues, host=options.host, marker=options.marker)
    return (ranks[0].format if ranks else "chrome-timeline"), ranks


def _finish(trace: Trace) -> None:
    """Findings about all ranks together."""
    named = Counter((rank.format, rank.rank) for rank in trace.ranks if rank.rank is not None)
    sizes = [rank.world_size for rank in trace.ranks if rank.world_size is not None]
    trace.issues.add("world_size_differs", sum(size != sizes[0] for size in sizes))
    trace.issues.add("duplicate_rank", sum(count - 1 for count in named.values() if count > 1))
