"""Questions: what a worker asks a server about its own requests, and what it makes of the answers.

Asked before requests are repeated over a new connection, and when one is silent for too long. The
other side is `inquiries.py`; which requests are asked about is `requests.py`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aiops.roles.answers import meaning
from aiops.roles.operations import Part
from aiops_protocol.codec import encode
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Ack, Kind, Known, Pull, Query, Reject, Reply
from aiops_protocol.limits import QUERY_ENTRIES_MAX
from aiops_protocol.payload import Buffer
from aiops_protocol.queries import OWN_CONNECTION, UNKNOWN, WAITS, ask, told

__all__ = ["READING", "Questions"]

QUERY_IDS: Final = 1 << 63
"""Request ids of questions begin here, apart from those of requests."""

READING: Final = frozenset({Kind.PULL, Kind.PUSH_PULL})
"""Requests that a VALUE answers; an ACK answers the others."""


class Questions:
    """The questions of one customer to one server that are not answered yet.

    Parameters
    ----------
    session
        The small index by which frames name the customer.

    Attributes
    ----------
    forgotten
        Whether the server has said of something that was sent over the present connection that it
        does not know it: what was sent before a question arrives before it.
    """

    __slots__ = ("_asked", "_blocking", "_next_id", "forgotten", "session")

    def __init__(self, session: int) -> None:
        self.session = session
        self.forgotten = False
        self._next_id = QUERY_IDS
        self._asked: dict[int, list[Part]] = {}  # by the id of the question
        self._blocking: set[int] = set()

    @property
    def block(self) -> bool:
        """Whether nothing may be sent until an answer has come: the order would not hold."""
        return bool(self._blocking)

    def drop(self) -> None:
        """Forget all: the connection is lost."""
        self._asked.clear()
        self._blocking.clear()
        self.forgotten = False

    def about(
        self, groups: Iterable[list[Part]], epoch: int, *, blocking: bool
    ) -> list[tuple[bytes, Buffer]]:
        """Return a question, as bytes, about each group of requests of one table."""
        questions = []
        for group in groups:
            parts = group[:QUERY_ENTRIES_MAX]
            self._asked[self._next_id] = parts
            if blocking:
                self._blocking.add(self._next_id)
            query = Query(
                request_id=self._next_id,
                epoch=epoch,
                table=parts[0].table,
                session=self.session,
                payload=ask(OWN_CONNECTION, [(part.request_id, part.seq) for part in parts]),
            )
            questions.append(encode(query))
            self._next_id += 1
        return questions

    def known(self, reply: Known, epoch: int) -> list[Reply]:
        """Take what a server knows; return the answers that were lost, as if they came now.

        A stray is ignored, and so is an answer that does not fit its question: then all is sent
        again.
        """
        parts = self._asked.pop(reply.request_id, [])
        again = reply.request_id in self._blocking  # asked in order to send it again
        self._blocking.discard(reply.request_id)
        outcomes = told(reply.payload).outcomes
        if len(outcomes) != len(parts):
            return []
        answers: list[Reply] = []
        for part, outcome in zip(parts, outcomes, strict=True):
            if part.settled:
                continue
            if outcome == UNKNOWN:
                self.forgotten = self.forgotten or not again
            elif outcome == WAITS:
                part.waits = True
            elif outcome == ErrorCode.OK and part.kind.kind in READING:
                if again:
                    self._read_instead(part, epoch)
                else:  # it was answered over this connection, and the answer never came
                    self.forgotten = True
            else:
                answers.append(_late_answer(part, outcome, reply))
        return answers

    def _read_instead(self, part: Part, epoch: int) -> None:
        """Ask only for the values: a push_pull has been applied and its answer was lost."""
        if part.keys or part.codec or part.taker is not None:
            return  # it goes again as it is, and is recognised
        pull = Pull(
            request_id=part.request_id,
            epoch=epoch,
            table=part.table,
            session=self.session,
            begin=part.begin,
            end=part.end,
            ranges=part.ranges,
        )
        part.header, part.payload = encode(pull)

    def validate(self) -> None:
        """Check what must always hold."""
        assert self._blocking <= set(self._asked)


def _late_answer(part: Part, outcome: int, known: Known) -> Reply:
    """Return the answer of a settled mutation in place of the one that was lost."""
    if outcome == ErrorCode.OK:
        return Ack(request_id=part.request_id, seq=part.seq, version=known.version)
    code = ErrorCode(outcome) if outcome in set(ErrorCode) else ErrorCode.INTERNAL
    text = meaning(code).encode()
    return Reject(request_id=part.request_id, seq=part.seq, status=code, payload=text)
