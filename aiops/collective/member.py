"""The calls of one member of a ring, the same in one process and across many.

Here arguments are checked and put into words (`Call`), calls wait for their turn, and lists of
arrays are fused into buckets. How a call is performed is the business of what derives from
`Member`: it moves one flat array, all or nothing.
"""

from __future__ import annotations

import asyncio
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import DTypeLike

from aiops.checks import check_count, check_timeout, is_one_of
from aiops.collective.buckets import Bucket, fuse
from aiops.collective.call import NAMES, REDUCTIONS, Array, Call
from aiops.collective.schedule import Algorithm
from aiops.collective.steps import chunk_spans
from aiops.errors import UsageError
from aiops.wording import shown

__all__ = [
    "BUCKET_BYTES",
    "AlgorithmChoice",
    "Member",
    "Order",
    "Reduction",
    "check_arrays",
    "check_shape",
    "explained_bytes",
]

Reduction: TypeAlias = Literal["sum", "mean", "max", "min"]
Order: TypeAlias = Literal["any", "rank"]
AlgorithmChoice: TypeAlias = Algorithm | Literal["auto"]

BUCKET_BYTES: Final = 32 * 1024 * 1024
"""Arrays of a list are fused up to this size: the fixed cost of a call is then a hundredth of it
(0.1 ms in 10 ms over loopback), and larger buckets would only take more memory."""


CHOICES_MAX: Final = 1024
"""Sizes of arrays for which an algorithm is remembered."""

_FLOAT32: Final = np.dtype(np.float32)
_LEAST_S: Final = 1e-9
"""What a bucket may take when the time of its call is up: it ends the call, for all members."""

EXPLAINED: Final = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


def explained_bytes(kind: object, count: object, item_bytes: object) -> int:
    """Check the arguments of `explain`, and return the bytes of the array."""
    if not is_one_of(kind, EXPLAINED):
        raise UsageError(f"explain: kind is {shown(kind)}; there are: {', '.join(EXPLAINED)}")
    return check_count(count, "explain: count") * check_count(item_bytes, "explain: item_bytes")


