"""What a server does with pushes in a codec: few values alone, wrong ones not at all."""

from __future__ import annotations

import random

import numpy as np
import pytest

import vectors
from aiops.roles.actions import Send
from aiops_protocol.codecs import Encoded, Raw, SparseValues, word_of
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Ack, Codec, Flag, Push, Reply
from served import Served

PARAMETERS = int(Flag.CODEC_PARAMETERS)
SIZE = 8
SPARSE = SparseValues(SIZE, np.array([1, 6]), np.array([2, -3], np.float32))


def push(served: Served, encoded: Encoded, **fields: object) -> Reply:
    """Push a whole encoded table as worker 0; the answer."""
    codec, parameter, payload = encoded.whole()
    given = {
        "begin": 0,
        "end": SIZE,
        "codec": codec,
        "codec_parameters": word_of(encoded.size, parameter),
        "flags": PARAMETERS,
        "payload": payload,
    } | fields
    (action, *_) = served.ask(10, served.mutation(Push, 0, **given))
    assert isinstance(action, Send)
    assert isinstance(action.frame, Reply)
    return action.frame


def test_few_values_are_applied() -> None:
    served = Served(SIZE, consistency="asp")
    assert isinstance(push(served, SPARSE), Ack)
    assert served.values.tolist() == [0, 2, 0, 0, 0, 0, -3, 0]


def test_zeros_count_where_an_optimizer_moves_by_itself() -> None:
    """Momentum goes on where the gradient is zero."""
    served = Served(SIZE, consistency="asp", optimizer="momentum", settings={"lr": 1.0})
    push(served, Raw(np.ones(SIZE, np.float32)), codec=0, flags=0, codec_parameters=0)
    before = served.values.copy()
    push(served, SPARSE)
    assert (served.values != before).all()


@pytest.mark.parametrize("consistency", ["asp", "bsp"])
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"codec_parameters": word_of(SIZE + 1, 0)}, ErrorCode.MALFORMED_PAYLOAD),
        ({"codec_parameters": word_of(SIZE, 9)}, ErrorCode.MALFORMED_PAYLOAD),
        ({"payload": b""}, ErrorCode.MALFORMED_PAYLOAD),
        ({"codec": Codec.LZ4}, ErrorCode.MALFORMED_PAYLOAD),
        ({"payload": SPARSE.whole().payload[:-4] + b"\0\0\xc0\x7f"}, ErrorCode.NOT_FINITE),  # type: ignore[operator]
    ],
)
def test_a_wrong_payload_changes_nothing(
    consistency: str, fields: dict[str, object], code: ErrorCode
) -> None:
    served = Served(SIZE, consistency=consistency)
    assert push(served, SPARSE, **fields).status == code
    assert not served.values.any()
    assert isinstance(push(served, SPARSE), Ack)


def test_damaged_payloads_change_nothing_or_what_they_say() -> None:
    """An applied one is whole; a refused one leaves every bit as it was."""
    chance = random.Random(3)
    golden = [v for v in vectors.load("codecs.json") if v["codec"] != "DELTAS" and v["count"] < 99]
    applied = 0
    for _ in range(600):
        vector = chance.choice(golden)
        data = bytearray.fromhex(vector["payload"])
        if data and chance.random() < 0.8:
            data[chance.randrange(len(data))] = chance.randrange(256)
        served = Served(vector["count"], consistency="asp")
        reply = push(
            served,
            Raw(np.zeros(vector["count"], np.float32)),
            end=vector["count"],
            codec=Codec[vector["codec"]],
            codec_parameters=word_of(vector["count"], vector["parameter"]),
            flags=0 if vector["codec"] == "RAW" else PARAMETERS,
            payload=bytes(data),
        )
        assert np.isfinite(served.values).all()
        applied += isinstance(reply, Ack)
        assert isinstance(reply, Ack) or not served.values.any()
    assert 100 < applied < 600
