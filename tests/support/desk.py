"""A channel without a connection, and short words for what is done to it."""

from __future__ import annotations

from typing import Any

from aiops.roles.requests import Channel, Operation, Part
from aiops_protocol.delivery import Outbox
from aiops_protocol.frames import Ack, Pull, Push, Reply, Request
from wire_bytes import decode

QUIET_S = 60.0


class Desk:
    """A channel, and short words for what is done to it."""

    def __init__(self, window_bytes: int = 100) -> None:
        self.channel = Channel(3)
        self.channel.window_bytes = window_bytes
        self.outbox = Outbox()

    def operation(self, verb: str = "push", limit_s: float | None = None) -> Operation:
        return Operation(verb, "table w", 0.0, QUIET_S, limit_s)

    def mutation(self, size: int = 4, outbox: Outbox | None = None, **fields: Any) -> Part:
        kind = fields.pop("kind", Push)
        operation = fields.pop("operation", None) or self.operation()
        part = Part(
            operation,
            kind,
            1,
            0,
            begin=0,
            end=size // 4,
            payload=bytes(size),
            outbox=outbox or self.outbox,
            **fields,
        )
        self.channel.submit(part)
        return part

    def pull(self, size: int = 4, operation: Operation | None = None) -> Part:
        into = memoryview(bytearray(size))
        part = Part(
            operation or self.operation("pull"), Pull, 1, 0, begin=0, end=size // 4, into=into
        )
        self.channel.submit(part)
        return part

    def send(self) -> list[Part]:
        """All that may be sent now."""
        parts = []
        while (part := self.channel.next_part(0.0)) is not None:
            parts.append(part)
        self.channel.validate()
        return parts

    def answer(self, part: Part, kind: type[Reply] = Ack, now: float = 0.0, **fields: Any) -> Any:
        reply = kind(request_id=part.request_id, seq=part.seq, **fields)
        settled = self.channel.answer(reply, now)
        self.channel.validate()
        return settled


def frame(part: Part) -> Request:
    """The request that a part is sent as."""
    request = decode(bytes(part.header) + bytes(part.payload))
    assert isinstance(request, Request)
    return request
