"""LOW_RANK: matrices as the product of two thin ones; what is no matrix as it is."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from aiops_protocol.codecs.form import Decoded, Encoded, Wire, need
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer, Float32Array

__all__ = ["RANK_MAX", "LowRank", "Section", "decode_low_rank", "low_rank_bytes_max", "product"]

HEADER: Final = struct.Struct("<IIIII")
RANK_MAX: Final = 256


class Section(NamedTuple):
    """A part of a vector: the rows of a matrix, or plain values.

    `left` of shape (rows, rank) times the transpose of `right`, shape (columns, rank); or
    `values`, and both empty.
    """

    begin: int
    end: int
    left: Float32Array
    right: Float32Array
    values: Float32Array


class LowRank(Encoded):
    """Sections one after the other.

    Parameters
    ----------
    sections
        They tile the vector.
    """

    def __init__(self, sections: Sequence[Section]) -> None:
        self.size = sections[-1].end if sections else 0
        self._sections = sections

    def cut(self, start: int, stop: int) -> Wire:
        """Return the payload for the elements [start, stop)."""
        parts: list[bytes] = []
        for section in self._sections:
            low, high = max(start, section.begin), min(stop, section.end)
            if low < high:
                parts += _cut_section(section, low - section.begin, high - section.begin)
        return Wire(Codec.LOW_RANK, 0, b"".join(parts))

    def decoded(self) -> Decoded:
        """Return the products, and the plain values."""
        out = np.empty(self.size, np.float32)
        for section in self._sections:
            part = out[section.begin : section.end]
            if section.right.size:
                part[:] = product(section.left, section.right).reshape(-1)
            else:
                part[:] = section.values
        return out


def _cut_section(section: Section, low: int, high: int) -> Iterator[bytes]:
    if not section.right.size:
        yield HEADER.pack(0, 0, 0, 0, high - low)
        yield section.values[low:high].tobytes()
        return
    columns, rank = section.right.shape
    first, last = low // columns, -(-high // columns)
    yield HEADER.pack(last - first, columns, rank, low - first * columns, high - low)
    yield section.left[first:last].tobytes()
    yield section.right.tobytes()


def product(left: Float32Array, right: Float32Array) -> Float32Array:
    """Multiply so that each element has the same bits, however many rows there are.

    A library's product of matrices may sum in another order for another shape.
    """
    out = np.multiply.outer(left[:, 0], right[:, 0])
    for column in range(1, left.shape[1]):
        out += np.multiply.outer(left[:, column], right[:, column])
    return out


def low_rank_bytes_max(count: int, parameter: int) -> int:
    """Return the largest payload for so many values.

    Two thin matrices that are longer than their product are nothing that a sender makes, but for
    a piece of a few rows: its right one is as long as that of the whole.
    """
    return 16 * 1024 * 1024 if count else 0


def decode_low_rank(payload: Buffer, count: int, parameter: int) -> Decoded:
    """Return the values of a LOW_RANK payload."""
    need(parameter == 0, f"parameter {parameter} for LOW_RANK, which has none")
    out = np.empty(count, np.float32)
    at = filled = 0
    while at < len(payload):
        need(len(payload) - at >= HEADER.size, "LOW_RANK ends within a header")
        rows, columns, rank, skip, size = HEADER.unpack_from(payload, at)
        at += HEADER.size
        need(0 < size <= count - filled, f"a section of {size} values where {count} are wanted")
        part = out[filled : filled + size]
        if rank:
            need(rank <= RANK_MAX and skip < columns, f"rank {rank}, place {skip} of {columns}")
            need(rows == -(-(skip + size) // columns), f"{rows} rows for {size} values")
            floats = rank * (rows + columns)
        else:
            need(rows == columns == skip == 0, "plain values with rows or columns")
            floats = size
        need(len(payload) - at >= 4 * floats, "LOW_RANK ends within a section")
        numbers = np.frombuffer(payload, "<f4", floats, at)
        at += 4 * floats
        if rank:
            left = numbers[: rows * rank].reshape(rows, rank)
            right = numbers[rows * rank :].reshape(columns, rank)
            part[:] = product(left, right).reshape(-1)[skip : skip + size]
        else:
            part[:] = numbers
        filled += size
    need(filled == count, f"{filled} values of LOW_RANK where {count} are wanted")
    return out
