"""The public replica of a server's part of a table: what workers have, and how they came to it.

The server keeps the exact values w. Workers have the replica x; each publication sends them the
compressed difference C(w - x), and both add what it means, so that the replica has the same bits
everywhere. What one publication loses is in the next difference: the replica is its own error
feedback. Who asks for what is the business of `aiops.roles`; here are only arrays.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import numpy as np

from aiops.compression import Codec
from aiops_protocol.codecs import Sparse, Wire, join_deltas
from aiops_protocol.limits import SEGMENT_ELEMENTS
from aiops_protocol.payload import Float32Array, all_finite

__all__ = ["REPLICA_BYTES", "Replica", "add_decoded"]

REPLICA_BYTES: Final = 8
"""Per element of a shard: the replica, and as much again for the publications that are kept."""

PUBLICATIONS_MAX: Final = 64
"""Publications that are kept for workers that lag behind; older ones cost a whole pull."""


class _Publication(NamedTuple):
    """One difference, cut into the segments in which it is asked for."""

    before: int
    after: int
    wires: list[Wire]
    size: int


def add_decoded(values: Float32Array, decoded: Float32Array | Sparse) -> None:
    """Add a difference to a replica, in place: the same lines on both sides, the same bits."""
    if isinstance(decoded, Sparse):
        values[decoded.indices] += decoded.values
    else:
        np.add(values, decoded, out=values)


class Replica:
    """What was published of one shard.

    Parameters
    ----------
    codec
        As `pull_codec` returns it.
    values
        The shard's first values; copied.
    version
        Theirs.

    Attributes
    ----------
    codec
        By which the next version is published.
    values
        The replica.
    version
        Of the exact values that it was last brought near to.
    """

    __slots__ = ("_kept", "_log", "codec", "values", "version")

    def __init__(self, codec: Codec, values: Float32Array, version: int) -> None:
        self.codec = codec
        self._log: deque[_Publication] = deque()
        self._kept = 0  # bytes in the log
        self.values = values.copy()
        self.version = version

    def publish(self, exact: Float32Array, version: int) -> None:
        """Bring the replica near to these values, which are those of a version.

        Where a difference does not fit a float32, the replica takes the values as they are, and
        everybody gets it whole. Callers set numpy's errstate.
        """
        difference = exact - self.values
        before, self.version = self.version, version
        if not all_finite(difference):
            self._restart(exact)
            return
        encoded = self.codec.encode(difference, {}, 0)
        decoded = encoded.decoded()
        add_decoded(self.values, decoded)
        if not all_finite(decoded.values if isinstance(decoded, Sparse) else decoded):
            self._restart(exact)
            return
        size = self.values.size
        wires = [
            _lasting(encoded.cut(start, min(start + SEGMENT_ELEMENTS, size)))
            for start in range(0, size, SEGMENT_ELEMENTS)
        ]
        length = sum(len(wire.payload) for wire in wires)
        self._log.append(_Publication(before, version, wires, length))
        self._kept += length
        while len(self._log) > PUBLICATIONS_MAX or self._kept > 4 * size:
            self._kept -= self._log.popleft().size

    def _restart(self, exact: Float32Array) -> None:
        self.values[:] = exact
        self._log.clear()
        self._kept = 0

    def steps_since(self, start: int, stop: int, base: int) -> bytes | None:
        """Return the DELTAS for these elements of a worker whose replica is of version `base`.

        `None` if they are not a whole segment, if the steps are not kept any more, or if they
        would be longer than the values.
        """
        if base == self.version:
            return b""
        end = min(start + SEGMENT_ELEMENTS, self.values.size)
        if start % SEGMENT_ELEMENTS or stop != end:
            return None
        at = start // SEGMENT_ELEMENTS
        steps: list[Wire] = []
        length = 0
        for publication in reversed(self._log):
            wire = publication.wires[at]
            length += len(wire.payload)
            if length > 4 * (stop - start):
                return None
            steps.append(wire)
            if publication.before == base:
                return join_deltas(reversed(steps))
        return None

    def validate(self) -> None:
        """Check what must always hold."""
        assert self._kept == sum(publication.size for publication in self._log)
        for before, after in zip(self._log, list(self._log)[1:], strict=False):
            assert before.after == after.before
        assert not self._log or self._log[-1].after == self.version


def _lasting(wire: Wire) -> Wire:
    """Return the same with bytes of its own."""
    payload = wire.payload
    return wire if isinstance(payload, bytes) else wire._replace(payload=bytes(payload))
