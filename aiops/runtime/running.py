"""`aiops.run`: `asyncio.run` on uvloop where it exists."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["loop_factory", "occupy_standard_streams", "run"]

T = TypeVar("T")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the fastest event loop there is on this platform."""
    try:
        import uvloop
    except ImportError:  # Windows, or left out on purpose
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def occupy_standard_streams() -> None:
    """Put the null device where stdin, stdout or stderr are closed (`program >&-`, some daemons).

    A socket would get their numbers otherwise: what libraries print would travel to a peer, and
    libuv aborts the process when it closes such a one.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:  # as Python leaves it when it starts without the stream
            # It stays open as long as the process, so there is no `with`.
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def run(main: Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Run a coroutine to its end on a fresh event loop, uvloop where it exists.

    Parameters
    ----------
    main
        For example `main()`.
    debug
        asyncio's debug mode.
    """
    occupy_standard_streams()
    with asyncio.Runner(loop_factory=loop_factory(), debug=debug) as runner:
        return runner.run(main)
