"""How a collective call that has failed is put into words, and into which error."""

from __future__ import annotations

from aiops.errors import AiopsError, CollectiveAborted, CollectiveMismatch, CollectiveTimeout
from aiops.runtime.ring_call import RingCall

__all__ = ["aborted", "call_name"]


def call_name(ring: str, call: RingCall) -> str:
    """Name a call: which kind, the how many-eth of its generation, of which ring."""
    number = f" {call.number}" if call.number else ""
    return f"{call.work.verb}{number} of ring {ring}"


def aborted(
    ring: str,
    call: RingCall | None,
    cause: str,
    text: str,
    lost: tuple[int, ...] = (),
    *,
    timed_out: bool = False,
) -> AiopsError:
    """Return the error of a call that is in effect nowhere, or of a whole generation.

    Parameters
    ----------
    call
        `None` for the generation.
    timed_out
        Whether it is this worker that would not wait longer; `text` then says it all.
    """
    if cause == "mismatch":
        return CollectiveMismatch(text)
    elapsed_s, said = 0.0, text
    if call is not None:
        elapsed_s = call.elapsed_s
        if not timed_out:
            what = call_name(ring, call)
            said = f"{what} has no effect on any member: {text} (after {elapsed_s:.2f} s)"
    cls = CollectiveTimeout if timed_out else CollectiveAborted
    return cls(
        said,
        ring=ring,
        operation=call.work.verb if call is not None else "",
        cause=cause,
        lost=lost,
        elapsed_s=elapsed_s,
    )
