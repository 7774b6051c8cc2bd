"""Subscription: new versions of a table as they come into being.

A subscription is a request that waits at the servers: the next version is asked for before
it exists, so it leaves the server the moment its round closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import numpy as np

from aiops.errors import RequestTimeout
from aiops.layout import Choice, Piece
from aiops.roles.requests import Part
from aiops_protocol.frames import Pull
from aiops_protocol.payload import Float32Array, as_bytes

if TYPE_CHECKING:
    from aiops.table import Table

__all__ = ["Updates"]


class Updates(AsyncIterator[tuple[int, Float32Array]]):
    """The iterator behind `table.updates()`; ends by `break`, cancellation or an error."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._version: int | None = None
        self._shards: dict[int, int] = {}
        self._values: Float32Array | None = None

    async def __anext__(self) -> tuple[int, Float32Array]:
        """Wait for the next version and return it with its values."""
        table = self._table
        if self._values is None:
            version, values = await self._first()
        elif table.has_rounds:
            version, values = await self._next_round()
        else:
            version, values = await self._next_change()
        self._version, self._values = version, values
        table.local.refresh(values, version)
        return version, values.copy()

    async def _first(self) -> tuple[int, Float32Array]:
        table = self._table
        values = np.empty(table.shape, np.float32)
        self._shards = await self._ask(
            values, dict.fromkeys(range(table.shards), table.wanted_version)
        )
        if table.has_rounds:
            return await self._level(values)
        return sum(self._shards.values()), values

    async def _next_round(self) -> tuple[int, Float32Array]:
        table = self._table
        assert self._version is not None
        wanted = max(self._version + 1, table.wanted_version)
        values = np.empty(table.shape, np.float32)
        self._shards = await self._ask(values, dict.fromkeys(range(table.shards), wanted))
        return await self._level(values)

    async def _level(self, values: Float32Array) -> tuple[int, Float32Array]:
        """Bring shards that were asked while a round was closing to the same version."""
        while True:
            newest = max(self._shards.values())
            behind = {shard: newest for shard, at in self._shards.items() if at < newest}
            if not behind:
                return newest, values
            self._shards.update(await self._ask(values, behind))

    async def _next_change(self) -> tuple[int, Float32Array]:
        """Wait until any shard has changed, then take what has changed everywhere."""
        assert self._values is not None
        values = self._values.copy()
        asked = {
            asyncio.ensure_future(self._ask(values, {shard: version + 1})): shard
            for shard, version in self._shards.items()
        }
        try:
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in asked:
                task.cancel()
            results = await asyncio.gather(*asked, return_exceptions=True)
        # A request that was cancelled may be half received: take those shards again, whole.
        again: dict[int, int] = {}
        for shard, result in zip(asked.values(), results, strict=True):
            if isinstance(result, dict):
                self._shards.update(result)
            elif isinstance(result, asyncio.CancelledError):
                again[shard] = 0
            else:
                raise result
        if again:
            self._shards.update(await self._ask(values, again))
        return sum(self._shards.values()), values

    async def _ask(self, values: Float32Array, wanted: dict[int, int]) -> dict[int, int]:
        """Pull whole shards of at least these versions; waits as long as it takes."""
        table = self._table
        memory = as_bytes(values.reshape(-1))
        choice: Choice = table.layout.choose(None, "updates")
        pieces = [piece for piece in choice.pieces if piece.shard in wanted]
        while True:
            try:
                return await self._ask_once(memory, pieces, wanted)
            except RequestTimeout:
                # Nothing new for a long time is no error of a subscription.
                table.worker.check()

    async def _ask_once(
        self, memory: memoryview, pieces: list[Piece], wanted: dict[int, int]
    ) -> dict[int, int]:
        table = self._table
        operation = table.worker.customer.operation("updates", f"table {table.name}", None)
        for piece in pieces:
            Part(
                operation,
                Pull,
                table.table_id,
                piece.shard,
                clock=wanted[piece.shard],
                begin=piece.begin,
                end=piece.end,
                into=memory[4 * piece.start : 4 * piece.stop],
            )
        await table.perform(operation)
        return dict(operation.versions)
