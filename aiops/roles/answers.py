"""Replies of a server: how each is made from the request that it answers, and refusals in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from aiops.roles.actions import Send
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Ack, Codec, Parked, Reject, Request, Value
from aiops_protocol.limits import TEXT_BYTES_MAX
from aiops_protocol.payload import Float32Array, as_bytes

__all__ = ["acknowledge", "deltas", "meaning", "notice", "refuse", "value"]


def acknowledge(peer: int, request: Request, version: int, epoch: int) -> Send:
    """Answer a mutation that has reached the level it asked for."""
    return Send(
        peer,
        Ack(
            request_id=request.request_id,
            seq=request.seq,
            version=version,
            epoch=epoch,
            table=request.table,
            session=request.session,
        ),
    )


def value(peer: int, request: Request, version: int, epoch: int, values: Float32Array) -> Send:
    """Answer a pull; the values are lent until the action is performed."""
    return Send(
        peer,
        Value(
            request_id=request.request_id,
            seq=request.seq,
            version=version,
            epoch=epoch,
            table=request.table,
            session=request.session,
            payload=as_bytes(values),
        ),
    )


def deltas(peer: int, request: Request, version: int, epoch: int, payload: bytes) -> Send:
    """Answer a pull of a replica with what the worker's copy lacks."""
    return Send(
        peer,
        Value(
            request_id=request.request_id,
            seq=request.seq,
            version=version,
            epoch=epoch,
            table=request.table,
            session=request.session,
            codec=Codec.DELTAS,
            payload=payload,
        ),
    )


def refuse(peer: int, request: Request, code: ErrorCode, text: str = "", epoch: int = 0) -> Send:
    """Answer with a refusal; without a text, with what its code always means."""
    text = text or meaning(code)
    return Send(
        peer,
        Reject(
            request_id=request.request_id,
            seq=request.seq,
            epoch=epoch,
            table=request.table,
            session=request.session,
            status=code,
            payload=text.encode("utf-8", "replace")[:TEXT_BYTES_MAX],
        ),
    )


def meaning(code: ErrorCode) -> str:
    """Return what a refusal with this code means, where nothing more is known about it."""
    return _MEANINGS.get(code, code.name.lower().replace("_", " "))


def notice(
    peer: int, request: Request, version: int, epoch: int, behind: Mapping[int, int]
) -> Send:
    """Tell that a request waits by rule, for which workers, and how many clocks each is behind."""
    return Send(
        peer,
        Parked(
            request_id=request.request_id,
            seq=request.seq,
            version=version,
            epoch=epoch,
            table=request.table,
            session=request.session,
            count=len(behind),
            payload=np.asarray([*behind, *behind.values()], "<u4").tobytes(),
        ),
    )


_MEANINGS: Final = {
    ErrorCode.UNKNOWN_TABLE: "this server has no such table",
    ErrorCode.NOT_FINITE: "the payload holds NaN or infinity; allow_nonfinite=True lets them pass",
    ErrorCode.NOT_INITIALISED: "the table has no values yet",
    ErrorCode.MALFORMED_PAYLOAD: "the payload is not what its codec allows",
    ErrorCode.SIZE_MISMATCH: "the payload does not have four bytes per key",
    ErrorCode.OPTIMIZER_FAILED: "the optimizer raised an error; nothing was changed",
    ErrorCode.FUNCTION_FAILED: "the function that was called has failed; nothing was changed",
    ErrorCode.OUT_OF_MEMORY: "this server has no memory left for what this worker gives to a round",
    ErrorCode.ALREADY_SEALED: "this worker has sealed that clock already",
    ErrorCode.KEYS_NOT_CACHED: "this server does not have the key list of that signature",
    ErrorCode.NOT_A_MEMBER: "this worker takes no part in the rounds of the table (finished?)",
    ErrorCode.STALE_INCARNATION: "this worker was declared lost or has been started again",
}
