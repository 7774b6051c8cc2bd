"""A model of a correct cluster that makes up histories, and that can be given one bug.

No network and no code of aiops: workers are generators, time is a counter that rises with each
step of any of them, and what the servers do is written down here in the shortest possible way.
Answers get lost, are asked for again, come never; workers die. With a `bug` one thing goes wrong
once, and `fired` says whether there was an occasion for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from aiops.testing.history.format import Outcome, PartAsked, PartEnded
from aiops.testing.history.run import Run
from history_builder import ASP, BSP, SIZE, Author, run_of

Values = list[float]
Life = Generator[Callable[[], bool] | None, None, None]

BUGS = (
    "lost",
    "lost value",
    "applied twice",
    "value applied twice",
    "no dedup",
    "refused and applied",
    "stale pull",
    "closed round changed",
    "closed too early",
    "barrier left early",
)


@dataclass
class AspShard:
    """Values now, and of every version."""

    past: list[Values] = field(default_factory=lambda: [[0.0] * SIZE])
    seen: int = 0  # the newest version of any call that has ended

    @property
    def version(self) -> int:
        return len(self.past) - 1

    def add(self, amount: Values) -> None:
        self.past.append([a + b for a, b in zip(self.past[-1], amount, strict=True)])


@dataclass
class BspShard:
    """Values of every closed version, and the open round."""

    past: list[Values] = field(default_factory=lambda: [[0.0] * SIZE])
    given: dict[int, Values] = field(default_factory=dict)
    sealed: set[int] = field(default_factory=set)
    upto: dict[int, int] = field(default_factory=dict)  # clocks sealed, by rank

    @property
    def version(self) -> int:
        return len(self.past) - 1

    def give(self, rank: int, amount: Values) -> None:
        old = self.given.get(rank, [0.0] * SIZE)
        self.given[rank] = [a + b for a, b in zip(old, amount, strict=True)]

    def seal(self, rank: int) -> None:
        self.sealed.add(rank)
        self.upto[rank] = self.upto.get(rank, 0) + 1

    def close(self, members: set[int]) -> None:
        if members and self.sealed >= members:
            values = list(self.past[-1])
            for rank in sorted(self.sealed):
                values = [
                    a + b for a, b in zip(values, self.given.get(rank, [0.0] * SIZE), strict=True)
                ]
            self.past.append(values)
            self.given = {rank: v for rank, v in self.given.items() if rank not in self.sealed}
            self.sealed = set()


class Model:
    """One made-up run."""

    def __init__(
        self,
        seed: int,
        *,
        workers: int = 3,
        shards: int = 2,
        steps: int = 4,
        deaths: bool = True,
        bug: str = "",
    ) -> None:
        self.chance = random.Random(seed)
        self.now = 0
        self.bug = bug
        self.fired = False
        self.steps = steps
        self.deaths = deaths and not bug
        self.asp = [AspShard() for _ in range(shards)]
        self.bsp = [BspShard() for _ in range(shards)]
        self.members = set(range(workers))
        self.opened = 0  # generations of the barrier
        self.entered: dict[int, set[int]] = {}
        self.late: list[Callable[[], None]] = []
        self.authors = [Author(rank, shards=shards) for rank in range(workers)]
        self.lives = {author.rank: self.live(author) for author in self.authors}
        self.waiting: dict[int, Callable[[], bool] | None] = dict.fromkeys(self.lives)

    def run(self) -> Run:
        while self.lives:
            ready = [r for r in self.lives if (w := self.waiting[r]) is None or w()]
            assert ready, "the model itself is stuck"
            if self.late and self.chance.random() < 0.1:
                self.late.pop(self.chance.randrange(len(self.late)))()
            rank = self.chance.choice(ready)
            if self.deaths and len(self.lives) > 1 and self.chance.random() < 0.003:
                self.die(rank)
                continue
            try:
                self.waiting[rank] = next(self.lives[rank])
            except StopIteration:
                del self.lives[rank]
        return run_of(*self.authors)

    def moment(self) -> int:
        """Return the time; no two events have the same."""
        self.now += 1
        return self.now

    def strikes(self, bug: str, probability: float = 0.3) -> bool:
        """Whether the bug happens here and now, for the only time."""
        if self.bug != bug or self.fired or self.chance.random() > probability:
            return False
        self.fired = True
        return True

    # --- workers ---

    def live(self, author: Author) -> Life:
        for clock in range(self.steps):
            if self.chance.random() < 0.7:
                yield from self.push(author, clock)
            if self.chance.random() < 0.5:
                yield from self.pull(author)
            yield from self.round(author, clock)
            if clock % 2:
                yield from self.barrier(author, clock // 2 + 1)
        yield from self.barrier(author, self.steps // 2 + 1)
        yield from self.pull(author)
        yield from self.pull_round(author, self.steps)
        author.finish(self.moment(), self.moment())
        self.members.discard(author.rank)
        self.reconsider()
        yield None
        author.close(self.now)

    def die(self, rank: int) -> None:
        """A contribution of the dead counts everywhere if any shard has its seal."""
        del self.lives[rank]
        newest = max(shard.upto.get(rank, 0) for shard in self.bsp)
        for shard in self.bsp:
            if shard.upto.get(rank, 0) < newest:
                shard.seal(rank)
            elif rank not in shard.sealed:
                shard.given.pop(rank, None)
        self.members.discard(rank)
        self.reconsider()

    def reconsider(self) -> None:
        for shard in self.bsp:
            shard.close(self.members)
        self.open_barriers()

    # --- asynchronous ---

    def push(self, author: Author, clock: int) -> Life:
        amount = [0.0] * SIZE
        amount[author.rank % SIZE] = 4.0**clock
        shards = range(len(self.asp))
        asked = [author.asked(shard, amount) for shard in shards]
        op = author.invoke(self.moment(), "push", table=ASP, parts=asked)
        answers: list[PartEnded] = []
        for shard in shards:
            yield None
            answers.append((yield from self.push_part(author, shard, amount)))
        yield None
        self.end(author, op, answers, shards)

    def push_part(
        self, author: Author, index: int, amount: Values
    ) -> Generator[Callable[[], bool] | None, None, PartEnded]:
        shard, seq, fate = self.asp[index], author.number(ASP, index), self.chance.random()
        if fate < 0.1:
            if self.chance.random() < 0.5:
                self.late.append(lambda: shard.add(amount))
            return author.answer(0, outcome="unknown", seq=seq)
        if fate < 0.15 or (self.bug == "refused and applied" and fate < 0.3):
            if self.strikes("refused and applied", 1.0):
                shard.add(amount)
            return author.answer(0, outcome="fail", seq=seq)
        if self.strikes("lost"):
            return author.answer(shard.version, seq=seq)
        shard.add([0.0] * SIZE if self.strikes("lost value") else amount)
        if self.strikes("applied twice"):
            shard.add(amount)
        if self.strikes("value applied twice"):
            shard.past[-1] = [a + b for a, b in zip(shard.past[-1], amount, strict=True)]
        version = shard.version
        if fate < 0.4:
            yield None
            if self.strikes("no dedup", 1.0):
                shard.add(amount)
            return author.answer(shard.version, seq=seq, resent=True)
        return author.answer(version, seq=seq)

    def pull(self, author: Author) -> Life:
        shards = range(len(self.asp))
        asked = [author.asked(shard) for shard in shards]
        op = author.invoke(self.moment(), "pull", table=ASP, parts=asked)
        before = [shard.seen for shard in self.asp]
        answers = []
        for index in shards:
            yield None
            shard, version = self.asp[index], self.asp[index].version
            if before[index] and self.strikes("stale pull"):
                version = before[index] - 1
            answers.append(author.answer(version, shard.past[version]))
        yield None
        self.end(author, op, answers, shards)

    def end(self, author: Author, op: int, answers: list[PartEnded], shards: range) -> None:
        outcomes = {answer.outcome for answer in answers}
        outcome: Outcome = (
            "unknown" if "unknown" in outcomes else "fail" if "fail" in outcomes else "ok"
        )
        author.end(self.moment(), op, outcome, answers)
        for shard, answer in zip(shards, answers, strict=True):
            self.asp[shard].seen = max(self.asp[shard].seen, answer.version)

    # --- rounds ---

    def round(self, author: Author, clock: int) -> Life:
        rank, shards = author.rank, range(len(self.bsp))
        yield from self.pull_round(author, clock)
        pushes = self.chance.randint(0, 2)
        for number in range(pushes):
            amount = [0.0] * SIZE
            amount[rank % SIZE] = 2.0 ** (2 * clock + number)
            asked = [author.asked(shard, amount, clock) for shard in shards]
            op = author.invoke(self.moment(), "push", table=BSP, parts=asked)
            answers = []
            for index in shards:
                yield None
                answers.append(self.give(author, index, clock, amount))
            yield None
            outcomes = {answer.outcome for answer in answers}
            author.end(self.moment(), op, "unknown" if "unknown" in outcomes else "ok", answers)
            if self.strikes("closed too early", 0.5 if "ok" in outcomes else 0.0):
                for shard in self.bsp:
                    shard.given.pop(rank, None)
        yield from self.seal(author, clock, contributed=pushes > 0)

    def give(self, author: Author, index: int, clock: int, amount: Values) -> PartEnded:
        lost = self.chance.random() < 0.1
        if not lost or self.chance.random() < 0.5:
            self.bsp[index].give(author.rank, amount)
        return author.answer(
            0 if lost else clock,
            outcome="unknown" if lost else "ok",
            seq=author.number(BSP, index),
        )

    def seal(self, author: Author, clock: int, *, contributed: bool) -> Life:
        shards = range(len(self.bsp))
        tick = author.invoke(self.moment(), "tick", clock=clock)
        parts = [PartAsked(shard=shard, begin=0, end=0, clock=clock) for shard in shards]
        op = author.invoke(self.moment(), "seal", table=BSP, parts=parts, contributed=contributed)
        answers = []
        for index in shards:
            yield None
            shard = self.bsp[index]
            shard.seal(author.rank)
            lost = self.chance.random() < 0.1
            answers.append(
                author.answer(
                    0 if lost else clock,
                    outcome="unknown" if lost else "ok",
                    seq=author.number(BSP, index),
                )
            )
            shard.close(self.members)
        yield None
        lost_any = any(answer.outcome != "ok" for answer in answers)
        author.end(self.moment(), op, "unknown" if lost_any else "ok", answers)
        author.end(self.moment(), tick)

    def pull_round(self, author: Author, clock: int) -> Life:
        shards = range(len(self.bsp))
        asked = [author.asked(shard, clock=clock) for shard in shards]
        op = author.invoke(self.moment(), "pull", table=BSP, parts=asked)
        answers = []
        for index in shards:
            shard = self.bsp[index]
            yield lambda shard=shard: shard.version >= clock  # type: ignore[misc]
            if clock and self.strikes("closed round changed", 0.1):
                shard.past[clock] = [value + 1 for value in shard.past[clock]]
            answers.append(author.answer(clock, shard.past[clock]))
        yield None
        author.end(self.moment(), op, "ok", answers)

    # --- barriers ---

    def barrier(self, author: Author, generation: int) -> Life:
        op = author.invoke(self.moment(), "barrier", name="b")
        self.entered.setdefault(generation, set()).add(author.rank)
        self.open_barriers()
        absent = self.members - self.entered[generation]
        if len(absent) == 1 and self.strikes("barrier left early", 1.0):
            self.opened = generation
            author.end(self.moment(), op, "ok", generation=generation)
            return
        yield lambda: self.opened >= generation
        author.end(self.moment(), op, "ok", generation=generation)

    def open_barriers(self) -> None:
        waiting = self.entered.get(self.opened + 1)
        if waiting is not None and waiting >= self.members:
            self.opened += 1
