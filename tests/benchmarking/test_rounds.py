"""The peers take turns, the rows say what they should, and lost work is no result."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from aiops.benchmarking import processors
from aiops.benchmarking.raw import RawClient
from aiops.benchmarking.rounds import (
    PULL,
    PUSH,
    PUSH_IN_FLIGHT,
    Case,
    RawPeer,
    measure_in_turns,
)
from aiops.errors import AiopsError
from aiops_protocol.payload import Float32Array


class Scripted:
    """A peer whose every operation takes as long as it was told, and that keeps the sums."""

    def __init__(self, name: str, seconds: list[float], story: list[str], lost: int = 0) -> None:
        self.name = name
        self._seconds = seconds
        self._story = story
        self._pushes = -lost

    async def sample(self, case: Case) -> list[float]:
        self._story.append(f"{self.name} {case.op} {case.count}")
        self._pushes += case.count if case.op != PULL else 0
        return self._seconds[: case.count]

    async def pull(self, out: Float32Array) -> None:
        out[:] = self._pushes


async def test_peers_take_turns_within_each_round() -> None:
    story: list[str] = []
    peers = [Scripted("aiops", [1.0], story), Scripted("raw", [1.0], story)]
    lines: list[str] = []
    cases = [Case(PUSH, 4, 1), Case(PULL, 4, 1)]
    await measure_in_turns(peers, cases, rounds=2, progress=lines.append)
    warm_up, turns = story[:4], story[4:]
    assert warm_up == ["aiops push 1", "aiops pull 1", "raw push 1", "raw pull 1"]
    assert turns == ["aiops push 1", "raw push 1", "aiops pull 1", "raw pull 1"] * 2
    assert lines == ["round 1 of 2", "round 2 of 2"]


async def test_rows_compare_medians_with_the_last_peer() -> None:
    peers = [Scripted("aiops", [0.3, 0.1, 0.2], []), Scripted("raw", [0.1, 0.1, 0.4], [])]
    ours, raw = await measure_in_turns(peers, [Case(PUSH, 1000, 3)], rounds=2)
    assert (ours.op, ours.bytes, ours.peer) == (PUSH, 1000, "aiops")
    assert (ours.min_s, ours.median_s, ours.max_s) == (0.1, 0.2, 0.3)
    assert ours.ratio_to_raw == pytest.approx(2.0)
    assert ours.throughput_of_raw == pytest.approx(0.5)
    assert ours.mb_per_s == pytest.approx(0.005)
    assert (raw.peer, raw.ratio_to_raw) == ("raw", 1.0)


@pytest.mark.parametrize("lost", [1, -1])
async def test_a_lost_or_repeated_push_is_an_error(lost: int) -> None:
    peers = [Scripted("aiops", [1.0], [], lost=lost), Scripted("raw", [1.0], [])]
    with pytest.raises(AiopsError, match="aiops: 3 pushes of 4 bytes"):
        await measure_in_turns(peers, [Case(PUSH, 4, 1)], rounds=2)


async def test_the_raw_peer_does_every_kind_of_case(raw_client: RawClient) -> None:
    cases = [Case(PUSH, 64, 3), Case(PULL, 64, 3), Case(PUSH_IN_FLIGHT, 64, 100)]
    rows = await measure_in_turns([RawPeer(raw_client)], cases, rounds=2)
    assert [row.op for row in rows] == [PUSH, PULL, PUSH_IN_FLIGHT]
    assert all(0 < row.min_s <= row.median_s <= row.max_s for row in rows)


@pytest.mark.skipif(sys.platform != "linux", reason="processors can be chosen on Linux only")
def test_each_side_has_its_processor_and_gives_it_back() -> None:
    before = os.sched_getaffinity(0)
    with processors.placed(0):
        client = os.sched_getaffinity(0)
    with processors.placed(1):
        servers = os.sched_getaffinity(0)
    assert os.sched_getaffinity(0) == before
    assert client | servers <= before
    assert len(before) < 2 or client.isdisjoint(servers)


@pytest.mark.parametrize(
    ("siblings", "allowed", "chosen"),
    [
        ("0-1", [0, 1, 2, 3], (0, 2)),
        ("0,4", [0, 1, 4, 5], (0, 1)),
        ("0-1", [0, 1], (0, 1)),
        ("nonsense", [0, 1], (0, 1)),
        ("3", [3], None),
    ],
)
def test_the_second_thread_of_a_core_comes_last(
    siblings: str,
    allowed: list[int],
    chosen: tuple[int, int] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listing = tmp_path / f"{allowed[0]}"
    listing.write_text(siblings + "\n")
    monkeypatch.setattr(processors, "_SIBLINGS", str(tmp_path / "{}"))
    assert processors._two_of(allowed) == chosen


def test_sums_of_ones_stay_exact() -> None:
    """Float32 counts to 2**24; the longest benchmark pushes fewer."""
    assert np.float32(2**24 - 1) + np.float32(1) == 2**24
