"""Ring: collective calls among the workers of a job; `worker.ring()` makes it.

The calls themselves, their arguments and their order are `aiops.collective.member`; who is in the
ring and how a call is carried out is `aiops.runtime.ring_group`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from aiops.checks import check_timeout
from aiops.collective.call import REDUCTIONS, Array, Call, divide
from aiops.collective.cost_model import LOOPBACK, Choice, choose
from aiops.collective.member import (
    AlgorithmChoice,
    Member,
    Order,
    Reduction,
    explained_bytes,
)
from aiops.collective.network import Network
from aiops.collective.plan import Plan, make_plan
from aiops.collective.schedule import Algorithm, Groups
from aiops.collective.steps import Schedule, Span, chunk_spans
from aiops.collective.topology import in_order
from aiops.compression import Codec
from aiops.compression.spelling import as_codec
from aiops.errors import AiopsError, CollectiveAborted, CollectiveMismatch, UsageError
from aiops.runtime.ring_call import RingWork
from aiops.runtime.ring_desk import RingDesk
from aiops.runtime.ring_group import RingGroup
from aiops.runtime.ring_hosts import HostsRingGroup
from aiops.runtime.ring_shared import SharedRingGroup
from aiops.wording import shown
from aiops.workers.ring_compression import codec_of, compressed_call
from aiops.workers.ring_links import measured_network
from aiops.workers.scratch import Scratch

__all__ = ["Ring"]

CALL_TIMEOUT_S: Final = 600.0
"""How long a call waits for the others: ten minutes of computing are normal, an hour is a hang."""

PREPARED_MAX: Final = 1024
"""Different calls whose plans are kept: arrays of a model, and some more."""


class Ring(Member):
    """One worker's handle of a ring.

    All members make the same calls in the same order. A call ends well on all members, or raises
    on all and changes no array on any. Whatever ends a call that way ends the ring as it was: the
    members that are left call `reform`, and then make their calls again.

    Attributes
    ----------
    rank, world_size
        This member's place in the ring, from 0, and how many there are; `reform` changes them.
    """

    def __init__(
        self,
        name: str,
        desk: RingDesk,
        group: RingGroup,
        timeout_s: float,
        call_timeout_s: float,
        topology: str,
    ) -> None:
        super().__init__(group.index, group.size)
        self._measured = topology == "measured"
        self._network: Network | None = None  # once it has been measured
        self._name = name
        self._desk = desk
        self._group = group
        self._timeout_s = timeout_s
        self._call_timeout_s = call_timeout_s
        self._scratch = Scratch(desk.memory.arena)
        self._known: dict[Call, _Prepared] = {}
        self._knows_mismatch = False  # of the members' calls in this generation
        self._entering = False  # the next generation
        self._hosts = self._by_host()
        self._order = self._neighbours_first()

    def __repr__(self) -> str:
        return (
            f"<Ring {self._name} generation={self.generation} rank={self.rank} of "
            f"{self.world_size}>"
        )

    @property
    def name(self) -> str:
        """The ring's name."""
        return self._name

    @property
    def generation(self) -> int:
        """How often the ring has been formed, this time included; the same on all members."""
        return self._group.formed.generation

    @property
    def workers(self) -> list[int]:
        """The worker ranks of all members, in the order of their places in the ring."""
        return [member.rank for member in self._group.formed.members]

    @property
    def newcomers(self) -> list[int]:
        """The places of those members that were not in the generation before; the same on all.

        They lack what the others have: give it to them with `broadcast` from one that is not in
        this list. Empty in the first generation.
        """
        return [i for i, member in enumerate(self._group.formed.members) if member.newcomer]

    @property
    def wanted(self) -> bool:
        """Whether a worker waits to enter; all members learn of it at the end of the same call.

        It is let in by `reform`.
        """
        return self._group.wanted

    @property
    def broken(self) -> bool:
        """Whether every call will fail until `reform`."""
        return self._group.over is not None

    @property
    def order(self) -> list[int]:
        """The members' places in the order in which sums over TCP go round; the same on all."""
        return list(self._order or range(self.world_size))

    @property
    def transport(self) -> str:
        """How calls of this generation travel: "tcp", "shared-memory" or "shared-memory+tcp".

        The last one is for members on several hosts, of which some share memory: an all-reduce by
        "hierarchical" takes both, and everything else TCP alone.
        """
        if isinstance(self._group, SharedRingGroup):
            return "shared-memory"
        return "shared-memory+tcp" if isinstance(self._group, HostsRingGroup) else "tcp"

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> Array:
        """Make an array in memory that the workers of this host share, all zero at first.

        Such an array is reduced where it is; any other is copied into shared memory first. It is
        an ordinary array in every other respect, and outlives the ring. Above 1 MB a call may leave
        other pages at its address: do not register them with hardware.
        """
        return self._desk.memory.empty(shape, dtype)

    async def reform(self, *, timeout_s: float | None = None) -> None:
        """Form the ring anew: of the members that are left, and of those who wait to enter.

        All members that are left call this. Afterwards `rank`, `world_size`, `workers` and
        `newcomers` are those of the new generation.

        Parameters
        ----------
        timeout_s
            How long to wait for the others; `None` takes what `worker.ring` was given.

        Raises
        ------
        BarrierTimeout
            Not all others have called it in time; `missing` names them.
        CollectiveAborted
            The processes of this host cannot connect to each other.
        UsageError
            A call of this worker is still on its way.

        Notes
        -----
        A call that was cancelled, or ran out of time, is taken back: this member is where it was.
        Until it ends, collective calls of this member's other tasks are refused.
        """
        if self._last is not None and not self._last.done():
            raise UsageError(f"ring {self._name}: await the calls that are on their way first")
        limit = self._timeout_s if timeout_s is None else check_timeout(timeout_s, "reform")
        await self._enter(limit)
        await self._arrange()

    async def _enter(self, timeout_s: float) -> None:
        self._entering = True
        try:
            self._group = await self._desk.enter(self._name, timeout_s)
        finally:
            self._entering = False
        self.rank, self.world_size = self._group.index, self._group.size
        self._knows_mismatch = False
        self._known.clear()
        self._choices.clear()
        self._hosts = self._by_host()
        self._order = self._neighbours_first()

    async def _arrange(self) -> None:
        """Measure the links and settle the order, if that was asked for; all members do it.

        `worker.ring` and `reform` call this. A member that is lost meanwhile costs another
        generation, not the call.
        """
        self._network = None
        while self._measured and self.transport != "shared-memory" and self.world_size > 1:
            try:
                self._network = await measured_network(
                    self, self._group, self._call_timeout_s, self._order
                )
                self._order = self._network.order
                self._choices.clear()
                if isinstance(self._group, HostsRingGroup):
                    self._group.arrange(self._order)
                return
            except CollectiveAborted as error:
                if error.cause in ("cancelled", "timeout"):
                    raise
            except asyncio.CancelledError:
                # Between two measurements nobody else would hear of it.
                group = self._group
                group.stop("cancelled", f"{group.me} has cancelled its entry into {group}")
                raise
            await self._enter(self._timeout_s)

    def explain(self, kind: str, count: int, *, item_bytes: int = 4) -> Choice:
        """Return which algorithm "auto" takes for a call, and why: print it.

        It knows what the links are if they were measured (`topology="measured"`); otherwise it
        takes them for those of one machine.

        Parameters
        ----------
        kind
            "all_reduce", "reduce_scatter", "all_gather" or "broadcast".
        count
            Elements of the array.
        item_bytes
            Size of an element.

        Raises
        ------
        UsageError
            There is no such kind of call, or a size is negative.
        """
        size = explained_bytes(kind, count, item_bytes)
        hosts = self._hosts if isinstance(self._group, HostsRingGroup) else None
        if self._network is not None:
            return self._network.choose(kind, size, hosts)
        return choose(kind, self.world_size, size, LOOPBACK, hosts=hosts)

    async def leave(self) -> None:
        """Take part in no call any more: the others' call ends without effect, and they `reform`.

        What this member has confirmed still takes effect for the others. Finishing the worker
        does the same for all its rings. Idempotent.
        """
        self._group.leave()

    @property
    def traffic(self) -> Mapping[str, int]:
        """Bytes of arrays `sent` to and `received` from other members, in all generations.

        Through shared memory: what others have read here, and what this member has read of theirs.
        """
        return dict(self._group.traffic)

    async def all_reduce(
        self,
        array: Array | Sequence[Array],
        op: Reduction = "sum",
        *,
        order: Order = "any",
        algorithm: AlgorithmChoice = "auto",
        timeout_s: float | None = None,
        compression: Codec | str | None = None,
    ) -> None:
        """Reduce the arrays of all members, in place; see `Member.all_reduce`.

        Parameters
        ----------
        array, op, order, algorithm, timeout_s
            As there.
        compression
            A codec, or its spelling: `"fp16"`. Each piece is encoded before it is sent, sums in
            between too, so what is lost grows with the number of members; nothing is carried
            over to the next call, so codecs that hold something back are refused. All members end
            with the same bits. For finite float32 over TCP, by the ring, as a sum or mean. Of hosts
            that share memory, sums are encoded between the hosts only.

        Raises
        ------
        UsageError
            What is asked for does not go with compression.
        CollectiveMismatch, CollectiveAborted
            As there.
        """
        if compression is None:
            await Member.all_reduce(
                self, array, op, order=order, algorithm=algorithm, timeout_s=timeout_s
            )
            return
        codec = as_codec(compression, "all_reduce: compression")
        by_hosts = isinstance(self._group, HostsRingGroup)
        if self.transport == "shared-memory":
            words = 'the ring is in shared memory: worker.ring(transport="tcp")'
            raise UsageError(f"all_reduce with compression={shown(codec.spelling())}: {words}")
        call, bucket = compressed_call(codec, array, op, order, algorithm, by_hosts=by_hosts)
        flat = bucket.arrays[0].reshape(-1) if bucket.in_place else bucket.fused()
        await self._in_turn(self._reserve(call), flat, timeout_s)
        if not bucket.in_place:
            bucket.spread(flat)

    # --- Member ---

    async def _perform(self, call: Call, flat: Array, timeout_s: float | None) -> None:
        if self.world_size == 1:
            # Nobody is waited for, so the event loop would have no turn, and nobody be let in.
            await asyncio.sleep(0)
        group = self._group
        if group.over is not None:
            raise self._again(call, group.over)
        if self._entering:
            # The others may be through with it and form the ring, and its end is not heard here.
            raise UsageError(f"ring {self._name}: await the reform() of another task first")
        limit = self._call_timeout_s
        if timeout_s is not None:
            limit = check_timeout(timeout_s, call.kind)
        try:
            if isinstance(group, SharedRingGroup):
                await group.perform(call, flat, limit)
            elif isinstance(group, HostsRingGroup) and call.algorithm == "hierarchical":
                await group.perform(call, flat, limit, codec_of(call))
            else:
                await self._perform_over_tcp(group, call, flat, limit)
        except CollectiveMismatch:
            self._knows_mismatch = True
            raise

    async def _perform_over_tcp(
        self, group: RingGroup, call: Call, flat: Array, timeout_s: float
    ) -> None:
        prepared = self._prepared(call)
        work = self._scratch.take(flat)
        mean = call.op == "mean"

        def commit() -> None:
            if not mean and prepared.given == (Span(0, call.count),):
                self._scratch.put(work, flat)
                return
            for span in prepared.given:
                target, result = flat[slice(*span)], work[slice(*span)]
                if mean:
                    divide(result, group.size, target)
                else:
                    target[...] = result

        reduce = REDUCTIONS[call.op or "sum"]
        what, plan = prepared.description, prepared.plan
        work_to_do = RingWork(call.kind, what, plan, flat, work, reduce, commit, codec_of(call))
        begun = group.call(work_to_do, timeout_s)
        try:
            await begun.future
        except asyncio.CancelledError:
            group.cancel(begun)
            raise
        finally:
            self._scratch.give(work)

    def _prepared(self, call: Call) -> _Prepared:
        """Return what can be worked out beforehand; the same calls are made in every step."""
        known = self._known.get(call)
        if known is None:
            if len(self._known) >= PREPARED_MAX:
                self._known.clear()
            plan = make_plan(self._schedule(call))
            given = plan.written
            if call.kind == "reduce_scatter" and given:
                given = (chunk_spans(call.count, self.world_size)[self.rank],)
            known = self._known[call] = _Prepared(str(call), plan, given)
        return known

    def _schedule(self, call: Call) -> Schedule:
        if not self._order or (call.kind, call.algorithm) != ("all_reduce", "ring"):
            return call.schedule(self.rank, self.world_size, self._groups())
        place = self._order.index(self.rank)
        return in_order(call.schedule(place, self.world_size), self._order)

    def _withdraw(self, call: Call) -> None:
        self._group.stop("cancelled", f"{self._group.me} has cancelled its next {call.kind}")

    def _choose(self, kind: str, count: int, item_bytes: int) -> Algorithm:
        return self.explain(kind, count, item_bytes=item_bytes).algorithm

    def _groups(self) -> Groups:
        return self._hosts

    def _by_host(self) -> Groups:
        if isinstance(self._group, HostsRingGroup):
            return tuple(self._group.hosts)
        hosts: dict[str, list[int]] = {}
        for place, member in enumerate(self._group.formed.members):
            hosts.setdefault(member.host, []).append(place)
        return tuple(map(tuple, hosts.values()))

    def _neighbours_first(self) -> tuple[int, ...]:
        """Return an order in which the members of a host follow each other, if there are such."""
        if not isinstance(self._group, HostsRingGroup):
            return ()
        return tuple(place for host in self._hosts for place in host)

    def _again(self, call: Call, error: AiopsError) -> AiopsError:
        """Return the error of a call in a ring that has ended."""
        if not isinstance(error, CollectiveAborted | UsageError):
            return error.with_traceback(None)  # nothing works any more
        if isinstance(error, CollectiveMismatch) and not self._knows_mismatch:
            # The others were quicker to differ than this member to come to the same call.
            self._knows_mismatch = True
            return CollectiveMismatch(str(error))
        cause = error.cause if isinstance(error, CollectiveAborted) else "mismatch"
        return CollectiveAborted(
            f"{call.kind} of ring {self._name}: the ring has to be formed anew (await "
            f"ring.reform()), because {error}",
            ring=self._name,
            operation=call.kind,
            cause=cause,
            lost=error.lost if isinstance(error, CollectiveAborted) else (),
        )


class _Prepared(NamedTuple):
    """What the same call needs every time."""

    description: str
    plan: Plan
    given: tuple[Span, ...]  # the elements that it gives this rank
