"""Pages of lists: the same as sorting all, in steps that are short."""

from __future__ import annotations

import random
from typing import Any

import pytest

from streamd import limits
from streamd.net.dashboard.bucket_documents import names_with
from streamd.net.dashboard.list_pages import ListQuery, read_list_query, select_page
from streamd.net.dashboard.rates import Rates
from streamd.net.monitoring.query import BadQuery
from streamd.net.monitoring.sliced_pages import finish

ROWS = [{"name": f"s{n:05}", "size": random.Random(n).randrange(500)} for n in range(5000)]
KEYS: dict[str, Any] = {"name": lambda row: row["name"], "size": lambda row: row["size"]}


def page(**query: str) -> tuple[list[dict[str, Any]], int]:
    wanted = read_list_query(query, KEYS)
    return finish(select_page(ROWS, wanted, KEYS, lambda row: str(row["name"])))


@pytest.mark.parametrize("field", ["name", "size"])
@pytest.mark.parametrize("descending", ["", "1"])
@pytest.mark.parametrize("offset", [0, 1000, 4990, 6000])
def test_a_page_is_what_sorting_all_would_give(field: str, descending: str, offset: int) -> None:
    found, total = page(sort=field, descending=descending, offset=str(offset), limit="20")
    everything = sorted(ROWS, key=KEYS[field], reverse=bool(descending))  # stable in both orders
    assert found == everything[offset : offset + 20]
    assert total == 5000


def test_a_filter_is_a_part_of_the_text_whatever_its_case() -> None:
    found, total = page(filter="S0012")
    assert [row["name"] for row in found] == [f"s0012{n}" for n in range(10)] and total == 10
    assert page(filter="nothing") == ([], 0)
    assert [row["name"] for row in page(descending="1", limit="1")[0]] == ["s04999"]


def test_parameters_that_mean_nothing_are_refused_and_limits_are_bounded() -> None:
    with pytest.raises(BadQuery, match="sort='nam' is not a field to sort by; these are: name"):
        page(sort="nam")
    with pytest.raises(BadQuery, match="limit"):
        page(limit="x")
    assert read_list_query({"limit": "9999"}, ()).limit == limits.DASHBOARD_PAGE
    assert read_list_query({"limit": "-1", "offset": "-5"}, ()) == ListQuery()


def test_no_step_sorts_more_than_a_chunk() -> None:
    """Of 100,000 rows as of 5,000: the steps become more, not longer. Rows looked at between two
    pauses are counted, for times depend on the machine."""
    looked = 0
    most = 0

    def key(row: int) -> int:
        nonlocal looked
        looked += 1
        return -row

    steps = select_page(range(100_000), ListQuery(sort="k"), {"k": key}, str)
    try:
        while True:
            before = looked
            next(steps)
            most = max(most, looked - before)
    except StopIteration as end:
        found, total = end.value
    assert (found[0], total) == (99_999, 100_000) and most <= 64


@pytest.mark.parametrize("descending", [False, True])
def test_what_is_sorted_for_a_page_is_not_all_in_memory_at_once(descending: bool) -> None:
    """Sort keys of a million rows would be a hundred megabytes, for fifty rows that are shown."""

    class Key(str):
        held = 0
        most = 0

        def __new__(cls, text: str) -> Key:
            cls.held += 1
            cls.most = max(cls.most, cls.held)
            return super().__new__(cls, text)

        def __del__(self) -> None:
            Key.held -= 1

    wanted = ListQuery(sort="k", limit=50, is_descending=descending)
    keys = {"k": lambda row: Key(f"{row * 7919 % 20_000:05}")}
    found, _ = finish(select_page(range(20_000), wanted, keys, str))
    everything = sorted(range(20_000), key=lambda row: row * 7919 % 20_000, reverse=descending)
    assert found == everything[:50]
    assert Key.most <= limits.DASHBOARD_SORT_ROWS + 50 * (20_000 // limits.DASHBOARD_SORT_ROWS + 1)


def test_a_rate_is_the_mean_since_the_look_before() -> None:
    now = 10.0
    rates: Rates[str] = Rates(lambda: now)
    assert rates.note("a", 100) == 0
    now = 12.0
    assert rates.note("a", 300) == 100
    now = 12.5  # too early for another look: what was found holds
    assert rates.note("a", 9000) == 100 == rates.rate("a")
    now = 14.0
    assert rates.note("a", 300) == 0
    assert rates.note("a", 5) == 0  # it began anew
    now = 500.0  # the look before says nothing of now
    assert rates.note("a", 100_000) == 0
    for number in range(200):
        rates.note(str(number), 1)
    rates.keep({"a"})
    assert rates._seen.keys() == {"a"}


@pytest.mark.parametrize("changes", [0, 1, 99])
def test_the_keys_of_a_bucket_are_collected_while_keys_come_and_go(changes: int) -> None:
    """None is named twice, and none is missing that was there all the time."""
    rows: dict[bytes, int] = {b"$KV.b.%d" % n: n for n in range(20_000)}
    rows[b"$KV.other.x"] = 1
    steps = names_with(rows, b"$KV.b.")
    left = changes
    try:
        while True:
            next(steps)
            if left:
                left -= 1
                rows[b"$KV.b.new%d" % left] = 1
    except StopIteration as end:
        found = end.value
    assert len(found) == len(set(found))
    assert {b"$KV.b.%d" % n for n in range(20_000)} <= set(found)
    assert b"$KV.other.x" not in found
