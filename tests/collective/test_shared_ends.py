"""How calls through shared memory end early: stopped, judged, cancelled, or with a member."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import numpy as np
import pytest

from aiops.collective.call import Call
from aiops.collective.shared import supported
from aiops.collective.shared.board import Board
from aiops.collective.shared.links import ShareLink
from aiops.collective.shared.pages import Segment, create_segment
from shared_members import (
    LARGE,
    Stopped,
    all_reduce,
    left_fold,
    members,
    numbers,
    turns,
)

pytestmark = pytest.mark.skipif(not supported(), reason="shared memory needs Linux")

BOTH_LOOPS = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@pytest.mark.parametrize("count", [10, LARGE])
async def test_who_has_not_voted_stops_at_once_and_keeps_its_input(count: int) -> None:
    """One member never comes. A large call has no vote of the others yet and ends; in a small one
    their coming was the vote, and they wait for the verdict."""
    async with members(3) as them:
        arrays = numbers(3, count)
        before = [array.copy() for array in arrays]
        tasks = [
            asyncio.ensure_future(group.perform(all_reduce(count), array))
            for group, array in zip(them.groups[:2], arrays, strict=False)
        ]
        await turns()
        assert them.groups[0].missing() == [2]
        for group in them.groups[:2]:
            group.stop(Stopped)
        await turns()
        small = count == 10
        assert [task.done() for task in tasks] == [not small] * 2
        assert [group.in_doubt for group in them.groups[:2]] == [small] * 2
        for group in them.groups[:2]:
            group.verdict(0, Stopped)
        for task in tasks:
            with pytest.raises(Stopped):
                await task
        assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True))
        with pytest.raises(Stopped):  # nor is there anything later
            await them.groups[0].perform(all_reduce(count), arrays[0])


@pytest.mark.parametrize("count", [10, LARGE])
async def test_the_verdict_can_be_that_it_is_in_effect(count: int) -> None:
    """Another member has seen all votes: those that were stopped before they saw them follow."""
    async with members(2) as them:
        arrays = numbers(2, count)
        expected = left_fold(arrays)
        first, second = them.groups
        task = asyncio.ensure_future(first.perform(all_reduce(count), arrays[0]))
        await turns()
        slow = asyncio.ensure_future(second.perform(all_reduce(count), arrays[1]))
        while not first.voted or not second.voted:
            await asyncio.sleep(0)
        first.stop(Stopped)
        await slow
        assert second.done == 1
        first.verdict(1, Stopped)
        await task
        assert first.done == 1
        assert {array.tobytes() for array in arrays} == {expected.tobytes()}


async def test_a_verdict_may_come_before_anybody_waits_for_it() -> None:
    async with members(2) as them:
        array = np.ones(10, np.float32)
        task = asyncio.ensure_future(them.groups[0].perform(all_reduce(10), array))
        await turns()
        them.groups[0].verdict(0, Stopped)
        with pytest.raises(Stopped):
            await task


@pytest.mark.parametrize("kind", ["broadcast", "all_gather", "all_reduce"])
async def test_who_cannot_map_a_result_has_not_voted(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the others would have the result, and it alone would not."""
    async with members(2) as them:
        first, second = them.groups
        await them.all(all_reduce(10), numbers(2, 10))
        arrays = [arena.empty(200_000) for arena in them.arenas]
        await turns()
        monkeypatch.setattr(first._links[1], "_segment", lambda *_: None)  # no files are left
        call = Call(kind, 200_000, ((200_000,),), op="sum" if kind == "all_reduce" else "", root=1)
        task = asyncio.ensure_future(second.perform(call, arrays[1]))
        with pytest.raises(OSError, match="too many open files"):
            await first.perform(call, arrays[0])
        assert (first.voted, first.done) == (1, 1)
        await turns()
        assert not task.done()
        second.verdict(1, Stopped)
        with pytest.raises(Stopped):
            await task
        assert all((array == 0).all() for array in arrays)


