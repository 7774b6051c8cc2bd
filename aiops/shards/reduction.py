"""What the contributions of a round become before the optimizer's step: their mean, or another.

Everything here is elementwise and in a fixed order, so that the bits of a result depend neither
on the order of arrival nor on how a table is cut. Callers go block by block, so that what is
stacked here stays small, and set numpy's errstate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from aiops_protocol.payload import Float32Array

__all__ = ["MajoritySign", "Mean", "Median", "Reduction", "Sum", "TrimmedMean", "reduction_from"]


class Reduction(ABC):
    """Makes one array of several of the same size.

    Attributes
    ----------
    name
        By which it travels.
    takes_weights
        Whether a contribution may count more than another.
    """

    name: ClassVar[str]
    takes_weights: ClassVar[bool] = False

    @abstractmethod
    def reduce(
        self, pieces: Sequence[Float32Array], weights: Sequence[float] | None, out: Float32Array
    ) -> None:
        """Reduce one or more arrays into `out`.

        Parameters
        ----------
        pieces
            In the order of ranks; not changed.
        weights
            One for each, above 0; `None` if all are 1.
        out
            Shares no memory with the pieces.
        """


class Sum(Reduction):
    """The sum, a float32 left fold in the order given."""

    name = "sum"

    def reduce(
        self, pieces: Sequence[Float32Array], weights: Sequence[float] | None, out: Float32Array
    ) -> None:
        """Add up."""
        np.copyto(out, pieces[0])
        for piece in pieces[1:]:
            np.add(out, piece, out=out)


class Mean(Sum):
    """The mean: the sum, then one division by the number of pieces, or by the total weight.

    With weights each piece is multiplied by `float32(weight)` first.
    """

    name = "mean"
    takes_weights = True

    def reduce(
        self, pieces: Sequence[Float32Array], weights: Sequence[float] | None, out: Float32Array
    ) -> None:
        """Add up and divide once."""
        if weights is None:
            super().reduce(pieces, None, out)
            np.divide(out, np.float32(len(pieces)), out=out)
            return
        np.multiply(pieces[0], np.float32(weights[0]), out=out)
        weighted = np.empty_like(out)
        for piece, weight in zip(pieces[1:], weights[1:], strict=True):
            np.multiply(piece, np.float32(weight), out=weighted)
            np.add(out, weighted, out=out)
        np.divide(out, np.float32(sum(weights)), out=out)


class TrimmedMean(Reduction):
    """The mean of what is left without the `trim` lowest and the `trim` highest [1]_.

    Where there are too few pieces for that, because workers have left or not pushed, as many are
    taken away as leave something: with 2 * trim pieces or fewer it is the median.

    References
    ----------
    .. [1] D. Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
       Rates", ICML 2018.
    """

    name = "trimmed_mean"

    def __init__(self, trim: int) -> None:
        self.trim = trim

    def reduce(
        self, pieces: Sequence[Float32Array], weights: Sequence[float] | None, out: Float32Array
    ) -> None:
        """Sort, and take the mean of the middle; a NaN among the pieces makes NaN."""
        count = len(pieces)
        trim = min(self.trim, (count - 1) // 2)
        rows = np.sort(np.stack(pieces), axis=0)  # NaN goes last
        unknown = np.isnan(rows[-1])
        np.copyto(out, rows[trim])
        for row in rows[trim + 1 : count - trim]:
            np.add(out, row, out=out)
        np.divide(out, np.float32(count - 2 * trim), out=out)
        np.copyto(out, np.float32(np.nan), where=unknown)


class Median(TrimmedMean):
    """The middle one, or the mean of the two in the middle [1]_.

    References
    ----------
    .. [1] D. Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
       Rates", ICML 2018.
    """

    name = "median"

    def __init__(self) -> None:
        super().__init__(trim=np.iinfo(np.int64).max)


class MajoritySign(Reduction):
    """The sign that most have: -1, 0 or 1 [1]_. Zeros do not vote, and a tie is 0.

    References
    ----------
    .. [1] J. Bernstein et al., "signSGD with Majority Vote is Communication Efficient and Fault
       Tolerant", ICLR 2019.
    """

    name = "majority_sign"

    def reduce(
        self, pieces: Sequence[Float32Array], weights: Sequence[float] | None, out: Float32Array
    ) -> None:
        """Count votes; a NaN among the pieces makes NaN."""
        np.sign(pieces[0], out=out)
        vote = np.empty_like(out)
        for piece in pieces[1:]:
            np.sign(piece, out=vote)
            np.add(out, vote, out=out)
        np.sign(out, out=out)


def reduction_from(name: object, trim: object = 0) -> Reduction | None:
    """Return the reduction of this name, `None` if there is none."""
    plain = {kind.name: kind for kind in (Mean, Sum, Median, MajoritySign)}
    if isinstance(name, str) and name in plain:
        return plain[name]()
    if name == "trimmed_mean" and type(trim) is int and trim > 0:
        return TrimmedMean(trim)
    return None
