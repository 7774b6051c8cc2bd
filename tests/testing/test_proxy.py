"""The fault proxy between two real TCP ends: what passes, what is lost, and how it ends."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from aiops.errors import ConfigError, DialFailed
from aiops.testing import FaultProxy, Faults, Line
from aiops.testing.proxy import Direction, ReservedPort
from aiops.van import TcpVan
from proxied import proxied
from van_bodies import pattern

BOTH_LOOPS = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
MiB = 1024 * 1024


@BOTH_LOOPS
async def test_what_is_sent_arrives_and_so_does_the_end() -> None:
    async with proxied() as ends:
        pair = await ends.pair()
        pair.near.stream.write(pattern(3 * MiB))
        pair.far.stream.write(b"answer")
        assert await pair.far.has(3 * MiB) == pattern(3 * MiB)
        assert await pair.near.has(6) == b"answer"
        pair.near.stream.close()
        await pair.far.ended.wait()
        await pair.near.ended.wait()
        assert pair.far.error is None
        counters = ends.proxy.counters
        assert (counters.forwarded_up, counters.forwarded_down) == (3 * MiB, 6)
        assert (counters.lost, counters.cuts, counters.connections) == (0, 0, 1)


@BOTH_LOOPS
async def test_delay_and_jitter_keep_the_order() -> None:
    async with proxied(Faults(delay_s=0.005, jitter_s=0.02)) as ends:
        pair = await ends.pair()
        started = asyncio.get_running_loop().time()
        for piece in range(20):
            pair.near.stream.write(pattern(1000, piece))
            await asyncio.sleep(0)
        whole = b"".join(pattern(1000, piece) for piece in range(20))
        assert await pair.far.has(20_000) == whole
        assert asyncio.get_running_loop().time() - started >= 0.005


async def test_a_rate_holds_the_bytes_back() -> None:
    async with proxied(Faults(rate_bytes_per_s=100_000)) as ends:
        pair = await ends.pair()
        started = asyncio.get_running_loop().time()
        pair.near.stream.write(pattern(30_000))
        assert await pair.far.has(30_000) == pattern(30_000)
        assert asyncio.get_running_loop().time() - started >= 0.25


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("count", [0, 1, 199, 100_000])
@BOTH_LOOPS
async def test_a_cut_after_n_bytes_lets_exactly_these_through(
    count: int, direction: Direction, reset: bool
) -> None:
    """A frame is cut anywhere, also within its first byte."""
    async with proxied() as ends:
        pair = await ends.pair()
        sender, receiver = (pair.near, pair.far) if direction == "up" else (pair.far, pair.near)
        ends.proxy.cut_after(count, direction, reset=reset)
        sender.stream.write(pattern(200_000))
        await receiver.ended.wait()
        assert bytes(receiver.data) == pattern(count)
        await sender.ended.wait()
        assert (sender.error is not None) == reset
        assert ends.proxy.counters.cuts == 1
        forwarded = ends.proxy.counters
        assert (forwarded.forwarded_up if direction == "up" else forwarded.forwarded_down) == count
        second = await ends.pair()
        second.near.stream.write(b"the next connection lives")
        await second.far.has(25)


async def test_each_byte_of_a_frame_can_be_the_last() -> None:
    """Fault matrix, row 13: cut after n bytes, all n of a 200-byte frame."""
    async with proxied() as ends:
        for count in range(201):
            pair = await ends.pair()
            ends.proxy.cut_after(count)
            pair.near.stream.write(pattern(200))
            if count == 200:
                await pair.far.has(200)
            await pair.far.ended.wait()
            assert bytes(pair.far.data) == pattern(count)
        assert ends.proxy.counters.cuts == 201
        assert ends.proxy.counters.lost_up == sum(200 - count for count in range(201))


async def test_what_was_sent_and_did_not_arrive_is_counted_as_lost() -> None:
    """Read by the proxy or still in a kernel: forwarded and lost add up to what was sent."""
    async with proxied(Faults(delay_s=30.0), buffer_bytes=MiB) as ends:
        pair = await ends.pair()
        ends.proxy.set(delay_s=0.0)
        pair.near.stream.write(b"first")
        await pair.far.has(5)
        ends.proxy.hold()
        pair.near.stream.write(pattern(200_000))
        while pair.near.stream.pending_bytes:
            await asyncio.sleep(0.001)
        ends.proxy.cut()
        await pair.near.ended.wait()
        await pair.far.ended.wait()
        assert ends.proxy.counters.forwarded_up == 5
        assert ends.proxy.counters.lost_up == 200_000


async def test_cuts_by_chance_come_sooner_or_later() -> None:
    async with proxied(Faults(cut_probability=0.2), seed=3) as ends:
        for _ in range(3):
            pair = await ends.pair()
            while not pair.near.losses:
                pair.near.stream.write(pattern(5000))
                await asyncio.sleep(0.001)
            await pair.far.ended.wait()
        assert ends.proxy.counters.cuts == 3


async def test_all_open_connections_can_be_cut_or_one() -> None:
    async with proxied() as ends:
        pairs = [await ends.pair() for _ in range(4)]
        assert ends.proxy.connections == 4
        ends.proxy.cut(one=True)
        while ends.proxy.connections > 3:
            await asyncio.sleep(0.001)
        assert ends.proxy.counters.cuts == 1
        ends.proxy.cut(reset=False)
        for pair in pairs:
            await pair.near.ended.wait()
        assert ends.proxy.counters.cuts == 4


async def test_one_byte_per_n_gets_another_value() -> None:
    async with proxied() as ends:
        ends.proxy.set("up", corrupt_every_bytes=1000)
        pair = await ends.pair()
        pair.near.stream.write(pattern(100_000))
        pair.far.stream.write(pattern(100_000))
        assert await pair.near.has(100_000) == pattern(100_000)
        arrived = await pair.far.has(100_000)
        wrong = sum(a != b for a, b in zip(arrived, pattern(100_000), strict=True))
        assert wrong == ends.proxy.counters.corrupted == 100


@BOTH_LOOPS
async def test_a_half_closed_connection_still_carries_the_other_direction() -> None:
    async with proxied() as ends:
        pair = await ends.pair()
        reader, writer = await asyncio.open_connection(*ends.proxy.address.split(":"))
        far = await ends.far.number(1)
        ends.proxy.half_close("down")
        assert await reader.read() == b""
        writer.write(b"still heard")
        assert await far.has(11) == b"still heard"
        far.stream.write(b"into the void")
        while ends.proxy.counters.lost_down < 13:
            await asyncio.sleep(0.001)
        writer.close()
        await writer.wait_closed()
        await far.ended.wait()
        await pair.near.ended.wait()


@BOTH_LOOPS
async def test_a_black_hole_swallows_nothing_in_the_end() -> None:
    """Nobody is told anything while it lasts; afterwards everything flows, as TCP repeats."""
    async with proxied() as ends:
        old = await ends.pair()
        ends.proxy.hold()
        old.near.stream.write(pattern(50_000))
        old.far.stream.write(b"back")
        new = await ends.dial()  # accepted at once
        new.write(b"new")
        await asyncio.sleep(0.05)
        assert (bytes(old.far.data), bytes(old.near.data)) == (b"", b"")
        assert len(ends.far.all) == 1
        assert not old.near.losses
        ends.proxy.release()
        assert await old.far.has(50_000) == pattern(50_000)
        assert await old.near.has(4) == b"back"
        assert await (await ends.far.number(1)).has(3) == b"new"
        assert ends.proxy.counters.lost == 0


async def test_a_one_way_partition_lets_the_other_way_pass() -> None:
    async with proxied() as ends:
        pair = await ends.pair()
        ends.proxy.hold("down")
        pair.far.stream.write(b"held")
        pair.near.stream.write(b"passes")
        assert await pair.far.has(6) == b"passes"
        assert bytes(pair.near.data) == b""
        ends.proxy.release("down")
        assert await pair.near.has(4) == b"held"


async def test_a_reset_does_not_pass_a_black_hole() -> None:
    async with proxied() as ends:
        pair = await ends.pair()
        ends.proxy.hold()
        pair.near.stream.abort()
        await pair.near.ended.wait()
        await asyncio.sleep(0.02)
        assert not pair.far.losses
        ends.proxy.release()
        await pair.far.ended.wait()
        assert pair.far.error is not None
        assert ends.proxy.counters.cuts == 0


async def test_memory_is_bounded_while_the_receiver_does_not_read() -> None:
    """Back-pressure reaches the sender: the proxy keeps no more than it was allowed."""
    async with proxied(buffer_bytes=100_000) as ends:
        pair = await ends.pair()
        ends.proxy.hold("up")
        pair.near.stream.write(pattern(64 * MiB))
        before = -1
        while pair.near.stream.pending_bytes != before:  # until nothing moves any more
            before = pair.near.stream.pending_bytes
            await asyncio.sleep(0.1)
        assert before > 32 * MiB
        ends.proxy.release()
        assert await pair.far.has(64 * MiB) == pattern(64 * MiB)


@BOTH_LOOPS
async def test_a_window_bounds_what_is_acknowledged_and_not_delivered() -> None:
    """As on a long link: what a sender gets rid of does not depend on the kernels in between."""
    window_bytes = 64 * 1024
    async with proxied(window_bytes=window_bytes) as ends:
        pair = await ends.pair()
        ends.proxy.hold()
        pair.near.stream.write(pattern(4 * MiB))
        for _ in range(100):
            await asyncio.sleep(0.001)
            acknowledged = 4 * MiB - pair.near.stream.unacknowledged_bytes
            assert acknowledged <= 2 * window_bytes
        ends.proxy.release()
        assert await pair.far.has(4 * MiB) == pattern(4 * MiB)


async def test_proxies_may_share_a_line() -> None:
    """Bytes that pass through the one count for what happens in the other."""
    line = Line(Faults(), random.Random(0))
    line.cut_after(10, reset=True)
    async with (
        proxied(lines=(line, line)) as ends,
        FaultProxy(str(ends.proxy.target), lines=(line, line)) as other,
    ):
        first = await ends.pair()
        first.near.stream.write(pattern(6))
        assert await first.far.has(6) == pattern(6)
        ends.proxy = other
        second = await ends.pair()
        second.near.stream.write(pattern(100))
        await second.far.ended.wait()
        assert bytes(second.far.data) == pattern(4)
        first.near.stream.write(b"lives")
        assert await first.far.has(11) == pattern(6) + b"lives"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window_bytes": 0}, "window_bytes is 0; .* at least 16384"),
        ({"buffer_bytes": 0}, "buffer_bytes is 0; .* at least 1"),
        ({"lines": (Line(Faults(), random.Random(0)),) * 2, "faults": Faults()}, "one of the two"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FaultProxy("127.0.0.1:1", **options)


async def test_who_is_refused_may_come_back_to_the_same_address() -> None:
    async with proxied() as ends:
        pair = await ends.pair()
        address = ends.proxy.address
        await ends.proxy.refuse()
        with pytest.raises(DialFailed, match="nobody listens"):
            await ends.dial()
        pair.near.stream.write(b"open ones are not touched")
        await pair.far.has(25)
        ends.proxy.accept()
        assert ends.proxy.address == address
        await ends.pair()


async def test_an_absent_target_shows_as_a_reset() -> None:
    port = ReservedPort()
    async with FaultProxy(str(port.address)) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address.split(":"))
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        assert proxy.counters.unreachable == 1
    port.close()


async def test_a_reserved_port_can_be_bound_by_a_server_only() -> None:
    port = ReservedPort()
    van = TcpVan()
    with pytest.raises(ConfigError, match="bind"):
        ReservedPort("192.0.2.1")
    listener = await van.listen(port.address, lambda stream: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match="in use"):
        await van.listen(port.address, lambda stream: None)  # type: ignore[arg-type,return-value]
    await listener.close()
    port.close()


async def test_a_proxy_beyond_this_machine_must_be_wanted() -> None:
    with pytest.raises(ConfigError, match="insecure"):
        FaultProxy("127.0.0.1:1", bind="0.0.0.0:0")
    with pytest.raises(ConfigError, match="buffer_bytes"):
        FaultProxy("127.0.0.1:1", buffer_bytes=0)
    with pytest.raises(ConfigError, match="not started"):
        _ = FaultProxy("127.0.0.1:1").address
