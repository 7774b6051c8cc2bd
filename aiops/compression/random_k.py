"""Some values by chance: random-k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from aiops.compression.base import Codec, State, register
from aiops.optim.settings import number
from aiops_protocol.codecs import Encoded, Seeded, seeded_places
from aiops_protocol.payload import Float32Array

__all__ = ["RandomK"]

SAFE_RATIO: Final = 0.1


@register
@dataclass(frozen=True, slots=True)
class RandomK(Codec):
    """One of each group of neighbours, drawn by a seed, so that no places travel.

    Cheap, and much weaker than `TopK`: below a tenth, training with momentum is known to diverge
    (digits, 1 %: 87 % accuracy in place of 97.7 %).

    Parameters
    ----------
    ratio
        Which part of the values is sent; a group has `round(1 / ratio)`.
    """

    name: ClassVar[str] = "random-k"
    argument: ClassVar[str] = "ratio"

    ratio: float = SAFE_RATIO

    def __post_init__(self) -> None:
        """Check the settings."""
        ratio = number("RandomK", "ratio", self.ratio, at_least=2.0**-20, at_most=1.0)
        object.__setattr__(self, "ratio", ratio)

    @property
    def group(self) -> int:
        """Neighbours of which one is sent."""
        return max(1, round(1 / self.ratio))

    def warnings(self) -> list[str]:
        """Warn below a tenth."""
        if self.ratio >= SAFE_RATIO:
            return []
        return [
            f"{self.spelling()}: random-k below {SAFE_RATIO:g} is known to diverge with momentum; "
            "use top-k, a larger ratio, or a smaller learning rate"
        ]

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Keep the values at the places that the seed chooses; see `Codec.encode`."""
        places = seeded_places(seed, self.group, 0, x.size)
        return Seeded(x.size, seed, self.group, x[places])
