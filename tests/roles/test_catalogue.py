"""Tables as the scheduler opens them: created once, valued once, entered at an agreed round."""

from __future__ import annotations

from typing import Any

import pytest

from aiops_protocol.control import (
    AttachTable,
    DropShard,
    OpenShard,
    Refused,
    RoundHeld,
    RoundHold,
    RoundRelease,
    ShardReady,
    TableInitialised,
    TableOpened,
)
from aiops_protocol.errors import ErrorCode
from aiops_protocol.limits import TABLE_ELEMENTS_MAX
from core_tables import spec_of
from scheduled import Scheduled


def cluster(workers: int = 2, servers: int = 2) -> Scheduled:
    scheduled = Scheduled(servers, on_worker_loss="continue")
    for index in range(workers):
        scheduled.worker(10 + index, f"worker-{index}")
    return scheduled


def test_a_table_is_opened_when_every_part_is_there() -> None:
    scheduled = cluster()
    call = scheduled.attach(10, size=64)
    assert scheduled.open_shards(1) == [
        OpenShard(table=1, spec=spec_of("w", 64), begin=0, end=32, workers=[0, 1], parts=2)
    ]
    assert not scheduled.heard(10, TableOpened)
    scheduled.open_shards(2)
    opened = scheduled.opened(10)
    assert (opened.call, opened.table, opened.from_version) == (call, 1, 0)
    assert [(p.server, p.begin, p.end) for p in opened.parts] == [(0, 0, 32), (1, 32, 64)]
    assert not opened.initialise


def test_creation_is_serial_whoever_comes_first() -> None:
    scheduled = cluster(3)
    scheduled.attach(10)
    scheduled.attach(11)
    scheduled.attach(12, optimizer="sgd", settings={"lr": 1.0})
    refused = scheduled.refused(12)
    assert refused.code == ErrorCode.TABLE_MISMATCH
    assert "optimizer is add, not sgd" in refused.text
    assert "optimizer_settings is {}, not {'lr': 1.0}" in refused.text
    assert [len(scheduled.open_shards(peer)) for peer in (1, 2)] == [1, 1]
    assert scheduled.opened(10).table == scheduled.opened(11).table == 1


def test_who_asks_for_an_unknown_table_hears_which_there_are() -> None:
    scheduled = cluster()
    scheduled.attach(10, "weights")
    call = scheduled.attach(11, "wheights", create=False)
    refused = scheduled.refused(11)
    assert (refused.code, refused.call) == (ErrorCode.UNKNOWN_TABLE, call)
    assert "there is: weights" in refused.text


def test_tables_begin_at_different_servers() -> None:
    scheduled = cluster(servers=3)
    owners = []
    for number in range(4):
        scheduled.attach(10, f"t{number}", size=16)
        scheduled.open_shards(1, 2, 3)
        (part,) = scheduled.opened(10).parts
        owners.append(part.server)
    assert owners == [0, 1, 2, 0]


@pytest.mark.parametrize(("size", "parts"), [(0, 1), (1, 1), (16, 1), (17, 2), (33, 3), (1000, 5)])
def test_more_servers_than_keys_and_no_keys_at_all(size: int, parts: int) -> None:
    scheduled = cluster(servers=5)
    scheduled.attach(10, size=size)
    assert len(scheduled.open_shards(1, 2, 3, 4, 5)) == parts
    opened = scheduled.opened(10)
    assert len(opened.parts) == parts
    assert opened.parts[-1].end == size


def test_ranges_go_to_the_servers_that_are_there_whatever_their_ranks() -> None:
    scheduled = Scheduled(3, start=False)
    for peer, name in ((1, "server-5"), (2, "server-0"), (3, "server-9")):
        scheduled.join(peer, "server", name)
    scheduled.worker(10)
    scheduled.attach(10, size=48)
    assert len(scheduled.open_shards(1, 2, 3)) == 3
    assert [part.server for part in scheduled.opened(10).parts] == [0, 5, 9]


def test_before_the_servers_are_there_nothing_is_created() -> None:
    scheduled = Scheduled(2, start=False)
    scheduled.join(1, "server")
    scheduled.worker(10)
    scheduled.attach(10)
    refused = scheduled.refused(10)
    assert refused.code == ErrorCode.NOT_INITIALISED
    assert "only 1 of 2 servers" in refused.text
    scheduled.join(2, "server")
    scheduled.attach(10)
    assert len(scheduled.open_shards(1, 2)) == 2


