"""What becomes of a group's log when a peer's snapshot took the place of its state."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from streamd.node.catchup.fetch import InstalledSnapshot
from streamd.node.catchup.service import CatchupService
from streamd.raft.membership import simple
from streamd.types import Entry, HardState, Index, LogState, Term, Uid
from tests.unit.node.contexts import context_of

UID = 7


class Log:
    """A node's write-ahead log that knows one group; entry i has term 2 and chain 100 + i."""

    def __init__(self, state: LogState | None) -> None:
        self.state = state
        self.told: list[tuple[Any, ...]] = []

    def group(self, uid: Uid) -> LogState | None:
        return self.state

    def read(self, uid: Uid, lo: Index, hi: Index, max_bytes: int) -> list[Entry]:
        return [Entry(2, lo, b"", chain=100 + lo)]

    def release(self, uid: Uid, index: Index, term: Term, chain: int) -> None:
        self.told.append(("release", index, term, chain))

    def reset_group(self, uid: Uid, index: Index, term: Term, chain: int) -> None:
        self.told.append(("reset", index, term, chain))

    def append(self, writes: list[Any], done: Callable[[], None]) -> None:
        assert not writes
        done()


@pytest.mark.parametrize(
    ("first", "last", "term", "chain", "what"),
    [
        (1, 9, 2, 105, "release"),  # what was acked after it stays
        (5, 5, 2, 105, "release"),
        (6, 9, 2, 105, "release"),  # the log begins right after it
        (1, 9, 3, 105, "reset"),  # another leader's entry, so all after it is void
        (1, 9, 2, 666, "reset"),  # the same term and other content: the log is rotten
        (6, 9, 2, 666, "reset"),
        (1, 4, 2, 105, "reset"),  # the log ends before
        (0, 0, 2, 105, "reset"),  # it knows nothing of the group
    ],
)
def test_a_log_goes_on_from_a_fetched_snapshot_only_if_it_leads_there(
    first: Index, last: Index, term: Term, chain: int, what: str
) -> None:
    """Then, and not before, the group is opened again (ADR 0014). The snapshot is at index 5."""
    log = Log(LogState(HardState(3), first, last, 2, 99 + first) if first else None)
    opened: list[list[tuple[Any, ...]]] = []
    control: Any = SimpleNamespace(open_again=lambda uid: opened.append(log.told[:]))
    unused: Any = None
    context = context_of(wal=log)
    service = CatchupService(context, unused, None, unused, unused, unused, control, 0)
    service.on_done(UID, InstalledSnapshot(5, term, chain, simple("abc"), 0))
    assert opened == [[(what, 5, term, chain)]]
