"""What must be true of a vector before anything is kept of it."""

from __future__ import annotations

from aiops.compression.base import Codec
from aiops.errors import UsageError
from aiops_protocol.payload import Float32Array, all_finite

__all__ = ["finite"]


def finite(values: Float32Array, codec: Codec) -> None:
    """Raise `UsageError` if a value is NaN or infinite: it must not get into what is kept."""
    if not all_finite(values):
        raise UsageError(
            f"compression {codec.spelling()}: NaN or infinity (or a sum with what was held back "
            "that is too large for float32); nothing was sent and nothing is kept of it"
        )
