"""Postoffice: who this worker is, who is in the cluster, barriers, tables, the common stop.

It owns the worker's connection to the scheduler and holds no parameters. Whatever ends the
job (a failure elsewhere, the scheduler's loss) arrives here first and is passed to everybody
who waits, by `failed`.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol, TypeAlias

from aiops.errors import (
    AiopsError,
    Closed,
    JoinTimeout,
    NodeFailed,
    StaleIncarnation,
    rejection,
)
from aiops.observability import get_logger
from aiops.runtime.barrier_calls import BarrierCalls
from aiops.runtime.control_link import ControlLink
from aiops.runtime.heartbeat import Identity
from aiops.runtime.pulse import Pulse
from aiops.van.base import Address, Van
from aiops_protocol.control import (
    AttachTable,
    BarrierDone,
    ClusterState,
    ControlMessage,
    FinishWorker,
    Join,
    Joined,
    Leave,
    Member,
    NodeReport,
    Refused,
    Shutdown,
    StopAt,
    StopProposal,
    StopRequest,
    StopVote,
    TableEntered,
    TableInitialised,
    TableOpened,
    TableSpec,
)
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Goodbye
from aiops_protocol.handshake import Role
from aiops_protocol.ring_control import (
    RingEnter,
    RingFormed,
    RingHalt,
    RingHalted,
    RingMissing,
    RingVerdict,
    RingWanted,
)

__all__ = ["Follower", "Postoffice", "RingListener", "RingNews"]

RingNews: TypeAlias = RingFormed | RingMissing | RingWanted | RingHalt | RingVerdict


class Follower(Protocol):
    """Who sends requests in the name of this worker."""

    def see(self, state: ClusterState) -> None:
        """Take note of the members."""
        ...

    def fail_all(self, error: AiopsError) -> None:
        """Take note that nothing works any more."""
        ...


class RingListener(Protocol):
    """Who hears what the scheduler says about rings."""

    def message(self, message: RingNews) -> None:
        """Take the scheduler's word."""
        ...

    def failed(self, error: AiopsError) -> None:
        """Take note that nothing works any more."""
        ...


