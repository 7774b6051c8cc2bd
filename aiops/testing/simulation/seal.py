"""No clock and no entropy but the simulation's own, while a run is under way."""

from __future__ import annotations

import gc
import os
import random
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from aiops.testing.simulation.loop import SimLoop

__all__ = ["sealed"]


def _refuse(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("entropy from outside of the simulation: the run could not be repeated")


@contextmanager
def sealed(loop: SimLoop) -> Iterator[None]:
    """Let every clock show virtual time and every source of chance be the run's own.

    Code that has bound a function early (`from time import monotonic`) escapes this; the
    project does not do so, and a test keeps it that way.
    """

    def seconds() -> float:
        return loop.time()

    def nanoseconds() -> int:
        return int(loop.time() * 1e9)

    def token_bytes(size: int | None = None) -> bytes:
        return loop.rng.randbytes(32 if size is None else size)

    def token_hex(size: int | None = None) -> str:
        return token_bytes(size).hex()

    swaps: list[tuple[Any, str, Callable[..., Any]]] = [
        *[(time, name, seconds) for name in ("time", "monotonic", "perf_counter")],
        *[(time, f"{name}_ns", nanoseconds) for name in ("time", "monotonic", "perf_counter")],
        (secrets, "token_bytes", token_bytes),
        (secrets, "token_hex", token_hex),
        (random, "uniform", loop.rng.uniform),
        (random, "random", loop.rng.random),
        *[(random, name, _refuse) for name in ("randint", "choice", "shuffle", "getrandbits")],
        (os, "urandom", _refuse),
        (os, "getpid", lambda: 1),  # travels when a node registers
        (uuid, "uuid4", _refuse),
    ]
    collecting = gc.isenabled()
    with ExitStack() as stack:
        for module, name, function in swaps:
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, function)
        gc.disable()  # finalizers would run at moments that depend on allocation
        if collecting:
            stack.callback(gc.enable)
        yield
