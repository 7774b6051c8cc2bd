"""The loop in a thread: results, errors and interruptions come out as if there were no thread."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType

import pytest

from aiops.blocking.loop_thread import LoopThread
from aiops.errors import Closed, UsageError


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread("the test's loop")
    yield loop
    loop.stop()


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def echo(value: object, *, named: object = None) -> tuple[object, object]:
    return value, named


def interrupt_the_main_thread() -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


def test_the_result_comes_back(loop: LoopThread) -> None:
    assert loop.call(echo, 1, named=2) == (1, 2)
    assert loop.do(divmod, 7, 2) == (3, 1)


def test_an_error_is_the_same_object(loop: LoopThread) -> None:
    error = UsageError("as it was raised")

    async def fail() -> None:
        raise error

    def fail_now() -> None:
        raise error

    with pytest.raises(UsageError) as caught:
        loop.call(fail)
    assert caught.value is error
    with pytest.raises(UsageError) as caught:
        loop.do(fail_now)
    assert caught.value is error


def test_a_wrong_call_is_an_error_and_no_hang(loop: LoopThread) -> None:
    with pytest.raises(TypeError):
        loop.call(echo)  # type: ignore[call-arg]


def test_many_threads_may_call_at_once(loop: LoopThread) -> None:
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda number: loop.do(int, number), range(64)))
    assert results == list(range(64))


def test_ctrl_c_cancels_the_call_and_waits_for_its_end(loop: LoopThread) -> None:
    """What the call had borrowed is the caller's again only when the call is over."""
    story = []

    async def wait_for_ever() -> None:
        interrupt_the_main_thread()
        try:
            await never()
        finally:
            await asyncio.sleep(0)
            story.append("the call has ended")

    with pytest.raises(KeyboardInterrupt):
        loop.call(wait_for_ever)
    assert story == ["the call has ended"]
    assert loop.call(echo, "still alive") == ("still alive", None)


def test_a_second_ctrl_c_does_not_wait(loop: LoopThread) -> None:
    release = threading.Event()

    async def stubborn() -> None:
        interrupt_the_main_thread()
        try:
            await never()
        finally:
            interrupt_the_main_thread()
            await asyncio.to_thread(release.wait)

    with pytest.raises(KeyboardInterrupt):
        loop.call(stubborn)
    release.set()


def test_stopping_ends_what_waits_and_joins_the_thread() -> None:
    loop = LoopThread("this worker")
    begun = threading.Event()

    async def wait_for_ever() -> None:
        begun.set()
        await never()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(loop.call, wait_for_ever)
        begun.wait()
        loop.stop()
        with pytest.raises(Closed, match="this worker has been closed"):
            waiting.result()
    loop.stop()
    assert "aiops loop" not in {thread.name for thread in threading.enumerate()}


def test_after_the_end_every_call_is_refused() -> None:
    loop = LoopThread("this worker")
    loop.stop()
    with pytest.raises(Closed, match="this worker has been closed"):
        loop.call(never)
    with pytest.raises(Closed, match="this worker has been closed"):
        loop.do(int)


def test_the_loop_does_not_wait_for_itself(loop: LoopThread) -> None:
    async def inside() -> None:
        loop.call(never)

    with pytest.raises(UsageError, match="its own event loop"):
        loop.call(inside)


def test_a_fork_is_told_to_connect_again(loop: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is not there after a fork; without this the call would hang."""
    elsewhere = os.getpid() + 1
    monkeypatch.setattr("aiops.blocking.loop_thread.os.getpid", lambda: elsewhere)
    with pytest.raises(UsageError, match="a fork"):
        loop.call(never)
    monkeypatch.undo()


def test_what_is_started_can_be_awaited_or_cancelled(loop: LoopThread) -> None:
    cancelled: Future[str] = Future()

    def begin(seconds: float) -> asyncio.Future[str]:
        async def work() -> str:
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                cancelled.set_result("cancelled")
                raise
            return "done"

        return asyncio.get_running_loop().create_task(work())

    assert loop.start(begin, 0.0).result() == "done"
    assert loop.start(begin, 3600.0).cancel()
    assert cancelled.result() == "cancelled"


def test_the_error_of_what_was_started_waits_for_who_asks(loop: LoopThread) -> None:
    def begin() -> asyncio.Future[None]:
        async def fail() -> None:
            raise UsageError("later")

        return asyncio.get_running_loop().create_task(fail())

    with pytest.raises(UsageError, match="later"):
        loop.start(begin).result()


def test_ctrl_c_while_something_begins_cancels_it(loop: LoopThread) -> None:
    """Nobody would have its handle, and it would go on to use the caller's arrays."""
    story = []

    async def work() -> None:
        try:
            await never()
        finally:
            await asyncio.sleep(0)
            story.append("it has ended")

    def begin() -> asyncio.Future[None]:
        task = asyncio.get_running_loop().create_task(work())
        interrupt_the_main_thread()
        seen.wait()
        return task

    seen = threading.Event()
    handler = signal.getsignal(signal.SIGINT)

    def interrupted(number: int, frame: FrameType | None) -> None:
        seen.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.start(begin)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert loop.call(echo, "still alive") == ("still alive", None)
    assert story == ["it has ended"]


def test_what_is_started_while_the_loop_ends_has_an_end_too() -> None:
    loop = LoopThread("this worker")

    def begin() -> asyncio.Future[None]:
        loop.stop()
        return asyncio.get_running_loop().create_task(never())

    with pytest.raises(Closed, match="this worker has been closed"):
        loop.start(begin).result(timeout=10)
    loop.stop()


def test_what_cannot_begin_raises(loop: LoopThread) -> None:
    def begin() -> asyncio.Future[None]:
        raise UsageError("not so")

    with pytest.raises(UsageError, match="not so"):
        loop.start(begin)
