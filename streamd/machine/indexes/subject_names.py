"""The names of a stream's subjects, as filters that begin with literal tokens ask for them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import Final

_UNSORTED_MAX: Final = 100_000  # names that came since somebody asked for some
_STALE_MAX: Final = 1000  # names that are gone and still in the sorted list


class SubjectNames:
    """Common prefix of the subject names, and the names with a prefix; worked out when first
    asked."""

    def __init__(self, subjects: Collection[bytes]) -> None:
        self.is_asked = False  # from then on `note` wants every new name
        self._subjects = subjects
        self._shared: bytes | None = None  # all names begin with it; None: never asked
        self._sorted: list[bytes] = []
        self._unsorted: list[bytes] | None = None  # what came since; None: never asked, or long ago

    def note(self, name: bytes) -> None:
        """A subject is there that was not, or not always."""
        if self._shared is not None and not name.startswith(self._shared):
            self._shared = _common(self._shared, name)
        if self._unsorted is None:
            return
        if len(self._unsorted) < _UNSORTED_MAX:
            self._unsorted.append(name)
        else:
            self._sorted, self._unsorted = [], None  # nobody seems to ask any more

    def all_begin_with(self, prefixes: bytes | tuple[bytes, ...]) -> bool:
        """True only if one of `prefixes` is what all names begin with."""
        names = self._subjects
        if self._shared is None:
            if not names:
                return False  # what comes later may well have something in common
            self.is_asked = True
            self._shared = _common(min(names), max(names))
        return self._shared.startswith(prefixes)

    def beginning_with(self, prefix: bytes) -> list[bytes]:
        """Return the names that begin with `prefix`, which ends with a dot; may include names whose
        messages are gone."""
        names = self.in_order()
        return names[bisect_left(names, prefix) : bisect_left(names, prefix[:-1] + b"/")]

    def in_order(self) -> list[bytes]:
        """Return all names, ascending; may include names whose messages are gone."""
        self.is_asked = True
        names, new = self._sorted, self._unsorted
        if new is None or len(names) + len(new) > 2 * len(self._subjects) + _STALE_MAX:
            names, self._unsorted = sorted(self._subjects), []
        elif new:
            names += new
            names.sort()  # two runs: hardly more than a merge
            names = list(dict.fromkeys(names))
            self._unsorted = []
        self._sorted = names
        return names


def _common(a: bytes, b: bytes) -> bytes:
    """Return the common prefix of both."""
    for at, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return a[:at]
    return min(a, b, key=len)
