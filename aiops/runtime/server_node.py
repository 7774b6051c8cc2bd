"""The server's shell: takes requests from workers, performs what `ServerCore` decides, reports."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from typing import Final

from aiops.checks import check_flag, check_optional_name, positive
from aiops.errors import (
    AiopsError,
    ConfigError,
    ConnectionLost,
    NodeFailed,
    PeerMisbehaved,
    rejection,
)
from aiops.observability import get_logger
from aiops.roles.actions import Action, Drop, Ended, Note, RoundClosed, Send, Tell
from aiops.roles.server import ServerCore
from aiops.runtime.addresses import is_wildcard, scheduler_address
from aiops.runtime.control_link import ControlLink
from aiops.runtime.doors import Silent, log_note, open_door
from aiops.runtime.given import check_door, check_memory_limit, check_van
from aiops.runtime.heartbeat import Identity
from aiops.runtime.lending import AnswerLoans, SegmentPool
from aiops.runtime.pulse import Pulse
from aiops.runtime.server_meter import ServerMeter
from aiops.van.base import Address, Listener, Stream, StreamHandler, Van
from aiops.van.link import Link
from aiops_protocol.control import ControlMessage, Join, Joined, Leave, Refused
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Frame, Goodbye, Pull, Query, Request, Seal
from aiops_protocol.handshake import Hello, Role, ServerHandshake
from aiops_protocol.queries import OWN_CONNECTION, mark

__all__ = ["Server"]

TICK_S: Final = 0.25
"""Grain of notices to those who wait; a quarter of the shortest period that they have."""

NOT_STARTED: Final = "the server is not started: use `async with Server(...)`"

CLOSE_GRACE_S: Final = 2.0
"""How long workers may take to close their side when the server ends."""


class Server:
    """One server of a job, in this process.

    Parameters
    ----------
    scheduler
        `host:port` of the scheduler; without it `$AIOPS_SCHEDULER`.
    name
        A server that gives the same name again gets its rank back; without it one is made.
    bind, sock, advertise, insecure
        As for `Scheduler`. Without `advertise`, workers are told the bound host, or, if that
        stands for all interfaces, the local address of the connection to the scheduler.
    connect_timeout_s
        How long to try to reach the scheduler.
    memory_limit_bytes
        What all shards together may need; by default 80 % of the machine's memory.
    heartbeat_thread
        Send heartbeats from a thread of their own, so that a busy event loop is not taken for a
        dead server; `False` where the scheduler shares the event loop anyway.

    Raises
    ------
    ConfigError
        A setting is wrong, or the address cannot be bound.
    DialFailed
        The scheduler cannot be reached.
    """

    def __init__(
        self,
        scheduler: str | None = None,
        *,
        name: str | None = None,
        bind: str = "127.0.0.1:0",
        sock: socket.socket | None = None,
        advertise: str | None = None,
        insecure: bool = False,
        connect_timeout_s: float = 60.0,
        memory_limit_bytes: int | None = None,
        heartbeat_thread: bool = True,
        van: Van | None = None,
    ) -> None:
        self._scheduler = scheduler_address(scheduler)
        self._wanted_name = check_optional_name(name, "the server's name")
        door = check_door(bind, sock, advertise, insecure, "the server at")
        self._bind, self._sock, self._advertise = door
        self._connect_timeout_s = positive(connect_timeout_s, "connect_timeout_s")
        self._van: Van = check_van(van)
        self._core = ServerCore(check_memory_limit(memory_limit_bytes))
        self._listener: Listener | None = None
        self._links: dict[int, Link] = {}
        self._segments = SegmentPool()
        self._answers = AnswerLoans()
        self._joined: Joined | None = None
        self._joining: asyncio.Future[Joined] | None = None
        self._ended: asyncio.Future[Ended] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closer: asyncio.TimerHandle | None = None  # for the round whose end is due next
        self._deadline: float | None = None
        self._report_at = 0.0
        self.meter = ServerMeter()
        self._emptied = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._heartbeat_thread = check_flag(heartbeat_thread, "heartbeat_thread")
        self._pulse: Pulse | None = None
        self._suspended = False
        self._log = get_logger(role="server")
        self._control = ControlLink(self._van, self._scheduler, Role.SERVER, self, self._log)

    def __repr__(self) -> str:
        who = self._wanted_name or "server"
        if self._joined is not None:
            who = f"{self._joined.rank} ({self._joined.name})"
        if self._listener is None:
            return f"<Server {who} {'not started' if self._ended is None else 'closed'}>"
        return f"<Server {who} {self.address} {'joining' if self._joined is None else 'running'}>"

    @property
    def address(self) -> str:
        """Where workers reach this server, `host:port`."""
        return str(self._public_address())

    @property
    def rank(self) -> int:
        """Rank of this server, from 0."""
        return self._known.rank

    @property
    def name(self) -> str:
        """Name of this server, given or made."""
        return self._known.name

    @property
    def _known(self) -> Joined:
        if self._joined is None:
            raise ConfigError(NOT_STARTED)
        return self._joined

    def _public_address(self) -> Address:
        if self._listener is None:
            raise ConfigError(NOT_STARTED)
        bound = self._listener.address
        if self._advertise is not None:
            return Address(self._advertise.host, self._advertise.port or bound.port)
        if is_wildcard(bound.host) and self._control.local_host:
            return Address(self._control.local_host, bound.port)
        return bound

    async def __aenter__(self) -> Server:
        """Start; leaving closes."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    async def start(self) -> None:
        """Open the door and register with the scheduler."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self._joining = loop.create_future()
        self._listener = await open_door(self._van, self._bind, self._sock, self._accept)
        try:
            await self._control.open(self._connect_timeout_s)
            address = self._public_address()
            join = Join(
                role="server",
                name=self._wanted_name,
                host=address.host,
                port=address.port,
                process_id=os.getpid(),
                memory_bytes=self._core.memory_limit_bytes,
            )
            self._control.send(join)
            async with asyncio.timeout(self._connect_timeout_s):
                self._joined = await self._joining
        except BaseException:
            await self.close()
            raise
        self._log = get_logger(role="server", rank=self.rank, job=self._joined.job[:8])
        self._control.log = self._log
        if self._joined.trace:
            self.meter.trace()
        identity = Identity(
            self._scheduler,
            Role.SERVER,
            self.rank,
            self._joined.incarnation,
            bytes.fromhex(self._joined.job),
        )
        self._pulse = Pulse(
            self._van,
            identity,
            self._joined.heartbeat_s,
            declared_lost=self._declared_lost,
            orphaned=self._orphaned,
            suspended=self._suspend,
            from_thread=self._heartbeat_thread,
        )
        self._timer = loop.call_later(TICK_S, self._tick)

    # --- the lease ---

    def _fail(self, reason: str) -> None:
        self._core.ended = self._core.ended or Ended(False, reason)
        self._end(self._core.ended)

    def _declared_lost(self, reason: str) -> None:
        """Leave: the scheduler does not count this server as a member any more."""
        self._control.end()
        self._fail(f"the scheduler at {self._scheduler} has given this server up: {reason}")

    def _orphaned(self, silent_s: float) -> None:
        self._control.end()
        self._fail(f"the scheduler at {self._scheduler} has not answered for {silent_s:.1f} s")

    def _suspend(self, suspended: bool) -> None:
        """Stop serving while the scheduler does not answer; workers call again until it does."""
        self._suspended = suspended
        self._log.warning("serving_suspended" if suspended else "serving_resumed")
        if suspended:
            for link in list(self._links.values()):
                link.abort(ConnectionLost(f"{link}: this server has lost its scheduler"))

    # --- links ---

    def _accept(self, stream: Stream) -> StreamHandler:
        if self._suspended:  # a worker will call again
            stream.abort()
            return Silent()
        # The scheduler's welcome has told the job before anybody was told this address: a worker
        # may call here before this server has read that it is taken in.
        job = self._control.job or secrets.token_bytes(16)
        handshake = ServerHandshake(
            Role.SERVER, secrets.token_bytes(32), job, epoch=self._core.epoch, admit=self._admit
        )

        def destination(frame: Frame, size: int) -> memoryview:
            return self._segments.lend(link, size)

        link = Link(stream, handshake, self, destination=destination, tag="a worker")
        return link

    def _admit(self, hello: Hello) -> ErrorCode:
        return self._core.admit(hello.rank, hello.incarnation)

    def link_ready(self, link: Link) -> None:
        """Take in a worker's data connection."""
        link.tag = f"worker {link.hello.rank}"
        self._links[link.number] = link
        self.meter.connections += 1
        hello = link.hello
        self._perform(
            self._core.connected(link.number, hello.rank, hello.incarnation, hello.customers)
        )

    def link_frame(self, link: Link, frame: Frame) -> None:
        """Handle a request of a worker."""
        assert isinstance(frame, Request)
        self.meter.frames += 1
        actions = self._handle(link, frame)
        self._segments.take_back(link)
        if len(actions) == 1 and isinstance(actions[0], Send):
            # The common case on the data path, without the general dispatch.
            self._send(link if actions[0].peer == link.number else None, actions[0])
        elif actions:
            self._perform(actions)

    def _handle(self, link: Link, frame: Request) -> list[Action]:
        if type(frame) is not Pull:
            if isinstance(frame, Query):
                return self._core.query(link.number, frame, self._received(link))
            self._answers.take_back()
        now = asyncio.get_running_loop().time()
        if type(frame) is not Seal:
            return self._core.request(link.number, frame, now)
        started = time.monotonic_ns() if self.meter.traces else 0
        actions = self._core.request(link.number, frame, now)
        self._arm()
        if self.meter.traces:
            self._trace_round(actions, started)
        return actions

    def _received(self, link: Link) -> dict[int, int]:
        """Bytes that have arrived over the connections of the same worker, by their marks."""
        rank, incarnation = link.hello.rank, link.hello.incarnation
        received = {OWN_CONNECTION: link.bytes_received}
        for other in self._links.values():
            if (other.hello.rank, other.hello.incarnation) == (rank, incarnation):
                received[mark(other.hello.nonce)] = other.bytes_received
        return received

    def _trace_round(self, actions: list[Action], started_ns: int) -> None:
        for action in actions:
            if isinstance(action, RoundClosed):
                self.meter.span("average and update", started_ns, action.version - 1)

    def control_message(self, message: ControlMessage) -> None:
        """Handle a message of the scheduler."""
        assert self._joining is not None
        if isinstance(message, Joined):
            if not self._joining.done():
                self._joined = message
                self._joining.set_result(message)
        elif isinstance(message, Refused):
            if not self._joining.done():
                self._joining.set_exception(rejection(message.code, message.text))
        else:
            self._answers.take_back()
            self._perform(self._core.order(message, asyncio.get_running_loop().time()))
            self._arm()

    def link_pinged(self, link: Link) -> None:
        """Nothing to do: the link answers."""

    def link_batch_end(self, link: Link) -> None:
        """Nothing is kept back until the end of a batch."""

    def link_drained(self, link: Link) -> None:
        """Answers are not held back; their amount is bounded by what the worker asked for."""

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        """Note the end of a connection."""
        self._segments.take_back(link)
        self._answers.ended(link)
        self.meter.ended(link)
        if self._links.pop(link.number, None) is None:
            if isinstance(error, PeerMisbehaved):
                self._log.warning("connection_refused", peer=link.stream.remote, reason=str(error))
            return
        self._perform(self._core.disconnected(link.number))
        if not self._links:
            self._emptied.set()

    def control_ended(self, error: AiopsError | None, goodbye: Goodbye | None) -> None:
        """Note that the scheduler is gone."""
        if goodbye is not None and goodbye.code == ErrorCode.STALE_INCARNATION:
            self._declared_lost(goodbye.text)
            return
        why = str(error) if error is not None else "it said goodbye"
        failure = NodeFailed(f"the scheduler at {self._scheduler} is gone: {why}", node="scheduler")
        if self._joining is not None and not self._joining.done():
            self._joining.set_exception(error or failure)
        self._core.ended = self._core.ended or Ended(False, str(failure))
        self._end(self._core.ended)

    def _end(self, ended: Ended) -> None:
        """Note the end of the job, and leave it."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(ended)
            if self._joined is not None:
                self._closing = asyncio.get_running_loop().create_task(self._close(ended.reason))

    # --- actions ---

    def _perform(self, actions: list[Action]) -> None:
        published, step = 0, 0  # since when, and the step of which, values are being published
        for action in actions:
            match action:
                case Send():
                    self._send(self._links.get(action.peer), action)
                case Tell(message=message):
                    self._control.send(message)
                case Drop(peer=peer, code=code, text=text):
                    link = self._links.get(peer)
                    if link is not None:
                        link.close(ErrorCode(code), text)
                case RoundClosed(version=version):
                    self.meter.rounds += 1
                    if published:
                        self.meter.span("publish", published, step)
                    published, step = time.monotonic_ns(), version - 1
                case Note():
                    log_note(self._log, action)
                case Ended():
                    self._end(action)
        if published:
            self.meter.span("publish", published, step)

    def _send(self, link: Link | None, action: Send) -> None:
        if link is not None:
            self._answers.send(link, action.frame)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TICK_S, self._tick)
        self._answers.take_back()
        self._perform(self._core.tick(loop.time()))
        self._arm()
        if loop.time() >= self._report_at:
            self._report_at = loop.time() + self._known.report_period_s
            self._report()

    def _arm(self) -> None:
        """See to it that a round that does not wait for the late ones closes in time."""
        deadline = self._core.next_deadline()
        if deadline == self._deadline:
            return
        self._deadline = deadline
        if self._closer is not None:
            self._closer.cancel()
            self._closer = None
        if deadline is not None:
            self._closer = asyncio.get_running_loop().call_at(deadline, self._close_rounds)

    def _close_rounds(self) -> None:
        self._deadline = self._closer = None
        # Timers may come a little early: the clock of the loop has steps.
        now = max(asyncio.get_running_loop().time(), self._core.next_deadline() or 0.0)
        self._answers.take_back()
        self._perform(self._core.tick(now))
        self._arm()

    def _report(self, *, last: bool = False) -> None:
        if not self._control.speaking and not last:
            return  # what is counted goes with the next one
        report = self.meter.report(
            list(self._links.values()),
            self._core.rounds(),
            self._core.memory_bytes,
            self._control.traffic,
            self._core.sparse_tables(),
        )
        self._control.send(report)
        for counted in self._core.reports():
            self._control.send(counted)

    # --- for the owner ---

    async def wait_ended(self) -> Ended:
        """Wait for the end of this server's part and return how it ended (`ok`, `reason`)."""
        if self._ended is None:
            raise ConfigError(NOT_STARTED)
        return await asyncio.shield(self._ended)

    async def close(self, reason: str = "the server was closed") -> None:
        """Leave the job, say goodbye to everybody, and free the port.

        A server that holds shards ends the job by leaving it, because they go with it.
        Idempotent. Takes about `CLOSE_GRACE_S` at most.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(reason))
        await asyncio.shield(self._closing)

    async def _close(self, reason: str) -> None:
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        for timer in (self._timer, self._closer):
            if timer is not None:
                timer.cancel()
        if self._ended is not None and not self._ended.done():
            self._core.ended = Ended(True, reason)
            self._ended.set_result(self._core.ended)
        if self._joining is not None and not self._joining.done():
            self._joining.cancel()
        clean = self._core.ended is None or self._core.ended.ok
        if self._joined is not None:
            self._report(last=True)
            self._control.send(Leave(clean=clean, reason=reason[:1024]))
        await listener.close()
        if clean and self._joined is not None:
            # The scheduler first: workers that hear it from us end, and would be blamed for that.
            await self._control.settle()
        await self._say_goodbye()
        await self._control.leave(heard=clean and self._joined is not None)
        if self._pulse is not None:
            await self._pulse.close()

    async def _say_goodbye(self) -> None:
        for link in list(self._links.values()):
            link.close(ErrorCode.SHUTTING_DOWN, self._core.farewell)
        if self._links:
            self._emptied.clear()
            try:
                async with asyncio.timeout(CLOSE_GRACE_S):
                    await self._emptied.wait()
            except TimeoutError:
                for link in list(self._links.values()):
                    link.abort()
