"""`aiops bench codecs`: how long codecs take, and what they save, in this process.

A gradient of independent normal numbers: the hardest to compress without loss, and neither the
best nor the worst case of the others. Next to each size a copy of the same bytes is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isqrt
from statistics import median
from time import perf_counter
from typing import Final

import numpy as np

from aiops.compression import codec_from
from aiops.compression.compressor import Compressor
from aiops_protocol.codecs import decode_values
from aiops_protocol.limits import KEYS_PER_FRAME_MAX, KiB, MiB

__all__ = ["SPELLINGS", "CodecRow", "measure_codecs"]

SPELLINGS: Final = (
    "lz4", "fp16", "bf16", "fp8", "int8", "int4", "one-bit", "ternary", "qsgd", "random-k:0.1",
    "top-k:0.01", "top-k:0.01:sampled=true", "top-k:0.01:compact=true", "top-k:0.01:block=4096",
    "dgc:0.001", "agc:200", "power-sgd:2",
)  # fmt: skip

SIZES: Final = (64 * KiB, MiB, 16 * MiB)
SECONDS: Final = 0.15
"""For each codec and size, encoding; a first call is not counted."""

ROUNDS_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class CodecRow:
    """What came out for one codec, size and direction; seconds are of one vector.

    `ratio` is how many times shorter the payload is; `ratio_to_raw` is the time in copies of the
    same vector.
    """

    op: str
    codec: str
    bytes: int
    peer: str
    median_s: float
    min_s: float
    max_s: float
    ratio_to_raw: float
    ratio: float
    mb_per_s: float


def measure_codecs(
    *,
    quick: bool = False,
    bytes_max: int = 16 * MiB,
    spellings: Sequence[str] = SPELLINGS,
    progress: Callable[[str], None] = lambda line: None,
) -> list[CodecRow]:
    """Time encoding (with error feedback where a table would have it) and decoding.

    Parameters
    ----------
    quick
        Fewer rounds.
    bytes_max
        Larger sizes are left out.
    spellings
        Which codecs.
    progress
        Takes a line for each codec and size.
    """
    rows: list[CodecRow] = []
    for size in SIZES:
        if size > bytes_max:
            continue
        count = size // 4
        x = np.random.default_rng(1).standard_normal(count, np.float32)
        raw = median(_timed(partial(np.copyto, np.empty_like(x), x), quick=quick))
        for spelling in spellings:
            progress(f"{spelling}: {size} bytes")
            rows += _measure(spelling, x, raw, quick=quick)
    return rows


def _measure(
    spelling: str, x: np.ndarray[tuple[int], np.dtype[np.float32]], raw: float, *, quick: bool
) -> list[CodecRow]:
    rows_of_matrix = isqrt(x.size)
    sender = Compressor(codec_from(spelling), (rows_of_matrix, x.size // rows_of_matrix), seed=1)
    encoding = _timed(lambda: sender.encode(x).whole(), quick=quick)
    encoded = sender.encode(x)
    # A frame has at most so many values: larger vectors travel in several.
    wires = []
    for start in range(0, x.size, KEYS_PER_FRAME_MAX):
        stop = min(start + KEYS_PER_FRAME_MAX, x.size)
        wires.append((stop - start, encoded.cut(start, stop)))

    def decode() -> None:
        for count, wire in wires:
            decode_values(wire.codec, wire.payload, count, wire.parameter)

    decoding = _timed(decode, quick=quick)
    ratio = x.nbytes / sum(len(wire.payload) for _, wire in wires)
    return [
        CodecRow(
            op,
            spelling,
            x.nbytes,
            "aiops",
            median(times),
            min(times),
            max(times),
            median(times) / raw,
            ratio,
            x.nbytes / median(times) / 1e6,
        )
        for op, times in (("encode", encoding), ("decode", decoding))
    ]


def _timed(work: Callable[[], object], *, quick: bool) -> list[float]:
    """Return seconds of each round."""
    work()
    times: list[float] = []
    until = perf_counter() + (SECONDS / 10 if quick else SECONDS)
    while len(times) < ROUNDS_MIN or perf_counter() < until:
        began = perf_counter()
        work()
        times.append(perf_counter() - began)
    return times
