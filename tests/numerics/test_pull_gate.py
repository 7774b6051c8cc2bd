"""The cost gate of pulls, in virtual time: near to the best candidate, and back again."""

from __future__ import annotations

import pytest

from aiops.compression.gate import DENSE, Price
from aiops.compression.link import Link
from aiops.compression.pull_gate import Arrivals, PullGate
from aiops.compression.pulls import PULL_CANDIDATES

# Encoding, decoding and bytes of each value, and a call, as measured on two cores.
PRICES = dict(
    zip(
        PULL_CANDIDATES,
        (
            Price(0, 0, 4),
            Price(1.4e-9, 0.1e-9, 2.0, 20e-6),
            Price(1.4e-9, 0.2e-9, 1.016, 30e-6),
            Price(1.1e-9, 0.3e-9, 0.125, 30e-6),
            Price(6e-9, 0.2e-9, 0.16, 60e-6),
        ),
        strict=True,
    )
)
LINKS = {"10 Mbit/s": 1.25e6, "100 Mbit/s": 12.5e6, "1 Gbit/s": 125e6, "loopback": 8e9}
SIZES = {"16 KB": 4_096, "1 MB": 262_144, "16 MB": 4_194_304}
TOLD_FROM = 65_536  # bytes; shorter answers are here at once


class World:
    """A link of which the worker hears when long answers begin and end."""

    def __init__(self, rate: float, elements: int, servers: int = 1) -> None:
        self.rate, self.elements, self.servers = rate, elements, servers
        self.uplink, self.arrivals = Link(), Arrivals()
        self.gate = PullGate(elements, servers, PRICES, self.arrivals, self.uplink)

    def took(self, name: str) -> float:
        price = PRICES[name]
        busy_s = price.call_s + self.elements * (price.encode_s + price.decode_s)
        return busy_s + 1e-4 + self.elements * price.bytes / self.rate

    @property
    def best(self) -> float:
        return min(map(self.took, PRICES))

    def run(self, pulls: int, lain: float = 0.0) -> list[float]:
        """Pull so often; every third time the answer has lain ready for a while."""
        times = []
        for pull in range(pulls):
            for way in (4096, 65_536):  # pushes of this and other tables
                self.uplink.add(way, 1e-4 + way / self.rate)
            name = DENSE if self.gate.choose() else self.gate.chosen
            times.append(self.took(name))
            size = int(self.elements * PRICES[name].bytes / self.servers)
            for server in range(self.servers):
                if size >= TOLD_FROM:
                    self.arrivals.begin((server, pull), size, 0.0)
                slow_s = self.servers * size / self.rate
                self.arrivals.end((server, pull), slow_s * (lain if pull % 3 == 2 else 1.0))
        return times


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("link", LINKS)
def test_a_pull_takes_little_more_than_with_the_best_candidate(
    link: str, size: str, servers: int
) -> None:
    world = World(LINKS[link], SIZES[size], servers)
    times = world.run(300, lain=0.01)
    assert sum(times[20:]) <= 1.1 * len(times[20:]) * world.best
    if link == "loopback":
        assert world.gate.chosen == DENSE


def test_it_goes_back_when_the_link_gets_fast_and_forth_when_it_gets_slow() -> None:
    world = World(12.5e6, 1_000_000)
    world.run(20)
    assert world.gate.chosen == "one-bit"
    world.rate = 8e9
    world.run(4000)
    assert world.gate.chosen == DENSE
    world.rate = 12.5e6
    world.run(40)
    assert world.gate.chosen == "one-bit"


def test_what_is_lost_with_a_connection_is_not_measured() -> None:
    arrivals = Arrivals()
    arrivals.begin((0, 1), 1_000_000, 0.0)
    arrivals.begin((1, 1), 1_000_000, 0.0)
    arrivals.lost(0)
    arrivals.end((0, 1), 5.0)
    assert not arrivals.count
    for request, took_s in ((1, 0.5), (2, 0.5), (3, 1e-5), (4, 0.5), (5, 2.0)):
        assert not arrivals.rate  # one may have lain ready
        arrivals.begin((1, request), 1_000_000, 0.0)
        arrivals.end((1, request), took_s)
    assert arrivals.rate == pytest.approx(2e6)


def test_the_reason_names_what_was_compared() -> None:
    world = World(12.5e6, 1_000_000)
    assert "not been measured" in world.gate.reason
    world.run(10)
    assert "1000000 values at 100 Mbit/s" in world.gate.reason
    assert all(name in world.gate.reason for name in PULL_CANDIDATES)
