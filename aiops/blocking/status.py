"""The blocking twin of `aiops.fetch_status`."""

from __future__ import annotations

from typing import Any

import aiops.runtime.observer
from aiops.blocking.loop_thread import LoopThread
from aiops.van.base import Van

__all__ = ["fetch_status"]


def fetch_status(
    scheduler: str | None = None, *, timeout_s: float = 5.0, van: Van | None = None
) -> dict[str, Any]:
    """Return the status document of a running job; see `aiops.fetch_status`."""
    loop = LoopThread("the observer")
    try:
        return loop.call(
            aiops.runtime.observer.fetch_status, scheduler, timeout_s=timeout_s, van=van
        )
    finally:
        loop.stop()
