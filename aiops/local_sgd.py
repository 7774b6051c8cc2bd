"""LocalSGD: workers train on copies of their own and exchange what has changed every H steps.

What lives here: the local values, when which part of them is sent, and how what comes back is
taken in. What does not: the outer optimizer (a table's, on the servers), the rounds (the table's
rule), and the model.

The values are cut into fragments, each a table of its own. A clock of the worker is `every /
fragments` local steps; at its end one fragment, in turn, is sent: the values that it had when
they last came from the servers, minus those that it has now. To the servers that is a gradient.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from aiops.checks import check_array
from aiops.compression import Codec
from aiops.consistency import BSP, Consistency, Quorum
from aiops.errors import ConfigError, UsageError
from aiops.optim import Momentum, Optimizer
from aiops.optim.clipping import refuse_row_limit
from aiops.optim.settings import number, whole
from aiops.shards.shard import Shard
from aiops.wording import shown
from aiops_protocol.key_range import split
from aiops_protocol.payload import Float32Array

__all__ = ["DILOCO", "LocalSGD"]

DILOCO: Final = Momentum(lr=0.7, momentum=0.9, nesterov=True)
"""The outer optimizer that its authors found best."""

EVERY_MAX: Final = 2**31 - 1
FRAGMENTS_MAX: Final = 64


class _Table(Protocol):
    """What is used of a table."""

    async def pull(self, *, out: Float32Array) -> Float32Array: ...

    async def push(self, gradient: Float32Array, /) -> object: ...

    def prefetch(self) -> None: ...


class _Worker(Protocol):
    """What is used of a worker: `aiops.Worker` has it, and so have stand-ins."""

    @property
    def planned(self) -> int: ...

    async def table(
        self,
        name: str,
        *,
        shape: tuple[int, ...],
        init: Float32Array,
        optimizer: Optimizer,
        consistency: Any,
        compression: Codec | str | None,
        pull_compression: Codec | str | None,
    ) -> Any: ...

    def steps(self, n: int, /) -> AsyncIterator[int]: ...

    def span(self, name: str, step: int) -> AbstractContextManager[object]: ...


@dataclass(slots=True)
class _Fragment:
    """A part of the values: its table, and what last came from there."""

    table: _Table
    where: slice
    start: Float32Array
    under_way: bool = False  # sent, and what came of it not yet taken in


class LocalSGD:
    """Local steps between the rounds of the servers; made by `LocalSGD.open`.

    Attributes
    ----------
    values : ndarray of float32, the shape of `init`
        This worker's parameters. Train them in place, by `apply` or by any means of your own.
    every, fragments, delay, mixing
        As given to `open`.
    period
        Local steps in a clock of the worker: `every / fragments`.
    """

    def __init__(
        self,
        worker: _Worker,
        shape: tuple[int, ...],
        parts: list[_Fragment],
        inner: Optimizer | None,
        *,
        every: int,
        delay: int,
        mixing: float,
    ) -> None:
        self._worker = worker
        self._parts = parts
        self._flat = np.concatenate([part.start for part in parts])
        self._work = np.empty(max(part.start.size for part in parts), np.float32)
        self._inner = None if inner is None else Shard(0, self._flat.size, inner, self._flat)
        self._step = self._planned = 0
        self._fresh = True  # nothing has come from the servers yet
        self.values = self._flat.reshape(shape)
        self.every = every
        self.fragments = len(parts)
        self.period = every // len(parts)
        self.delay = delay
        self.mixing = mixing

    def __repr__(self) -> str:
        return (
            f"<LocalSGD shape={self.values.shape} every={self.every} fragments={self.fragments} "
            f"step={self._step}>"
        )

    @staticmethod
    async def open(
        worker: _Worker,
        name: str,
        init: Float32Array,
        *,
        every: int,
        outer: Optimizer = DILOCO,
        inner: Optimizer | None = None,
        fragments: int = 1,
        delay: int = 0,
        mixing: float | None = None,
        consistency: Consistency | None = None,
        compression: Codec | str | None = None,
        pull_compression: Codec | str | None = None,
    ) -> LocalSGD:
        """Create the tables, or join them, and return the local values.

        All workers call it with equal settings, before their first step.

        Parameters
        ----------
        worker
            A connected worker.
        name
            Of the table; with several fragments of the tables `name.0`, `name.1` and so on.
        init : ndarray of float32
            The values to start from; those of the worker that creates the table count.
        every
            Local steps between two exchanges of the same value.
        outer
            What the servers do with the changes. The default is DiLoCo's. With `SGD(lr=1.0)` the
            values become their mean over the workers (FedAvg).
        inner
            What `apply` does with a gradient; its state stays here.
        fragments
            Into how many parts the values are cut; must divide `every`. An `every / fragments`-th
            step sends one of them, so that the link is used evenly.
        delay
            Local steps until what the servers made of a fragment is taken in; meanwhile the
            training goes on. Below `every / fragments`.
        mixing
            Share of the local values that is kept when they are; 0 without a delay, and 0.5 with
            one, unless it is given. In [0, 1).
        consistency
            `BSP()` if not given. With `Quorum(3)` three workers are enough for a round, and one
            that hangs holds up nobody; only without fragments. With `ASP()` nobody waits, and
            each change counts in full (GEO-SGD, with `outer=SGD(lr=1.0)`).
        compression, pull_compression
            How changes travel, and how values come back; as for `worker.table`.

        Raises
        ------
        ConfigError
            A bad setting.
        TableMismatch
            The table exists with other settings.

        References
        ----------
        .. [1] A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language
           Models", arXiv:2311.08105.
        .. [2] A. Douillard et al., "Streaming DiLoCo with overlapping communication",
           arXiv:2501.18512: fragments, delay and mixing.
        .. [3] B. McMahan et al., "Communication-Efficient Learning of Deep Networks from
           Decentralized Data", AISTATS 2017: FedAvg.
        """
        if not callable(getattr(worker, "table", None)):
            raise ConfigError(f"LocalSGD: worker is {shown(worker)}; pass a connected worker")
        flat = _flat_values(init, name)
        every = whole("LocalSGD", "every", every, at_least=1, at_most=EVERY_MAX)
        fragments = whole("LocalSGD", "fragments", fragments, at_least=1, at_most=FRAGMENTS_MAX)
        if every % fragments or fragments > max(1, flat.size):
            raise ConfigError(
                f"LocalSGD: every is {every} and fragments {fragments}, of {flat.size} values; "
                "fragments must divide every, and none may be empty"
            )
        delay = whole("LocalSGD", "delay", delay, at_most=every // fragments - 1)
        if fragments > 1 and isinstance(consistency, Quorum):
            raise ConfigError(
                "LocalSGD: a Quorum counts contributions, and a fragment that is not due in a "
                "clock gets none, so that all would be waited for; use fragments=1"
            )
        kept = (0.5 if delay else 0.0) if mixing is None else mixing
        kept = number("LocalSGD", "mixing", kept, at_least=0.0, below=1.0)
        if inner is not None and not isinstance(inner, Optimizer):
            raise ConfigError(
                f"LocalSGD: inner is {shown(inner)}; pass one such as AdamW(lr=0.001)"
            )
        if inner is not None:
            refuse_row_limit(inner, "LocalSGD: inner")
        parts = []
        for number_, piece in enumerate(split(flat.size, fragments, alignment=1)):
            where = slice(piece.begin, piece.end)
            table = await worker.table(
                name if fragments == 1 else f"{name}.{number_}",
                shape=(piece.size,),
                init=flat[where],
                optimizer=outer,
                consistency=BSP() if consistency is None else consistency,
                compression=compression,
                pull_compression=pull_compression,
            )
            parts.append(_Fragment(table, where, flat[where].copy()))
        return LocalSGD(worker, init.shape, parts, inner, every=every, delay=delay, mixing=kept)

    # --- training ---

    async def steps(self, n: int) -> AsyncIterator[int]:
        """Iterate over `n` local steps; yields absolute step numbers.

        Between two steps it exchanges what is due. The first step begins with the values of the
        servers, and so does the first one of a worker that was restarted: it goes on at its
        clock, without the state of its inner optimizer. The last clock is shorter if `n` is no
        multiple of `period`, and sends every fragment. All workers end at the same clock after
        `worker.stop`; of the fragments that are not due then, what has not been sent is lost.
        `break` leaves what has changed since the last exchange unsent.

        Raises
        ------
        UsageError
            The local values are not finite any more, or as for `worker.steps`.
        """
        n = whole("LocalSGD", "steps: n", n)
        first_step, first_clock = self._planned, self._worker.planned
        self._planned += n
        async for clock in self._worker.steps(-(-n // self.period)):
            done = (clock - first_clock) * self.period
            with self._worker.span("pull", clock):
                await self._begin()
            for number_ in range(min(self.period, n - done)):
                if number_ and number_ == self.delay:
                    await self._take_in()
                self._step = first_step + done + number_
                yield self._step
            await self._take_in()  # where the clock was too short for its delay
            last = done + self.period >= n
            with self._worker.span("push", clock):
                await self._send(self._parts if last else [self._parts[clock % self.fragments]])

    def apply(self, gradient: Float32Array) -> None:
        """Step the values by the inner optimizer. Its clock is the local step.

        Raises
        ------
        UsageError
            No inner optimizer was given; wrong shape or dtype, NaN or infinity.
        """
        if self._inner is None:
            raise UsageError("apply: no inner optimizer; open with inner=AdamW(lr=0.001)")
        flat = check_array(gradient, self.values.shape, "apply", allow_nonfinite=False)
        with np.errstate(all="ignore"):
            self._inner.apply(slice(0, flat.size), flat.copy(), self._step)

    async def pull(self) -> Float32Array:
        """Replace the local values by those of the servers, and return them.

        After the loop that is the result: with rounds, the same for all workers.
        """
        for part in self._parts:
            await self._fetch(part, 0.0)
        self._fresh = False
        return self.values

    # --- exchanging ---

    async def _begin(self) -> None:
        """Take in what came of the last clock; with a delay only begin to fetch it."""
        if self._fresh:
            await self.pull()
        elif not self.delay:
            await self._take_in()
        else:
            for part in self._parts:
                if part.under_way:
                    part.table.prefetch()
            await asyncio.sleep(0)

    async def _take_in(self) -> None:
        for part in self._parts:
            if part.under_way:
                await self._fetch(part, self.mixing)

    async def _fetch(self, part: _Fragment, kept: float) -> None:
        await part.table.pull(out=part.start)
        part.under_way = False
        local = self._flat[part.where]
        if kept:
            work = self._work[: local.size]
            np.multiply(local, np.float32(kept), out=local)
            np.multiply(part.start, np.float32(1.0 - kept), out=work)
            np.add(local, work, out=local)
        else:
            np.copyto(local, part.start)

    async def _send(self, parts: list[_Fragment]) -> None:
        for part in parts:
            work = self._work[: part.start.size]
            with np.errstate(all="ignore"):  # the push says where it is not finite
                np.subtract(part.start, self._flat[part.where], out=work)
            await part.table.push(work)
            part.under_way = True


def _flat_values(init: object, name: str) -> Float32Array:
    if not isinstance(init, np.ndarray):
        raise ConfigError(f"LocalSGD {name}: init is {shown(init)}; pass an array of float32")
    try:
        return check_array(init, init.shape, f"LocalSGD {name}: init", allow_nonfinite=False)
    except UsageError as error:
        raise ConfigError(str(error)) from None
