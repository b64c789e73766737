"""Pages of long lists, as the API cuts them."""

from __future__ import annotations

from typing import Any, TypeVar

Item = TypeVar("Item")


def paged(
    items: list[Item], wanted: dict[str, Any], size: int
) -> tuple[list[Item], dict[str, Any]]:
    """Return the page of `items` that begins at the request's `offset`, or right behind the last,
    and the fields of the answer that say which page it is."""
    offset = min(max(wanted.get("offset", 0), 0), len(items))
    return items[offset : offset + size], {"total": len(items), "offset": offset, "limit": size}
