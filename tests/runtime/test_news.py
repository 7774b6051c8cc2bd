"""The membership on its way to everybody: the newest, once for all changes of a turn, in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops import Worker
from aiops.roles.member_changes import difference
from aiops.runtime.control_link import ControlLink
from aiops.runtime.news import News
from aiops.runtime.postoffice import Postoffice
from aiops_protocol.codec import encode
from aiops_protocol.control import ClusterChange, ClusterState, Member
from aiops_protocol.errors import UnexpectedFrame
from aiops_protocol.frames import Control
from local_jobs import local_job


def state(epoch: int) -> ClusterState:
    """A membership with one node more for each epoch, the last one of which has left."""
    members = [
        Member(
            role="worker",
            rank=rank,
            name=f"w{rank}",
            incarnation=1,
            state="left" if rank == epoch - 1 else "alive",
        )
        for rank in range(epoch)
    ]
    return ClusterState(
        epoch=epoch, members=members, expected_servers=1, expected_workers=0, ready=True
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["change", "word", "turn", "end"]))))
def test_everybody_hears_the_newest_before_anything_else(events: list[tuple[int, str]]) -> None:
    """`change` is told to all but one, `word` is another message to one, `turn` the end of one.

    After `end` there is a new node under that number. Who has heard of one membership hears what
    is different in the next one.
    """
    news, newest = News(), state(0)
    due: dict[int, ClusterState] = {}
    known: dict[int, ClusterState] = {}

    def frame(peer: int) -> object:
        before = known.get(peer)
        known[peer] = newest
        return encode(Control(newest if before is None else difference(before, newest)))

    for number, (peer, event) in enumerate(events, start=1):
        if event == "change":
            newest = state(number)
            first = [news.put(newest, other) for other in range(4) if other != peer]
            assert first == [not due, False, False]
            due |= dict.fromkeys((other for other in range(4) if other != peer), newest)
        elif event == "word":
            waited = due.pop(peer, None) is not None
            assert news.take(peer) == (frame(peer) if waited else None)
        elif event == "end":
            news.forget(peer)
            due.pop(peer, None)
            known.pop(peer, None)
        else:
            told = dict(news.take_all())
            assert set(told) == set(due)
            assert all(told[other] == frame(other) for other in due)
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


async def test_who_comes_after_the_others_is_one_change_to_each_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the whole list to each: that is n times n times n members."""
    workers, heard = 30, 0
    whole = ControlLink._whole

    def counted(self: ControlLink, message: Any) -> Any:
        nonlocal heard
        if isinstance(message, ClusterState | ClusterChange):
            heard += len(message.members)
        return whole(self, message)

    monkeypatch.setattr(ControlLink, "_whole", counted)
    async with local_job() as cluster:
        here = [await cluster.connect() for _ in range(workers)]
        for worker in here:
            await worker.close()
    assert heard < 4 * workers * workers  # whole lists are ten times as many


async def test_a_change_of_what_is_not_known_is_an_error() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        link = worker.postoffice._control
        link._members = None
        change = difference(state(2), state(3))
        with pytest.raises(UnexpectedFrame, match="since 2"):
            link._whole(change)
        assert link._whole(state(2)) == state(2)
        assert link._whole(change) == state(3)
        with pytest.raises(UnexpectedFrame, match="since 2"):
            link._whole(change)
        link._members = None