class Postoffice:
    """One worker's membership in a job.

    Attributes
    ----------
    failure
        Why nothing works any more, or `None`.
    clock
        Completed clocks of this worker; kept here because the scheduler asks for it.
    ahead
        By how many clocks the job was ahead of that when this worker came.
    in_step
        Whether the worker is within a step that it has not completed.
    """

    def __init__(self, van: Van, scheduler: Address, *, heartbeat_thread: bool = True) -> None:
        self.scheduler = scheduler
        self.failure: AiopsError | None = None
        self.ended_well: str | None = None
        self.clock = 0
        self.ahead = 0
        self._begun_at = 0
        self.in_step = False
        self.stop_vote: int | None = None
        self.stop_at: StopAt | None = None
        self.followers: list[Follower] = []  # told of the members, and of the end
        self.rings: RingListener | None = None
        self.log = get_logger(role="worker")
        self._van = van
        self._heartbeat_thread = heartbeat_thread
        self._pulse: Pulse | None = None
        self._control = ControlLink(van, scheduler, Role.WORKER, self, self.log)
        self._joined: Joined | None = None
        self._state: ClusterState | None = None
        self._waiters: set[asyncio.Future[None]] = set()  # woken by any change
        self._calls: dict[int, asyncio.Future[TableOpened]] = {}
        self._barriers = BarrierCalls(self._send)
        self._next_call = 1
        self._refused: AiopsError | None = None
        self._leaves_clean = False

    @property
    def joined(self) -> Joined:
        """Rank, name, incarnation and job of this worker."""
        assert self._joined is not None
        return self._joined

    @property
    def epoch(self) -> int:
        """Version of the membership that this worker knows."""
        return self._state.epoch if self._state else 0

    @property
    def expected_workers(self) -> int:
        """How many workers the job is meant to have; 0 if any number may come and go."""
        return self._state.expected_workers if self._state else 0

    @property
    def job_clock(self) -> int:
        """The clock of the job, as far as this worker has completed it."""
        return self.clock + self.ahead

    @property
    def members(self) -> list[Member]:
        """All nodes of the job that are in it now."""
        members = self._state.members if self._state else []
        return [member for member in members if member.state in ("alive", "finished")]

    @property
    def local_host(self) -> str:
        """The address of this machine by which it reaches the scheduler."""
        return self._control.local_host

    @property
    def bytes_total(self) -> int:
        """Bytes over the connection to the scheduler, both ways."""
        return sum(self._control.traffic)

    @property
    def reachable(self) -> bool:
        """Whether there is a connection to the scheduler at the moment."""
        return self._control.speaking

    async def join(self, name: str, timeout_s: float) -> None:
        """Register, and wait until the expected servers and workers have registered too."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        await self._control.open(timeout_s)
        self._send(Join(role="worker", name=name, process_id=os.getpid()))
        told = loop.time()
        while not self._is_ready():
            if self._refused is not None:
                raise self._refused
            self.check()
            if loop.time() >= deadline:
                raise JoinTimeout(
                    f"after {timeout_s:g} s {self._absent()} (scheduler {self.scheduler})",
                    operation="connect",
                    elapsed_s=timeout_s,
                )
            if loop.time() - told >= 3.0:
                told = loop.time()
                self.log.warning("waiting_for_members", reason=self._absent())
            await self._change(min(deadline, told + 3.0) - loop.time())
        self.clock = self._begun_at = self.joined.clock
        self.ahead = self.joined.ahead
        self.log = get_logger(
            role="worker",
            rank=self.joined.rank,
            incarnation=self.joined.incarnation,
            job=self.joined.job[:8],
        )
        self._control.log = self.log

    def _is_ready(self) -> bool:
        return self._joined is not None and self._state is not None and self._state.ready

    def _absent(self) -> str:
        if self._state is None:
            return "the scheduler has not answered yet (is the name held by a live worker?)"
        servers = sum(member.role == "server" for member in self.members)
        workers = sum(member.role == "worker" for member in self.members)
        return (
            f"{servers}/{self._state.expected_servers} servers and "
            f"{workers}/{self._state.expected_workers} workers have registered"
        )

    async def _change(self, timeout_s: float) -> None:
        """Wait for the next message that changes something, at most `timeout_s`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)

    def _changed(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def check(self) -> None:
        """Raise what has ended the job, if anything has."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def _send(self, message: ControlMessage) -> None:
        self._control.send(message)

    # --- the scheduler's messages ---

    def control_message(self, message: ControlMessage) -> None:
        """Handle a message of the scheduler."""
        match message:
            case Joined():
                self._joined = message
                self._start_heart(message)
            case ClusterState():
                self._state = message
                for follower in self.followers:
                    follower.see(message)
            case TableOpened(call=call):
                future = self._calls.pop(call, None)
                if future is not None and not future.done():
                    future.set_result(message)
            case Refused():
                self._refuse(message)
            case BarrierDone():
                self._barriers.answered(message)
            case RingFormed() | RingMissing() | RingWanted() | RingHalt() | RingVerdict():
                if self.rings is not None:
                    self.rings.message(message)
            case StopProposal():
                self.stop_vote = self.job_clock + 1 if self.in_step else self.job_clock
                self._send(StopVote(clock=self.stop_vote))
            case StopAt():
                self.stop_at = message
            case Shutdown():
                self._shutdown(message)
            case _:
                self.log.warning("unexpected_message", message=type(message).__name__)
        self._changed()

    def _refuse(self, message: Refused) -> None:
        error = rejection(message.code, message.text)
        if message.call:
            future = self._calls.pop(message.call, None)
            if future is not None and not future.done():
                future.set_exception(error)
        elif self._joined is None:
            self._refused = error
        else:
            self._barriers.fail(error)

    def _shutdown(self, message: Shutdown) -> None:
        if message.failed:
            self._fail(NodeFailed(f"the job has failed: {message.reason}", node=message.node))
        else:
            self.ended_well = message.reason
            self._fail(Closed(f"the job has ended: {message.reason}"))
        self._control.end()  # the scheduler waits for everybody to go

    def control_ended(self, error: AiopsError | None, goodbye: Goodbye | None) -> None:
        """Note that the scheduler is gone."""
        if goodbye is not None and goodbye.code == ErrorCode.STALE_INCARNATION:
            self.given_up(f"the scheduler at {self.scheduler}", goodbye.text)
            return
        text = goodbye.text if goodbye is not None else ""
        why = str(error) if error is not None else text or "it said goodbye"
        self._fail(
            NodeFailed(f"the scheduler at {self.scheduler} is gone: {why}", node="scheduler")
        )

    def _fail(self, error: AiopsError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)
        self._calls.clear()
        self._barriers.fail(error)
        self._changed()
        for follower in list(self.followers):
            follower.fail_all(error)
        if self.rings is not None:
            self.rings.failed(error)

    # --- heartbeats ---

    def _start_heart(self, joined: Joined) -> None:
        job = bytes.fromhex(joined.job)
        identity = Identity(self.scheduler, Role.WORKER, joined.rank, joined.incarnation, job)
        self._pulse = Pulse(
            self._van,
            identity,
            joined.heartbeat_s,
            declared_lost=self._declared_lost,
            orphaned=self._orphaned,
            from_thread=self._heartbeat_thread,
        )

    def _declared_lost(self, reason: str) -> None:
        """Fail: the scheduler does not count this worker as a member any more."""
        self.given_up(f"the scheduler at {self.scheduler}", reason)
        self._control.end()

    def given_up(self, by: str, reason: str) -> None:
        """Fail: another node does not count this worker as a member any more."""
        text = f"{by} has given this worker up: {reason}"
        self._fail(StaleIncarnation(text, ErrorCode.STALE_INCARNATION))

    def _orphaned(self, silent_s: float) -> None:
        """Fail: the scheduler has not answered for a long while."""
        text = f"the scheduler at {self.scheduler} has not answered for {silent_s:.1f} s"
        self._fail(NodeFailed(text, node="scheduler"))
        self._control.end()

    async def wait_left(self) -> None:
        """Wait until the scheduler has heard that this worker leaves, and end the connection."""
        await self._control.leave(heard=self._leaves_clean)

    async def stop_heart(self) -> None:
        """Send no more heartbeats. Idempotent."""
        if self._pulse is not None:
            await self._pulse.close()

    # --- what a worker asks ---

    async def attach(self, name: str, spec: TableSpec | None, *, observer: bool) -> TableOpened:
        """Create a table or join it; waits until the scheduler answers or is gone.

        Not to be cancelled: from now on the scheduler may count on this worker's seals.
        """
        self.check()
        call = self._next_call
        self._next_call += 1
        future: asyncio.Future[TableOpened] = asyncio.get_running_loop().create_future()
        self._calls[call] = future
        self._send(AttachTable(call=call, name=name, spec=spec, observer=observer))
        return await future

    def enters(self, job_clock: int) -> None:
        """Come to the clock of the job at which this worker first takes part in a table's rounds.

        A worker that resumes after a loss goes on at that clock, one that is new begins its own.
        """
        if self.joined.resumes and self.clock == self._begun_at and not self.in_step:
            self.clock = self._begun_at = max(self.clock, job_clock - self.ahead)
        self.ahead = max(self.ahead, job_clock - self.clock)

    def entered(self, table: int, version: int) -> None:
        """Tell in which round of a table this worker is at its clock of the job."""
        clock, ahead = self.job_clock, self.ahead
        self._send(TableEntered(table=table, version=version, clock=clock, ahead=ahead))

    def initialised(self, table: int) -> None:
        """Tell that the initial values are in."""
        self._send(TableInitialised(table=table))

    async def barrier(self, name: str, timeout_s: float) -> int:
        """Wait until every live, unfinished worker is at the barrier; return the generation."""
        self.check()
        return await self._barriers.wait(name, timeout_s)

    def tell_ring(self, message: RingEnter | RingHalted) -> None:
        """Tell the scheduler where this worker stands with a ring."""
        self._send(message)

    def request_stop(self, reason: str) -> None:
        """Ask all workers to stop at one step boundary."""
        self.check()
        self._send(StopRequest(reason=_sendable(reason)))

    async def may_begin_step(self) -> bool:
        """Whether another step begins at the current clock, or all stop here.

        Waits while a stop is being agreed on that may lie at this boundary.
        """
        while self._may_stop_here:
            self.check()
            await self._change(1.0)
        return self.stop_at is None or self.job_clock < self.stop_at.clock

    @property
    def _may_stop_here(self) -> bool:
        vote = self.stop_vote
        return self.stop_at is None and vote is not None and self.job_clock >= vote

    def report(self, report: NodeReport) -> None:
        """Send what this worker counted."""
        if self.failure is None:
            self._send(report)

    def finish(self) -> None:
        """Tell that this worker contributes no more clocks."""
        self._send(FinishWorker(clock=self.clock))

    def leave(self, clean: bool, reason: str) -> None:
        """Leave the job; nothing works afterwards, and `wait_left` ends the connection."""
        if self._joined is not None:
            self._send(Leave(clean=clean, reason=_sendable(reason)))
            self._leaves_clean = clean  # otherwise a loss, heard or not
        self._fail(Closed("this worker has been closed"))


def _sendable(text: str) -> str:
    """Cut a text of the user's to what may travel."""
    return text.encode("utf-8", "replace").decode()[:1024]
