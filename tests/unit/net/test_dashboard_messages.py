"""Pages of messages against a plain search, over gaps, blocks and filters; and bounded steps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from streamd import limits
from streamd.machine import commands
from streamd.net.dashboard import message_pages
from streamd.net.dashboard.bucket_documents import key_page
from streamd.net.dashboard.message_pages import (
    Found,
    MessageQuery,
    find_seqs,
    fitting,
    headers_of,
    message_item,
    read_message_query,
)
from streamd.net.monitoring.query import BadQuery
from streamd.net.monitoring.sliced_pages import Slicer, finish
from streamd.subjects import Matcher
from streamd.types import StoredMsg
from tests.unit.machine.box import Box

SUBJECTS = (b"a.one", b"a.two", b"a.one.x")


def stream() -> Box:
    """300 messages in several blocks; half of them are deleted, in runs and one by one."""
    rng = random.Random(7)
    box = Box(block_bytes=2048)
    for number in range(300):
        box.put(SUBJECTS[rng.randrange(2)] if number != 140 else SUBJECTS[2], b"x" * 20)
    for seq in [*range(1, 20), *range(100, 130), *rng.sample(range(150, 290), 70)]:
        box.do(commands.DELETE_MSG, seq, False)
    return box


def find(box: Box, **query: str) -> Found:
    return finish(find_seqs(box.machine.index, read_message_query(query)))


@pytest.mark.parametrize("subject", ["", "a.one", "a.*", "a.>", "a.one.x", "a.none"])
@pytest.mark.parametrize("direction", ["next", "previous"])
def test_pages_one_after_another_show_each_message_once(
    subject: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when a step looks at few messages only."""
    monkeypatch.setattr(message_pages, "DASHBOARD_SCAN_STEP", 7)
    box = stream()
    index = box.machine.index
    matcher = Matcher([subject.encode()]) if subject else None
    wanted = [
        seq for seq in box.live()
        if matcher is None or matcher.test(index.locations.subject_at(seq))
    ]  # fmt: skip
    if direction == "previous":
        wanted.reverse()
    found: list[int] = []
    query = {"subject": subject, "direction": direction, "limit": "9"}
    while True:
        page = find(box, **query)
        assert len(page.seqs) <= 9 and page.last_seq == 300
        found += page.seqs
        if page.following is None:
            break
        query["seq"] = str(page.following)
    assert found == wanted


def test_a_search_by_time_begins_with_the_first_message_since_then() -> None:
    box = stream()
    index = box.machine.index
    since = index.locations.ts_at(136)
    text = message_pages.times.format_ns(since)
    assert find(box, time=text, limit="2").seqs[0] == 136
    assert find(box, time=text, limit="1", direction="previous").seqs == [135]