@pytest.mark.parametrize(("size", "code"), [(TABLE_ELEMENTS_MAX + 1, ErrorCode.INVALID_SETTING)])
def test_a_table_beyond_all_measure_is_refused(size: int, code: ErrorCode) -> None:
    scheduled = cluster()
    scheduled.attach(10, size=size)
    assert scheduled.refused(10).code == code


def test_the_number_of_tables_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiops.roles.catalogue.TABLES_MAX", 2)
    scheduled = cluster()
    for number in range(3):
        scheduled.attach(10, f"t{number}")
    assert scheduled.refused(10).code == ErrorCode.INVALID_SETTING
    assert len(scheduled.open_shards(1)) == 2


def test_a_server_that_cannot_take_its_part_ends_the_attempt_everywhere() -> None:
    scheduled = cluster()
    scheduled.attach(10)
    scheduled.attach(11)
    scheduled.open_shards(1)
    scheduled.heard(2, OpenShard)
    ready = ShardReady(table=1, code=ErrorCode.OUT_OF_MEMORY, text="table w needs more")
    scheduled.say(2, ready)
    for peer in (10, 11):
        refused = scheduled.refused(peer)
        assert refused.code == ErrorCode.OUT_OF_MEMORY
        assert refused.text == "server 1: table w needs more"
    for peer in (1, 2):
        assert scheduled.only(peer, DropShard).table == 1
    scheduled.say(1, ShardReady(table=1))
    scheduled.attach(10, size=16)
    scheduled.open_shards(1, 2)
    assert scheduled.opened(10).table == 2, "smaller, it fits"


# --- initial values ---


def values(scheduled: Scheduled, peer: int) -> int:
    return scheduled.attach(peer, init="values")


def test_the_first_creator_gives_the_values_and_the_others_wait_for_them() -> None:
    scheduled = cluster()
    values(scheduled, 10)
    values(scheduled, 11)
    scheduled.open_shards(1, 2)
    assert scheduled.opened(10).initialise
    assert not scheduled.heard(11, TableOpened)
    scheduled.say(11, TableInitialised(table=1))
    assert not scheduled.heard(11, TableOpened), "it was not asked"
    scheduled.say(10, TableInitialised(table=1))
    assert not scheduled.opened(11).initialise
    assert not scheduled.heard(10, TableOpened)


def test_when_the_initialiser_dies_the_next_is_asked_once_nobody_hears_the_dead_one() -> None:
    """Pieces of both would be mixed otherwise."""
    scheduled = cluster(3)
    for peer in (10, 11, 12):
        values(scheduled, peer)
    scheduled.open_shards(1, 2)
    assert scheduled.opened(10).initialise
    scheduled.lose(10)
    scheduled.report(1, 0)
    assert not scheduled.heard(11, TableOpened)
    scheduled.report(2, 0)
    assert scheduled.opened(11).initialise
    scheduled.say(11, TableInitialised(table=1))
    assert not scheduled.opened(12).initialise


@pytest.mark.parametrize("leaves", [False, True])
def test_an_initialiser_that_leaves_in_order_is_replaced_too(leaves: bool) -> None:
    scheduled = cluster()
    values(scheduled, 10)
    values(scheduled, 11)
    scheduled.open_shards(1, 2)
    scheduled.opened(10)
    if leaves:
        scheduled.finish(10)
    scheduled.leave(10)
    scheduled.report(1, 0)
    scheduled.report(2, 0)
    assert scheduled.opened(11).initialise


def test_who_can_only_attach_waits_for_somebody_with_values() -> None:
    scheduled = cluster(3)
    values(scheduled, 10)
    scheduled.attach(11, create=False)
    scheduled.open_shards(1, 2)
    scheduled.opened(10)
    scheduled.lose(10)
    scheduled.report(1, 0)
    scheduled.report(2, 0)
    assert not scheduled.heard(11, TableOpened)
    values(scheduled, 12)
    assert scheduled.opened(12).initialise
    scheduled.say(12, TableInitialised(table=1))
    assert not scheduled.opened(11).initialise


