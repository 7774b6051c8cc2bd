"""All-reduce of compressed vectors: less traffic, and the same bits on every rank.

Two ways. Any codec: every member encodes its vector, all get all encoded vectors, and each folds
what they mean in the order of the ranks. Matrices of low rank (`PowerSGD`): the members agree on
two thin matrices by two all-reduces, as in the paper. What is lost is held back by each member.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aiops.checks import check_array, check_count, is_one_of
from aiops.collective.member import Member
from aiops.compression import Codec, PowerSGD
from aiops.compression.compressor import Compressor
from aiops.compression.power_sgd import orthonormal
from aiops.compression.spelling import as_codec
from aiops.errors import ConfigError, UsageError
from aiops.optim.settings import whole
from aiops.wording import shown
from aiops_protocol.codecs import Sparse, Wire, decode_values, product, uniforms
from aiops_protocol.frames import Codec as Form
from aiops_protocol.limits import KEYS_PER_FRAME_MAX
from aiops_protocol.payload import Float32Array, all_finite

__all__ = ["CompressedReducer"]

PIECE_ELEMENTS = KEYS_PER_FRAME_MAX
"""Vectors are cut into pieces of this length, because a decoder makes no more at a time."""


class CompressedReducer:
    """One member's side of compressed all-reduces of one vector, again and again.

    All members make one with the same codec, shape and seed, and call `reduce` equally often.

    Parameters
    ----------
    ring
        A ring of `worker.ring()`, or a member of an `InProcessRing`.
    codec
        A codec or its spelling. `PowerSGD` goes by two all-reduces of thin matrices; any other by
        one gathering, which pays while the codec saves more than the number of members.
    shape
        Of the vector.
    seed
        Of random numbers; the same on all members.

    Raises
    ------
    ConfigError
        No codec, or one that does not fit the shape.
    """

    def __init__(
        self, ring: Member, codec: Codec | str, shape: tuple[int, ...], *, seed: int = 0
    ) -> None:
        made = as_codec(codec, "CompressedReducer: codec")
        member: object = ring
        if not isinstance(member, Member):
            raise ConfigError(
                f"CompressedReducer: ring is {shown(ring)}; pass a ring of worker.ring(...), or a "
                "member of an InProcessRing"
            )
        seed = whole("CompressedReducer", "seed", seed, at_most=2**32)
        sizes: object = shape
        if not isinstance(sizes, tuple | list):
            raise ConfigError(f"CompressedReducer: shape is {shown(shape)}; pass a tuple of sizes")
        shape = tuple(check_count(size, "CompressedReducer: shape: a size") for size in sizes)
        self._ring = ring
        self._codec = made
        self._shape = shape
        self._size = prod(shape)
        self._seed = seed
        made = made.for_shape(shape)
        if isinstance(made, PowerSGD) and not any(c for *_, c in made.matrices(self._size)):
            raise ConfigError(
                f"CompressedReducer: {made.spelling()}: nothing in a vector of shape {shape} is a "
                "matrix that this rank makes shorter; name the arrays in a flat vector with "
                "shapes, as in PowerSGD(1, shapes=((64, 256), (256,)))"
            )
        self._low_rank = made if isinstance(made, PowerSGD) and made.shapes else None
        self._sender = Compressor(made, shape, seed=seed * 1_000_003 + ring.rank)
        self._rights: dict[int, Float32Array] = {}  # by first element of a matrix
        self._residual: Float32Array = np.zeros(self._size if self._low_rank else 0, np.float32)
        self._reduced = 0
        self._encoded_bytes = 0

    def __repr__(self) -> str:
        return f"<CompressedReducer {self._codec.spelling()} shape={self._shape}>"

    async def reduce(
        self,
        array: Float32Array,
        op: Literal["sum", "mean"] = "mean",
        *,
        timeout_s: float | None = None,
    ) -> Float32Array:
        """Return the reduced array, the same bits on all members; the argument is not changed.

        Raises
        ------
        UsageError
            A wrong shape or dtype; NaN or infinity, which must not get into what is held back.
        CollectiveAborted
            As `Member.all_reduce`. What is held back is then as it was, so the call may be made
            again when the ring has been formed anew.
        """
        if not is_one_of(op, ("sum", "mean")):
            raise UsageError(f'reduce: op is {shown(op)}; it must be "sum" or "mean"')
        x = check_array(array, self._shape, "reduce", allow_nonfinite=False)
        if self._low_rank is not None:
            total = await self._by_low_rank(self._low_rank, x, timeout_s)
        else:
            total = await self._by_gathering(x, timeout_s)
        self._reduced += 1
        if op == "mean":
            total /= np.float32(self._ring.world_size)
        return total.reshape(self._shape)

    def formed_anew(self) -> None:
        """Forget what all members must have alike: there are others now, who do not have it.

        What is held back stays.
        """
        self._rights = {}

    def stats(self) -> dict[str, Any]:
        """Return codec, calls, the bytes of the vectors given and of what they became at a member.

        In a ring of p members, what a vector became goes to each of the p - 1 others.
        """
        low_rank = self._low_rank is not None
        held = self._residual if low_rank else np.float32(self._sender.residual_norm)
        return {
            "codec": self._codec.spelling(),
            "pushes": self._reduced,
            "bytes_given": 4 * self._size * self._reduced,
            "bytes_sent": self._encoded_bytes,
            "residual_norm": float(np.linalg.norm(np.float64(held))),
        }

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what this member holds back, to be saved."""
        if self._low_rank is None:
            return self._sender.state_dict()
        rights = {f"right-{begin}": right.copy() for begin, right in self._rights.items()}
        return {"residual": self._residual.copy(), **rights}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on where `state_dict` was taken; all members do, or none.

        Raises
        ------
        ConfigError
            It is of another codec or size.
        """
        if self._low_rank is None:
            self._sender.load_state_dict(state)
            return
        residual = state.get("residual")
        if residual is None or residual.shape != (self._size,):
            raise ConfigError(
                "the saved state is not of this codec, or of a vector of another size"
            )
        self._residual = np.array(residual, np.float32)
        self._rights = {
            int(name.removeprefix("right-")): np.array(right)
            for name, right in state.items()
            if name.startswith("right-")
        }

    # --- any codec ---

    async def _by_gathering(self, x: Float32Array, timeout_s: float | None) -> Float32Array:
        before = self._sender.state_dict()
        try:
            encoded = self._sender.encode(x)
            cuts = range(0, self._size, PIECE_ELEMENTS)
            ends = [min(cut + PIECE_ELEMENTS, self._size) for cut in cuts]
            wires = [encoded.cut(cut, end) for cut, end in zip(cuts, ends, strict=True)]
            mine = _flattened(wires)
            sizes = await self._ring.all_gather(np.array([mine.size], float), timeout_s=timeout_s)
            # Rings carry floats: bytes travel as such, and nobody looks at their values.
            padded = np.zeros(-(-int(sizes.max()) // 4) * 4, np.uint8)
            padded[: mine.size] = mine
            carried = padded.view(np.float32)
            gathered = await self._ring.all_gather(carried, timeout_s=timeout_s)
        except BaseException:
            self._sender.load_state_dict(before)
            raise
        self._encoded_bytes += mine.size
        total = np.zeros(self._size, np.float32)
        for row, size in zip(gathered, sizes[:, 0], strict=True):
            at = 0
            view = memoryview(row.view(np.uint8))[: int(size)]
            for cut, end in zip(cuts, ends, strict=True):
                wire, at = _next_wire(view, at)
                part = decode_values(wire.codec, wire.payload, end - cut, wire.parameter)
                if isinstance(part, Sparse):
                    total[cut + part.indices] += part.values
                else:
                    total[cut:end] += part
        return total

    # --- low rank ---

    async def _by_low_rank(
        self, codec: PowerSGD, x: Float32Array, timeout_s: float | None
    ) -> Float32Array:
        held = self._residual + x
        if not all_finite(held):
            raise UsageError("reduce: the sum with what was held back is too large for float32")
        matrices = [section for section in codec.matrices(self._size) if section[2]]
        lefts: list[Float32Array] = []
        for begin, rows, columns in matrices:
            start = self._rights.get(begin)
            if start is None or not start.any():
                start = uniforms(self._seed, begin, columns * codec.rank)
                start -= np.float32(0.5)
            matrix = held[begin : begin + rows * columns].reshape(rows, columns)
            lefts.append(_times(matrix, start.reshape(columns, codec.rank)))
        # What is no matrix travels with the left ones.
        plain = [
            held[begin : begin + count].copy()
            for begin, count, columns in codec.matrices(self._size)
            if not columns
        ]
        await self._all_reduce(lefts, plain, timeout_s)
        lefts = [orthonormal(left) for left in lefts]
        rights = [
            _times(held[begin : begin + rows * columns].reshape(rows, columns).T, left)
            for (begin, rows, columns), left in zip(matrices, lefts, strict=True)
        ]
        await self._all_reduce(rights, [], timeout_s)
        total = np.empty(self._size, np.float32)
        share = np.float32(1 / self._ring.world_size)
        residual = np.zeros(self._size, np.float32)
        for (begin, rows, columns), left, right in zip(matrices, lefts, rights, strict=True):
            end = begin + rows * columns
            total[begin:end] = product(left, right).reshape(-1)
            residual[begin:end] = held[begin:end] - total[begin:end] * share
            self._rights[begin] = right
        at = iter(plain)
        for begin, count, width in codec.matrices(self._size):
            if not width:
                total[begin : begin + count] = next(at)
        self._residual = residual
        small = sum(array.nbytes for array in (*lefts, *rights, *plain))
        self._encoded_bytes += small
        return total

    async def _all_reduce(
        self, matrices: list[Float32Array], plain: list[Float32Array], timeout_s: float | None
    ) -> None:
        """Sum all of these over the members, in place, in one call."""
        arrays = [*matrices, *plain]
        if not arrays:
            return
        flat = np.concatenate([array.reshape(-1) for array in arrays])
        await self._ring.all_reduce(flat, timeout_s=timeout_s)
        at = 0
        for array in arrays:
            array.reshape(-1)[:] = flat[at : at + array.size]
            at += array.size


def _times(one: Float32Array, other: Float32Array) -> Float32Array:
    out: Float32Array = np.matmul(one, other).astype(np.float32, copy=False)
    return out


def _flattened(wires: list[Wire]) -> NDArray[np.uint8]:
    """Return payloads with what a reader must know of each: codec, parameter, length."""
    parts: list[bytes] = []
    for codec, parameter, payload in wires:
        parts += (np.array([codec, parameter, len(payload)], "<u4").tobytes(), bytes(payload))
    return np.frombuffer(b"".join(parts), np.uint8)


def _next_wire(view: memoryview, at: int) -> tuple[Wire, int]:
    codec, parameter, size = np.frombuffer(view[at : at + 12], "<u4").tolist()
    start = at + 12
    return Wire(Form(codec), parameter, view[start : start + size]), start + size
