"""The public replica: near to the exact values, and the same bits for whoever follows it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiops.compression import Codec, codec_from
from aiops.compression.pulls import pull_codec, unit_elements
from aiops.errors import ConfigError
from aiops.shards.replica import Replica
from aiops.tables.layout import Layout, Piece
from aiops.tables.replica import PulledReplica
from aiops_protocol.codecs import join_deltas
from aiops_protocol.control import ShardPart
from aiops_protocol.errors import MalformedFrame
from aiops_protocol.frames import Codec as Form
from aiops_protocol.frames import Value
from aiops_protocol.payload import Float32Array, as_bytes
from bits import same_bits

SPELLINGS = [
    *("top-k:0.04", "one-bit", "int8", "int4", "fp8", "fp16", "bf16", "lz4"),
    *("top-k:0.1+fp16+lz4", "top-k:0.1:compact=true"),
]
SIZE = 300_000  # three segments


def walk(seed: int, steps: int) -> list[Float32Array]:
    """Versions of a shard's values."""
    chance = np.random.default_rng(seed)
    values = [chance.standard_normal(SIZE).astype(np.float32)]
    for _ in range(steps):
        moved = chance.standard_normal(SIZE).astype(np.float32) * np.float32(0.01)
        values.append(values[-1] + moved)
    return values


def pieces() -> tuple[Layout, list[Piece]]:
    layout = Layout("w", (SIZE,), [ShardPart(server=0, begin=0, end=SIZE)])
    return layout, layout.whole.pieces


def pull(copy: PulledReplica, piece: Piece, replica: Replica) -> bool:
    """Bring a worker's copy up to date; whether steps were enough."""
    base = copy.version(piece)
    steps = replica.steps_since(piece.start, piece.stop, base) if base >= 0 else None
    if steps is None:
        payload = as_bytes(replica.values[piece.start : piece.stop])
        reply = Value(request_id=1, version=replica.version, payload=payload)
    else:
        reply = Value(request_id=1, version=replica.version, codec=Form.DELTAS, payload=steps)
    copy.taker(piece)(reply)
    return steps is not None


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_whoever_follows_has_the_bits_of_the_replica(spelling: str) -> None:
    """Each version, every third one, or from the middle on."""
    versions = walk(1, 7)
    replica = Replica(pull_codec(codec_from(spelling)), versions[0], 0)
    layout, parts = pieces()
    copies = [PulledReplica("int8", layout) for _ in range(3)]
    for version, exact in enumerate(versions):
        if version:
            replica.publish(exact, version)
            replica.validate()
        for copy, due in zip(copies, (True, version % 3 == 0, version >= 4), strict=True):
            for piece in parts if due else ():
                known = copy.version(piece)
                by_steps = pull(copy, piece, replica)
                assert by_steps or known < 0 or known < version - 1
            assert not due or same_bits(copy.values, replica.values)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_replica_comes_near_when_the_values_rest(spelling: str) -> None:
    start, *_, end = (values[:20_000] for values in walk(2, 3))
    replica = Replica(pull_codec(codec_from(spelling)), start, 0)
    first = np.linalg.norm(end - start)
    for version in range(1, 61):
        replica.publish(end, version)
    assert np.linalg.norm(end - replica.values) < first / 5


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_replica_does_not_depend_on_how_a_table_is_cut(spelling: str) -> None:
    codec = pull_codec(codec_from(spelling))
    versions = walk(3, 3)
    unit = unit_elements(codec)
    cut = 5 * unit

    def published(start: int, stop: int) -> Float32Array:
        replica = Replica(codec, versions[0][start:stop], 0)
        for version, exact in enumerate(versions[1:], start=1):
            replica.publish(exact[start:stop], version)
        return replica.values

    parts = [published(0, cut), published(cut, SIZE)]
    assert same_bits(np.concatenate(parts), published(0, SIZE))


def test_what_was_kept_is_bounded() -> None:
    versions = walk(4, 3)
    replica = Replica(codec_from("fp16"), versions[0], 0)
    for version in range(1, 5):
        replica.publish(versions[version % 4], version)
        replica.validate()
    _, (piece, *_) = pieces()
    size = 4 * (piece.stop - piece.start)
    assert replica.steps_since(piece.start, piece.stop, 4) == b""
    assert len(replica.steps_since(piece.start, piece.stop, 3) or b"") < size
    assert replica.steps_since(piece.start, piece.stop, 0) is None
    assert replica.steps_since(piece.start, piece.stop, 17) is None
    assert replica.steps_since(piece.start + 1, piece.stop, 3) is None
    assert replica.steps_since(piece.start, piece.stop - 1, 3) is None


def test_a_difference_that_is_no_number_is_sent_whole() -> None:
    replica = Replica(codec_from("int8"), np.full(16, -3e38, np.float32), 0)
    with np.errstate(all="ignore"):
        replica.publish(np.full(16, 3e38, np.float32), 1)
    assert (replica.values == np.float32(3e38)).all()
    assert replica.steps_since(0, 16, 0) is None


@settings(max_examples=20)
@given(st.binary(max_size=60))
def test_a_wrong_answer_leaves_the_copy_of_no_version(noise: bytes) -> None:
    layout = Layout("w", (16,), [ShardPart(server=0, begin=0, end=16)])
    (piece,) = layout.whole.pieces
    copy = PulledReplica("int8", layout)
    copy.taker(piece)(Value(request_id=1, version=3, payload=bytes(64)))
    assert copy.version(piece) == 3
    try:
        copy.taker(piece)(Value(request_id=1, version=4, codec=Form.DELTAS, payload=noise))
    except MalformedFrame:
        assert copy.version(piece) == -1
    else:
        assert noise == b"" or join_deltas([]) == b""
        assert copy.version(piece) == 4
    with pytest.raises(MalformedFrame):
        copy.taker(piece)(Value(request_id=1, version=5, payload=bytes(60)))
    assert copy.version(piece) == -1


@pytest.mark.parametrize(
    "spelling",
    [
        *("qsgd", "ternary", "random-k", "power-sgd", "dgc", "agc", "int8:stochastic=true"),
        *("top-k:0.1:sampled=true", "feedback(top-k)", "no-feedback(top-k)", "dense", "dgc+lz4"),
    ],
)
def test_some_codecs_cannot_publish(spelling: str) -> None:
    with pytest.raises(ConfigError, match="pull_compression cannot be"):
        pull_codec(codec_from(spelling))


def test_parts_begin_at_whole_blocks() -> None:
    def unit(spelling: str) -> int:
        codec: Codec = pull_codec(codec_from(spelling))
        return unit_elements(codec)

    assert unit("top-k:0.1") == unit("int8") == unit("fp16") == 4096
    assert unit("one-bit") == unit("one-bit+lz4") == 16_384
    assert unit("top-k:0.1:block=32768+fp16") == 32_768
