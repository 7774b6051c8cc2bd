"""Opening a link: what is final, what is tried again, and how long an attempt may take.

Everything runs in virtual time: minutes of a black hole take no time, and every pause is exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiops.errors import AiopsError, DialFailed, PeerMisbehaved
from aiops.runtime.dialling import ATTEMPT_FIRST_S, LinkPlan, open_link
from aiops.testing.simulation.loop import SimLoop
from aiops.testing.simulation.seal import sealed as sealed_run
from aiops.van import MemoryVan
from aiops.van.base import Accept, Address, Listener, Stream, StreamHandler
from aiops.van.link import Link
from aiops_protocol.errors import (
    BadMagic,
    ChecksumMismatch,
    ErrorCode,
    HandshakeRefused,
    UnsupportedVersion,
)
from aiops_protocol.frames import Frame
from aiops_protocol.greeting import (
    GREETING_BYTES,
    HELLO_BYTES,
    WELCOME_BYTES,
    Greeting,
    encode_greeting,
)
from aiops_protocol.handshake import Purpose, Role, ServerHandshake

JOB = bytes(range(16))
ADDRESS = Address("server", 7000)
LENGTHS = {"greeting": GREETING_BYTES, "hello": HELLO_BYTES, "welcome": WELCOME_BYTES}
T = TypeVar("T")


def simulate(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run in virtual time, and leave nothing unhandled behind."""
    loop = SimLoop(0)
    with sealed_run(loop):
        try:
            result = loop.run_until_complete(main())
            loop.run_until_complete(asyncio.sleep(30))  # whatever is left happens
        finally:
            loop.bury()
    assert loop.strays == []
    return result


FEWER = settings(max_examples=settings().max_examples // 4)
"""Each example is a whole scene, a third of a second long."""


class Owner:
    """Who wants the link; remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def link_ready(self, link: Link) -> None:
        self.told.append("ready")

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        self.told.append("lost")

    def link_frame(self, link: Link, frame: Frame) -> None:
        self.told.append("frame")

    def link_pinged(self, link: Link) -> None: ...
    def link_batch_end(self, link: Link) -> None: ...
    def link_drained(self, link: Link) -> None: ...


Harm = Callable[[str, bytes], bytes]
Answer = Callable[[Stream], StreamHandler]


class Node:
    """The other end of one connection: a server's side of the handshake, on a bad way.

    `harm` changes messages as they travel; `refuses` is what a caller is told in place of being
    let in; a reply that is late by `delay_s` is a slow node.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        harm: Harm = lambda name, message: message,
        refuses: ErrorCode = ErrorCode.OK,
        delay_s: float = 0.0,
    ) -> None:
        self._stream = stream
        self._harm = harm
        self._delay_s = delay_s
        admit = lambda hello: refuses  # noqa: E731
        self._handshake = ServerHandshake(Role.SERVER, bytes(32), JOB, admit=admit)
        self._hello = memoryview(bytearray(HELLO_BYTES))
        self._received = 0
        stream.write(harm("greeting", self._handshake.start()))

    def get_buffer(self) -> memoryview:
        return self._hello[self._received :] or memoryview(bytearray(64))

    def received(self, count: int) -> None:
        self._received += count
        if self._received == HELLO_BYTES:
            asyncio.get_running_loop().call_later(self._delay_s, self._answer)

    def _answer(self) -> None:
        try:
            welcome = self._handshake.receive(self._harm("hello", bytes(self._hello)))
        except (BadMagic, ChecksumMismatch):
            self._stream.close()
        else:
            self._stream.write(self._harm("welcome", welcome))

    def drained(self) -> None: ...
    def lost(self, error: Exception | None) -> None: ...


