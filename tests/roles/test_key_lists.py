"""Key lists between a worker and a server: named, kept, forgotten, and refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.roles import key_lists
from aiops.roles.actions import Action, Send
from aiops.roles.key_lists import KeyCache, SentLists
from aiops.roles.requests import Channel, Operation, Part
from aiops.roles.server import ServerCore
from aiops_protocol.delivery import Outbox
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Ack, Assign, Flag, Pull, Push, PushPull, Reply, Request, Value
from aiops_protocol.key_list import signature
from served import Served, acked, refusal, replies, reply, values_of
from wire_bytes import decode

F = np.float32
LIST, SIGNED = int(Flag.KEY_LIST), int(Flag.KEY_SIGNATURE)
KEYS = np.arange(100, 160, dtype="<u8").tobytes()
OTHER = np.arange(100, 161, dtype="<u8").tobytes()


# --- the two memories ---


def test_a_list_travels_plain_then_signed_then_as_its_signature() -> None:
    sent = SentLists()
    assert sent.name(KEYS) == (KEYS, b"", LIST)
    assert sent.name(KEYS) == (KEYS, signature(KEYS), LIST | SIGNED)
    for _ in range(3):
        assert sent.name(KEYS) == (b"", signature(KEYS), SIGNED)
    assert sent.name(OTHER) == (OTHER, b"", LIST)
    assert sent.name(KEYS, whole=True) == (KEYS, signature(KEYS), LIST | SIGNED)
    assert sent.name(KEYS) == (b"", signature(KEYS), SIGNED)


def test_short_lists_are_always_sent() -> None:
    sent = SentLists()
    for _ in range(4):
        assert sent.name(KEYS[:120]) == (KEYS[:120], b"", LIST)


def test_a_worker_remembers_so_many_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_lists, "SENT_LISTS_MAX", 3)
    sent = SentLists()
    lists = [np.arange(i, i + 20, dtype="<u8").tobytes() for i in range(4)]
    for keys in lists:
        sent.name(keys)
    assert sent.name(lists[0]).flags == LIST  # forgotten, and now the newest
    assert sent.name(lists[3]).flags == LIST | SIGNED


@given(
    wanted=st.lists(st.integers(0, 9), max_size=40),
    sizes=st.lists(st.integers(16, 40), min_size=10, max_size=10),
)
def test_a_server_keeps_what_was_asked_for_last(wanted: list[int], sizes: list[int]) -> None:
    """Against a list in order of use, of a hundred keys in all."""
    cache = KeyCache(limit=800)
    lists = [
        np.arange(i * 100, i * 100 + size, dtype="<u8").tobytes() for i, size in enumerate(sizes)
    ]
    marks = [signature(keys) for keys in lists]
    model: list[int] = []
    for number in wanted:
        found = cache.find(marks[number])
        assert found == (lists[number] if number in model else None)
        if found is None:
            assert cache.keep(marks[number], lists[number])
        model = [*(other for other in model if other != number), number]
        while sum(8 * sizes[other] for other in model) > 800:
            model.pop(0)
        cache.validate()


def test_a_list_under_a_wrong_name_is_not_kept() -> None:
    cache = KeyCache()
    assert not cache.keep(signature(OTHER), KEYS)
    assert cache.find(signature(OTHER)) is None
    assert KeyCache(limit=100).keep(signature(KEYS), KEYS)  # too long to keep, but right


# --- a server ---


def sparse(**spec: Any) -> Served:
    return Served(1000, begin=100, width=2, layout="range", consistency="asp", **spec)


def push(served: Served, keys: bytes, flags: int = LIST, mark: bytes = b"", **fields: Any) -> Any:
    size = fields.pop("size", len(keys) // 8)
    payload = np.ones(2 * size, F).tobytes()
    request = served.mutation(
        Push, 0, keys=keys, flags=flags, signature=mark, payload=payload, **fields
    )
    return served.ask(10, request)


def pull(served: Served, keys: bytes, flags: int = LIST, mark: bytes = b"") -> Any:
    return served.ask(10, Pull(request_id=7, table=1, keys=keys, flags=flags, signature=mark))


def test_a_signature_stands_for_the_list_that_came_with_it() -> None:
    served = sparse()
    assert acked(push(served, KEYS, LIST | SIGNED, signature(KEYS)))
    assert acked(push(served, b"", SIGNED, signature(KEYS), size=60))
    assert values_of(reply(pull(served, b"", SIGNED, signature(KEYS)))) == [2.0] * 120
    found, text = refusal(push(served, b"", SIGNED, signature(KEYS), size=59))
    assert found is ErrorCode.SIZE_MISMATCH, text


def test_an_unknown_signature_is_told_and_the_mutation_may_come_again() -> None:
    """A push that was not understood is neither applied nor recorded."""
    served = sparse()
    request = served.mutation(Push, 0, flags=SIGNED, signature=signature(KEYS), payload=bytes(480))
    for _ in range(2):
        assert refusal(served.ask(10, request))[0] is ErrorCode.KEYS_NOT_CACHED
    assert refusal(pull(served, b"", SIGNED, signature(KEYS)))[0] is ErrorCode.KEYS_NOT_CACHED
    again = served.mutation(
        Push,
        0,
        seq=1,
        answered_below=1,
        keys=KEYS,
        flags=LIST | SIGNED,
        signature=signature(KEYS),
        payload=np.ones(120, F).tobytes(),
    )
    assert acked(served.ask(10, again))
    assert acked(served.ask(10, again))
    assert acked(served.ask(10, request))  # the late repeat of the first frame: a duplicate
    assert values_of(reply(pull(served, KEYS))) == [1.0] * 120


def test_a_list_that_differs_behind_64_kib_is_another() -> None:
    long = np.arange(100, 20_100, dtype="<u8")
    other = long.copy()
    other[-1] += 1
    served = Served(30_000, begin=100, width=2, layout="range", consistency="asp")
    assert acked(push(served, long.tobytes(), LIST | SIGNED, signature(long.tobytes())))
    code, _ = refusal(push(served, b"", SIGNED, signature(other.tobytes()), size=20_000))
    assert code is ErrorCode.KEYS_NOT_CACHED
    code, text = refusal(push(served, other.tobytes(), LIST | SIGNED, signature(long.tobytes())))
    assert code is ErrorCode.INVALID_SETTING
    assert "signature" in text
    assert values_of(reply(pull(served, other[-1:].tobytes()))) == [0.0, 0.0]


@pytest.mark.parametrize("kind", [Push, Assign, Pull, PushPull])
@pytest.mark.parametrize(
    ("keys", "flags"),
    [
        ([99, 100], LIST),
        ([100, 1100], LIST),
        ([], LIST),
        ([], 0),
    ],
)
def test_keys_that_are_not_here_and_ranges_are_refused(
    kind: Any, keys: list[int], flags: int
) -> None:
    served = sparse()
    given: dict[str, Any] = {"request_id": 5, "table": 1, "flags": flags}
    given |= {"keys": np.array(keys, "<u8").tobytes()} if flags else {"begin": 100, "end": 102}
    if kind is not Pull:
        given |= {"seq": 1, "answered_below": 1, "payload": bytes(8 * max(len(keys), 1))}
    code, text = refusal(served.ask(10, kind(**given)))
    assert code is ErrorCode.KEY_RANGE_NOT_OWNED
    assert "[100, 1100) of table w, by key list" in text
    assert served.core.sparse_tables() == {"w": (0, 0)}


def test_what_waits_keeps_keys_of_its_own() -> None:
    """The bytes of a request are used for the next one as soon as it was handled."""
    served = Served(1000, width=1, layout="range", consistency="bsp", workers=(0, 1))
    keys, values = bytearray(KEYS), bytearray(np.ones(60, F).tobytes())
    assert acked(served.seal(0, 0, flags=0))
    early = Push(
        request_id=1, seq=2, answered_below=2, table=1, clock=1, flags=LIST,
        keys=memoryview(keys), payload=memoryview(values),
    )  # fmt: skip
    asked = Pull(request_id=2, table=1, clock=2, flags=LIST, keys=memoryview(keys))
    assert served.ask(10, early) == served.ask(10, asked) == []
    keys[:] = bytes(len(keys))
    values[:] = bytes(len(values))
    served.seqs[0] = 2
    answers: list[Action] = served.seal(1, 0, flags=0)
    for rank in (0, 1):
        answers += served.seal(rank, 1)
    (value,) = [found for found in replies(answers, 10) if isinstance(found, Value)]
    assert values_of(value) == [0.5] * 60
    assert served.core._callers[10].keys_waiting_bytes == 0


def test_waiting_pulls_are_bounded_by_the_size_of_their_lists() -> None:
    served = Served(2**40, width=1, layout="range", consistency="bsp")
    keys = np.arange(131_072, dtype="<u8").tobytes()
    for number in range(33):
        asked = Pull(request_id=number, table=1, clock=1, flags=LIST, keys=keys)
        answers = served.ask(10, asked)
        if number == 32:
            assert refusal(answers)[0] is ErrorCode.OUT_OF_WINDOW
        else:
            assert answers == []


# --- both ends ---


class Pair:
    """A worker's channel and a server that answers it at once."""

    def __init__(self) -> None:
        self.served = sparse()
        self.channel = Channel(0)
        self.outbox = Outbox()
        self.sent: list[Request] = []

    def call(self, kind: type[Request], keys: bytes) -> Operation:
        operation = Operation("push", "table w", 0.0, 60.0, None)
        size = len(keys)
        Part(
            operation,
            kind,
            1,
            0,
            payload=b"" if kind is Pull else np.ones(size // 4, F).tobytes(),
            into=memoryview(bytearray(size)) if kind is Pull else None,
            outbox=None if kind is Pull else self.outbox,
            keys=keys,
        )
        self.channel.submit(operation.parts[0])
        return operation

    def run(self) -> None:
        while (part := self.channel.next_part(0.0)) is not None:
            request = decode(bytes(part.header) + bytes(part.payload))
            assert isinstance(request, Request)
            self.sent.append(request)
            assert not part.resent
            for action in self.served.ask(10, request):
                assert isinstance(action, Send)
                assert isinstance(action.frame, Reply)
                self.channel.answer(action.frame, 0.0)
            self.channel.validate()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    assert not pair.channel.waiting


def test_a_miss_heals_by_the_list_under_the_same_number(pair: Pair) -> None:
    """As after the restart of a server; no user sees it, and nothing counts as a retransmission."""
    for _ in range(3):
        done = pair.call(Push, KEYS)
        pair.run()
        assert done.done
        assert done.error is None
    assert [request.flags for request in pair.sent] == [LIST, LIST | SIGNED, SIGNED]
    forget(pair.served.core)
    pair.sent.clear()
    pushed, pulled = pair.call(Push, KEYS), pair.call(Pull, KEYS)
    into = pulled.parts[0].into
    pair.run()
    assert [request.flags for request in pair.sent] == [SIGNED, LIST | SIGNED, SIGNED]
    assert pair.sent[0].seq == pair.sent[1].seq == 4
    assert pair.sent[0].request_id != pair.sent[1].request_id
    assert pushed.error is None
    assert pulled.error is None
    assert into is not None
    assert (np.frombuffer(into, F) == 4).all()


def test_answers_of_the_first_try_are_strays(pair: Pair) -> None:
    """It may be repeated over a new connection, and so may its refusal."""
    for _ in range(2):
        pair.call(Push, KEYS)
        pair.run()
    forget(pair.served.core)
    operation = pair.call(Push, KEYS)
    (part,) = operation.parts
    assert pair.channel.next_part(0.0) is part
    request = decode(bytes(part.header) + bytes(part.payload))
    assert isinstance(request, Request)
    (action,) = pair.served.ask(10, request)
    assert isinstance(action, Send)
    assert isinstance(action.frame, Reply)
    assert pair.channel.answer(action.frame, 0.0) is None
    assert pair.channel.answer(action.frame, 0.0) is None
    assert pair.channel.answer(Ack(request_id=request.request_id, seq=3), 0.0) is None
    assert not operation.done
    pair.run()
    assert operation.done
    assert operation.error is None
    assert values_of(reply(pull(pair.served, KEYS))) == [3.0] * 120


def forget(core: ServerCore) -> None:
    core._lists = KeyCache()