@pytest.mark.parametrize("count", [10, LARGE])
async def test_cancelling_leaves_the_array_as_it_was(count: int) -> None:
    async with members(2) as them:
        arrays = numbers(2, count)
        before = arrays[0].copy()
        task = asyncio.ensure_future(them.groups[0].perform(all_reduce(count), arrays[0]))
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert np.array_equal(arrays[0], before)
        assert them.groups[0].voted == (1 if count == 10 else 0)
        them.groups[0].stop(Stopped)
        them.groups[0].verdict(0, Stopped)  # nobody waits for it


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "broadcast"])
async def test_who_is_cancelled_keeps_its_array_until_nobody_reads_it(
    kind: Any, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other member is slow: what the first one does with its array then must not matter."""
    async with members(2) as them:
        first, second = them.groups
        arrays = [arena.empty(LARGE) for arena in them.arenas] if shared else numbers(2, LARGE)
        for array, values in zip(arrays, numbers(2, LARGE), strict=True):
            array[:] = values
        op = "" if kind == "broadcast" else "sum"
        call = Call(kind, LARGE, ((LARGE,),), op=op)
        expected = arrays[0].copy() if kind == "broadcast" else left_fold(arrays)
        go, work = asyncio.Event(), "_reduce" if op else "_copy"
        performed = getattr(second, work)

        async def slowly(*arguments: Any) -> None:
            await go.wait()
            await performed(*arguments)

        monkeypatch.setattr(second, work, slowly)
        slow = asyncio.ensure_future(second.perform(call, arrays[1]))
        task = asyncio.ensure_future(first.perform(call, arrays[0]))
        while not first.voted:
            await asyncio.sleep(0)
        for _ in range(3):
            task.cancel()
            await turns()
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        chunk = slice(0, LARGE // 2) if kind == "reduce_scatter" else slice(None)
        assert np.array_equal(arrays[0][chunk], expected[chunk])
        arrays[0][:] = 7
        await slow
        chunk = slice(LARGE // 2, None) if kind == "reduce_scatter" else slice(None)
        assert np.array_equal(arrays[1][chunk], expected[chunk])
        for array, values in zip(arrays, numbers(2, LARGE), strict=True):
            array[:] = values  # and the group goes on
        await them.all(all_reduce(LARGE), arrays)
        assert np.array_equal(arrays[0], left_fold(numbers(2, LARGE)))


async def test_who_is_cancelled_after_its_vote_hears_the_verdict() -> None:
    async with members(2) as them:
        arrays = numbers(2, LARGE)
        before = arrays[0].copy()
        first, second = them.groups
        go, reduce = asyncio.Event(), second._reduce
        second._reduce = lambda *given: go.wait()  # type: ignore[method-assign,assignment]
        slow = asyncio.ensure_future(second.perform(all_reduce(LARGE), arrays[1]))
        task = asyncio.ensure_future(first.perform(all_reduce(LARGE), arrays[0]))
        while not first.voted:
            await asyncio.sleep(0)
        task.cancel()
        await turns()
        for group in them.groups:
            group.stop(Stopped)
        task.cancel()
        await turns()
        assert not task.done()
        first.verdict(0, Stopped)
        with pytest.raises(Stopped):
            await task
        assert np.array_equal(arrays[0], before)
        go.set()
        second._reduce = reduce  # type: ignore[method-assign]
        with pytest.raises(Stopped):
            await slow


async def test_who_leaves_when_all_have_voted_has_the_result() -> None:
    """It has taken over before its vote what it needs: afterwards it could not any more."""
    async with members(2) as them:
        first, second = them.groups
        await them.all(all_reduce(10), numbers(2, 10))
        given, array = numbers(2, LARGE)[0], np.zeros(LARGE, np.float32)
        loop, link = asyncio.get_running_loop(), first._links[1]
        loop.remove_reader(link._socket.fileno())  # nothing is taken over by the way
        go, copy = asyncio.Event(), second._copy

        async def later(*arrays: Any) -> None:
            await go.wait()
            await copy(*arrays)

        second._copy = later  # type: ignore[method-assign,assignment]
        call = Call("broadcast", LARGE, ((LARGE,),), root=1)
        slow = asyncio.ensure_future(second.perform(call, given))
        task = asyncio.ensure_future(first.perform(call, array))
        while first.voted < 2:
            await asyncio.sleep(0)
        await turns()
        go.set()
        while second.done < 2:
            await asyncio.sleep(0)
        assert first.done == 1
        first.stop(Stopped)
        first.close()
        await task
        await slow
        assert array.tobytes() == given.tobytes()


@pytest.mark.parametrize("count", [10, LARGE])
@pytest.mark.parametrize("done", [0, 1])
@pytest.mark.parametrize("first", ["cancelled", "judged"])
async def test_who_is_cancelled_in_the_moment_of_the_verdict_hears_it(
    first: str, done: int, count: int
) -> None:
    async with members(2) as them:
        array = numbers(2, count)[0]
        group, other = them.groups
        task = asyncio.ensure_future(group.perform(all_reduce(count), array))
        slow = []
        if count == LARGE:  # the other one comes, and does not vote
            other._reduce = lambda *given: asyncio.Event().wait()  # type: ignore[method-assign,assignment]
            given = numbers(2, count)[1]
            slow.append(asyncio.ensure_future(other.perform(all_reduce(count), given)))
        while not group.voted:
            await asyncio.sleep(0)
        await turns()
        group.stop(Stopped)
        await turns()
        if first == "cancelled":
            task.cancel()
        group.verdict(done, Stopped)
        if first == "judged":
            task.cancel()
        await asyncio.wait((task,), timeout=5)
        assert task.done()
        for call in slow:
            call.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        assert (group.done, group.in_doubt) == (done, not done)


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("count", [10, LARGE])
async def test_who_is_stopped_while_it_tells_its_vote_hears_how_it_ends(
    count: int, complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes the others, which is how it may find that one of them is dead."""
    async with members(2) as them:
        arrays = numbers(2, count)
        expected = left_fold(arrays)
        first, second = them.groups
        tell = second._tell

        def tell_and_stop(word: int, number: int) -> None:
            tell(word, number)
            if second.voted:
                second.stop(Stopped)

        monkeypatch.setattr(second, "_tell", tell_and_stop)
        go, last = asyncio.Event(), second if complete else first
        reduce = last._reduce

        async def late(*given: Any) -> None:
            await go.wait()
            await reduce(*given)

        monkeypatch.setattr(last, "_reduce", late)
        if not complete and count == 10:
            monkeypatch.setattr(second, "_all", lambda *_: False)  # it has not seen the other yet
        tasks = [
            asyncio.ensure_future(group.perform(all_reduce(count), array))
            for group, array in zip(them.groups, arrays, strict=True)
        ]
        await turns()
        if complete:
            go.set()
            await turns()
        assert tasks[1].done() == complete
        assert second.in_doubt != complete
        go.set()
        await turns()
        for group in them.groups:
            group.verdict(1, Stopped)
        await asyncio.gather(*tasks)
        assert (first.done, second.done) == (1, 1)
        assert {array.tobytes() for array in arrays} == {expected.tobytes()}


@pytest.mark.parametrize("count", [10, LARGE])
async def test_who_waits_for_the_verdict_may_yet_see_that_the_call_is_complete(count: int) -> None:
    """The other one gives up, and finds when it looks for the last time that nothing is missing:
    who looks between the two sees that it has given up."""
    async with members(2) as them:
        arrays = numbers(2, count)
        expected = left_fold(arrays)
        first, second = them.groups
        task = asyncio.ensure_future(first.perform(all_reduce(count), arrays[0]))
        await turns()
        first._own.words[Board.ENDED] = 1
        slow = asyncio.ensure_future(second.perform(all_reduce(count), arrays[1]))
        while not (first.voted and second.voted):
            await asyncio.sleep(0)
        first.stop(Stopped)
        await task
        assert not slow.done()
        second.stop(Stopped)
        assert (first.done, second.done) == (1, 1)
        second.verdict(1, Stopped)
        await asyncio.wait_for(slow, 5.0)
        assert {array.tobytes() for array in arrays} == {expected.tobytes()}


@pytest.mark.parametrize("last", [10, LARGE])
async def test_who_is_cancelled_waits_with_the_next_call_until_all_have_come_to_the_first(
    last: int,
) -> None:
    """A board has room for two calls: one that is cancelled again and again would overtake."""
    async with members(2) as them:
        first, slow = them.groups
        one, two = numbers(2, 10), numbers(2, last)
        expected = left_fold(one), left_fold(two)
        cancelled = asyncio.ensure_future(first.perform(all_reduce(10), one[0]))
        await turns()
        cancelled.cancel()
        ahead = asyncio.ensure_future(first.perform(all_reduce(last), two[0]))
        await turns()
        assert (first.begun, first._own.words[Board.ARRIVED]) == (2, 1)
        await slow.perform(all_reduce(10), one[1])
        await asyncio.gather(ahead, slow.perform(all_reduce(last), two[1]))
        assert one[1].tobytes() == expected[0].tobytes()
        assert {array.tobytes() for array in two} == {expected[1].tobytes()}
        assert (first.done, slow.done) == (2, 2)


async def test_the_end_of_a_member_is_noticed_by_all_others() -> None:
    async with members(3) as them:
        await them.all(all_reduce(10), numbers(3, 10))
        them.groups[1].close()
        them.groups[1].close()
        while len(them.lost) < 2:
            await asyncio.sleep(0)
        assert sorted(them.lost) == [(0, 1), (2, 1)]


async def test_what_a_member_handed_over_before_its_death_is_there() -> None:
    """It dies with a wake-up of ours unread: the end is a reset, and comes before what it sent."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    dying, survivor = map(ShareLink, ends)
    fd, array = create_segment(10)
    array[0] = 7
    dying.made(Segment(-3, fd, array.size))
    survivor.wake()
    ends[0].close()
    errors: list[Exception | None] = []
    survivor.open(lambda: None, errors.append)
    while not errors:
        await asyncio.sleep(0)
    assert survivor.segments[-3][0] == 7
    assert "reset" in str(errors[0])
    survivor.close()
    os.close(fd)