class Says:
    """Somebody who says this and listens to nobody; nothing, if it is silent."""

    def __init__(self, stream: Stream, words: bytes = b"") -> None:
        self._unheard = memoryview(bytearray(64))
        if words:
            stream.write(words)

    def get_buffer(self) -> memoryview:
        return self._unheard

    def received(self, count: int) -> None: ...
    def drained(self) -> None: ...
    def lost(self, error: Exception | None) -> None: ...


class Scene:
    """Attempt after attempt to open a link meets the next answer; the last one stays."""

    def __init__(self, *answers: Answer | None, known: bool, timeout_s: float = 30.0) -> None:
        self.answers = answers
        self.attempts: list[float] = []  # when each began
        self.owner = Owner()
        self.error: AiopsError | None = None
        self.ended_s = 0.0
        self._known = known
        self._timeout_s = timeout_s
        self._van = MemoryVan()
        simulate(self._play)

    async def _play(self) -> None:
        await self._van.listen(ADDRESS, self._accept)
        plan = LinkPlan(
            *(ADDRESS, "server 0", Role.WORKER, Role.SERVER, Purpose.DATA),
            job=JOB,
            known=self._known,
        )
        try:
            await open_link(self, plan, self.owner, timeout_s=self._timeout_s)
        except AiopsError as error:
            self.error = error
        self.ended_s = asyncio.get_running_loop().time()

    @property
    def _answer(self) -> Answer | None:
        return self.answers[min(len(self.attempts), len(self.answers)) - 1]

    def _accept(self, stream: Stream) -> StreamHandler:
        assert self._answer is not None
        return self._answer(stream)

    async def dial(self, address: Address, accept: Accept) -> Stream:
        self.attempts.append(asyncio.get_running_loop().time())
        if self._answer is None:  # a black hole: not even a refusal comes back
            await asyncio.get_running_loop().create_future()
        return await self._van.dial(address, accept)

    async def listen(self, address: Address, accept: Accept) -> Listener:
        return await self._van.listen(address, accept)

    @property
    def opened(self) -> bool:
        assert (self.error is None) == (self.owner.told == ["ready"])
        return self.error is None


def says(words: bytes = b"") -> Answer:
    return partial(Says, words=words)


def refusing(code: ErrorCode) -> Answer:
    return partial(Node, refuses=code)


def damaging(message: str, place: int, bit: int) -> Answer:
    def harm(name: str, data: bytes) -> bytes:
        if name != message:
            return data
        return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]

    return partial(Node, harm=harm)


# --- damage on the way ----------------------------------------------------------------------


@FEWER
@given(
    st.sampled_from(list(LENGTHS)).flatmap(
        lambda name: st.tuples(st.just(name), st.integers(0, LENGTHS[name] - 1), st.integers(0, 7))
    )
)
def test_one_flipped_bit_costs_one_attempt(damage: tuple[str, int, int]) -> None:
    """At an address that is known to be a node's, wherever in the handshake it happens."""
    scene = Scene(damaging(*damage), Node, known=True)
    assert scene.opened
    assert len(scene.attempts) == 2
    assert scene.ended_s < 0.2


@FEWER
@given(
    st.sampled_from(list(LENGTHS)).flatmap(
        lambda name: st.tuples(st.just(name), st.integers(0, LENGTHS[name] - 1), st.integers(0, 7))
    )
)
def test_an_address_that_a_person_gave_forgives_all_but_a_strange_start(
    damage: tuple[str, int, int],
) -> None:
    scene = Scene(damaging(*damage), Node, known=False)
    name, place, _ = damage
    assert scene.opened == (name == "hello" or place >= 8)
    assert len(scene.attempts) == 1 + scene.opened


@pytest.mark.parametrize("known", [True, False])
def test_damage_that_never_ends_is_given_up_in_time(known: bool) -> None:
    scene = Scene(damaging("welcome", 8, 0), known=known, timeout_s=20.0)
    assert isinstance(scene.error, DialFailed)
    assert "CRC-32C of a welcome is wrong" in str(scene.error)
    assert "server 0 at server:7000" in str(scene.error)
    assert isinstance(scene.error.__cause__, PeerMisbehaved)
    assert 17.0 < scene.ended_s <= 20.0
    assert 10 < len(scene.attempts) < 30


