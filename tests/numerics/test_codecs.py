"""Codecs against plain arithmetic: what each makes of a vector, and how it is spelled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.compression import (
    AGC,
    DGC,
    QSGD,
    Chain,
    Codec,
    Dense,
    ErrorFeedback,
    Float16,
    Int4,
    Int8,
    Lz4,
    NoFeedback,
    OneBit,
    PowerSGD,
    RandomK,
    Ternary,
    TopK,
    codec_from,
    codec_names,
    with_feedback,
)
from aiops.compression.base import CODECS
from aiops.compression.compressor import Compressor
from aiops.compression.selection import largest, largest_of_blocks
from aiops.errors import ConfigError
from aiops_protocol.codecs import SparseValues
from codec_cases import SPELLINGS, arrived, values

# --- each codec -------------------------------------------------------------------------------


@given(st.integers(1, 700), st.integers(0, 1000))
def test_int8_is_off_by_half_a_step_at_most(size: int, seed: int) -> None:
    x = values(size, seed)
    got = Int8(block=64).encode(x, {}, 0).dense()
    for start in range(0, size, 64):
        part = x[start : start + 64].astype(np.float64)
        step = float(np.float32(np.abs(x[start : start + 64]).max()) / np.float32(127))
        error = np.abs(got[start : start + 64].astype(np.float64) - part).max()
        assert error <= step / 2 * (1 + 2**-15)


@pytest.mark.parametrize(
    "codec", [QSGD(4), QSGD(1), Ternary(clip=0), Int8(stochastic=True), Int4(stochastic=True)]
)
def test_chance_averages_out(codec: Codec) -> None:
    """The mean of 4000 encodings is within five standard errors of the vector."""
    x = values(40, 9)
    drawn = np.array([codec.encode(x, {}, seed).dense() for seed in range(4000)], np.float64)
    error = np.abs(drawn.mean(axis=0) - x)
    assert (error <= 5 * drawn.std(axis=0) / np.sqrt(4000) + 1e-6).all()
    assert drawn.std(axis=0).max() > 0


def test_top_k_keeps_the_largest() -> None:
    x = values(1000, 3)
    got = TopK(0.02).encode(x, {}, 0).dense()
    kept = np.flatnonzero(got)
    assert kept.size == 20
    assert np.array_equal(got[kept], x[kept])
    assert np.abs(x[kept]).min() >= np.sort(np.abs(x))[-20]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 60))
def test_of_equal_ones_the_first_are_the_largest(numbers: list[int], wanted: int) -> None:
    x = np.array(numbers, np.float32)
    ranked = sorted(range(x.size), key=lambda place: (-x[place], place))
    expected = sorted(place for place in ranked[:wanted] if x[place] > 0)
    assert largest(x, wanted).tolist() == expected
    for block in (16, 32):
        by_block: list[int] = []
        for start in range(0, x.size, block):
            part = x[start : start + block]
            kept = min(part.size, max(1, round((block if part.size == block else part.size) * 0.2)))
            by_block += [start + place for place in largest(part, kept).tolist()]
        assert largest_of_blocks(x, 0.2, block).tolist() == by_block


def test_a_sampled_threshold_is_near_the_right_one() -> None:
    x = values(400_000, 1)
    sent = TopK(0.01, sampled=True).encode(x, {}, 1)
    assert isinstance(sent, SparseValues)
    assert 2000 < sent.indices.size <= 4000
    exact = set(np.argsort(-np.abs(x))[:4000].tolist())
    assert set(sent.indices.tolist()) <= exact


def test_dgc_is_the_published_algorithm() -> None:
    """Momentum correction, masking of both, and the ratios of the warm-up."""
    codec = DGC(ratio=0.02, momentum=0.5, warmup=10)
    sender = Compressor(codec, (500,), seed=0)
    velocity = np.zeros(500, np.float32)
    held = np.zeros(500, np.float32)
    for step in range(14):
        x = values(500, step)
        velocity = np.float32(0.5) * velocity + x
        held = held + velocity
        ratio = (0.25, 0.0625, 0.02)[step * 3 // 10] if step < 10 else 0.02
        places = np.argsort(-np.abs(held))[: round(500 * ratio)]
        expected = np.zeros(500, np.float32)
        expected[places] = held[places]
        velocity[places] = held[places] = 0
        np.testing.assert_allclose(arrived(sender.encode(x), 500), expected, rtol=1e-5)


def test_agc_is_the_published_algorithm_in_each_block() -> None:
    """Sizes of gradients differ by blocks, as those of layers do."""
    size, block, length = 2500, 1024, 100
    sender = Compressor(AGC(bin=length, block=block), (size,), seed=0)
    held = np.zeros(size, np.float32)
    for step in range(5):
        x = values(size, step) * np.repeat([1, 100, 0.01], [1024, 1024, 452]).astype(np.float32)
        r = held + x
        expected = np.zeros(size, np.float32)
        for begin in range(0, size, block):
            end = min(begin + block, size)
            bins = [slice(at, min(at + length, end)) for at in range(begin, end, length)]
            most = [np.abs(r[part]).max() for part in bins]
            for part, top in zip(bins, most, strict=True):
                passing = np.abs(r[part] + x[part]) >= top
                expected[part] = np.where(passing, np.sign(r[part]) * np.float32(np.mean(most)), 0)
        got = arrived(sender.encode(x), size)
        assert np.array_equal(np.flatnonzero(got), np.flatnonzero(expected))
        np.testing.assert_allclose(got, expected, rtol=2**-8)  # sizes are bfloat16
        held = r - got


def test_agc_with_a_budget_aims_at_it() -> None:
    sender = Compressor(AGC(bin=20, budget=600), (20_000,), seed=0)
    sizes = [len(sender.encode(values(20_000, step)).whole().payload) for step in range(60)]
    assert 400 < np.mean(sizes[-20:]) < 800 < sizes[0]
    with pytest.raises(ConfigError, match="a block has 16384; choose a shorter bin"):
        AGC(bin=20_000)


def test_power_sgd_is_exact_for_matrices_of_its_rank() -> None:
    left, right = values(80, 1).reshape(40, 2), values(60, 2).reshape(30, 2)
    x = (left @ right.T).reshape(-1)
    got = PowerSGD(2, shapes=((40, 30),)).encode(x, {}, 7).dense()
    np.testing.assert_allclose(got, x, atol=1e-4)


def test_power_sgd_gets_better_from_push_to_push() -> None:
    x = values(6000, 1)
    state: dict[str, np.ndarray] = {}
    codec = PowerSGD(2, shapes=((100, 50), (1000,)))
    errors = [np.linalg.norm(codec.encode(x, state, 1).dense() - x) for _ in range(20)]
    best = np.linalg.svd(x[:5000].reshape(100, 50), compute_uv=False)[2:]
    assert errors[-1] < errors[0]
    assert errors[-1] <= np.linalg.norm(best) * 1.02
    assert np.array_equal(codec.encode(x, state, 1).dense()[5000:], x[5000:])


def test_one_bit_is_sign_times_mean() -> None:
    x = values(100, 5)
    got = OneBit(block=64).encode(x, {}, 0).dense()
    scale = np.repeat([np.abs(x[:64]).mean(), np.abs(x[64:]).mean()], [64, 36])
    np.testing.assert_allclose(got, np.where(np.signbit(x), -scale, scale), rtol=1e-6)


def test_random_k_sends_one_of_each_group() -> None:
    x = np.arange(1, 101, dtype=np.float32)
    got = RandomK(0.1).encode(x, {}, 4).dense()
    assert np.count_nonzero(got.reshape(10, 10), axis=1).tolist() == [1] * 10
    other = RandomK(0.1).encode(x, {}, 5).dense()
    assert not np.array_equal(got, other)


def test_random_k_warns_below_a_tenth() -> None:
    assert not RandomK(0.1).warnings()
    for codec in (RandomK(0.05), NoFeedback(RandomK(0.05)), with_feedback(RandomK(0.05))):
        assert "diverge" in codec.warnings()[0]


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_spelling_makes_the_codec_again(spelling: str) -> None:
    codec = codec_from(spelling)
    again = codec_from(codec.spelling())
    assert again == codec
    assert hash(again) == hash(codec)
    assert again.spelling() == codec.spelling() == str(codec)


def test_each_codec_is_tried() -> None:
    words = {word for s in SPELLINGS for part in s.split("+") for word in part.split(":")[:1]}
    assert set(codec_names()) <= words | {"top-k"}
    assert all(CODECS[name].name == name for name in codec_names())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("zip", "no codec 'zip'"),
        ("top-k:2", "ratio"),
        ("top-k:x", "ratio cannot be 'x'"),
        ("top-k:0.1:0.2", "not understood"),
        ("top-k:rate=1", "not understood"),
        ("int8:100", "power of two"),
        ("int8:stochastic=maybe", "stochastic cannot be"),
        ("lz4:3", "not understood"),
        ("fp16+int8", "cannot follow"),
        ("int8+fp16", "cannot follow"),
        ("dgc+fp16", "only lz4 may follow"),
        ("gzip(top-k)", "brackets"),
        ("no-feedback(dgc)", "feeds back by itself"),
        ("feedback(agc)", "feeds back by itself"),
        ("top-k:0.1:sampled=true:block=64", "do not go together"),
        ("power-sgd:1:shapes=3xa", "shapes cannot be"),
    ],
)
def test_a_wrong_spelling_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        codec_from(text)


def test_wrappers_take_plain_codecs() -> None:
    for wrong in (ErrorFeedback(TopK()), "top-k"):
        with pytest.raises(ConfigError):
            NoFeedback(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        Chain(TopK())
    with pytest.raises(ConfigError):
        Chain(NoFeedback(TopK()), Lz4())


def test_feedback_comes_by_itself_where_it_is_needed() -> None:
    assert isinstance(with_feedback(TopK()), ErrorFeedback)
    assert isinstance(with_feedback(Chain(TopK(), Float16())), ErrorFeedback)
    for codec in (NoFeedback(TopK()), Dense(), Lz4(), QSGD(), DGC(), AGC(), Int8(stochastic=True)):
        assert with_feedback(codec) is codec


def test_a_state_of_something_else_is_refused() -> None:
    sender = Compressor(TopK(0.1), (100,), seed=0)
    sender.encode(values(100, 1))
    state = sender.state_dict()
    with pytest.raises(ConfigError, match="is of feedback"):
        Compressor(TopK(0.2), (100,), seed=0).load_state_dict(state)
    with pytest.raises(ConfigError, match="100"):
        Compressor(TopK(0.1), (90,), seed=0).load_state_dict(state)
    bad = {**state, "residual": np.full(100, np.nan, np.float32)}
    with pytest.raises(ConfigError, match="NaN"):
        sender.load_state_dict(bad)
    with pytest.raises(ConfigError, match="how many"):
        sender.load_state_dict({"codec": state["codec"]})
    with pytest.raises(ConfigError, match="elements"):
        PowerSGD(1, shapes=((3, 4),)).for_shape((5,))


@pytest.mark.parametrize("spelling", ["fp16", "bf16", "fp8", "int8", "int4:64", "one-bit"])
def test_pieces_in_the_cache_give_the_bits_of_the_whole(spelling: str) -> None:
    size = 150_001
    pieces = Compressor(codec_from(spelling), (size,), seed=0)
    residual = np.zeros(size, np.float32)
    for step in range(3):
        x = values(size, step)
        assert 0 < pieces.codec.codec.piece_elements < size  # type: ignore[attr-defined]
        encoded = codec_from(spelling).encode(residual + x, {}, 0)
        got = pieces.encode(x)
        assert got.whole() == encoded.whole()
        residual = residual + x - encoded.dense()
        assert np.array_equal(pieces.state_dict()["residual"], residual)
