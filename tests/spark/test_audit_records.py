"""Damaged blocks: valid records are found again, and nothing cut is read as if it were whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from spark_jobs.audit.block_records import find_messages
from spark_jobs.replica.decode import Selection, batches_of
from streamd.errors import CorruptionError
from streamd.offline.stream_view import find_stores, open_stream
from streamd.store.blocks import record_format as fmt
from streamd.store.blocks.block import HEADER_BYTES
from tests.spark import audit_damage as damage
from tests.spark.audit_stores import Replica, small_blocks


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


def test_a_block_cut_between_two_records_is_not_read_as_if_it_were_whole(tmp_path: Path) -> None:
    """What only the log has is not put in the place of what the file lacks: a read up to the
    block's end would miss messages and say nothing."""
    with small_blocks():
        replica = Replica(tmp_path)
        replica.fill(200)
        replica.snapshot()
        replica.fill(20, first=201)
        replica.close()
        path = replica.block(5)
        with path.open("r+b") as file:
            file.truncate(damage.record_of(path, 198).offset)
        with open_stream(find_stores(tmp_path)[0], "S") as view:
            last = view.blocks[-1]
    assert last.tail and last.last_seq == 220
    with pytest.raises(CorruptionError, match="a record is damaged, no whole record of seqs 198"):
        list(batches_of(last.read(), last, stream="S", selection=Selection(end_seq=220)))