def check_shape(shape: object, dtype: DTypeLike) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the type and the sizes of an array to be made; `UsageError` if they cannot be."""
    what = f"empty: shape is {shown(shape)}, dtype {dtype}; numbers and sizes from 0 up"
    given = shape if isinstance(shape, tuple | list) else (shape,)
    try:
        kind, sizes = np.dtype(dtype), tuple(map(operator.index, given))
    except TypeError:
        raise UsageError(what) from None
    if kind.hasobject or not kind.itemsize or any(size < 0 for size in sizes):
        raise UsageError(what)
    return kind, sizes


class Member(ABC):
    """One rank's handle of a ring.

    All members make the same calls in the same order. Calls of one member wait for each other, so
    several may be begun at once. A call ends well on all members or changes no array on any.

    Parameters
    ----------
    rank
        This member, from 0.
    world_size
        How many there are.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self._last: asyncio.Future[None] | None = None
        self._choices: dict[tuple[str, int, int], Algorithm] = {}  # what "auto" has come to

    # --- what a body must do ---

    @abstractmethod
    async def _perform(self, call: Call, flat: Array, timeout_s: float | None) -> None:
        """Perform a call in place on a flat array of `call.count` elements; all or nothing.

        After a reduce-scatter only this rank's chunk counts. Calls come one after the other.
        """

    @abstractmethod
    def _withdraw(self, call: Call) -> None:
        """End the next call for all members: here it was cancelled before its turn."""

    @abstractmethod
    def _choose(self, kind: str, count: int, item_bytes: int) -> Algorithm:
        """Settle "auto"; the same on every member."""

    def _chosen(self, kind: str, count: int, item_bytes: int) -> Algorithm:
        """Settle "auto" once for each size: the same calls are made in every step."""
        key = kind, count, item_bytes
        known = self._choices.get(key)
        if known is None:
            if len(self._choices) >= CHOICES_MAX:
                self._choices.clear()
            known = self._choices[key] = self._choose(kind, count, item_bytes)
        return known

    def _groups(self) -> tuple[tuple[int, ...], ...] | None:
        """Return which ranks share a host, if that is known."""
        return None

    # --- calls ---

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> Array:
        """Make an array in the memory that this ring moves best; its content is arbitrary.

        Raises
        ------
        UsageError
            The type holds Python objects, or a length is negative.
        MemoryError
            There is not so much memory.
        """
        kind, sizes = check_shape(shape, dtype)
        return np.empty(sizes, kind)

    async def all_reduce(
        self,
        array: Array | Sequence[Array],
        op: Reduction = "sum",
        *,
        order: Order = "any",
        algorithm: AlgorithmChoice = "auto",
        timeout_s: float | None = None,
    ) -> None:
        """Reduce the arrays of all members, in place: afterwards all have the result.

        Parameters
        ----------
        array
            float32 or float64, any shape; or a list of such, which are fused into buckets and
            take effect together.
        op
            "sum", "mean", "max" or "min".
        order
            "rank" sums in the order of the ranks and divides once, which are the bits of a table
            with `BSP()`; "any" leaves the order to the algorithm. The bits are the same on all
            members and run after run in both.
        algorithm
            "auto" lets the cost model choose.
        timeout_s
            How long the whole call may take; `None` takes the ring's setting, for each bucket.

        Raises
        ------
        CollectiveMismatch
            Members called different things; nothing was changed on any.
        CollectiveAborted
            A member left, failed, or did not come in time; nothing was changed on any.

        Notes
        -----
        Cancelling ends the call for all members, who get `CollectiveAborted`, unless the result
        was in effect already. Algorithms: see `aiops.collective.schedule`.
        """
        buckets, turns = self._enqueue(array, op, order, algorithm, BUCKET_BYTES)
        await self._reduce_buckets(buckets, turns, timeout_s)

    def all_reduce_async(
        self,
        arrays: Array | Sequence[Array],
        op: Reduction = "sum",
        *,
        order: Order = "any",
        algorithm: AlgorithmChoice = "auto",
        timeout_s: float | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> asyncio.Task[None]:
        """Begin an all-reduce and go on computing; await what this returns before the arrays.

        Parameters
        ----------
        arrays, op, order, algorithm, timeout_s
            As for `all_reduce`; the arrays belong to the ring until the handle was awaited.
        bucket_bytes
            Arrays of a list are fused into calls of at most this size.

        Returns
        -------
        handle
            Awaiting it ends with the result in the arrays, or raises what `all_reduce` raises; to
            cancel it cancels the call.

        Notes
        -----
        Several may be begun; they are performed one after the other, in the order in which they
        were begun, also across processes: what is saved is the waiting of the program, not the
        time between two calls (some tens of microseconds, a hundredth of a call of a bucket).
        """
        buckets, turns = self._enqueue(arrays, op, order, algorithm, bucket_bytes)
        task = asyncio.get_running_loop().create_task(
            self._reduce_buckets(buckets, turns, timeout_s)
        )

        def ended(_: object) -> None:  # a task that is cancelled before its first turn never runs
            for turn in turns:
                turn.give_up()

        task.add_done_callback(ended)
        return task

    def _enqueue(
        self,
        arrays: Array | Sequence[Array],
        op: str,
        order: str,
        algorithm: AlgorithmChoice,
        bucket_bytes: int,
    ) -> tuple[list[Bucket], list[_Turn]]:
        """Check an all-reduce, and take its places in the queue at once."""
        if not _is_whole(bucket_bytes) or bucket_bytes < 1:
            raise UsageError(
                f"all_reduce: bucket_bytes is {shown(bucket_bytes)}; it must be 1 or more"
            )
        # A list of nothing is a call, too: otherwise the calls of two members would be off by one.
        buckets = fuse(check_arrays("all_reduce", arrays), bucket_bytes) or [Bucket(())]
        calls = [
            self._reduction("all_reduce", bucket.arrays, op, order, algorithm) for bucket in buckets
        ]
        return buckets, [self._reserve(call) for call in calls]

    async def _reduce_buckets(
        self, buckets: Sequence[Bucket], turns: Sequence[_Turn], timeout_s: float | None
    ) -> None:
        if len(buckets) == 1 and buckets[0].in_place:
            await self._in_turn(turns[0], buckets[0].arrays[0].reshape(-1), timeout_s)
            return
        results: list[Array] = []
        loop = asyncio.get_running_loop()
        begun_at = 0.0
        try:
            for bucket, turn in zip(buckets, turns, strict=True):
                left_s = timeout_s
                if results and timeout_s is not None:  # the first has found it to be a time
                    limit_s = check_timeout(timeout_s, "all_reduce")
                    left_s = max(_LEAST_S, limit_s - (loop.time() - begun_at))
                results.append(bucket.fused())
                if len(results) == 1:
                    await turn.wait()
                    begun_at = loop.time()
                await self._in_turn(turn, results[-1], left_s)
        except BaseException:
            for turn in turns:
                turn.give_up()
            raise
        for bucket, flat in zip(buckets, results, strict=True):
            bucket.spread(flat)  # all together, now that nothing can fail any more

    async def reduce_scatter(
        self,
        array: Array,
        op: Reduction = "sum",
        *,
        order: Order = "any",
        algorithm: AlgorithmChoice = "auto",
        timeout_s: float | None = None,
    ) -> Array:
        """Reduce the arrays of all members and return this rank's chunk of the result.

        The elements are counted in C order, and chunk i is [n*i//p, n*(i+1)//p) of them. The array
        itself stays as it is. For parameters and errors see `all_reduce`.

        Returns
        -------
        chunk
            A new flat array.
        """
        array = check_array("reduce_scatter", array)
        call = self._reduction("reduce_scatter", (array,), op, order, algorithm)
        work = np.array(array, order="C").reshape(-1)
        await self._in_turn(self._reserve(call), work, timeout_s)
        return work[slice(*chunk_spans(call.count, self.world_size)[self.rank])].copy()

    async def all_gather(
        self, array: Array, *, algorithm: AlgorithmChoice = "auto", timeout_s: float | None = None
    ) -> Array:
        """Return the arrays of all members, stacked in the order of the ranks.

        For parameters and errors see `all_reduce`.

        Returns
        -------
        stacked
            A new array of shape (world_size, *array.shape).
        """
        array = check_array("all_gather", array)
        stacked = np.empty((self.world_size, *array.shape), array.dtype)
        stacked[self.rank] = array
        call = self._call("all_gather", (array,), algorithm, count=stacked.size)
        await self._in_turn(self._reserve(call), stacked.reshape(-1), timeout_s)
        return stacked

    async def broadcast(
        self,
        array: Array,
        *,
        root: int = 0,
        algorithm: AlgorithmChoice = "auto",
        timeout_s: float | None = None,
    ) -> None:
        """Give all members the content of the array of `root`, in place.

        For the other parameters and errors see `all_reduce`.
        """
        array = check_array("broadcast", array)
        if not _is_whole(root) or not 0 <= root < self.world_size:
            raise UsageError(
                f"broadcast: root is {shown(root)}; ranks are 0 to {self.world_size - 1}"
            )
        call = self._call("broadcast", (array,), algorithm, root=int(root))
        bucket = Bucket((array,))
        flat = array.reshape(-1) if bucket.in_place else bucket.fused()
        await self._in_turn(self._reserve(call), flat, timeout_s)
        if not bucket.in_place:
            bucket.spread(flat)

    async def barrier(self, *, timeout_s: float | None = None) -> None:
        """Wait until all members have called this.

        For errors see `all_reduce`.
        """
        turn = self._reserve(Call("barrier"))
        await self._in_turn(turn, np.empty(0, np.float32), timeout_s)

    # --- arguments ---

    def _reduction(
        self, kind: str, arrays: Sequence[Array], op: str, order: str, algorithm: AlgorithmChoice
    ) -> Call:
        if not is_one_of(op, REDUCTIONS):
            raise UsageError(f"{kind}: op is {shown(op)}; there are: {', '.join(REDUCTIONS)}")
        if not is_one_of(order, get_args(Order)):
            raise UsageError(f'{kind}: order is {shown(order)}; it can be "any" or "rank"')
        if order == "rank":
            if not is_one_of(algorithm, ("auto", "chain")):
                raise UsageError(f'{kind}: order="rank" has an algorithm of its own; leave it out')
            algorithm = "chain"
        return self._call(kind, arrays, algorithm, op=op, order=order)

    def _call(
        self,
        kind: Any,
        arrays: Sequence[Array],
        algorithm: AlgorithmChoice,
        *,
        count: int | None = None,
        **more: Any,
    ) -> Call:
        if not isinstance(algorithm, str):
            raise UsageError(
                f'{kind}: algorithm is {shown(algorithm)}; it is a word, such as "auto"'
            )
        count = sum(array.size for array in arrays) if count is None else count
        dtype = arrays[0].dtype if arrays else _FLOAT32
        if algorithm == "auto":
            algorithm = self._chosen(kind, count, dtype.itemsize)
        shapes = tuple(array.shape for array in arrays)
        call = Call(kind, count, shapes, NAMES[dtype], algorithm=algorithm, **more)
        try:
            call.schedule(self.rank, self.world_size, self._groups())
        except ValueError as error:
            raise UsageError(f"{kind}: {error}") from None
        return call

    # --- turns ---

    def _reserve(self, call: Call) -> _Turn:
        turn = _Turn(self, call, self._last)
        self._last = turn.over
        return turn

    async def _in_turn(self, turn: _Turn, flat: Array, timeout_s: float | None) -> None:
        try:
            await turn.wait()
            await self._perform(turn.call, flat, timeout_s)
        finally:
            turn.end()


class _Turn:
    """A place in the queue of one member's calls."""

    __slots__ = ("_before", "_begun", "_member", "call", "over")

    def __init__(self, member: Member, call: Call, before: asyncio.Future[None] | None) -> None:
        self._member, self.call, self._before = member, call, before
        self._begun = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        """Wait for all calls before this one."""
        if self._before is not None and not self._before.done():
            await asyncio.wait((self._before,))
        self._begun = True

    def end(self) -> None:
        """Let the next one come; a call that has not begun is ended for all in its turn."""
        if self._begun:
            if not self.over.done():
                self.over.set_result(None)
        else:
            self.give_up()

    def give_up(self) -> None:
        """End a call that will not begin any more, when its turn comes."""
        if self._begun:
            return
        self._begun = True
        if self._before is None or self._before.done():
            self._pass()
        else:
            self._before.add_done_callback(self._pass)

    def _pass(self, _: object = None) -> None:
        self._member._withdraw(self.call)
        self.over.set_result(None)


def check_arrays(kind: str, arrays: object) -> list[Array]:
    """Return one array, or the arrays of a list, as `check_array` does."""
    if isinstance(arrays, np.ndarray):
        return [check_array(kind, arrays)]
    if not isinstance(arrays, Iterable) or isinstance(arrays, str | bytes | Mapping):
        given = type(arrays).__name__
        raise UsageError(f"{kind}: an array of numpy, or a list of such, is needed, not {given}")
    return [check_array(kind, array) for array in arrays]


def check_array(kind: str, array: object) -> Array:
    """Return an array that can be moved, without what a subclass adds; `UsageError` otherwise."""
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{kind}: an array of numpy is needed, not {type(array).__name__}")
    why = ""
    if array.dtype not in NAMES:
        order = "" if array.dtype.isnative else ", another byte order than here"
        kinds = " and ".join(NAMES.values())
        why = f"is of {array.dtype}{order}; {kinds} can be moved: array.astype(np.float32)"
    elif isinstance(array, np.ma.MaskedArray):
        why = "is masked, and masks cannot be moved: array.filled(0.0)"
    elif kind in ("all_reduce", "broadcast"):
        if not array.flags.writeable:
            why = "is read-only, and the result goes into it: copy it"
        elif not array.flags.c_contiguous and _repeats(array):
            why = "has elements that lie more than once in memory: copy it"
    if why:
        raise UsageError(f"{kind}: the array {why}")
    return np.asarray(array)


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _repeats(array: Array) -> bool:
    """Whether the array was stretched along an axis without a copy."""
    return any(step == 0 and n > 1 for step, n in zip(array.strides, array.shape, strict=True))
