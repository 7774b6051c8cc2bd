"""What a table's `compression` may be, and how it is named to the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import prod
from time import perf_counter

import numpy as np

from aiops.checks import is_one_of
from aiops.compression import Codec, PowerSGD, codec_from
from aiops.compression.auto import AUTO, AutoCompressor
from aiops.compression.compressor import Compressor
from aiops.compression.gate import CANDIDATES, DENSE, Gate, Price
from aiops.compression.link import Link
from aiops.compression.pulls import pull_codec
from aiops.compression.spelling import as_codec
from aiops.errors import ConfigError
from aiops_protocol.codecs import decode_values

__all__ = ["compression_spelling", "compressor_for", "measured_prices"]

SAMPLES = (2_048, 1_048_576)
"""Codecs are timed with a short vector and with one of four megabytes: a call, and an element."""

ROUNDS = 3


def compression_spelling(
    compression: Codec | str | None,
    shape: tuple[int, ...],
    what: str,
    *,
    allow_nonfinite: bool,
    pulls: bool = False,
) -> str:
    """Check the codec of a table's pushes, or pulls; return its spelling, empty for none.

    Raises
    ------
    ConfigError
        No codec; one that does not fit the shape; or one that loses something, in a table that
        lets NaN and infinity pass, which would stay in what is held back for ever.
    """
    if compression is None:
        return ""
    setting = "pull_compression" if pulls else "compression"
    if is_one_of(compression, (AUTO,)):
        if allow_nonfinite:
            raise ConfigError(
                f"{what}: {setting} auto with allow_nonfinite=True: NaN or infinity would stay in "
                "what is held back; use a table without one of them"
            )
        return AUTO
    codec = as_codec(compression, f"{what}: {setting}")
    if pulls:
        pull_codec(codec)
    fitted = codec.for_shape(shape)
    if isinstance(fitted, PowerSGD) and not any(c for *_, c in fitted.matrices(prod(shape))):
        raise ConfigError(
            f"{what}: {setting} {codec.spelling()}: nothing in a table of shape {shape} is a "
            "matrix that this rank makes shorter, so all would be sent as it is; name the arrays "
            "in a flat table with shapes, as in PowerSGD(1, shapes=((64, 256), (256,)))"
        )
    if allow_nonfinite and not codec.lossless:
        raise ConfigError(
            f"{what}: {setting} {codec.spelling()} with allow_nonfinite=True: NaN or infinity "
            "would stay in what is held back; use a table without one of them"
        )
    return codec.spelling()


def compressor_for(
    spelling: str, shape: tuple[int, ...], seed: int, link: Link | None = None
) -> Compressor:
    """Return what compresses the pushes of a table whose settings have this spelling.

    `link` is what all pushes of the worker go over, for the cost gate.
    """
    if spelling == AUTO:
        return AutoCompressor(Gate(measured_prices(CANDIDATES), link), shape, seed)
    return Compressor(codec_from(spelling), shape, seed)


@cache
def measured_prices(candidates: tuple[str, ...]) -> dict[str, Price]:
    """Time the candidates of a gate on this machine, once (some 60 ms)."""
    short, long = SAMPLES
    prices: dict[str, Price] = {}
    for name in candidates:
        if name == DENSE:
            prices[name] = Price(0.0, 0.0, 4.0)
            continue
        (encode_a, decode_a, _), (encode_b, decode_b, size) = map(partial(_timed, name), SAMPLES)
        encode_s = max(encode_b - encode_a, encode_b / 2) / (long - short)
        decode_s = max(decode_b - decode_a, decode_b / 2) / (long - short)
        call_s = max(encode_a + decode_a - short * (encode_s + decode_s), 0.0)
        prices[name] = Price(encode_s, decode_s, size / long, call_s)
    return prices


def _timed(name: str, elements: int) -> tuple[float, float, int]:
    """Return seconds of encoding and of decoding so many values, and their bytes."""
    x = np.random.default_rng(0).standard_normal(elements, np.float32)
    sender = Compressor(codec_from(name), (elements,), seed=0)
    wire = sender.encode(x).whole()
    encode_s = _best(lambda: sender.encode(x).whole())
    decode_s = _best(lambda: decode_values(wire.codec, wire.payload, elements, wire.parameter))
    return encode_s, decode_s, len(wire.payload)


def _best(work: Callable[[], object]) -> float:
    """Return the least seconds of a few rounds."""
    times = []
    for _ in range(ROUNDS):
        began = perf_counter()
        work()
        times.append(perf_counter() - began)
    return min(times)
