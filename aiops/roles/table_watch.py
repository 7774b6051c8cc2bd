"""What a server counts at its part of a table, for people: staleness, and who is waited for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aiops.observability.staleness import StalenessHistogram
from aiops.roles.actions import Note
from aiops.roles.consistency import Rule
from aiops.roles.slowness import SlowWatch
from aiops_protocol.control import TableReport

__all__ = ["TableWatch"]


class TableWatch:
    """Counts at one part of one table.

    Parameters
    ----------
    name
        Of the table.
    rule
        Its rule.
    """

    __slots__ = ("_name", "_rule", "_slow", "_told", "staleness")

    def __init__(self, name: str, rule: Rule) -> None:
        self.staleness = StalenessHistogram()
        self._name = name
        self._rule = rule
        self._slow = SlowWatch()
        self._told = TableReport(table=name)

    def look(self, waiting: Iterable[tuple[int, int]], now: float) -> Iterator[Note]:
        """Look at who waits for whom; say so if it has been for the same ones for a while.

        `waiting` are the rank and the clock of each request that waits.
        """
        behind: dict[int, int] = {}
        ranks: dict[int, None] = {}
        for waiter, clock in waiting:
            for rank, clocks in self._rule.behind(clock).items():
                behind[rank] = max(clocks, behind.get(rank, 0))
                ranks[waiter] = None
        if not self._slow.look(behind, len(ranks), now):
            return
        for rank, (clocks, waited_s) in self._slow.slow.items():
            fields: dict[str, object] = {
                "table": self._name,
                "worker": rank,
                "clocks_behind": clocks,
                "waited_s": round(waited_s, 1),
            }
            yield Note("worker_slow", fields, "warning")

    def report(self) -> TableReport | None:
        """Return what was counted, if anything has changed since the last time."""
        slow = {rank: (clocks, waited_s) for rank, (clocks, waited_s) in self._slow.slow.items()}
        report = TableReport(
            table=self._name,
            staleness=dict(self.staleness.counts),
            late=dict(self._rule.late),
            slow=slow,
        )
        if report == self._told:
            return None
        self._told = report
        return report
