"""Who keeps the others waiting, and how stale gradients are: what is counted and told to people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.observability.staleness import StalenessHistogram, bucket_name
from aiops.roles.actions import Action, Note
from aiops.roles.scheduler import WARN_AGAIN_S
from aiops.roles.slowness import Slow, SlowWatch, clocks_behind
from aiops.roles.status import status
from aiops_protocol.control import NodeReport, TableReport
from aiops_protocol.frames import Flag
from scheduled import Scheduled
from served import Served

BASE = int(Flag.BASE_VERSION)


def notes(actions: list[Action], event: str) -> list[dict[str, object]]:
    return [a.fields for a in actions if isinstance(a, Note) and a.event == event]


# --- staleness ---


@given(numbers=st.lists(st.integers(-3, 5000)))
def test_every_number_is_counted_in_its_bucket(numbers: list[int]) -> None:
    histogram = StalenessHistogram()
    for number in numbers:
        histogram.note(number)
    assert sum(histogram.counts.values()) == len(numbers)
    for number in numbers:
        low = max(b for b in histogram.counts if b <= max(number, 0))
        assert max(number, 0) == low if low < 16 else low <= number < 2 * low
    again = StalenessHistogram(histogram.counts)
    again.add(histogram.counts)
    assert again.counts == {bucket: 2 * count for bucket, count in histogram.counts.items()}
    assert [bucket_name(bucket) for bucket in (0, 15, 16, 64)] == ["0", "15", "16-31", "64-127"]


@pytest.mark.parametrize("mode", ["asp", "ssp"])
def test_a_server_counts_the_changes_of_others_since_the_read(mode: str) -> None:
    served = Served(2, workers=(0, 1), consistency=mode, staleness=9)
    for number in range(5):
        served.push(1, [1, 1], flags=BASE, base_version=number)  # its own are counted in
    served.push(0, [1, 1], flags=BASE, base_version=0)
    served.push(0, [1, 1], flags=BASE, base_version=1)
    served.push(0, [1, 1])  # it has read nothing
    served.assign(0, [1, 1], flags=BASE, base_version=0)
    assert served.core.reports() == [TableReport(table="w", staleness={0: 5, 5: 2})]
    assert served.core.reports() == [], "nothing is new"


# --- slow workers ---


def test_who_is_waited_for_half_of_the_time_is_slow() -> None:
    watch = SlowWatch()
    for tick in range(41):
        behind = {3: 4, 1: 1} if tick % 2 else {3: 2}
        assert watch.look(behind, 5, tick / 4) is (tick == 40)
    assert watch.slow == {3: Slow(4, 10.0), 1: Slow(1, 5.0)}
    for tick in range(41, 81):
        watch.look({}, 0, tick / 4)
    assert watch.slow == {}


def test_who_waits_for_many_is_fast_and_they_are_not_slow() -> None:
    watch = SlowWatch()
    for tick in range(41):
        watch.look({1: 1, 2: 1, 3: 1}, 2, tick / 4)
    assert watch.slow == {}


def test_a_server_names_the_slow_one_and_by_how_much() -> None:
    served = Served(2, workers=(0, 1), consistency="ssp", staleness=1)
    for clock in range(2):
        served.seal(0, clock)
    served.pull(0, clock=2)
    told = [note for tick in range(42) for note in notes(served.core.tick(tick / 4), "worker_slow")]
    assert told == [{"table": "w", "worker": 1, "clocks_behind": 2, "waited_s": 10.0}]
    assert served.core.reports() == [TableReport(table="w", slow={1: (2, 10.0)})]


@pytest.mark.parametrize(
    ("clocks", "behind"),
    [({0: 100, 1: 100, 2: 40}, 60), ({0: 100, 1: 100, 2: 60}, 0), ({0: 12, 2: 4}, 0), ({2: 4}, 0)],
)
def test_a_pace_is_spoken_of_when_it_is_less_than_half(clocks: dict[int, int], behind: int) -> None:
    assert clocks_behind(2, clocks) == behind


def test_the_scheduler_says_so_once_a_minute_and_status_shows_all() -> None:
    scheduled = Scheduled(servers=1, workers=2)
    for peer in (10, 11):
        scheduled.worker(peer)

    def clock_of_the_slow_one(clock: int) -> list[dict[str, object]]:
        scheduled.notes.clear()
        scheduled.say(10, NodeReport(clock=clock))
        return [note.fields for note in scheduled.notes if note.event == "worker_behind"]

    scheduled.say(11, NodeReport(clock=100))
    assert clock_of_the_slow_one(20) == [{"worker": 0, "clock": 20, "clocks_behind": 80}]
    assert clock_of_the_slow_one(21) == []
    scheduled.now += WARN_AGAIN_S
    assert len(clock_of_the_slow_one(22)) == 1
    counted = TableReport(table="w", staleness={0: 3, 2: 1}, late={1: 4}, slow={0: (78, 7.25)})
    scheduled.say(1, counted)
    document = status(scheduled.core, scheduled.now)
    assert document["staleness"] == {"w": {0: 3, 2: 1}}
    assert document["late"] == {"w": {1: 4}}
    assert document["slow"] == {"w": {0: {"clocks_behind": 78, "waited_s": 7.2}}}
