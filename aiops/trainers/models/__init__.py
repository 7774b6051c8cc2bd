"""The built-in models: plain numpy over one flat parameter vector each."""

from aiops.trainers.models.base import Model
from aiops.trainers.models.linear import Linear
from aiops.trainers.models.network import Mlp, Softmax

__all__ = ["Linear", "Mlp", "Model", "Softmax"]
