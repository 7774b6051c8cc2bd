"""When a shard publishes its replica, and what a pull of it is answered.

With rounds once for each version, at the close of its round, so that the bits do not depend on
who pulls when. Without rounds at a pull, if anything has changed since the last publication.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aiops.compression import Codec
from aiops.compression.pulls import WISH_SHIFT, pull_codecs
from aiops.roles.actions import Send
from aiops.roles.answers import deltas, value
from aiops.roles.bulk_rule import BspRule
from aiops.roles.consistency import Rule
from aiops.shards.replica import Replica
from aiops.shards.shard import Selection, Shard
from aiops_protocol.frames import Flag, Pull, Request

__all__ = ["PublicReplica"]

_PARAMETERS: Final = int(Flag.CODEC_PARAMETERS)
_KNOWN: Final = (1 << WISH_SHIFT) - 1

WISH_VERSIONS: Final = 256
"""A wish that is older than so many versions counts no more: its worker pulls no longer."""


class PublicReplica:
    """The replica of one shard, from the first time that somebody needs it.

    With `auto` workers wish how values should come, and the next version is published by the
    shortest that was wished for of late: all wait for whoever has the slowest way. While that is
    the values as they are, there is no replica.

    Parameters
    ----------
    rule
        Whose shard it is.
    spelling
        Of the codec for pulls.
    """

    __slots__ = ("_codecs", "_replica", "_rounds", "_rule", "_shard", "_wishes")

    def __init__(self, rule: Rule, spelling: str) -> None:
        assert isinstance(rule.shard, Shard)  # a sparse table has no settings for it
        self._rule = rule
        self._shard = rule.shard
        self._codecs = pull_codecs(spelling)
        self._rounds = isinstance(rule, BspRule)
        self._replica: Replica | None = None
        self._wishes: dict[int, tuple[int, int]] = {}  # by rank of a worker: place, version

    @property
    def _codec(self) -> Codec | None:
        """By which the next version is published; `None`: as it is."""
        if len(self._codecs) == 1:
            return self._codecs[0]
        old = self._rule.version - WISH_VERSIONS
        self._wishes = {rank: wish for rank, wish in self._wishes.items() if wish[1] >= old}
        return self._codecs[max((place for place, _ in self._wishes.values()), default=0)]

    def _begin(self) -> None:
        """Take the values that there are as the first ones, if they are to be published."""
        codec = self._codec
        if self._replica is None and codec is not None:
            self._replica = Replica(codec, self._shard.values, self._rule.version)

    def before_close(self) -> None:
        """Prepare for a round that is about to close."""
        self._begin()

    def closed(self) -> None:
        """Publish the version that a round has made, where there are rounds."""
        if self._rounds:
            self._publish()

    def _publish(self) -> None:
        codec = self._codec
        if codec is None:
            self._replica = None
        elif self._replica is not None:
            self._replica.codec = codec
            self._replica.publish(self._shard.values, self._rule.version)

    def answer(
        self, peer: int, rank: int, request: Request, where: Selection, epoch: int, *, lasting: bool
    ) -> Send | None:
        """Answer a pull: with what the worker's copy lacks, or with the replica's values.

        A worker tells with CODEC_PARAMETERS that it has a copy: one more than its version; and in
        the highest byte what it wishes. `None`: the values are to be sent as they are.
        """
        asks = request.flags & _PARAMETERS and type(request) is Pull
        known = request.codec_parameters if asks else 0
        if asks and len(self._codecs) > 1:
            place, known = known >> WISH_SHIFT, known & _KNOWN
            self._wishes[rank] = (min(place, len(self._codecs) - 1), self._rule.version)
        if not self._rounds and self._replica and self._replica.version != self._rule.version:
            with np.errstate(all="ignore"):
                self._publish()
        self._begin()
        replica = self._replica
        if replica is None:
            return None
        if known and isinstance(where, slice):
            payload = replica.steps_since(where.start, where.stop, known - 1)
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
