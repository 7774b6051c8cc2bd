"""How much members of a shared group read of each other: there is no wire on which to count it."""

from __future__ import annotations

from aiops.collective.call import Call

__all__ = ["Reading"]


class Reading:
    """Bytes of arrays that went from member to member, whoever has written and who has read them.

    Attributes
    ----------
    lent
        What the others have got from this member.
    read
        What it has got from them.
    """

    def __init__(self, size: int) -> None:
        self.lent = 0
        self.read = 0
        self._others = size - 1

    def count(self, call: Call, whole: int, chunk: int, *, at_once: bool) -> None:
        """Count a call that is in effect.

        Parameters
        ----------
        whole, chunk
            Bytes of the array, and of this member's part of it.
        at_once
            Whether each member combines all that it needs by itself, in place of its part of it
            for all.
        """
        if call.kind == "all_reduce" and at_once:
            self.lent += self._others * whole
            self.read += self._others * whole
            return
        if call.op:
            self.lent += whole - chunk
            self.read += self._others * chunk
        if call.kind != "reduce_scatter":
            self.lent += self._others * chunk
            self.read += whole - chunk
