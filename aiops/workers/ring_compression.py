"""All-reduces of a ring whose pieces travel in fewer bytes: what can be asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aiops.collective.buckets import Bucket
from aiops.collective.call import Array, Call
from aiops.collective.member import AlgorithmChoice, check_arrays
from aiops.collective.schedule import Algorithm
from aiops.compression import Codec, codec_from
from aiops.errors import UsageError
from aiops.wording import shown
from aiops_protocol.payload import all_finite

__all__ = ["codec_of", "compressed_call"]


def codec_of(call: Call) -> Codec | None:
    """Return the codec of a call, if it has one."""
    return codec_from(call.compression) if call.compression else None


def compressed_call(
    codec: Codec,
    array: Array | Sequence[Array],
    op: str,
    order: str,
    algorithm: AlgorithmChoice,
    *,
    by_hosts: bool,
) -> tuple[Call, Bucket]:
    """Check a compressed all-reduce, and put it into words.

    Parameters
    ----------
    by_hosts
        Whether there are hosts that share memory: then only what goes between them is encoded.

    Raises
    ------
    UsageError
        What is asked for does not go with compression.
    """
    arrays = check_arrays("all_reduce", array)
    can: list[Algorithm] = ["hierarchical", "ring"] if by_hosts else ["ring"]
    wrong = [
        (op not in ("sum", "mean"), f"op is {shown(op)}; it can be sum or mean"),
        (order != "any", f"order is {shown(order)}; the ring has its own"),
        (
            algorithm not in ("auto", *can),
            f"algorithm is {shown(algorithm)}; it can be {' or '.join(can)}",
        ),
        (
            bool(codec.elementwise),
            "it holds back what it does not send, and a ring carries nothing over to the next "
            "call; CompressedReducer does",
        ),
        (any(one.dtype != np.float32 for one in arrays), "arrays must be float32"),
        (not all(all_finite(one.reshape(-1)) for one in arrays), "arrays must be finite"),
    ]
    for is_wrong, why in wrong:
        if is_wrong:
            raise UsageError(f"all_reduce with compression={shown(codec.spelling())}: {why}")
    shapes, count = tuple(one.shape for one in arrays), sum(one.size for one in arrays)
    chosen = can[0] if algorithm == "auto" else algorithm
    call = Call("all_reduce", count, shapes, op=op, algorithm=chosen, compression=codec.spelling())
    return call, Bucket(arrays)
