"""What a node and its scheduler say to each other, over one connection after the other.

A `Dialogue` is one side of it. Each side counts the control messages that it has sent and taken,
and keeps those that the other has not been heard to have. When the connection breaks, both tell
over the next one how many they have, and the rest is said again: in order, each message once.
The messages that carry this (`OpenDialogue`, `DialogueOpen`, `Heard`) are not counted.
"""

from __future__ import annotations

from collections import deque

from aiops_protocol.errors import UnexpectedFrame
from aiops_protocol.limits import DIALOGUE_BYTES_MAX, DIALOGUE_MESSAGES_MAX, HEARD_EVERY
from aiops_protocol.payload import Buffer

__all__ = ["Dialogue", "Said"]

Said = tuple[Buffer, Buffer]
"""A message as it travels: header and payload."""


class Dialogue:
    """One side of what two nodes say to each other.

    Attributes
    ----------
    taken
        Messages of the other side that have come.
    """

    __slots__ = ("_kept", "_kept_bytes", "_known", "_said", "_too_much", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self._known = 0  # how many of those the other side knows us to have
        self._said = 0
        self._kept: deque[Said] = deque()  # the newest of what was said
        self._kept_bytes = 0
        self._too_much = False

    @property
    def settled(self) -> bool:
        """Whether the other side has everything that was said."""
        return not self._kept

    @property
    def lasting(self) -> bool:
        """Whether it can go on over another connection: nothing had to be forgotten."""
        return not self._too_much

    def say(self, header: Buffer, payload: Buffer) -> None:
        """Keep a message until the other side is known to have it."""
        self._said += 1
        if self._too_much:
            return
        self._kept.append((header, payload))
        self._kept_bytes += len(header) + len(payload)
        if len(self._kept) > DIALOGUE_MESSAGES_MAX or self._kept_bytes > DIALOGUE_BYTES_MAX:
            self._too_much = True
            self._kept.clear()
            self._kept_bytes = 0

    def take(self) -> bool:
        """Count a message that has come; returns whether it is time to tell (`tell`)."""
        self.taken += 1
        return self.taken - self._known >= HEARD_EVERY

    def tell(self) -> int:
        """Return how many have come, which the other side is told now."""
        self._known = self.taken
        return self.taken

    def heard(self, count: int) -> None:
        """Forget the first `count` messages: the other side has them.

        Raises
        ------
        UnexpectedFrame
            It claims to have more than was said, or fewer than it had.
        """
        if self._too_much and count <= self._said:
            return
        if not self._said - len(self._kept) <= count <= self._said:
            raise UnexpectedFrame(f"it claims to have {count} messages of {self._said}")
        while self._kept and self._said - len(self._kept) < count:
            header, payload = self._kept.popleft()
            self._kept_bytes -= len(header) + len(payload)

    def repeat(self, count: int) -> list[Said]:
        """Return what to say again to a side that has `count` messages; the first thing it hears.

        Raises
        ------
        UnexpectedFrame
            As `heard`; or what it lacks had to be forgotten.
        """
        self.heard(count)
        if self._too_much and count < self._said:
            raise UnexpectedFrame(f"{self._said - count} messages that it lacks are forgotten")
        return list(self._kept)

    def validate(self) -> None:
        """Check what must always hold."""
        assert len(self._kept) <= min(self._said, DIALOGUE_MESSAGES_MAX)
        assert self._kept_bytes == sum(len(h) + len(p) for h, p in self._kept)
        assert self._known <= self.taken
