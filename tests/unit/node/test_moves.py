"""Groups on their way to their wanted members are looked at until they are there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streamd.node.cluster.reconfiguration import Moves


def node_with(**replicas: Any) -> Any:
    """A node, as far as `Moves.look` sees it, with these replicas: `u1` has uid 1."""
    found = {int(name[1:]): replica for name, replica in replicas.items()}
    departures = SimpleNamespace(look=lambda: None)
    return SimpleNamespace(
        replicas=SimpleNamespace(get=found.get, departures=departures),
        meta=SimpleNamespace(streams_by_uid=dict.fromkeys(found, object())),
        meta_member=SimpleNamespace(group=None, monitor=None),
        is_meta_leader=False,
        amnesia=SimpleNamespace(opened_in_memory=list),
    )


def test_an_error_of_one_does_not_forget_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind it stayed where they were until somebody led them anew."""
    led, lost = SimpleNamespace(uid=1, is_ready=True), SimpleNamespace(uid=2, is_ready=False)
    other = SimpleNamespace(uid=3, is_ready=True)
    moves = Moves(node_with(u1=led, u2=lost, u3=other))
    moves._moving = {1, 2, 3, 4}
    seen: list[int] = []

    def look_at(replica: Any, asset: Any) -> None:
        seen.append(replica.uid)
        if len(seen) == 1:
            raise LookupError("of a group")

    monkeypatch.setattr(moves, "look_at", look_at)
    with pytest.raises(LookupError):
        moves.look()
    moves.look()
    assert seen == [1, 1, 3]
    assert moves._moving == {1, 3}
