"""Calling functions on the servers, from a worker's side."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from aiops.checks import check_timeout
from aiops.errors import UsageError
from aiops.roles.operations import Part
from aiops_protocol.calls import call_payload
from aiops_protocol.errors import MalformedFrame
from aiops_protocol.frames import Call, Reply
from aiops_protocol.payload import Buffer, Float32Array, as_float32

if TYPE_CHECKING:
    from aiops.tables.core import DenseCore

__all__ = ["FunctionCalls"]


class FunctionCalls:
    """Functions of one's own on the servers; a part of `Table`."""

    core: DenseCore

    async def call(
        self,
        function: str,
        /,
        *,
        timeout_s: float | None = None,
        **settings: float | int | bool | str | None,
    ) -> list[Float32Array]:
        """Run a function that reads on every shard; return what each returns, in key order.

        Parameters
        ----------
        function
            The name under which the servers know it (`aiops.functions.server_function`).
        timeout_s
            As for `pull`.
        **settings
            What it takes besides the shard: plain numbers, texts, bools, `None`.

        Returns
        -------
        results : list of ndarray of float32
            It sees what a pull would get: in BSP exactly the version of this worker's clock.

        Raises
        ------
        RequestRejected
            A server does not know the function, it takes other settings, or it changes values.
        RemoteError
            It has failed; the message says how.
        UsageError
            A setting that cannot travel.

        Notes
        -----
        Cancelling is harmless. After a lost connection it may run once more.
        """
        if timeout_s is not None:
            timeout_s = check_timeout(timeout_s, f"call on {self.core.title}")
        self.core.worker.check()
        return await _call_function(self.core, function, settings, timeout_s, changes=False)

    async def transform(
        self,
        function: str,
        /,
        *,
        timeout_s: float | None = None,
        **settings: float | int | bool | str | None,
    ) -> None:
        """Run a function that changes values on every shard, exactly once.

        It works on a copy of the values, which takes effect as an `assign` of all rows would: at
        once without rounds; in BSP at the close of the round, before its gradients. If it fails on
        a shard, nothing has changed there. Arguments and errors as for `call`; errors and
        cancellation otherwise as for `push`.
        """
        self.core.writes.check_open("transform")
        if timeout_s is not None:
            timeout_s = check_timeout(timeout_s, f"transform of {self.core.title}")
        await _call_function(self.core, function, settings, timeout_s, changes=True)


def _owned(reply: Reply) -> Buffer:
    return bytes(reply.payload)


async def _call_function(
    core: DenseCore,
    function: str,
    settings: Mapping[str, float | int | bool | str | None],
    timeout_s: float | None,
    *,
    changes: bool,
) -> list[Float32Array]:
    """Run a function on every shard; return what each has returned, in the order of keys."""
    try:
        payload = call_payload(function, settings)
    except MalformedFrame as error:
        raise UsageError(
            f"call on {core.title}: {error.message}; settings are numbers, texts, bools or None"
        ) from None
    operation = core.customer.operation("call", f"{function} on {core.title}", timeout_s)
    clock = core.place.wanted
    if changes:
        clock = core.place.clock if core.is_clocked else core.worker.clock
    parts = [
        Part(
            operation,
            Call,
            core.table_id,
            shard,
            clock,
            payload=payload,
            taker=None if changes else _owned,
            outbox=core.outboxes[shard] if changes else None,
        )
        for shard in range(core.shards)
    ]
    if changes:
        await core.writes.perform(operation)
        return []
    try:
        await core.customer.start(operation, core.layout.servers)
    except asyncio.CancelledError:
        core.customer.cancel(operation)
        raise
    return [np.array(as_float32(part.received)) for part in parts]
