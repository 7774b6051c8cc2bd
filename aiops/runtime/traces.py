"""The spans of all nodes of a traced job, as the scheduler collects them."""

from __future__ import annotations

from typing import Final

from aiops.observability import ProcessSpans, Span
from aiops.roles.membership import Node
from aiops_protocol.control import NodeReport

__all__ = ["Traces"]

TRACE_SPANS_MAX: Final = 1_000_000
"""Spans kept of a whole job: about 100 MB; more are counted and dropped."""


class Traces:
    """The spans of all nodes, bounded."""

    def __init__(self, limit: int = TRACE_SPANS_MAX) -> None:
        self._left = limit
        self._nodes: dict[tuple[str, int], tuple[list[Span], int, int]] = {}

    def add(self, node: Node, report: NodeReport) -> None:
        """Keep the spans of a report, as far as the limit allows."""
        if not report.spans and not report.spans_dropped:
            return
        spans, _, dropped = self._nodes.get((node.role, node.rank), ([], 0, 0))
        room = max(self._left, 0)
        spans += report.spans[:room]
        self._left -= len(report.spans)
        lost = len(report.spans) - min(room, len(report.spans))
        self._nodes[node.role, node.rank] = (
            spans,
            report.clock_offset_ns,
            dropped + report.spans_dropped + lost,
        )

    def processes(self) -> list[ProcessSpans]:
        """Return what every node contributed."""
        return [
            ProcessSpans(role, rank, spans, dropped, offset)
            for (role, rank), (spans, offset, dropped) in self._nodes.items()
        ]
