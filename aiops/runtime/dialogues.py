"""The scheduler's side of its dialogues with nodes: each goes on over the next connection.

Here is who is behind which connection, and what is said again. What a node says means, and when
one that does not come back is lost, is for the scheduler's core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiops.van.link import Link
from aiops_protocol.dialogue import Dialogue
from aiops_protocol.dialogue_control import DialogueOpen, Heard, OpenDialogue
from aiops_protocol.errors import ErrorCode, UnexpectedFrame
from aiops_protocol.frames import Control
from aiops_protocol.payload import Buffer

__all__ = ["Dialogues", "Speaker"]

PARTED_MAX: Final = 4096
"""Dialogues that have ended and are remembered, for nodes that have not heard the end of it."""


class Speaker:
    """One node, and what is said between it and the scheduler.

    Attributes
    ----------
    number
        By which the core knows it: that of its first link.
    link
        The connection, or `None` while there is none.
    """

    __slots__ = ("dialogue", "link", "name", "number")

    def __init__(self, name: str, link: Link) -> None:
        self.name = name
        self.number = link.number
        self.link: Link | None = link
        self.dialogue = Dialogue()

    def say(self, header: Buffer, payload: Buffer) -> None:
        """Send a message, now or over the next connection."""
        self.dialogue.say(header, payload)
        if self.link is not None:
            self.link.send_encoded(header, payload, borrowed=True)

    def tell_heard(self) -> None:
        """Tell how many messages have come."""
        if self.link is not None:
            self.link.send(Control(Heard(count=self.dialogue.tell())))


class _Parting:
    """How a dialogue has ended."""

    __slots__ = ("code", "heard", "text")

    def __init__(self, heard: int, code: ErrorCode, text: str) -> None:
        self.heard = heard
        self.code = code
        self.text = text


class Dialogues:
    """All nodes that speak to a scheduler.

    Parameters
    ----------
    ended
        Is told the number of each whose dialogue is over.
    """

    def __init__(self, ended: Callable[[int], None]) -> None:
        self._ended = ended
        self._by_number: dict[int, Speaker] = {}
        self._by_name: dict[str, Speaker] = {}
        self._by_link: dict[int, Speaker] = {}
        self._parted: dict[str, _Parting] = {}  # oldest first

    def of_link(self, link: Link) -> Speaker | None:
        """Return who speaks over a connection."""
        return self._by_link.get(link.number)

    def of_number(self, number: int) -> Speaker | None:
        """Return who has this number in the core."""
        return self._by_number.get(number)

    def absent(self) -> list[Speaker]:
        """Return those who have no connection at the moment."""
        return [speaker for speaker in self._by_number.values() if speaker.link is None]

    def open(self, link: Link, message: OpenDialogue) -> Speaker | None:
        """Begin a dialogue, or go on with it over a new connection; `None` if it has ended.

        Raises
        ------
        UnexpectedFrame
            It cannot go on: the other side claims to have what was never said.
        """
        if link.number in self._by_link:
            raise UnexpectedFrame("a second OpenDialogue on one connection")
        speaker = self._by_name.get(message.dialogue)
        if speaker is not None:
            return self._go_on(speaker, link, message.heard)
        parting = self._parted.get(message.dialogue)
        if parting is not None or message.heard:
            self._refuse(link, parting)
            return None
        speaker = Speaker(message.dialogue, link)
        self._by_number[speaker.number] = self._by_name[speaker.name] = speaker
        self._by_link[link.number] = speaker
        link.send(Control(DialogueOpen(heard=0)))
        return speaker

    def _go_on(self, speaker: Speaker, link: Link, heard: int) -> Speaker:
        again = speaker.dialogue.repeat(heard)
        former, speaker.link = speaker.link, link
        if former is not None:  # it has ended at the other side; no news of that has come
            del self._by_link[former.number]
            former.abort()
        self._by_link[link.number] = speaker
        link.send(Control(DialogueOpen(heard=speaker.dialogue.tell())))
        for header, payload in again:
            link.send_encoded(header, payload, borrowed=True)
        return speaker

    @staticmethod
    def _refuse(link: Link, parting: _Parting | None) -> None:
        if parting is None:
            link.close(ErrorCode.STALE_INCARNATION, "this node was declared lost long ago")
        else:
            if parting.code is ErrorCode.OK:
                link.send(Control(DialogueOpen(heard=parting.heard)))
            link.close(parting.code, parting.text)

    def lost(self, link: Link) -> Speaker | None:
        """Note the end of a connection; returns whose it was, if no other has replaced it."""
        speaker = self._by_link.pop(link.number, None)
        if speaker is not None:
            speaker.link = None
        return speaker

    def end(self, speaker: Speaker, code: ErrorCode = ErrorCode.OK, text: str = "") -> None:
        """End a dialogue; who asks for it again is told `code` and `text`. Idempotent."""
        if self._by_number.get(speaker.number) is None:
            return
        self.forget(speaker)
        self._parted[speaker.name] = _Parting(speaker.dialogue.taken, code, text)
        if len(self._parted) > PARTED_MAX:
            del self._parted[next(iter(self._parted))]

    def forget(self, speaker: Speaker) -> None:
        """End a dialogue in which nothing was settled; it may begin anew."""
        del self._by_number[speaker.number], self._by_name[speaker.name]
        self._ended(speaker.number)
        if speaker.link is not None:
            del self._by_link[speaker.link.number]
            speaker.link = None
