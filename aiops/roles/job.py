"""Who is in a job: arrivals, departures, what a loss means, and the orderly end.

What lives here: the policy, and the telling of everybody. The books are `membership.py`, joins
that wait `claims.py`, losses that are not settled `losses.py`. Messages and time come through
`scheduler.py`.
"""

from __future__ import annotations

from math import inf
from typing import Final

from aiops.roles.actions import Action, Drop, Ended, Note, Tell
from aiops.roles.barrier import Barriers
from aiops.roles.catalogue import Catalogue
from aiops.roles.claims import Claims
from aiops.roles.connections import Connections
from aiops.roles.detector import FailureDetector
from aiops.roles.losses import Losses
from aiops.roles.membership import Membership, Node, NodeState
from aiops.roles.restarts import Restarts
from aiops.roles.rings import Rings
from aiops.roles.settings import SchedulerSettings
from aiops.roles.stopping import Stopping
from aiops.wording import listed, shown
from aiops_protocol.control import ControlMessage, Join, Joined, Refused, Shutdown, StopAt
from aiops_protocol.errors import ErrorCode

__all__ = ["RESIDUAL_NORM", "Job"]

RESIDUAL_NORM: Final = "residual_norm."
"""What the name of a worker's metric begins with that tells, of a table, what is held back."""


