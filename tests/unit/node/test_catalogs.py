"""Catalogs of the streams of all accounts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from streamd.node.meta_group.catalog import Catalogs


def handle(name: str) -> Any:
    return SimpleNamespace(name=name)


def test_streams_of_all_accounts_are_in_order_and_up_to_date() -> None:
    """Sorted by account, then name; a list that was given out stays as it was."""
    catalogs = Catalogs(lambda pattern, account: ())
    assert catalogs.streams() == []
    b, a, other = handle("B"), handle("A"), handle("C")
    catalogs.of("Z").place("B", b)
    catalogs.of("Z").place("A", a)
    before = catalogs.streams()
    assert before == [a, b]
    assert catalogs.streams() is before
    catalogs.of("Y").place("C", other)
    assert catalogs.streams() == [other, a, b]
    catalogs.of("Z").place("A", None)
    assert catalogs.streams() == [other, b]
    assert before == [a, b]
