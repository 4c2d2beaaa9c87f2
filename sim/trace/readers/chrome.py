"""Chrome trace events of any origin: Kineto (old and new), straggler jobs, MXNet, Horovod, others.

One pass over the events fills columns; which family the file belongs to is known only at its end.
"""

from __future__ import annotations

from typing import Any

from sim.errors import InputError
from sim.trace.issues import Issues
from sim.trace.model import COMPUTE, MEMORY, OptimizerName, RankTrace, Step, optimizer_of
from sim.trace.operators import KNOWN, Operator, element_word, shapes
from sim.trace.perfetto import DEPENDENCY
from sim.trace.readers.columns import Clock, Columns, Names, integer
from sim.trace.readers.comm_metadata import CommRecord, from_annotation, from_named, from_positional
from sim.trace.readers.json_stream import JsonStream

KERNEL = {"kernel"}
DEVICE_MEMORY = {"gpu_memcpy", "gpu_memset", "memcpy", "memset"}
RUNTIME = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "xpu_runtime", "privateuse1_runtime"}
OPERATOR = {"cpu_op", "operator", "user_annotation"}
_OTHER_KINETO = {
    "python_function",
    "cuda_sync",
    "overhead",
    "gpu_user_annotation",
    "cpu_instant_event",
    "trace",
}
_HANDLERS: dict[str, str] = (
    dict.fromkeys(KERNEL, "kernel")
    | dict.fromkeys(DEVICE_MEMORY, "memory")
    | dict.fromkeys(RUNTIME, "runtime")
    | dict.fromkeys(OPERATOR, "operator")
    | dict.fromkeys(_OTHER_KINETO, "counted")
)


