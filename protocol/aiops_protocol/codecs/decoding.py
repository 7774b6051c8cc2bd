"""Which decoder belongs to which number, and the one door through which payloads become values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from aiops_protocol.codecs.float8 import decode_float8, float8_bytes_max
from aiops_protocol.codecs.form import Decoded, need
from aiops_protocol.codecs.halves import decode_bfloat16, decode_float16, halves_bytes_max
from aiops_protocol.codecs.levels import decode_levels, levels_bytes_max
from aiops_protocol.codecs.low_rank import decode_low_rank, low_rank_bytes_max
from aiops_protocol.codecs.lz4_block import decompress
from aiops_protocol.codecs.raw import decode_raw, raw_bytes_max
from aiops_protocol.codecs.seeded import decode_seeded, seeded_bytes_max
from aiops_protocol.codecs.signs import decode_signs, signs_bytes_max
from aiops_protocol.codecs.sparse import decode_sparse, sparse_bytes_max
from aiops_protocol.codecs.sparse_levels import decode_sparse_levels, sparse_levels_bytes_max
from aiops_protocol.frames import Codec
from aiops_protocol.limits import KEYS_PER_FRAME_MAX, PAYLOAD_BYTES_MAX
from aiops_protocol.payload import Buffer

__all__ = ["decode_values"]


class _Decoder(NamedTuple):
    decode: Callable[[Buffer, int, int], Decoded]
    bytes_max: Callable[[int, int], int]


_DECODERS: Final[Mapping[Codec, _Decoder]] = {
    Codec.RAW: _Decoder(decode_raw, raw_bytes_max),
    Codec.FLOAT16: _Decoder(decode_float16, halves_bytes_max),
    Codec.BFLOAT16: _Decoder(decode_bfloat16, halves_bytes_max),
    Codec.FLOAT8: _Decoder(decode_float8, float8_bytes_max),
    Codec.LEVELS: _Decoder(decode_levels, levels_bytes_max),
    Codec.SIGNS: _Decoder(decode_signs, signs_bytes_max),
    Codec.SPARSE: _Decoder(decode_sparse, sparse_bytes_max),
    Codec.SPARSE_LEVELS: _Decoder(decode_sparse_levels, sparse_levels_bytes_max),
    Codec.SEEDED: _Decoder(decode_seeded, seeded_bytes_max),
    Codec.LOW_RANK: _Decoder(decode_low_rank, low_rank_bytes_max),
}


def decode_values(codec: int, payload: Buffer, count: int, parameter: int = 0) -> Decoded:
    """Return the `count` values that a payload means.

    Parameters
    ----------
    codec
        Number of the form.
    payload
        Its bytes; the result may share their memory.
    count
        How many values there must be.
    parameter
        The codec's own, from the upper half of CODEC_PARAMETERS.

    Returns
    -------
    decoded : ndarray of float32 or Sparse
        Values may be infinite or NaN: a scale in the payload may be anything.

    Raises
    ------
    MalformedFrame
        The payload is not exactly `count` values of the form. Nothing larger than `count` values
        and the payload was allocated.
    """
    need(0 <= count <= KEYS_PER_FRAME_MAX, f"{count} values, at most {KEYS_PER_FRAME_MAX}")
    need(0 <= parameter < 2**32, f"parameter {parameter} of a codec")
    if codec == Codec.LZ4:
        need(len(payload) > 0, "0 bytes of LZ4")
        codec = payload[0]
        need(codec != Codec.LZ4, "LZ4 within LZ4")
        decoder = _decoder(codec)
        bytes_max = min(decoder.bytes_max(count, parameter), PAYLOAD_BYTES_MAX)
        return decoder.decode(decompress(payload, bytes_max), count, parameter)
    return _decoder(codec).decode(payload, count, parameter)


def _decoder(codec: int) -> _Decoder:
    need(codec in _DECODERS, f"codec {codec} is not known to this version")
    return _DECODERS[Codec(codec)]
