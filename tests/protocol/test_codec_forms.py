"""Wire forms of values: golden bytes, and any cut of an encoded vector means the same."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vectors
from aiops_protocol.codecs import (
    Encoded,
    Float8,
    Halves,
    IndexKind,
    Levels,
    LowRank,
    Lz4Block,
    Raw,
    Section,
    Seeded,
    Signs,
    Sparse,
    SparseLevels,
    SparseValues,
    ValueKind,
    compress,
    decode_values,
    decompress,
    hashes,
    join_deltas,
    seeded_places,
    split_deltas,
    to_bfloat16,
    to_float8,
    to_float16,
    uniforms,
)
from aiops_protocol.codecs.places import (
    pack_places,
    pack_unary,
    places_bytes,
    unpack_places,
    unpack_unary,
)
from aiops_protocol.errors import MalformedFrame
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Float32Array
from bits import same_bits

GOLDEN = vectors.load("codecs.json")
MALFORMED = vectors.load("malformed_codecs.json")


def name_of(vector: vectors.Vector) -> str:
    return str(vector["name"])


@pytest.mark.parametrize("vector", [v for v in GOLDEN if "values" in v], ids=name_of)
def test_golden_payloads_mean_their_values(vector: vectors.Vector) -> None:
    payload = bytes.fromhex(vector["payload"])
    codec = Codec[vector["codec"]]
    decoded = decode_values(codec, payload, vector["count"], vector["parameter"])
    if isinstance(decoded, Sparse):
        assert decoded.indices.tolist() == vector["places"]
        decoded = decoded.values
    assert decoded.tolist() == vector["values"]


def test_golden_deltas() -> None:
    (vector,) = [vector for vector in GOLDEN if "steps" in vector]
    steps = split_deltas(bytes.fromhex(vector["payload"]))
    found = [[step.codec.name, step.parameter, bytes(step.payload).hex()] for step in steps]
    assert found == vector["steps"]
    assert join_deltas(steps).hex() == vector["payload"]


@pytest.mark.parametrize("size", [1, 11, 13])
def test_deltas_that_end_too_soon(size: int) -> None:
    (vector,) = [vector for vector in GOLDEN if "steps" in vector]
    with pytest.raises(MalformedFrame):
        split_deltas(bytes.fromhex(vector["payload"])[:size])


@pytest.mark.parametrize("vector", MALFORMED, ids=name_of)
def test_malformed_payloads_are_refused(vector: vectors.Vector) -> None:
    payload = bytes.fromhex(vector["payload"])
    with pytest.raises(MalformedFrame):
        decode_values(Codec[vector["codec"]], payload, vector["count"], vector["parameter"])


def test_each_codec_has_vectors() -> None:
    codecs = {codec.name for codec in Codec}
    assert {vector["codec"] for vector in GOLDEN} == codecs
    # BFLOAT16 is decoded by the lines of FLOAT16.
    assert {vector["codec"] for vector in MALFORMED} == codecs - {"BFLOAT16"}


# --- any vector, any cut ----------------------------------------------------------------------


def some_values(size: int, seed: int) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def forms(size: int, seed: int) -> list[Encoded]:
    """A vector in every form."""
    chance = np.random.default_rng(seed)
    x = some_values(size, seed)
    block = int(2 ** chance.integers(4, 9))
    scales = some_values(-(-size // block), seed + 1)
    places = np.flatnonzero(chance.random(size) < chance.random() ** 3)
    seeded = seeded_places(seed, block, 0, size)
    columns = int(chance.integers(1, max(2, size)))
    rows = size // columns
    empty = np.empty((0, 0), np.float32)
    sections = [
        Section(0, rows * columns, some_values(2 * rows, 1).reshape(-1, 2),
                some_values(2 * columns, 2).reshape(-1, 2), x[:0]),
        Section(rows * columns, size, empty, empty, x[rows * columns :]),
    ]  # fmt: skip
    made: list[Encoded] = [
        Raw(x),
        Halves(Codec.FLOAT16, to_float16(x)),
        Halves(Codec.BFLOAT16, to_bfloat16(x)),
        Float8(to_float8(x), scales, block),
        Signs(x < 0, scales, block),
        Seeded(size, seed, block, x[seeded]),
        SparseLevels(size, places, np.where(x[places] < 0, -1, 1).astype(np.int8), scales, block),
        SparseLevels.of(chance.integers(-127, 128, size).astype(np.int8), scales, block),
        LowRank([section for section in sections if section.begin < section.end]),
    ]
    for bits in (2, 4, 8):
        most = 2 ** (bits - 1)
        numbers = chance.integers(-most, most, size).astype(np.int8)
        made.append(Levels(numbers, scales, block, bits))
    made += [
        SparseValues(size, places, x[places], index, kind)
        for index, kind in product(IndexKind, ValueKind)
    ]
    return [*made, *(Lz4Block(form, width) for form in made[-2:] for width in (1, 4))]


def dense(decoded: Float32Array | Sparse) -> Float32Array:
    return decoded.dense() if isinstance(decoded, Sparse) else decoded


@given(st.data(), st.integers(1, 3000), st.integers(0, 2**32))
def test_the_payloads_of_any_cut_mean_what_the_encoder_says(
    data: st.DataObject, size: int, seed: int
) -> None:
    cuts = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=4))})
    for encoded in forms(size, seed):
        expected = encoded.dense()
        parts = []
        for start, stop in pairwise(cuts):
            wire = encoded.cut(start, stop)
            parts.append(
                dense(decode_values(wire.codec, wire.payload, stop - start, wire.parameter))
            )
        assert same_bits(np.concatenate(parts), expected), type(encoded).__name__
        held = np.ones(size, np.float32)
        encoded.take_from(held)
        assert same_bits(held, np.float32(1) - expected), type(encoded).__name__


@pytest.mark.parametrize("empty", [form for form in forms(1, 3) if not isinstance(form, LowRank)])
def test_nothing_may_be_cut_and_decoded(empty: Encoded) -> None:
    wire = empty.cut(1, 1)
    assert dense(decode_values(wire.codec, wire.payload, 0, wire.parameter)).size == 0


@given(st.data(), st.integers(1, 2**40))
def test_places_take_two_bits_and_the_logarithm_of_their_distance(
    data: st.DataObject, count: int
) -> None:
    """From one place in a vector to all of a short one; no place is out of reach."""
    found = data.draw(st.sets(st.integers(0, count - 1), max_size=60))
    places = np.array(sorted(found), np.int64)
    packed = pack_places(places, count)
    assert len(packed) == places_bytes(places.size, count)
    assert unpack_places(b"ab" + packed, 2, places.size, count).tolist() == places.tolist()
    if places.size:
        assert len(packed) <= places.size * (np.log2(count / places.size) + 2) / 8 + 2


def test_places_are_near_the_least_that_any_code_could_take() -> None:
    chance = np.random.default_rng(1)
    for share in (0.3, 0.1, 0.02, 0.003):
        places = np.flatnonzero(chance.random(500_000) < share)
        entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share)) * 500_000 / 8
        assert entropy * 0.99 < len(pack_places(places, 500_000)) <= entropy + 0.8 * places.size / 8


@given(st.lists(st.integers(1, 127), max_size=200))
def test_numbers_in_unary_come_back(numbers: list[int]) -> None:
    packed = pack_unary(np.array(numbers, np.int64))
    assert unpack_unary(b"abc" + packed, 3, len(numbers)).tolist() == numbers


def test_the_size_that_a_form_foretells_is_that_of_its_payload() -> None:
    for size, seed in product((1, 100, 3000), range(20)):
        for form in forms(size, seed):
            if isinstance(form, SparseLevels):
                assert form.payload_bytes == len(form.whole().payload)


# --- rounding ---------------------------------------------------------------------------------


def test_bfloat16_rounds_to_the_nearest_and_ties_to_even() -> None:
    x = np.array([1.0, 1.00390625, 1.01171875, 3.4e38, -3.4e38, 1e-45], np.float32)
    wire = Halves(Codec.BFLOAT16, to_bfloat16(x)).whole()
    got = dense(decode_values(wire.codec, wire.payload, x.size))
    assert got[:3].tolist() == [1.0, 1.0, 1.015625]
    assert np.isfinite(got).all()


@given(st.floats(-448, 448, width=32))
def test_float8_is_the_nearest_number_that_there_is(value: float) -> None:
    table = decode_values(
        Codec.FLOAT8, np.ones(1, "<f4").tobytes() + bytes(range(127)), 127, 7 << 20
    )
    wire = Float8(to_float8(np.array([value], np.float32)), np.ones(1, np.float32), 16).whole()
    (got,) = dense(decode_values(wire.codec, wire.payload, 1, wire.parameter))
    assert abs(float(got) - value) == np.abs(dense(table).astype(np.float64) - abs(value)).min()


# --- draws ------------------------------------------------------------------------------------


def test_hashes_are_splitmix64() -> None:
    """The first numbers of the published generator with seed 1234567."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert hashes(1234567, 0, 4).tolist() == known


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 40_000))
def test_a_draw_depends_on_its_place_alone(seed: int, start: int, count: int) -> None:
    whole = uniforms(seed, start, count)
    middle = count // 2
    assert same_bits(uniforms(seed, start + middle, count - middle), whole[middle:])
    assert not count or (whole.min() >= 0 and whole.max() < 1)


# --- lz4 --------------------------------------------------------------------------------------


def test_keys_shrink_when_their_bytes_are_sorted() -> None:
    keys = np.unique(np.random.default_rng(1).integers(0, 2_000_000, 40_000)).astype("<u8")
    packed = compress(Codec.RAW, keys.tobytes(), width=8)
    assert decompress(packed, keys.nbytes) == keys.tobytes()
    assert keys.nbytes >= 4 * len(packed)
    assert len(packed) < len(compress(Codec.RAW, keys.tobytes()))


def test_zeros_shrink_and_noise_stays_as_it_is() -> None:
    x = some_values(100_000, 2)
    assert Lz4Block(Raw(x)).whole().codec is Codec.RAW
    x[np.random.default_rng(3).random(x.size) < 0.99] = 0
    wire = Lz4Block(Raw(x)).whole()
    assert wire.codec is Codec.LZ4
    assert len(wire.payload) * 35 <= x.nbytes
