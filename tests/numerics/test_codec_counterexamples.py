"""Problems on which a codec without error feedback fails by a formula, and with it does not."""

from __future__ import annotations

import numpy as np
import pytest

from aiops.compression import Codec, NoFeedback, OneBit, TopK
from aiops.compression.compressor import Compressor

ANGLES = np.array([(-3, 2, 2), (2, -3, 2), (2, 2, -3)], np.float64)


def three_workers(codec: Codec, rate: float, steps: int) -> float:
    """f_i(x) = <a_i, x>^2 + |x|^2 / 4 of three workers that send one of three numbers each."""
    senders = [Compressor(codec, (3,), seed=rank) for rank in range(3)]
    x = np.ones(3)
    for _ in range(steps):
        total = np.zeros(3)
        for a, sender in zip(ANGLES, senders, strict=True):
            gradient = 2 * (a @ x) * a + x / 2
            total += sender.encode(gradient.astype(np.float32)).dense()
        x = x - rate * total / 3
    return float(np.linalg.norm(x))


def test_top_1_without_feedback_runs_away_by_its_formula() -> None:
    """After Beznosikov et al., "On biased compression for distributed learning"."""
    rate, steps = 0.02, 100
    got = three_workers(NoFeedback(TopK(0.34)), rate, steps)
    assert got == pytest.approx(np.sqrt(3) * (1 + 11 * rate / 6) ** steps, rel=1e-6)


def test_top_1_with_feedback_converges() -> None:
    assert three_workers(TopK(0.34), 0.02, 400) < 1e-3


def along_a_valley(codec: Codec) -> float:
    """f = |x + y| / 2 + |x - y|: the signs of its gradients never point along the valley."""
    sender = Compressor(codec, (2,), seed=0)
    x = np.array([1.0, 1.2])
    for step in range(2000):
        plus, minus = np.sign(x[0] + x[1]) / 2, np.sign(x[0] - x[1])
        gradient = np.array([plus + minus, plus - minus], np.float32)
        x = x - 0.02 / np.sqrt(1 + step / 20) * sender.encode(gradient).dense()
    return float(abs(x[0] + x[1]) / 2 + abs(x[0] - x[1]))


def test_signs_without_feedback_stand_still() -> None:
    assert along_a_valley(NoFeedback(OneBit())) > 1.0


def test_signs_with_feedback_reach_the_end() -> None:
    assert along_a_valley(OneBit()) < 0.05


def drift(codec: Codec | None, seed: int) -> float:
    """f = x / 4 on [-1, 1] with gradient 4 one time in four and -1 else; where the tail is."""
    sender = Compressor(codec, (1,), seed=0) if codec else None
    chance = np.random.default_rng(seed)
    x, tail = 0.0, []
    for step in range(4000):
        gradient = np.array([4.0 if chance.random() < 0.25 else -1.0], np.float32)
        # A sign alone, without a scale, is what is wrong here.
        moved = sender.encode(gradient).dense()[0] if sender else np.sign(gradient[0])
        x = float(np.clip(x - 0.01 * moved, -1, 1))
        if step >= 2000:
            tail.append(x)
    return float(np.mean(tail))


def test_signs_of_a_skewed_gradient_drift_the_wrong_way() -> None:
    assert min(drift(None, seed) for seed in range(10)) > 0.9


def test_feedback_goes_the_right_way() -> None:
    assert np.mean([drift(OneBit(), seed) for seed in range(3)]) < -0.8
