"""Rows of consumers: how late one is, also where that is hard to say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streamd.api.times import parse_ns
from streamd.errors import CorruptionError
from streamd.machine import commands
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.consumers.consumer_lag import lag_of
from streamd.net.dashboard import consumer_documents
from streamd.net.dashboard.consumer_documents import ConsumerDocuments, ConsumerRow
from tests.unit.machine.box import Box


def documents_of(box: Box) -> tuple[ConsumerDocuments, Any]:
    """Return the builder of rows, and the replica that they are of."""
    sources: Any = SimpleNamespace(node=SimpleNamespace(is_clustered=False, server_name="n1"))
    clock: Any = SimpleNamespace(now_ns=lambda: box.now)
    replica: Any = SimpleNamespace(machine=box.machine, account="A", name="S", uid=1)
    return ConsumerDocuments(sources, clock), replica


def lag_ns(box: Box, consumer: Consumer) -> int:
    documents, replica = documents_of(box)
    found: int = documents.item(replica, consumer)["lag_ns"]
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


def test_consumers_are_sorted_by_what_their_rows_show() -> None:
    """Of a filter with wildcards the lag may be less than what it is sorted by: the search for the
    first message that passes it is left out."""
    box = stream()
    done, late, later = (box.consumer(name, filter_subject=f"a.{name}") for name in "931")
    all_of_them, some = box.consumer("4"), box.consumer("5", filter_subject="*.3")
    box.do(commands.DELIVERED, all_of_them.uid, [(1, 2, 1, False)], 0, seconds=9)
    box.do(commands.PAUSE_CONSUMER, late.name, box.now + 10**10)
    assert all_of_them.pending and late.paused_until_ns > box.now
    documents, replica = documents_of(box)
    consumers = [done, late, later, all_of_them, some]
    for field in consumer_documents.SORTS:
        for consumer in consumers if field != "lag_ns" else consumers[:-1]:
            shown = documents.item(replica, consumer)[field]
            key = documents.sort_key(field, ConsumerRow(replica, consumer))
            if field == "last_delivery":
                shown = parse_ns(shown) if shown else 0
            assert key == shown, (field, consumer.name)
    lags = [documents.sort_key("lag_ns", ConsumerRow(replica, each)) for each in consumers]
    assert lags[0] == 0 < lags[1] < lags[2] == lags[4]
    told = documents.item(replica, later)
    assert documents.sort_key("lag_ns", told) == told["lag_ns"] == lags[2]


def test_a_damaged_block_hides_no_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is looked at just then."""
    box = stream()
    consumer = box.consumer("C", filter_subject="a.3")

    def unreadable(*_: object) -> None:
        raise CorruptionError("1.blk: the footer is no footer")

    monkeypatch.setattr(type(box.machine.index.lookup), "select", unreadable)
    assert lag_ns(box, consumer) == 0
