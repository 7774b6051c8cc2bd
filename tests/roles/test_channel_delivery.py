"""Channel and server with a connection between them that may end anywhere: once is once."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aiops.roles.actions import Drop, Send
from aiops.roles.requests import Channel, Operation, Part
from aiops_protocol.codec import encode
from aiops_protocol.delivery import Inbox, Outbox, Verdict
from aiops_protocol.frames import Known, Pull, Push, PushPull, Query, Reply, Request
from served import Served
from wire_bytes import decode

F = np.float32
KEYS = 400


class Wire:
    """One connection: frames on their way up and down, in order."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()


class Delivery(RuleBasedStateMachine):
    """Every push adds one to a key of its own, so each key counts how often it was applied."""

    def __init__(self) -> None:
        super().__init__()
        self.served = Served(KEYS, consistency="asp", workers=())
        self.channel = Channel(0)
        self.channel.window_bytes = 24
        self.outbox = Outbox(window=5)
        self.served.core.connected(1, 0, 1)
        self.wire = Wire(1)
        self.old: list[Wire] = []  # ended for the worker; the server has not read them out
        self.bytes: dict[int, bytes] = {}
        self.parts: list[Part] = []
        self.read = np.zeros(KEYS, F)  # what push_pulls have got back
        self.given_up: set[int] = set()
        self.pulls: list[tuple[Operation, bytearray]] = []

    # --- the worker ---

    @precondition(lambda self: len(self.parts) < KEYS)
    @rule(at_once=st.booleans(), kind=st.sampled_from([Push, PushPull]))
    def push(self, at_once: bool, kind: type[Request] = Push) -> None:
        key = len(self.parts)
        operation = Operation("push", "w", 0.0, 60.0, None)
        part = Part(
            operation,
            kind,
            1,
            0,
            begin=key,
            end=key + 1,
            payload=np.ones(1, F).tobytes(),
            into=self.read[key : key + 1].data.cast("B") if kind is PushPull else None,
            outbox=self.outbox,
        )
        self.parts.append(part)
        if at_once and self.channel.pass_at_once(part, 0.0):
            self._put(part)
        else:
            self.channel.submit(part)

    def _put(self, part: Part) -> None:
        data = bytes(part.header) + bytes(part.payload)
        first = self.bytes.setdefault(part.request_id, data)
        asks_only = part.kind is PushPull and isinstance(decode(data), Pull)
        assert first == data or asks_only, "what is sent again is the same to the byte"
        self.wire.up.append(data)

    @rule()
    def pull(self) -> None:
        memory = bytearray(4 * KEYS)
        operation = Operation("pull", "w", 0.0, 60.0, None)
        Part(operation, Pull, 1, 0, begin=0, end=KEYS, into=memoryview(memory))
        self.channel.submit(operation.parts[0])
        self.pulls.append((operation, memory))

    @rule(count=st.integers(1, 8))
    def send(self, count: int) -> None:
        for _ in range(count):
            part = self.channel.next_part(0.0)
            if part is None:
                return
            self._put(part)

    @precondition(lambda self: self.parts)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        key = data.draw(st.integers(0, len(self.parts) - 1))
        if not self.parts[key].settled:
            self.given_up.add(key)
        self.channel.withdraw(self.parts[key])

    # --- the connection ---

    @rule(count=st.integers(1, 8), old=st.booleans())
    def server_reads(self, count: int, old: bool) -> None:
        wire = self.old[0] if old and self.old else self.wire
        for _ in range(min(count, len(wire.up))):
            request = decode(wire.up.popleft())
            assert isinstance(request, Request)
            if isinstance(request, Query):
                actions = self.served.core.query(wire.peer, request, {0: 1})
            else:
                actions = self.served.ask(wire.peer, request)
            for action in actions:
                if isinstance(action, Drop):
                    assert action.peer in [other.peer for other in self.old]
                    continue
                assert isinstance(action, Send)
                header, payload = encode(action.frame)
                wire.down.append(bytes(header) + bytes(payload))
        if wire is not self.wire and not wire.up:
            self.served.core.disconnected(wire.peer)
            self.old.remove(wire)

    @rule(count=st.integers(1, 8))
    def worker_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.wire.down))):
            reply = decode(self.wire.down.popleft())
            assert isinstance(reply, Reply)
            self.channel.answer(reply, 0.0)
            if isinstance(reply, Known):
                for late in self.channel.known(reply):
                    self.channel.answer(late, 0.0)

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """Some of what was on its way up still arrives, nothing of what was coming down."""
        for _ in range(data.draw(st.integers(0, len(self.wire.up)))):
            self.wire.up.pop()
        self.old.append(self.wire)
        self.wire = Wire(self.wire.peer + 1)
        self.served.core.connected(self.wire.peer, 0, 1)
        self.channel.lost()
        self.channel.ask_from_bytes = 0 if data.draw(st.booleans()) else 1 << 30
        for header, payload in self.channel.ask():
            self.wire.up.append(bytes(header) + bytes(payload))

    # --- what must be true ---

    def counts(self) -> Any:
        return self.served.values[: len(self.parts)]

    @invariant()
    def never_twice_and_what_is_acknowledged_once(self) -> None:
        self.channel.validate()
        self.outbox.validate()
        counts = self.counts()
        assert np.isin(counts, (0, 1)).all()
        for key, part in enumerate(self.parts):
            if part.settled and key not in self.given_up:
                assert counts[key] == 1
                assert part.operation.error is None
                if part.kind is PushPull:
                    assert self.read[key] == 1

    def teardown(self) -> None:
        """Without further harm everything that was not given up takes effect."""
        for _ in range(10 * KEYS):
            self.send(8)
            self.server_reads(8, True)
            self.server_reads(8, False)
            self.worker_reads(8)
            if not (self.channel.waiting or self.channel._flight or self.old):
                break
        self.never_twice_and_what_is_acknowledged_once()
        assert all(part.settled or key in self.given_up for key, part in enumerate(self.parts))
        assert all(operation.done for operation, _ in self.pulls)
        kept = [key for key in range(len(self.parts)) if key not in self.given_up]
        assert (self.counts()[kept] == 1).all()


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(stateful_step_count=60)


def test_without_the_record_a_repeat_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine above would find."""
    monkeypatch.setattr(Inbox, "judge", lambda *_: Verdict.APPLY)
    machine = Delivery()
    machine.push(False)
    machine.send(1)
    machine.server_reads(1, False)
    machine.cut(_Nothing())
    machine.send(1)
    machine.server_reads(1, False)
    with pytest.raises(AssertionError):
        machine.never_twice_and_what_is_acknowledged_once()


class _Nothing:
    def draw(self, _: Any) -> int:
        return 0
