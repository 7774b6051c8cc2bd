"""`aiops.run`: `asyncio.run` on uvloop where it exists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["loop_factory", "run"]

T = TypeVar("T")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the fastest event loop there is on this platform."""
    try:
        import uvloop
    except ImportError:  # Windows, or left out on purpose
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Run a coroutine to its end on a fresh event loop, uvloop where it exists.

    Parameters
    ----------
    main
        For example `main()`.
    debug
        asyncio's debug mode.
    """
    with asyncio.Runner(loop_factory=loop_factory(), debug=debug) as runner:
        return runner.run(main)
