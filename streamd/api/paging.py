"""Pages of long lists, as the API cuts them."""

from __future__ import annotations

from typing import TypeVar

Item = TypeVar("Item")


def page_offset(asked: int, total: int) -> int:
    """Return where a page really begins: within the list, or right behind it."""
    return min(max(asked, 0), total)


def page(items: list[Item], offset: int, size: int) -> list[Item]:
    """Return the page of `items` that begins at `offset`."""
    return items[offset : offset + size]