class ChromeEvents:
    """Everything kept of one file of trace events.

    Attributes
    ----------
    device, launch, issue, span, operator : Columns
        Device spans; runtime calls; host records of collectives; spans of unknown categories; host
        operators (only if ``host``). Times in microseconds after ``clock.origin``.
    marker : str
        Beginning of the names of the spans that are steps; ``ProfilerStep`` if empty.
    known, operators : Columns, dict
        Operators that make layers: times, and the number of each distinct one (0: the optimiser's).
    flow : Columns
        What our own exports say about spans that waited for others: numbers of both.
    records : list of CommRecord
        Collective records; ``device.record`` and ``issue.record`` index it.
    """

    def __init__(self, issues: Issues, *, host: bool = False, marker: str = "") -> None:
        self.issues, self.host = issues, host
        self.marker = marker
        self.clock = Clock(issues)
        self.names, self.streams, self.threads, self.categories = Names(), Names(), Names(), Names()
        self.counts: dict[str, int] = {}
        self.device = Columns(
            ("start", "duration"), ("name", "kind", "stream", "device", "correlation", "external", "record")
        )
        self.launch = Columns(("start", "duration"), ("correlation",), ("thread", "name"))
        self.issue = Columns(("start", "duration"), ("thread", "external", "record", "annotation"))
        self.operator = Columns(("start", "duration"), ("sequence", "record_function"), ("name", "thread"))
        self.known = Columns(("start", "end"), (), ("thread", "operator"))
        self.span = Columns(
            ("start", "duration", "bytes", "waited"),
            ("name", "thread", "category", "step", "micro_batch", "sequence", "chunk", "iteration", "ranks",
             "number"),
        )  # fmt: skip
        self.flow = Columns((), ("target", "source"))
        self.records: list[CommRecord] = []
        self.steps: list[Step] = []
        self.step_keys: set[tuple[str, float]] = set()
        self.open: dict[tuple[Any, Any, Any], list[tuple[float, Any]]] = {}
        self.open_last: dict[tuple[Any, Any], list[Any]] = {}
        self.thread_names: dict[tuple[str, str], str] = {}
        self.operators: dict[Operator | None, int] = {None: 0}
        self.updates: list[tuple[str, float, float]] = []
        self.optimizer: OptimizerName | None = None
        self.num_events = 0
        self.kineto = False

    def read(self, stream: JsonStream) -> None:
        """Take in all events of ``stream``."""
        for block in stream.blocks():
            self.num_events += len(block)
            for event in block:
                if type(event) is dict:
                    self._event(event)
                else:
                    self.issues.add("event_not_an_object")
        self.issues.add("unclosed_begin", sum(len(stack) for stack in self.open.values()))
        self.open.clear()

    def _event(self, event: dict[str, Any]) -> None:
        phase, category = event.get("ph"), event.get("cat")
        key = category if type(category) is str else (f"ph {phase}" if type(phase) is str else "no phase")
        self.counts[key] = self.counts.get(key, 0) + 1
        if phase == "X":
            self._complete(event, key)
        elif phase == "B":
            self._begin(event)
        elif phase == "E":
            self._end(event)
        elif phase == "f" and category == DEPENDENCY:
            args = event.get("args")
            if type(args) is dict:
                self.flow.add(integer(args.get("to")), integer(args.get("from")))
        elif phase == "M" and event.get("name") in ("process_name", "thread_name"):
            args = event.get("args")
            name = args.get("name") if type(args) is dict else None
            if type(name) is str and len(self.thread_names) < 100_000:
                thread = "" if event["name"] == "process_name" else str(event.get("tid"))
                self.thread_names[(str(event.get("pid")), thread)] = name

    # ---- complete events --------------------------------------------------------------------------------

    def _complete(self, event: dict[str, Any], category: str) -> None:
        start = self.clock.time(event)
        if start is None:
            return
        duration = self.clock.duration(event)
        if duration is None:
            return
        handler = _HANDLERS.get(category) or _HANDLERS.get(category.lower())
        if self.marker and handler not in ("kernel", "memory", "runtime", "counted"):
            self._step(event.get("name"), start, duration, self.marker)
        if handler is None:
            if self.kineto:
                self.issues.add("unknown_category")
            else:
                self._span(event, category, start, duration)
            return
        self.kineto = True
        if handler == "counted":
            return
        args = event.get("args")
        if type(args) is not dict:
            args = {}
            if "args" in event:
                self.issues.add("unknown_field_type")
        name = event.get("name")
        name = name if type(name) is str else str(name)
        if handler == "operator":
            self._operator(event, args, name, start, duration)
        elif handler == "runtime":
            correlation = integer(args.get("correlation"))
            thread = self.threads((str(event.get("pid")), str(event.get("tid"))))
            self.launch.add(start, duration, correlation, thread, self.names(name) if self.host else 0)
        else:
            self._device(event, args, name, start, duration, COMPUTE if handler == "kernel" else MEMORY)

    def _device(
        self, event: dict[str, Any], args: dict[str, Any], name: str, start: float, duration: float, kind: int
    ) -> None:
        stream, device = args.get("stream"), args.get("device")
        stream = event.get("tid") if stream is None else stream
        device = event.get("pid") if device is None else device
        record = -1
        if "Collective name" in args:
            record = self._record(from_named(args))
        external = args.get("External id", args.get("external id"))
        self.device.add(
            start,
            duration,
            self.names(name),
            kind,
            self.streams((str(device), str(stream).removeprefix("stream "))),
            integer(device),
            integer(args.get("correlation")),
            integer(external),
            record,
        )

    def _operator(
        self, event: dict[str, Any], args: dict[str, Any], name: str, start: float, duration: float
    ) -> None:
        if not self.marker:
            self._step(name, start, duration, "ProfilerStep")
        annotation = name.startswith(("nccl:", "gloo:", "mpi:", "hccl:", "ucc:", "xccl:"))
        comms = name == "record_param_comms"
        if not (comms or annotation or self.host):
            return
        thread = self.threads((str(event.get("pid")), str(event.get("tid"))))
        external = integer(args.get("External id", args.get("external id")))
        if comms:
            record = self._record(_host_record(args))
            self.issue.add(start, duration, thread, external, record, 0)
        elif annotation:
            self.issue.add(
                start,
                duration,
                thread,
                external,
                self._record(from_annotation(name.split(":", 1)[1], args)),
                1,
            )
        if self.host and name in KNOWN:
            given = shapes(args.get("Input Dims", args.get("Input dims")))
            found = Operator(name, given, None, element_word(args.get("Input type")))
            number = self.operators.setdefault(found, len(self.operators))
            self.known.add(start, start + duration, thread, number)
        if self.host:
            if name.startswith("Optimizer."):
                self.known.add(start, start + duration, thread, 0)
                self.updates.append((name, start, start + duration))
                self.optimizer = self.optimizer or optimizer_of(name)
            sequence = integer(args.get("Sequence number"))
            record = integer(args.get("Record function id"))
            self.operator.add(start, duration, sequence, record, self.names(name), thread)

    def _step(self, name: Any, start: float, duration: float, marker: str) -> None:
        """A step, if the span marks one; the same one stated twice counts once."""
        if isinstance(name, str) and name.startswith(marker) and (name, start) not in self.step_keys:
            self.step_keys.add((name, start))
            self.steps.append(Step(name, start * 1e-6, (start + duration) * 1e-6))

    def _record(self, record: CommRecord | None) -> int:
        if record is None:
            return -1
        self.records.append(record)
        return len(self.records) - 1

    # ---- spans of unknown families ----------------------------------------------------------------------

    def _span(self, event: dict[str, Any], category: str, start: float, duration: float) -> None:
        args = event.get("args")
        args = args if type(args) is dict else {}
        self.span.add(
            start,
            duration,
            *(_positive(args.get(name)) for name in ("bytes", "waited_us")),
            self.names(str(event.get("name"))),
            self.threads((str(event.get("pid")), str(event.get("tid", "")))),
            self.categories("" if category.startswith("ph ") else category),
            integer(args.get("step")),
            integer(args.get("mb_id", args.get("micro_batch"))),
            integer(args.get("seq_id")),
            integer(args.get("model_chunk")),
            integer(args.get("iteration")),
            integer(args.get("ranks")),
            integer(args.get("span")),
        )

    def _begin(self, event: dict[str, Any]) -> None:
        start = self.clock.time(event)
        if start is None:
            return
        place = (str(event.get("pid")), str(event.get("tid", "")))
        name = str(event.get("name"))
        self.open.setdefault((*place, name), []).append((start, event))
        self.open_last.setdefault(place, []).append(name)

    def _end(self, event: dict[str, Any]) -> None:
        end = self.clock.time(event)
        if end is None:
            return
        place = (str(event.get("pid")), str(event.get("tid", "")))
        order = self.open_last.get(place)
        # An end may leave out its name; then it closes the innermost span of its thread.
        name = str(event["name"]) if event.get("name") is not None else (order[-1] if order else "")
        stack = self.open.get((*place, name))
        if not stack or order is None:
            self.issues.add("end_without_begin")
            return
        start, begin = stack.pop()
        for at in range(len(order) - 1, -1, -1):
            if order[at] == name:
                del order[at]
                break
        if end < start:
            self.issues.add("negative_duration")
        category = begin.get("cat")
        self._complete(
            {**begin, "ph": "X", "ts": begin.get("ts"), "dur": max(end - start, 0.0)},
            category if type(category) is str else "ph B",
        )


