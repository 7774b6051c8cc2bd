"""What a collective costs, and which algorithm is the cheapest: the choice behind "auto".

A link costs alpha seconds for each message and beta for each byte, and each byte that is combined
gamma more. The three are fitted from measurements (`fit`), or the presets of this room are taken.
Time is predicted by the tables of `counts.py`; nothing here measures anything.

References
----------
R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in
MPICH", IJHPCA 19(1), 2005, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from aiops.collective.plan import piece_elements
from aiops.collective.schedule import Algorithm, Groups

__all__ = [
    "IN_PROCESS",
    "LOOPBACK",
    "Choice",
    "Link",
    "Sample",
    "choose",
    "fit",
    "predict",
    "predict_in_process",
]


class Link(NamedTuple):
    """What it costs to send, in seconds: per message, per byte, and per byte that is combined."""

    alpha_s: float
    beta_s_per_byte: float
    gamma_s_per_byte: float


class Sample(NamedTuple):
    """A measured time for `messages` one after the other of `bytes` each, combined or not."""

    messages: int
    bytes: int
    combined_bytes: int
    seconds: float


# Measured by benchmarks/fit_links.py on two processors that were busy with other things too; the
# smallest of many times. With both ends on one machine combining takes time from sending.
LOOPBACK: Final = Link(4.0e-5, 2.3e-10, 5.0e-10)
IN_PROCESS: Final = Link(1.8e-6, 1.7e-11, 0.0)


HOST_MEMORY: Final = Link(4.0e-5, 1.0e-10, 0.0)
"""Of ranks that share memory: a meeting of all, and each byte that one of them reads."""


def fit(samples: Sequence[Sample]) -> Link:
    """Fit a link to measured times, by least squares of relative errors, none below zero.

    Parameters
    ----------
    samples
        At least three, of several sizes, some with combining and some without.

    Raises
    ------
    ValueError
        The samples cannot tell the three costs apart.
    """
    rows = np.array([(s.messages, s.messages * s.bytes, s.combined_bytes) for s in samples], float)
    times = np.array([sample.seconds for sample in samples])
    if len(samples) < 2 or np.any(times <= 0):
        raise ValueError("at least two samples are needed, with times above zero")
    weighted, target = rows / times[:, None], np.ones(len(times))
    costs = np.zeros(3)
    free = [column for column in range(3) if np.any(rows[:, column])]
    while free:
        part = weighted[:, free]
        if np.linalg.matrix_rank(part / np.abs(part).max(axis=0)) < len(free):
            raise ValueError("the samples cannot tell messages, bytes and combined bytes apart")
        found, *_ = np.linalg.lstsq(part, target, rcond=None)
        costs[:] = 0.0
        costs[free] = found
        if np.all(found >= 0):
            break
        free = [column for column in free if costs[column] > 0]  # a cost is not negative
    return Link(*(max(0.0, float(cost)) for cost in costs))


ASIDE: Final = 0.1
"""Of an array that is halved, so much comes before its turn, from a partner that is ahead, and is
put aside into fresh memory: 10 pieces of 96 with four members on two processors."""


class _Terms(NamedTuple):
    """How often each cost is paid on the longest way: messages, bytes sent, bytes combined."""

    messages: int
    bytes: float
    combined: float


def _all_reduce(algorithm: Algorithm, p: int, n: float) -> _Terms:
    levels = (p - 1).bit_length()
    whole = p.bit_length() - 1  # of the largest power of two that is not above p
    parts = 1 << whole
    extra = 0 if parts == p else 1
    share = n * (parts - 1) / parts
    match algorithm:
        case "ring":
            return _Terms(2 * (p - 1), 2 * n * (p - 1) / p, n * (p - 1) / p)
        case "recursive-doubling":
            return _Terms(whole + 2 * extra, (whole + 2 * extra) * n, (whole + extra) * n)
        case "halving-doubling":
            combined = share + extra * n + ASIDE * n
            return _Terms(2 * whole + 2 * extra, 2 * share + 2 * extra * n, combined)
        case "tree":
            # The root passes on what has come while it still receives: a piece more on each level.
            piece = 4 * piece_elements(int(n) // 4)
            return _Terms(2 * levels, levels * (n + min(n, piece)), levels * n)
        case _:
            return _Terms(2 * (p - 1), 2 * (p - 1) * n, (p - 1) * n)


def _terms(kind: str, algorithm: Algorithm, p: int, n: float) -> _Terms:
    """Say what a collective costs; `n` are the bytes of the whole."""
    if kind == "all_reduce":
        return _all_reduce(algorithm, p, n)
    levels, whole = (p - 1).bit_length(), p.bit_length() - 1
    extra = 0 if 1 << whole == p else 1
    share = n * (p - 1) / p
    combined = 0.0 if kind in ("all_gather", "broadcast") else 1.0
    match algorithm:
        case "ring":
            return _Terms(p - 1, share, combined * share)
        case "halving-doubling":
            reduced = combined * (share + extra * n + ASIDE * n)
            return _Terms(whole + 2 * extra, share + 2 * extra * n, reduced)
        case "tree":
            return _Terms(levels, levels * n, combined * levels * n)
        case _:
            # In segments a chain costs hardly more than one length, and a message for each rank.
            return _Terms(p - 1, n * (1 + (p - 1) / 16), combined * n)


_CANDIDATES: Final[Mapping[str, tuple[Algorithm, ...]]] = {
    "all_reduce": ("ring", "recursive-doubling", "halving-doubling", "tree"),
    "reduce_scatter": ("ring", "halving-doubling"),
    "all_gather": ("ring", "halving-doubling"),
    "broadcast": ("tree", "chain"),
}


def predict(kind: str, algorithm: Algorithm, world_size: int, size_bytes: int, link: Link) -> float:
    """Predict the seconds of a collective on equal links of which each carries both ways at once.

    Parameters
    ----------
    kind
        "all_reduce", "reduce_scatter", "all_gather" or "broadcast".
    algorithm
        As for the schedule of that kind.
    world_size
        Ranks.
    size_bytes
        Bytes of the whole array.
    link
        What sending costs.
    """
    if world_size == 1:
        return 0.0
    terms = _terms(kind, algorithm, world_size, float(size_bytes))
    return (
        terms.messages * link.alpha_s
        + terms.bytes * link.beta_s_per_byte
        + terms.combined * link.gamma_s_per_byte
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm and why it was chosen; `str` of it says so in words.

    Attributes
    ----------
    algorithm
        The cheapest.
    predicted_s
        Of each candidate, in seconds.
    link
        What it costs to send, where this algorithm sends.
    """

    kind: str
    world_size: int
    size_bytes: int
    link: Link
    algorithm: Algorithm
    predicted_s: Mapping[Algorithm, float]

    def __str__(self) -> str:
        times = sorted(self.predicted_s.items(), key=lambda item: item[1])
        listed = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in times)
        return (
            f"{self.kind} of {self.size_bytes} bytes over {self.world_size} ranks: "
            f"{self.algorithm}, for it is predicted to be fastest ({listed}) at "
            f"{1e6 * self.link.alpha_s:.3g} us per message, "
            f"{1e9 * self.link.beta_s_per_byte:.3g} s per GB sent and "
            f"{1e9 * self.link.gamma_s_per_byte:.3g} s per GB combined"
        )


