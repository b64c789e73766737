"""Subjects and patterns: validity, matching, and how two patterns relate.

A subject is a series of tokens joined by dots. In a pattern the token `*` stands for exactly one
token and `>`, as the last token, for one or more. Nothing here keeps state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from streamd.subject_tree import SubjectTree

_REGEX_PATTERNS_MAX: Final = 64  # more are slow to compile, and tried one after another

_WHITESPACE: Final = b" \t\r\n\f"


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


def intersection(a: bytes, b: bytes) -> bytes | None:
    """Return the pattern of the literals that match both patterns; None: there are none."""
    if not collides(a, b):
        return None
    left, right = a.split(b"."), b.split(b".")
    both: list[bytes] = []
    for at, (x, y) in enumerate(zip(left, right, strict=False)):
        if x == b">":
            return b".".join(both + right[at:])
        if y == b">":
            return b".".join(both + left[at:])
        both.append(y if x == b"*" else x)
    return b".".join(both)


class Matcher:
    """A set of patterns asked over and over which subjects they match.

    No patterns at all means everything matches. Patterns with wildcards become one regular
    expression, so that asking about many subjects stays within C, or a tree if they are many.
    """

    __slots__ = ("is_all", "literal", "patterns", "prefix", "test", "whole")

    def __init__(self, patterns: Sequence[bytes]) -> None:
        self.patterns: tuple[bytes, ...] = tuple(patterns)
        self.is_all = not self.patterns or b">" in self.patterns
        literals = frozenset(p for p in self.patterns if is_literal(p))
        wild = [p.split(b".") for p in self.patterns if p not in literals]
        only = self.patterns[0] if len(self.patterns) == 1 else None
        self.literal: bytes | None = only if only in literals else None
        split = [pattern.split(b".") for pattern in self.patterns]
        self.prefix = b"" if self.is_all else _common_prefix(split)
        """Tokens with which all that matches begins, and the dot behind them; may be empty."""
        self.whole: tuple[bytes, ...] = tuple(
            [p[:-1] for p in self.patterns if p.endswith(b".>") and is_literal(p[:-2])]
        )
        """All subjects that begin with one of these match."""
        self.test: Callable[[bytes], object] = _test_of(literals, wild, is_all=self.is_all)
        """`matches` as one call; what it returns is true or not. For map, filter and the like."""

    @classmethod
    def of_subject(cls, subject: bytes) -> Matcher:
        """Matches a stored subject and no other: publishers may have used one that reads like a
        pattern."""
        made = cls((subject,))
        if made.literal is None:
            made.is_all, made.literal, made.prefix = False, subject, b""
            made.test = (subject,).__contains__
        return made

    def __reduce__(self) -> tuple[type[Matcher], tuple[tuple[bytes, ...]]]:
        return Matcher, (self.patterns,)

    def matches(self, subject: bytes) -> bool:
        """True if any of the patterns matches the literal `subject`."""
        return bool(self.test(subject))

    def count(self, subjects: Iterable[bytes]) -> int:
        """Count the `subjects` that match."""
        return len(list(filter(self.test, subjects)))

    def __repr__(self) -> str:
        return f"Matcher({list(self.patterns)!r})"


def _test_of(
    literals: frozenset[bytes], wild: list[list[bytes]], *, is_all: bool
) -> Callable[[bytes], object]:
    if is_all:
        return _always
    if not wild:
        return literals.__contains__
    fits = _regex_test(wild) if len(wild) <= _REGEX_PATTERNS_MAX else _tree_test(wild)
    if not literals:
        return fits
    return lambda subject: subject in literals or fits(subject)


def _regex_test(wild: list[list[bytes]]) -> Callable[[bytes], object]:
    return re.compile(b"|".join(map(_regex_of, wild)), re.DOTALL).fullmatch


def _tree_test(wild: list[list[bytes]]) -> Callable[[bytes], object]:
    tree: SubjectTree[bool] = SubjectTree()
    for tokens in wild:
        tree.add(b".".join(tokens), True)

    def fits(subject: bytes) -> object:
        if is_literal(subject):
            return tree.overlapping(subject)
        split = subject.split(b".")  # stored as it is, though it reads like a pattern
        return any(match_tokens(tokens, split) for tokens in wild)

    return fits


def _regex_of(pattern: list[bytes]) -> bytes:
    parts = {b"*": rb"[^.]+", b">": rb".+"}
    return rb"\.".join(parts.get(token) or re.escape(token) for token in pattern)


def _common_prefix(patterns: list[list[bytes]]) -> bytes:
    """The literal tokens with which all patterns begin; the last token of none is among them."""
    shared: list[bytes] = []
    for tokens in zip(*(pattern[:-1] for pattern in patterns), strict=False):
        if len(set(tokens)) > 1 or tokens[0] == b"*":
            break
        shared.append(tokens[0] + b".")
    return b"".join(shared)


def _always(subject: bytes) -> bool:
    return True
