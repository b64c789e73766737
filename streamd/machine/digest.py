"""The content digest: one 64-bit number that tells whether two replicas hold the same messages.

It is the sum, modulo 2^64, of `mix64(seq, crc)` over all live messages, so storing and deleting
cost O(1) and the order of deletes does not matter. The record's crc already covers seq, time,
subject, headers and payload; multiplying by the seq makes two swapped or doubled changes show.
The product form lets a run of consecutive seqs be summed by C code at about 50 ns each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import mul
from typing import Final

from streamd.types import Seq

MASK64: Final = (1 << 64) - 1
CRC_ADD: Final = 0x9E3779B97F4A7C15
SEQ_ADD: Final = 0xD1B54A32D192ED03


def mix64(seq: Seq, crc: int) -> int:
    """The share of one message in the digest."""
    return (crc + CRC_ADD) * (seq + SEQ_ADD) & MASK64


def mix_run(first_seq: Seq, crcs: Sequence[int]) -> int:
    """The sum of `mix64` over consecutive seqs from `first_seq`, modulo 2^64."""
    count = len(crcs)
    seq_sum = (2 * first_seq + count - 1) * count // 2
    # (crc + C) * (seq + S) summed, multiplied out so that only one product per message remains.
    total: int = (
        sum(map(mul, crcs, range(first_seq, first_seq + count)))
        + SEQ_ADD * sum(crcs)
        + CRC_ADD * seq_sum
        + count * CRC_ADD * SEQ_ADD
    )
    return total & MASK64


def mix_all(seqs: Sequence[Seq], crcs: Sequence[int]) -> int:
    """The sum of `mix64` over pairs of them, modulo 2^64."""
    total: int = (
        sum(map(mul, crcs, seqs))
        + SEQ_ADD * sum(crcs)
        + CRC_ADD * sum(seqs)
        + len(crcs) * CRC_ADD * SEQ_ADD
    )
    return total & MASK64


def chain64(values: Iterable[int]) -> int:
    """Hash to 64 bits a sequence of non-negative numbers; their order matters."""
    mixed = SEQ_ADD
    for value in values:
        mixed = ((mixed ^ value) * CRC_ADD) & MASK64
        mixed ^= mixed >> 29  # the product carries only upwards; bring the high bits down again
    return mixed
