"""Customer: one user of a worker node. Its outstanding requests, their replies, retransmission.

It owns the data connections to the servers and moves a `Channel` for each. A lost connection
is opened again and what was unanswered is sent again, byte for byte; the servers recognise
repeats. One timer serves all deadlines.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from aiops.errors import AiopsError, Closed, NodeFailed, RequestTimeout
from aiops.observability import ByteCounters, LatencyHistogram
from aiops.roles.requests import Channel, Operation, Part
from aiops.runtime.dialling import LinkPlan, open_link
from aiops.runtime.postoffice import Postoffice
from aiops.runtime.witness import Witness
from aiops.van.base import Address, Van
from aiops.van.link import Link
from aiops_protocol.control import ClusterState, Member
from aiops_protocol.errors import ErrorCode, HandshakeRefused
from aiops_protocol.frames import Control, Frame, Kind, Parked, Reply
from aiops_protocol.handshake import Purpose, Role
from aiops_protocol.layout import REPLY
from aiops_protocol.limits import PREFIX_BYTES

__all__ = ["Customer"]

QUIET_TIMEOUT_S: Final = 60.0
"""How long a call may see nothing move at all before it gives up."""

WARN_WAITING_S: Final = 10.0
"""How often the log names whom a call waits for."""

RECONNECT_TIMEOUT_S: Final = 30.0
"""How long a lost data connection is tried again before its requests fail. A dead server is
reported by the scheduler long before."""

RETRY_S: Final = 0.01
RETRY_S_MAX: Final = 1.0
"""Pauses between connections that are lost again before any answer has come, doubling."""

REPLY_HEADER_BYTES: Final = PREFIX_BYTES + REPLY.size
"""What an answer takes on the wire besides its values."""

HELD_UP_S: Final = 0.05
"""A timer that is later than this says that the event loop was held up: answers may lie unread."""


FINAL_CODES: Final = frozenset({ErrorCode.OK, ErrorCode.SHUTTING_DOWN, ErrorCode.WRONG_JOB})
"""Goodbyes after which calling again is useless. Others, such as a checksum that is wrong, say
that this connection was damaged; the requests are sent again over a new one."""


class Server:
    """One server as a customer sees it: where it is, its channel, its connection."""

    __slots__ = ("channel", "failure", "fruitless", "link", "member", "opening")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.channel = Channel(session=0)
        self.link: Link | None = None
        self.opening: asyncio.Task[None] | None = None
        self.fruitless = 0  # connections in a row that were lost before any answer came
        self.failure = ""  # why nothing will be sent there any more

    def __str__(self) -> str:
        member = self.member
        return f"server {member.rank} ({member.name}) at {member.host}:{member.port}"


class Customer:
    """Sends operations to the servers and completes them.

    Attributes
    ----------
    bytes
        What went over the data connections, by cause.
    latency
        Histograms of whole calls, by verb.
    witness
        Who is told of every operation, if anybody.
    """

    def __init__(self, van: Van, postoffice: Postoffice) -> None:
        self._van = van
        self._postoffice = postoffice
        self._servers: dict[int, Server] = {}
        self._by_link: dict[int, Server] = {}
        self._operations: dict[Operation, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._excused = False
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self.bytes = ByteCounters()
        self.latency: dict[str, LatencyHistogram] = {}
        self.bytes_by_server: dict[int, list[int]] = {}
        self.witness: Witness | None = None
        self._opening: list[asyncio.Task[None]] = []
        postoffice.on_failure = self._fail_all
        postoffice.on_members = self._see

    def _see(self, state: ClusterState) -> None:
        for server in self._servers.values():
            server.channel.epoch = state.epoch

    async def open(self, timeout_s: float) -> None:
        """Connect to every server of the job."""
        for member in self._postoffice.members:
            if member.role == "server":
                self._servers[member.rank] = Server(member)
                self._servers[member.rank].channel.epoch = self._postoffice.epoch
                self.bytes_by_server[member.rank] = [0, 0]
        opening = [
            asyncio.create_task(self._connect(server, timeout_s))
            for server in self._servers.values()
        ]
        self._opening = opening
        try:
            self._postoffice.check()
            await asyncio.gather(*opening)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and not current.cancelling():
                self._postoffice.check()  # it was `_fail_all` that cancelled them
            raise
        finally:
            for task in opening:
                task.cancel()
            await asyncio.gather(*opening, return_exceptions=True)

    async def _connect(self, server: Server, timeout_s: float) -> None:
        joined = self._postoffice.joined

        def destination(frame: Frame, size: int) -> memoryview | None:
            return server.channel.destination(frame, size) if isinstance(frame, Reply) else None

        plan = LinkPlan(
            Address(server.member.host, server.member.port),
            f"server {server.member.rank}",
            Role.WORKER,
            Role.SERVER,
            Purpose.DATA,
            job=bytes.fromhex(joined.job),
            rank=joined.rank,
            incarnation=joined.incarnation,
            known=True,
            destination=destination,
        )
        await open_link(self._van, plan, _Adopter(self, server), timeout_s=timeout_s)

    def adopt(self, server: Server, link: Link) -> None:
        """Use a new connection to a server: first what was unanswered, then what waits."""
        server.link = link
        server.channel.window_bytes = link.welcome.window_bytes
        self._by_link[link.number] = server
        link.owner = self
        self._pump(server)

    # --- operations ---

    def operation(self, verb: str, subject: str, timeout_s: float | None) -> Operation:
        """Begin a call; parts are added to it and `start` sends them."""
        operation = Operation(verb, subject, self._loop.time(), QUIET_TIMEOUT_S, timeout_s)
        # The loop's clock stands still within a turn and, on uvloop, moves in milliseconds.
        operation.called_at = time.perf_counter()
        return operation

    def start(self, operation: Operation, servers: list[int]) -> asyncio.Future[None]:
        """Send the parts of an operation; `servers` has the rank for each shard.

        The future is completed when all parts are answered, or with the error. Whoever awaits
        it and is cancelled calls `cancel`.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        operation.token = future
        if self._postoffice.failure is not None:
            future.set_exception(self._postoffice.failure)
            return future
        if not operation.parts:
            future.set_result(None)
            return future
        self._operations[operation] = None
        if self.witness is not None:
            self.witness.started(operation)
        now = operation.started_at
        for part in operation.parts:
            rank = part.server = servers[part.shard]
            server = self._servers[rank]
            link = server.link
            if (
                link is None
                or link.stream.full
                or server.failure
                or not server.channel.pass_at_once(part, now)
            ):
                # An answer, room in the stream or a new connection will move it.
                server.channel.submit(part)
                if server.failure:
                    self._fail(operation, server)
                    return future
            else:
                self._send(link, part)
        if self._timer is None or operation.deadline < self._timer_at:
            self._arm(operation.deadline)
        return future

    def _send(self, link: Link, part: Part) -> None:
        size = len(part.header) + len(part.payload)
        if part.resent:
            self.bytes.retransmit_sent += size
        elif part.outbox is None:
            self.bytes.pull_sent += size
        else:
            self.bytes.push_sent += size
        link.send_encoded(part.header, part.payload, borrowed=True)

    def _pump(self, server: Server) -> None:
        link = server.link
        if link is None or not link.ready:
            return
        now = self._loop.time()
        while (part := server.channel.next_part(now)) is not None:
            self._send(link, part)
            if link.stream.full:
                break

    def flush(self) -> None:
        """Hand everything to the kernel now: the caller may compute for long before it waits."""
        for server in self._servers.values():
            if server.link is not None:
                server.link.stream.flush()

    def cancel(self, operation: Operation, *, keep: bool = False) -> asyncio.Future[None] | None:
        """Let go of an operation that nobody awaits any more.

        A pull is dropped, and its memory is not written any more. A push of which nothing has
        left is dropped, unless it is to be kept; otherwise what is unsent is copied and the push
        still happens whole. Returns a new future of what goes on.
        """
        if operation not in self._operations:
            return None
        goes_on = any(part.outbox and (keep or part.request_id) for part in operation.parts)
        if not goes_on:
            self._withdraw_all(operation)
            del self._operations[operation]
            if self.witness is not None:
                self.witness.ended(operation, Closed("it was cancelled"))
            return None
        for part in operation.parts:
            part.own()
            self._abandon(part)
        self._own_unsent(operation)
        rest: asyncio.Future[None] = self._loop.create_future()
        operation.token = rest
        return rest

    def _own_unsent(self, operation: Operation) -> None:
        for rank in {part.server for part in operation.parts}:
            link = self._servers[rank].link
            if link is not None:
                link.stream.own()

    def _withdraw_all(self, operation: Operation) -> None:
        for part in operation.parts:
            self._abandon(part)
            self._servers[part.server].channel.withdraw(part)
        self._own_unsent(operation)
        operation.done = True

    def _abandon(self, part: Part) -> None:
        """Give the memory of an answer back to the caller, even if it is half received."""
        if part.into is not None:
            link = self._servers[part.server].link
            if link is not None:
                link.abandon(part.into)
            part.into = None

    def _complete(self, operation: Operation) -> None:
        del self._operations[operation]
        if self.witness is not None:
            self.witness.ended(operation, operation.error)
        if operation.error is not None:
            self._withdraw_all(operation)
        else:
            histogram = self.latency.get(operation.verb)
            if histogram is None:
                histogram = self.latency[operation.verb] = LatencyHistogram()
            histogram.record(time.perf_counter() - operation.called_at)
        operation.parts.clear()  # or each would keep the other alive until a collection
        future = operation.token
        if future.done():
            return
        if operation.error is not None:
            future.set_exception(operation.error)
        else:
            future.set_result(None)

    # --- links ---

    def link_ready(self, link: Link) -> None:
        """Nothing to do: `_Adopter` hands a ready link to `adopt`."""

    def link_frame(self, link: Link, frame: Frame) -> None:
        """Take one answer."""
        server = self._by_link.get(link.number)
        if server is None or isinstance(frame, Control):
            return
        assert isinstance(frame, Reply)
        now = self._loop.time()
        if frame.kind is Kind.VALUE:
            self.bytes.pull_received += REPLY_HEADER_BYTES + len(frame.payload)
        else:
            self.bytes.push_received += REPLY_HEADER_BYTES + len(frame.payload)
        part = server.channel.answer(frame, now)
        if part is None:
            if isinstance(frame, Parked):
                self._warn_waiting(now)
            return
        server.fruitless = 0
        if self.witness is not None:
            self.witness.answered(part, frame)
        operation = part.operation
        if operation.done and operation in self._operations:
            self._complete(operation)

    def _warn_waiting(self, now: float) -> None:
        for operation in self._operations:
            if operation.waiting_for and now - operation.warned_at >= WARN_WAITING_S:
                operation.warned_at = now
                self._postoffice.log.warning(
                    "waiting",
                    operation=f"{operation.verb} {operation.subject}",
                    elapsed_s=round(now - operation.started_at, 1),
                    workers=operation.waiting_for,
                )

    def link_pinged(self, link: Link) -> None:
        """Nothing to do: the link answers."""

    def link_batch_end(self, link: Link) -> None:
        """Send what the answers have made room for."""
        server = self._by_link.get(link.number)
        if server is not None and server.channel.waiting:
            self._pump(server)

    def link_drained(self, link: Link) -> None:
        """Send what waits."""
        server = self._by_link.get(link.number)
        if server is not None:
            self._pump(server)

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        """Open the connection again, unless this is the end."""
        server = self._by_link.pop(link.number, None)
        if server is None:
            return
        traffic = self.bytes_by_server[server.member.rank]
        traffic[0] += link.bytes_sent
        traffic[1] += link.bytes_received
        if server.link is link:
            server.link = None
        server.channel.lost()
        if self._closed or self._postoffice.failure is not None:
            return
        if link.goodbye is not None and link.goodbye.code == ErrorCode.STALE_INCARNATION:
            # Known to this server before the scheduler could tell: it is out of reach, perhaps.
            self._postoffice.given_up(str(server), link.goodbye.text)
            return
        if link.goodbye is not None and link.goodbye.code in FINAL_CODES:
            self._fail_server(server, f"{server} ended the connection: {link.goodbye.text}")
            return
        self._postoffice.log.warning("connection_lost", server=str(server), reason=str(error))
        server.fruitless += 1
        server.opening = self._loop.create_task(self._reconnect(server))

    async def _reconnect(self, server: Server) -> None:
        try:
            if server.fruitless > 1:
                # Something in what is sent again, or in the server, ends each connection.
                await asyncio.sleep(min(RETRY_S * 2**server.fruitless, RETRY_S_MAX))
            await self._connect(server, RECONNECT_TIMEOUT_S)
        except AiopsError as error:
            refusal = error.__cause__
            if (
                isinstance(refusal, HandshakeRefused)
                and refusal.reason == ErrorCode.STALE_INCARNATION
            ):
                self._postoffice.given_up(str(server), str(refusal))
            else:
                self._fail_server(server, f"{server} is gone: {error}")
        finally:
            if server.opening is asyncio.current_task():
                server.opening = None

    def _fail_server(self, server: Server, text: str) -> None:
        server.failure = text
        for operation in list(self._operations):
            if any(part.server == server.member.rank for part in operation.parts):
                self._fail(operation, server)

    def _fail(self, operation: Operation, server: Server) -> None:
        operation.error = NodeFailed(
            f"{operation.verb} {operation.subject}: {server.failure}",
            node=f"server {server.member.rank} ({server.member.name})",
        )
        self._complete(operation)

    def _fail_all(self, error: AiopsError) -> None:
        for opening in self._opening:
            opening.cancel()  # a server that went down with the job answers no more
        for operation in list(self._operations):
            operation.error = error
            self._complete(operation)

    # --- time ---

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        if now - self._timer_at > HELD_UP_S and not self._excused:
            # uvloop runs timers before it reads: let it read what has come in the meantime.
            self._excused = True
            self._arm(now + HELD_UP_S)
            return
        self._excused = False
        for operation in list(self._operations):
            if operation.deadline <= now:
                operation.error = self._timeout(operation, now)
                self._complete(operation)
        earliest = min((operation.deadline for operation in self._operations), default=None)
        if earliest is not None:
            self._arm(earliest)

    def _timeout(self, operation: Operation, now: float) -> RequestTimeout:
        elapsed_s = now - operation.started_at
        silent = sorted({part.server for part in operation.parts if not part.settled})
        first = next(part for part in operation.parts if not part.settled)
        servers = ", ".join(str(self._servers[rank]) for rank in silent)
        waiting = (
            f"; it waits by rule for worker {', '.join(map(str, operation.waiting_for))}"
            if operation.waiting_for
            else ""
        )
        return RequestTimeout(
            f"{operation.verb} {operation.subject}: no answer from {servers} for keys "
            f"[{first.begin}, {first.end}) within {elapsed_s:.1f} s{waiting}",
            operation=operation.verb,
            elapsed_s=elapsed_s,
        )

    def traffic(self) -> dict[int, dict[str, int]]:
        """Return bytes sent and received, per server rank, headers included."""
        result = {}
        for rank, server in self._servers.items():
            sent, received = self.bytes_by_server[rank]
            if server.link is not None:
                sent += server.link.bytes_sent
                received += server.link.bytes_received
            result[rank] = {"sent": sent, "received": received}
        return result

    async def close(self) -> None:
        """Say goodbye to the servers; what is still outstanding fails. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._fail_all(Closed("this worker has been closed"))
        tasks = [server.opening for server in self._servers.values() if server.opening]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        links = [server.link for server in self._servers.values() if server.link is not None]
        for link in links:
            link.close()
        for link in links:
            await link.wait_lost()


class _Adopter:
    """Owns a link for the moment between its handshake and its adoption by the customer."""

    def __init__(self, customer: Customer, server: Server) -> None:
        self._customer = customer
        self._server = server

    def link_ready(self, link: Link) -> None:
        self._customer.adopt(self._server, link)

    def link_frame(self, link: Link, frame: Frame) -> None:
        """No frame comes before adoption."""

    def link_pinged(self, link: Link) -> None:
        """Nothing to do: the link answers."""

    def link_batch_end(self, link: Link) -> None:
        """Nothing to do."""

    def link_drained(self, link: Link) -> None:
        """Nothing to do."""

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        """Nothing to do: an adopted link belongs to the customer."""
