"""Nothing is lost: of every codec and wrapper, what arrived and what is held was given.

Across restarts and changes of the number of servers, at the ends of float32, and whatever is
refused.
"""

from __future__ import annotations

import numpy as np
import pytest

from aiops.compression import Codec, ErrorFeedback, codec_from
from aiops.compression.compressor import Compressor
from aiops.errors import UsageError
from aiops_protocol.payload import Float32Array
from codec_cases import SPELLINGS, arrived, values


def conserving(spelling: str) -> Codec:
    """The codec, with feedback also where it would go without."""
    codec = codec_from(spelling)
    return ErrorFeedback(codec) if codec.feedback == "none" and spelling[:2] != "no" else codec


def conserves(spelling: str) -> bool:
    """DGC multiplies what it holds back by its momentum; the other one is told not to hold."""
    return not spelling.startswith(("no-", "dgc")) or "momentum=0.0" in spelling


@pytest.mark.parametrize("spelling", [s for s in SPELLINGS if conserves(s)])
def test_what_arrived_and_what_is_held_back_is_what_was_given(spelling: str) -> None:
    """Also across a restart that restores the state, and while the number of servers changes."""
    shape, steps = (40, 60), 24
    size = shape[0] * shape[1]
    sender = Compressor(conserving(spelling), shape, seed=5)
    given_sum = np.zeros(size)
    arrived_sum = np.zeros(size)
    for step in range(steps):
        x = values(size, step) * np.float32(10.0 ** (step % 5 - 2))
        x[step::7] = 0
        given_sum += x
        if step == steps // 2:
            state = sender.state_dict()
            sender = Compressor(conserving(spelling), shape, seed=5)
            sender.load_state_dict(state)
        arrived_sum += arrived(sender.encode(x), size, servers=step % 5 + 1)
    held = sender.state_dict().get("residual", np.zeros(size))
    scale = np.abs(given_sum).max() + np.abs(held).max() + 100
    np.testing.assert_allclose(arrived_sum + held, given_sum, atol=steps * scale * 2**-23)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_restored_state_gives_the_same_bytes(spelling: str) -> None:
    shape = (30, 50)
    first = Compressor(codec_from(spelling), shape, seed=3)
    for step in range(3):
        first.encode(values(1500, step))
    second = Compressor(codec_from(spelling), shape, seed=3)
    second.load_state_dict(first.state_dict())
    for step in range(3, 6):
        x = values(1500, step)
        one, two = first.encode(x).whole(), second.encode(x).whole()
        assert (one.codec, one.parameter, bytes(one.payload)) == (
            two.codec,
            two.parameter,
            bytes(two.payload),
        )
    assert first.residual_norm == second.residual_norm


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_vector_is_not_changed_and_its_size_does_not_matter(spelling: str) -> None:
    for size in (1, 2, 15, 16, 17, 257, 4097):
        x = values(size, size)
        before = x.copy()
        sender = Compressor(codec_from(spelling), (size,), seed=1)
        for _ in range(3):
            encoded = sender.encode(x)
            assert np.array_equal(arrived(encoded, size), encoded.dense())
        assert np.array_equal(x, before)


FLOAT_MAX = np.finfo(np.float32).max


def extremes(size: int) -> dict[str, Float32Array]:
    """Vectors at the ends of what a float32 can be."""
    chance = np.random.default_rng(size)
    signs = np.where(chance.random(size) < 0.5, -1, 1)
    places = np.arange(size)
    made = {
        "the largest": signs * FLOAT_MAX,
        "one of the largest": np.where(places == size // 2, FLOAT_MAX, 0),
        "near the largest": signs * (0.9 + 0.1 * chance.random(size)) * FLOAT_MAX,
        "largest and least": np.where(places % 2, signs * FLOAT_MAX, signs * 1e-45),
        "the least": signs * 1e-45,
        "without an exponent": signs * chance.random(size) * 1e-39,
        "of all sizes": signs * 10.0 ** chance.uniform(-44, 38, size),
        "negative zeros": np.full(size, -0.0),
    }
    return {name: x.astype(np.float32) for name, x in made.items()}


@pytest.mark.parametrize("size", [0, 1, 13, 1021])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_at_the_ends_of_float32_nothing_is_infinite_and_nothing_is_lost(
    spelling: str, size: int
) -> None:
    for name, x in extremes(size).items():
        for codec in {codec_from(spelling), conserving(spelling)}:
            sender = Compressor(codec, (size,), seed=2)
            given, got = np.zeros(size), np.zeros(size)
            for factor in (1.0, 0.5, -1.0):
                part = x * np.float32(factor)
                try:
                    encoded = sender.encode(part)
                except UsageError:  # what was held back and this do not fit a float32
                    assert given.any(), name
                    assert np.abs(x).max() > 1e38, name
                    continue
                received = arrived(encoded, size)
                assert np.isfinite(received).all(), name
                given += part
                got += received
            assert np.isfinite(sender.residual_norm)
            if conserves(spelling) and codec == conserving(spelling):
                held = sender.state_dict().get("residual", np.zeros(size)).astype(np.float64)
                scale = np.abs(x).max(initial=0) + np.abs(held).max(initial=0)
                np.testing.assert_allclose(got + held, given, atol=3 * scale * 2.0**-22 + 5e-45)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_never_kept(spelling: str, bad: float) -> None:
    codec = codec_from(spelling)
    if codec.feedback == "none" or spelling.startswith("no-"):
        codec = ErrorFeedback(codec_from(spelling.removeprefix("no-feedback(").removesuffix(")")))
    sender = Compressor(codec, (40, 50), seed=2)
    sender.encode(values(2000, 1))
    before = {name: array.copy() for name, array in sender.state_dict().items()}
    x = values(2000, 2)
    x[77] = bad
    with pytest.raises(UsageError, match="NaN or infinity"):
        sender.encode(x)
    after = sender.state_dict()
    assert {name: array.tobytes() for name, array in before.items()} == {
        name: array.tobytes() for name, array in after.items()
    }


def test_a_part_of_the_table_has_its_part_of_what_is_held_back() -> None:
    whole = Compressor(codec_from("top-k:0.1"), (10, 10), seed=1)
    parts = Compressor(codec_from("top-k:0.1"), (10, 10), seed=1)
    x = values(100, 1)
    places = np.arange(1, 100, 2)
    sent = [np.zeros(100, np.float32) for _ in range(2)]
    sent[0][:50] += arrived(parts.encode(x[:50], slice(0, 50)), 50)
    sent[0][50:] += arrived(parts.encode(x[50:], slice(50, 100)), 50)
    sent[1][places] = arrived(parts.encode(x[places], places), 50)
    expected = x.copy()
    expected[places] += x[places]
    held = parts.state_dict()["residual"]
    np.testing.assert_allclose(sent[0] + sent[1] + held, expected, rtol=1e-6)
    whole.encode(x)
    assert parts.pushes == 3
