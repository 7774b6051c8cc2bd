"""Heartbeats of a node: from a thread and a connection of their own, or from the event loop.

A worker that computes for half a minute in its event loop, or a server within a long
reduction, must stay alive for the scheduler, so in real life a thread beats. Nodes that share
the scheduler's own event loop (`LocalCluster`) and simulated ones beat from the loop.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from aiops.errors import AiopsError
from aiops.roles.detector import Lease
from aiops.runtime.dialling import LinkPlan, open_link
from aiops.van import TcpVan
from aiops.van.base import Address, Van
from aiops.van.link import Link
from aiops_protocol.buffer import NEED_DATA
from aiops_protocol.connection import Connection, State
from aiops_protocol.errors import ErrorCode, WireError
from aiops_protocol.frames import Frame, Goodbye, Ping, Pong
from aiops_protocol.handshake import ClientHandshake, Purpose, Role

__all__ = ["Heartbeat", "Identity", "LoopHeartbeat", "ThreadHeartbeat", "make_heartbeat"]

RETRY_S: Final = 0.2
"""Pause before a broken heartbeat connection is opened again."""

JOIN_THREAD_S: Final = 2.0
"""How long closing waits for the thread; it wakes at once unless the kernel holds it."""


class Heartbeat(Protocol):
    """Keeps a lease renewed until it is closed."""

    lease: Lease

    def start(self) -> None:
        """Begin to beat."""
        ...

    async def close(self) -> None:
        """Stop. Idempotent."""
        ...


class Identity:
    """Whose heart beats, and where it is heard."""

    def __init__(
        self, scheduler: Address, role: Role, rank: int, incarnation: int, job: bytes
    ) -> None:
        self.scheduler = scheduler
        self.role = role
        self.rank = rank
        self.incarnation = incarnation
        self.job = job

    def plan(self) -> LinkPlan:
        """Return how the connection is opened."""
        return LinkPlan(
            self.scheduler,
            "the scheduler",
            self.role,
            Role.SCHEDULER,
            Purpose.HEARTBEAT,
            job=self.job,
            rank=self.rank,
            incarnation=self.incarnation,
            known=True,
        )


def make_heartbeat(
    van: Van,
    identity: Identity,
    heartbeat_s: float,
    fenced: Callable[[str], None],
    *,
    from_thread: bool,
) -> Heartbeat:
    """Return what beats for a node: a thread over TCP, or the event loop over any van."""
    if from_thread and isinstance(van, TcpVan):
        return ThreadHeartbeat(identity, heartbeat_s, fenced)
    return LoopHeartbeat(van, identity, heartbeat_s, fenced)


class LoopHeartbeat:
    """Beats from the event loop, over any van."""

    def __init__(
        self, van: Van, identity: Identity, heartbeat_s: float, fenced: Callable[[str], None]
    ) -> None:
        self._van = van
        self._fenced = fenced
        self._identity = identity
        self._loop = asyncio.get_running_loop()
        self.lease = Lease(heartbeat_s, self._loop.time())
        self._period_s = heartbeat_s
        self._sent: dict[int, float] = {}
        self._token = 0
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to beat."""
        self._task = self._loop.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            if self._link is None:
                try:
                    timeout_s = max(4 * self._period_s, 1.0)
                    plan = self._identity.plan()
                    self._link = await open_link(self._van, plan, self, timeout_s=timeout_s)
                except AiopsError:
                    await asyncio.sleep(RETRY_S)
                    continue
            self._token += 1
            self._sent = {t: at for t, at in self._sent.items() if t > self._token - 32}
            self._sent[self._token] = self._loop.time()
            self._link.send(Ping(self._token))
            await asyncio.sleep(self._period_s)

    def link_ready(self, link: Link) -> None:
        """Nothing to do: `_beat` goes on."""

    def link_frame(self, link: Link, frame: Frame) -> None:
        """Renew the lease by the answer to a heartbeat."""
        if isinstance(frame, Pong):
            sent_at = self._sent.pop(frame.token, None)
            if sent_at is not None:
                self.lease.renew(sent_at)

    def link_pinged(self, link: Link) -> None:
        """Nothing to do: the scheduler does not ask."""

    def link_batch_end(self, link: Link) -> None:
        """Nothing to do."""

    def link_drained(self, link: Link) -> None:
        """Nothing to do."""

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        """Open the connection again at the next beat, unless the scheduler has ended it."""
        if self._link is link:
            self._link = None
            goodbye = link.goodbye
            # Any other goodbye says that the connection was damaged: the next beat opens another.
            if goodbye is None or goodbye.code != ErrorCode.STALE_INCARNATION:
                return
            if self._task is not None:
                self._task.cancel()
                self._fenced(goodbye.text)

    async def close(self) -> None:
        """Stop. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._link is not None:
            self._link.close()
            self._link = None


class ThreadHeartbeat:
    """Beats from a thread with a blocking socket; the event loop may be busy for minutes.

    Parameters
    ----------
    fenced
        Called in the event loop when the scheduler has ended the connection with a reason.
    """

    def __init__(
        self, identity: Identity, heartbeat_s: float, fenced: Callable[[str], None]
    ) -> None:
        self._identity = identity
        self._period_s = heartbeat_s
        self._fenced = fenced
        self._loop = asyncio.get_running_loop()
        self.lease = Lease(heartbeat_s, time.monotonic())
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"aiops-heartbeat-{identity.rank}", daemon=True
        )

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with socket.create_connection(
                    self._identity.scheduler, timeout=self._wait_s
                ) as sock:
                    self._talk(sock)
            except (OSError, WireError):
                pass
            self._ended.wait(RETRY_S)

    @property
    def _wait_s(self) -> float:
        return max(4 * self._period_s, 1.0)

    def _talk(self, sock: socket.socket) -> None:
        sock.settimeout(self._wait_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        identity = self._identity
        handshake = ClientHandshake(
            identity.role,
            Purpose.HEARTBEAT,
            secrets.token_bytes(32),
            expects=Role.SCHEDULER,
            job=identity.job,
            rank=identity.rank,
            incarnation=identity.incarnation,
        )
        connection = Connection(handshake)
        while connection.state is State.HANDSHAKE:
            self._receive(sock, connection)
            for reply in connection.take_replies():
                sock.sendall(reply)
        token = 0
        while not self._ended.is_set():
            token += 1
            sent_at = time.monotonic()
            header, _ = connection.encode(Ping(token))
            sock.sendall(header)
            if not self._await_pong(sock, connection, token):
                return
            self.lease.renew(sent_at)
            self._ended.wait(max(0.0, self._period_s - (time.monotonic() - sent_at)))
        header, _ = connection.encode(Goodbye())
        sock.sendall(header)

    def _await_pong(self, sock: socket.socket, connection: Connection, token: int) -> bool:
        """Wait for the answer to one heartbeat; False when the scheduler ended the connection."""
        while True:
            frame = connection.next_frame()
            if frame is NEED_DATA:
                self._receive(sock, connection)
            elif isinstance(frame, Goodbye):
                if frame.code == ErrorCode.STALE_INCARNATION:
                    self._tell(frame.text)
                return False
            elif isinstance(frame, Pong) and frame.token == token:
                return True

    def _tell(self, text: str) -> None:
        self._ended.set()
        try:
            self._loop.call_soon_threadsafe(self._fenced, text)
        except RuntimeError:  # the loop has been closed: nobody is left to be told
            return

    @staticmethod
    def _receive(sock: socket.socket, connection: Connection) -> None:
        count = sock.recv_into(connection.get_buffer())
        if not count:
            raise ConnectionResetError("the scheduler closed the heartbeat connection")
        connection.received(count)

    async def close(self) -> None:
        """Stop. Idempotent."""
        self._ended.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, JOIN_THREAD_S)
