"""Control messages of the dialogue: what lets it go on over the next connection.

They travel like those in `control.py` and are part of its union, but are not counted. What is
counted, kept and said again is `dialogue.py`.
"""

from __future__ import annotations

from aiops_protocol.message import MEMBER, SCHEDULER, Count, Message, Word

__all__ = ["DialogueOpen", "Heard", "OpenDialogue"]


class OpenDialogue(Message, frozen=True, tag=True, kw_only=True):
    """Server or worker to scheduler, first on each connection: it is I; I have `heard` so many."""

    senders = MEMBER

    dialogue: Word
    heard: Count = 0


class DialogueOpen(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to a node that opens a dialogue: go on; I have `heard` so many of yours."""

    senders = SCHEDULER

    heard: Count = 0


class Heard(Message, frozen=True, tag=True, kw_only=True):
    """Node to scheduler and back: I have so many of your messages; you may forget them."""

    senders = MEMBER | SCHEDULER

    count: Count
