"""Measure several peers that do the same work, in turns, and give the figures as rows.

Here live what a case and a row are, the loop over rounds, and the raw socket as a peer. The rounds
are interleaved (aiops, raw, aiops, raw), so what else the machine does hits both; the ratio of the
medians is the figure to look at, the times themselves belong to the machine.

At the end each peer is asked for its sums, so one that lost a push or applied one twice measures
nothing.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final, Protocol

import numpy as np

from aiops.benchmarking.raw import RawClient
from aiops.errors import AiopsError
from aiops_protocol.payload import Float32Array

IN_FLIGHT: Final = 64

PUSH: Final = "push"
PULL: Final = "pull"
PUSH_IN_FLIGHT: Final = f"push, {IN_FLIGHT} in flight"


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure: an operation of a size, and how often in each round.

    Parameters
    ----------
    op
        ``PUSH``, ``PULL`` or ``PUSH_IN_FLIGHT``.
    size
        Bytes of float32 in each.
    count
        How many make a round. Each is a sample, except in flight: there the round is one sample,
        its seconds divided by `count`.
    """

    op: str
    size: int
    count: int


@dataclass(frozen=True, slots=True)
class Row:
    """What came out for one operation, size and peer; seconds are of one operation."""

    op: str
    bytes: int
    peer: str
    median_s: float
    min_s: float
    max_s: float
    ratio_to_raw: float
    mb_per_s: float
    throughput_of_raw: float


class Peer(Protocol):
    """Something that can be measured."""

    @property
    def name(self) -> str:
        """What the rows call it."""

    async def sample(self, case: Case) -> list[float]:
        """Perform one round of a case; return seconds per operation."""

    async def pull(self, out: Float32Array) -> None:
        """Read what the server holds for arrays of this size."""


async def measure_in_turns(
    peers: Sequence[Peer],
    planned: Sequence[Case],
    *,
    rounds: int,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Measure several peers, changing between them within each round.

    Parameters
    ----------
    peers
        What is measured; the last one is what the others are compared with.
    planned
        The cases.
    rounds
        How often all of it is done, after one operation of each case that is not counted.
    progress
        Called with one line before each round.
    """
    for peer in peers:
        for case in planned:
            await peer.sample(replace(case, count=1))
    samples: dict[tuple[str, Case], list[float]] = {
        (peer.name, case): [] for peer in peers for case in planned
    }
    for number in range(1, rounds + 1):
        progress(f"round {number} of {rounds}")
        for case in planned:
            for peer in peers:
                samples[peer.name, case] += await peer.sample(case)
    for peer in peers:
        await _check_sums(peer, planned, rounds)
    return [
        _row(case, peer.name, samples[peer.name, case], samples[peers[-1].name, case])
        for case in planned
        for peer in peers
    ]


class RawPeer:
    """The raw socket as a peer. Its calls block the event loop: nothing else is to run then."""

    name = "raw"

    def __init__(self, client: RawClient) -> None:
        self._client = client

    async def sample(self, case: Case) -> list[float]:
        """Perform one round of a case."""
        array = np.ones(case.size // 4, np.float32)
        if case.op == PUSH_IN_FLIGHT:
            return [self._client.push_many(array, case.count, IN_FLIGHT) / case.count]
        operation = self._client.push if case.op == PUSH else self._client.pull
        samples = []
        for _ in range(case.count):
            started_at = perf_counter()
            operation(array)
            samples.append(perf_counter() - started_at)
        return samples

    async def pull(self, out: Float32Array) -> None:
        """Read what the server holds."""
        self._client.pull(out)


async def _check_sums(peer: Peer, planned: Sequence[Case], rounds: int) -> None:
    """See to it that the server did the work that was timed."""
    pushes: Counter[int] = Counter()
    for case in planned:
        if case.op != PULL:
            pushes[case.size] += case.count * rounds + 1
    for size, count in pushes.items():
        values = np.empty(size // 4, np.float32)
        await peer.pull(values)
        if not (values == count).all():
            raise AiopsError(
                f"{peer.name}: {count} pushes of {size} bytes of ones gave "
                f"{values.min()} to {values.max()}"
            )


def _row(case: Case, peer: str, samples: Sequence[float], raw: Sequence[float]) -> Row:
    median_s = statistics.median(samples)
    raw_s = statistics.median(raw)
    return Row(
        op=case.op,
        bytes=case.size,
        peer=peer,
        median_s=median_s,
        min_s=min(samples),
        max_s=max(samples),
        ratio_to_raw=median_s / raw_s,
        mb_per_s=case.size / median_s / 1e6,
        throughput_of_raw=raw_s / median_s,
    )
