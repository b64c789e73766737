"""Subjects and patterns: validity, matching, and how two patterns relate.

A subject is a series of tokens joined by dots. In a pattern the token `*` stands for exactly one
token and `>`, as the last token, for one or more. Nothing here keeps state but `Matcher`, whose
cache is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_WHITESPACE: Final = b" \t\r\n\f"
_MATCHER_CACHE_MAX: Final = 16_384
"""Verdicts a `Matcher` remembers; beyond it the cache starts anew. About 2 MB at 60-byte subjects,
enough for the working set of a stream whose subjects carry an id."""


def is_valid(subject: bytes) -> bool:
    """True for a well-formed subject or pattern: no empty token, no whitespace, `>` only last."""
    if not subject or subject.translate(None, _WHITESPACE) != subject:
        return False
    tokens = subject.split(b".")
    return b"" not in tokens and b">" not in tokens[:-1]


def is_literal(subject: bytes) -> bool:
    """True if no token is a wildcard. Says nothing about validity."""
    if b"*" not in subject and b">" not in subject:
        return True
    tokens = subject.split(b".")
    return b"*" not in tokens and b">" not in tokens


def is_valid_literal(subject: bytes) -> bool:
    """True for a well-formed subject without wildcards: what a message may be stored under."""
    return is_valid(subject) and is_literal(subject)


def matches(pattern: bytes, subject: bytes) -> bool:
    """True if `pattern` matches the literal `subject`."""
    if pattern == subject or pattern == b">":
        return bool(subject)
    return match_tokens(pattern.split(b"."), subject.split(b"."))


def match_tokens(pattern: Sequence[bytes], subject: Sequence[bytes]) -> bool:
    """`matches` on subjects already split into tokens."""
    count = len(pattern)
    if pattern[-1] == b">":
        if len(subject) < count:
            return False
        count -= 1
    elif len(subject) != count:
        return False
    for position in range(count):
        token = pattern[position]
        if token != b"*" and token != subject[position]:
            return False
    return True


def collides(a: bytes, b: bytes) -> bool:
    """True if some literal subject matches both patterns."""
    if a == b:
        return True
    left, right = a.split(b"."), b.split(b".")
    for x, y in zip(left, right, strict=False):
        if x == b">" or y == b">":
            return True
        if x != y and x != b"*" and y != b"*":
            return False
    return len(left) == len(right)


def is_subset(a: bytes, b: bytes) -> bool:
    """True if every literal that matches pattern `a` also matches pattern `b`."""
    if a == b or b == b">":
        return True
    inner, outer = a.split(b"."), b.split(b".")
    for position, token in enumerate(outer):
        if position >= len(inner):
            return False
        if token == b">":
            return True
        mine = inner[position]
        if mine == b">":
            return False
        if token != b"*" and token != mine:
            return False
    return len(inner) == len(outer)


class Matcher:
    """A set of patterns asked over and over which subjects they match.

    No patterns at all means everything matches. Verdicts are cached, so a subject seen before
    costs one dict lookup.
    """

    __slots__ = ("_cache", "_literals", "_wild", "is_all", "literal", "patterns")

    def __init__(self, patterns: Sequence[bytes]) -> None:
        self.patterns: tuple[bytes, ...] = tuple(patterns)
        self.is_all = not self.patterns or b">" in self.patterns
        self._literals = frozenset(p for p in self.patterns if is_literal(p))
        self._wild = [p.split(b".") for p in self.patterns if not is_literal(p)]
        only = self.patterns[0] if len(self.patterns) == 1 else None
        self.literal: bytes | None = only if only in self._literals else None
        self._cache: dict[bytes, bool] = {}

    def matches(self, subject: bytes) -> bool:
        """True if any of the patterns matches the literal `subject`."""
        if self.is_all:
            return True
        if not self._wild:
            return subject in self._literals
        verdict = self._cache.get(subject)
        if verdict is None:
            if len(self._cache) >= _MATCHER_CACHE_MAX:
                self._cache.clear()
            verdict = self._cache[subject] = self._decide(subject)
        return verdict

    def _decide(self, subject: bytes) -> bool:
        if subject in self._literals:
            return True
        tokens = subject.split(b".")
        return any(match_tokens(pattern, tokens) for pattern in self._wild)

    def __repr__(self) -> str:
        return f"Matcher({list(self.patterns)!r})"