def test_one_request_looks_at_a_bounded_number_of_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says where to go on, and there the message is."""
    monkeypatch.setattr(message_pages, "DASHBOARD_SCAN_STEP", 10)
    monkeypatch.setattr(message_pages, "DASHBOARD_SCAN_MAX", 30)
    box = Box()
    for number in range(200):
        box.put(b"a.rare.x" if number == 99 else b"a.common", b"x")
    looks = 0
    query: dict[str, str] = {"subject": "a.rare.*"}
    while not (page := find(box, **query)).seqs:
        assert page.following is not None
        query["seq"] = str(page.following)
        looks += 1
    assert (page.seqs, looks) == ([100], 3)
    # The subject itself is known: nothing is searched for.
    assert find(box, subject="a.rare.x").seqs == [100]
    assert find(box, subject="a.rare.x", direction="previous", seq="99") == Found([], None, 200)


def test_a_page_holds_so_many_bytes_and_one_message_at_least() -> None:
    box = Box(block_bytes=1 << 20)
    for _ in range(6):
        box.put(b"a.b", b"x" * (limits.DASHBOARD_MESSAGES_BYTES // 4))
    assert fitting(box.machine.index, [1, 2, 3, 4, 5]) == [1, 2, 3]
    box.put(b"a.b", b"x" * (limits.DASHBOARD_MESSAGES_BYTES + 1))
    assert fitting(box.machine.index, [7, 1]) == [7]


def test_an_empty_stream_has_no_messages() -> None:
    assert find(Box()) == Found([], None, 0)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"direction": "up"}, "direction='up' must be next or previous"),
        ({"seq": "-1"}, "seq=-1 must not be negative"),
        ({"time": "noon"}, "time: parsing time"),
        ({"seq": "1", "time": "2020-01-01T00:00:00Z"}, "exclude each other"),
        ({"subject": "a..b"}, "subject='a..b' is not a valid subject"),
        ({"limit": "x"}, "limit"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(query: dict[str, str], words: str) -> None:
    with pytest.raises(BadQuery, match=words):
        read_message_query(query)
    assert read_message_query({"limit": "5000"}).limit == limits.DASHBOARD_PAGE
    assert read_message_query({}) == MessageQuery()


def test_a_message_is_shown_as_text_whatever_its_bytes() -> None:
    message = StoredMsg(
        3, 1_700_000_000_000_000_000, b"a.\xff", b"NATS/1.0\r\nA: 1\r\nA:  2\r\nb\xff:\r\n\r\n",
        b"\x00" * (limits.DASHBOARD_PAYLOAD_BYTES + 1),
    )  # fmt: skip
    shown: dict[str, Any] = message_item(message)
    assert shown["subject"] == "a.\ufffd"
    assert shown["headers"] == [["A", "1"], ["A", "2"], ["b\ufffd", ""]]
    assert shown["cut"] is True and shown["size"] == limits.DASHBOARD_PAYLOAD_BYTES + 1
    assert headers_of(b"") == []


class Bucket:
    """Replica of an object store, or of a key-value bucket, that notes what is read at once."""

    def __init__(self, box: Box, name: str) -> None:
        self.machine = box.machine
        self.name = name
        self.read_bytes: list[int] = []

    def read(self, seqs: list[int], done: Callable[[list[StoredMsg | None] | None], None]) -> None:
        index = self.machine.index
        self.read_bytes.append(sum(index.locations.size_of(seq) for seq in seqs))
        done([self._message(seq) for seq in seqs])

    def _message(self, seq: int) -> StoredMsg:
        payload = b"[" * 60_000 if self.name.startswith("OBJ_") else b"x"
        return StoredMsg(seq, 1, self.machine.index.locations.subject_at(seq), b"", payload)


def keys_of(bucket: Bucket, **query: str) -> list[dict[str, Any]]:
    async def build() -> dict[str, Any]:
        slicer = Slicer(asyncio.get_running_loop().call_soon)
        return await key_page(bucket, query, slicer)  # type: ignore[arg-type]

    return list(asyncio.run(build())["items"])


def test_the_values_of_a_page_of_keys_are_not_in_memory_at_once() -> None:
    box = Box(block_bytes=1 << 20)
    for number in range(20):
        box.put(b"$KV.b.k%02d" % number, b"x" * (limits.DASHBOARD_MESSAGES_BYTES // 4))
    bucket = Bucket(box, "KV_b")
    assert [item["key"] for item in keys_of(bucket)] == [f"k{number:02}" for number in range(20)]
    assert len(bucket.read_bytes) == 7 and max(bucket.read_bytes) < limits.DASHBOARD_MESSAGES_BYTES
    assert [item["revision"] for item in keys_of(bucket, sort="revision", limit="2")] == [1, 2]


def test_an_object_whose_meta_message_means_nothing_is_shown_without_a_size() -> None:
    box = Box()
    box.put(b"$O.b.M.bmFtZQ==", b"x")
    (item,) = keys_of(Bucket(box, "OBJ_b"))
    assert (item["key"], item["size"], item["operation"]) == ("name", 0, "put")
