"""Span buffers lose nothing in silence; the trace file is one a viewer can open."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.observability.tracing import PHASES, ProcessSpans, Span, SpanBuffer, chrome_trace

spans = st.lists(
    st.tuples(
        st.sampled_from((*PHASES, "checkpoint")),
        st.integers(0, 2**62),
        st.integers(0, 10**9),
        st.none() | st.integers(0, 10**6),
    ),
    max_size=20,
)
processes = st.lists(
    st.builds(
        ProcessSpans,
        role=st.sampled_from(["worker", "server", "scheduler"]),
        rank=st.integers(0, 100),
        spans=spans,
        dropped=st.integers(0, 3),
        offset_ns=st.integers(-(10**9), 10**9),
    ),
    max_size=5,
    unique_by=lambda node: (node.role, node.rank),
)


def complete_events(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


@given(processes)
def test_a_trace_is_json_with_rising_times_from_zero(nodes: list[ProcessSpans]) -> None:
    trace = json.loads(json.dumps(chrome_trace(nodes)))
    times = [event["ts"] for event in trace["traceEvents"]]
    assert times == sorted(times)
    assert all(time == 0 for time in times[:1])
    assert all(event["dur"] >= 0 for event in complete_events(trace))
    assert len(complete_events(trace)) == sum(len(node.spans) for node in nodes)


@given(processes)
def test_every_process_and_thread_has_its_name(nodes: list[ProcessSpans]) -> None:
    events = chrome_trace(nodes)["traceEvents"]
    processes_named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads_named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert sorted(processes_named.values()) == sorted(f"{n.role} {n.rank}" for n in nodes)
    for event in complete_events({"traceEvents": events}):
        assert event["pid"] in processes_named
        assert (event["pid"], event["tid"]) in threads_named


@given(processes)
def test_spans_of_one_lane_nest_or_follow_each_other(nodes: list[ProcessSpans]) -> None:
    """A viewer draws two half-overlapping events of one thread wrongly."""
    open_ends: dict[tuple[int, int], list[float]] = {}
    for event in complete_events(chrome_trace(nodes)):
        start, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
        ends = open_ends.setdefault((event["pid"], event["tid"]), [])
        while ends and ends[-1] <= start + SLACK_NS:
            ends.pop()
        assert not ends or end <= ends[-1] + SLACK_NS
        ends.append(end)


SLACK_NS = 2_048  # microseconds as float64 are that coarse 2**62 ns after the earliest start


def test_all_roles_lie_on_one_axis() -> None:
    """The host of server 0 is 5 us behind; its update ran while worker 0 waited in its push."""
    worker: list[Span] = [("push", 1_000_000, 60_000, 3), ("start", 990_000, 10_000, 3)]
    server: list[Span] = [("average and update", 1_015_000, 9_500, 3)]
    trace = chrome_trace(
        [
            ProcessSpans("worker", 0, worker),
            ProcessSpans("server", 0, server, offset_ns=5_000, dropped=2),
        ]
    )
    assert [(e["pid"], e["name"], e["ts"], e["dur"]) for e in complete_events(trace)] == [
        (2, "start", 0.0, 10.0),
        (2, "push", 10.0, 60.0),
        (1, "average and update", 30.0, 9.5),
    ]
    assert {event["cat"] for event in complete_events(trace)} == {"phase"}
    assert {event["args"]["step"] for event in complete_events(trace)} == {3}
    assert trace["otherData"] == {"dropped_spans": {"server 0": 2}}


def test_a_background_push_gets_a_lane_of_its_own() -> None:
    overlapping: list[Span] = [
        ("push", 0, 100, 0),
        ("pull", 90, 30, 1),
        ("local gradient", 120, 50, 1),
    ]
    events = chrome_trace([ProcessSpans("worker", 0, overlapping)])
    assert [event["tid"] for event in complete_events(events)] == [1, 2, 1]


def test_no_spans_make_an_empty_trace() -> None:
    assert chrome_trace([])["traceEvents"] == []


@given(st.integers(1, 10), st.lists(st.integers(0, 12), max_size=20), st.integers(1, 12))
def test_a_buffer_holds_to_its_limit_and_counts_the_rest(
    limit: int, bursts: list[int], batch: int
) -> None:
    buffer = SpanBuffer(limit=limit)
    added, drained = 0, []
    for burst in bursts:
        for _ in range(burst):
            buffer.add("pull", added, 1, added)
            added += 1
            assert len(buffer) <= limit
        drained += buffer.drain(batch)
    drained += buffer.drain(limit)
    assert len(buffer) == 0
    assert len(drained) + buffer.dropped == added
    assert drained == sorted(drained)
    assert len(set(drained)) == len(drained)


def test_a_drained_batch_is_bounded() -> None:
    buffer = SpanBuffer()
    for step in range(5):
        buffer.add("push", step, 1, step)
    assert [span[3] for span in buffer.drain(limit=3)] == [0, 1, 2]
    assert [span[3] for span in buffer.drain(limit=3)] == [3, 4]
    assert buffer.drain(limit=3) == []


def test_a_buffer_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SpanBuffer(limit=0)


def test_there_are_seven_phases() -> None:
    assert PHASES == (
        "start",
        "pull",
        "local gradient",
        "push",
        "average and update",
        "publish",
        "repeat",
    )
