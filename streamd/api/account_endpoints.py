"""`INFO`: what the account uses, what it may use, and the level of the API."""

from __future__ import annotations

from streamd import limits
from streamd.api import cluster_endpoints
from streamd.api.request import Request
from streamd.api.stream_endpoints import reserved_bytes
from streamd.types import Document


def info(request: Request) -> None:
    """Answer `INFO`."""
    context = request.context
    if context.is_clustered:
        cluster_endpoints.account_usage(
            context, lambda usage: request.guard(_answer, request, usage)
        )
        return
    memory, storage = context.node.used_bytes(context.account)
    consumers = sum(len(handle.machine.consumers) for handle in context.streams.streams())
    usage = {"memory": memory, "storage": storage, "consumers": consumers}
    _answer(request, usage)


def _answer(request: Request, usage: Document) -> None:
    context = request.context
    counts = context.counts
    if context.is_clustered:
        reserved_memory = cluster_endpoints.reserved_bytes(context, "memory")
        reserved_storage = cluster_endpoints.reserved_bytes(context, "file")
    else:
        reserved_memory = reserved_bytes(context, "memory")
        reserved_storage = reserved_bytes(context, "file")
    # Limits belong to accounts; the one account there is has none of its own.
    account_limits: Document = {
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
        ({"domain": context.domain} if context.domain else {})
        | {
            "memory": usage["memory"],
            "storage": usage["storage"],
            "reserved_memory": reserved_memory,
            "reserved_storage": reserved_storage,
            "streams": len(context.streams.streams()),
            "consumers": usage["consumers"],
            "limits": account_limits,
            "api": {"level": limits.API_LEVEL, "total": counts.total, "errors": counts.errors},
        }
    )
