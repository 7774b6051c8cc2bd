"""The values of bulk-synchronous tables: each version is the one before it and one round.

For tables whose optimizer is `add` and whose whole values were recorded. The contribution of a
worker counts if any shard has taken its seal; one whose seal has an unknown outcome counts in all
shards or in none. It is computed as the servers do, in float32 and in the order of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Final

import numpy as np

from aiops.shards.reduction import reduction_from
from aiops.testing.history.format import Opened
from aiops.testing.history.run import Operation, Part, Run
from aiops.testing.history.values import checkable, elements, parts_by_shard
from aiops.testing.history.violation import Violation
from aiops_protocol.payload import Float32Array

__all__ = ["values_of_rounds"]

UNCERTAIN_MAX: Final = 10
"""Uncertain things in one round that are tried in and out together: 1024 ways."""


@dataclass(slots=True)
class _Contribution:
    """What one incarnation of a worker has given to one round of a table."""

    rank: int
    clock: int
    seal: Operation
    pushes: list[Operation] = field(default_factory=list)
    followed: bool = False  # by something of a later clock that was taken: it was not lost
    may_miss: bool = False  # the round may have closed without it, whatever became of its seal

    @property
    def counts(self) -> bool | None:
        """Whether it is in the round; `None` if that is not known."""
        if self.may_miss:
            return None
        outcomes = {part.ended.outcome for part in self.seal.parts}
        if self.followed or "ok" in outcomes:
            return True
        return None if "unknown" in outcomes else False

    @property
    def contributed(self) -> bool:
        """Whether it counts in the divisor."""
        return self.seal.invoked.contributed

    def parts(self, shard: int) -> list[Part]:
        """Return what of it went to a shard, in the order of the calls."""
        return [
            part
            for push in self.pushes
            for part in push.parts
            if part.asked.shard == shard and part.may_apply
        ]


Way = tuple[bool, ...]


class _Shard:
    """One shard of a table, round by round."""

    def __init__(self, opened: Opened, index: int, parts: list[Part]) -> None:
        self._opened = opened
        self._index = index
        _, self._begin, end = opened.shards[index]
        self.state: Float32Array | None = np.full(end - self._begin, opened.init, np.float32)
        self._seen: dict[int, list[Part]] = defaultdict(list)
        for part in parts:
            if part.ok and part.ended.values is not None:
                self._seen[part.ended.version].append(part)

    @property
    def versions(self) -> list[int]:
        """Versions of which some values were seen."""
        return sorted(self._seen)

    def fits(self, state: Float32Array, version: int) -> Part | None:
        """Return a pull of the version that saw something else than `state`, if there is one."""
        for pull in self._seen.get(version, ()):
            seen = np.asarray(pull.ended.values, np.float32)
            if not np.array_equal(state[elements(pull, self._begin)], seen):
                return pull
        return None

    def close(self, version: int, round_: list[_Contribution]) -> list[tuple[Way, Float32Array]]:
        """Return every way in which the round may have gone, with the values that follow."""
        uncertain = self._uncertain(round_)
        if self.state is None or len(uncertain) > UNCERTAIN_MAX:
            self.state = self._anchor(version)
            return []
        return [
            (way, self._values(round_, dict(zip(uncertain, way, strict=True))))
            for way in product((False, True), repeat=len(uncertain))
        ]

    def _anchor(self, version: int) -> Float32Array | None:
        """Start again from a pull of everything, where it can't be computed what must be there."""
        size = self._opened.shards[self._index][2] - self._begin
        for pull in self._seen.get(version, ()):
            if len(elements(pull, self._begin)) == size:
                return np.asarray(pull.ended.values, np.float32)
        return None

    def _uncertain(self, round_: list[_Contribution]) -> list[int]:
        """Return what may be in or out: ids of contributions and of parts."""
        found = [id(one) for one in round_ if one.counts is None]
        found += [id(part) for one in round_ for part in one.parts(self._index) if not part.ok]
        return found

    def _values(self, round_: list[_Contribution], way: dict[int, bool]) -> Float32Array:
        assert self.state is not None
        state = self.state.copy()
        gradients: list[Float32Array] = []
        weights: list[float] = []
        for one in sorted(round_, key=lambda contribution: (contribution.rank, contribution.clock)):
            if not way.get(id(one), one.counts):
                continue
            gradient = np.zeros_like(state)
            for part in one.parts(self._index):
                if not way.get(id(part), True):
                    continue
                places = elements(part, self._begin)
                values = np.asarray(part.asked.values, np.float32)
                if part.operation.kind == "assign":
                    state[places] = values
                else:
                    gradient[places] += values
            if one.contributed:
                gradients.append(gradient)
                weights.append(one.seal.invoked.weight)
        return state + self._reduced(gradients, weights) if gradients else state

    def _reduced(self, gradients: list[Float32Array], weights: list[float]) -> Float32Array:
        reduction = reduction_from(self._opened.reduce, self._opened.trim)
        assert reduction is not None
        total = np.empty_like(gradients[0])
        plain = not reduction.takes_weights or set(weights) == {1.0}
        reduction.reduce(gradients, None if plain else weights, total)
        return total


