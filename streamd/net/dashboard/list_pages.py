"""Pages of lists: filtered, sorted and cut by the server, in steps between which the loop goes on.

A browser asks for fifty of five thousand rows. What all rows are asked for is cheap (a sort key, a
text to filter by); a row itself is made only if it is on the page.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from streamd.limits import DASHBOARD_PAGE, DASHBOARD_PAGE_DEFAULT, DASHBOARD_SORT_ROWS
from streamd.net.monitoring.query import BadQuery, Query, flag, number
from streamd.net.monitoring.sliced_pages import Rows, Steps, looked_at
from streamd.types import Document

T = TypeVar("T")
SortKey = Callable[[T], str | int | float]


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Part of a list that is asked for."""

    offset: int = 0
    limit: int = DASHBOARD_PAGE_DEFAULT
    filter: str = ""  # lower case
    sort: str = ""  # "": as the list comes
    is_descending: bool = False


def read_list_query(query: Query, sorts: Collection[str]) -> ListQuery:
    """Read the parameters of a list that can be sorted by `sorts`. Raises BadQuery."""
    sort = query.get("sort", "")
    if sort and sort not in sorts:
        known = ", ".join(sorted(sorts))
        raise BadQuery(f"sort={sort[:64]!r} is not a field to sort by; these are: {known}")
    limit = number(query, "limit")
    return ListQuery(
        offset=max(0, number(query, "offset")),
        limit=min(limit, DASHBOARD_PAGE) if limit > 0 else DASHBOARD_PAGE_DEFAULT,
        filter=query.get("filter", "").lower(),
        sort=sort,
        is_descending=flag(query, "descending"),
    )


def select_page(
    rows: Sequence[T],
    wanted: ListQuery,
    keys: Mapping[str, SortKey[T]],
    text: Callable[[T], str],
) -> Steps[tuple[list[T], int]]:
    """Return the rows of a page, and how many there are in all that pass the filter. `keys` are by
    field; `text` of a row is what the filter is looked for in."""
    found = rows
    if wanted.filter:
        found = []
        for row in looked_at(rows):
            if row is None:
                yield
            elif wanted.filter in text(row).lower():
                found.append(row)
    end = wanted.offset + wanted.limit
    if not wanted.sort:
        if wanted.is_descending:
            found = found[::-1]
        return list(found[wanted.offset : end]), len(found)
    chunks = yield from _sorted_chunks(
        found, keys[wanted.sort], wanted=end, reverse=wanted.is_descending
    )
    merged = heapq.merge(*chunks, reverse=wanted.is_descending)
    page: list[T] = []
    for at, (_, place) in enumerate(islice(merged, end)):
        if at % DASHBOARD_SORT_ROWS == 0:
            yield
        if at >= wanted.offset:
            page.append(found[abs(place)])
    return page, len(found)


def _sorted_chunks(
    rows: Sequence[T], key: SortKey[T], *, wanted: int, reverse: bool
) -> Steps[list[list[tuple[str | int | float, int]]]]:
    """Return (sort key, place) of rows, sorted in chunks; equal ones are by place, also in reverse:
    the place is negative then. Of a chunk those are kept that can be among the first `wanted` of
    all rows: a bucket may have millions of keys."""
    sign = -1 if reverse else 1
    chunks: list[list[tuple[str | int | float, int]]] = []
    chunk: list[tuple[str | int | float, int]] = []
    for at, row in enumerate(rows):
        if at % 64 == 0:
            yield
        chunk.append((key(row), sign * at))
        if len(chunk) == DASHBOARD_SORT_ROWS:
            chunk.sort(reverse=reverse)
            chunks.append(chunk[:wanted])
            chunk = []
    chunk.sort(reverse=reverse)
    chunks.append(chunk)
    return chunks


def list_document(items: Iterator[Document | None], total: int, wanted: ListQuery) -> Document:
    """Return the document of a page; a None among `items` is a pause while it is encoded."""
    return {
        "items": Rows(items),
        "total": total,
        "offset": wanted.offset,
        "limit": wanted.limit,
    }