# --- strangers ------------------------------------------------------------------------------

STRANGERS = [
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
    (b"\x15\x03\x03\x00\x02\x02\x46", "TLS"),
    (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
    (b"220 mail.example ESMTP\r\n", "does not speak aiops"),
]


@pytest.mark.parametrize(("words", "guess"), STRANGERS)
def test_a_stranger_at_an_address_that_a_person_gave_is_an_error_at_once(
    words: bytes, guess: str
) -> None:
    """The wrong port: the message comes now and not after half a minute."""
    scene = Scene(says(words), known=False)
    assert isinstance(scene.error, PeerMisbehaved)
    assert isinstance(scene.error.__cause__, BadMagic)
    assert guess in str(scene.error)
    assert len(scene.attempts) == 1
    assert scene.ended_s < 0.1


@pytest.mark.parametrize(("words", "guess"), STRANGERS)
def test_a_stranger_at_a_known_address_may_be_damage(words: bytes, guess: str) -> None:
    assert Scene(says(words), says(words), Node, known=True).opened
    scene = Scene(says(words), known=True, timeout_s=5.0)
    assert isinstance(scene.error, DialFailed)
    assert guess in str(scene.error)


# --- what is meant is final -------------------------------------------------------------------

FINAL = [
    ErrorCode.AUTHENTICATION_FAILED,
    ErrorCode.WRONG_ROLE,
    ErrorCode.STALE_INCARNATION,
    ErrorCode.NOT_A_MEMBER,
    ErrorCode.SHUTTING_DOWN,
]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("code", FINAL, ids=lambda code: code.name)
def test_a_refusal_is_final(code: ErrorCode, known: bool) -> None:
    scene = Scene(refusing(code), known=known)
    assert isinstance(scene.error, PeerMisbehaved)
    assert isinstance(scene.error.__cause__, HandshakeRefused)
    assert scene.error.__cause__.reason is code
    assert "server 0 at server:7000 refuses this worker" in str(scene.error)
    assert len(scene.attempts) == 1


@pytest.mark.parametrize("known", [True, False])
def test_a_crowd_at_the_door_goes_away(known: bool) -> None:
    crowd = refusing(ErrorCode.TOO_MANY_CONNECTIONS)
    scene = Scene(crowd, crowd, crowd, Node, known=known)
    assert scene.opened
    assert len(scene.attempts) == 4
    scene = Scene(crowd, known=known, timeout_s=3.0)
    assert isinstance(scene.error, DialFailed)
    assert "refuses this worker: it has as many connections as it allows" in str(scene.error)


@pytest.mark.parametrize("known", [True, False])
def test_another_version_is_final(known: bool) -> None:
    greeting = encode_greeting(Greeting(7, 9, 1, Role.SERVER, bytes(32)))
    scene = Scene(says(greeting), known=known)
    assert isinstance(scene.error, PeerMisbehaved)
    assert isinstance(scene.error.__cause__, UnsupportedVersion)
    assert "versions 7 to 9" in str(scene.error)
    assert len(scene.attempts) == 1


@pytest.mark.parametrize("known", [True, False])
def test_another_role_is_final(known: bool) -> None:
    """The scheduler's address in place of a server's: trying again does not change it."""
    greeting = encode_greeting(Greeting(1, 1, 1, Role.SCHEDULER, bytes(32)))
    scene = Scene(says(greeting), known=known)
    assert isinstance(scene.error, PeerMisbehaved)
    assert "a scheduler answers there, not a server" in str(scene.error)
    assert len(scene.attempts) == 1


def test_nonsense_with_a_right_checksum_is_final_only_from_a_stranger() -> None:
    greeting = encode_greeting(Greeting(2, 1, 1, Role.SERVER, bytes(32)))
    assert Scene(says(greeting), Node, known=True).opened
    scene = Scene(says(greeting), Node, known=False)
    assert isinstance(scene.error, PeerMisbehaved)
    assert "reversed versions" in str(scene.error)


# --- how long an attempt may take ---------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("hole", [None, says(), says(b"\x8bAIOPS\r\n")])
def test_a_black_hole_does_not_eat_the_whole_time(hole: Answer | None, known: bool) -> None:
    """A packet filter that drops, a frozen process, a handshake whose rest was lost."""
    scene = Scene(hole, Node, known=known)
    assert scene.opened
    assert len(scene.attempts) == 2
    assert ATTEMPT_FIRST_S < scene.ended_s < ATTEMPT_FIRST_S + 0.2


@pytest.mark.parametrize(
    ("hole", "words"),
    [(None, "no answer within 10 s"), (says(), "no handshake within 10 s; is it an aiops node")],
)
def test_attempts_at_a_black_hole_grow_and_end_in_time(hole: Answer | None, words: str) -> None:
    """5, 10, 10 seconds and a rest, which is too short to say anything."""
    scene = Scene(hole, known=True, timeout_s=30.0)
    assert isinstance(scene.error, DialFailed)
    assert words in str(scene.error)
    first, second, third, fourth = scene.attempts
    assert first == 0.0
    assert second == pytest.approx(5.0, abs=0.2)
    assert third - second == pytest.approx(10.0, abs=0.3)
    assert fourth - third == pytest.approx(10.0, abs=0.6)
    assert scene.ended_s == pytest.approx(30.0)


def test_the_last_reason_is_not_hidden_by_an_attempt_cut_short() -> None:
    crowd = refusing(ErrorCode.TOO_MANY_CONNECTIONS)
    scene = Scene(crowd, crowd, says(), known=True, timeout_s=1.0)
    assert isinstance(scene.error, DialFailed)
    assert "as many connections as it allows" in str(scene.error)
    assert scene.ended_s == pytest.approx(1.0)


def test_a_node_that_is_only_slow_is_met_in_the_end() -> None:
    """Seven seconds for a handshake, as when hundreds join at once on few cores."""
    scene = Scene(partial(Node, delay_s=7.0), known=True)
    assert scene.opened
    assert len(scene.attempts) == 2


class Punctual(Node):
    """Its welcome arrives in the very turn of the loop in which the attempt's time is over."""

    def _answer(self) -> None:
        welcome = self._handshake.receive(bytes(self._hello))
        near = self._stream._peer._handler  # type: ignore[attr-defined]  # a MemoryStream
        near.get_buffer()[: len(welcome)] = welcome
        near.received(len(welcome))


def test_a_handshake_that_ends_in_the_very_moment_counts() -> None:
    """Its owner has the link already, and would be left with a dead one and a second one."""
    for early_s in (0.0, 1e-8, 5e-8, 1e-6):  # what is due within 1e-7 s fires in one turn
        answer = partial(Punctual, delay_s=ATTEMPT_FIRST_S - early_s)
        assert Scene(answer, known=True).opened


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.5])
def test_cancelling_leaves_nothing_behind(after_s: float) -> None:
    """At any moment of a handshake: the link is lost or was never made, and nothing is logged."""

    async def main() -> list[str]:
        van, owner = MemoryVan(), Owner()
        await van.listen(ADDRESS, lambda stream: Node(stream, delay_s=0.5))
        plan = LinkPlan(
            *(ADDRESS, "server 0", Role.WORKER, Role.SERVER, Purpose.DATA), job=JOB, known=True
        )
        opening = asyncio.ensure_future(open_link(van, plan, owner, timeout_s=9.0))
        await asyncio.sleep(after_s)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.sleep(20)
        return owner.told

    assert simulate(main) in ([], ["ready", "lost"])
