"""What a table's `compression` may be, and how it is named to the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import prod
from time import perf_counter

import numpy as np

from aiops.compression import Codec, PowerSGD, codec_from
from aiops.compression.auto import AUTO, AutoCompressor
from aiops.compression.compressor import Compressor
from aiops.compression.gate import CANDIDATES, DENSE, Gate, Price
from aiops.compression.pulls import pull_codec
from aiops.errors import ConfigError
from aiops_protocol.codecs import decode_values
from aiops_protocol.payload import Float32Array

__all__ = ["compression_spelling", "compressor_for", "measured_prices"]

SAMPLES = (16 * 1024, 1024 * 1024)
"""What codecs are timed with: in the cache, and not; a table takes the one that is like it."""

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
    if compression == AUTO and not pulls:
        if allow_nonfinite:
            raise ConfigError(f"{what}: compression auto with allow_nonfinite=True: NaN would stay")
        return AUTO
    given: object = compression
    setting = "pull_compression" if pulls else "compression"
    if isinstance(given, str):
        codec = codec_from(given)
    elif isinstance(given, Codec):
        codec = given
    else:
        raise ConfigError(
            f"{what}: {setting} is {given!r}; pass a codec of aiops.compression such as "
            'TopK(0.01), or its spelling "top-k:0.01"'
        )
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


def compressor_for(spelling: str, shape: tuple[int, ...], seed: int) -> Compressor:
    """Return what compresses the pushes of a table whose settings have this spelling."""
    if spelling == AUTO:
        sample = SAMPLES[prod(shape) > sum(SAMPLES) // 4]
        prices = {name: Price(*price) for name, price in measured_prices(sample).items()}
        return AutoCompressor(Gate(prices), shape, seed)
    return Compressor(codec_from(spelling), shape, seed)


@cache
def measured_prices(elements: int) -> dict[str, tuple[float, float, float]]:
    """Time the candidates of the gate on this machine, once (some 150 ms for a million values).

    Returns
    -------
    prices
        By candidate: seconds of encoding and of decoding, and bytes, for each element.
    """
    x = np.random.default_rng(0).standard_normal(elements, np.float32)
    prices: dict[str, tuple[float, float, float]] = {}
    for name in CANDIDATES:
        sender = Compressor(codec_from(name), (x.size,), seed=0)
        wire = sender.encode(x).whole()
        if name == DENSE:
            prices[name] = (0.0, 0.0, 4.0)
            continue
        encode_s = _best(partial(_encode, sender, x))
        decode_s = _best(partial(decode_values, wire.codec, wire.payload, x.size, wire.parameter))
        prices[name] = (encode_s / x.size, decode_s / x.size, len(wire.payload) / x.size)
    return prices


def _encode(sender: Compressor, x: Float32Array) -> None:
    sender.encode(x).whole()


def _best(work: Callable[[], object]) -> float:
    """Return the least seconds of a few rounds."""
    times = []
    for _ in range(ROUNDS):
        began = perf_counter()
        work()
        times.append(perf_counter() - began)
    return min(times)
