"""LocalCopy: the versioned copy of a table that a worker keeps between its calls.

Refreshed by every whole pull, by a background puller with a period, or by a subscription.
With a local optimizer it is stepped here and only the difference is pushed: pull, update,
push, the cycle that local SGD builds on.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aiops.checks import check_array, is_number
from aiops.errors import ConfigError, UsageError
from aiops.optim import SGD, Optimizer
from aiops.optim.clipping import refuse_row_limit
from aiops.wording import shown
from aiops_protocol.payload import Float32Array

if TYPE_CHECKING:
    from aiops.tables.table import PushResult, Table

__all__ = ["LocalCopy"]

PERIOD_S_MIN = 0.002
"""Shorter periods are below the grain of event loop timers and would spin."""


KEPT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Tables up to this size are copied by every whole pull, which costs 5 % of it. From here on the
copy no longer fits a cache and costs up to 20 %, so it is made only for those who use it."""


class LocalCopy:
    """A worker's copy of one table; `table.local`.

    Every whole pull refreshes it. Of a table above 4 MiB it is kept from the first use of
    `table.local` on: touch that before the pull.

    Attributes
    ----------
    version
        Version of the values; 0 before the first refresh.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._values: Float32Array | None = None
        self._lent = False  # somebody has a view of `_values`
        self._applied = 0  # steps that are in no delta yet
        self._pulled: Float32Array | None = None  # as it came, when `apply` has changed a copy
        self._refreshed_at = 0.0
        self._optimizer: Optimizer = SGD(lr=0.01)
        self._state: dict[str, Float32Array] = {}
        self._steps = 0
        self._refreshes = 0
        self._kept = 4 * table.core.layout.size <= KEPT_BYTES_MAX
        self._puller: asyncio.Task[None] | None = None
        self.version = 0

    def __repr__(self) -> str:
        return f"<LocalCopy of {self._table.name} version={self.version}>"

    @property
    def values(self) -> Float32Array:
        """The values, shape of the table; read-only, replaced (not changed) by a refresh.

        Raises
        ------
        UsageError
            Nothing has been pulled yet.
        AiopsError
            What has ended the background puller.
        """
        values = self._need().view()
        self._lent = True
        values.flags.writeable = False
        return values

    @property
    def age_s(self) -> float:
        """Seconds since the last refresh."""
        self.check()
        if not self._refreshes:
            raise self._missing()
        return time.monotonic() - self._refreshed_at

    def _need(self) -> Float32Array:
        self.check()
        if self._values is None:
            raise self._missing()
        return self._values

    def _missing(self) -> UsageError:
        name = self._table.name
        if self._refreshes:
            return UsageError(
                f"table {name} is large, so its local copy is kept from the first use of "
                "table.local on, and the last pull was before that: pull again"
            )
        return UsageError(f"table {name} has no local copy yet: pull it, or start pull_every")

    def keep(self) -> None:
        """Keep a copy from now on, however large; called by `table.local`."""
        self._kept = True

    def refresh(self, values: Float32Array, version: int) -> None:
        """Take newer values over; what `apply` has changed and not pushed is dropped.

        A copy is kept, because the array itself is the caller's. Its memory is used again while
        nobody has seen it: fresh memory would cost more than the copying.
        """
        if not self._kept:
            pass
        elif self._values is None or self._lent:
            self._values = values.copy()
            self._lent = False
        else:
            np.copyto(self._values, values)
        self._pulled, self._applied = None, 0
        self._refreshes += 1
        self.version = version
        self._refreshed_at = time.monotonic()

    # --- background puller ---

    def pull_every(self, period_s: float) -> None:
        """Refresh in the background, `period_s` after the last refresh has ended.

        An error ends the puller and is raised where the copy is used next. Calling again changes
        the period.

        Raises
        ------
        ConfigError
            A period below 2 ms.
        """
        if not is_number(period_s) or not period_s >= PERIOD_S_MIN:
            raise ConfigError(
                f"pull_every: period_s is {shown(period_s)}; at least {PERIOD_S_MIN} s"
            )
        self.stop()
        self._puller = asyncio.get_running_loop().create_task(self._pull_for_ever(period_s))
        self._puller.add_done_callback(_retrieve)

    async def _pull_for_ever(self, period_s: float) -> None:
        core = self._table.core
        choice = core.layout.choose(None, "pull")
        while True:
            values, version = await core.reads.fetch(choice)
            self.refresh(values, version)
            await asyncio.sleep(period_s)

    def check(self) -> None:
        """Raise the error that has ended the background puller, if one has."""
        puller = self._puller
        if puller is not None and puller.done() and not puller.cancelled():
            error = puller.exception()
            if error is not None:
                raise error

    def stop(self) -> None:
        """End the background puller. Idempotent."""
        if self._puller is not None:
            self._puller.cancel()
            self._puller = None

    # --- local steps ---

    def use(self, optimizer: Optimizer) -> None:
        """Choose the optimizer of `apply`; its state starts from zero."""
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(f"use: optimizer is {shown(optimizer)}; pass one such as SGD(lr=0.1)")
        refuse_row_limit(optimizer, "use")
        self._optimizer = optimizer
        self._state = {}
        self._steps = 0

    def apply(self, gradient: Float32Array) -> None:
        """Step the local copy by the local optimizer (`use`; SGD(lr=0.01) otherwise).

        The servers know nothing of it until `push_delta`.

        Raises
        ------
        UsageError
            Nothing pulled yet, wrong shape or dtype, NaN or infinity.
        """
        values = self._need()
        table = self._table
        what = f"apply to the local copy of table {table.name}"
        flat = check_array(gradient, table.shape, what, allow_nonfinite=table.allow_nonfinite)
        if self._pulled is None:
            self._pulled = values.copy()
        if not self._state:
            self._state = {slot: np.zeros(flat.size, np.float32) for slot in self._optimizer.slots}
        self._steps += 1
        self._applied += 1
        scratch = np.empty(flat.size, np.float32)
        with np.errstate(all="ignore"):
            self._optimizer.at(self._steps - 1).update(
                values.reshape(-1), flat.copy(), self._state, self._steps, scratch
            )

    async def push_delta(self) -> PushResult:
        """Push what `apply` has changed since the last refresh (new minus old).

        The table's optimizer on the servers decides what becomes of it; with `Add()` the
        deltas of all workers add up. The local copy keeps its values.

        Raises
        ------
        UsageError
            Nothing was applied, or as for `Table.push`: the delta is still here.
        RequestTimeout, NodeFailed, RequestRejected, RemoteError
            As for `Table.push`. The delta may have taken effect, so it is not part of the next
            one; pull to see.

        Notes
        -----
        Each step is in one delta and no other, also when this is called again before it has
        returned. When it is cancelled, the push happens whole, and the next `tick` or `flush`
        waits for it.
        """
        values = self._need()
        what = f"push_delta of table {self._table.name}"
        pulled = self._pulled
        if pulled is None or self._applied == 0:
            raise UsageError(f"{what}: nothing was applied")
        self._table.core.writes.check_open("push_delta")
        delta = np.asarray(values - pulled)
        check_array(delta, self._table.shape, what, allow_nonfinite=self._table.allow_nonfinite)
        # On its way: what is applied from now on is the next delta's.
        self._pulled, self._applied = values.copy(), 0
        pushing = asyncio.ensure_future(self._table.push(delta))
        try:
            return await asyncio.shield(pushing)
        except asyncio.CancelledError:
            pushing.add_done_callback(_retrieve)
            raise


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
