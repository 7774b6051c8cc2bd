"""Trace spans: what each role did when, and the file that shows it on one time axis.

Here live the bounded buffer a node collects its spans in and the translation into Chrome/Perfetto
trace events. Nothing here reads a clock: the shell gives start and duration in nanoseconds of one
clock that all processes share (the wall clock, corrected by `ProcessSpans.offset_ns` for another
host). The nodes drain their buffers into their reports; who asked for the trace writes the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Span: TypeAlias = tuple[str, int, int, int | None]
"""Name, start in nanoseconds, duration in nanoseconds, and the step (or `None`)."""

PHASES: Final = (
    "start",
    "pull",
    "local gradient",
    "push",
    "average and update",
    "publish",
    "repeat",
)
"""The seven phases of a training step, in order: a worker's, then the server's, then the turn."""

SPANS_MAX: Final = 65_536
"""Some 10 MB of tuples; a report a second then carries 9,000 steps/s of seven phases."""

SPANS_PER_BATCH_MAX: Final = 4_096
"""About 150 KB of msgpack: a report with a batch stays far below a control frame's 1 MiB."""

_ROLE_ORDER: Final = {"scheduler": 0, "server": 1, "worker": 2}


class SpanBuffer:
    """Hold the spans of one node until they are sent; drop and count what does not fit.

    Parameters
    ----------
    limit
        Most spans held at a time.
    """

    __slots__ = ("_dropped", "_limit", "_spans")

    def __init__(self, limit: int = SPANS_MAX) -> None:
        if limit < 1:
            raise ValueError(f"a span buffer holds at least one span, not {limit}")
        self._limit = limit
        self._spans: deque[Span] = deque()
        self._dropped = 0

    def add(self, name: str, start_ns: int, duration_ns: int, step: int | None = None) -> None:
        """Keep one span, or count it as dropped when the buffer is full.

        The newest is dropped, not the oldest: the gap then lies in one place, and the batches
        already sent stay complete.
        """
        if len(self._spans) >= self._limit:
            self._dropped += 1
        else:
            self._spans.append((name, start_ns, duration_ns, step))

    def drain(self, limit: int = SPANS_PER_BATCH_MAX) -> list[Span]:
        """Take the oldest spans out, `limit` of them at most, in the order they were added."""
        return [self._spans.popleft() for _ in range(min(limit, len(self._spans)))]

    @property
    def dropped(self) -> int:
        """How many spans found the buffer full since it was made."""
        return self._dropped

    def __len__(self) -> int:
        """How many spans wait to be drained."""
        return len(self._spans)


@dataclass(frozen=True, slots=True)
class ProcessSpans:
    """Everything one node contributed to a trace.

    Parameters
    ----------
    role, rank
        Whose spans these are.
    spans
        The spans, in any order.
    dropped
        How many were lost because the buffer was full.
    offset_ns
        What to add to this node's clock to get the clock of the trace.
    """

    role: str
    rank: int
    spans: Sequence[Span]
    dropped: int = 0
    offset_ns: int = 0


def chrome_trace(processes: Iterable[ProcessSpans]) -> dict[str, Any]:
    """Turn the spans of all roles into one Chrome/Perfetto trace.

    Parameters
    ----------
    processes
        One entry for each node.

    Returns
    -------
    trace : dict
        Ready for `json.dump`: ``traceEvents`` holds the names of processes and threads first, then
        complete ("X") events by rising time, in microseconds from the earliest start.

    Notes
    -----
    A viewer nests the events of one thread by time and draws a partial overlap wrongly, so spans
    that overlap (a background push during the next gradient) go to further lanes of their process.
    """
    ordered = sorted(
        processes, key=lambda node: (_ROLE_ORDER.get(node.role, 3), node.role, node.rank)
    )
    starts = [span[1] + node.offset_ns for node in ordered for span in node.spans]
    origin_ns = min(starts, default=0)
    names: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for pid, node in enumerate(ordered, start=1):
        lanes = _Lanes()
        # Longest first among equal starts: the outer span of a nested pair must come first.
        for name, start_ns, duration_ns, step in sorted(node.spans, key=lambda s: (s[1], -s[2])):
            events.append(
                {
                    "name": name,
                    "cat": "phase" if name in PHASES else "span",
                    "ph": "X",
                    "ts": (start_ns + node.offset_ns - origin_ns) / 1000,
                    "dur": duration_ns / 1000,
                    "pid": pid,
                    "tid": lanes.place(start_ns, start_ns + duration_ns),
                    "args": {} if step is None else {"step": step},
                }
            )
        names.append(_metadata("process_name", pid, 0, name=f"{node.role} {node.rank}"))
        names.append(_metadata("process_sort_index", pid, 0, sort_index=pid))
        for tid in range(1, lanes.count + 1):
            title = "steps" if tid == 1 else f"in parallel {tid - 1}"
            names.append(_metadata("thread_name", pid, tid, name=title))
    events.sort(key=lambda event: event["ts"])  # stable: an outer span stays before its inner one
    dropped = {f"{node.role} {node.rank}": node.dropped for node in ordered if node.dropped}
    return {
        "traceEvents": names + events,
        "displayTimeUnit": "ms",
        "otherData": {"dropped_spans": dropped},
    }


class _Lanes:
    """Give each span, by rising start, the first lane in which it nests or overlaps nothing."""

    def __init__(self) -> None:
        self._open_ends: list[list[int]] = [[]]

    @property
    def count(self) -> int:
        return len(self._open_ends)

    def place(self, start_ns: int, end_ns: int) -> int:
        """Return the number of the lane, from 1."""
        for number, ends in enumerate(self._open_ends, start=1):
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or end_ns <= ends[-1]:
                ends.append(end_ns)
                return number
        self._open_ends.append([end_ns])
        return len(self._open_ends)


def _metadata(kind: str, pid: int, tid: int, **arguments: str | int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": arguments}
