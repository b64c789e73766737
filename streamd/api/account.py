"""`INFO`: what the account uses, what it may use, and the level of the API."""

from __future__ import annotations

from typing import Any

from streamd import limits
from streamd.api.request import Request
from streamd.api.streams import reserved_bytes


def info(request: Request) -> None:
    """Answer `INFO`."""
    context = request.context
    node, counts = context.node, context.counts
    handles = node.streams()
    consumer_count = sum(len(handle.machine.consumers) for handle in handles)
    # Limits belong to accounts; the one account there is has none of its own.
    account_limits: dict[str, Any] = {
        "max_memory": -1,
        "max_storage": -1,
        "max_streams": -1,
        "max_consumers": -1,
        "max_ack_pending": -1,
        "memory_max_stream_bytes": -1,
        "storage_max_stream_bytes": -1,
        "max_bytes_required": False,
    }
    request.answer(
        {
            "memory": node.memory_bytes(),
            "storage": node.storage_bytes(),
            "reserved_memory": reserved_bytes(context, "memory"),
            "reserved_storage": reserved_bytes(context, "file"),
            "streams": len(handles),
            "consumers": consumer_count,
            "limits": account_limits,
            "api": {"level": limits.API_LEVEL, "total": counts.total, "errors": counts.errors},
        }
    )
