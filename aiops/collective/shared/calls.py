"""What a call is to members of a shared group: how it is written, whose part is what, the sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiops.collective.call import REDUCTIONS, Call, difference, divide
from aiops.collective.shared.board import TEXT_BYTES
from aiops.collective.steps import Span, chunk_spans
from aiops.errors import CollectiveMismatch

__all__ = ["call_of", "check_same", "combine", "contributions", "fold", "text_of"]

Array = NDArray[Any]


def contributions(call: Call, size: int) -> Sequence[Span]:
    """Return which elements each member contributes to the result."""
    if call.kind == "broadcast":
        return [Span(0, call.count if member == call.root else 0) for member in range(size)]
    return chunk_spans(call.count, size)


def fold(operation: np.ufunc, parts: Sequence[Array], result: Array) -> None:
    """Fold parts from the left."""
    with np.errstate(all="ignore"):  # infinity less infinity is NaN, and travels on
        if len(parts) == 1:
            np.copyto(result, parts[0])
        else:
            operation(parts[0], parts[1], out=result)
        for part in parts[2:]:
            operation(result, part, out=result)


def combine(call: Call, parts: Sequence[Array], result: Array) -> None:
    """Fold parts from the left, and divide once for a mean."""
    fold(REDUCTIONS[call.op], parts, result)
    if call.op == "mean":
        divide(result, len(parts), result)


def text_of(call: Call) -> bytes:
    """Write a call so that equal calls are equal bytes; of very long ones shapes are a digest."""
    text = msgspec.json.encode(call)
    if len(text) <= TEXT_BYTES:
        return text
    digest = int.from_bytes(blake2b(text, digest_size=7).digest(), "little")
    return msgspec.json.encode(replace(call, shapes=((call.count,), (digest,))))


def call_of(text: bytes) -> Call:
    """Read what `text_of` has written."""
    return msgspec.json.decode(text, type=Call)


def check_same(names: Sequence[str], texts: Sequence[bytes]) -> None:
    """Raise `CollectiveMismatch` if the calls of members differ: of the same two on all of them."""
    for name, text in zip(names, texts, strict=True):
        if text != texts[0]:
            words = difference(names[0], call_of(texts[0]), name, call_of(text))
            raise CollectiveMismatch(words or f"{names[0]} and {name} gave different lists")
