"""`INFO`: what the account uses, what it may use, and the level of the API."""

from __future__ import annotations

from streamd import limits
from streamd.api import account_limits, cluster_endpoints
from streamd.api.request import Request


def info(request: Request) -> None:
    """Answer `INFO`."""
    context = request.context
    cluster_endpoints.account_usage(context, lambda usage: request.guard(_answer, request, usage))


def _answer(request: Request, usage: dict[str, int]) -> None:
    context = request.context
    counts = context.counts
    request.answer(
        ({"domain": context.domain} if context.domain else {})
        | account_limits.shown(context, usage)
        | {"api": {"level": limits.API_LEVEL, "total": counts.total, "errors": counts.errors}}
    )
