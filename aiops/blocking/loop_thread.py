"""An event loop in a thread of its own, and calls into it from any other thread.

What lives here: starting, stopping, waiting, and what Ctrl-C does to a wait. What is called is
not known here.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar

from aiops.errors import Closed, UsageError
from aiops.runtime.running import loop_factory, occupy_standard_streams

__all__ = ["LoopThread"]

LOOK_UP_S: Final = 0.25
"""How often a wait looks up. A signal that comes in the instant in which a thread begins to wait
for a lock does not wake it (and on Windows none does); it is seen at the next look."""

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """A running event loop (uvloop where it exists) for code that does not have one.

    Parameters
    ----------
    owner
        What the loop is for, as in "this worker"; names the thread's purpose in messages.

    Notes
    -----
    The thread is a daemon: a program that forgets to stop it ends all the same.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._process = os.getpid()
        self._lock = threading.Lock()  # held while something is handed to the loop, or it is ended
        self._stopped = False
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=self._run, name="aiops loop", daemon=True)
        self._thread.start()
        self._loop, self._stop = self._started.result()

    def _run(self) -> None:
        try:
            occupy_standard_streams()
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._live())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _live(self) -> None:
        stop = asyncio.Event()
        self._started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that started the thread, not a fork of it."""
        return os.getpid() == self._process

    def call(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an async function on the loop and wait for its result.

        Raises
        ------
        Closed
            The loop has been stopped, before or meanwhile.
        UsageError
            Called from the loop's own thread, or from a fork of the process.

        Notes
        -----
        An exception that interrupts the wait (Ctrl-C) cancels the call and is raised when the
        call has ended: whatever memory it had borrowed is the caller's again. A second one is
        raised at once.
        """
        self._check_caller()
        one = _Call(partial(function, *args, **kwargs), self._owner)
        try:
            self._submit(one.begin, one.outcome)
            return _result(one.outcome)
        except BaseException:
            self._end(one.outcome, one.cancel)
            raise
        finally:
            del one  # an exception and the frame that holds it would keep each other alive

    def do(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function on the loop and wait for its result; errors as for `call`."""
        self._check_caller()
        outcome: Future[T] = Future()
        self._submit(partial(_settle, outcome, partial(function, *args, **kwargs)), outcome)
        try:
            return _result(outcome)
        finally:
            del outcome

    def start(
        self, function: Callable[P, asyncio.Future[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Run a function that begins something on the loop; return its future for any thread.

        Cancelling that future cancels what was begun. So does an exception that interrupts this:
        as with `call`, it is raised when what was begun has ended.
        """
        self._check_caller()
        outcome: Future[T] = Future()
        begun: list[asyncio.Future[T]] = []

        def begin() -> None:
            one = function(*args, **kwargs)
            one.add_done_callback(partial(_hand_over, outcome, self._owner))
            begun.append(one)

        def cancel() -> None:
            for one in begun:
                one.cancel()
            if not begun:  # the function has raised
                outcome.cancel()

        def forward(ended: Future[T]) -> None:
            if ended.cancelled():
                self._post(cancel)

        outcome.add_done_callback(forward)
        try:
            self.do(begin)
        except BaseException:
            self._end(outcome, cancel)
            raise
        return outcome

    def stop(self) -> None:
        """Cancel what still runs, end the loop, and join the thread. Idempotent."""
        if not self.is_ours:
            return
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._loop.call_soon_threadsafe(self._stop.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _check_caller(self) -> None:
        if not self.is_ours:
            raise UsageError(
                f"{self._owner} belongs to the process that made it, and this is a fork of it: "
                "connect again here"
            )
        if threading.current_thread() is self._thread:
            raise UsageError(f"{self._owner} was called from its own event loop: it would wait")

    def _submit(self, callback: Callable[[], None], outcome: Future[T]) -> None:
        def run() -> None:
            try:
                callback()
            except BaseException as error:
                outcome.set_exception(error)

        if not self._post(run):
            raise Closed(f"{self._owner} has been closed")

    def _end(self, outcome: Future[T], cancel: Callable[[], object]) -> None:
        """Cancel what nobody will wait for, and wait for its end."""
        if not outcome.done() and self._post(cancel):
            while not outcome.done():
                wait([outcome], timeout=LOOK_UP_S)

    def _post(self, callback: Callable[[], object]) -> bool:
        """Run something on the loop soon; return whether there still is a loop to run it."""
        with self._lock:
            if not self._stopped:
                self._loop.call_soon_threadsafe(callback)
            return not self._stopped


class _Call(Generic[T]):
    """One call of an async function: the task on the loop, and the outcome for who waits."""

    def __init__(self, function: Callable[[], Coroutine[Any, Any, T]], owner: str) -> None:
        self.outcome: Future[T] = Future()
        self._function = function
        self._owner = owner
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        if not self.outcome.done():
            self._task = asyncio.get_running_loop().create_task(self._function())
            self._task.add_done_callback(partial(_hand_over, self.outcome, self._owner))

    def cancel(self) -> None:
        """Cancel the task, or see to it that there never is one."""
        if self._task is not None:
            self._task.cancel()
        else:
            self.outcome.cancel()


def _result(outcome: Future[T]) -> T:
    """Wait as `outcome.result()` does, but see a Ctrl-C whenever it comes."""
    while not outcome.done():
        with suppress(TimeoutError):  # ours, or the call's own, which the last line raises
            return outcome.result(LOOK_UP_S)
    return outcome.result()


def _settle(outcome: Future[T], function: Callable[[], T]) -> None:
    outcome.set_result(function())


def _hand_over(outcome: Future[T], owner: str, ended: asyncio.Future[T]) -> None:
    """Pass the result of something on the loop to whoever waits in another thread."""
    if not outcome.set_running_or_notify_cancel():
        if not ended.cancelled():
            ended.exception()  # nobody will ask; keep the loop from complaining
        return
    if ended.cancelled():
        outcome.set_exception(Closed(f"{owner} has been closed"))
    elif (error := ended.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(ended.result())
