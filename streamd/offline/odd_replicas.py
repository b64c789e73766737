"""Replicas that hold something else than most of them, by sequence; free of storage code."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple


class Odd(NamedTuple):
    """Replicas, and the sequences at which just these hold something else than most."""

    replicas: list[str]
    seqs: list[int]


def odd_ones(content: Mapping[str, Hashable]) -> list[str]:
    """Return the replicas that hold something else than most; all where no majority agrees."""
    if not content:
        return []
    held = list(content.values())
    most = max(held, key=held.count)
    if held.count(most) * 2 <= len(held):
        return sorted(content)
    return sorted(name for name, each in content.items() if each != most)


def gathered(by_seq: Mapping[int, Sequence[str]]) -> list[Odd]:
    """Return the odd replicas of each sequence, those that are the same together."""
    found: dict[tuple[str, ...], list[int]] = {}
    for seq in sorted(by_seq):
        found.setdefault(tuple(by_seq[seq]), []).append(seq)
    return [Odd(list(names), seqs) for names, seqs in found.items()]
