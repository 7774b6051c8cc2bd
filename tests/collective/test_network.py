"""What follows from measured times: costs of each pair, the order, and the choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from aiops.collective.cost_model import LOOPBACK
from aiops.collective.network import Network, network_of

LEGS, FEW, MANY = 4, 4096, 1 << 20


def measured(alpha: NDArray[Any], beta: NDArray[Any], late: NDArray[Any]) -> NDArray[Any]:
    """Return what members see; `late[r, i, j]` is how much later than j i begins, in repeat r."""
    size = len(alpha)
    rows = np.zeros((size, size, 1 + len(late)))
    rows[..., 0] = LEGS * (alpha + beta * FEW)
    for repeat, lateness in enumerate(late):
        rows[..., 1 + repeat] = alpha + beta * MANY - lateness
    return rows


def symmetrical(size: int, seed: int, low: float, high: float) -> NDArray[Any]:
    half = np.triu(np.random.default_rng(seed).uniform(low, high, (size, size)), 1)
    return np.asarray(half + half.T)


@given(st.integers(2, 7), st.integers(0, 2**32 - 1))
def test_the_costs_are_found_whoever_begins_late(size: int, seed: int) -> None:
    alpha = symmetrical(size, seed, LOOPBACK.alpha_s, 1e-2)
    beta = symmetrical(size, seed + 1, 1e-9, 1e-6)
    late = np.random.default_rng(seed).uniform(-1e-3, 1e-3, (3, size, size))
    network = network_of(measured(alpha, beta, late - late.transpose(0, 2, 1)), LEGS, FEW, MANY)
    pairs = ~np.eye(size, dtype=bool)
    assert network.alpha_s[pairs] == pytest.approx(alpha[pairs], rel=1e-6, abs=1e-12)
    assert network.beta_s_per_byte[pairs] == pytest.approx(beta[pairs], rel=1e-6)


@given(st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_whatever_was_measured_something_follows(size: int, seed: int) -> None:
    """Clocks that stand still, and more time for few bytes than for many."""
    rows = np.random.default_rng(seed).choice([0.0, 1e-9, 1e-3, 10.0], (size, size, 3))
    network = network_of(rows, LEGS, FEW, MANY)
    assert sorted(network.order) == list(range(size))
    for kind in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
        times = network.choose(kind, 1000).predicted_s.values()
        assert np.isfinite(list(times)).all()
        assert min(times) >= 0


def test_a_link_that_lets_bursts_pass_is_not_taken_for_one_whose_messages_cost_nothing() -> None:
    """100 Mbit/s by a token bucket: 4 KiB pass in 0.1 ms, 1 MiB takes 84."""
    rows = np.full((4, 4, 4), 0.084)
    rows[..., 0] = LEGS * 1e-4
    network = network_of(rows, LEGS, FEW, MANY)
    assert network.link("all_reduce", "ring").alpha_s == pytest.approx(1e-4)
    assert network.choose("all_reduce", 16).algorithm == "recursive-doubling"
    assert network.choose("all_reduce", 1 << 24).algorithm == "ring"


def one_slow(a: int, b: int) -> Network:
    alpha, beta = np.full((4, 4), 1e-4), np.full((4, 4), 1e-9)
    beta[a, b] = beta[b, a] = 1e-6
    return Network(alpha, beta)


@pytest.mark.parametrize(
    ("pair", "order", "chosen"),
    [
        ((0, 1), (0, 2, 1, 3), "ring"),
        ((0, 3), (0, 1, 3, 2), "halving-doubling"),  # which has no use for that pair
        ((1, 2), (0, 1, 3, 2), "halving-doubling"),
    ],
)
def test_an_algorithm_is_as_slow_as_the_slowest_link_that_it_uses(
    pair: tuple[int, int], order: tuple[int, ...], chosen: str
) -> None:
    network = one_slow(*pair)
    assert network.order == order
    assert network.link("all_reduce", "ring").beta_s_per_byte == 1e-9
    assert network.choose("all_reduce", 1 << 20).algorithm == chosen
    assert network.choose("all_reduce", 16).algorithm == "recursive-doubling"


def test_equal_links_are_chosen_for_like_one() -> None:
    network = Network(np.full((4, 4), 1e-3), np.full((4, 4), 8e-8))
    choice = network.choose("all_reduce", 1 << 24)
    assert choice.link[:2] == (1e-3, 8e-8)
    assert network.link("broadcast", "tree") == choice.link


def test_between_hosts_only_links_between_hosts_count() -> None:
    """A slow pair on one host, whose members share memory, is no matter there."""
    hosts = ((0, 1), (2, 3))
    network = one_slow(0, 1)
    choice = network.choose("all_reduce", 1 << 24, hosts)
    assert choice.algorithm == "hierarchical"
    assert choice.link.beta_s_per_byte == 1e-9
    assert one_slow(0, 2).choose("all_reduce", 1 << 24, hosts).algorithm == "ring"
