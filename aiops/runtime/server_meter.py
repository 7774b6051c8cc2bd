"""ServerMeter: what a server counts and times, and the report that it makes of it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice

from aiops.observability import SpanBuffer
from aiops.van.link import Link
from aiops_protocol.control import NodeReport
from aiops_protocol.limits import REPORT_NAMES_MAX

__all__ = ["ServerMeter"]


class ServerMeter:
    """Counters of one server, and its trace spans if the job is traced.

    Attributes
    ----------
    frames, rounds, connections
        Requests handled, rounds closed, workers' connections taken.
    """

    def __init__(self) -> None:
        self.frames = 0
        self.rounds = 0
        self.connections = 0
        self._spans: SpanBuffer | None = None
        self._sent_before = 0  # over connections that have ended
        self._received_before = 0

    def trace(self) -> None:
        """Collect spans from now on."""
        self._spans = SpanBuffer()

    @property
    def traces(self) -> bool:
        """Whether spans are collected."""
        return self._spans is not None

    def span(self, name: str, started_ns: int, step: int) -> None:
        """Note what has taken from `started_ns` until now."""
        if self._spans is not None:
            self._spans.add(name, started_ns, time.monotonic_ns() - started_ns, step)

    def ended(self, link: Link) -> None:
        """Keep the bytes of a connection that is no more."""
        self._sent_before += link.bytes_sent
        self._received_before += link.bytes_received

    def report(
        self,
        links: Iterable[Link],
        rounds: dict[str, tuple[int, list[int]]],
        memory_bytes: int,
        control: tuple[int, int],
        sparse: dict[str, tuple[int, int]],
    ) -> NodeReport:
        """Return what was counted so far, and the spans since the last report.

        `control` is what went over the connection to the scheduler: bytes sent, received. `sparse`
        has rows and bytes of each sparse table; of more than the report holds, those of the first.
        """
        sent, received = self._sent_before + control[0], self._received_before + control[1]
        for link in links:
            sent += link.bytes_sent
            received += link.bytes_received
        return NodeReport(
            counters={
                "frames": self.frames,
                "rounds": self.rounds,
                "connections": self.connections,
                "bytes_sent": sent,
                "bytes_received": received,
                "memory": memory_bytes,
            },
            metrics={
                name: float(number)
                for table, (rows, size) in islice(sparse.items(), REPORT_NAMES_MAX // 2)
                for name, number in ((f"rows of {table}", rows), (f"bytes of {table}", size))
            },
            rounds=rounds,
            spans=self._spans.drain() if self._spans is not None else [],
            spans_dropped=self._spans.dropped if self._spans is not None else 0,
            clock_offset_ns=time.time_ns() - time.monotonic_ns(),
        )
