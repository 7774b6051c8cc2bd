"""A whole cluster of cores in one thread: queues in place of sockets, a seed in place of chance.

Scheduler, servers and workers' channels are the real ones; frames travel as bytes. One step
delivers one message of one randomly chosen queue, lets one worker's script go on, or does some
harm. Each connection is a queue of its own in each direction, so what was sent on a connection
that has ended may still arrive after what was sent on the next one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

import msgspec

from aiops.roles.actions import Action, Drop, Ended, Send, Tell
from aiops.roles.bulk_rule import BspRule
from aiops.roles.quorum import Share
from aiops.roles.quorum_rule import QuorumRule
from aiops.roles.requests import Channel, Operation, Part
from aiops.roles.scheduler import SchedulerCore
from aiops.roles.server import ServerCore
from aiops.roles.settings import SchedulerSettings
from aiops_protocol.codec import encode
from aiops_protocol.control import ControlMessage, Join
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Known, Query, Reply, Request
from wire_bytes import decode

Wait: TypeAlias = Callable[[], bool]
"""What a script yields: it goes on when this is true."""

Script: TypeAlias = Generator[Wait, None, None]

END: Any = object()
"""The end of a connection, as a message."""


class Queue:
    """One direction of a connection: messages, and who takes them."""

    def __init__(self, name: str, deliver: Callable[[Any], None], slow: bool) -> None:
        self.name = name
        self.messages: deque[Any] = deque()
        self.deliver = deliver
        self.slow = slow
        self.open = True

    def put(self, message: Any) -> None:
        if self.open:
            self.messages.append(message)

    def end(self, rng: random.Random | None = None) -> None:
        """End it; with a chance, what is under way is lost from some point on."""
        if not self.open:
            return
        if rng is not None:
            kept = rng.randint(0, len(self.messages))
            while len(self.messages) > kept:
                self.messages.pop()
        self.messages.append(END)
        self.open = False


class Connection:
    """Both directions between a worker and a server, and the number that the server has for it."""

    def __init__(self, peer: int, up: Queue, down: Queue) -> None:
        self.peer = peer
        self.up = up
        self.down = down


class ServerNode:
    """A server core, its queue to the scheduler and its data connections."""

    def __init__(self, cluster: CoreCluster, index: int) -> None:
        self.cluster = cluster
        self.rank = index
        self.peer = cluster.new_peer()
        self.core = ServerCore(1 << 40)
        self.connections: dict[int, Connection] = {}
        self.rounds: dict[tuple[int, int], list[int]] = {}  # table, version: contributors
        self.decisions: dict[int, list[list[Share]]] = {}  # table: by round
        self.assigned: dict[tuple[int, int], set[int]] = {}  # table, version: who assigned here
        self.up = cluster.queue(f"server {index} to scheduler", self._to_scheduler)
        self.down = cluster.queue(f"scheduler to server {index}", self._order)
        self.up.put(Join(role="server", name=f"server-{index}", host="h", port=1))

    def _to_scheduler(self, message: Any) -> None:
        self.cluster.from_node(self.peer, message)

    def _order(self, message: Any) -> None:
        if message is not END:
            self.perform(self.core.order(message, self.cluster.now))

    def connect(self, worker: WorkerNode) -> Connection | None:
        """Take in a data connection."""
        assert worker.rank is not None
        if self.core.admit(worker.rank, worker.incarnation) is not ErrorCode.OK:
            return None
        peer = self.cluster.new_peer()
        name = f"{worker.name}/{worker.incarnation} {{}} server {self.rank} ({peer})"
        up = self.cluster.queue(name.format("to"), lambda data: self._request(peer, data))
        down = self.cluster.queue(name.format("from"), lambda _: None)
        self.connections[peer] = connection = Connection(peer, up, down)
        self.perform(self.core.connected(peer, worker.rank, worker.incarnation))
        return connection

    def _request(self, peer: int, data: Any) -> None:
        if data is END:
            self.connections.pop(peer, None)
            self.perform(self.core.disconnected(peer))
        elif peer in self.connections:
            request = decode(data)
            assert isinstance(request, Request)
            if isinstance(request, Query):
                self.perform(self.core.query(peer, request, {}))
            else:
                self.perform(self.core.request(peer, request, self.cluster.now))

    def perform(self, actions: list[Action]) -> None:
        """Carry actions out; values are lent only until here, as by a real shell."""
        for action in actions:
            match action:
                case Send(peer=peer, frame=frame):
                    connection = self.connections.get(peer)
                    if connection is not None:
                        header, payload = encode(frame)
                        connection.down.put(bytes(header) + bytes(payload))
                case Tell(message=message):
                    self.up.put(message)
                case Drop(peer=peer):
                    dropped = self.connections.pop(peer, None)
                    if dropped is not None:
                        dropped.down.end()
                        dropped.up.end()
                case Ended():
                    self.cluster.problems += [] if action.ok else [action.reason]
                case _:
                    pass
        self.core.validate()

    def watch(self) -> None:
        """Note the contributors of every round from now on, for each table that is new."""
        for number, table in self.core.tables.items():
            rule = table.rule
            if isinstance(rule, QuorumRule) and "close" not in vars(rule):
                self._watch_decisions(number, rule)
            if "close" in vars(rule) or not isinstance(rule, BspRule):
                continue

            def noted(number: int = number, rule: Any = rule, close: Any = rule.close) -> list[int]:
                version, assigned = rule.version, set(rule._assignments)
                pushed: list[int] = close()
                self.rounds[number, version] = pushed
                self.assigned[number, version] = assigned
                return pushed

            rule.close = noted  # type: ignore[method-assign]

    def _watch_decisions(self, number: int, rule: QuorumRule) -> None:
        close = rule.close

        def noted() -> list[int]:
            pushed = close()
            self.decisions.setdefault(number, []).append(list(rule._last))
            return pushed

        rule.close = noted  # type: ignore[method-assign]


class WorkerNode:
    """A worker process: a channel to each server and a script that uses them."""

    def __init__(
        self, cluster: CoreCluster, name: str, script: Callable[[WorkerNode], Script]
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.peer = cluster.new_peer()
        self.rank: int | None = None
        self.incarnation = 0
        self.clock = 0
        self.ready = False
        self.alive = True
        self.over = False
        self.replies: list[ControlMessage] = []
        self.calls = 0
        self.channels = [Channel(0, cluster.rng.choice((0, 1 << 30))) for _ in cluster.servers]
        self.connections: list[Connection | None] = [None] * len(cluster.servers)
        self.up = cluster.queue(f"{name} to scheduler", self._to_scheduler)
        self.down = cluster.queue(f"scheduler to {name}", self._hear)
        self.up.put(Join(role="worker", name=name))
        self.script = script(self)
        self.wait: Wait = lambda: True

    def _to_scheduler(self, message: Any) -> None:
        self.cluster.from_node(self.peer, message)

    def _hear(self, message: Any) -> None:
        if message is END:
            self.die()
        elif self.alive:
            self.replies.append(message)
            self.cluster.heard(self, message)

    def tell(self, message: ControlMessage) -> None:
        self.up.put(message)

    # --- data ---

    def start(self, operation: Operation, servers: list[int]) -> Operation:
        """Send the parts of an operation."""
        for part, server in zip(operation.parts, servers, strict=True):
            part.server = server
            channel, connection = self.channels[server], self.connections[server]
            full = self.cluster.rng.random() < 0.5
            if connection is not None and not full and channel.pass_at_once(part, 0.0):
                self._put(connection, part)
            else:
                channel.submit(part)
        self.pump()
        return operation

    def pump(self) -> None:
        for server, channel in enumerate(self.channels):
            if self.connections[server] is None and self.alive and self.rank is not None:
                self._connect(server)
            connection = self.connections[server]
            while connection is not None and (part := channel.next_part(self.cluster.now)):
                self._put(connection, part)
            channel.validate()

    def _put(self, connection: Connection, part: Part) -> None:
        data = bytes(part.header) + bytes(part.payload)
        first = self.cluster.sent.setdefault((self.peer, part.server, part.request_id), data)
        assert first == data, "what is sent again is the same to the byte"
        connection.up.put(data)

    def _connect(self, server: int) -> None:
        connection = self.cluster.servers[server].connect(self)
        if connection is None:  # it was declared lost, and this is how it learns
            self.die()
            return
        self.connections[server] = connection
        connection.down.deliver = lambda data: self._reply(server, connection, data)
        for header, payload in self.channels[server].ask():
            connection.up.put(bytes(header) + bytes(payload))

    def _reply(self, server: int, connection: Connection, data: Any) -> None:
        if not self.alive:
            return
        channel = self.channels[server]
        if data is END:
            if self.connections[server] is connection:
                self.connections[server] = None
                channel.lost()
                connection.up.end(self.cluster.rng)
                self.pump()
            return
        reply = decode(data)
        assert isinstance(reply, Reply)
        if self.connections[server] is connection:  # an owner hears only its newest connection
            channel.answer(reply, self.cluster.now)
            if isinstance(reply, Known):
                for late in channel.known(reply):
                    channel.answer(late, self.cluster.now)
            self.pump()

    # --- life ---

    def go_on(self) -> None:
        """Let the script go on as far as it can."""
        try:
            while self.wait():
                self.wait = next(self.script)
        except StopIteration:
            self.over = True

    def lose_scheduler(self) -> None:
        """Be taken for dead, and go on for a while, until this one notices too."""
        self.up.end(self.cluster.rng)
        self.down.end(self.cluster.rng)

    def die(self) -> None:
        """Stop at once; what was sent last may be lost on any connection."""
        if not self.alive:
            return
        self.alive = False
        self.over = True
        rng = self.cluster.rng
        self.up.end(rng)
        for connection in self.connections:
            if connection is not None:
                connection.up.end(rng)


class CoreCluster:
    """Scheduler, servers and workers, and the steps that move them.

    Parameters
    ----------
    seed
        Of every choice.
    servers
        How many.
    cuts
        Chance per step that some data connection is cut.
    slow
        Share of the queues that are far behind the others.
    **settings
        For the scheduler.
    """

    def __init__(
        self, seed: int, servers: int, cuts: float = 0.0, slow: float = 0.0, **settings: Any
    ) -> None:
        self.rng = random.Random(seed)
        self.slow = slow
        self.now = 0.0
        self.cuts = cuts
        self.seen: dict[str, int] = {}
        self.problems: list[str] = []
        self.sent: dict[tuple[int, int, int], bytes] = {}
        self.queues: list[Queue] = []
        self._peers = 0
        self._downs: dict[int, Queue] = {}
        self.scheduler = SchedulerCore(
            SchedulerSettings(servers=servers, heartbeat_s=3600, **settings), "job", 0.0
        )
        self.servers = [ServerNode(self, index) for index in range(servers)]
        self.workers: list[WorkerNode] = []
        for server in self.servers:
            self._downs[server.peer] = server.down
        while self._deliver_one():
            pass

    def new_peer(self) -> int:
        self._peers += 1
        return self._peers

    def queue(self, name: str, deliver: Callable[[Any], None]) -> Queue:
        queue = Queue(name, deliver, slow=self.rng.random() < self.slow)
        self.queues.append(queue)
        return queue

    def worker(self, name: str, script: Callable[[WorkerNode], Script]) -> WorkerNode:
        """Start a worker process."""
        worker = WorkerNode(self, name, script)
        self._downs[worker.peer] = worker.down
        self.workers.append(worker)
        return worker

    # --- the scheduler's shell ---

    def from_node(self, peer: int, message: Any) -> None:
        if message is END:
            self._perform(self.scheduler.lost(peer, "the connection ended", self.now))
        else:
            self._perform(self.scheduler.message(peer, message, self.now))

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Tell):
                # A message is what its bytes say.
                packed = msgspec.msgpack.encode(action.message)
                message = msgspec.msgpack.decode(packed, type=ControlMessage)
                self._downs[action.peer].put(message)
            elif isinstance(action, Ended) and not action.ok:
                self.problems.append(action.reason)
        self.scheduler.validate()

    def heard(self, worker: WorkerNode, message: ControlMessage) -> None:
        """Take what every worker's shell does with the scheduler's messages."""
        match type(message).__name__:
            case "Joined":
                worker.rank = message.rank  # type: ignore[union-attr]
                worker.incarnation = message.incarnation  # type: ignore[union-attr]
            case "ClusterState":
                worker.ready = message.ready  # type: ignore[union-attr]

    # --- steps ---

    def _deliver_one(self) -> bool:
        """Deliver one message of a random queue."""
        full = [queue for queue in self.queues if queue.messages]
        if not full:
            self.queues = [queue for queue in self.queues if queue.open]
            return False
        queue = self.rng.choice(full)
        if queue.slow and self.rng.random() < 0.95:
            queue = self.rng.choice([queue for queue in full if not queue.slow] or full)
        queue.deliver(queue.messages.popleft())
        for server in self.servers:
            server.watch()
        return True

    def cut(self) -> None:
        """Cut a random data connection at a random frame."""
        standing = [
            connection
            for worker in self.workers
            if worker.alive
            for connection in worker.connections
            if connection is not None and connection.down.open
        ]
        if standing:
            connection = self.rng.choice(standing)
            connection.up.end(self.rng)
            connection.down.end(self.rng)
            self.seen["cut"] = self.seen.get("cut", 0) + 1

    def step(self) -> bool:
        """Do one thing; `False` when nothing is left to do."""
        self.now += 0.001
        for server in self.servers:
            due = server.core.next_deadline()
            if due is not None and due <= self.now:
                server.perform(server.core.tick(self.now))
        if self.cuts and self.rng.random() < self.cuts:
            self.cut()
        ready = [worker for worker in self.workers if not worker.over and worker.wait()]
        if ready and self.rng.random() < 0.3:
            self.rng.choice(ready).go_on()
            return True
        if self._deliver_one():
            return True
        if ready:
            self.rng.choice(ready).go_on()
        return bool(ready)

    def run(self, chance: Callable[[], None] | None = None, limit: int = 100_000) -> None:
        """Step until nothing is left to do; `chance` is called before each step."""
        for _ in range(limit):
            if chance is not None:
                chance()
            if not self.step():
                self.now += 1.0  # a script may wait for the time only
                if not self.step():
                    break
        else:
            raise AssertionError(f"no rest after {limit} steps")
        assert not self.problems, self.problems
        stuck = [worker.name for worker in self.workers if not worker.over]
        assert not stuck, f"{stuck} wait for something that never comes"
