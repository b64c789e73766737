"""Which link of two servers is kept, decided without sockets."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

from streamd.config.cluster_options import ClusterOptions, RouteUrl
from streamd.net.route.dial_target import DialTarget
from streamd.net.route.dialer import Dialer
from streamd.net.route.handshake import Handshake
from streamd.net.route.link import DUPLICATE, DUPLICATE_NAME, SELF, PeerLink
from streamd.net.route.link_table import LinkTable
from streamd.net.route.local_server import LocalServer
from streamd.net.route.peer_dispatch import PeerDispatch
from streamd.node.clock import SystemClock
from streamd.obs.server_log import Log
from streamd.protocol import peer_frames


class Events:
    """Follows links as the cluster does, and remembers."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def words(self) -> dict[str, Any]:
        return {}

    def why_not_up(self, link: PeerLink) -> str:
        return ""

    def link_up(self, link: PeerLink) -> None:
        self.seen.append(f"up {link.name}")

    def link_down(self, name: str) -> None:
        self.seen.append(f"down {name}")

    def link_drained(self, name: str) -> None:
        self.seen.append(f"drained {name}")


class Bed:
    """The table of server `m`; servers before it in the alphabet are arbiters of its links."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.log = Log(stream=io.StringIO())
        options = ClusterOptions(name="c")
        self.local = LocalServer(options, server_name="m", server_id="Nm", clock=SystemClock())
        self.events = Events()
        self.dispatch = PeerDispatch(self.log)
        dialer = Dialer(self.local, lambda name: False, self.link, self.log, loop)
        self.table = LinkTable(self.local, dialer, self.events, self.log)

    def link(self, target: DialTarget | None) -> PeerLink:
        loop = asyncio.get_running_loop()
        return PeerLink(target, self.local, self.table, self.dispatch, loop)

    def met(self, name: str, *, boot: str = "1", is_dialed: bool = False) -> tuple[PeerLink, str]:
        """Return a link whose other side said HELLO, and why it is not wanted."""
        url = RouteUrl("127.0.0.1", 6222)
        link = self.link(DialTarget(url, is_explicit=True) if is_dialed else None)
        facts = self.local.hello() | {"name": name, "boot": boot}
        return link, self.judged(link, facts)

    def judged(self, link: PeerLink, facts: dict[str, Any]) -> str:
        """Let a HELLO come."""
        far_end = Handshake(b"", is_dialer=link.target is None)
        (frame,) = peer_frames.FrameReader().feed(far_end.hello(facts))
        return self.table.why_not(link, link.handshake.on_hello(frame, "127.0.0.1"))

    def up(self, name: str, *, boot: str = "1") -> PeerLink:
        link, reason = self.met(name, boot=boot)
        assert not reason and not self.table.choose(link)
        link.exchange.open(name)
        self.table.came_up(link)
        return link


def in_loop(check: Callable[[], None]) -> None:
    async def main() -> None:
        check()

    asyncio.run(main())


def test_the_first_link_is_kept_and_a_second_is_a_duplicate() -> None:
    def check() -> None:
        bed = Bed()
        first = bed.up("z")
        second, reason = bed.met("z", is_dialed=True)
        assert reason == DUPLICATE
        assert bed.table.choose(second) == DUPLICATE and first.is_chosen
        assert bed.table.up == {"z": first} and bed.events.seen == ["up z"]

    in_loop(check)


def test_a_name_in_use_by_another_process_is_refused_while_its_link_is_alive() -> None:
    def check() -> None:
        bed = Bed()
        first = bed.up("z")
        other, reason = bed.met("z", boot="2")
        assert reason == bed.table.choose(other) == f"{DUPLICATE_NAME}: z"
        first.beat(), first.beat()  # two beats without an answer: it may be gone
        other, reason = bed.met("z", boot="2")
        assert not reason and not bed.table.choose(other) and other.is_chosen

    in_loop(check)


def test_the_arbiters_choice_takes_the_place_of_any_other() -> None:
    def check() -> None:
        bed = Bed()
        bed.up("a")
        chosen, _ = bed.met("a")
        bed.table.replaced_by(chosen)
        assert chosen.is_chosen and bed.table.has_link("a")

    in_loop(check)


def test_the_end_of_a_link_is_told_once() -> None:
    def check() -> None:
        bed = Bed()
        link = bed.up("z")
        bed.table.lost(link)
        bed.table.lost(link)
        assert bed.events.seen == ["up z", "down z"]
        assert not bed.table.up and not bed.table.has_link("z") and not link.is_up

    in_loop(check)


def test_a_hello_of_this_process_or_name_or_another_cluster_is_refused() -> None:
    def check() -> None:
        bed = Bed()
        assert bed.met("m2", boot=bed.local.boot)[1] == SELF
        assert bed.met("m")[1] == f"{DUPLICATE_NAME}: m"
        link = bed.link(None)
        facts = bed.local.hello() | {"name": "z", "boot": "1", "cluster": "d"}
        assert bed.judged(link, facts) == "Cluster Name Conflict: 'd' and 'c'"

    in_loop(check)
