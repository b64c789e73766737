"""News that a node sends the others about the groups it leads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from streamd.node.cluster.leader_news import LeaderNews
from streamd.node.cluster.leaders import Leaders
from streamd.node.meta_group.catalog import Catalogs
from tests.unit.node.contexts import context_of


class _Links:
    def __init__(self) -> None:
        self.notes: list[tuple[str, str, list[Any]]] = []

    def nodes(self) -> list[str]:
        return ["b"]

    def note(self, node_id: str, kind: str, args: list[Any]) -> None:
        self.notes.append((node_id, kind, args))


class _Bed:
    """Announcements of node "a", and the links they go over."""

    def __init__(self) -> None:
        self.leaders = Leaders("a", lambda: 0)
        self.links = _Links()
        self._soon: list[Any] = []
        loop = SimpleNamespace(call_soon=self._soon.append)
        links: Any = self.links
        groups: Any = None
        context = context_of(env=SimpleNamespace(loop=loop))
        catalog = Catalogs(lambda pattern, account: ())
        self.news = LeaderNews(context, groups, self.leaders, catalog, links)

    def told(self) -> list[list[Any]]:
        """Return the rows that the other node is sent when 7 is announced."""
        self.news.announce(7)
        self._soon.pop()()
        rows = [row for _, _, rows in self.links.notes for row in rows]
        self.links.notes.clear()
        return rows


def _leading() -> _Bed:
    bed = _Bed()
    bed.leaders.record_own(7, 4, is_ready=True)
    assert bed.told() == [(7, 4, True)]
    return bed


def test_a_withdrawn_leader_is_not_announced_as_one() -> None:
    """Members at rest notice by this note alone: the link to the node stays up. The group may be
    gone by then."""
    bed = _leading()
    bed.leaders.record_own(7, 4, is_ready=False)  # its replica is being repaired
    assert bed.told() == [(7, 4, False)]


def test_a_new_leader_that_is_not_ready_announces_no_end() -> None:
    """Its followers would look for another leader."""
    bed = _leading()
    bed.leaders.record_own(7, 4, is_ready=False)
    assert bed.told() == [(7, 4, False)]
    assert bed.told() == []  # elected again
    bed.leaders.record_own(7, 6, is_ready=True)
    assert bed.told() == [(7, 6, True)]


def test_the_end_of_one_term_is_not_that_of_the_next() -> None:
    """Deposed and elected again before it got to tell."""
    bed = _leading()
    bed.leaders.record_own(7, 6, is_ready=False)
    assert bed.told() == [(7, 4, False)]
