"""Barriers of a job: named, in generations, with a deadline for each who waits.

A barrier opens when every live, unfinished worker is at it. The generation makes a repeat
harmless: entering one that has opened already is answered at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from aiops.roles.actions import Action, Tell
from aiops_protocol.control import BarrierDone, BarrierEnter, Refused
from aiops_protocol.errors import ErrorCode
from aiops_protocol.limits import BARRIERS_MAX

__all__ = ["Barriers"]


class _Entry(msgspec.Struct):
    peer: int
    deadline: float


class Barriers:
    """All barriers of a job.

    Parameters
    ----------
    describe
        Names a worker rank for an error text: role, rank, name, alive or lost, its clock.
    """

    def __init__(self, describe: Callable[[int], str]) -> None:
        self._describe = describe
        self._opened: dict[str, int] = {}  # name: newest generation that has opened
        self._waiting: dict[tuple[str, int], dict[int, _Entry]] = {}  # rank: entry

    def enter(
        self, peer: int, rank: int, message: BarrierEnter, needed: Collection[int], now: float
    ) -> list[Action]:
        """Let a worker in. Generation 0 means the next one to open."""
        opened = self._opened.get(message.name, 0)
        generation = message.generation or opened + 1
        if generation <= opened:
            return [Tell(BarrierDone(name=message.name, generation=generation), peer)]
        key = (message.name, generation)
        known = len(self._waiting) + (0 if message.name in self._opened else len(self._opened))
        if key not in self._waiting and known >= BARRIERS_MAX:
            text = f"{BARRIERS_MAX} barriers are known already: use names again"
            return [Tell(Refused(code=ErrorCode.OUT_OF_WINDOW, text=text), peer)]
        entries = self._waiting.setdefault(key, {})
        entries[rank] = _Entry(peer, now + message.timeout_s)
        return self._open_if_complete(key, needed)

    def reconsider(self, needed: Collection[int]) -> list[Action]:
        """Look again after a worker has finished or is lost."""
        actions: list[Action] = []
        for key in list(self._waiting):
            actions += self._open_if_complete(key, needed)
        return actions

    def _open_if_complete(self, key: tuple[str, int], needed: Collection[int]) -> list[Action]:
        entries = self._waiting[key]
        if any(rank not in entries for rank in needed):
            return []
        del self._waiting[key]
        name, generation = key
        self._opened[name] = generation
        done = BarrierDone(name=name, generation=generation)
        return [Tell(done, entry.peer) for entry in entries.values()]

    def leave(self, rank: int) -> None:
        """Forget a worker that is gone."""
        for key, entries in list(self._waiting.items()):
            entries.pop(rank, None)
            if not entries:
                del self._waiting[key]

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of all who wait."""
        return min(
            (entry.deadline for entries in self._waiting.values() for entry in entries.values()),
            default=None,
        )

    def expire(self, needed: Collection[int], now: float) -> list[Action]:
        """Tell everyone whose deadline has passed who is missing, and where else those wait."""
        actions: list[Action] = []
        waits = {rank: name for (name, _), entries in self._waiting.items() for rank in entries}
        for (name, generation), entries in list(self._waiting.items()):
            missing = [
                self._describe(rank)
                + (f", waiting in barrier {waits[rank]}" if rank in waits else "")
                for rank in needed
                if rank not in entries
            ]
            for rank, entry in list(entries.items()):
                if entry.deadline <= now:
                    done = BarrierDone(name=name, generation=generation, missing=missing)
                    actions.append(Tell(done, entry.peer))
                    del entries[rank]
            if not entries:
                del self._waiting[name, generation]
        return actions

    def waiting(self) -> dict[str, list[int]]:
        """Per barrier: the ranks that are at it; for status."""
        return {name: sorted(entries) for (name, _), entries in self._waiting.items()}