def values_of_rounds(run: Run) -> Iterator[Violation]:
    """Check every version of the tables with rounds that can be computed.

    Of a quorum it is not known who was in time: there has to be some choice of contributions, the
    same at every shard, that gives what was seen, and none may be in two rounds.
    """
    if run.missing():
        return
    for table, opened in run.tables.items():
        if opened.mode in ("bsp", "quorum") and checkable(opened):
            yield from _check(run, table, opened)


def _check(run: Run, table: int, opened: Opened) -> Iterator[Violation]:
    rounds = _rounds(run, table)
    shards = {
        index: _Shard(opened, index, parts) for index, parts in parts_by_shard(run, table).items()
    }
    last = max((shard.versions[-1] for shard in shards.values() if shard.versions), default=0)
    for index, shard in shards.items():
        assert shard.state is not None
        wrong = shard.fits(shard.state, 0)
        if wrong is not None:
            yield _differs(opened, index, wrong, [])
            return
    taken: set[int] = set()
    for version in range(1, last + 1):
        round_ = _candidates(opened, rounds, version - 1, taken)
        decided: dict[int, set[bool]] = {id(one): {True, False} for one in round_}
        for index, shard in shards.items():
            violation = _close(opened, index, shard, version, round_, decided)
            if violation is not None:
                yield violation
                return
        taken |= {one for one, is_in in decided.items() if is_in == {True}}


def _candidates(
    opened: Opened, rounds: dict[int, list[_Contribution]], number: int, taken: set[int]
) -> list[_Contribution]:
    """Return what may be in a round: what was given to it, and late ones where those are kept."""
    if not opened.keeps_late:
        return rounds.get(number, [])
    return [
        one
        for earlier in range(number + 1)
        for one in rounds.get(earlier, [])
        if id(one) not in taken and (earlier == number or one.contributed)
    ]


def _close(
    opened: Opened,
    index: int,
    shard: _Shard,
    version: int,
    round_: list[_Contribution],
    decided: dict[int, set[bool]],
) -> Violation | None:
    """Take one shard through the close of a round, and see what its pulls say about it."""
    ways = shard.close(version, round_)
    if not ways:
        return None
    fitting = [(way, state) for way, state in ways if shard.fits(state, version) is None]
    if not fitting:
        wrong = shard.fits(ways[-1][1], version)
        assert wrong is not None
        return _differs(opened, index, wrong, round_)
    uncertain = [one for one in round_ if one.counts is None]
    for place, one in enumerate(uncertain):
        decided[id(one)] &= {way[place] for way, _ in fitting}
        if not decided[id(one)]:
            text = (
                f"the contribution of {one.seal.worker} to round {version - 1} of table "
                f"{opened.name} is in some shards and not in others"
            )
            return Violation("exactly-once", text, (*one.pushes[-3:], one.seal))
    states = [state for _, state in fitting]
    same = all(np.array_equal(state, states[0]) for state in states)
    shard.state = states[0] if same else None
    return None


def _rounds(run: Run, table: int) -> dict[int, list[_Contribution]]:
    """Return what was given to each round, by whom; what was never sealed is discarded."""
    rounds: dict[int, list[_Contribution]] = defaultdict(list)
    for worker in run.workers:
        pushes: dict[int, list[Operation]] = defaultdict(list)
        sealed: dict[int, _Contribution] = {}
        newest = -1
        for operation in worker.operations:
            if operation.table_id != table or not operation.parts or operation.kind == "pull":
                continue
            clock = operation.parts[0].asked.clock
            if any(part.ok for part in operation.parts):
                newest = max(newest, clock)
            if operation.changes:
                pushes[clock].append(operation)
            elif operation.kind == "seal" and not operation.invoked.final:
                rank = worker.header.worker
                sealed[clock] = _Contribution(rank, clock, operation, pushes[clock])
                sealed[clock].may_miss = operation.table.mode == "quorum"
        for clock, contribution in sealed.items():
            contribution.followed = clock < newest
            rounds[clock].append(contribution)
    return rounds


def _differs(opened: Opened, index: int, pull: Part, round_: list[_Contribution]) -> Violation:
    version = pull.ended.version
    pushes = [push for one in round_ for push in one.pushes]
    text = (
        f"version {version} of shard {index} of table {opened.name} is not version "
        f"{version - 1} and the contributions of round {version - 1}: one is lost, doubled, or "
        "came after the close"
        if version
        else f"version 0 of shard {index} of table {opened.name} is not what it was created with"
    )
    return Violation("exactly-once", text, (*pushes[-4:], pull.operation))
