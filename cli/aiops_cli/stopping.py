"""SIGINT, SIGTERM and SIGHUP: the first one asks, the second one ends, and time runs out too.

Plain `signal.signal` and a thread, not the loop's own handlers: they work in every state, also
while the loop is busy, shutting down, or stuck in a name look-up.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

HANDLED = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class StopRequest:
    """What a command waits on to learn that it should end."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._arrived = asyncio.Event()

    @property
    def signal_name(self) -> str:
        """Name of the signal, for messages; only once it has arrived."""
        assert self.signum is not None
        return signal.Signals(self.signum).name

    async def wait(self) -> None:
        """Return when a signal has arrived, at once if it already has."""
        await self._arrived.wait()

    def arrive(self, signum: int) -> None:
        """Note the signal; called in the loop."""
        self.signum = signum
        self._arrived.set()


@contextmanager
def stop_signals(
    within_s: float, before_exit: Callable[[], None] = lambda: None
) -> Iterator[StopRequest]:
    """Turn signals into a `StopRequest` for the running loop.

    Parameters
    ----------
    within_s
        Seconds after the first signal when the process ends, whatever state it is in.
    before_exit
        Called before such a hard end, or that by a second signal, in any thread.
    """
    loop = asyncio.get_running_loop()
    request = StopRequest()

    def end(signum: int) -> None:
        try:
            before_exit()
        finally:
            os._exit(128 + signum)

    def handle(signum: int, _frame: FrameType | None) -> None:
        if request.signum is not None:
            end(signum)
        request.signum = signum
        watchdog = threading.Timer(within_s, end, (signum,))
        watchdog.daemon = True
        watchdog.start()
        if not loop.is_closed():
            loop.call_soon_threadsafe(request.arrive, signum)

    # What the parent chose to ignore (nohup, a shell's background job) stays ignored.
    handled = [number for number in HANDLED if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, handle)
    yield request
    # Not undone: until the process is gone, a second signal or the watchdog must still end it.
