"""What becomes of the last contributions of workers that are gone.

The scheduler asks every server how far the worker had sealed its part of each table. What any
part has sealed is whole in all of them, so the highest answer is the verdict for all. Until it
is given, rounds wait for what the worker had not sealed, and its rank is not given out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aiops.roles.rounds import NOTHING_SEALED, Mark
from aiops_protocol.control import DeathQuery, DeathVerdict, LossReport

__all__ = ["Losses", "marks_of", "told_of"]


def told_of(marks: Mapping[int, Mark]) -> dict[str, Any]:
    """Return marks as the fields `sealed` and `weights` of a message."""
    return {
        "sealed": {table: (mark.sealed, mark.pushed) for table, mark in marks.items()},
        "weights": {table: list(mark.weights) for table, mark in marks.items() if mark.weights},
    }


def marks_of(message: LossReport | DeathVerdict) -> dict[int, Mark]:
    """Return the marks that a message tells of, by table."""
    return {
        table: Mark(*sealed, tuple(message.weights.get(table, ())))
        for table, sealed in message.sealed.items()
    }


class _Loss(msgspec.Struct):
    asked: dict[int, None]  # servers that have not answered
    sealed: dict[int, Mark]


class Losses:
    """Workers whose verdict is not known yet; one at a time for each rank."""

    def __init__(self) -> None:
        self._open: dict[int, _Loss] = {}

    def __contains__(self, worker: int) -> bool:
        return worker in self._open

    def begin(self, worker: int, incarnation: int, servers: Mapping[int, int]) -> DeathQuery:
        """Begin with a worker that is gone; returns the question for all servers."""
        assert worker not in self._open
        self._open[worker] = _Loss(dict.fromkeys(servers), {})
        return DeathQuery(worker=worker, incarnation=incarnation)

    def report(self, server: int, report: LossReport) -> None:
        """Take a server's answer."""
        worker = report.worker
        loss = self._open.get(worker)
        if loss is None:
            return
        loss.asked.pop(server, None)
        for table, mark in marks_of(report).items():
            loss.sealed[table] = max(mark, loss.sealed.get(table, NOTHING_SEALED))

    def server_gone(self, server: int) -> None:
        """Do not wait for a server that has left; it held nothing."""
        for loss in self._open.values():
            loss.asked.pop(server, None)

    def verdicts(self) -> list[DeathVerdict]:
        """Return, once each, the verdicts for which every answer is in."""
        known = [worker for worker, loss in self._open.items() if not loss.asked]
        return [
            DeathVerdict(worker=worker, **told_of(self._open.pop(worker).sealed))
            for worker in known
        ]
