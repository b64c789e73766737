"""Members made from what is known of their groups."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from streamd.node.rafts import GroupStart, Rafts
from streamd.types import Index


def rafts() -> Rafts:
    """Those of node "a" of a cluster. Groups in memory need no log."""
    disk = SimpleNamespace(random_bytes=lambda count: bytes(count))
    clock = SimpleNamespace(monotonic_ms=lambda: 0)
    node = SimpleNamespace(
        server_name="a",
        is_clustered=True,
        peers=None,
        env=SimpleNamespace(disk=disk, clock=clock),
    )
    return Rafts(node)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [0, 9])
def test_in_memory_nothing_is_missing_where_a_member_begins_anew(index: Index) -> None:
    """Its log was void. It waited for a snapshot, was told the first entries, acked them, and they
    counted; then the snapshot came and took the last of them away: simulator seed 31157."""
    start = GroupStart(7, index, 1 if index else 0, 5 if index else 0, ("a", "b"))
    core = rafts().make(start._replace(is_log_void=True, is_memory=True))
    assert core.is_uncertain
    assert not core.is_incomplete
    assert core.applied == index
