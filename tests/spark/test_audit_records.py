"""Where the valid records of a damaged block are found again."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from spark_jobs.audit_block_records import find_messages
from streamd.store import format as fmt
from streamd.store.block import HEADER_BYTES


def block(count: int, *, size: int) -> tuple[bytes, list[int]]:
    """A block without a footer, and where its messages are."""
    msgs = [(b"a.b", b"", b"%d" % n + bytes(size)) for n in range(count)]
    pieces, lengths, _ = fmt.encode_batch(1, 7, msgs)
    starts = (HEADER_BYTES + np.cumsum([0, *lengths[:-1]])).tolist()
    return fmt.encode_block_header(2, 1) + b"".join(pieces), starts


@pytest.mark.parametrize("size", [20, 195, 229])  # 229: records of 269 bytes
def test_messages_behind_a_long_run_of_zeros_are_found(size: int) -> None:
    """Of sectors that were never written, more than a search for the next sequences reaches."""
    blob, starts = block(12_000, size=size)
    damaged = bytearray(blob)
    low, high = starts[100] + 5, starts[11_500]
    damaged[low:high] = bytes(high - low)
    offsets, bad = find_messages(bytes(damaged), end=len(blob), first_seq=1, footer=None)
    assert offsets.tolist() == starts[:100] + starts[11_500:]
    assert [place.offset for place in bad] == [starts[100]]
    assert bad[0].end == starts[11_500]
