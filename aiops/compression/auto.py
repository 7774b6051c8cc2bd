"""A compressor whose codec the cost gate chooses; what is held back goes from one to the next."""

from __future__ import annotations

from typing import Any

import numpy as np

from aiops.compression.base import Codec
from aiops.compression.checks import finite
from aiops.compression.compressor import Compressor, Where
from aiops.compression.gate import DENSE, Gate
from aiops.compression.lossless import Dense
from aiops.compression.spelling import AUTO, codec_from
from aiops.compression.wrappers import with_feedback
from aiops_protocol.codecs import Encoded, Raw
from aiops_protocol.payload import Float32Array

__all__ = ["AUTO", "AutoCompressor"]


class AutoCompressor(Compressor):
    """What one worker keeps of one table with `compression="auto"`.

    Parameters
    ----------
    gate
        What chooses.
    shape, seed
        As for `Compressor`.

    Attributes
    ----------
    latest
        By which candidate the last vector was encoded, and how many elements it had.
    """

    def __init__(self, gate: Gate, shape: tuple[int, ...], seed: int) -> None:
        super().__init__(Dense(), shape, seed)
        self.gate = gate
        self.latest = (DENSE, 0)
        self._codecs: dict[str, Codec] = {DENSE: self.codec}
        self._holds = False  # whether anything may be held back

    @property
    def spelling(self) -> str:
        """The setting, not the codec of the moment: a saved state belongs to it."""
        return AUTO

    def passes(self, x: Float32Array) -> bool:
        """Whether this push goes as it is, and its time is of no interest; it is counted then."""
        if self._holds or not self.gate.passes(x.size):
            return False
        self.pushes += 1
        self.bytes_given += x.nbytes
        self.bytes_sent += x.nbytes
        return True

    def encode(self, x: Float32Array, where: Where | None = None) -> Encoded:
        """Encode by the codec of the moment; see `Compressor.encode`."""
        name = self.gate.choose(x.size)
        self.latest = (name, x.size)
        self.codec = self._codec(name)
        if name != DENSE:
            self._holds = True
            return super().encode(x, where)
        if self._holds:
            x = self._with_rest(x, where)
        self.pushes += 1
        self.bytes_given += x.nbytes
        return Raw(x)

    def _codec(self, name: str) -> Codec:
        """Return a candidate with error feedback; making one takes as long as a small push."""
        codec = self._codecs.get(name)
        if codec is None:
            codec = self._codecs[name] = with_feedback(codec_from(name))
        return codec

    def _with_rest(self, x: Float32Array, where: Where | None) -> Float32Array:
        """Return the sum with what was held back, which is nothing then."""
        residual = self._state["residual"]
        part = slice(0, residual.size) if where is None else where
        with np.errstate(all="ignore"):
            total: Float32Array = residual[part] + x
        finite(total, self.codec)
        residual[part] = 0.0
        self._holds = where is not None
        return total

    def stats(self) -> dict[str, Any]:
        """Return also what the gate has chosen, why, and what part of the time trials cost."""
        gate = self.gate
        return {
            **super().stats(),
            "chosen": gate.chosen,
            "reason": gate.reason,
            "trials": round(gate.extra_share, 4),
        }

    def load_state_dict(self, state: Any) -> None:
        """Go on where `state_dict` was taken; see `Compressor.load_state_dict`."""
        super().load_state_dict(state)
        self._holds = "residual" in self._state
