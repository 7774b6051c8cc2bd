"""The cost gate on links whose times are computed: near to the best codec in every cell."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.compression.auto import AUTO, AutoCompressor
from aiops.compression.gate import CANDIDATES, DENSE, Gate, Price
from aiops.compression.link import Link
from aiops.errors import ConfigError, UsageError
from aiops.tables.compression import compressor_for, measured_prices
from bits import same_bits

# Encoding, decoding and bytes of each value, and a call, as measured on two cores.
PRICES = {
    "dense": (0.0, 0.0, 4.0, 0.0),
    "bf16": (1.4e-9, 0.1e-9, 2.0, 20e-6),
    "int8": (1.4e-9, 0.2e-9, 1.016, 30e-6),
    "one-bit": (1.1e-9, 0.3e-9, 0.125, 30e-6),
    "top-k:0.01:sampled=true:compact=true": (2.0e-9, 0.1e-9, 0.04, 40e-6),
}
LINKS = {"10 Mbit/s": 1.25e6, "100 Mbit/s": 12.5e6, "1 Gbit/s": 125e6, "loopback": 8e9}
SIZES = {"16 KB": 4_096, "1 MB": 262_144, "16 MB": 4_194_304}
WAYS_S = (60e-6, 1e-3)


class World:
    """A link, a machine and its server in virtual time."""

    def __init__(self, rate: float, way_s: float, noise: float = 0.0, seed: int = 1) -> None:
        self.rate, self.way_s, self.noise = rate, way_s, noise
        self.busy = 1.0  # factor of all that processors do
        self.chance = random.Random(seed)

    def took(self, name: str, elements: int) -> tuple[float, float]:
        """Seconds of encoding, and from sending to the last answer, without noise."""
        encode, decode, size, call = PRICES[name]
        busy_s = self.busy * (call + elements * encode)
        return busy_s, self.busy * self.way_s + elements * (self.busy * decode + size / self.rate)

    def total(self, name: str, elements: int) -> float:
        return sum(self.took(name, elements))

    def best(self, elements: int) -> float:
        return min(self.total(name, elements) for name in PRICES)

    def run(self, gate: Gate, elements: int, pushes: int) -> list[float]:
        """Push so often; the seconds of each push without noise."""
        times = []
        for _ in range(pushes):
            if gate.passes(elements):
                times.append(self.total(DENSE, elements))
                continue
            name = gate.choose(elements)
            encode_s, wire_s = self.took(name, elements)
            times.append(encode_s + wire_s)
            encode_s *= 1 + self.noise * self.chance.expovariate(1)
            wire_s *= 1 + self.noise * self.chance.expovariate(1)
            gate.sent(name, elements, int(elements * PRICES[name][2]), encode_s, wire_s)
        return times


def new_gate(link: Link | None = None) -> Gate:
    return Gate({name: Price(*price) for name, price in PRICES.items()}, link)


# --- the link -----------------------------------------------------------------------------------


@given(
    rate=st.floats(1e5, 1e10),
    way_s=st.floats(0, 0.1),
    short=st.integers(100, 10_000),
    times=st.integers(3, 1000),
)
def test_two_sizes_tell_the_way_from_the_bytes(
    rate: float, way_s: float, short: int, times: int
) -> None:
    link = Link()
    for late in (0.5, 0.0, 3.0):  # what queues only adds
        for size in (short, short * times):
            link.add(size, way_s + size / rate + late)
    assert link.seconds(50_000) == pytest.approx(way_s + 50_000 / rate, rel=1e-3, abs=1e-9)
    assert link.way_s == pytest.approx(way_s, rel=1e-3, abs=1e-6)


def test_one_size_is_all_bytes_until_another_is_seen() -> None:
    link = Link()
    assert not link.rate
    link.add(1000, 0.010)
    assert link.seconds(500) == pytest.approx(0.005)
    link.add(4000, 0.013)
    assert link.way_s == pytest.approx(0.009)
    for _ in range(100):  # the other size is forgotten, the way is not
        link.add(1000, 0.010)
    assert link.way_s == pytest.approx(0.009)
    assert link.seconds(4000) == pytest.approx(0.013)


def test_a_link_where_bytes_make_no_difference_is_fast() -> None:
    link = Link()
    link.add(100, 0.0002)
    link.add(100_000, 0.0001)
    assert link.seconds(1_000_000) < 0.01


# --- the choice ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way_s", WAYS_S)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("link", LINKS)
def test_a_push_takes_little_more_than_with_the_best_codec(
    link: str, size: str, way_s: float
) -> None:
    """Each of them alone, exhaustively; from the twentieth push on, trials included."""
    world, elements = World(LINKS[link], way_s), SIZES[size]
    gate = new_gate()
    times = world.run(gate, elements, 120)
    assert np.mean(times[20:]) <= 1.1 * world.best(elements)
    assert world.total(gate.chosen, elements) <= 1.1 * world.best(elements)
    assert (gate.chosen == DENSE) or link != "loopback"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("link", LINKS)
def test_so_it_does_on_a_machine_whose_times_vary(link: str, size: str, seed: int) -> None:
    world, elements = World(LINKS[link], WAYS_S[seed % 2], noise=0.5, seed=seed), SIZES[size]
    gate = new_gate()
    times = world.run(gate, elements, 300)
    assert np.mean(times[20:]) <= 1.2 * world.best(elements)
    if link == "loopback":
        assert np.mean(times[20:]) <= 1.1 * world.total(DENSE, elements)


@given(
    prices=st.lists(
        st.tuples(*[st.floats(1e-10, 1e-7)] * 2, st.floats(0.01, 4), st.floats(0, 1e-3)),
        min_size=1,
        max_size=4,
    ),
    wrong=st.lists(st.floats(0.1, 10), min_size=4, max_size=4),
    rate=st.floats(1e5, 1e10),
    way_s=st.floats(1e-5, 0.1),
    elements=st.integers(1, 10_000_000),
)
def test_trials_cost_a_twentieth_however_wrong_the_prices_are(
    prices: list[tuple[float, float, float, float]],
    wrong: list[float],
    rate: float,
    way_s: float,
    elements: int,
) -> None:
    """Besides the first one of each candidate; and it never ends far from dense."""
    told = {DENSE: Price(0, 0, 4)}
    for number, (encode, decode, size, call) in enumerate(prices):
        factor = wrong[number]
        told[str(number)] = Price(encode * factor, decode * factor, size, call * factor)
    gate = Gate(told)
    real = {DENSE: (0.0, 0.0, 4.0, 0.0)} | {str(n): price for n, price in enumerate(prices)}
    extra = spent = 0.0
    plain = way_s + elements * 4 / rate

    def took(name: str) -> tuple[float, float]:
        encode, decode, size, call = real[name]
        return call + elements * encode, way_s + elements * (decode + size / rate)

    for _ in range(600):
        if gate.passes(elements):
            spent += plain
            continue
        chosen = gate.chosen
        name = gate.choose(elements)
        gate.sent(name, elements, int(elements * real[name][2]), *took(name))
        spent += sum(took(name))
        if name != chosen:
            extra += max(sum(took(name)) - sum(took(chosen)), 0.0)
    dearest = max(sum(took(name)) for name in real)
    assert extra <= 0.05 * spent + 4 * len(prices) * min(dearest, 2 * plain) + dearest * len(prices)
    assert sum(took(gate.chosen)) <= 1.01 * plain


def test_it_goes_back_when_the_link_gets_fast_and_forth_when_it_gets_slow() -> None:
    world, gate = World(12.5e6, 1e-3), new_gate()
    world.run(gate, 1_000_000, 40)
    assert gate.chosen != DENSE
    world.rate, world.way_s = 8e9, 60e-6
    world.run(gate, 1_000_000, 600)
    assert gate.chosen == DENSE
    world.rate = 12.5e6
    world.run(gate, 1_000_000, 100)
    assert gate.chosen != DENSE


def test_a_codec_that_disappoints_is_not_taken() -> None:
    """Encoding takes ten times what it should: on a busy machine, say."""
    gate = Gate({name: Price(a / 10, b / 10, c, d) for name, (a, b, c, d) in PRICES.items()})
    world = World(1.2e9, 60e-6)
    times = world.run(gate, 1_000_000, 200)
    assert np.mean(times[-100:]) <= 1.1 * world.best(1_000_000)
    assert gate.extra_share <= 0.06


@pytest.mark.parametrize("seed", range(5))
def test_a_machine_that_gets_busy_for_a_while_does_not_look_like_a_slow_link(seed: int) -> None:
    world, gate = World(8e9, 60e-6, noise=0.3, seed=seed), new_gate()
    times: list[float] = []
    for spell in range(20):
        world.busy = (1.0, 4.0, 2.0)[spell % 3]
        times += world.run(gate, 262_144, 30)
    plain = World(8e9, 60e-6)
    assert gate.chosen == DENSE
    assert sum(times) <= 1.1 * 30 * sum(
        plain.total(DENSE, 262_144) + ((1, 4, 2)[n % 3] - 1) * plain.way_s for n in range(20)
    )


def test_vectors_of_different_lengths_have_choices_of_their_own() -> None:
    world, gate = World(125e6, 1e-3), new_gate()
    for _ in range(60):
        world.run(gate, 4_194_304, 1)
        world.run(gate, 64, 1)
    assert gate.chosen == DENSE
    world.run(gate, 4_194_304, 1)
    assert gate.chosen != DENSE


def test_tables_of_one_worker_learn_from_each_other_what_the_link_does() -> None:
    link = Link()
    world, one, other = World(12.5e6, 1e-3), new_gate(link), new_gate(link)
    world.run(one, 1_000_000, 40)
    first = world.run(other, 1_000_000, 3)
    assert first[1] < first[0] / 10  # after one push


def test_the_reason_names_what_was_compared() -> None:
    gate = new_gate()
    assert "not been measured" in gate.reason
    World(12.5e6, 1e-3).run(gate, 1_000_000, 40)
    assert "at 100 Mbit/s and 1 ms there and back" in gate.reason
    assert all(name in gate.reason for name in CANDIDATES)


# --- the compressor -----------------------------------------------------------------------------


class Scripted(Gate):
    """A gate that takes one candidate after the other."""

    taken = 0

    def choose(self, elements: int) -> str:
        self.taken += 1
        return CANDIDATES[self.taken * 2 % len(CANDIDATES)]


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
    prices = measured_prices(CANDIDATES)
    assert tuple(prices) == CANDIDATES
    for name, price in prices.items():
        assert (price.encode_s > 0 and price.decode_s > 0) is (name != DENSE)
    assert prices["int8"].bytes == pytest.approx(1.0156, abs=0.01)
