"""SimLoop: an asyncio event loop on virtual time, the same run for the same seed.

Time moves in one place only: when nothing is ready, to the next timer. There are no sockets,
threads or signals; a callback that would need one fails loudly.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import random
import warnings
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, NoReturn

from aiops.testing.simulation.process import CURRENT

__all__ = ["Deadlock", "Livelock", "SimLoop"]

TURNS_MAX: Final = 3_000_000
"""Turns of the loop after which a run counts as a livelock; a long scenario takes 100,000."""


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is set: the real program would hang for ever."""


class Livelock(RuntimeError):
    """Too many turns of the loop: something spins without getting on."""


class _Clock:
    """Stands where a selector stands; waiting is what moves virtual time."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock(f"at {self._loop.time():.3f} s nothing is ready and no timer is set")
        if timeout > 0:
            # Exactly to the timer: adding up timeouts would drift.
            self._loop.jump()
        return []

    def close(self) -> None:
        """Nothing to release."""


class SimLoop(asyncio.BaseEventLoop):
    """One simulated run.

    Parameters
    ----------
    seed
        Of everything random in the run: `rng` is the only source.
    turns_max
        Bound against spinning.

    Attributes
    ----------
    seed
        That of the run.
    rng
        The run's source of chance.
    strays
        Contexts of exceptions that nobody handled; a run that leaves some has failed.
    """

    def __init__(self, seed: int, *, turns_max: int = TURNS_MAX) -> None:
        super().__init__()
        self.seed = seed
        self.rng = random.Random(seed)
        self.turns = 0
        self.strays: list[dict[str, Any]] = []
        # Tasks of killed processes stay referenced: collecting them would run their `finally`.
        self.killed: list[asyncio.Task[Any]] = []
        self._now = 0.0
        self._turns_max = turns_max
        self._digest = hashlib.blake2b(digest_size=16)
        self._selector = _Clock(self)
        self._clock_resolution = 1e-7  # BaseEventLoop reads it for timers
        self.set_exception_handler(lambda _, context: self.strays.append(context))
        self.set_task_factory(_make_task)

    def time(self) -> float:
        """Return virtual seconds since the start of the run."""
        return self._now

    def jump(self) -> None:
        """Move time to the next timer."""
        self._now = self._scheduled[0]._when  # type: ignore[attr-defined]  # asyncio's own

    def note(self, *fact: object, data: bytes = b"") -> None:
        """Add a fact to the run's digest; equal digests mean equal runs."""
        self._digest.update(repr((round(self._now, 9), *fact)).encode())
        self._digest.update(data)

    @property
    def digest(self) -> str:
        """The run so far, as 32 hex digits."""
        return self._digest.copy().hexdigest()

    def bury(self) -> None:
        """Close the loop, and let go of every task that is left in it.

        What `finally` blocks do now happens after the end of the run and means nothing.
        """
        left = [*self.killed, *asyncio.all_tasks(self)]
        self.close()
        self.killed.clear()
        # Without a loop that runs, what a `finally` gathers would become tasks of the default one,
        # which never runs: it is refused by this one, which is closed.
        asyncio._set_running_loop(self)
        with warnings.catch_warnings():
            # A `finally` that begins to close something leaves it half done: so it is with kills.
            warnings.simplefilter("ignore")
            while left:
                task = left.pop()
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be
                with suppress(BaseException):
                    task.get_coro().close()
                del task
            asyncio._set_running_loop(None)
            gc.collect()

    def run_in_executor(  # type: ignore[override]  # it never returns a future
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> NoReturn:
        """Refuse: a thread would make the run depend on real time."""
        raise RuntimeError("no threads in a simulation")

    # --- what BaseEventLoop asks of a concrete loop ---

    def _run_once(self) -> None:
        self.turns += 1
        if self.turns > self._turns_max:
            raise Livelock(f"{self._turns_max} turns by {self._now:.3f} s of virtual time")
        super()._run_once()  # type: ignore[misc]  # asyncio's own

    def _process_events(self, events: object) -> None:
        """No events come from outside."""

    def _write_to_self(self) -> None:
        """Nobody else's thread could wake this loop."""


def _make_task(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    *,
    context: Context | None = None,
    **options: Any,
) -> asyncio.Task[Any]:
    """Create a task and note to which simulated process it belongs."""
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context, **options)
    process = CURRENT.get() if context is None else context.get(CURRENT)
    if process is not None:
        process.adopt(task)
    return task
