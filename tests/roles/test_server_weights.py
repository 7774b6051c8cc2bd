"""Contributions that count more than others, and other things than their mean, at one server."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from aiops.roles.actions import Tell
from aiops.roles.losses import marks_of
from aiops.roles.rounds import Mark, Rounds
from aiops_protocol.control import DeathQuery, DeathVerdict, LossReport
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Flag
from aiops_protocol.payload import weight_bytes
from served import CONTRIBUTED, Served, acked, refusal, reply, values_of

F = np.float32
WEIGHTED = CONTRIBUTED | int(Flag.WEIGHT)


def sealed(served: Served, rank: int, clock: int, weight: float) -> list[Any]:
    return served.seal(rank, clock, WEIGHTED, payload=weight_bytes(weight))


def test_a_contribution_counts_by_its_weight() -> None:
    served = Served(2, workers=(0, 1, 2))
    for rank, value in enumerate((1, 5, 100)):
        served.push(rank, [value, value])
    sealed(served, 0, 0, 3)
    sealed(served, 1, 0, 1)
    served.seal(2, 0, 0)  # it says that it has pushed nothing: it is not in the divisor either
    assert values_of(reply(served.pull(0, clock=1))) == [2, 2]


def test_without_a_weight_it_is_one() -> None:
    served = Served(1, workers=(0, 1))
    served.push(0, [1])
    served.push(1, [5])
    sealed(served, 0, 0, 3)
    served.seal(1, 0)
    assert values_of(reply(served.pull(0, clock=1))) == [2]


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf, 1e-30, 1e30])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    served = Served(1)
    payload = struct.pack("<d", weight)
    code, text = refusal(served.seal(0, 0, WEIGHTED, payload=payload))
    assert code is ErrorCode.INVALID_SETTING
    assert "weight" in text
    assert acked(served.seal(0, 0))


@pytest.mark.parametrize("has_the_seal", [True, False])
def test_the_weight_of_a_lost_worker_is_the_same_at_all_shards(has_the_seal: bool) -> None:
    """Only one shard may have heard it: the verdict tells the others."""
    served = Served(1, workers=(0, 1))
    served.push(0, [1])
    served.push(1, [5])
    served.seal(0, 0)
    if has_the_seal:
        sealed(served, 1, 0, 3)
    told = served.core.order(DeathQuery(worker=1, incarnation=1), 0.0)
    (report,) = [action.message for action in told if isinstance(action, Tell)]
    assert isinstance(report, LossReport)
    known = {1: Mark(1, 1, (3.0,))} if has_the_seal else {1: Mark(0, 0)}
    assert marks_of(report) == known
    served.core.order(DeathVerdict(worker=1, sealed={1: (1, 1)}, weights={1: [3.0]}), 0.0)
    assert values_of(reply(served.pull(0, clock=1))) == [4]


def test_marks_tell_the_weights_of_several_rounds() -> None:
    rounds = Rounds([0])
    other = Rounds([0])
    for weight in (1.0, 1.0, 7.0, 1.0, 9.0):
        rounds.seal(0, True, final=False, weight=weight)
    mark = rounds.lose(0)
    assert mark == Mark(5, 0b11111, (9.0, 1.0, 7.0))
    assert [mark.weight(number) for number in range(5)] == [1, 1, 7, 1, 9]
    other.settle(0, mark)
    closed = [(rounds.close(), other.close()) for _ in range(5) if rounds.closable]
    assert [one for one, _ in closed] == [another for _, another in closed]
    assert [one[0] for one, _ in closed] == [1, 1, 7, 1, 9]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"reduce": "median"}, [2, 0]),
        ({"reduce": "trimmed_mean", "trim": 1}, [3, 0]),
        ({"reduce": "majority_sign"}, [1, 1]),
    ],
)
def test_other_reductions(settings: dict[str, Any], expected: list[float]) -> None:
    """The second element is what only one of five has pushed: zeros count, but for signs."""
    served = Served(2, workers=(0, 1, 2, 3, 4), **settings)
    for rank, value in enumerate((2, 1, 900, -50, 6)):
        served.push(rank, [value])
        if value > 6:
            served.push(rank, [7], begin=1)
    for rank in range(5):
        served.seal(rank, 0)
    assert values_of(reply(served.pull(0, clock=1))) == expected