def predict_by_hosts(hosts: Groups, size_bytes: int, link: Link) -> float:
    """Predict the seconds of an all-reduce through memory on each host, and links between them.

    Parameters
    ----------
    hosts
        The ranks of each host.
    size_bytes
        Bytes of the array.
    link
        What sending to another host costs. The ranks of a host share it, and each of as many as
        the smallest host has combines a part.
    """
    between = _all_reduce("ring", len(hosts), float(size_bytes))
    lanes, most = min(map(len, hosts)), max(map(len, hosts))
    meetings, read = 2, (most / lanes + 1) * size_bytes
    return (
        between.messages * link.alpha_s
        + between.bytes * link.beta_s_per_byte
        + between.combined / lanes * link.gamma_s_per_byte
        + meetings * HOST_MEMORY.alpha_s
        + read * HOST_MEMORY.beta_s_per_byte
    )


def predict_in_process(
    kind: str, algorithm: Algorithm, world_size: int, size_bytes: int, link: Link
) -> float:
    """Predict the seconds of a collective whose ranks share the processors of one process.

    Nothing happens at the same time there: all messages of all ranks are paid for. For parameters
    see `predict`.
    """
    if world_size == 1:
        return 0.0
    p, n = world_size, float(size_bytes)
    levels, whole = (p - 1).bit_length(), p.bit_length() - 1
    parts = 1 << whole
    folds = 2 * (p - parts)
    once = n * (p - 1)  # what all ranks together need at least, to reduce or to distribute
    match kind, algorithm:
        case "all_reduce", "recursive-doubling":
            terms = _Terms(parts * whole + folds, (parts * whole + folds) * n, parts * whole * n)
        case "all_reduce", "halving-doubling":
            terms = _Terms(2 * parts * whole + folds, 2 * once, once)
        case "all_reduce", "ring":
            terms = _Terms(2 * p * (p - 1), 2 * once, once)
        case "all_reduce", _:
            terms = _Terms(2 * (p - 1), 2 * once, once)
        case "broadcast", _:
            terms = _Terms(p - 1, once, 0.0)
        case _, "ring":
            terms = _Terms(p * (p - 1), once, once)
        case "reduce_scatter", "chain":
            terms = _Terms(2 * (p - 1), 1.5 * once, once)
        case _:
            terms = _Terms(parts * levels + folds, once + folds * n / 2, once)
    return (
        terms.messages * link.alpha_s
        + terms.bytes * link.beta_s_per_byte
        + terms.combined * link.gamma_s_per_byte
    )


def choose(
    kind: str,
    world_size: int,
    size_bytes: int,
    link: Link | Callable[[Algorithm], Link],
    *,
    in_process: bool = False,
    hosts: Groups | None = None,
) -> Choice:
    """Choose the algorithm that is predicted to be fastest; of equals the one named first.

    Parameters
    ----------
    kind, world_size, size_bytes
        As for `predict`.
    link
        What sending costs: the same for all algorithms, or for each one.
    in_process
        Whether the ranks share one process.
    hosts
        Which ranks share memory, if some do and there are several hosts.
    """
    predicted = predict_in_process if in_process else predict
    candidates = _CANDIDATES[kind]
    if in_process and kind in ("all_reduce", "reduce_scatter"):
        candidates = ("chain", *candidates)

    def link_of(algorithm: Algorithm) -> Link:
        return link if isinstance(link, Link) else link(algorithm)

    times = {
        algorithm: predicted(kind, algorithm, world_size, size_bytes, link_of(algorithm))
        for algorithm in candidates
    }
    if hosts is not None and kind == "all_reduce":
        times["hierarchical"] = predict_by_hosts(hosts, size_bytes, link_of("hierarchical"))
    best = min(times, key=lambda algorithm: times[algorithm])
    return Choice(kind, world_size, size_bytes, link_of(best), best, times)
