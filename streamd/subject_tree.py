"""`SubjectTree`: many patterns with values, asked which of them overlap with one more.

The cost of a question follows the number of tokens in it and of answers, not the number of
patterns; only wildcards in the question itself fan out.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Value = TypeVar("Value")


class _Node(Generic[Value]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node[Value]] = {}
        self.values: list[Value] = []


class SubjectTree(Generic[Value]):
    """Patterns by token. A (pattern, value) pair may be added more than once."""

    def __init__(self) -> None:
        self._root: _Node[Value] = _Node()

    def add(self, pattern: bytes, value: Value) -> None:
        """Remember `value` under a valid pattern."""
        node = self._root
        for token in pattern.split(b"."):
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = _Node()
            node = child
        node.values.append(value)

    def remove(self, pattern: bytes, value: Value) -> None:
        """Forget one such pair; it must be there."""
        path = [self._root]
        tokens = pattern.split(b".")
        for token in tokens:
            path.append(path[-1].children[token])
        path[-1].values.remove(value)
        for depth in range(len(tokens), 0, -1):
            if path[depth].values or path[depth].children:
                return
            del path[depth - 1].children[tokens[depth - 1]]

    def overlapping(self, pattern: bytes) -> list[Value]:
        """The values of all patterns that some literal subject shares with `pattern`, repeated as
        often as they were added. For a literal subject: of all patterns that match it."""
        found: list[Value] = []
        tokens = pattern.split(b".")
        at = [self._root]
        for token in tokens:
            following: list[_Node[Value]] = []
            for node in at:
                children = node.children
                rest = children.get(b">")
                if token == b">":
                    for child in children.values():
                        _collect(child, found)
                    continue
                if rest is not None:
                    found.extend(rest.values)
                if token == b"*":
                    following.extend(child for key, child in children.items() if key != b">")
                    continue
                for key in (token, b"*"):
                    child_or_none = children.get(key)
                    if child_or_none is not None:
                        following.append(child_or_none)
            at = following
        for node in at:
            found.extend(node.values)
        return found

    def covering(self, pattern: bytes) -> list[Value]:
        """The values of all patterns that match whatever `pattern` matches, itself included."""
        found: list[Value] = []
        at = [self._root]
        for token in pattern.split(b"."):
            following: list[_Node[Value]] = []
            for node in at:
                children = node.children
                rest = children.get(b">")
                if rest is not None:
                    _collect(rest, found)
                for key in (b"*",) if token == b"*" else (token, b"*"):
                    child = children.get(key)
                    if child is not None and token != b">":
                        following.append(child)
            at = following
        for node in at:
            found.extend(node.values)
        return found


def _collect(node: _Node[Value], found: list[Value]) -> None:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        found.extend(node.values)
        waiting.extend(node.children.values())
