"""What every van keeps, whatever carries the bytes, on both event loops.

What only TCP or only memory can show is in `test_tcp_*` and `test_memory_van`.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aiops.errors import ConfigError, DialFailed
from aiops.van import memory, tcp_stream
from aiops.van.base import WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES, Stream
from local_jobs import together
from van_bodies import (
    ANYWHERE,
    BODIES,
    GUARD_S,
    Ends,
    Recorder,
    connected,
    leaving_nothing,
    make_van,
    pattern,
    resume,
    stall,
)

pytestmark = [
    pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"]),
    pytest.mark.parametrize("body", BODIES),
]

LARGE = 8 * 1024 * 1024
"""More than the kernel's buffers of both ends hold."""

# One write is several buffers; then maybe a flush, maybe a turn of the loop.
few = st.lists(st.integers(0, 300), min_size=1, max_size=4)
many = st.lists(
    st.sampled_from([0, 1, 8, 5_000, 16_383, 16_384, 65_536, 300_000]), min_size=1, max_size=4
)


def writes(sizes: st.SearchStrategy[list[int]]) -> st.SearchStrategy[list[tuple[list[int], str]]]:
    return st.lists(st.tuples(sizes, st.sampled_from(["", "flush", "turn", "own"])), max_size=12)


@given(
    script=st.one_of(
        st.tuples(writes(few), st.integers(1, 64)),
        st.tuples(writes(many), st.sampled_from([1_000, 65_536, 1_048_576])),
    ),
    borrowed=st.booleans(),
)
@example(
    script=([([300_000], ""), ([8], ""), ([300_000], ""), ([8], "turn")], 1_000), borrowed=True
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
async def test_bytes_arrive_whole_and_in_order(
    body: str, script: tuple[list[tuple[list[int], str]], int], borrowed: bool
) -> None:
    """Both ways at once, into whatever memory the receiver offers."""
    steps, buffer_bytes = script
    async with connected(body, far_bytes=buffer_bytes) as pair:
        sent = bytearray()
        for number, (sizes, then) in enumerate(steps):
            buffers = [pattern(size, seed=number + place) for place, size in enumerate(sizes)]
            pair.near.stream.write(*buffers, borrowed=borrowed)
            pair.far.stream.write(*buffers)
            sent += b"".join(buffers)
            if then == "flush":
                pair.near.stream.flush()
            elif then == "own":
                pair.near.stream.own()
            elif then == "turn":
                await asyncio.sleep(0)
        assert await pair.far.has(len(sent)) == sent
        assert await pair.near.has(len(sent)) == sent
        assert pair.near.stream.pending_bytes == 0


async def test_a_stalled_reader_makes_the_writer_full_and_then_drained(body: str) -> None:
    async with connected(body) as pair:
        stall(pair.far.stream)
        data = pattern(LARGE)
        assert not pair.near.stream.full
        for start in range(0, LARGE, 1_000_000):
            pair.near.stream.write(data[start : start + 1_000_000])
        await asyncio.sleep(0)
        assert pair.near.stream.full
        assert WRITE_HIGH_WATER_BYTES < pair.near.stream.pending_bytes < LARGE
        assert pair.near.drained_at == []
        resume(pair.far.stream)
        while not pair.near.drained_at:
            await pair.near.news()
        assert await pair.far.has(LARGE) == data
        assert len(pair.near.drained_at) == 1
        assert pair.near.drained_at[0] <= WRITE_LOW_WATER_BYTES
        assert pair.near.stream.pending_bytes == 0


@pytest.mark.parametrize("stalled", [False, True])
@pytest.mark.parametrize("kind", ["copied", "owned"])
async def test_what_was_written_is_what_arrives(body: str, kind: str, stalled: bool) -> None:
    """The caller overwrites its memory right after the call, or after `own`."""
    async with connected(body) as pair:
        if stalled:
            stall(pair.far.stream)
        memory_of_caller = bytearray(pattern(LARGE))
        small = bytearray(b"small")
        pair.near.stream.write(small, borrowed=kind == "owned")
        pair.near.stream.write(memory_of_caller, borrowed=kind == "owned")
        pair.near.stream.write(small, memory_of_caller, borrowed=kind == "owned")
        if kind == "owned":
            pair.near.stream.own()
        small[:] = b"wrong"
        memory_of_caller[:] = bytes(LARGE)
        memory_of_caller.clear()  # and no view of it may be alive
        resume(pair.far.stream)
        expected = b"small" + pattern(LARGE) + b"small" + pattern(LARGE)
        assert await pair.far.has(len(expected)) == expected


async def test_own_keeps_what_was_sent_before_it(body: str) -> None:
    """Part of a borrowed buffer has left, the rest is copied from exactly there on."""
    async with connected(body) as pair:
        stall(pair.far.stream)
        lent = bytearray(pattern(LARGE))
        pair.near.stream.write(lent, borrowed=True)
        resume(pair.far.stream)
        await pair.far.has(100_000)
        assert pair.near.stream.pending_bytes < LARGE
        pair.near.stream.own()
        lent[:] = bytes(LARGE)
        assert await pair.far.has(LARGE) == pattern(LARGE)


async def test_borrowed_memory_is_not_copied(body: str) -> None:
    """So the tests above would notice it if `borrowed` had no meaning."""
    async with connected(body) as pair:
        stall(pair.far.stream)
        lent = bytearray(LARGE)
        pair.near.stream.write(lent, borrowed=True)
        lent[:] = b"\xff" * LARGE
        resume(pair.far.stream)
        assert (await pair.far.has(LARGE))[-1:] == b"\xff"


async def test_the_end_of_a_stream_lets_borrowed_memory_go(body: str) -> None:
    async with connected(body) as pair:
        stall(pair.far.stream)
        lent = bytearray(LARGE)
        pair.near.stream.write(lent, borrowed=True)
        pair.near.stream.abort()
        lent.clear()  # a bytearray with a view alive refuses this
        await pair.near.ended.wait()
        assert pair.near.stream.pending_bytes == 0


async def test_close_sends_what_is_pending(body: str) -> None:
    async with connected(body) as pair:
        stall(pair.far.stream)
        pair.near.stream.write(b"first", pattern(LARGE), b"last")
        pair.near.stream.close()
        pair.near.stream.close()
        assert not pair.near.losses, "never from within a call"
        resume(pair.far.stream)
        await pair.far.ended.wait()
        assert pair.far.data == b"first" + pattern(LARGE) + b"last"
        await pair.near.ended.wait()
        assert pair.far.error is None
        assert pair.near.error is None


async def test_close_keeps_its_last_bytes_although_the_peer_is_talking(body: str) -> None:
    """A socket closed with unread input resets, and a reset destroys what was just sent."""
    async with connected(body) as pair:
        stall(pair.far.stream)
        stall(pair.near.stream)
        pair.far.stream.write(pattern(LARGE))
        pair.near.stream.write(pattern(LARGE))
        resume(pair.near.stream)
        pair.near.stream.close()
        resume(pair.far.stream)
        await pair.far.ended.wait()
        assert pair.far.data == pattern(LARGE)
        await pair.near.ended.wait()
        assert pair.near.data == b"", "nothing is handed over after close"


async def test_both_ends_close_at_once(body: str) -> None:
    async with connected(body) as pair:
        pair.near.stream.write(b"from near")
        pair.far.stream.write(b"from far")
        pair.near.stream.close()
        pair.far.stream.close()
        await pair.near.ended.wait()
        await pair.far.ended.wait()
        assert pair.near.error is None
        assert pair.far.error is None


async def test_close_gives_a_reader_that_never_reads_up(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_stream, "CLOSE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(memory, "CLOSE_TIMEOUT_S", 0.05)
    async with connected(body) as pair:
        stall(pair.far.stream)
        pair.near.stream.write(pattern(LARGE))
        pair.near.stream.close()
        await pair.near.ended.wait()
        assert isinstance(pair.near.error, TimeoutError)
        assert "bytes to" in str(pair.near.error)
        assert pair.near.stream.pending_bytes == 0


async def test_close_gives_a_peer_that_never_ends_up_without_an_error(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was written is sent, so nothing went wrong for us."""
    monkeypatch.setattr(tcp_stream, "CLOSE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(memory, "CLOSE_TIMEOUT_S", 0.05)
    async with connected(body) as pair:
        stall(pair.far.stream)
        pair.near.stream.write(b"goodbye")
        pair.near.stream.close()
        await pair.near.ended.wait()
        assert pair.near.error is None
        resume(pair.far.stream)
        assert await pair.far.has(7) == b"goodbye"
        await pair.far.ended.wait()


@pytest.mark.parametrize("loaded", [False, True])
async def test_abort_ends_both_ends(body: str, loaded: bool) -> None:
    async with connected(body) as pair:
        if loaded:
            stall(pair.far.stream)
            pair.near.stream.write(pattern(LARGE))
            resume(pair.far.stream)
        pair.near.stream.abort()
        pair.near.stream.abort()
        assert not pair.near.losses, "never from within a call"
        assert pair.near.stream.pending_bytes == 0
        await pair.near.ended.wait()
        await pair.far.ended.wait()
        assert pair.near.error is None
        assert pair.far.error is None or isinstance(pair.far.error, ConnectionError)


async def test_a_reset_after_everything_was_sent_is_a_clean_close(body: str) -> None:
    """The peer was told all we had to say; how it leaves is its own affair."""
    async with connected(body) as pair:
        stall(pair.far.stream)
        pair.near.stream.write(b"goodbye")
        pair.near.stream.close()
        pair.far.stream.abort()
        await pair.near.ended.wait()
        assert pair.near.error is None


@pytest.mark.parametrize("ending", ["close", "abort", "lost"])
async def test_writing_to_an_ended_stream_does_nothing(body: str, ending: str) -> None:
    async with connected(body) as pair:
        stream = pair.near.stream
        if ending == "lost":
            pair.far.stream.close()
            await pair.near.ended.wait()
        else:
            getattr(stream, ending)()
        for _ in range(2):
            stream.write(b"x", pattern(LARGE))
            stream.write(pattern(LARGE), borrowed=True)
            stream.flush()
            stream.own()
            assert stream.pending_bytes == 0
            stream.close()
            stream.abort()
            await pair.near.ended.wait()
        await pair.far.ended.wait()
        assert pair.far.data == b""


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_peer_that_leaves_while_we_write(body: str, how: str) -> None:
    """Many races: the writer only ever learns of it by `lost`, once."""
    van = make_van(body)
    near, far = Ends(), Ends()
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        listener = await van.listen(ANYWHERE, far)
        for race in range(100):
            stream = await van.dial(listener.address, near)
            ours, theirs = near.all[race], await far.number(race)
            turn = 0
            while not ours.losses:
                if turn == race % 7:
                    getattr(theirs.stream, how)()
                stream.write(b"small")
                stream.write(pattern(20_000), borrowed=bool(race % 2))
                turn += 1
                await asyncio.sleep(0)
            assert ours.error is None or isinstance(ours.error, ConnectionError)
        await far.ended()
        await listener.close()


class Faulty(Recorder):
    """A handler that fails in one of its methods."""

    fault = ""

    def get_buffer(self) -> memoryview:
        if self.fault == "empty":
            return memoryview(b"")
        if self.fault == "get_buffer":
            raise RuntimeError("fault in get_buffer")
        return super().get_buffer()

    def received(self, count: int) -> None:
        if self.fault == "received":
            raise RuntimeError("fault in received")
        super().received(count)

    def drained(self) -> None:
        raise RuntimeError("fault in drained")


@pytest.mark.parametrize("fault", ["get_buffer", "empty", "received", "drained"])
async def test_an_error_of_a_handler_ends_its_stream_and_no_other(body: str, fault: str) -> None:
    async with connected(body) as bystander:
        van = make_van(body)
        far = Ends()
        listener = await van.listen(ANYWHERE, far)
        faulty: list[Faulty] = []

        def make(stream: Stream) -> Faulty:
            faulty.append(Faulty(stream))
            faulty[-1].fault = fault
            return faulty[-1]

        stream = await van.dial(listener.address, make)
        other = (await far.number(0)).stream
        if fault == "drained":
            stall(other)
            stream.write(pattern(LARGE))
            resume(other)
        else:
            other.write(b"something")
        await faulty[0].ended.wait()
        await far.ended()
        error = faulty[0].error
        assert isinstance(error, ValueError if fault == "empty" else RuntimeError)
        assert "empty buffer" in str(error) or f"fault in {fault}" in str(error)
        bystander.near.stream.write(b"alive")
        assert await bystander.far.has(5) == b"alive"
        await listener.close()


async def test_an_error_of_accept_is_the_dialler_s(body: str) -> None:
    van = make_van(body)
    far = Ends()

    def refuse(stream: Stream) -> Recorder:
        stream.write(b"never mind")
        raise RuntimeError("no handler for you")

    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        listener = await van.listen(ANYWHERE, far)
        with pytest.raises(RuntimeError, match="no handler for you"):
            await van.dial(listener.address, refuse)
        await listener.close()
        await far.ended()


async def test_an_error_of_accept_leaves_the_door_open(
    body: str, caplog: pytest.LogCaptureFixture
) -> None:
    van = make_van(body)
    near = Ends()

    def moody(stream: Stream) -> Recorder:
        if "not now" not in caplog.text:
            raise RuntimeError("not now")
        return Recorder(stream)

    far = Ends(moody)
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        listener = await van.listen(ANYWHERE, far)
        await van.dial(listener.address, near)
        await near.ended()
        assert "not now" in caplog.text
        stream = await van.dial(listener.address, near)
        stream.write(b"hello")
        assert await (await far.number(0)).has(5) == b"hello"
        stream.close()
        await near.ended()
        await far.ended()
        await listener.close()


async def test_a_handler_may_write_and_close_while_it_is_made(body: str) -> None:
    van = make_van(body)

    def greet(stream: Stream) -> Recorder:
        stream.write(b"welcome")
        stream.close()
        return Recorder(stream)

    near, far = Ends(), Ends(greet)
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        listener = await van.listen(ANYWHERE, far)
        await van.dial(listener.address, near)
        await near.ended()
        await far.ended()
        assert near.all[0].data == b"welcome"
        assert near.all[0].error is None
        await listener.close()


async def test_closing_a_listener_leaves_its_streams(body: str) -> None:
    async with connected(body) as pair:  # closes the listener before it gives the pair
        pair.near.stream.write(b"still here")
        assert await pair.far.has(10) == b"still here"


async def test_a_closed_listener_refuses_and_frees_its_port(body: str) -> None:
    van = make_van(body)
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        listener = await van.listen(ANYWHERE, Recorder)
        address = listener.address
        assert address.port != 0
        with pytest.raises(ConfigError, match=r"EADDRINUSE.*port 0") as taken:
            await van.listen(address, Recorder)
        assert str(address) in str(taken.value)
        await listener.close()
        await listener.close()
        with pytest.raises(DialFailed, match=r"nobody listens.*ECONNREFUSED") as refused:
            await van.dial(address, Recorder)
        assert refused.value.retryable
        assert refused.value.peer == str(address)
        again = await van.listen(address, Recorder)
        await again.close()


async def test_two_hundred_dial_at_once(body: str) -> None:
    van = make_van(body)
    near, far = Ends(), Ends()
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        listener = await van.listen(ANYWHERE, far)
        try:
            streams = await together(van.dial(listener.address, near) for _ in range(200))
            for number, stream in enumerate(streams):
                stream.write(number.to_bytes(2, "little"))
                stream.close()
            await near.ended()
            await far.ended()
            heard = sorted(int.from_bytes(end.data, "little") for end in far.all)
            assert heard == list(range(200))
        finally:  # a loop with open streams could not be closed
            await listener.close()
            for end in (*near.all, *far.all):
                end.stream.abort()


async def test_cancelling_a_dial_leaves_nothing(body: str) -> None:
    """Whatever turn it comes in; a handler that was made is told."""
    van = make_van(body)
    near, far = Ends(), Ends()
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        listener = await van.listen(ANYWHERE, far)
        for turns in range(12):
            dialling = asyncio.ensure_future(van.dial(listener.address, near))
            for _ in range(turns):
                await asyncio.sleep(0)
            dialling.cancel()
            await asyncio.wait([dialling])
            if not dialling.cancelled():
                dialling.result().abort()
        await near.ended()
        await listener.close()
        await far.ended()


async def test_the_end_tells_what_was_never_handed_on(body: str) -> None:
    async with connected(body) as pair:
        stall(pair.far.stream)
        pair.near.stream.write(pattern(LARGE))
        assert not pair.near.stream.unsent_bytes
        pending = pair.near.stream.pending_bytes
        assert pending
        pair.near.stream.abort()
        await pair.near.ended.wait()
        assert pair.near.stream.unsent_bytes == pending
        assert not pair.far.stream.unsent_bytes
