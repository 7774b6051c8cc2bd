"""What only the memory van promises: virtual time, no chance, a pipe of a known size."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable

import pytest

from aiops.errors import DialFailed
from aiops.testing.simulation.loop import SimLoop
from aiops.van.base import CLOSE_TIMEOUT_S, Address, Stream
from aiops.van.memory import PIPE_BYTES, MemoryStream, MemoryVan
from van_bodies import ANYWHERE, Ends, Recorder, pattern


class JumpingSelector(selectors.DefaultSelector):
    """Never waits: moves the clock of its loop instead."""

    jump: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen again"
        self.jump(timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes only when nothing is ready."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = JumpingSelector()
        selector.jump = self.advance
        super().__init__(selector)

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def time(self) -> float:
        return self.now


def conversation() -> list[tuple[float, str, int]]:
    """Run a few streams that talk, stall and end; return all that was heard, with the time."""
    heard: list[tuple[float, str, int]] = []

    class Listening(Recorder):
        def __init__(self, name: str, stream: Stream) -> None:
            super().__init__(stream, buffer_bytes=1000)
            self.name = name

        def received(self, count: int) -> None:
            super().received(count)
            heard.append((asyncio.get_running_loop().time(), f"{self.name} received", count))

        def drained(self) -> None:
            super().drained()
            heard.append((asyncio.get_running_loop().time(), f"{self.name} drained", 0))

        def lost(self, error: Exception | None) -> None:
            super().lost(error)
            heard.append((asyncio.get_running_loop().time(), f"{self.name} lost {error!r}", 0))

    async def main() -> None:
        van = MemoryVan()
        far: list[Listening] = []

        def accept(stream: Stream) -> Listening:
            far.append(Listening(f"far {len(far)}", stream))
            return far[-1]

        listener = await van.listen(Address("server", 9000), accept)
        near: list[Listening] = []

        def dialled(stream: Stream) -> Listening:
            near.append(Listening(f"near {len(near)}", stream))
            return near[-1]

        for number in range(3):
            stream = await van.dial(Address("server", 9000), dialled)
            stream.write(pattern(3_000_000 if number else 5000))
        stalled = far[1].stream
        assert isinstance(stalled, MemoryStream)
        stalled.hold()
        far[0].stream.write(b"answer")
        for end in near:
            end.stream.close()
        for end in (*near, *far):
            await end.ended.wait()
        await listener.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    return heard


def test_virtual_time_runs_it_the_same_way_each_time() -> None:
    heard = conversation()
    assert heard == conversation()
    ends = {name.split(" lost")[0]: at for at, name, _ in heard if "lost" in name}
    slow = ("near 1", "far 1")  # stalled; and no second was really waited
    assert ends == {name: CLOSE_TIMEOUT_S if name in slow else 0.0 for name in ends}
    assert len(ends) == 6


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_the_pipe_is_bounded() -> None:
    van = MemoryVan()
    near, far = Ends(), Ends()
    listener = await van.listen(ANYWHERE, far)
    stream = await van.dial(listener.address, near)
    other = far.all[0].stream
    assert isinstance(other, MemoryStream)
    other.hold()
    stream.write(bytes(PIPE_BYTES))
    assert stream.pending_bytes == 0
    stream.write(b"x")
    assert stream.pending_bytes == 1
    other.release()
    assert len(await far.all[0].has(PIPE_BYTES + 1)) == PIPE_BYTES + 1
    stream.abort()
    await near.ended()
    await far.ended()
    await listener.close()


async def test_port_zero_takes_a_free_one_and_names_are_free() -> None:
    van = MemoryVan()
    taken = await van.listen(Address("scheduler", 49152), Recorder)
    first = await van.listen(Address("scheduler", 0), Recorder)
    second = await van.listen(Address("scheduler", 0), Recorder)
    addresses = {taken.address, first.address, second.address}
    assert len(addresses) == 3
    assert all(address.port for address in addresses)
    with pytest.raises(DialFailed, match="cannot connect to elsewhere:9: nobody listens there"):
        await van.dial(Address("elsewhere", 9), Recorder)


async def test_a_door_that_closes_in_the_same_turn_resets_the_dialler() -> None:
    van = MemoryVan()
    listener = await van.listen(ANYWHERE, Recorder)
    near = Ends()
    dialling = asyncio.ensure_future(van.dial(listener.address, near))
    await near.number(0)
    await listener.close()
    await dialling
    await near.ended()
    assert isinstance(near.all[0].error, ConnectionResetError)


def test_ends_that_have_nothing_to_say_come_to_rest() -> None:
    """A connection that idles costs nothing, also after it was used."""

    async def talk_and_fall_silent() -> None:
        van = MemoryVan()
        ends: list[Recorder] = []

        def accept(stream: Stream) -> Recorder:
            ends.append(Recorder(stream))
            return ends[-1]

        listener = await van.listen(ANYWHERE, accept)
        stream = await van.dial(listener.address, accept)
        await asyncio.sleep(60)
        stream.write(bytes(3 * PIPE_BYTES))
        await asyncio.sleep(60)
        assert max(len(end.data) for end in ends) == 3 * PIPE_BYTES

    loop = SimLoop(0, turns_max=200)  # more is a livelock
    try:
        loop.run_until_complete(talk_and_fall_silent())
    finally:
        loop.bury()
