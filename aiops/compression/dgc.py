"""Deep gradient compression: top-k with momentum that is corrected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from aiops.compression.base import Codec, Feedback, State, register
from aiops.compression.checks import finite
from aiops.compression.selection import largest, largest_by_sample, wanted_of
from aiops.optim.settings import flag, number, whole
from aiops_protocol.codecs import Encoded, IndexKind, SparseValues
from aiops_protocol.payload import Float32Array

__all__ = ["DGC"]

WARM_UP_STAGES: Final = (0.25, 0.0625, 0.015625, 0.004)
"""Ratios of the stages before the final one."""


@register
@dataclass(frozen=True, slots=True)
class DGC(Codec):
    """The largest values of an accumulated velocity; what was sent is cleared, in both.

    Deep gradient compression (Lin et al., ICLR 2018): momentum is applied at the worker, before
    values are held back (momentum correction), and forgotten where they were sent (masking). The
    table's optimizer must have no momentum of its own. It feeds back by itself.

    Parameters
    ----------
    ratio
        Which part of the values is sent after the warm-up.
    momentum
        Of the velocity; 0 leaves plain top-k with error feedback.
    warmup
        Pushes over which the ratio falls in equal stages: 25, 6.25, 1.5625, 0.4 %, then `ratio`.
    clip
        Norm to which a gradient is cut before it is added; 0 cuts nothing. The paper cuts to
        `threshold / sqrt(workers)`.
    sampled
        Find the threshold from a sample.
    """

    name: ClassVar[str] = "dgc"
    argument: ClassVar[str] = "ratio"
    feedback: ClassVar[Feedback] = "own"
    elementwise: ClassVar[tuple[str, ...]] = ("velocity", "residual")

    ratio: float = 0.001
    momentum: float = 0.9
    warmup: int = 0
    clip: float = 0.0
    sampled: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        ratio = number("DGC", "ratio", self.ratio, above=0.0, at_most=1.0)
        object.__setattr__(self, "ratio", ratio)
        momentum = number("DGC", "momentum", self.momentum, at_least=0.0, below=1.0)
        object.__setattr__(self, "momentum", momentum)
        object.__setattr__(self, "warmup", whole("DGC", "warmup", self.warmup))
        object.__setattr__(self, "clip", number("DGC", "clip", self.clip, at_least=0.0))
        object.__setattr__(self, "sampled", flag("DGC", "sampled", self.sampled))

    def ratio_at(self, push: int) -> float:
        """Return the ratio of the push of this number, from 0."""
        if push >= self.warmup:
            return self.ratio
        stages = [stage for stage in WARM_UP_STAGES if stage > self.ratio]
        return [*stages, self.ratio][push * (len(stages) + 1) // self.warmup]

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Send the largest of the accumulated velocity; see `Codec.encode`."""
        finite(x, self)
        push = int(state.get("push", np.zeros(1, np.int64))[0])
        velocity = state["velocity"] * np.float32(self.momentum)
        velocity += self._clipped(x)
        residual = state["residual"] + velocity
        finite(residual, self)
        magnitude = np.abs(residual)
        wanted = wanted_of(x.size, self.ratio_at(push))
        places = (
            largest_by_sample(magnitude, wanted, seed)
            if self.sampled
            else largest(magnitude, wanted)
        )
        values = residual[places]
        velocity[places] = residual[places] = 0.0
        state["velocity"][:] = velocity
        state["residual"][:] = residual
        state["push"] = np.full(1, push + 1, np.int64)
        return SparseValues(x.size, places, values, IndexKind.PACKED)

    def _clipped(self, x: Float32Array) -> Float32Array:
        if not self.clip:
            return x
        norm = float(np.sqrt(np.vdot(x.astype(np.float64), x)))
        return x * np.float32(self.clip / norm) if norm > self.clip else x
