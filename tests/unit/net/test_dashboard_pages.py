"""Pages of a cluster's lists: what other nodes are asked, and what is made of their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from streamd import limits
from streamd.net.dashboard.grants import OPEN, Grant
from streamd.net.dashboard.pages import Pages
from streamd.net.monitoring.sliced_pages import Slicer

OF_A = Grant("a", "A", False)


class Leader:
    """Another node, n2, that leads all streams; each has one consumer."""

    def __init__(self, streams: dict[tuple[str, str], Any]) -> None:
        self._streams = {asset.uid: asset for asset in streams.values()}
        self.asked: list[int] = []  # streams of each question

    def is_up(self, name: str) -> bool:
        return name == "n2"

    def call(
        self, name: str, method: str, args: Sequence[int], done: Callable[[object], None], _: int
    ) -> None:
        assert (name, method) == ("n2", "dashboard.consumers")
        self.asked.append(len(args))
        assets = [self._streams[uid] for uid in args]
        rows = [{"account": a.account, "stream": a.name, "name": "c"} for a in assets]
        asyncio.get_running_loop().call_soon(done, rows)


class Bed:
    """Pages of n1, which has no replica of anything."""

    def __init__(self, accounts: dict[str, int]) -> None:
        self.now_s = 50.0
        names = [(account, f"S{n}") for account, count in accounts.items() for n in range(count)]
        streams: dict[tuple[str, str], Any] = {
            (account, name): SimpleNamespace(uid=uid, account=account, name=name, config={})
            for uid, (account, name) in enumerate(names, 1)
        }
        self.leader = Leader(streams)
        node = SimpleNamespace(
            meta=SimpleNamespace(applied=1, streams_by_key=streams),
            peers=self.leader,
            server_name="n1",
            is_clustered=True,
            replica=lambda uid: None,
            leader_of=lambda uid: "n2",
        )
        self._around: Any = SimpleNamespace(sources=SimpleNamespace(node=node))

    def run(self, *grants: Grant) -> list[int]:
        """Return how many consumers each of `grants` is shown, one after the other."""

        async def ask() -> list[int]:
            slicer = Slicer(asyncio.get_running_loop().call_soon)
            clock: Any = SimpleNamespace(now_ns=lambda: 0)
            pages = Pages(self._around, slicer, clock, lambda: self.now_s)
            found: list[Any] = [(await pages.consumers(grant, {}))["total"] for grant in grants]
            return found

        return asyncio.run(ask())


def test_a_leader_is_asked_about_all_of_its_streams() -> None:
    count = 2 * limits.DASHBOARD_REMOTE_ROWS + 7
    bed = Bed({"A": count})
    assert bed.run(OPEN) == [count]
    assert bed.leader.asked == [limits.DASHBOARD_REMOTE_ROWS] * 2 + [7]


def test_who_sees_all_is_not_shown_what_was_asked_for_one_account() -> None:
    bed = Bed({"A": 2, "B": 3})
    assert bed.run(OF_A, OPEN, OF_A, OPEN) == [2, 5, 2, 5]
    assert bed.leader.asked == [2, 5]  # what is fresh is not asked for again
