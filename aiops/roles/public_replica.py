"""When a shard publishes its replica, and what a pull of it is answered.

With rounds once for each version, at the close of its round, so that the bits do not depend on
who pulls when. Without rounds at a pull, if anything has changed since the last publication.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aiops.compression import codec_from
from aiops.compression.pulls import pull_codec
from aiops.roles.actions import Send
from aiops.roles.answers import deltas, value
from aiops.roles.consistency import BspRule, Rule
from aiops.shards.replica import Replica
from aiops.shards.shard import Selection, Shard
from aiops_protocol.frames import Flag, Pull, Request

__all__ = ["PublicReplica"]

_PARAMETERS: Final = int(Flag.CODEC_PARAMETERS)


class PublicReplica:
    """The replica of one shard, from the first time that somebody needs it.

    Parameters
    ----------
    rule
        Whose shard it is.
    spelling
        Of the codec for pulls.
    """

    __slots__ = ("_codec", "_replica", "_rounds", "_rule", "_shard")

    def __init__(self, rule: Rule, spelling: str) -> None:
        assert isinstance(rule.shard, Shard)  # a sparse table has no settings for it
        self._rule = rule
        self._shard = rule.shard
        self._codec = pull_codec(codec_from(spelling))
        self._rounds = isinstance(rule, BspRule)
        self._replica: Replica | None = None

    def begin(self) -> Replica:
        """Take the values that there are as the first ones, if that has not been done."""
        if self._replica is None:
            self._replica = Replica(self._codec, self._shard.values, self._rule.version)
        return self._replica

    def closed(self) -> None:
        """Publish the version that a round has made, where there are rounds."""
        if self._rounds:
            self.begin().publish(self._shard.values, self._rule.version)

    def answer(
        self, peer: int, request: Request, where: Selection, epoch: int, *, lasting: bool
    ) -> Send:
        """Answer a pull: with what the worker's copy lacks, or with the replica's values.

        A worker tells with CODEC_PARAMETERS that it has a copy: one more than its version.
        """
        replica = self.begin()
        if not self._rounds and replica.version != self._rule.version:
            with np.errstate(all="ignore"):
                replica.publish(self._shard.values, self._rule.version)
        copy = request.flags & _PARAMETERS and type(request) is Pull
        if copy and request.codec_parameters and isinstance(where, slice):
            base = request.codec_parameters - 1
            payload = replica.steps_since(where.start, where.stop, base)
            if payload is not None:
                return deltas(peer, request, replica.version, epoch, payload)
        values = replica.values[where]
        if lasting or not self._rounds:  # the next pull may publish while these are on their way
            values = values.copy()
        return value(peer, request, replica.version, epoch, values)

    def validate(self) -> None:
        """Check what must always hold."""
        if self._replica is not None:
            self._replica.validate()
            assert not self._rounds or self._replica.version == self._rule.version
