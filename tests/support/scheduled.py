"""A scheduler core and nodes that talk to it message by message, for tests of what it says."""

from __future__ import annotations

from typing import Any, TypeVar

from aiops.roles.actions import Action, Ended, Note, Tell
from aiops.roles.scheduler import SchedulerCore
from aiops.roles.settings import SchedulerSettings
from aiops_protocol.control import (
    AttachTable,
    BarrierEnter,
    ControlMessage,
    FinishWorker,
    Join,
    Joined,
    Leave,
    LossReport,
    OpenShard,
    Refused,
    RoundHeld,
    RoundHold,
    ShardReady,
    Shutdown,
    TableOpened,
)
from core_tables import spec_of

M = TypeVar("M")


class Scheduled:
    """A scheduler, and what every peer has been told so far.

    Servers have peers 1, 2, ...; a worker's peer is chosen by the test.
    """

    def __init__(self, servers: int = 1, *, start: bool = True, **settings: Any) -> None:
        self.now = 100.0
        self.core = SchedulerCore(
            SchedulerSettings(servers=servers, **({"heartbeat_s": 3600.0} | settings)),
            "job",
            self.now,
        )
        self.told: dict[int, list[ControlMessage]] = {}
        self.notes: list[Note] = []
        self.ended: Ended | None = None
        self.calls = 0
        for index in range(servers if start else 0):
            self.join(index + 1, "server", f"server-{index}")

    def perform(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            match action:
                case Tell(message=message, peer=peer):
                    self.told.setdefault(peer, []).append(message)
                case Note():
                    self.notes.append(action)
                case Ended():
                    self.ended = action
                case _:
                    pass
        self.core.validate()
        return actions

    def say(self, peer: int, message: ControlMessage) -> None:
        """Let a peer say something."""
        self.perform(self.core.message(peer, message, self.now))

    def tick(self, now: float | None = None) -> None:
        """Let the time pass until then, or until the next deadline."""
        at = self.core.next_deadline() if now is None else now
        assert at is not None
        self.now = at
        self.perform(self.core.tick(self.now))

    def heard(self, peer: int, kind: type[M]) -> list[M]:
        """Messages of a kind that a peer was told since the last look."""
        messages = self.told.get(peer, [])
        found: list[M] = [message for message in messages if isinstance(message, kind)]
        self.told[peer] = [message for message in messages if not isinstance(message, kind)]
        return found

    def only(self, peer: int, kind: type[M]) -> M:
        """The only message of a kind that a peer was told since the last look."""
        (found,) = self.heard(peer, kind)
        return found

    # --- nodes ---

    def join(self, peer: int, role: str = "worker", name: str = "") -> None:
        self.say(peer, Join(role=role, name=name, host="h", port=peer if role == "server" else 0))

    def worker(self, peer: int, name: str = "") -> Joined:
        """Let a worker join; it is let in at once."""
        self.join(peer, "worker", name)
        return self.only(peer, Joined)

    def leave(self, peer: int, *, clean: bool = True, reason: str = "") -> None:
        self.say(peer, Leave(clean=clean, reason=reason))

    def finish(self, peer: int, clock: int = 0) -> None:
        self.say(peer, FinishWorker(clock=clock))

    def lose(self, peer: int, reason: str = "the connection ended") -> None:
        self.perform(self.core.lost(peer, reason, self.now))

    def report(
        self, server: int, worker: int, sealed: dict[int, tuple[int, int]] | None = None
    ) -> None:
        """Let a server (by peer) answer the question about a lost worker."""
        self.say(server, LossReport(worker=worker, sealed=sealed or {}))

    def barrier(
        self, peer: int, name: str = "b", generation: int = 0, timeout_s: float = 9.0
    ) -> None:
        self.say(peer, BarrierEnter(name=name, generation=generation, timeout_s=timeout_s))

    # --- tables ---

    def attach(
        self, peer: int, name: str = "w", *, create: bool = True, size: int = 64, **spec: Any
    ) -> int:
        """Let a worker ask for a table; returns the number of its call."""
        self.calls += 1
        given = spec_of(name, size, **spec) if create else None
        self.say(peer, AttachTable(call=self.calls, name=name, spec=given))
        return self.calls

    def open_shards(self, *servers: int) -> list[OpenShard]:
        """Let servers (by peer) allocate what they were told to."""
        orders = []
        for server in servers:
            for order in self.heard(server, OpenShard):
                orders.append(order)
                self.say(server, ShardReady(table=order.table))
        return orders

    def hold(self, server: int, version: int, *, idle: bool = False) -> RoundHold:
        """Let a server (by peer) answer a hold."""
        hold = self.only(server, RoundHold)
        self.say(
            server,
            RoundHeld(table=hold.table, worker=hold.worker, version=version, idle=idle),
        )
        return hold

    def opened(self, peer: int) -> TableOpened:
        return self.only(peer, TableOpened)

    def refused(self, peer: int) -> Refused:
        return self.only(peer, Refused)

    def shutdown(self, peer: int) -> Shutdown:
        return self.only(peer, Shutdown)
