"""The scheduler as a state machine: messages and losses in, messages out.

What lives here: who hears which message, and time. Who may join, what a loss means and the
orderly end are `job.py`; tables, barriers and the common stop have files of their own.
"""

from __future__ import annotations

from math import inf
from typing import Final

import msgspec

from aiops.roles.actions import Action, Note, Tell
from aiops.roles.job import Job
from aiops.roles.membership import Node, NodeState
from aiops.roles.settings import SchedulerSettings
from aiops.roles.slowness import clocks_behind
from aiops.roles.status import status
from aiops.roles.table_entry import Applicant
from aiops_protocol.control import (
    AttachTable,
    BarrierEnter,
    ControlMessage,
    FinishWorker,
    Join,
    Leave,
    LossReport,
    NodeReport,
    Refused,
    RoundDecided,
    RoundHeld,
    ShardReady,
    StatusReply,
    StatusRequest,
    StopRequest,
    StopVote,
    TableEntered,
    TableInitialised,
    TableReport,
)
from aiops_protocol.errors import ErrorCode
from aiops_protocol.ring_control import RingEnter, RingHalted

__all__ = ["SchedulerCore"]

WARN_AGAIN_S: Final = 60.0
"""How often it is said of the same worker that it is slow."""


class SchedulerCore(Job):
    """The scheduler of one job: `message`, `lost` and `tick` return what is to be done."""

    def __init__(self, settings: SchedulerSettings, job: str, now: float) -> None:
        super().__init__(settings, job, now)
        self._judge_at = now + settings.heartbeat_s

    # --- messages ---

    def message(self, peer: int, message: ControlMessage, now: float) -> list[Action]:
        """Handle one message of a node or observer."""
        if isinstance(message, Join):
            return self._join(peer, message, now)
        if isinstance(message, StatusRequest):
            document = msgspec.json.encode(status(self, now))
            return [Tell(StatusReply(status=document), peer)]
        if isinstance(message, StopRequest):
            return self.stop(message.reason)
        node = self.members.of_peer(peer)
        if node is None or self.ended is not None:
            # Overtaken by a loss or by the end of the job: the sender has been told.
            return []
        if node.role == "worker":
            return self._from_worker(node, message, now)
        return self._from_server(node, message, now)

    def _from_worker(self, node: Node, message: ControlMessage, now: float) -> list[Action]:
        match message:
            case AttachTable():
                return self._attach(node, message)
            case TableInitialised(table=table):
                return self.catalogue.initialised(node.peer, table, self._server_peers())
            case TableEntered(table=table, version=version, clock=clock, ahead=ahead):
                node.ahead = ahead
                self.catalogue.entered(table, clock - version)
                return []
            case BarrierEnter():
                return self.barriers.enter(node.peer, node.rank, message, self._active_ranks(), now)
            case RingEnter():
                return self.rings.enter(
                    node, message, self._active_ranks(), self.members.epoch, now
                )
            case RingHalted():
                return self.rings.halted(
                    node.rank, message, self._active_ranks(), self.members.epoch
                )
            case StopVote(clock=clock):
                return self._agree(self.stopping.vote(node.rank, clock))
            case FinishWorker(clock=clock):
                return self._finish(node, clock)
            case _:
                return self._from_any(node, message, now)

    def _from_server(self, node: Node, message: ControlMessage, now: float) -> list[Action]:
        match message:
            case ShardReady():
                return self.catalogue.shard_ready(node.rank, message, self._server_peers())
            case RoundHeld():
                return self.catalogue.held(node.rank, message, self._server_peers())
            case TableReport():
                node.tables[message.table] = message
                return []
            case RoundDecided():
                return self.catalogue.decided(node.rank, message, self._server_peers())
            case LossReport():
                self._losses.report(node.rank, message)
                return self._settle_losses(now)
            case _:
                return self._from_any(node, message, now)

    def _from_any(self, node: Node, message: ControlMessage, now: float) -> list[Action]:
        match message:
            case NodeReport():
                node.report = message
                node.clock = max(node.clock, message.clock)
                return self._speak_of(node, now)
            case Leave(clean=clean, reason=reason):
                return self._gone(node, clean, reason, now)
            case _:
                fields: dict[str, object] = {"message": type(message).__name__, "node": str(node)}
                return [Note("unexpected_message", fields, "warning")]

    def _speak_of(self, node: Node, now: float) -> list[Action]:
        """Say of a worker that it is far behind the others; not too often."""
        if node.state is not NodeState.ALIVE or node.role != "worker":
            return []
        clocks = {worker.rank: worker.clock for worker in self.members.active_workers()}
        behind = clocks_behind(node.rank, clocks)
        if not behind or now < node.warned_at + WARN_AGAIN_S:
            return []
        node.warned_at = now
        fields: dict[str, object] = {
            "worker": node.rank,
            "clock": node.clock,
            "clocks_behind": behind,
        }
        return [Note("worker_behind", fields, "warning")]

    def _attach(self, node: Node, message: AttachTable) -> list[Action]:
        servers = self._server_peers()
        if not self.members.expected["server"]:
            text = (
                f"table {message.name}: this job has no servers, so it has rings but no tables; "
                "start it with servers=1 or more"
            )
            refused = Refused(code=ErrorCode.INVALID_SETTING, text=text, call=message.call)
            return [Tell(refused, node.peer)]
        if len(servers) < self.members.expected["server"]:
            text = f"table {message.name}: {self._absent()}"
            refused = Refused(code=ErrorCode.NOT_INITIALISED, text=text, call=message.call)
            return [Tell(refused, node.peer)]
        workers = {n.rank: n.incarnation for n in self.members.active_workers()}
        takes_part = node.state is NodeState.ALIVE and not message.observer
        applicant = Applicant(node.peer, node.rank, node.incarnation, takes_part)
        return self.catalogue.attach(applicant, message, servers, workers)

    def _finish(self, node: Node, clock: int) -> list[Action]:
        node.clock = max(node.clock, clock)
        if node.state is NodeState.ALIVE:
            node.state = NodeState.FINISHED
            self.members.epoch += 1
        return [
            *self._broadcast(self.members.state()),
            *self.catalogue.finished(node.rank, node.incarnation, self._server_peers()),
            *self._leave_rings(node.rank, f"{node} has finished", lost=False, gone=False),
            *self._fewer_workers(node.rank),
        ]

    # --- time ---

    def next_deadline(self) -> float | None:
        """When `tick` should be called next."""
        if self.ended is not None:
            return None
        waits = (self.barriers.next_deadline(), self.rings.next_deadline())
        return min(
            self._judge_at,
            self._claims.next_deadline(),
            self._join_deadline,
            *(inf if deadline is None else deadline for deadline in waits),
        )

    @property
    def _join_deadline(self) -> float:
        limit = self.settings.join_timeout_s
        return inf if limit is None or self.members.was_ready else self.started_at + limit

    def tick(self, now: float) -> list[Action]:
        """Act on deadlines that have passed."""
        if self.ended is not None:
            return []
        actions: list[Action] = []
        for claim in self._claims.expired(now):
            text = f"a live {claim.join.role} has the name {claim.join.name}; choose another name"
            actions.append(Tell(Refused(code=ErrorCode.NAME_IN_USE, text=text), claim.peer))
        actions += self.barriers.expire(self._active_ranks(), now)
        actions += self.rings.expire(self._active_ranks(), now)
        if now >= self._judge_at:
            actions += self._judge_silence(now)
        if now >= self._join_deadline:
            actions += self.end(False, f"after {now - self.started_at:.0f} s {self._absent()}")
        return actions

    def heartbeat(self, role: str, rank: int, incarnation: int, now: float) -> bool:
        """Take a node's heartbeat; False if that node is not, or no longer, in the job."""
        node = self.members.present(role, rank, incarnation)
        if node is None:
            return False
        self.detector.heard(node.peer, now)
        return True

    def heart(self, role: str, rank: int, incarnation: int, now: float, *, opened: bool) -> None:
        """Note that a heartbeat connection was opened, or has ended."""
        node = self.members.present(role, rank, incarnation)
        if node is None:
            return
        if opened:
            self.connections.heart_opened(node.peer)
        else:
            self.connections.heart_ended(node.peer, now)

    def _judge_silence(self, now: float) -> list[Action]:
        """Suspect and bury those who have been silent for too long."""
        late_s = now - self._judge_at
        if late_s > self.settings.heartbeat_s:
            # This process itself was held up: heartbeats may lie unread before its door.
            self.detector.excuse(late_s)
            self.connections.excuse(late_s)
        self._judge_at = now + self.settings.heartbeat_s / 2
        suspected, dead = self.detector.judge(now)
        actions: list[Action] = []
        for peer in suspected:
            fields: dict[str, object] = {"node": str(self.members.of_peer(peer))}
            actions.append(Note("node_suspected", fields, "warning"))
        silent = [
            (peer, f"no heartbeat for {self.detector.silent_s(peer, now):.1f} s") for peer in dead
        ]
        for peer, reason in [*self.connections.judge(now), *silent]:
            node = self.members.of_peer(peer)
            if node is not None and self.ended is None:
                actions += self._bury(node, reason, now)
        return actions

    def validate(self) -> None:
        """Check what must always hold."""
        peers = [
            node.peer for role in ("server", "worker") for node in self.members.connected(role)
        ]
        assert len(peers) == len(set(peers))
        assert all(peer >= 0 for peer in peers)
        self.rings.validate()
        for node in self.members.nodes("worker"):
            assert node.settled is (node.rank not in self._losses)
