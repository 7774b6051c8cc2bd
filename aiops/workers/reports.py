"""What a worker counts and tells about itself: latencies, bytes, metrics, spans."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from aiops.checks import is_number
from aiops.errors import UsageError
from aiops.observability import LatencyHistogram, SpanBuffer
from aiops.runtime.postoffice import Postoffice
from aiops.wording import shown
from aiops.workers.customer_handle import Customers
from aiops.workers.tables import Tables
from aiops_protocol.control import NodeReport
from aiops_protocol.limits import KEY_CHARS_MAX, REPORT_NAMES_MAX

__all__ = ["Reports"]

SPANS_PER_REPORT = 4096
"""What `SpanBuffer.drain` gives at a time."""


class Reports:
    """Sends the scheduler a report in each period, and the last one at the end.

    The tables tell further metrics each time, and what their cost gates have chosen.
    """

    def __init__(self, postoffice: Postoffice, customers: Customers, tables: Tables) -> None:
        self._postoffice = postoffice
        self._tables = tables
        self._customers = customers
        self._metrics: dict[str, float] = {}
        self._spans = SpanBuffer() if postoffice.joined.trace else None
        self._timer: asyncio.TimerHandle
        self._arm()

    def _arm(self) -> None:
        period_s = self._postoffice.joined.report_period_s
        self._timer = asyncio.get_running_loop().call_later(period_s, self._again)

    def _again(self) -> None:
        self._arm()
        self.send()

    def publish(self, metrics: dict[str, float]) -> None:
        """Take numbers for the next report."""
        for name, value in metrics.items():
            known = name in self._metrics or len(self._metrics) < REPORT_NAMES_MAX
            if not known or len(name) > KEY_CHARS_MAX:
                raise UsageError(
                    f"publish_metrics: {shown(name)}: at most {REPORT_NAMES_MAX} names of at most "
                    f"{KEY_CHARS_MAX} characters"
                )
            if not is_number(value):
                raise UsageError(f"publish_metrics: {name} is {shown(value)}; it must be a number")
            self._metrics[name] = float(value)

    @contextmanager
    def span(self, name: str, step: int | None) -> Iterator[None]:
        """Record how long a block takes, if the job is traced."""
        if self._spans is None:
            yield
            return
        started = time.monotonic_ns()
        try:
            yield
        finally:
            self._spans.add(name, started, time.monotonic_ns() - started, step)

    def stats(self) -> dict[str, Any]:
        """Return latencies of calls and bytes by cause and by server."""
        everybody = self._customers.all
        counters = [customer.bytes for customer in everybody]
        servers: dict[int, dict[str, int]] = {}
        for customer in everybody:
            for rank, traffic in customer.traffic().items():
                found = servers.setdefault(rank, dict.fromkeys(traffic, 0))
                for direction, size in traffic.items():
                    found[direction] += size
        asked = sum(counter.control_sent for counter in counters)
        return {
            "latency": {verb: histogram.summary() for verb, histogram in self._latency.items()},
            "bytes": {
                "pushed": sum(counter.push_sent for counter in counters),
                "pulled": sum(counter.pull_received for counter in counters),
                "retransmitted": sum(counter.retransmit_sent for counter in counters),
                "control": self._postoffice.bytes_total + asked,
            },
            "servers": servers,
        }

    @property
    def _latency(self) -> dict[str, LatencyHistogram]:
        """Of the worker's own calls; those of other customers are theirs to see."""
        return self._customers.all[0].latency

    def send(self, *, last: bool = False) -> None:
        """Send a report; without a connection, unless it is the last, it waits for the next one."""
        if not self._postoffice.reachable and not last:
            return
        stats = self.stats()
        counted = {f"bytes_{cause}": size for cause, size in stats["bytes"].items()}
        for what in ("reconnections", "asked", "replaced"):
            counted[what] = sum(link[what] for link in stats["servers"].values())
        spans = self._spans
        room = REPORT_NAMES_MAX - len(self._metrics)
        metrics = {**dict(islice(self._tables.measure().items(), room)), **self._metrics}
        self._postoffice.report(
            NodeReport(
                clock=self._postoffice.clock,
                counters=counted,
                latency={verb: histogram.to_counts() for verb, histogram in self._latency.items()},
                metrics={k: v for k, v in metrics.items() if np.isfinite(v)},
                choices=dict(islice(self._tables.choices().items(), REPORT_NAMES_MAX)),
                spans=spans.drain() if spans is not None else [],
                spans_dropped=spans.dropped if spans is not None else 0,
                clock_offset_ns=time.time_ns() - time.monotonic_ns(),
            )
        )

    def close(self, *, last: bool) -> None:
        """Stop; `last`: send what there still is to tell."""
        self._timer.cancel()
        if last:
            left = len(self._spans) if self._spans is not None else 0
            for _ in range(1 + left // SPANS_PER_REPORT):
                self.send(last=True)
