"""What the links of a ring really are, and which algorithm and which order suit them; pure.

Members measure each other two by two (`aiops.workers.ring_links`) and gather what all have seen;
here it becomes a cost for each pair, the same on all members. Each algorithm uses some of the pairs
and is as slow as the slowest of them; that is the `Link` with which the cost model predicts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aiops.collective.call import Call
from aiops.collective.cost_model import LOOPBACK, Choice, Link, choose
from aiops.collective.schedule import Algorithm, Groups
from aiops.collective.topology import ring_order

__all__ = ["LEAST_S", "Network", "network_of"]

LEAST_S: Final = 1e-6
"""What the bytes take at least: below it is what clocks and event loops differ by."""

Matrix = NDArray[Any]


class Network:
    """The links between the members of a ring.

    Parameters
    ----------
    alpha_s, beta_s_per_byte : arrays of shape (p, p)
        What a message costs between each two members, and a byte of it; both symmetrical.
    usual
        The order without measuring, as for `ring_order`.

    Attributes
    ----------
    order
        In which order sums by the ring go round.
    """

    def __init__(self, alpha_s: Matrix, beta_s_per_byte: Matrix, usual: Sequence[int] = ()) -> None:
        self.alpha_s, self.beta_s_per_byte = alpha_s, beta_s_per_byte
        self.order = ring_order(1.0 / beta_s_per_byte, usual)
        self._links: dict[tuple[str, Algorithm], Link] = {}

    @cached_property
    def size(self) -> int:
        """How many members there are."""
        return len(self.alpha_s)

    def link(self, kind: str, algorithm: Algorithm) -> Link:
        """Return what the slowest of the links costs that a collective uses."""
        known = self._links.get((kind, algorithm))
        if known is None:
            pairs = _pairs(kind, algorithm, self.size)
            if (kind, algorithm) == ("all_reduce", "ring"):
                pairs = tuple((self.order[a], self.order[b]) for a, b in pairs)
            known = self._slowest(pairs)
            self._links[kind, algorithm] = known
        return known

    def choose(self, kind: str, size_bytes: int, hosts: Groups | None = None) -> Choice:
        """Choose the algorithm that is predicted to be fastest on these links.

        Parameters
        ----------
        kind, size_bytes, hosts
            As for `aiops.collective.cost_model.choose`.
        """

        def link(algorithm: Algorithm) -> Link:
            if algorithm == "hierarchical" and hosts is not None:
                return self._between(hosts)
            return self.link(kind, algorithm)

        return choose(kind, self.size, size_bytes, link, hosts=hosts)

    def _between(self, hosts: Groups) -> Link:
        """Return what the slowest of the links between different hosts costs."""
        known = self._links.get(("between", "hierarchical"))
        if known is None:
            host_of = {rank: number for number, host in enumerate(hosts) for rank in host}
            ranks = range(self.size)
            known = self._slowest((a, b) for a in ranks for b in ranks if host_of[a] != host_of[b])
            self._links["between", "hierarchical"] = known
        return known

    def _slowest(self, pairs: Iterable[tuple[int, int]]) -> Link:
        costs = [(float(self.alpha_s[pair]), float(self.beta_s_per_byte[pair])) for pair in pairs]
        alphas, betas = zip(*costs, strict=True) if costs else ((0.0,), (0.0,))
        return Link(max(alphas), max(betas), LOOPBACK.gamma_s_per_byte)


@lru_cache(256)
def _pairs(kind: Any, algorithm: Algorithm, size: int) -> tuple[tuple[int, int], ...]:
    """Return which members send to which in a collective."""
    call = Call(kind, count=size, algorithm=algorithm)
    return tuple(
        (rank, step.send.peer)
        for rank in range(size)
        for step in call.schedule(rank, size)
        if step.send is not None
    )


def network_of(
    seconds: Matrix, legs: int, few_bytes: int, many_bytes: int, usual: Sequence[int] = ()
) -> Network:
    """Return the links that were measured.

    Parameters
    ----------
    seconds : array of shape (p, p, 1 + repeats)
        What member i has seen with member j: first until `few_bytes` had gone to and fro, sent by
        the one of lower rank (the other's time says nothing), then, each time, until `many_bytes`
        had come and gone, which both begin at about the same time. What a member has with itself
        does not count.
    legs
        How many messages one after the other the few were.
    few_bytes, many_bytes
        Sent each time.
    usual
        As for `Network`.

    Notes
    -----
    Of many bytes, which go both ways at once, the mean of both members counts: who begins earlier
    waits longer by as much as the other waits less. Of all times it is the quickest, since anything
    may come between.
    """
    once = np.triu(seconds[..., 0] / legs, 1)
    once = once + once.T
    many = seconds[..., 1:]
    both = ((many + many.transpose(1, 0, 2)) / 2).min(axis=2)
    beta = np.maximum(LEAST_S, both - once) / (many_bytes - few_bytes)
    of_bytes = few_bytes * beta
    alpha = np.where(of_bytes > once, once, once - of_bytes)
    alpha = np.maximum(np.minimum(LOOPBACK.alpha_s, once), alpha)
    np.fill_diagonal(alpha, 0.0)
    np.fill_diagonal(beta, LEAST_S / many_bytes)
    return Network(alpha, beta, usual)
