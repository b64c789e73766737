"""Who of very many wants a message: consumers by their filters.

Made from those there are, and made anew when one comes, goes or changes: with a thousand consumers,
each for a subject of its own, a message should cost what one of them costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from streamd.subject_tree import SubjectTree
from streamd.subjects import Matcher

Member = TypeVar("Member")


class Audience(Generic[Member]):
    """Of (member, what it wants: None for everything)."""

    def __init__(self, members: Iterable[tuple[Member, Matcher | None]]) -> None:
        self.of_all: list[Member] = []
        self._filtered: SubjectTree[Member] = SubjectTree()
        for member, matcher in members:
            if matcher is None:
                self.of_all.append(member)
            else:
                for pattern in matcher.patterns:
                    self._filtered.add(pattern, member)

    def filtered(self, subjects: Iterable[bytes]) -> Iterable[Member]:
        """Those with a filter that matches one of `subjects`, each once."""
        overlapping = self._filtered.overlapping
        return dict.fromkeys(
            member for each in dict.fromkeys(subjects) for member in overlapping(each)
        )
