"""`InterestIndex`: finds, among very many consumers, those whose filter matches a subject.

Updated when a consumer comes, goes or changes: with ten thousand consumers, each for a subject of
its own, a message costs what one consumer costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from streamd.subject_tree import SubjectTree
from streamd.subjects import Matcher, is_literal

Member = TypeVar("Member")


class InterestIndex(Generic[Member]):
    """Members by their filters; a member without a filter wants every message."""

    def __init__(self, members: Iterable[tuple[Member, Matcher | None]]) -> None:
        self.of_all: dict[Member, None] = {}
        self._matchers: dict[Member, Matcher] = {}
        self._filtered: SubjectTree[Member] = SubjectTree()
        for member, matcher in members:
            self.put(member, matcher)

    def put(self, member: Member, matcher: Matcher | None) -> None:
        """Add `member`, or replace its filter; None: no filter."""
        self.drop(member)
        if matcher is None:
            self.of_all[member] = None
            return
        self._matchers[member] = matcher
        for pattern in matcher.patterns:
            self._filtered.add(pattern, member)

    def drop(self, member: Member) -> None:
        """Remove `member`, if present."""
        self.of_all.pop(member, None)
        matcher = self._matchers.pop(member, None)
        if matcher is not None:
            for pattern in matcher.patterns:
                self._filtered.remove(pattern, member)

    def filtered(self, subjects: Iterable[bytes]) -> Iterable[Member]:
        """Return the members with a filter that matches one of `subjects`, each once. For a subject
        with wildcards: the members whose filter overlaps it."""
        overlapping = self._filtered.overlapping
        return dict.fromkeys(
            member for each in dict.fromkeys(subjects) for member in overlapping(each)
        )

    def takers(self, subject: bytes) -> list[Member]:
        """Return the members that want a message on `subject`, each once."""
        found = self.filtered((subject,))
        if not is_literal(subject):
            found = [each for each in found if self._matchers[each].matches(subject)]
        return [*self.of_all, *found]