class Job:
    """One job and everybody in it.

    Parameters
    ----------
    settings
        What the scheduler decides for the whole job.
    job
        Its random id.
    now
        When it began.
    """

    def __init__(self, settings: SchedulerSettings, job: str, now: float) -> None:
        self.settings = settings
        self.job = job
        self.ended: Ended | None = None
        self.members = Membership(settings.servers, settings.workers)
        self.catalogue = Catalogue()
        self.barriers = Barriers(self._describe_worker)
        self.rings = Rings(self._describe_worker)
        self.stopping = Stopping()
        self.detector = FailureDetector(settings.heartbeat_s)
        self.connections = Connections(settings.heartbeat_s)
        self.restarts = Restarts()
        self.started_at = now
        self._claims = Claims(settings.heartbeat_s)
        self._losses = Losses()
        self._workers_left = 0  # in order
        self._workers_lost = 0

    # --- telling ---

    def _server_peers(self) -> dict[int, int]:
        return {node.rank: node.peer for node in self.members.connected("server")}

    def _active_ranks(self) -> list[int]:
        return [node.rank for node in self.members.active_workers()]

    def _describe_worker(self, rank: int) -> str:
        node = self.members.rank("worker", rank)
        return f"{node}: {node.state.value}, at clock {node.clock}"

    def _broadcast(self, message: ControlMessage) -> list[Action]:
        nodes = self.members.connected("server") + self.members.connected("worker")
        return [Tell(message, node.peer) for node in nodes]

    def _absent(self) -> str:
        expected = self.members.expected
        servers = f"{len(self.members.connected('server'))} of {expected['server']} servers"
        workers = f"{len(self.members.connected('worker'))} of {expected['worker']} workers"
        return f"only {servers} and {workers} have registered"

    # --- joining ---

    def _join(self, peer: int, join: Join, now: float) -> list[Action]:
        if self.members.of_peer(peer) is not None or self._claims.has(peer):
            return [Note("unexpected_message", {"message": "Join", "peer": peer}, "warning")]
        refusal = self._judge(join, now)
        if refusal is not None:
            return [Tell(refusal, peer)]
        holder = self.members.find(join.role, join.name) if join.name else None
        if holder is not None and (holder.connected or not holder.settled):
            dies_at = self.detector.dies_at(holder.peer) if holder.connected else inf
            self._claims.add(peer, join, now, holder_dies_at=dies_at)
            if holder.connected and self.connections.severed(holder.peer):
                # Nothing is left of the former one but its name: it was started again.
                return self._bury(holder, self.connections.reason(holder.peer), now)
            return []
        return self._take_in(peer, join, now)

    def _judge(self, join: Join, now: float) -> Refused | None:
        if self.ended is not None:
            code = ErrorCode.SHUTTING_DOWN if self.ended.ok else ErrorCode.JOB_FAILED
            return Refused(code=code, text=f"the job has ended: {self.ended.reason}"[:1024])
        if join.role not in ("server", "worker"):
            return Refused(code=ErrorCode.WRONG_ROLE, text=f"there is no role {shown(join.role)}")
        known = bool(join.name) and self.members.find(join.role, join.name) is not None
        if not known and not self.members.has_room(join.role):
            taken = len(self.members.connected(join.role))
            text = f"the job has its {taken} {join.role}s already; start it with more of them"
            return Refused(code=ErrorCode.CLUSTER_FULL, text=text)
        return self._judge_restart(join, now)

    def _judge_restart(self, join: Join, now: float) -> Refused | None:
        text = self.restarts.refusal(join.name, now) if join.role == "worker" else ""
        return Refused(code=ErrorCode.TOO_MANY_RESTARTS, text=text) if text else None

    def _take_in(self, peer: int, join: Join, now: float) -> list[Action]:
        was_ready = self.members.ready
        node = self.members.take_in(peer, join)
        self.detector.watch(peer, now)
        self.connections.add(peer, now)
        joined = Joined(
            rank=node.rank,
            name=node.name,
            incarnation=node.incarnation,
            job=self.job,
            heartbeat_s=self.settings.heartbeat_s,
            clock=node.clock,
            trace=self.settings.trace,
            report_period_s=self.settings.report_period_s,
            resumes=node.resumes,
            ahead=node.ahead,
        )
        fields: dict[str, object] = {
            "node": str(node),
            "incarnation": node.incarnation,
            "servers": f"{len(self.members.connected('server'))}/{self.members.expected['server']}",
            "workers": f"{len(self.members.connected('worker'))}/{self.members.expected['worker']}",
        }
        actions: list[Action] = [Tell(joined, peer), Note("node_joined", fields)]
        actions += self._tell_members(was_ready)
        if node.role == "worker":
            if self.stopping.agreed and not node.clock and len(self._active_ranks()) == 1:
                # Nobody is left of those who stopped: whoever comes now begins afresh.
                self.stopping = Stopping()
            actions += self.stopping.joined(node.rank, peer, node.clock)
        return actions

    def _tell_members(self, was_ready: bool) -> list[Action]:
        ready = [Note("cluster_ready", {})] if self.members.ready and not was_ready else []
        return [*self._broadcast(self.members.state()), *ready]

    def will_not_come(self, role: str, name: str, reason: str, *, clean: bool) -> list[Action]:
        """Take note that a node has ended before it registered; whoever had started it knows."""
        known = self.members.find(role, name)
        # What becomes of a member its connections tell.
        if self.ended is not None or (known is not None and (known.connected or role == "server")):
            return []
        why = f"{name} has ended before it registered: {reason}"
        if role == "server":
            return self.end(False, why, name)
        if self.members.ready:
            return []
        if not clean and self.settings.on_worker_loss == "fail":
            return self.end(False, why, name)
        self.members.miss(name)
        if not clean and (too_few := self._too_few()):
            return self.end(False, f"{why}; {too_few}", name)
        fields: dict[str, object] = {"node": name, "reason": reason}
        note = Note("worker_will_not_come", fields, "warning")
        return [note, *self._tell_members(was_ready=False)]

    # --- leaving ---

    def _fewer_workers(self, rank: int) -> list[Action]:
        """Look again at everything that may have waited for this worker."""
        return [
            *self.barriers.reconsider(self._active_ranks()),
            *self._agree(self.stopping.left(rank)),
        ]

    def _leave_rings(self, rank: int, text: str, *, lost: bool, gone: bool) -> list[Action]:
        active, epoch = self._active_ranks(), self.members.epoch
        return self.rings.leave(rank, text, active, epoch, lost=lost, gone=gone)

    def severed(self, peer: int, reason: str, now: float) -> list[Action]:
        """Note the end of a node's control connection, which may well be opened again."""
        node = self.members.of_peer(peer)
        if node is None:
            return []
        self.connections.control_lost(peer, reason, now)
        fields: dict[str, object] = {"node": str(node), "reason": reason}
        return [Note("control_lost", fields, "warning")]

    def back(self, peer: int, now: float) -> list[Action]:
        """Note that a node's control connection is open again; it goes on where it was."""
        lost_at = self.connections.control_back(peer)
        node = self.members.of_peer(peer)
        if lost_at is None or node is None:
            return []
        fields: dict[str, object] = {"node": str(node), "after_s": round(now - lost_at, 3)}
        return [Note("control_resumed", fields)]

    def lost(self, peer: int, reason: str, now: float) -> list[Action]:
        """Note the end of a connection for good; without a `Leave` before it, that is a loss."""
        self._claims.drop(peer)
        node = self.members.of_peer(peer)
        if node is None or self.ended is not None:
            return []
        return self._gone(node, clean=False, reason=reason, now=now)

    def _bury(self, node: Node, reason: str, now: float) -> list[Action]:
        """Declare a node lost that may still believe to be in the job, and tell it so."""
        peer, text = node.peer, f"{node} was declared lost: {reason}"
        gone = self._gone(node, clean=False, reason=reason, now=now)
        return [*gone, Drop(peer, ErrorCode.STALE_INCARNATION, text)]

    def _gone(self, node: Node, clean: bool, reason: str, now: float) -> list[Action]:
        peer, finished = node.peer, node.state is NodeState.FINISHED
        was_ready = self.members.ready
        self.detector.forget(peer)
        self.connections.forget(peer)
        self.members.leave(node, NodeState.LEFT if clean else NodeState.LOST, reason)
        event = "node_left" if clean else "node_lost"
        fields: dict[str, object] = {"node": str(node), "reason": reason}
        held_back = _held_back(node)
        if held_back and not clean:
            fields["held_back"] = held_back  # norms of what compression has not sent, by table
        actions: list[Action] = [Note(event, fields, "info" if clean else "warning")]
        if node.role == "server":
            actions += self._server_gone(node, clean)
        else:
            actions += self._worker_gone(node, peer, clean, finished, now)
        if self.ended is None:
            actions += self._tell_members(was_ready)
            actions += self._settle_losses(now)
            actions += self._settle_claim(node, now)
            actions += self._end_if_idle()
        return actions

    def _server_gone(self, node: Node, clean: bool) -> list[Action]:
        held = self.catalogue.held_by(node.rank)
        if not held and clean:
            self._losses.server_gone(node.rank)
            return []
        ranges = f"; with it went {listed(held)}" if held else ""
        how = "has left" if clean else "is lost"
        where = f"{node} at {node.host}:{node.port}"
        # With nobody left to train, a server that goes in order ends the job, it does not fail it.
        ok = clean and not self.members.connected("worker")
        return self.end(ok, f"{where} {how} ({node.reason}){ranges}", str(node))

    def _worker_gone(
        self, node: Node, peer: int, clean: bool, finished: bool, now: float
    ) -> list[Action]:
        self.barriers.leave(node.rank)
        entering = self.catalogue.is_entering(node.rank)
        self.catalogue.gone(peer, node.rank, node.incarnation)
        self._workers_left += clean
        self._workers_lost += not clean
        if clean or self.settings.on_worker_loss == "continue":
            self.members.miss(node.name)
        if not clean:
            self.restarts.lost(node.name, now)
            fatal = self._fatal(node)
            if fatal:
                return self.end(False, fatal, str(node))
        how = "has left" if clean else "is lost"
        actions = self._leave_rings(
            node.rank, f"{node} {how}: {node.reason}", lost=not clean, gone=True
        )
        actions += self._fewer_workers(node.rank)
        if clean and finished and not entering:
            # Its last seals are acknowledged: nobody waits for it.
            return actions
        node.settled = False
        servers = self._server_peers()
        query = self._losses.begin(node.rank, node.incarnation, servers)
        return [*(Tell(query, server) for server in servers.values()), *actions]

    def _fatal(self, node: Node) -> str:
        """Say why the job cannot go on without this worker; empty if it can."""
        why = f"{node} is lost: {node.reason}"
        # A cluster to which workers come and go at will does not end with one that was alone.
        counts = self.settings.workers or self.members.active_workers()
        if self.settings.on_worker_loss == "fail" and counts:
            return why
        too_few = self._too_few()
        return f"{why}; {too_few}" if too_few else ""

    def _too_few(self) -> str:
        left, needed = self.members.workers_to_be(), self.settings.min_workers
        return f"{left} workers are left, {needed} are needed" if left < needed else ""

    def _settle_losses(self, now: float) -> list[Action]:
        """Give every verdict for which all answers are in; the rank is free again."""
        actions: list[Action] = []
        servers = self._server_peers()
        for verdict in self._losses.verdicts():
            actions += [Tell(verdict, peer) for peer in servers.values()]
            node = self.members.rank("worker", verdict.worker)
            node.settled = True
            sealed = self.catalogue.clock_of(verdict.sealed)
            node.clock = max(node.clock, sealed - node.ahead)
            actions += self.catalogue.settled(node.rank, servers)
            actions += self._settle_claim(node, now)
        return actions

    def _settle_claim(self, node: Node, now: float) -> list[Action]:
        """Let in who waited for the name of a node that is gone."""
        if node.connected:
            return []
        if not node.settled:
            self._claims.hold(node.role, node.name)
            return []
        claim = self._claims.take(node.role, node.name)
        if claim is None:
            return []
        refusal = self._judge_restart(claim.join, now)
        return (
            [Tell(refusal, claim.peer)] if refusal else self._take_in(claim.peer, claim.join, now)
        )

    # --- the end ---

    def _end_if_idle(self) -> list[Action]:
        waiting = self.members.connected("worker") or self._claims
        if not self.settings.end_when_idle or waiting or not self.members.was_ready:
            return []
        if self._workers_left:
            return self.end(True, "all workers have finished")
        return self.end(False, "every worker was lost") if self._workers_lost else []

    def end(self, ok: bool, reason: str, node: str = "") -> list[Action]:
        """End the job: tell everybody why."""
        if self.ended is not None:
            return []
        self.ended = Ended(ok, reason)
        shutdown = Shutdown(reason=reason[:1024], failed=not ok, node=node)
        # Workers first: who meets a closing server before the reason would blame that server.
        nodes = self.members.connected("worker") + self.members.connected("server")
        return [
            *(Tell(shutdown, node.peer) for node in nodes),
            *self._refuse_claims(),
            Note(
                "job_ended" if ok else "job_failed", {"reason": reason}, "info" if ok else "error"
            ),
            self.ended,
        ]

    def _refuse_claims(self) -> list[Action]:
        code = ErrorCode.SHUTTING_DOWN if self.ended and self.ended.ok else ErrorCode.JOB_FAILED
        text = f"the job has ended: {self.ended.reason if self.ended else ''}"[:1024]
        return [Tell(Refused(code=code, text=text), claim.peer) for claim in self._claims.all()]

    def stop(self, reason: str) -> list[Action]:
        """Let all workers stop at one step boundary."""
        if self.ended is not None:
            return []
        workers = [(node.rank, node.peer) for node in self.members.active_workers()]
        note = Note("stop_requested", {"reason": reason})
        return [note, *self.stopping.request(reason, workers)]

    def _agree(self, agreed: StopAt | None) -> list[Action]:
        return [] if agreed is None else self._broadcast(agreed)


def _held_back(node: Node) -> dict[str, float]:
    """Return what a worker's compression had not sent when it last told, as norms by table."""
    metrics = node.report.metrics if node.report is not None else {}
    return {
        name.removeprefix(RESIDUAL_NORM): round(norm, 6)
        for name, norm in metrics.items()
        if name.startswith(RESIDUAL_NORM) and norm
    }
