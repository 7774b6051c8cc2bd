"""What the scheduler makes of reports and of silence."""

from __future__ import annotations

from typing import Any

import msgspec

from aiops.roles.actions import Drop
from aiops.roles.detector import DEAD_PERIODS, FIRST_BEAT_S, SUSPECT_PERIODS
from aiops_protocol.control import NodeReport, StatusReply, StatusRequest
from aiops_protocol.errors import ErrorCode
from scheduled import Scheduled

H = 0.5


def cluster(**settings: Any) -> Scheduled:
    scheduled = Scheduled(2, heartbeat_s=H, on_worker_loss="continue", **settings)
    for index in range(2):
        scheduled.worker(10 + index, f"worker-{index}")
    return scheduled


def beat(scheduled: Scheduled, *nodes: tuple[str, int]) -> list[bool]:
    return [scheduled.core.heartbeat(role, rank, 1, scheduled.now) for role, rank in nodes]


ALL = (("server", 0), ("server", 1), ("worker", 0), ("worker", 1))


def live(scheduled: Scheduled, until: float, *nodes: tuple[str, int]) -> None:
    """Let the time pass, with heartbeats of these nodes."""
    while scheduled.now < until:
        beat(scheduled, *nodes)
        scheduled.tick(min(until, scheduled.now + H / 2))


def status(scheduled: Scheduled) -> Any:
    scheduled.say(99, StatusRequest())
    return msgspec.json.decode(scheduled.only(99, StatusReply).status)


def test_who_beats_lives() -> None:
    scheduled = cluster()
    live(scheduled, scheduled.now + 100, *ALL)
    assert len(scheduled.core.members.connected("worker")) == 2
    assert not [note for note in scheduled.notes if note.event == "node_suspected"]


def test_silence_is_suspected_first_and_then_a_loss() -> None:
    scheduled = cluster()
    live(scheduled, scheduled.now + FIRST_BEAT_S, *ALL)
    quiet_since = scheduled.now
    others = ALL[:3]
    live(scheduled, quiet_since + (SUSPECT_PERIODS + 0.5) * H, *others)
    (suspected,) = [note for note in scheduled.notes if note.event == "node_suspected"]
    assert suspected.fields == {"node": "worker 1 (worker-1)"}
    assert status(scheduled)["workers"][1]["state"] == "alive"
    live(scheduled, quiet_since + (DEAD_PERIODS + 1) * H, *others)
    lost = status(scheduled)["workers"][1]
    assert lost["state"] == "lost"
    assert "no heartbeat for" in lost["reason"]
    assert beat(scheduled, ("worker", 1), ("worker", 0), ("king", 0)) == [False, True, False]


def test_a_silent_node_is_told_that_it_was_given_up() -> None:
    scheduled = cluster()
    live(scheduled, scheduled.now + FIRST_BEAT_S, *ALL)
    drops: list[Drop] = []
    for _ in range(4 * DEAD_PERIODS):
        beat(scheduled, *ALL[:3])
        scheduled.now += H / 2
        actions = scheduled.perform(scheduled.core.tick(scheduled.now))
        drops += [action for action in actions if isinstance(action, Drop)]
    (drop,) = drops
    assert drop.peer == 11
    assert drop.code == ErrorCode.STALE_INCARNATION
    assert "worker 1 (worker-1) was declared lost" in drop.text


def test_a_silent_server_ends_the_job() -> None:
    scheduled = cluster()
    scheduled.attach(10)
    scheduled.open_shards(1, 2)
    live(scheduled, scheduled.now + FIRST_BEAT_S, *ALL)
    live(scheduled, scheduled.now + (DEAD_PERIODS + 1) * H, *ALL[1:])
    assert scheduled.ended is not None
    assert "server 0 (server-0)" in scheduled.ended.reason
    assert "no heartbeat" in scheduled.ended.reason


def test_an_older_incarnation_does_not_beat_for_the_newer_one() -> None:
    scheduled = cluster()
    scheduled.lose(10)
    for server in (1, 2):
        scheduled.report(server, 0)
    scheduled.worker(20, "worker-0")
    assert beat(scheduled, ("worker", 0)) == [False]
    assert scheduled.core.heartbeat("worker", 0, 2, scheduled.now)


def test_status_adds_up_what_the_nodes_report() -> None:
    scheduled = cluster(workers=2)
    scheduled.attach(10, "w", size=40)
    scheduled.open_shards(1, 2)
    scheduled.say(1, NodeReport(rounds={"w": (7, [1])}, counters={"frames": 3}))
    scheduled.say(2, NodeReport(rounds={"w": (6, [1, 0])}))
    scheduled.say(10, NodeReport(clock=6, counters={"bytes_pushed": 5}, metrics={"loss": 0.5}))
    scheduled.say(11, NodeReport(clock=5, counters={"bytes_pushed": 7, "bytes_pulled": 2}))
    scheduled.barrier(10, "epoch")
    document = status(scheduled)
    assert document["ready"]
    assert document["ended"] is None
    assert document["rounds"] == {"w": {"versions": {"0": 7, "1": 6}, "waiting_for": [1, 0]}}
    assert document["bytes"] == {"pushed": 12, "pulled": 2, "retransmitted": 0, "control": 0}
    assert [worker["clock"] for worker in document["workers"]] == [6, 5]
    assert document["workers"][0]["metrics"] == {"loss": 0.5}
    assert document["barriers"] == {"epoch": [0]}
    (table,) = document["tables"]
    assert table["state"] == "open"
    assert [part["bytes"] for part in table["ranges"]] == [64, 96]
    assert document["servers"][0]["address"] == "h:1"
    scheduled.perform(scheduled.core.end(False, "enough"))
    assert status(scheduled)["ended"] == {"ok": False, "reason": "enough"}
