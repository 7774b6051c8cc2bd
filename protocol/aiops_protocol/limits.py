"""Limits of the wire, each with a name and the reason for its number.

Nothing here is configuration: these are the bounds that both sides may rely on.
Settable limits (window sizes, deadlines) have their defaults here and travel in WELCOME.
"""

from __future__ import annotations

from typing import Final

KiB: Final = 1024
MiB: Final = 1024 * KiB

PROTOCOL_VERSION_MIN: Final = 1
PROTOCOL_VERSION_MAX: Final = 1

PREFIX_BYTES: Final = 24
"""Size of the fixed frame prefix: one read of it tells all lengths."""

ALIGNMENT_BYTES: Final = 8
"""Prefix and metadata are multiples of this, so that payloads of 8-byte keys stay aligned."""

RANGES_PER_FRAME_MAX: Final = 2048
"""32 KiB of ranges: half the staging buffer; a longer list travels in several frames."""

META_BYTES_MAX: Final = 36 * KiB
"""The fixed fields, 2,048 ranges of 16 bytes and the optional fields, rounded up."""

STAGING_BYTES: Final = 64 * KiB
"""Where small frames arrive: holds the largest metadata with its prefix, and one large read."""

SEGMENT_BYTES: Final = 512 * KiB
"""Size of the pieces of a large request: long enough to hide per-frame costs (8 us against
0.15 ms on the wire), short enough to stay in the cache between one step and the next, and that
stock asyncio is not quadratic and control frames pass."""

SEGMENT_ELEMENTS: Final = SEGMENT_BYTES // 4

PAYLOAD_BYTES_MAX: Final = 4 * MiB
"""Largest payload a data frame may declare: eight segments, so that a codec whose output is
longer than its input, or a peer with larger segments, still fits."""

KEYS_PER_FRAME_MAX: Final = PAYLOAD_BYTES_MAX // 4
"""Keys that a request may name in ranges: one value each fills the largest payload, so more could
neither be sent nor answered. Known before anything is made of the ranges."""

KEYS_PER_LIST_MAX: Final = MiB // 8
"""Keys in the key list of one request: a megabyte of them, and of narrow rows as much in values;
what is longer travels in several frames."""

SIGNATURE_BYTES: Final = 16
"""What stands for a cached key list: long enough that no two lists ever meet."""

CACHED_KEYS_MIN: Final = 16
"""A shorter key list is not worth a signature: it would save less than a small frame costs."""

KEY_CACHE_BYTES: Final = 64 * MiB
"""Key lists that a server keeps by signature, the least recently used go first: eight million
keys, the working set of a hundred workers with some ten thousand each for reading and writing."""

ROW_WIDTH_MAX: Final = 64 * 1024
"""Values in a row of a sparse table: two such rows fill a segment, and no segment cuts a row."""

CONTROL_BYTES_MAX: Final = 1 * MiB
"""Largest control message after authentication: room for each of the bounds below by itself."""

TEXT_BYTES_MAX: Final = 1024
"""Text of a refusal or a goodbye: a sentence, not a document."""

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""From accept to READY. Below 10 s a burst of 128 joins on two cores was seen to fail elsewhere."""

UNAUTHENTICATED_CONNECTIONS_MAX: Final = 1024
"""128 workers of one host may connect in the same instant; strangers get no more than this."""

CONNECTIONS_MAX: Final = 4096
"""Per listener; also kept below 80 % of the process's file descriptors."""

WINDOW_MUTATIONS: Final = 64
"""Unacknowledged mutations of a session; the server remembers this many to recognise repeats."""

QUERY_ENTRIES_MAX: Final = 2 * WINDOW_MUTATIONS
"""Requests of one table that a QUERY asks about: a whole window, and as many pulls."""

WINDOW_BYTES: Final = 8 * MiB
"""Bytes of pushes in flight on a connection without an answer: the bandwidth-delay product of
1 Gbit/s at 64 ms, and up to sixteen segments in motion on a faster link."""

PULL_WINDOW_BYTES: Final = 8 * MiB
"""Bytes of pulls asked for and not yet received on a connection: bounds what a server can have
waiting for a reader that stopped."""

CALL_BYTES_MAX: Final = 16 * 1024
"""Name and settings of a function that is called on the servers."""

CALL_RESULT_BYTES_MAX: Final = 64 * 1024
"""What such a function may return for each shard: sums and histograms, not the values."""

WORKERS_MAX: Final = 1024
SERVERS_MAX: Final = 256
TABLES_MAX: Final = 4096
"""Bounds of the scheduler's tables: each entry costs it a few hundred bytes."""

MEMBERS_MAX: Final = 4 * (WORKERS_MAX + SERVERS_MAX)
"""Nodes in one ClusterState, those that have left included: 5,120 at about 120 bytes."""

PARTS_MAX: Final = 16 * 1024
"""Parts of one table's partition: 64 for each of 256 servers, at about 50 bytes."""

REPORT_NAMES_MAX: Final = 256
"""Counters or metrics of one node; a few dozen are in use."""

REPORT_HISTOGRAMS_MAX: Final = 64
"""Latency histograms of one node: one for each verb and a few more."""

REPORT_SPANS_MAX: Final = 8 * 1024
"""Trace spans in one report: twice the batch that a node sends, at about 40 bytes."""

HISTOGRAM_BUCKETS_MAX: Final = 1024
"""Filled buckets of one histogram; sixteen to each doubling from 16 ns to 1000 s are 600."""

SETTINGS_MAX: Final = 64
"""Settings of one optimizer, initializer or consistency; ten are many."""

DIMENSIONS_MAX: Final = 64
"""Dimensions of a table's shape: what numpy allows."""

KEY_CHARS_MAX: Final = 128
"""Names of counters, spans, metrics and settings."""

NAME_CHARS_MAX: Final = 64
"""Names of nodes, tables and barriers: `[A-Za-z0-9._:-]`, printable in one log line."""

BARRIERS_MAX: Final = 1024
"""Barriers with somebody waiting; more at once is a loop that invents names."""

TABLE_ELEMENTS_MAX: Final = 2**48
"""Elements of a dense table: 1 PiB of float32, far above memory, far below 2**64."""

RINGS_MAX: Final = 256
"""Rings of a job: one for each purpose; each costs the scheduler a row for each member."""

EARLY_BYTES_MAX: Final = 1 * MiB
"""Pieces of one operation that may be sent to a member that has not begun it: what fits here costs
no round trip; more waits until the member says RING_BEGIN."""

EARLY_PIECE_BYTES_MIN: Final = 1024
"""What a piece counts at least towards that: pieces of few bytes cost the receiver memory, too."""

OPERATIONS_AHEAD_MAX: Final = 8
"""Operations that a member may have begun and another not: bounds what the other keeps for them."""
WEIGHT_MAX: Final = 10**18
"""Weight of a contribution (samples, tokens), and what its inverse must not exceed: both fit
float32 with room for their products with gradients."""

CUSTOMERS_MAX: Final = 256
"""Customers of one worker process; each costs a row of bookkeeping per shard."""

DIALOGUE_MESSAGES_MAX: Final = 4096
DIALOGUE_BYTES_MAX: Final = 64 * MiB
"""Control messages that one side keeps until the other is known to have them: what a job of
thousands of nodes says within the death time. With more, a broken connection is not resumed."""

HEARD_EVERY: Final = 16
"""So many control messages may come before the sender is told, and may forget them."""
