"""The blocking twin of `aiops.LocalSGD`.

The values are the same array. The caller's thread changes it between two steps; the loop's thread
only while the caller waits in here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import aiops.local_sgd
from aiops.compression import Codec
from aiops.consistency import Consistency
from aiops.local_sgd import DILOCO
from aiops.optim import Optimizer
from aiops_protocol.payload import Float32Array

if TYPE_CHECKING:
    from aiops.blocking.worker import Worker

__all__ = ["LocalSGD"]


class LocalSGD:
    """Local steps between the rounds of the servers. The twin of `aiops.LocalSGD`.

    Attributes
    ----------
    values : ndarray of float32, the shape of `init`
        This worker's parameters. Train them in place.
    every, fragments, delay, mixing, period
        As in `aiops.LocalSGD`.
    """

    def __init__(self, worker: Worker, local: aiops.local_sgd.LocalSGD) -> None:
        self._worker = worker
        self._local = local
        self.values = local.values
        self.every = local.every
        self.fragments = local.fragments
        self.delay = local.delay
        self.mixing = local.mixing
        self.period = local.period

    def __repr__(self) -> str:
        return f"<blocking {self._local!r}>"

    @staticmethod
    def open(
        worker: Worker,
        name: str,
        init: Float32Array,
        *,
        every: int,
        outer: Optimizer = DILOCO,
        inner: Optimizer | None = None,
        fragments: int = 1,
        delay: int = 0,
        mixing: float | None = None,
        consistency: Consistency | None = None,
        compression: Codec | str | None = None,
        pull_compression: Codec | str | None = None,
    ) -> LocalSGD:
        """Create the tables, or join them; see `aiops.LocalSGD.open`."""
        local = worker._loop.call(
            aiops.local_sgd.LocalSGD.open,
            worker._worker,
            name,
            init,
            every=every,
            outer=outer,
            inner=inner,
            fragments=fragments,
            delay=delay,
            mixing=mixing,
            consistency=consistency,
            compression=compression,
            pull_compression=pull_compression,
        )
        return LocalSGD(worker, local)

    def steps(self, n: int) -> Iterator[int]:
        """Iterate over `n` local steps; see `aiops.LocalSGD.steps`."""
        return self._worker._steps(self._local.steps(n))

    def apply(self, gradient: Float32Array) -> None:
        """Step the values by the inner optimizer; see `aiops.LocalSGD.apply`."""
        self._local.apply(gradient)

    def pull(self) -> Float32Array:
        """Replace the local values by those of the servers; see `aiops.LocalSGD.pull`."""
        return self._worker._loop.call(self._local.pull)
