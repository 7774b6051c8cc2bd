"""Optimizers that fail at a server: what is told to whom, what is left, what goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from aiops.optim import Optimizer, Steps, register
from aiops.roles.actions import Ended, Note, Send
from aiops.shards.shard import Shard
from aiops.shards.sparse import NoRoom
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Reject
from aiops_protocol.payload import Float32Array
from served import CONTRIBUTED, FINAL, Served, acked, closings, refusal


@register
@dataclass(frozen=True, slots=True)
class Picky(Optimizer):
    """Refuses thirteen, after it has changed everything."""

    name: ClassVar[str] = "picky"

    def update(
        self,
        values: Float32Array,
        gradient: Float32Array,
        state: Mapping[str, Float32Array],
        step: Steps,
        scratch: Float32Array,
    ) -> None:
        values += 1
        if (gradient == 13).any():
            raise ZeroDivisionError("thirteen")


def test_an_optimizer_that_raises_in_asp_has_changed_nothing_and_the_server_lives() -> None:
    served = Served(consistency="asp", optimizer="picky")
    code, text = refusal(served.push(0, np.full(8, 13)))
    assert code is ErrorCode.OPTIMIZER_FAILED
    assert "thirteen" in text
    assert not served.values.any()
    assert refusal(served.push(0, np.full(8, 13), seq=1, answered_below=1))[0] is code
    assert acked(served.push(0, np.full(8, 1)))
    assert (served.values == 1).all()


def test_an_optimizer_that_raises_in_bsp_breaks_its_table_by_name_and_nothing_else() -> None:
    """Nothing of the round is applied; whoever waits for it, or comes later, is told."""
    served = Served(workers=(0, 1), optimizer="picky")
    served.push(0, np.full(8, 13))
    served.seal(0, 0, flags=CONTRIBUTED)
    assert served.pull(0, clock=1) == []
    assert served.push(0, np.ones(8), clock=1) == []
    actions = served.seal(1, 0, flags=0)
    assert not any(isinstance(action, Ended) for action in actions)
    assert served.core.ended is None
    assert closings(actions) == []
    (note,) = [action for action in actions if isinstance(action, Note)]
    assert note.fields["table"] == "w"
    refused = [action.frame for action in actions if isinstance(action, Send)]
    codes = [frame.status for frame in refused if isinstance(frame, Reject)]
    assert codes == [ErrorCode.OPTIMIZER_FAILED] * 2, "the pull and the push that waited"
    for answer in (served.pull(0, clock=0), served.push(1, np.ones(8), clock=1)):
        code, text = refusal(answer)
        assert code is ErrorCode.OPTIMIZER_FAILED
        assert "the optimizer picky of table w failed: ZeroDivisionError('thirteen')" in text
        assert "in round 0" in text
    assert not served.values.any()
    for clock in range(1, 5):  # the worker's other tables go on, and so do its ticks
        assert acked(served.seal(0, clock, flags=CONTRIBUTED))
        assert acked(served.seal(1, clock, flags=0))
    assert acked(served.seal(0, 5, flags=FINAL))
    served.core.validate()


def test_a_round_whose_new_rows_have_no_room_breaks_the_table_in_other_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is no mistake of the optimizer, which has not been asked."""

    def full(shard: Shard, *_: object) -> None:
        raise NoRoom("7 new rows of 12 bytes have no place")

    served = Served()
    monkeypatch.setattr(Shard, "step", full)
    served.push(0, np.ones(8))
    served.seal(0, 0)
    code, text = refusal(served.pull(0, clock=1))
    assert code is ErrorCode.OPTIMIZER_FAILED
    assert "table w has no room for the rows that are new: 7 new rows of 12 bytes" in text
