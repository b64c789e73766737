"""A world in which memory is short: blocks are behind the log nearly all the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from streamd import limits
from streamd.raft import log
from streamd.store.blocks import block_writer, tail_cache
from streamd.store.blocks.tail_cache import CacheBudget
from streamd.store.wal.wal_writer import Writer


class Holds:
    """Count of the times that the log was held because blocks were too far behind."""

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def short_memory() -> Iterator[Holds]:
    """Run with bounds of a few KiB where a server has some MiB (docs/adr/0028), so that the log is
    held again and again, and each cache has to give up what can be read from elsewhere."""
    holds = Holds()
    hold = Writer.hold

    def counted(writer: Writer) -> None:
        holds.count += 1
        hold(writer)

    defaults = CacheBudget.__init__.__kwdefaults__
    assert defaults is not None
    with ExitStack() as stack:
        for owner, name, value in (
            (block_writer, "FLUSH_BYTES", 1024),
            (CacheBudget.__init__, "__defaults__", (16 * 1024,)),
            (tail_cache, "CHUNK_SHARE_BYTES", 8 * 1024),
            (limits, "RAFT_WINDOWS_BYTES", 8 * 1024),
            (log, "RAFT_WINDOW_STEP_BYTES", 512),
            (Writer, "hold", counted),
        ):
            stack.enter_context(patch.object(owner, name, value))
        small = {"gathered_bytes_max": 3000, "queue_bytes_max": 4096}
        stack.enter_context(patch.dict(defaults, small))
        yield holds
