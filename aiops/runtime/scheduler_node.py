"""The scheduler's shell: accepts nodes, performs what `SchedulerCore` decides, keeps its timer."""

from __future__ import annotations

import asyncio
import secrets
import socket
from typing import Any, Final

import msgspec

from aiops.checks import check_count, check_flag, check_name, check_text, is_number, is_one_of
from aiops.errors import AiopsError, ConfigError, PeerMisbehaved
from aiops.observability import chrome_trace, get_logger
from aiops.roles.actions import Action, Drop, Ended, Note, RoundClosed, Send, Tell
from aiops.roles.connections import SEVERED_PERIODS
from aiops.roles.scheduler import SchedulerCore
from aiops.roles.settings import SchedulerSettings
from aiops.roles.status import status
from aiops.runtime.dialogues import Dialogues, Speaker
from aiops.runtime.doors import Silent, log_note, open_door, refuse
from aiops.runtime.given import check_door, check_van
from aiops.runtime.news import News
from aiops.runtime.traces import Traces
from aiops.van.base import Address, Listener, Stream, Van
from aiops.van.link import Link
from aiops.wording import listed, shown
from aiops_protocol.codec import encode
from aiops_protocol.control import ClusterState, ControlMessage, Join, Joined, Leave, NodeReport
from aiops_protocol.dialogue_control import Heard, OpenDialogue
from aiops_protocol.errors import ErrorCode, UnexpectedFrame
from aiops_protocol.frames import Control, Frame
from aiops_protocol.handshake import Purpose, Role, ServerHandshake
from aiops_protocol.payload import Buffer

__all__ = ["Scheduler"]

LEAVE_GRACE_S: Final = 5.0
"""How long nodes may take to leave after the end before their connections are cut."""

DIAL_BACK_TIMEOUT_S: Final = 5.0
"""How long a joining server's advertised address may take to answer."""

_log = get_logger(role="scheduler")

_PEER_ROLES: Final = {Role.SERVER: "server", Role.WORKER: "worker", Role.OBSERVER: "observer"}


