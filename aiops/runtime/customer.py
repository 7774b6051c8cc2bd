"""Customer: one user of a worker node. Its outstanding requests, their replies, retransmission.

It has a `DataConnection` to each server, which sends and resends; here is what the answers mean
to the calls. One timer serves all deadlines, and looks whether the connections move.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from aiops.compression.link import Link
from aiops.compression.pull_gate import Arrivals
from aiops.errors import AiopsError, Closed, NodeFailed, RequestTimeout
from aiops.observability import ByteCounters, LatencyHistogram
from aiops.roles.patience import LOOK_S
from aiops.roles.requests import Operation
from aiops.runtime.data_connection import DataConnection
from aiops.runtime.postoffice import Postoffice
from aiops.runtime.witness import Witness
from aiops.van.base import Van
from aiops.wording import listed
from aiops_protocol.control import ClusterState
from aiops_protocol.frames import Known, Parked, Reply, Value
from aiops_protocol.layout import REPLY
from aiops_protocol.limits import PREFIX_BYTES

__all__ = ["Customer"]

QUIET_TIMEOUT_S: Final = 60.0
"""How long a call may see nothing move at all before it gives up."""

WARN_WAITING_S: Final = 10.0
"""How often the log names whom a call waits for."""

REPLY_HEADER_BYTES: Final = PREFIX_BYTES + REPLY.size
"""What an answer takes on the wire besides its values."""

HELD_UP_S: Final = 0.05
"""A timer that is later than this says that the event loop was held up: answers may lie unread."""


class Customer:
    """Sends operations to the servers and completes them.

    Parameters
    ----------
    number
        Among the customers of this worker, from 0: the servers know its sessions by it. None is
        ever used again.

    Attributes
    ----------
    bytes
        What went over the data connections, by cause.
    latency
        Histograms of whole calls, by verb.
    uplink, arrivals
        What compressed tables have found out about the ways there and back.
    witness
        Who is told of every operation, if anybody.
    """

    def __init__(self, van: Van, postoffice: Postoffice, number: int = 0) -> None:
        self.van = van
        self.number = number
        self._postoffice = postoffice
        self._servers: dict[int, DataConnection] = {}
        self._operations: dict[Operation, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._excused = False
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self.bytes = ByteCounters()
        self.uplink, self.arrivals = Link(), Arrivals()
        self.latency: dict[str, LatencyHistogram] = {}
        self.witness: Witness | None = None
        self._opening: list[asyncio.Task[None]] = []
        postoffice.followers.append(self)

    def see(self, state: ClusterState) -> None:
        """Take note of the members."""
        for server in self._servers.values():
            server.channel.epoch = state.epoch

    async def open(self, timeout_s: float) -> None:
        """Connect to every server of the job."""
        for member in self._postoffice.members:
            if member.role == "server":
                self._servers[member.rank] = DataConnection(
                    self.van, self._postoffice, member, self, self.bytes, self.number
                )
        opening = [asyncio.create_task(server.open(timeout_s)) for server in self._servers.values()]
        self._opening = opening
        try:
            self._postoffice.check()
            await asyncio.gather(*opening)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and not current.cancelling():
                self._postoffice.check()  # it was `fail_all` that cancelled them
            raise
        finally:
            for task in opening:
                task.cancel()
            await asyncio.gather(*opening, return_exceptions=True)

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
            server.submit(part, now)
            if server.failure:
                self._fail(operation, server)
                return future
        if self._timer is None:
            self._arm(min(operation.deadline, now + LOOK_S))
        elif operation.deadline < self._timer_at:
            self._arm(operation.deadline)
        return future

    def measure_arrivals(self) -> None:
        """From now on, measure how fast values come."""
        for server in self._servers.values():
            server.arrivals = self.arrivals

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
            self._servers[part.server].abandon(part)
        self._own_unsent(operation)
        rest: asyncio.Future[None] = self._loop.create_future()
        operation.token = rest
        return rest

    def _own_unsent(self, operation: Operation) -> None:
        for rank in {part.server for part in operation.parts if part.server >= 0}:
            self._servers[rank].own()

    def _withdraw_all(self, operation: Operation) -> None:
        for part in operation.parts:
            if part.server < 0:  # nothing was begun for it: one before it has failed
                continue
            server = self._servers[part.server]
            server.abandon(part)
            server.channel.withdraw(part)
        self._own_unsent(operation)
        operation.done = True

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

    # --- answers ---

    def answered(self, server: DataConnection, reply: Reply) -> None:
        """Take one answer."""
        now = self._loop.time()
        if type(reply) is Value:
            self.bytes.pull_received += REPLY_HEADER_BYTES + len(reply.payload)
        else:
            self.bytes.push_received += REPLY_HEADER_BYTES + len(reply.payload)
        if not self._take(server, reply, now):
            if isinstance(reply, Parked):
                self._warn_waiting(now)
                part = server.channel.flying(reply.request_id)
                if part is not None and part.operation.received is not None:
                    self._hand_back(part.operation)
            elif isinstance(reply, Known):
                for late in server.channel.known(reply):
                    self._take(server, late, now)

    def _take(self, server: DataConnection, reply: Reply, now: float) -> bool:
        """Complete what an answer completes; whether it settled a part."""
        part = server.channel.answer(reply, now)
        if part is None:
            return False
        if self.witness is not None:
            self.witness.answered(part, reply)
        operation = part.operation
        if operation.done and operation in self._operations:
            self._complete(operation)
        return True

    def _hand_back(self, operation: Operation) -> None:
        """Let the caller go on once every part is received; the operation goes on alone."""
        if not all(part.settled or part.waits for part in operation.parts):
            return
        follow, operation.received = operation.received, None
        caller = operation.token
        rest = self.cancel(operation, keep=True)
        assert follow is not None
        follow(rest)
        if not caller.done():
            caller.set_result(None)

    def _warn_waiting(self, now: float) -> None:
        for operation in self._operations:
            if operation.waiting_for and now - operation.warned_at >= WARN_WAITING_S:
                operation.warned_at = now
                self._postoffice.log.warning(
                    "waiting",
                    operation=f"{operation.verb} {operation.subject}",
                    elapsed_s=round(now - operation.started_at, 1),
                    workers=list(operation.waiting_for),
                    clocks_behind=list(operation.waiting_for.values()),
                )

    def unreachable(self, server: DataConnection) -> None:
        """Fail what needs a server that is gone."""
        for operation in list(self._operations):
            if any(part.server == server.member.rank for part in operation.parts):
                self._fail(operation, server)

    def _fail(self, operation: Operation, server: DataConnection) -> None:
        operation.error = NodeFailed(
            f"{operation.verb} {operation.subject}: {server.failure}",
            node=f"server {server.member.rank} ({server.member.name})",
        )
        self._complete(operation)

    def fail_all(self, error: AiopsError) -> None:
        """Fail everything that is outstanding."""
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
            for server in self._servers.values():
                server.excuse(now - self._timer_at)
            self._arm(now + HELD_UP_S)
            return
        self._excused = False
        for operation in list(self._operations):
            if operation.deadline <= now:
                operation.error = self._timeout(operation, now)
                self._complete(operation)
        if self._operations:
            for server in self._servers.values():
                server.look(now)
            earliest = min(operation.deadline for operation in self._operations)
            self._arm(min(earliest, now + LOOK_S))

    def _timeout(self, operation: Operation, now: float) -> RequestTimeout:
        elapsed_s = now - operation.started_at
        silent = sorted({part.server for part in operation.parts if not part.settled})
        first = next(part for part in operation.parts if not part.settled)
        servers = listed(self._servers[rank] for rank in silent)
        waiting = ""
        if operation.waiting_for:
            slow = (f"{rank} ({n} clocks behind)" for rank, n in operation.waiting_for.items())
            waiting = f"; it waits by rule for worker {listed(slow)}"
        troubles = [self._servers[rank].trouble for rank in silent]
        trouble = "".join(f"; not connected: {text}" for text in troubles if text)
        return RequestTimeout(
            f"{operation.verb} {operation.subject}: no answer from {servers} for keys "
            f"[{first.begin}, {first.end}) within {elapsed_s:.2f} s{waiting}{trouble}",
            operation=operation.verb,
            elapsed_s=elapsed_s,
        )

    def traffic(self) -> dict[int, dict[str, int]]:
        """Return bytes sent and received, per server rank, headers included."""
        return {rank: server.traffic for rank, server in self._servers.items()}

    async def close(self) -> None:
        """Say goodbye to the servers; what is still outstanding fails. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._postoffice.followers.remove(self)
        self.fail_all(Closed("this customer, or its worker, has been closed"))
        await asyncio.gather(*(server.close() for server in self._servers.values()))
