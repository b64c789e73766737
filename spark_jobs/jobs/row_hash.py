"""A 64-bit hash of each row, and digests of many rows, computed by Spark itself (no Python rows).

A digest is the sum of the hashes modulo 2^64: it does not depend on order or partitioning, and
digests of disjoint parts add up. It finds accidents, not forgeries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

CONTENT: Final = ("subject", "ts_ns", "headers", "payload")
MASK64: Final = (1 << 64) - 1
_LOW: Final = 0xFFFFFFFF


def row_hash(columns: Sequence[str], *, without_headers: Sequence[str] = ()) -> Column:
    """The hash of the named columns of a row (bigint). Headers count without regard to order."""
    parts: list[Column] = []
    for name in columns:
        if name == "headers":
            parts.append(header_text(without_headers))
        else:
            parts.append(F.col(name))
        if name in ("subject", "payload", "headers"):
            # Lengths keep ("ab", "c") and ("a", "bc") apart.
            parts.append(F.length(parts[-1]))
    return F.xxhash64(*parts)


def header_text(without: Sequence[str] = ()) -> Column:
    """Headers as JSON text, sorted by name; "" for none. `without`: names left out, any case."""
    entries = F.map_entries("headers")
    if without:
        names = [name.lower() for name in without]
        entries = F.filter(entries, lambda entry: ~F.lower(entry["key"]).isin(names))
    some = F.to_json(F.array_sort(entries))
    return F.when(F.coalesce(F.size(entries), F.lit(0)) > 0, some).otherwise(F.lit(""))


def digest_parts(value: Column, prefix: str = "digest") -> list[Column]:
    """Two exact sums (bigint) that make a digest, for up to 2^31 rows: see `digest_of`."""
    return [
        F.coalesce(F.sum(value.bitwiseAND(F.lit(_LOW))), F.lit(0)).alias(f"{prefix}_low"),
        F.coalesce(F.sum(F.shiftrightunsigned(value, 32)), F.lit(0)).alias(f"{prefix}_high"),
    ]


def digest_of(low: int, high: int) -> str:
    """16 hex digits from the two sums."""
    return f"{((high << 32) + low) & MASK64:016x}"
