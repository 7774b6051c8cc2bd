"""The cost gate on links whose times are computed: near to the best codec in every cell."""

from __future__ import annotations

import random

import numpy as np
import pytest

from aiops.compression.auto import AUTO, AutoCompressor
from aiops.compression.gate import CANDIDATES, DENSE, Gate, Price
from aiops.errors import ConfigError, UsageError
from aiops.tables.compression import compressor_for, measured_prices
from bits import same_bits

# Seconds and bytes per value as measured on two cores: encoding with error feedback, decoding.
PRICES = {
    "dense": (0.0, 0.0, 4.0),
    "bf16": (4e-9, 0.5e-9, 2.0),
    "int8": (5e-9, 0.5e-9, 1.016),
    "one-bit": (5e-9, 0.6e-9, 0.125),
    "top-k:0.01:sampled=true:compact=true": (3e-9, 0.1e-9, 0.04),
}
LINKS = {"10 Mbit/s": 1.25e6, "100 Mbit/s": 12.5e6, "1 Gbit/s": 125e6, "loopback": 2.8e9}
SIZES = {"16 KB": 4_096, "1 MB": 262_144, "16 MB": 4_194_304}
ROUND_TRIP_S = 60e-6


def took(name: str, elements: int, rate: float) -> tuple[float, float]:
    """Seconds of encoding, and from sending to the last answer."""
    encode, decode, size = PRICES[name]
    busy = 20e-6 if name != DENSE else 0.0
    return busy + elements * encode, ROUND_TRIP_S + elements * (decode + size / rate)


def run(gate: Gate, elements: int, rate: float, pushes: int, noise: float = 0.0) -> list[float]:
    """Push so often; the seconds of each push."""
    chance = random.Random(1)
    times = []
    for _ in range(pushes):
        name = gate.choose(elements)
        encode_s, wire_s = took(name, elements, rate)
        wire_s *= 1 + noise * chance.expovariate(1)
        gate.sent(name, elements, int(elements * PRICES[name][2]), encode_s, wire_s)
        times.append(encode_s + wire_s)
    return times


def new_gate() -> Gate:
    return Gate({name: Price(*price) for name, price in PRICES.items()})


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("link", LINKS)
def test_a_push_takes_little_more_than_with_the_best_codec(
    link: str, size: str, noise: float
) -> None:
    rate, elements = LINKS[link], SIZES[size]
    gate = new_gate()
    run(gate, elements, rate, 100, noise)
    best = min(sum(took(name, elements, rate)) for name in PRICES)
    assert sum(took(gate.chosen, elements, rate)) <= 1.1 * best
    assert (gate.chosen == DENSE) is (link == "loopback")


def test_it_goes_back_when_the_link_gets_fast_and_forth_when_it_gets_slow() -> None:
    gate = new_gate()
    run(gate, 1_000_000, 12.5e6, 40)
    assert gate.chosen != DENSE
    run(gate, 1_000_000, 2.8e9, 100)
    assert gate.chosen == DENSE
    run(gate, 1_000_000, 12.5e6, 40)
    assert gate.chosen != DENSE


def test_a_codec_that_disappoints_is_left_again() -> None:
    """Encoding takes ten times what it should: on a busy machine, say."""
    prices = {name: Price(a / 10, b / 10, c) for name, (a, b, c) in PRICES.items()}
    gate = Gate(prices)
    times = run(gate, 1_000_000, 1.2e9, 200)
    dense = sum(took(DENSE, 1_000_000, 1.2e9))
    assert np.mean(times[-100:]) <= 1.1 * dense


def test_the_reason_names_what_was_compared() -> None:
    gate = new_gate()
    assert "not been measured" in gate.reason
    run(gate, 1_000_000, 12.5e6, 40)
    assert "100 Mbit/s" in gate.reason or "99.9 Mbit/s" in gate.reason
    assert all(name in gate.reason for name in CANDIDATES)


# --- the compressor -----------------------------------------------------------------------------


class Scripted(Gate):
    """A gate that takes one candidate after the other."""

    def choose(self, elements: int) -> str:
        self._pushes += 1
        self.chosen = CANDIDATES[self._pushes * 2 % len(CANDIDATES)]
        return self.chosen


def scripted() -> AutoCompressor:
    return AutoCompressor(Scripted({DENSE: Price(0, 0, 4)}), (30, 20), seed=1)


def test_nothing_is_lost_between_codecs() -> None:
    """Also across a restart, and for parts of the table."""
    sender = scripted()
    given = np.zeros(600)
    arrived = np.zeros(600)
    places = np.arange(3, 600, 7)
    for step in range(20):
        x = np.random.default_rng(step).standard_normal(600).astype(np.float32)
        where: np.ndarray | slice | None = (None, slice(100, 300), places)[step % 3]
        part = slice(0, 600) if where is None else where
        given[part] += x[part]
        arrived[part] += sender.encode(x[part].copy(), where).dense()
        if step == 11:
            state = sender.state_dict()
            sender = scripted()
            sender.load_state_dict(state)
    held = sender.state_dict()["residual"]
    np.testing.assert_allclose(arrived + held, given, atol=1e-4)
    assert sender.stats()["codec"] == AUTO


def test_dense_without_a_rest_is_the_array_itself() -> None:
    sender = AutoCompressor(new_gate(), (50,), seed=0)
    x = np.arange(50, dtype=np.float32)
    assert np.shares_memory(sender.encode(x).dense(), x)
    assert sender.residual_norm == 0


def test_a_sum_that_is_no_number_is_not_sent() -> None:
    sender = scripted()
    large = np.full(600, 3e38, np.float32)
    with np.errstate(all="ignore"):
        for _ in range(5):
            before = sender.residual_norm
            try:
                sender.encode(large)
            except UsageError:
                assert sender.residual_norm == before
                break
        else:
            pytest.fail("it never came to a sum beyond float32")


def test_states_belong_to_the_setting() -> None:
    auto = compressor_for("auto", (10,), 0)
    plain = compressor_for("int8", (10,), 0)
    with pytest.raises(ConfigError, match="is of auto"):
        plain.load_state_dict(auto.state_dict())
    again = compressor_for("auto", (10,), 0)
    again.load_state_dict(auto.state_dict())
    x = np.ones(10, np.float32)
    assert same_bits(again.encode(x).dense(), x)


def test_prices_are_measured() -> None:
    prices = measured_prices(16 * 1024)
    assert set(prices) == set(CANDIDATES)
    assert all(encode > 0 and decode > 0 for n, (encode, decode, _) in prices.items() if n != DENSE)
    assert prices["int8"][2] == pytest.approx(1.0156, abs=0.01)
