"""Rings of a job, as the scheduler sees them: who is in, and what becomes of a call that stops.

A generation of a ring is one list of members; whatever stops a call in it ends it for all. Then
every member is asked how many operations are in effect there, and the highest answer holds for
all: nobody puts a result into effect before all have it, so those who lag behind have it too. This
is a two-phase commit whose coordinator is asked only when something fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from aiops.roles.actions import Action, Tell
from aiops.roles.membership import Node
from aiops_protocol.limits import RINGS_MAX
from aiops_protocol.ring_control import (
    RingEnter,
    RingFormed,
    RingHalt,
    RingHalted,
    RingMember,
    RingMissing,
    RingVerdict,
    RingWanted,
)

__all__ = ["Rings"]


class _Entry(msgspec.Struct):
    """A worker that is ready for the next generation."""

    peer: int
    member: RingMember
    deadline: float


class _Halt(msgspec.Struct):
    """A generation that is stopping."""

    cause: str
    text: str
    lost: list[int]
    awaited: dict[int, None]
    leaving: list[int] = []
    done: int = 0


class _Ring(msgspec.Struct):
    name: str
    number: int
    generation: int = 0
    peers: dict[int, int] = {}  # by rank: the members of this generation that are still in it
    entries: dict[int, _Entry] = {}
    halt: _Halt | None = None
    over: bool = True  # nothing more happens in this generation


class Rings:
    """All rings of a job.

    Parameters
    ----------
    describe
        Names a worker rank for an error text: role, rank, name, alive or lost, its clock.
    """

    def __init__(self, describe: Callable[[int], str]) -> None:
        self._describe = describe
        self._rings: dict[str, _Ring] = {}

    # --- coming in ---

    def enter(
        self, node: Node, message: RingEnter, active: Collection[int], epoch: int, now: float
    ) -> list[Action]:
        """Let a worker wait for the next generation; it may be complete with it."""
        ring = self._rings.get(message.name)
        if not message.timeout_s:
            if ring is not None:
                ring.entries.pop(node.rank, None)
            return []
        if ring is None:
            if len(self._rings) >= RINGS_MAX:
                text = f"{RINGS_MAX} rings are known already: use names again"
                return [Tell(RingMissing(name=message.name, missing=[text]), node.peer)]
            ring = self._rings[message.name] = _Ring(message.name, len(self._rings) + 1)
        member = RingMember(
            rank=node.rank,
            incarnation=node.incarnation,
            name=node.name,
            host=message.host,
            port=message.port,
            shared=message.shared,
        )
        ring.entries[node.rank] = _Entry(node.peer, member, now + message.timeout_s)
        actions: list[Action] = []
        if node.rank not in ring.peers and not ring.over:
            actions += self._want(ring)
        return [*actions, *self._form(ring, active, epoch)]

    def _want(self, ring: _Ring) -> list[Action]:
        wanted = RingWanted(name=ring.name, generation=ring.generation)
        return [Tell(wanted, peer) for peer in ring.peers.values()]

    def _needed(self, ring: _Ring, active: Collection[int]) -> list[int]:
        """Return who must enter: the members that are left, or else every worker."""
        return [rank for rank in ring.peers if rank in active] or list(active)

    def _form(self, ring: _Ring, active: Collection[int], epoch: int) -> list[Action]:
        needed = self._needed(ring, active)
        if ring.halt is not None or not needed:
            return []
        if any(rank not in ring.entries for rank in needed):
            return []
        former = ring.peers
        entries = [ring.entries[rank] for rank in sorted(ring.entries)]
        ring.entries.clear()
        ring.peers = {entry.member.rank: entry.peer for entry in entries}
        ring.generation += 1
        ring.over = False
        members = [
            msgspec.structs.replace(
                entry.member, newcomer=bool(former) and entry.member.rank not in former
            )
            for entry in entries
        ]
        formed = RingFormed(
            name=ring.name,
            ring=ring.number,
            generation=ring.generation,
            epoch=epoch,
            members=members,
        )
        return [Tell(formed, entry.peer) for entry in entries]

    # --- stopping ---

    def halted(
        self, rank: int, message: RingHalted, active: Collection[int], epoch: int
    ) -> list[Action]:
        """Take a member's word that it has stopped; with a cause, all have to."""
        ring = self._rings.get(message.name)
        stale = ring is None or ring.over or message.generation != ring.generation
        if ring is None or stale or rank not in ring.peers:
            return []
        actions: list[Action] = []
        if ring.halt is None:
            actions += self._stop(ring, message.cause or "connection", message.text, [])
        assert ring.halt is not None
        ring.halt.done = max(ring.halt.done, message.done)
        ring.halt.awaited.pop(rank, None)
        if message.cause == "left":
            ring.halt.leaving.append(rank)
        return [*actions, *self._settle(ring, active, epoch)]

    def leave(
        self, rank: int, text: str, active: Collection[int], epoch: int, *, lost: bool, gone: bool
    ) -> list[Action]:
        """Do without a worker: it has finished, or (`gone`) has left, or is `lost`."""
        actions: list[Action] = []
        for ring in self._rings.values():
            ring.entries.pop(rank, None)
            if rank in ring.peers:
                actions += self._without(ring, rank, text, lost=lost, gone=gone)
            actions += self._settle(ring, active, epoch)
        return actions

    def _without(
        self, ring: _Ring, rank: int, text: str, *, lost: bool, gone: bool
    ) -> list[Action]:
        if gone or ring.over:
            del ring.peers[rank]
        if ring.over:
            return []
        if ring.halt is None:
            cause, ranks = ("lost", [rank]) if lost else ("left", [])
            return self._stop(ring, cause, text, ranks)
        if lost:
            ring.halt.lost.append(rank)
            if ring.halt.cause == "connection":  # what its end looked like from elsewhere
                ring.halt.cause, ring.halt.text = "lost", text[:1024]
        if gone:
            ring.halt.awaited.pop(rank, None)
        return []

    def _stop(self, ring: _Ring, cause: str, text: str, lost: list[int]) -> list[Action]:
        ring.halt = _Halt(cause, text[:1024], list(lost), dict.fromkeys(ring.peers))
        halt = RingHalt(
            name=ring.name, generation=ring.generation, cause=cause, text=text[:1024], lost=lost
        )
        return [Tell(halt, peer) for peer in ring.peers.values()]

    def _settle(self, ring: _Ring, active: Collection[int], epoch: int) -> list[Action]:
        """Give the verdict when all have said how far they are; then perhaps a new generation."""
        halt = ring.halt
        if halt is None:
            return self._form(ring, active, epoch) if ring.entries else []
        if halt.awaited:
            return []
        verdict = RingVerdict(
            name=ring.name,
            generation=ring.generation,
            done=halt.done,
            cause=halt.cause,
            text=halt.text,
            lost=halt.lost,
        )
        actions: list[Action] = [Tell(verdict, peer) for peer in ring.peers.values()]
        ring.halt, ring.over = None, True
        for rank in [*halt.leaving, *(rank for rank in ring.peers if rank not in active)]:
            ring.peers.pop(rank, None)  # they were only asked how far they were
        return [*actions, *(self._form(ring, active, epoch) if ring.entries else [])]

    # --- time ---

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of all who wait."""
        return min(
            (entry.deadline for ring in self._rings.values() for entry in ring.entries.values()),
            default=None,
        )

    def expire(self, active: Collection[int], now: float) -> list[Action]:
        """Tell everyone whose deadline has passed who is missing, and where else those wait."""
        actions: list[Action] = []
        waits = {rank: ring.name for ring in self._rings.values() for rank in ring.entries}
        for ring in self._rings.values():
            late = [rank for rank, entry in ring.entries.items() if entry.deadline <= now]
            if late:
                needed = self._needed(ring, active)
                missing = [
                    self._describe(rank)
                    + (f", waiting in ring {waits[rank]}" if rank in waits else "")
                    for rank in needed
                    if rank not in ring.entries
                ]
                told = RingMissing(name=ring.name, missing=missing)
                actions += [Tell(told, ring.entries.pop(rank).peer) for rank in late]
        return actions

    def validate(self) -> None:
        """Check what must always hold."""
        for ring in self._rings.values():
            assert ring.halt is None or not ring.over
            if ring.halt is not None:
                assert set(ring.halt.awaited) <= set(ring.peers)
