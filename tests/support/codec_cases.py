"""Every codec by its spelling, vectors for them, and what a receiver makes of the bytes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from aiops_protocol.codecs import Encoded, Sparse, decode_values
from aiops_protocol.payload import Float32Array

__all__ = ["SPELLINGS", "arrived", "values"]

SPELLINGS = [
    "dense", "lz4", "fp16", "bf16", "fp8", "fp8:64", "int8", "int4", "int4:16:stochastic=true",
    "int8:64:stochastic=true",
    "one-bit", "one-bit:1024", "ternary", "ternary:0.0", "qsgd", "qsgd:1", "qsgd:100",
    "top-k:0.01", "top-k:0.1:compact=true", "top-k:0.05:sampled=true", "top-k:0.05:block=64",
    "top-k:0.05+fp16", "top-k:0.05+bf16+lz4", "fp16+lz4", "random-k:0.1", "random-k:0.3",
    "power-sgd", "power-sgd:3", "dgc:0.01", "dgc:0.02:momentum=0.0:sampled=true",
    "dgc:0.01:warmup=10:clip=5.0", "agc", "agc:50:exact=true", "agc:50:budget=200",
    "agc:9:block=1024",
    "no-feedback(top-k:0.01)",
]  # fmt: skip


def values(size: int, seed: int) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def arrived(encoded: Encoded, size: int, servers: int = 1) -> Float32Array:
    """What receivers have, by way of the bytes that each of them gets."""
    cuts = [size * server // servers for server in range(servers + 1)]
    parts = [np.empty(0, np.float32)]
    for start, stop in pairwise(cuts):
        wire = encoded.cut(start, stop)
        decoded = decode_values(wire.codec, wire.payload, stop - start, wire.parameter)
        parts.append(decoded.dense() if isinstance(decoded, Sparse) else decoded)
    return np.concatenate(parts)
