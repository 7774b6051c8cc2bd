"""RAW: float32 values as they are."""

from __future__ import annotations

from aiops_protocol.codecs.form import Decoded, Encoded, Wire, need
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer, Float32Array, as_bytes, as_float32

__all__ = ["Raw", "decode_raw", "raw_bytes_max"]


class Raw(Encoded):
    """All values as they are.

    Parameters
    ----------
    values
        Contiguous float32; borrowed.
    """

    def __init__(self, values: Float32Array) -> None:
        self.size = values.size
        self.values = values

    def cut(self, start: int, stop: int) -> Wire:
        """Return the payload for the elements [start, stop)."""
        return Wire(Codec.RAW, 0, as_bytes(self.values[start:stop]))

    def decoded(self) -> Decoded:
        """Return the values."""
        return self.values


def raw_bytes_max(count: int, parameter: int) -> int:
    """Return the largest payload for so many values."""
    return 4 * count


def decode_raw(payload: Buffer, count: int, parameter: int) -> Decoded:
    """Return the values, without a copy."""
    need(len(payload) == 4 * count, f"{len(payload)} bytes for {count} float32 values")
    return as_float32(payload)
