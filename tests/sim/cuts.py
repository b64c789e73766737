"""A stream of one moment with its consumers, as a line of text: equal ones have equal lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamd.types import Seq

ConsumerCut = tuple[str, tuple[int, Seq], tuple[int, Seq], Sequence[tuple[Seq, int]]]
"""Name, delivered and floor, each as consumer seq and stream seq, and what is pending."""


def cut_of(seqs: list[Seq], last_seq: Seq, consumers: list[ConsumerCut]) -> str:
    """Return what tells a stream of one moment, with its consumers, from that of another."""
    return f"{_ranges(seqs)} of {last_seq}, {consumers}"


def cut_of_machine(machine: Any) -> str:
    """Return the same of the machine as it is now."""
    index = machine.index
    consumers: list[ConsumerCut] = [
        (
            name, (each.delivered_cseq, each.delivered_sseq), (each.floor_cseq, each.floor_sseq),
            sorted((seq, cseq) for seq, (cseq, _) in each.pending.items()),
        )
        for name, each in sorted(machine.consumers.items())
    ]  # fmt: skip
    seqs = list(index.live.seqs(index.first_seq, index.last_seq))
    return cut_of(seqs, index.last_seq, consumers)


def _ranges(seqs: list[Seq]) -> str:
    found: list[list[Seq]] = []
    for seq in seqs:
        if found and seq == found[-1][1] + 1:
            found[-1][1] = seq
        else:
            found.append([seq, seq])
    return " ".join(f"{first}-{last}" for first, last in found)
