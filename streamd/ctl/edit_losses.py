"""Losses of an edit: messages that a stream would remove under another configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamd.ctl.quantities import age_ns, count_text, size_text, span_text


def _tightened(before: Mapping[str, Any], after: Mapping[str, Any], field: str) -> int:
    """Return the new limit if it is one and lower than the old one, else 0."""
    old, new = before.get(field) or 0, after.get(field) or 0
    return new if new > 0 and (old <= 0 or new < old) else 0


def losses(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    state: Mapping[str, Any],
    of_subjects: Mapping[str, int] | None,
) -> list[str]:
    """Return a line for each change by which messages may be removed, or that can't be undone.

    `of_subjects`: messages of each subject; None where they were not counted.
    """
    lines = []
    messages, size = state.get("messages", 0), state.get("bytes", 0)
    if before.get("retention") != after.get("retention"):
        lines.append(
            f"retention {before.get('retention')} -> {after.get('retention')}: messages that the "
            f"new policy does not keep are removed, of {count_text(messages)}"
        )
    limit = _tightened(before, after, "max_msgs")
    if limit and messages > limit:
        lines.append(f"max_msgs {limit}: {count_text(messages - limit)} messages are removed")
    limit = _tightened(before, after, "max_bytes")
    if limit and size > limit:
        lines.append(f"max_bytes {limit}: {size_text(size - limit)} of messages are removed")
    limit = _tightened(before, after, "max_age")
    oldest = age_ns(state.get("first_ts")) if messages else None
    if limit and oldest is not None and oldest > limit:
        lines.append(
            f"max_age {span_text(limit)}: older messages are removed; the oldest is "
            f"{span_text(oldest)} old"
        )
    limit = _tightened(before, after, "max_msgs_per_subject")
    if limit and messages:
        if of_subjects is None:
            lines.append(f"max_msgs_per_subject {limit}: older messages of subjects are removed")
        elif gone := sum(max(0, count - limit) for count in of_subjects.values()):
            lines.append(f"max_msgs_per_subject {limit}: {count_text(gone)} messages are removed")
    if after.get("sealed") and not before.get("sealed"):
        lines.append("sealed: nothing can be stored or removed any more, and no edit undoes it")
    return lines
