"""What a node tells about itself: logs, counters and latencies, and trace spans.

`metrics` and `tracing` are pure containers; `logs` is the only part that writes anything, and only
after `configure` (or, for warnings, by Python's own rules for libraries). Who measures, reports and
shows them lives in the runtime, the scheduler and the commands.
"""

from aiops.observability.logs import AiopsLogger, RateLimited, configure, get_logger
from aiops.observability.metrics import ByteCounters, LatencyHistogram
from aiops.observability.tracing import PHASES, ProcessSpans, Span, SpanBuffer, chrome_trace

__all__ = [
    "PHASES",
    "AiopsLogger",
    "ByteCounters",
    "LatencyHistogram",
    "ProcessSpans",
    "RateLimited",
    "Span",
    "SpanBuffer",
    "chrome_trace",
    "configure",
    "get_logger",
]
