"""Subscription: new versions of a table as they come into being.

A subscription is a request that waits at the servers: the next version is asked for before
it exists, so it leaves the server the moment its round closes. What waits counts against what
this worker may have asked for, so of a large shard only one element is asked for in advance, and
the rest when that one has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import numpy as np

from aiops.errors import Closed, RequestTimeout
from aiops.tables.layout import Piece
from aiops_protocol.payload import Float32Array, as_bytes

if TYPE_CHECKING:
    from aiops.tables.core import DenseCore
    from aiops.tables.local_copy import LocalCopy

__all__ = ["Updates"]

WHOLE_ELEMENTS_MAX: Final = 16 * 1024
"""A shard of up to 64 KiB is asked for whole: a hundred such subscriptions fit the window."""


class Updates(AsyncIterator[tuple[int, Float32Array]]):
    """The iterator behind `table.updates()`; it ends by itself when the job ends well."""

    def __init__(self, core: DenseCore, local: LocalCopy) -> None:
        self._core = core
        self._local = local
        self._seen: int | None = None  # version handed out last
        self._versions: dict[int, int] = {}  # by shard
        size = 0 if self._core.has_rounds else self._core.layout.size
        self._values = np.empty(size, np.float32)  # without rounds: as it was handed out last
        whole = self._core.layout.choose(None, "updates")
        self._pieces: dict[int, list[Piece]] = {}
        for piece in whole.pieces:
            self._pieces.setdefault(piece.shard, []).append(piece)
        self._choice = whole

    async def __anext__(self) -> tuple[int, Float32Array]:
        """Wait for the next version and return it with its values."""
        core = self._core
        try:
            version, flat = await (self._next_round() if core.has_rounds else self._next_change())
        except Closed:
            if core.worker.postoffice.ended_well is None:
                raise
            raise StopAsyncIteration from None
        values = flat.reshape(core.shape)
        self._seen = version
        self._local.refresh(values, version)
        return version, values

    # --- with rounds: an exact version of everything ---

    async def _next_round(self) -> tuple[int, Float32Array]:
        wanted = self._core.place.wanted
        if self._seen is not None and wanted <= self._seen:
            wanted = self._seen + 1
        values = np.empty(self._core.layout.size, np.float32)
        shards = list(self._pieces)
        if self._seen is not None:
            await asyncio.gather(*(self._announce(shard, wanted) for shard in self._large()))
        versions = await self._ask(shards, values, dict.fromkeys(shards, wanted))
        # Shards that were asked while a round was closing are brought to the newest version.
        newest = max(versions.values())
        while behind := [shard for shard in shards if versions[shard] < newest]:
            versions |= await self._ask(behind, values, dict.fromkeys(behind, newest))
            newest = max(versions.values())
        return newest, values

    # --- without rounds: whatever has changed ---

    async def _next_change(self) -> tuple[int, Float32Array]:
        shards = list(self._pieces)
        if self._seen is None:
            self._versions = await self._ask(shards, self._values)
        else:
            await self._take_changes(await self._any_change(shards))
        if self._core.staleness is not None:
            self._core.staleness.read(self._versions, self._core.staleness.marks())
        return sum(self._versions.values()), self._values.copy()

    async def _any_change(self, shards: list[int]) -> list[int]:
        """Wait until any shard is newer than known; return those that are."""
        large = set(self._large())
        incoming = np.empty_like(self._values)
        tasks = {
            asyncio.ensure_future(
                self._announce(shard, base=self._versions)
                if shard in large
                else self._ask([shard], incoming, base=self._versions)
            ): shard
            for shard in shards
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        changed = []
        for shard, result in zip(tasks.values(), results, strict=True):
            if isinstance(result, asyncio.CancelledError):
                continue
            if isinstance(result, BaseException):
                raise result
            if shard in large:
                changed.append(shard)
            else:
                first, last = self._pieces[shard][0].start, self._pieces[shard][-1].stop
                self._values[first:last] = incoming[first:last]
                self._versions |= result
        return changed

    async def _take_changes(self, shards: list[int]) -> None:
        if shards:
            self._versions |= await self._ask(shards, self._values)

    # --- asking ---

    def _large(self) -> list[int]:
        return [
            shard
            for shard, pieces in self._pieces.items()
            if pieces[-1].stop - pieces[0].start > WHOLE_ELEMENTS_MAX
        ]

    async def _announce(
        self, shard: int, wanted: int = 0, base: dict[int, int] | None = None
    ) -> dict[int, int]:
        """Wait until a shard has this version, or a newer one, by asking for its first element."""
        begin = self._pieces[shard][0].begin
        element = Piece(shard, begin, begin + 1, b"", 0, 1)
        return await self._wait([element], np.empty(1, np.float32), {shard: wanted}, base)

    async def _ask(
        self,
        shards: list[int],
        values: Float32Array,
        wanted: dict[int, int] | int = 0,
        base: dict[int, int] | None = None,
    ) -> dict[int, int]:
        """Pull whole shards of at least these versions; of newer ones than in `base`."""
        pieces = [piece for shard in shards for piece in self._pieces[shard]]
        return await self._wait(pieces, values, wanted, base)

    async def _wait(
        self,
        pieces: list[Piece],
        values: Float32Array,
        wanted: dict[int, int] | int,
        base: dict[int, int] | None,
    ) -> dict[int, int]:
        """Pull pieces; wait as long as it takes."""
        core = self._core
        while True:
            core.worker.check()
            try:
                return await core.reads.ask(
                    pieces, as_bytes(values), wanted, None, "updates", self._choice, base
                )
            except RequestTimeout:
                # Nothing new for a long time is no error of a subscription.
                core.worker.check()
