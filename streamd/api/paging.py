"""Pages of long lists, as the API cuts them."""

from __future__ import annotations

from typing import TypeVar

from streamd.types import Document

Item = TypeVar("Item")


def paged(items: list[Item], wanted: Document, size: int) -> tuple[list[Item], Document]:
    """Return the page of `items` that begins at the request's `offset`, or right behind the last,
    and the fields of the answer that say which page it is."""
    offset = min(max(wanted.get("offset", 0), 0), len(items))
    return items[offset : offset + size], {"total": len(items), "offset": offset, "limit": size}
