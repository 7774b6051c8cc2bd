"""Codecs: gradients and values in fewer bytes, with exact bookkeeping of what is lost.

Each is a frozen record of settings; `codec_from("top-k:0.01")` makes one from its spelling. Start
reading at `base.py`. This room knows arrays and the wire forms of values; it knows no frames,
servers, rounds or sockets.
"""

from aiops.compression.agc import AGC
from aiops.compression.base import Codec
from aiops.compression.dgc import DGC
from aiops.compression.float8 import Float8
from aiops.compression.halves import BFloat16, Float16
from aiops.compression.integers import Int4, Int8
from aiops.compression.lossless import Dense, Lz4
from aiops.compression.one_bit import OneBit
from aiops.compression.power_sgd import PowerSGD
from aiops.compression.qsgd import QSGD
from aiops.compression.random_k import RandomK
from aiops.compression.spelling import codec_from, codec_names
from aiops.compression.ternary import Ternary
from aiops.compression.top_k import TopK
from aiops.compression.wrappers import Chain, ErrorFeedback, NoFeedback, with_feedback

__all__ = [
    "AGC",
    "DGC",
    "QSGD",
    "BFloat16",
    "Chain",
    "Codec",
    "Dense",
    "ErrorFeedback",
    "Float8",
    "Float16",
    "Int4",
    "Int8",
    "Lz4",
    "NoFeedback",
    "OneBit",
    "PowerSGD",
    "RandomK",
    "Ternary",
    "TopK",
    "codec_from",
    "codec_names",
    "with_feedback",
]
