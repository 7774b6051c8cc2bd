"""What is read of one table: pieces from all its servers, of one version; and the prefetch."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aiops.roles.requests import Part
from aiops.tables.layout import Choice, Piece
from aiops_protocol.codecs import Sparse, decode_values, split_deltas
from aiops_protocol.errors import MalformedFrame
from aiops_protocol.frames import Codec, Flag, Pull, Reply
from aiops_protocol.payload import Buffer, Float32Array, as_bytes

if TYPE_CHECKING:
    from aiops.tables.core import TableCore
    from aiops.tables.replica import PulledReplica

__all__ = ["Reads"]

_PARAMETERS = int(Flag.CODEC_PARAMETERS)


class _Ahead(NamedTuple):
    """A pull that has begun before it was asked for, and what it will be good for."""

    wanted: int
    acknowledged: int
    task: asyncio.Task[tuple[Float32Array, int]]


class Reads:
    """The pulls of one table.

    Parameters
    ----------
    table
        Whose.
    whole
        The whole table, if it can be named: what `prefetch` and `whole` fetch.
    """

    def __init__(self, table: TableCore, whole: Choice | None) -> None:
        self._table = table
        self._whole = whole
        self._ahead: _Ahead | None = None
        self._read_ahead: tuple[dict[int, int], list[int]] = {}, []

    async def fetch(
        self,
        choice: Choice,
        out: Float32Array | None = None,
        timeout_s: float | None = None,
        verb: str = "pull",
    ) -> tuple[Float32Array, int]:
        """Pull rows of the version of this clock, all of one version where there are rounds.

        A worker outside of the rounds, or one that is late, may find shards at different versions
        while a round closes; the older ones are then asked for the newest that was seen.
        """
        table = self._table
        table.worker.check()
        replica = table.replica
        if replica is not None and choice is self._whole and not replica.comes_plain():
            replica.busy = True
            try:
                version = await self._fetch(choice, None, timeout_s, verb)
                flat = replica.values.reshape(choice.shape)
                if out is None:
                    return flat.copy(), version
                out[...] = flat
                return out, version
            finally:
                replica.busy = False
        values = np.empty(choice.shape, np.float32) if out is None else out
        memory = as_bytes(values.reshape(-1))
        return values, await self._fetch(choice, memory, timeout_s, verb)

    async def _fetch(
        self, choice: Choice, memory: memoryview | None, timeout_s: float | None, verb: str
    ) -> int:
        """Pull into this memory, or bring the copy of the replica up to date."""
        table = self._table
        staleness = table.staleness
        marks = staleness.marks() if staleness is not None else []
        versions = await self.ask(
            choice.pieces, memory, table.place.wanted, timeout_s, verb, choice
        )
        if staleness is not None:
            if verb == "prefetch":
                self._read_ahead = versions, marks
            else:
                staleness.read(versions, marks)
            return sum(versions.values())
        newest = max(versions.values(), default=0)
        while stale := [piece for piece in choice.pieces if versions[piece.shard] < newest]:
            versions |= await self.ask(stale, memory, newest, timeout_s, verb, choice)
            newest = max(versions.values())
        if verb != "prefetch":
            table.place.see((newest,))
        return newest

    async def ask(
        self,
        pieces: list[Piece],
        memory: memoryview | None,
        wanted: int | dict[int, int],
        timeout_s: float | None,
        verb: str,
        choice: Choice,
        base: dict[int, int] | None = None,
    ) -> dict[int, int]:
        """Pull pieces of at least the wanted version (of each shard); return those that came.

        Without `memory` they are taken by the copy of the replica, which says what it has. With
        `base`, a shard answers when it is newer than that.

        With rounds, all pieces of a shard are of the version returned. Cancelling is harmless;
        the memory is not written any more.
        """
        table = self._table
        versions: dict[int, int] = {}
        while True:
            operation = table.customer.operation(verb, table.subject(choice), timeout_s)
            for piece in pieces:
                shard, begin, end, ranges, start, stop, keys = piece
                clock = wanted if isinstance(wanted, int) else wanted[shard]
                into = None if memory is None else memory[4 * start : 4 * stop]
                part = Part(  # in the order of its fields: names would cost as much as the object
                    operation, Pull, table.table_id, shard, clock, begin, end, ranges, 0, b"", into,
                    None, keys,
                )  # fmt: skip
                if base is not None:
                    part.base = base[shard]
                if table.rounded_pulls:
                    part.taker = partial(_unrounded, part.into)
                elif table.replica is not None and choice is self._whole:
                    self._tell_of_copy(table.replica, part, piece, plain=memory is not None)
            try:
                await table.customer.start(operation, table.servers)
            except asyncio.CancelledError:
                table.customer.cancel(operation)
                raise
            versions |= operation.versions
            if not operation.torn or not table.has_rounds:
                return versions
            # For a worker outside of the rounds one can close between two pieces of a shard.
            pieces = [piece for piece in pieces if piece.shard in operation.torn]
            wanted = versions

    @staticmethod
    def _tell_of_copy(replica: PulledReplica, part: Part, piece: Piece, *, plain: bool) -> None:
        """Ask for what the copy of the replica lacks; or tell what is wished for, if anything."""
        if plain and replica.gate is None:
            return
        part.flags |= _PARAMETERS
        part.codec_parameters = replica.word(piece, plain=plain)
        if not plain:
            part.size = 4 * (piece.stop - piece.start)
            part.taker = replica.taker(piece)

    # --- prefetch ---

    def prefetch(self) -> None:
        """Begin to fetch what the next whole pull will ask for."""
        table = self._table
        table.worker.check()
        if self._ahead is not None:
            if self._is_good(self._ahead) and not self._ahead.task.done():
                return
            self._ahead.task.cancel()
        assert self._whole is not None
        task = asyncio.get_running_loop().create_task(self.fetch(self._whole, verb="prefetch"))
        task.add_done_callback(_seen)
        self._ahead = _Ahead(table.place.wanted, table.writes.acknowledged, task)

    def _is_good(self, ahead: _Ahead) -> bool:
        """Whether a pull may have these values.

        In rounds they are of an exact version. Otherwise they must not lack what this worker has
        pushed since: a pull sees what was acknowledged before it.
        """
        table = self._table
        if ahead.wanted != table.place.wanted:
            return False
        return table.has_rounds or ahead.acknowledged == table.writes.acknowledged

    async def whole(
        self, out: Float32Array | None, timeout_s: float | None
    ) -> tuple[Float32Array, int]:
        """Pull the whole table, or take what was prefetched."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            # The prefetch has no deadline of its own, so a call that has one cannot wait for it.
            if self._is_good(ahead) and (timeout_s is None or ahead.task.done()):
                values, version = await ahead.task
                self._table.place.see((version,))
                if self._table.staleness is not None:
                    self._table.staleness.read(*self._read_ahead)
                if out is None:
                    return values, version
                out[...] = values
                return out, version
            ahead.task.cancel()
        assert self._whole is not None
        return await self.fetch(self._whole, out, timeout_s)

    def forget(self) -> None:
        """Drop what was prefetched."""
        if self._ahead is not None:
            self._ahead.task.cancel()
            self._ahead = None


def _unrounded(into: memoryview | None, reply: Reply) -> Buffer:
    """Put the values of rows, which were rounded to travel, where they belong."""
    assert into is not None
    target = np.frombuffer(into, np.float32)
    if reply.codec != Codec.DELTAS:
        raise MalformedFrame(f"rows of codec {reply.codec} in a table whose pulls are compressed")
    steps = split_deltas(reply.payload)
    if len(steps) != 1:
        raise MalformedFrame(f"{len(steps)} steps for rows, which come from nothing by one")
    codec, parameter, payload = steps[0]
    values = decode_values(codec, payload, target.size, parameter)
    if isinstance(values, Sparse):
        raise MalformedFrame(f"rows of codec {codec}, which leaves some out")
    target[:] = values
    return into


def _seen(task: asyncio.Task[Any]) -> None:
    """Mark an error as seen: it is raised where the result is asked for."""
    if not task.cancelled():
        task.exception()
