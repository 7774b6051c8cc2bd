"""Training on the digits in one process, with every gradient through a codec.

The set-up: 1437 of the digits, a network 64-256-128-10, four workers with batches of 32, momentum
0.9 at the server, learning rate 0.05 and a tenth of it after three quarters of the steps. 40 epochs
are 440 steps.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # comes with scikit-learn

from aiops.compression import Codec, NoFeedback, OneBit
from aiops.compression.compressor import Compressor
from aiops_protocol.payload import Float32Array

__all__ = ["DENSE_BYTES", "OFFSETS", "SHAPES", "SIZE", "Outcome", "train", "train_by_majority"]

F = np.float32
SHAPES = ((64, 256), (256,), (256, 128), (128,), (128, 10), (10,))
SIZES = [int(np.prod(shape)) for shape in SHAPES]
OFFSETS = np.cumsum([0, *SIZES]).tolist()
SIZE = OFFSETS[-1]
DENSE_BYTES = 4 * SIZE
WORKERS, BATCH, STEPS_PER_EPOCH = 4, 32, 11


class Outcome(NamedTuple):
    """What a run came to: test accuracy in percent, loss on the train rows, bytes of a push."""

    accuracy: float
    loss: float
    push_bytes: NDArray[np.float64]  # of each step, the mean of the workers

    @property
    def ratio(self) -> float:
        """How many times smaller than dense pushes."""
        return float(DENSE_BYTES / self.push_bytes.mean())


@cache
def data() -> tuple[Any, ...]:
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(1234).permutation(len(pixels))
    x, y = (pixels[order] / 16).astype(F), classes[order]
    train_x = x[:1437]
    x = ((x - train_x.mean(0)) / (train_x.std(0) + 0.1)).astype(F)
    return x[:1437], y[:1437], x[1437:], y[1437:]


def views(w: Float32Array) -> list[Float32Array]:
    return [
        w[begin : begin + size].reshape(shape)
        for begin, size, shape in zip(OFFSETS, SIZES, SHAPES, strict=False)
    ]


def start(seed: int) -> Float32Array:
    chance = np.random.default_rng(seed)
    w = np.zeros(SIZE, F)
    for weights in views(w)[::2]:
        weights[:] = chance.standard_normal(weights.shape) * np.sqrt(2 / len(weights))
    return w


def scores(w: Float32Array, x: Float32Array) -> Any:
    w1, b1, w2, b2, w3, b3 = views(w)
    a1 = x @ w1 + b1
    a2 = np.maximum(a1, 0) @ w2 + b2
    return a1, a2, np.maximum(a2, 0) @ w3 + b3


def gradient(w: Float32Array, x: Float32Array, y: Any) -> Float32Array:
    _, _, w2, _, w3, _ = views(w)
    a1, a2, z = scores(w, x)
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    out = np.empty(SIZE, F)
    g1, c1, g2, c2, g3, c3 = views(out)
    g3[:], c3[:] = np.maximum(a2, 0).T @ p, p.sum(0)
    d2 = (p @ w3.T) * (a2 > 0)
    g2[:], c2[:] = np.maximum(a1, 0).T @ d2, d2.sum(0)
    d1 = (d2 @ w2.T) * (a1 > 0)
    g1[:], c1[:] = x.T @ d1, d1.sum(0)
    return out


def train(codec: Codec, seed: int, epochs: int, *, momentum: float = 0.9) -> Outcome:
    """Train, each worker with a compressor of its own; `momentum` is that of the server."""
    x, y, test_x, test_y = data()
    w, velocity = start(seed), np.zeros(SIZE, F)
    senders = [Compressor(codec, (SIZE,), seed=100 * seed + rank) for rank in range(WORKERS)]
    shares = [np.arange(rank, len(x), WORKERS) for rank in range(WORKERS)]
    chance = np.random.default_rng(1000 + seed)
    orders = shares
    steps, sizes = epochs * STEPS_PER_EPOCH, []
    # Matrices so small are no work for two threads, which wait for each other on a busy machine.
    with np.errstate(all="ignore"), threadpool_limits(1):
        for step in range(steps):
            if step % STEPS_PER_EPOCH == 0:
                orders = [chance.permutation(share) for share in shares]
            batch = slice(step % STEPS_PER_EPOCH * BATCH, (step % STEPS_PER_EPOCH + 1) * BATCH)
            total = np.zeros(SIZE, F)
            sent = 0
            for sender, order in zip(senders, orders, strict=True):
                rows = order[batch]
                encoded = sender.encode(gradient(w, x[rows], y[rows]))
                sent += len(encoded.whole().payload)
                total += encoded.dense()
            sizes.append(sent / WORKERS)
            rate = 0.05 if step < 0.75 * steps else 0.005
            velocity = F(momentum) * velocity + total / F(WORKERS)
            w -= F(rate) * velocity
        z = scores(w, x)[-1]
        z = z - z.max(1, keepdims=True)
        loss = float((np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).mean())
        accuracy = float((scores(w, test_x)[-1].argmax(1) == test_y).mean() * 100)
    return Outcome(accuracy, loss, np.array(sizes))


def train_by_majority(seed: int, epochs: int, *, workers: int = 4, liars: int = 0) -> Outcome:
    """Send signs of each worker's momentum; the sign that most have moves a value by the rate."""
    x, y, test_x, test_y = data()
    w = start(seed)
    momenta = [np.zeros(SIZE, F) for _ in range(workers)]
    senders = [Compressor(NoFeedback(OneBit()), (SIZE,), seed=rank) for rank in range(workers)]
    shares = [np.arange(rank, len(x), workers) for rank in range(workers)]
    chance = np.random.default_rng(1000 + seed)
    per_epoch = len(x) // workers // BATCH
    steps, sizes = epochs * per_epoch, []
    orders = shares
    with threadpool_limits(1):
        for step in range(steps):
            if step % per_epoch == 0:
                orders = [chance.permutation(share) for share in shares]
            batch = slice(step % per_epoch * BATCH, (step % per_epoch + 1) * BATCH)
            votes = np.zeros(SIZE, F)
            sent = 0
            for rank in range(workers):
                rows = orders[rank][batch]
                momenta[rank] = F(0.9) * momenta[rank] + gradient(w, x[rows], y[rows])
                encoded = senders[rank].encode(momenta[rank] * F(-1 if rank < liars else 1))
                sent += len(encoded.whole().payload)
                votes += np.sign(encoded.dense())
            sizes.append(sent / workers)
            w -= F(5e-4 if step < 0.75 * steps else 5e-5) * np.sign(votes)
    z = scores(w, x)[-1]
    z = z - z.max(1, keepdims=True)
    loss = float((np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).mean())
    accuracy = float((scores(w, test_x)[-1].argmax(1) == test_y).mean() * 100)
    return Outcome(accuracy, loss, np.array(sizes))
