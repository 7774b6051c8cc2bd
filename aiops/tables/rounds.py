"""A worker's place in the rounds of one table: its open clock there, and the seals it has sent.

A table counts rounds from where the worker entered it. Without rounds (ASP), or once the worker
has left them, everything here does nothing and the wanted version is "the newest".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from aiops.checks import check_weight
from aiops.errors import UsageError
from aiops.roles.requests import Part
from aiops.wording import shown
from aiops_protocol.frames import Flag, Seal
from aiops_protocol.payload import weight_bytes

if TYPE_CHECKING:
    from aiops.tables.core import TableCore

__all__ = ["Place"]

SEALS_IN_FLIGHT_MAX: Final = 16
"""Ticks whose seals are not acknowledged yet; a worker that only ticks waits here."""

_CONTRIBUTED: Final = int(Flag.CONTRIBUTED)
_FINAL: Final = int(Flag.FINAL)
_WEIGHT: Final = int(Flag.WEIGHT)


class Place:
    """Where a worker is in a table's rounds.

    Attributes
    ----------
    clock
        The round that a push belongs to now; 0 without rounds.
    sealed_early
        `push_pull` has sealed the open clock already.
    late
        Contributions that came after their round had closed without them.
    """

    def __init__(self, table: TableCore, first: int, *, takes_part: bool) -> None:
        self._table = table
        self._takes_part = takes_part
        self.clock = first if takes_part else 0
        self.sealed_early = False
        self.late = 0
        self._contributed = False  # something was pushed in the open clock
        self._weight: float | None = None  # how much that counts, if it was said
        self._seals: deque[asyncio.Future[None]] = deque()
        self._jumps = takes_part and table.has_lead
        self._newest = first  # version that was seen
        self._to_skip = 0  # rounds to be sealed empty with the next seal

    @property
    def in_step(self) -> bool:
        """Whether each clock of this worker is one round here, for which the others wait."""
        return self._takes_part and not self._jumps

    @property
    def due(self) -> int:
        """The round of this worker's clock, once what is to be skipped is skipped."""
        return self.clock + self._to_skip

    @property
    def wanted(self) -> int:
        """The version that a pull gets now: an exact one, or 0 for the newest."""
        return self.clock

    def contribute(self, weight: float | None = None) -> None:
        """Note that something is pushed in the open clock: this worker is in the divisor.

        `weight` is what `weighed` has returned for it.
        """
        self._contributed = True
        if weight is not None:
            self._weight = weight

    def weighed(self, given: float | None) -> float | None:
        """Check the weight that a push would give the open clock, before anything is made of it.

        The clock takes it from `contribute`: a push that is refused yet leaves nothing behind.

        Raises
        ------
        UsageError
            Another weight than that of an earlier push of the clock, or one where none counts.
        """
        if given is None:
            return None
        table = self._table
        what = f"push to {table.title}: weight"
        weight = check_weight(given, what)
        if not table.takes_weights:
            raise UsageError(
                f'{what}={shown(given)}: only in tables with rounds and reduce="mean" (BSP, '
                "Quorum) "
                "contributions have weights"
            )
        before = 1.0 if self._weight is None else self._weight
        if self._contributed and before != weight:
            raise UsageError(
                f"{what}={shown(given)}, but what this worker has pushed in this clock has the "
                "weight "
                f"{before:g}; all that it pushes in a clock has one: give it with the first push"
            )
        return weight

    def see(self, versions: Iterable[int]) -> None:
        """Note versions in answers; where rounds do not wait for the late ones, catch up.

        What was left out is lost time: the next contribution is one to the newest round.
        """
        if self._jumps:
            self._newest = max((self._newest, *versions))
            if not self._contributed:
                self.clock = max(self.clock, self._newest)

    async def ready_to_seal(self) -> None:
        """Wait until there is room for one more seal; raise the error of one that failed.

        Cancelling is harmless.
        """
        while len(self._seals) >= SEALS_IN_FLIGHT_MAX or (self._seals and self._seals[0].done()):
            await asyncio.wait((self._seals[0],))
            self._seals.popleft().result()

    def seal(self) -> None:
        """Seal the open clock, unless `push_pull` has done so; the next one is open."""
        if not self._takes_part:
            return
        if self.sealed_early:
            self.sealed_early = False
        else:
            self._send(_CONTRIBUTED if self._contributed else 0)
            self.clock += 1
            self.see(())
        self._send_skipped()

    def skip(self, rounds: int) -> None:
        """Take no part in so many rounds: they are sealed empty, after the open one if it is used.

        So a worker that has entered late comes to the clock at which it has entered another table.
        """
        self._to_skip += rounds
        if not self._contributed and not self.sealed_early and not self._table.writes.under_way:
            self._send_skipped()

    def _send_skipped(self) -> None:
        skip, self._to_skip = self._to_skip, 0
        for _ in range(skip):
            self._send(0)
            self.clock += 1

    def seal_early(self) -> None:
        """Seal the open clock before the worker's tick."""
        self.seal()
        self.sealed_early = True

    def leave(self) -> None:
        """Seal what is open, if anything was pushed, and take part in no later round."""
        if not self._takes_part:
            return
        if self._contributed:
            self._send(_CONTRIBUTED)
            self.clock += 1
        self._send(_FINAL)
        self._takes_part = self.sealed_early = self._jumps = False
        self.clock = 0

    def _send(self, flags: int) -> None:
        table = self._table
        operation = table.customer.operation("seal", table.title, None)
        payload = b""
        if self._weight is not None and flags & _CONTRIBUTED:
            flags |= _WEIGHT
            payload = weight_bytes(self._weight)
        for shard in range(table.shards):
            Part(
                operation,
                Seal,
                table.table_id,
                shard,
                clock=self.clock,
                flags=flags,
                payload=payload,
                outbox=table.outboxes[shard],
            )
        future = table.customer.start(operation, table.servers)
        future.add_done_callback(_seen)
        if self._jumps and flags & _CONTRIBUTED:
            clock, versions = self.clock, operation.versions
            future.add_done_callback(lambda _: self._judge(clock, versions))
        self._seals.append(future)
        self._contributed = False
        self._weight = None

    def _judge(self, clock: int, versions: dict[int, int]) -> None:
        """Count a contribution that came too late, and catch up."""
        lead = versions.get(0, 0)  # of the first shard, which decides
        self.late += lead > clock
        self.see(versions.values())

    async def settled(self) -> None:
        """Wait until every seal is acknowledged. Cancelling is harmless; call it again."""
        while self._seals:
            await asyncio.wait((self._seals[0],))
            self._seals.popleft().result()


def _seen(future: asyncio.Future[None]) -> None:
    """Mark an error as seen: it is raised where the worker next waits."""
    if not future.cancelled():
        future.exception()