def test_a_latecomer_that_gives_the_values_enters_the_rounds_first() -> None:
    """It was not there when the table was created, so no server counts on it yet."""
    scheduled = cluster(1)
    values(scheduled, 10)
    scheduled.open_shards(1, 2)
    scheduled.opened(10)
    scheduled.worker(20)
    values(scheduled, 20)
    scheduled.lose(10)
    scheduled.report(1, 0)
    scheduled.report(2, 0)
    assert not scheduled.heard(20, TableOpened)
    scheduled.hold(1, 0, idle=True)
    scheduled.hold(2, 0, idle=True)
    assert scheduled.only(1, RoundRelease) == RoundRelease(table=1, worker=1, from_version=0)
    opened = scheduled.opened(20)
    assert opened.initialise
    assert opened.from_version == 0


def test_a_table_with_its_creator_dead_before_it_was_opened_opens_for_the_others() -> None:
    scheduled = cluster()
    scheduled.attach(10)
    scheduled.lose(10)
    scheduled.attach(11)
    scheduled.open_shards(1, 2)
    assert scheduled.opened(11).table == 1
    assert not scheduled.heard(10, TableOpened)


# --- entering the rounds ---


def with_latecomer(**spec: Any) -> Scheduled:
    scheduled = cluster(1)
    scheduled.attach(10, **spec)
    scheduled.open_shards(1, 2)
    scheduled.worker(20)
    scheduled.attach(20, **spec)
    return scheduled


def test_a_latecomer_enters_one_round_after_the_newest() -> None:
    scheduled = with_latecomer()
    scheduled.hold(1, 3)
    assert not scheduled.heard(20, TableOpened)
    scheduled.hold(2, 5)
    for server in (1, 2):
        assert scheduled.only(server, RoundRelease).from_version == 6
    assert scheduled.opened(20).from_version == 6


@pytest.mark.parametrize(
    ("first", "second", "from_version"),
    [((4, True), (4, True), 4), ((4, True), (5, True), 6), ((4, True), (4, False), 5)],
)
def test_an_idle_table_is_entered_at_its_open_round(
    first: tuple[int, bool], second: tuple[int, bool], from_version: int
) -> None:
    scheduled = with_latecomer()
    scheduled.hold(1, first[0], idle=first[1])
    scheduled.hold(2, second[0], idle=second[1])
    assert scheduled.opened(20).from_version == from_version


def test_a_table_without_rounds_is_entered_at_once() -> None:
    scheduled = with_latecomer(consistency="asp")
    assert scheduled.opened(20).from_version == 0
    assert not scheduled.heard(1, RoundHold)


def test_who_has_finished_only_looks_on() -> None:
    scheduled = cluster(2)
    scheduled.attach(10)
    scheduled.open_shards(1, 2)
    scheduled.worker(20)
    scheduled.finish(20)
    scheduled.attach(20)
    assert scheduled.opened(20).from_version == 0
    assert not scheduled.heard(1, RoundHold)


def test_what_a_finished_worker_creates_counts_on_the_others() -> None:
    scheduled = cluster(2)
    scheduled.finish(10)
    scheduled.attach(10)
    assert [order.workers for order in scheduled.open_shards(1, 2)] == [[1], [1]]


def test_two_calls_of_a_latecomer_are_both_answered() -> None:
    scheduled = with_latecomer()
    first = scheduled.calls
    second = scheduled.attach(20)
    scheduled.hold(1, 3)
    scheduled.hold(2, 3)
    assert [(o.call, o.from_version) for o in scheduled.heard(20, TableOpened)] == [
        (first, 4),
        (second, 4),
    ]
    third = scheduled.attach(20)
    assert (scheduled.opened(20).call, len(scheduled.heard(1, RoundRelease))) == (third, 1)


def test_answers_that_nobody_asked_for_are_ignored() -> None:
    scheduled = cluster()
    scheduled.say(1, RoundHeld(table=7, worker=0, version=1))
    scheduled.say(1, ShardReady(table=7))
    scheduled.say(10, TableInitialised(table=7))
    scheduled.attach(10)
    scheduled.open_shards(1, 2)
    scheduled.say(1, ShardReady(table=1, code=ErrorCode.OUT_OF_MEMORY, text="late"))
    scheduled.say(1, RoundHeld(table=1, worker=0, version=1))
    assert scheduled.opened(10).table == 1
    assert not scheduled.heard(10, Refused)


def test_an_observer_of_a_table_does_not_enter_its_rounds() -> None:
    scheduled = cluster(1)
    scheduled.attach(10)
    scheduled.open_shards(1, 2)
    scheduled.worker(20)
    scheduled.say(20, AttachTable(call=77, name="w", observer=True))
    assert scheduled.opened(20).call == 77
    assert not scheduled.heard(1, RoundHold)
