"""Who is in a job: ranks by name, incarnations, the state of each node, the epoch.

A rank belongs to a name for the life of the job; taking it again raises its incarnation, and
every change of membership raises the epoch. Nothing here sends or decides what a loss means.
"""

from __future__ import annotations

import re
from enum import Enum
from itertools import count
from math import inf
from typing import Final

import msgspec

from aiops_protocol.control import ClusterState, Join, Member, NodeReport, TableReport
from aiops_protocol.limits import SERVERS_MAX, WORKERS_MAX

__all__ = ["Membership", "Node", "NodeState"]

_NUMBERED: Final = re.compile(r"^(worker|server)-(0|[1-9]\d{0,3})$")
ROLES: Final = ("server", "worker")
RANKS_MAX: Final = {"server": SERVERS_MAX, "worker": WORKERS_MAX}


class NodeState(Enum):
    """What is known of a node."""

    ALIVE = "alive"
    FINISHED = "finished"
    """Alive, but contributes no more clocks."""
    LEFT = "left"
    LOST = "lost"


class Node(msgspec.Struct):
    """One rank of a role, and who holds it now."""

    role: str
    rank: int
    name: str
    automatic: bool
    incarnation: int = 0
    peer: int = -1
    host: str = ""
    port: int = 0
    process_id: int = 0
    state: NodeState = NodeState.ALIVE
    reason: str = ""
    clock: int = 0
    ahead: int = 0  # its clock is that of the job minus this: so many had passed when it came
    resumes: bool = False
    report: NodeReport | None = None
    tables: dict[str, TableReport] = {}
    """What a server has counted of each."""
    warned_at: float = -inf
    """When it was last said of a worker that it is slow."""
    settled: bool = True
    """Not so between a worker's loss and the moment when all servers know what it means."""

    @property
    def connected(self) -> bool:
        """Whether the node is in the job now."""
        return self.state in (NodeState.ALIVE, NodeState.FINISHED)

    def __str__(self) -> str:
        return f"{self.role} {self.rank} ({self.name})"


class Membership:
    """All nodes of a job, past and present, by role and rank.

    Parameters
    ----------
    servers, workers
        How many the job expects before it is ready.
    """

    def __init__(self, servers: int, workers: int) -> None:
        self.expected = {"server": servers, "worker": workers}
        self.epoch = 0
        self.ready = False
        self.was_ready = False  # also when more workers are expected since
        self._missing: set[str] = set()  # workers that the start does not wait for any more
        self._nodes: dict[str, dict[int, Node]] = {role: {} for role in ROLES}
        self._by_peer: dict[int, Node] = {}

    def of_peer(self, peer: int) -> Node | None:
        """Return the node behind a connection."""
        return self._by_peer.get(peer)

    def nodes(self, role: str) -> list[Node]:
        """Return all nodes of a role in rank order, also those that have gone."""
        return [self._nodes[role][rank] for rank in sorted(self._nodes[role])]

    def connected(self, role: str) -> list[Node]:
        """Return the nodes of a role that are in the job now, in rank order."""
        return [node for node in self.nodes(role) if node.connected]

    def active_workers(self) -> list[Node]:
        """Return the workers that still contribute clocks, in rank order."""
        return [node for node in self.nodes("worker") if node.state is NodeState.ALIVE]

    def find(self, role: str, name: str) -> Node | None:
        """Return the node of this name, present or past."""
        return next((node for node in self._nodes[role].values() if node.name == name), None)

    def present(self, role: str, rank: int, incarnation: int) -> Node | None:
        """Return the node, if exactly this incarnation of it is in the job now."""
        node = self._nodes.get(role, {}).get(rank)
        if node is None or not node.connected or node.incarnation != incarnation:
            return None
        return node

    def rank(self, role: str, rank: int) -> Node:
        """Return the node of this rank."""
        return self._nodes[role][rank]

    def has_room(self, role: str) -> bool:
        """Whether one more node of a new name can be taken in."""
        if role == "server" and len(self.connected("server")) >= self.expected["server"]:
            return False
        return self._free_rank(role, "") < RANKS_MAX[role]

    def take_in(self, peer: int, join: Join) -> Node:
        """Give the joining node its rank and the next incarnation of it."""
        node = self.find(join.role, join.name) if join.name else None
        if node is None:
            rank = self._free_rank(join.role, join.name)
            # Not `worker-0`: somebody may join under that name later, and gets it.
            name = join.name or f"{join.role}-auto-{rank}"
            former = self._nodes[join.role].get(rank)
            node = Node(join.role, rank, name, automatic=not join.name)
            if former is not None:
                node.incarnation = former.incarnation
            self._nodes[join.role][rank] = node
        assert node.settled
        if node.state is NodeState.LEFT:
            # Its script had come to its end; only after a loss is there more to do.
            node.clock = node.ahead = 0
        node.resumes = node.state is NodeState.LOST
        node.incarnation += 1
        node.peer = peer
        node.host, node.port, node.process_id = join.host, join.port, join.process_id
        node.state, node.reason, node.report = NodeState.ALIVE, "", None
        self._by_peer[peer] = node
        self.epoch += 1
        if join.role == "worker":
            self._missing.discard(node.name)
        self._see_whether_ready()
        return node

    def _free_rank(self, role: str, name: str) -> int:
        """Return the rank that a numbered name asks for, if free, else the lowest free one."""
        taken = {rank for rank, node in self._nodes[role].items() if not _reusable(node)}
        numbered = _NUMBERED.match(name)
        if numbered is not None and numbered[1] == role:
            wanted = int(numbered[2])
            if wanted not in taken and wanted < RANKS_MAX[role]:
                return wanted
        return next(rank for rank in count() if rank not in taken)

    def _complete(self) -> bool:
        if len(self.connected("server")) < self.expected["server"]:
            return False
        here, expected = len(self.connected("worker")), self.expected["worker"]
        return here >= expected or (here > 0 and here + len(self._missing) >= expected)

    def _see_whether_ready(self) -> None:
        self.ready = self.ready or self._complete()
        self.was_ready = self.was_ready or self.ready

    def expect_workers(self, workers: int) -> None:
        """Expect this many workers from now on; the job is ready again when they are there."""
        self.expected["worker"] = workers
        self._missing.clear()
        self.ready = self._complete()

    def miss(self, name: str) -> None:
        """Let the start, if it is still to come, wait no longer for the worker of this name."""
        if not self.ready:
            self._missing.add(name)
            self._see_whether_ready()

    def workers_to_be(self) -> int:
        """Return how many workers there are, or will be as far as is known if it has not begun."""
        here = len(self.connected("worker"))
        return here if self.ready else max(here, self.expected["worker"] - len(self._missing))

    def leave(self, node: Node, state: NodeState, reason: str) -> None:
        """Note that a node is no longer in the job."""
        self._by_peer.pop(node.peer, None)
        node.peer = -1
        node.state, node.reason = state, reason
        self.epoch += 1

    def state(self) -> ClusterState:
        """Return the membership as it is sent to everybody."""
        members = [
            Member(
                role=node.role,
                rank=node.rank,
                name=node.name,
                incarnation=node.incarnation,
                host=node.host,
                port=node.port,
                state=node.state.value,
            )
            for role in ROLES
            for node in self.nodes(role)
        ]
        return ClusterState(
            epoch=self.epoch,
            members=members,
            expected_servers=self.expected["server"],
            expected_workers=self.expected["worker"],
            ready=self.ready,
        )


def _reusable(node: Node) -> bool:
    # An automatic name promises nobody that its rank is kept.
    return node.automatic and not node.connected and node.settled