class Scheduler:
    """The scheduler of one job, in this process.

    Parameters
    ----------
    bind
        `host:port` to listen at; port 0 takes a free one (see `address`).
    sock
        A socket that listens already, in place of `bind`.
    advertise
        `host:port` under which other nodes reach this one, if it is not where it is bound.
    servers, workers
        How many the job expects; `connect()` returns when they have registered. With
        `workers=0` any number of workers may come and go.
    on_worker_loss
        `"fail"` ends the job when a worker is lost, `"continue"` goes on without it. The
        default is `"fail"`, or `"continue"` when `min_workers` is given.
    min_workers
        Fewer live workers than this end the job.
    heartbeat_s
        Told to every node: the unit of failure detection.
    end_when_idle
        End the job when the last worker has left.
    join_timeout_s
        End the job when the expected nodes have not registered by then.
    trace
        Collect the spans of every node's phases (`trace_events`).
    insecure
        Allow an address that other machines can reach, without authentication.

    Raises
    ------
    ConfigError
        A setting is wrong, or the address cannot be bound.

    Examples
    --------
    >>> async with aiops.Scheduler(servers=2, workers=4) as scheduler:  # doctest: +SKIP
    ...     print(scheduler.address)
    ...     outcome = await scheduler.wait_ended()
    """

    def __init__(
        self,
        bind: str = "127.0.0.1:0",
        *,
        sock: socket.socket | None = None,
        advertise: str | None = None,
        servers: int = 1,
        workers: int = 0,
        on_worker_loss: str | None = None,
        min_workers: int | None = None,
        heartbeat_s: float = 0.5,
        end_when_idle: bool = False,
        join_timeout_s: float | None = None,
        trace: bool = False,
        insecure: bool = False,
        van: Van | None = None,
    ) -> None:
        enough = is_number(min_workers) and min_workers > 0
        self._settings = SchedulerSettings(
            servers=servers,
            workers=workers,
            on_worker_loss=("continue" if enough else "fail")
            if on_worker_loss is None
            else on_worker_loss,
            min_workers=0 if min_workers is None else min_workers,
            heartbeat_s=heartbeat_s,
            end_when_idle=end_when_idle,
            join_timeout_s=join_timeout_s,
            trace=trace,
        )
        door = check_door(bind, sock, advertise, insecure, "the scheduler at")
        self._bind, self._sock, self._advertise = door
        self._van: Van = check_van(van)
        self._listener: Listener | None = None
        self._links: dict[int, Link] = {}
        self._news = News()
        self._dialogues = Dialogues(self._news.forget)
        self._hearts: dict[int, Link] = {}  # heartbeat connections
        self._core: SchedulerCore | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[Ended] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._traces = Traces()
        self._parted = asyncio.Event()  # set when a connection has ended
        self._closing = False

    def __repr__(self) -> str:
        if self._core is None:
            return "<Scheduler not started>"
        job = f"job={self._core.job[:8]}"
        if self._listener is None:
            return f"<Scheduler {job} closed>"
        return f"<Scheduler {self.address} {job} {'ended' if self._core.ended else 'running'}>"

    @property
    def address(self) -> str:
        """Where other nodes reach this scheduler, `host:port`."""
        if self._advertise is not None and self._advertise.port:
            return str(self._advertise)
        if self._listener is None:
            raise ConfigError(
                "the scheduler has no address: it is not started yet, or closed already; use "
                "`async with Scheduler(...)`"
            )
        host = self._advertise.host if self._advertise is not None else self._listener.address.host
        return str(Address(host, self._listener.address.port))

    @property
    def job(self) -> str:
        """The random id of this job."""
        return self._running.job

    @property
    def _running(self) -> SchedulerCore:
        if self._core is None:
            raise ConfigError("the scheduler is not started: use `async with Scheduler(...)`")
        return self._core

    async def __aenter__(self) -> Scheduler:
        """Start; leaving closes."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    async def start(self) -> None:
        """Open the door."""
        loop = asyncio.get_running_loop()
        self._core = SchedulerCore(self._settings, secrets.token_hex(16), loop.time())
        self._ended = loop.create_future()
        self._listener = await open_door(self._van, self._bind, self._sock, self._accept)
        self._arm()

    def _accept(self, stream: Stream) -> Link:
        handshake = ServerHandshake(
            Role.SCHEDULER,
            secrets.token_bytes(32),
            bytes.fromhex(self._running.job),
            epoch=self._running.members.epoch,
        )
        return Link(stream, handshake, self)

    # --- links ---

    def link_ready(self, link: Link) -> None:
        """Take in a connection; the node behind it says who it is with `OpenDialogue`."""
        link.tag = _PEER_ROLES.get(Role(link.hello.role), "a node")
        if link.hello.purpose == Purpose.HEARTBEAT:
            self._hearts[link.number] = link
            self._note_heart(link, opened=True)
        else:
            self._links[link.number] = link

    def _note_heart(self, link: Link, *, opened: bool) -> None:
        hello = link.hello
        role = _PEER_ROLES[Role(hello.role)]
        self._running.heart(role, hello.rank, hello.incarnation, self._now(), opened=opened)

    def link_pinged(self, link: Link) -> None:
        """Take a heartbeat; somebody who is no member is told so, and fenced by it."""
        hello = link.hello
        if hello.purpose != Purpose.HEARTBEAT:
            return
        role = _PEER_ROLES[Role(hello.role)]
        if not self._running.heartbeat(role, hello.rank, hello.incarnation, self._now()):
            ended = self._running.ended
            text = ended.reason if ended else f"{role} {hello.rank} was declared lost"
            link.close(ErrorCode.STALE_INCARNATION, text)

    def link_frame(self, link: Link, frame: Frame) -> None:
        """Handle one message."""
        assert isinstance(frame, Control)
        message = frame.message
        if link.hello.role == Role.OBSERVER:
            self._perform(self._running.message(link.number, message, self._now()))
        elif isinstance(message, OpenDialogue):
            speaker = self._dialogues.open(link, message)
            if speaker is not None:
                self._perform(self._running.back(speaker.number, self._now()))
        else:
            speaker = self._dialogues.of_link(link)
            if speaker is None:
                raise UnexpectedFrame(f"{type(message).__name__} before OpenDialogue")
            if isinstance(message, Heard):
                speaker.dialogue.heard(message.count)
            else:
                self._take(speaker, message)

    def _take(self, speaker: Speaker, message: ControlMessage) -> None:
        """Handle a message that counts."""
        self._tell_news_to(speaker.number)  # what was before it: who leaves is told no more
        if speaker.dialogue.take() or isinstance(message, Leave):
            speaker.tell_heard()
        if isinstance(message, Join):
            self._welcome(speaker, message)
            return
        if isinstance(message, NodeReport):
            node = self._running.members.of_peer(speaker.number)
            if node is not None:
                self._traces.add(node, message)
        self._perform(self._running.message(speaker.number, message, self._now()))

    def _welcome(self, speaker: Speaker, join: Join) -> None:
        assert speaker.link is not None
        host = join.host or speaker.link.stream.remote.rpartition(":")[0].strip("[]")
        join = msgspec.structs.replace(join, host=host)
        if join.role != "server":
            self._perform(self._running.message(speaker.number, join, self._now()))
            return
        task = asyncio.get_running_loop().create_task(self._dial_back(speaker, join))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dial_back(self, speaker: Speaker, join: Join) -> None:
        """Check that a server's advertised address answers, before any worker depends on it."""
        address = Address(join.host, join.port)
        try:
            async with asyncio.timeout(DIAL_BACK_TIMEOUT_S):
                stream = await self._van.dial(address, lambda stream: Silent())
            stream.abort()
        except (AiopsError, TimeoutError) as error:
            why = str(error) or "no answer"
            text = f"the advertised address {address} cannot be reached from the scheduler: {why}"
            if speaker.link is not None:
                refuse(speaker.link, ErrorCode.INVALID_SETTING, text)
            return
        if self._dialogues.of_number(speaker.number) is speaker:
            self._perform(self._running.message(speaker.number, join, self._now()))

    def link_batch_end(self, link: Link) -> None:
        """Nothing is kept back until the end of a batch."""

    def link_drained(self, link: Link) -> None:
        """Control messages are small; nothing waits for room."""

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        """Note the end of a connection."""
        if self._hearts.pop(link.number, None) is not None:
            self._note_heart(link, opened=False)
            return
        if self._links.pop(link.number, None) is None:
            if isinstance(error, PeerMisbehaved):
                _log.warning("connection_refused", peer=link.stream.remote, reason=str(error))
            return
        speaker = self._dialogues.lost(link)
        if speaker is not None:
            self._silent(speaker, link, error)
        self._parted.set()

    def _silent(self, speaker: Speaker, link: Link, error: AiopsError | None) -> None:
        """Decide whether a node without a connection may come back."""
        core, number = self._running, speaker.number
        if core.members.of_peer(number) is None:
            if speaker.dialogue.taken > 1:  # it has left
                self._dialogues.end(speaker)
            else:
                self._dialogues.forget(speaker)
                self._perform(core.lost(number, "", self._now()))
            return
        goodbye = link.goodbye
        if goodbye is not None and goodbye.code == ErrorCode.OK:
            reason = "it said goodbye without leaving"
        else:
            reason = str(error) if error is not None else str(goodbye.text if goodbye else "")
            if speaker.dialogue.lasting:
                self._perform(core.severed(number, reason, self._now()))
                return
        self._dialogues.end(speaker)
        self._perform(core.lost(number, reason, self._now()))

    # --- actions ---

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _perform(self, actions: list[Action]) -> None:
        told: ControlMessage | None = None
        joined: int | None = None
        header: Buffer = b""
        payload: Buffer = b""
        for action in actions:
            match action:
                case Tell(message=ClusterState() as state, peer=peer):
                    if self._news.put(state, peer):
                        asyncio.get_running_loop().call_soon(self._tell_news)
                    if peer == joined:  # who comes in sees itself there, and at once
                        self._tell_news_to(peer)
                case Tell(message=message, peer=peer):
                    if isinstance(message, Joined):
                        joined = peer
                    if message is not told:  # what goes to everybody is encoded once
                        told = message
                        header, payload = encode(Control(message))
                    self._tell_news_to(peer)
                    self._tell(peer, header, payload)
                case Drop(peer=peer, code=code, text=text):
                    self._tell_news_to(peer)
                    speaker = self._dialogues.of_number(peer)
                    if speaker is not None:
                        link = speaker.link
                        self._dialogues.end(speaker, ErrorCode(code), text)
                        if link is not None:
                            link.close(ErrorCode(code), text)
                case Note():
                    log_note(_log, action)
                case Ended():
                    assert self._ended is not None
                    self._tell_news()
                    if not self._ended.done():
                        self._ended.set_result(action)
                case Send() | RoundClosed():
                    raise AssertionError(f"a scheduler does not {type(action).__name__}")
        if self._news.pressing:
            self._tell_news()
        self._arm()

    def _tell(self, peer: int, header: Buffer, payload: Buffer) -> None:
        """Send a frame to a node, now or over its next connection, or to an observer."""
        speaker = self._dialogues.of_number(peer)
        if speaker is not None:
            speaker.say(header, payload)
        elif (link := self._links.get(peer)) is not None:
            link.send_encoded(header, payload, borrowed=True)

    def _tell_news(self) -> None:
        """Tell the newest membership to all who have not been told it, at the end of a turn."""
        for peer, frame in self._news.take_all():
            self._tell(peer, *frame)

    def _tell_news_to(self, peer: int) -> None:
        frame = self._news.take(peer)
        if frame is not None:
            self._tell(peer, *frame)

    def _arm(self) -> None:
        deadline = self._running.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._perform(self._running.tick(self._now()))

    # --- for the owner ---

    def status(self) -> dict[str, Any]:
        """Return members, tables with their range map, rounds, clocks and who is waited for."""
        return status(self._running, self._now())

    def trace_events(self) -> dict[str, Any]:
        """Return what was traced so far as one Chrome/Perfetto trace document."""
        return chrome_trace(self._traces.processes())

    def expect_workers(self, workers: int) -> None:
        """Let `connect` of the next workers wait until this many more have registered."""
        workers = check_count(workers, "expect_workers: workers")
        present = len(self._running.members.connected("worker"))
        self._running.members.expect_workers(present + workers)

    def will_not_come(
        self, name: str, reason: str, *, role: str = "worker", clean: bool = False
    ) -> None:
        """Say that a node that has not registered will not: nobody is to wait for it.

        Whoever has started it knows: `aiops launch` says so when a process ends too early. A
        server ends the job, and so does a worker under `on_worker_loss="fail"`; otherwise the job
        begins without the worker, which may still come later. Of a node that has registered, and
        of a worker once the job has begun, nothing follows from it.

        Parameters
        ----------
        name, role
            Under which name it would have come, and as what: "worker" or "server".
        reason
            What has become of it; the others read it.
        clean
            It has ended in order, as a worker that has no more to do: that is no loss.
        """
        check_name(name, "the node's name")
        reason = check_text(reason, "will_not_come: reason")
        clean = check_flag(clean, "will_not_come: clean")
        if not is_one_of(role, ("worker", "server")):
            raise ConfigError(
                f'will_not_come: role is {shown(role)}; it can be "worker" or "server"'
            )
        self._perform(self._running.will_not_come(role, name, reason, clean=clean))

    @property
    def on_worker_loss(self) -> str:
        """What the loss of a worker means: `"fail"` or `"continue"`."""
        return self._settings.on_worker_loss

    async def wait_ended(self) -> Ended:
        """Wait for the end of the job and return how it ended (`ok`, `reason`)."""
        if self._ended is None:
            raise ConfigError("the scheduler is not started: use `async with Scheduler(...)`")
        return await asyncio.shield(self._ended)

    async def stop(self, reason: str) -> None:
        """Ask all workers to stop at one step boundary; returns at once."""
        reason = check_text(reason, "stop: reason")
        self._perform(self._running.stop(reason))

    async def close(self, reason: str = "the scheduler was closed") -> None:
        """End the job if it runs, give everybody a moment to leave, and free the port.

        Idempotent. Takes `LEAVE_GRACE_S` at most.
        """
        reason = check_text(reason, "close: reason")
        if self._listener is None or self._closing:
            return
        self._closing = True
        self._perform(self._running.end(True, reason))
        # The door stays open meanwhile: a node that has no connection just now is to hear of it.
        await self._see_off()
        await self._listener.close()
        self._listener = None
        for link in [*self._links.values(), *self._hearts.values()]:
            link.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()

    async def _see_off(self) -> None:
        """Wait until all have left: `LEAVE_GRACE_S` at most, less for who has no connection."""
        loop = asyncio.get_running_loop()
        grace_s = min(SEVERED_PERIODS * self._settings.heartbeat_s, LEAVE_GRACE_S)
        until, absent_until = loop.time() + LEAVE_GRACE_S, loop.time() + grace_s
        while self._links or (self._dialogues.absent() and loop.time() < absent_until):
            self._parted.clear()
            left_s = (until if self._links else absent_until) - loop.time()
            try:
                async with asyncio.timeout(left_s):
                    await self._parted.wait()
            except TimeoutError:
                break
        if self._links:
            left = listed(self._links.values())
            _log.warning("nodes_did_not_leave", nodes=left)
