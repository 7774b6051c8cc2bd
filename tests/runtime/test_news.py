"""The membership on its way to everybody: the newest, once for all changes of a turn, in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops import Worker
from aiops.runtime.news import News
from aiops.runtime.postoffice import Postoffice
from aiops_protocol.codec import encode
from aiops_protocol.control import ClusterState
from aiops_protocol.frames import Control
from local_jobs import local_job


def state(epoch: int) -> ClusterState:
    return ClusterState(epoch=epoch, members=[], expected_servers=1, expected_workers=0, ready=True)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["change", "word", "turn"]))))
def test_everybody_hears_the_newest_before_anything_else(events: list[tuple[int, str]]) -> None:
    """`change` is told to all but one, `word` is another message to one, `turn` the end of one."""
    news, epoch = News(), 0
    due: dict[int, int] = {}
    for peer, event in events:
        if event == "change":
            epoch += 1
            told = state(epoch)
            first = [news.put(told, other) for other in range(4) if other != peer]
            assert first == [not due, False, False]
            due |= dict.fromkeys((other for other in range(4) if other != peer), epoch)
        elif event == "word":
            newest = due.pop(peer, None)
            assert news.take(peer) == (None if newest is None else encode(Control(state(epoch))))
        else:
            peers, frame = news.take_all()
            assert set(peers) == set(due)
            if due:
                assert frame == encode(Control(state(epoch)))
            due = {}


async def test_many_who_come_and_go_together_hear_little_of_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers, heard = 40, 0
    control_message = Postoffice.control_message

    def counted(self: Postoffice, message: Any) -> None:
        nonlocal heard
        heard += isinstance(message, ClusterState)
        control_message(self, message)

    monkeypatch.setattr(Postoffice, "control_message", counted)

    async def visit(worker: Worker) -> int:
        return worker.world_size

    async with local_job() as cluster:
        assert await cluster.run(visit, workers=workers) == [workers] * workers
    assert heard < workers * workers  # of 2 * 40 changes each
