"""Cache by subject, of which all entries whose subjects begin alike can be dropped.

A dict that also keeps its keys in order, made up for when it is asked: a subscription pays for
the entries that it changes, not for all subjects that others publish to.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TypeVar

from streamd.limits import NET_ROUTE_CACHE_MAX

Found = TypeVar("Found")

_INSORT_MAX = 64  # new keys at once; more are sorted in, all together


class SubjectCache(dict[bytes, Found]):
    """Bounded: the one that is too many has all others forgotten."""

    __slots__ = ("_added", "_ordered")

    def __init__(self) -> None:
        super().__init__()
        self._ordered: list[bytes] = []  # keys; of those that were popped, some are still here
        self._added: list[bytes] = []  # since they were put in order

    @property
    def is_full(self) -> bool:
        return len(self) >= NET_ROUTE_CACHE_MAX

    def remember(self, key: bytes, found: Found) -> None:
        """Keep `found` for a key that is not there yet."""
        if self.is_full:
            self.clear()
        self[key] = found
        self._added.append(key)
        if len(self._added) + len(self._ordered) > 2 * NET_ROUTE_CACHE_MAX:
            self._ordered, self._added = [], list(self)  # the rest was popped

    def clear(self) -> None:
        super().clear()
        self._ordered.clear()
        self._added.clear()

    def forget_under(self, prefix: bytes) -> None:
        """Forget all keys that begin with `prefix`, which ends with a dot."""
        ordered, added = self._ordered, self._added
        if len(added) > _INSORT_MAX:
            ordered += added
            ordered.sort()
        else:
            for key in added:
                insort(ordered, key)
        added.clear()
        first = bisect_left(ordered, prefix)
        last = bisect_left(ordered, prefix[:-1] + b"/", first)  # the byte that follows the dot
        for key in ordered[first:last]:
            self.pop(key, None)
        del ordered[first:last]
