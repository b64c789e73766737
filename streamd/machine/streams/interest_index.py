"""Who of very many wants a message: consumers by their filters.

Kept up when one comes, goes or changes: with ten thousand consumers, each for a subject of its own,
a message should cost what one of them costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from streamd.subject_tree import SubjectTree
from streamd.subjects import Matcher, is_literal

Member = TypeVar("Member")


class Audience(Generic[Member]):
    """Of (member, what it wants: None for everything)."""

    def __init__(self, members: Iterable[tuple[Member, Matcher | None]]) -> None:
        self.of_all: dict[Member, None] = {}
        self._matchers: dict[Member, Matcher] = {}
        self._filtered: SubjectTree[Member] = SubjectTree()
        for member, matcher in members:
            self.put(member, matcher)

    def put(self, member: Member, matcher: Matcher | None) -> None:
        """`member` is there, and wants this from now on."""
        self.drop(member)
        if matcher is None:
            self.of_all[member] = None
            return
        self._matchers[member] = matcher
        for pattern in matcher.patterns:
            self._filtered.add(pattern, member)

    def drop(self, member: Member) -> None:
        """`member` is gone, if it was there."""
        self.of_all.pop(member, None)
        matcher = self._matchers.pop(member, None)
        if matcher is not None:
            for pattern in matcher.patterns:
                self._filtered.remove(pattern, member)

    def filtered(self, subjects: Iterable[bytes]) -> Iterable[Member]:
        """Those with a filter that matches one of `subjects`, each once. Of a subject that reads
        like a pattern: that may."""
        overlapping = self._filtered.overlapping
        return dict.fromkeys(
            member for each in dict.fromkeys(subjects) for member in overlapping(each)
        )

    def takers(self, subject: bytes) -> list[Member]:
        """All who want a message on `subject`, each once."""
        found = self.filtered((subject,))
        if not is_literal(subject):
            found = [each for each in found if self._matchers[each].matches(subject)]
        return [*self.of_all, *found]
