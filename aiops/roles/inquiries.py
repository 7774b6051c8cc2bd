"""What a server answers to a worker that asks what has become of its requests.

A worker asks after its connection was replaced, before it repeats what may be here already, and
when it hears nothing for longer than it should. Nothing is changed by that, except over which
connection the answers go of what waits.
"""

from __future__ import annotations

from aiops.roles.actions import Send
from aiops.roles.answers import refuse
from aiops.roles.caller import Caller
from aiops.roles.parking import Session
from aiops.roles.served_table import ServedTable
from aiops_protocol.delivery import Inbox
from aiops_protocol.errors import ErrorCode, MalformedFrame
from aiops_protocol.frames import Known, Query
from aiops_protocol.queries import OWN_CONNECTION, UNKNOWN, WAITS, asked, tell

__all__ = ["answer"]


def answer(
    peer: int,
    query: Query,
    caller: Caller | None,
    table: ServedTable | None,
    received: dict[int, int],
    epoch: int,
) -> Send:
    """Answer one QUERY.

    Parameters
    ----------
    caller, table
        Who asks and about what, or `None` if it is not known here (any more).
    received
        Bytes that have arrived over each connection of this worker, by its mark; over that of
        `peer` itself under `OWN_CONNECTION`, too.
    """
    try:
        connection, entries = asked(query.payload)
    except MalformedFrame as error:
        return refuse(peer, query, ErrorCode.SIZE_MISMATCH, error.message, epoch)
    version, outcomes = 0, [UNKNOWN] * len(entries)
    if caller is not None and table is not None:
        version = table.rule.version
        own = connection == OWN_CONNECTION
        outcomes = _outcomes(table, peer, caller, query.session, entries, own=own)
    return Send(
        peer,
        Known(
            request_id=query.request_id,
            version=version,
            epoch=epoch,
            table=query.table,
            session=query.session,
            count=len(outcomes),
            payload=tell(received.get(connection, 0), outcomes),
        ),
    )


def _outcomes(
    table: ServedTable,
    peer: int,
    caller: Caller,
    number: int,
    entries: list[tuple[int, int]],
    *,
    own: bool,
) -> list[int]:
    session = (caller.rank, number)
    inbox = table.inboxes.get(session)
    if inbox is not None and inbox.incarnation != caller.incarnation:
        inbox = None
    pulls = _waiting_pulls(table, caller, number, peer if own else None)
    outcomes = []
    for request_id, seq in entries:
        if not seq:
            outcomes.append(WAITS if request_id in pulls else UNKNOWN)
        elif inbox is None:
            outcomes.append(UNKNOWN)
        else:
            outcomes.append(_outcome(table, peer, session, inbox, seq, own=own))
    return outcomes


def _outcome(
    table: ServedTable, peer: int, session: Session, inbox: Inbox, seq: int, *, own: bool
) -> int:
    waiting = table.parked.get(session, seq)
    if waiting is None:
        return int(inbox.outcome(seq)) if inbox.settled(seq) else UNKNOWN
    if own:
        table.adopt(waiting, peer)
    return WAITS


def _waiting_pulls(table: ServedTable, caller: Caller, number: int, only: int | None) -> set[int]:
    """Return the request ids of a session's pulls that wait; of one connection, if named."""
    found = set()
    for waiting in table.pulls:
        asker = table.caller(waiting.peer)
        same = (asker.rank, asker.incarnation) == (caller.rank, caller.incarnation)
        if same and only in (None, waiting.peer) and waiting.request.session == number:
            found.add(waiting.request.request_id)
    return found
