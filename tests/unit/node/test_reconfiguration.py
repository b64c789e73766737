"""Groups on their way to their wanted members are looked at until they are there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streamd.node.cluster.reconfiguration import Reconfiguration
from tests.unit.node.contexts import context_of


def reconfiguration_of(**replicas: Any) -> Reconfiguration:
    """Return that of a node with these replicas: `u1` has uid 1."""
    found = {int(name[1:]): replica for name, replica in replicas.items()}
    meta = SimpleNamespace(streams_by_uid=dict.fromkeys(found, object()))
    groups: Any = SimpleNamespace(get=found.get, meta=meta)
    amnesia: Any = SimpleNamespace(opened_in_memory=list)
    unused: Any = None
    return Reconfiguration(context_of(), groups, unused, amnesia, unused, lambda uid: None)


def test_an_error_of_one_does_not_forget_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups behind the failed one stayed where they were until another node led them."""
    led, lost = SimpleNamespace(uid=1, is_ready=True), SimpleNamespace(uid=2, is_ready=False)
    other = SimpleNamespace(uid=3, is_ready=True)
    changes = reconfiguration_of(u1=led, u2=lost, u3=other)
    changes._moving = {1, 2, 3, 4}
    seen: list[int] = []

    def check_stream(replica: Any, asset: Any) -> None:
        seen.append(replica.uid)
        if len(seen) == 1:
            raise LookupError("of a group")

    monkeypatch.setattr(changes, "check_stream", check_stream)
    with pytest.raises(LookupError):
        changes.check_all()
    changes.check_all()
    assert seen == [1, 1, 3]
    assert changes._moving == {1, 3}