def _positive(value: Any) -> float:
    """A number of an argument; 0 where it is none."""
    return float(value) if type(value) in (int, float) and 0 < value < 1e24 else 0.0


def _host_record(args: dict[str, Any]) -> CommRecord | None:
    named = from_named(args)
    if named is not None:
        return named
    values, dims, types = (args.get(key) for key in ("Concrete Inputs", "Input Dims", "Input type"))
    if isinstance(values, list):
        dims, types = (entry if isinstance(entry, list) else [] for entry in (dims, types))
        return from_positional(values, dims, types)
    return None


def read(
    stream: JsonStream, label: str, issues: Issues, *, host: bool = False, marker: str = ""
) -> list[RankTrace]:
    """Read a file of Chrome trace events, whatever wrote it; spans named ``marker...`` are its steps."""
    from sim.trace.readers import kineto, own, timelines

    events = ChromeEvents(issues, host=host, marker=marker)
    events.read(stream)
    if events.kineto or {"distributedInfo", "deviceProperties", "schemaVersion"} & set(stream.header):
        return [kineto.build(events, stream.header, label)]
    if not any(key not in ("no phase", "ph M") for key in events.counts):
        raise InputError("file", "hold trace events (objects with ph, ts, name)", "none", where=label)
    if own.is_own(events, stream.header):
        return own.build(events, stream.header, label)
    return timelines.build(events, label)
