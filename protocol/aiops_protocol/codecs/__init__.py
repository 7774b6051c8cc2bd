"""Wire forms of values: how float32 vectors travel in fewer bytes. Start reading at `form.py`.

`decode_values` is the one way from a payload to values; each form has a class that is cut into
payloads. `SPEC.md` has the bytes of each, `vectors/codecs.json` examples.
"""

from aiops_protocol.codecs.decoding import decode_values
from aiops_protocol.codecs.deltas import join_deltas, split_deltas
from aiops_protocol.codecs.draws import hashes, mix, uniforms
from aiops_protocol.codecs.float8 import FLOAT8_MAX, Float8, to_float8
from aiops_protocol.codecs.form import (
    BLOCK_ELEMENTS_MAX,
    Decoded,
    Encoded,
    Joinable,
    Sparse,
    Wire,
    word_of,
)
from aiops_protocol.codecs.halves import Halves, to_bfloat16, to_bfloat16_above, to_float16
from aiops_protocol.codecs.levels import LEVEL_BITS, Levels
from aiops_protocol.codecs.low_rank import RANK_MAX, LowRank, Section, product
from aiops_protocol.codecs.lz4_block import Lz4Block, compress, decompress
from aiops_protocol.codecs.raw import Raw
from aiops_protocol.codecs.seeded import Seeded, seeded_places
from aiops_protocol.codecs.signs import Signs
from aiops_protocol.codecs.sparse import IndexKind, SparseValues, ValueKind
from aiops_protocol.codecs.sparse_levels import SparseLevels

__all__ = [
    "BLOCK_ELEMENTS_MAX",
    "FLOAT8_MAX",
    "LEVEL_BITS",
    "RANK_MAX",
    "Decoded",
    "Encoded",
    "Float8",
    "Halves",
    "IndexKind",
    "Joinable",
    "Levels",
    "LowRank",
    "Lz4Block",
    "Raw",
    "Section",
    "Seeded",
    "Signs",
    "Sparse",
    "SparseLevels",
    "SparseValues",
    "ValueKind",
    "Wire",
    "compress",
    "decode_values",
    "decompress",
    "hashes",
    "join_deltas",
    "mix",
    "product",
    "seeded_places",
    "split_deltas",
    "to_bfloat16",
    "to_bfloat16_above",
    "to_float8",
    "to_float16",
    "uniforms",
    "word_of",
]
