"""Rows of consumers: how late one is, also where that is hard to say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streamd.errors import CorruptionError
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.consumers.consumer_lag import lag_of
from streamd.net.dashboard.consumer_documents import ConsumerDocuments
from tests.unit.machine.box import Box


def lag_ns(box: Box, consumer: Consumer) -> int:
    sources: Any = SimpleNamespace(node=SimpleNamespace(is_clustered=False, server_name="n1"))
    clock: Any = SimpleNamespace(now_ns=lambda: box.now)
    replica: Any = SimpleNamespace(machine=box.machine, account="A", name="S", uid=1)
    row = ConsumerDocuments(sources, clock).item(replica, consumer)
    found: int = row["lag_ns"]
    return found


def stream() -> Box:
    box = Box()
    for subject in (b"a.1", b"a.2", b"a.3", b"a.1"):
        box.put(subject, seconds=60)
    return box


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"filter_subject": "a.3"},
        {"deliver_policy": "last_per_subject", "filter_subject": "a.>"},
    ],
    ids=["all", "filtered", "last of each subject"],
)
def test_a_consumer_is_as_late_as_its_first_message_that_waits(config: dict[str, Any]) -> None:
    """As the API's consumer info says, which asks the disk where this looks near by only."""
    box = stream()
    consumer = box.consumer("C", **config)
    assert lag_ns(box, consumer) == box.now - lag_of(consumer).undelivered_ts > 50 * 10**9


def test_a_damaged_block_hides_no_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is looked at just then."""
    box = stream()
    consumer = box.consumer("C", filter_subject="a.3")

    def unreadable(*_: object) -> None:
        raise CorruptionError("1.blk: the footer is no footer")

    monkeypatch.setattr(type(box.machine.index.lookup), "select", unreadable)
    assert lag_ns(box, consumer) == 0
