"""A server's part of a sparse table: rows that are created when they are first changed.

`index` finds the number of a key's row, `rows` holds values and state by that number, `shard`
does arithmetic on them, `contribution` keeps what a worker gave to the open round. Nothing here
knows workers, clocks or frames, as in `aiops.shards`.
"""

from aiops.shards.sparse.contribution import SparseAssignment, SparseContribution
from aiops.shards.sparse.memory import Memory, NoRoom
from aiops.shards.sparse.shard import SparseShard

__all__ = ["Memory", "NoRoom", "SparseAssignment", "SparseContribution", "SparseShard"]
