"""What the payload of a mutation means: which elements, and their values."""

from __future__ import annotations

import numpy as np

from aiops.shards.shard import Selection
from aiops_protocol.codecs import Sparse, decode_values
from aiops_protocol.errors import MalformedFrame
from aiops_protocol.frames import Request
from aiops_protocol.payload import Float32Array

__all__ = ["decoded"]


def decoded(
    request: Request, where: Selection, size: int, *, sparse: bool
) -> tuple[Selection, Float32Array]:
    """Return elements and values of a mutation in a codec other than RAW.

    Parameters
    ----------
    where, size
        The elements that it names, and how many.
    sparse
        Leave out elements whose value is zero, if the codec does: where a zero changes nothing,
        nothing needs to be done for it.

    Raises
    ------
    MalformedFrame
        The payload is not what its codec allows.
    """
    count, parameter = request.codec_parameters & 0xFFFFFFFF, request.codec_parameters >> 32
    if count != size:
        raise MalformedFrame(f"{count} values for {size} keys")
    values = decode_values(request.codec, request.payload, size, parameter)
    if not isinstance(values, Sparse):
        return where, values
    if not sparse:
        return where, values.dense()
    if isinstance(where, slice):
        return values.indices + where.start, values.values
    return np.asarray(where)[values.indices], values.values
