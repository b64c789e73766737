"""Keys of `streamctl top`: what each changes of a page."""

from __future__ import annotations

import pytest

from streamd.ctl.failures import CtlError
from streamd.ctl.top_state import KEYS_TEXT, Rows, TopState

COLUMNS = {"servers": ["name", "cpu"], "streams": ["name", "leader", "messages", "rate"]}
DEFAULTS = {"servers": "name", "streams": "rate"}


def state(sort: str | None = None, pattern: str = "", views: tuple[str, ...] = ()) -> TopState:
    return TopState(COLUMNS, DEFAULTS, views or tuple(COLUMNS), sort, pattern, 2.0)


def names(of: TopState, view: str = "streams") -> str:
    rows: Rows = [
        {"name": "b", "leader": "n2", "messages": 5, "rate": 1.0, "cpu": 3.0},
        {"name": "a", "leader": None, "messages": 9, "rate": 2.0, "cpu": 1.0},
        {"name": "c", "leader": "n1", "messages": 1, "rate": 3.0, "cpu": 2.0},
    ]
    return "".join(row["name"] for row in of.chosen(view, rows))


def test_columns_are_chosen_and_turned_round() -> None:
    """Numbers the highest first, names from A to Z; a column that a view lacks leaves it alone."""
    page = state()
    assert (names(page), names(page, "servers")) == ("cab", "abc")
    seen = []
    for _ in range(6):
        page.type("s")
        seen.append((page.sort, names(page), names(page, "servers")))
    assert seen == [
        ("name", "abc", "abc"),
        ("cpu", "cab", "bca"),
        ("leader", "acb", "abc"),
        ("messages", "abc", "abc"),
        ("rate", "cab", "abc"),
        (None, "cab", "abc"),
    ]
    page.type("S\x1b[D\x1b[C")  # back twice, by an arrow too, and on again
    assert page.sort == "rate"
    page.type("r")
    assert names(page) == "bac" and "reversed" in page.lines()[-1]


def test_a_filter_is_typed_and_taken_or_left() -> None:
    page = state()
    page.type("/[ab]x")
    assert page.prompt == "[ab]x" and names(page) == "cab" and "[ab]x_" in page.lines()[0]
    page.type("\x7f\r")
    assert page.prompt is None and names(page) == "ab" and "filter: [ab]" in page.lines()[-1]
    page.type("/q\x1b")  # letters of a filter are no keys, and Esc leaves the old one
    assert names(page) == "ab" and not page.is_over
    page.type("/([\r")
    assert names(page) == "ab" and "no filter: '(['" in page.lines()[0]
    page.type("/\r")
    assert names(page) == "cab"
    page.type("/" + "x" * 500)
    assert page.prompt == "x" * 200


def test_views_pace_pause_help_and_the_end() -> None:
    page = state(sort="rate")
    page.type("v")
    assert page.views == ("servers",) and page.sort is None  # they have no rate
    page.type("\tv")
    assert page.views == ("servers", "streams")
    page.type("+")
    assert page.every_s == 1.0
    page.type("---")
    assert page.every_s == 8.0
    for _ in range(30):
        page.type("+")
    assert page.every_s == 0.05
    page.type(" ")
    assert page.is_paused and "paused" in page.lines()[-1]
    page.type("?")
    assert page.lines()[0] == KEYS_TEXT
    page.type("\x1b[5~z")  # keys that mean nothing
    assert not page.is_over
    page.type("q")
    assert page.is_over


@pytest.mark.parametrize(("sort", "pattern"), [("beauty", ""), (None, "([")])
def test_what_can_not_be_is_refused(sort: str | None, pattern: str) -> None:
    with pytest.raises(CtlError):
        state(sort, pattern)
