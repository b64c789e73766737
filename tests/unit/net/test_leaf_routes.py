"""Routes to leaf links, and what links are told of interest."""

from __future__ import annotations

from collections.abc import Iterable

from streamd.net.leaf.told_interest import ELSEWHERE, HERE, ToldInterest
from streamd.net.pubsub.leaf_routes import LeafInterest, LeafRoute, leaf_route
from streamd.net.pubsub.message_router import MessageRouter


class Link:
    """A leaf link that keeps what it was sent and told."""

    cid = 1
    has_echo = is_dirty = False
    has_headers = True

    def __init__(self, name: str, *, is_spoke: bool = False, is_isolated: bool = False) -> None:
        self.remote_cluster = name
        self.is_spoke = is_spoke
        self.is_isolated = is_isolated
        self.is_congested = False
        self.denied: set[bytes] = set()
        self.sent: list[tuple[object, ...]] = []
        self.told: list[bytes] = []

    @property
    def peer(self) -> Link:
        return self

    def may_send(self, subject: bytes) -> bool:
        return subject not in self.denied

    def may_tell(self, pattern: bytes) -> bool:
        return pattern not in self.denied

    def send(
        self, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
    ) -> None:
        self.sent.append((subject, reply, sorted(queues), headers, payload))

    def tell(self, lines: Iterable[bytes]) -> None:
        self.told += lines

    def flush(self) -> bool:
        return False

    def stall(self, rest_s: float) -> None: ...


def route(interest: LeafInterest, subject: bytes) -> LeafRoute:
    found = leaf_route(interest.sublist.match(subject))
    assert found is not None
    return found


def test_a_link_gets_a_message_once_with_the_groups_chosen_for_it() -> None:
    interest, a = LeafInterest(), Link("a")
    for pattern, queue in ((b"x.*", b""), (b"x.1", b""), (b">", b"g"), (b"x.1", b"h")):
        interest.set(a, pattern, queue, 2)
    assert route(interest, b"x.1").send(b"x.1", b"r", b"", b"p") == 1
    assert a.sent == [(b"x.1", b"r", [b"g", b"h"], b"", b"p")]
    route(interest, b"x.1").send(b"x.1", b"", b"", b"p", served={b"g"})
    assert a.sent[1][2] == [b"h"]
    route(interest, b"x.1").send(b"x.1", b"", b"", b"p", wanted=())
    assert a.sent[2][2] == []
    a.denied.add(b"x.1")
    assert route(interest, b"x.1").send(b"x.1", b"", b"", b"p") == 0


def test_a_message_goes_back_neither_to_its_link_nor_to_its_cluster() -> None:
    interest = LeafInterest()
    a, twin, b, hub = Link("a"), Link("a"), Link("b"), Link("hub", is_spoke=True)
    for link in (a, twin, b, hub):
        interest.set(link, b"s", b"", 1)
        interest.set(link, b"s", b"g", 1)
    assert route(interest, b"s").send(b"s", b"", b"", b"", source=a, wanted=[b"g"]) == 2
    assert not a.sent and not twin.sent and b.sent and hub.sent
    assert route(interest, b"s").send(b"s", b"", b"", b"", is_forwarded=True) == 3
    assert len(hub.sent) == 1


def test_groups_are_shared_by_members() -> None:
    interest, a, b = LeafInterest(), Link("a"), Link("b")
    interest.set(a, b"s", b"g", 9)
    interest.set(b, b"s", b"g", 1)
    found = route(interest, b"s")
    for _ in range(1000):
        assert found.send(b"s", b"", b"", b"") == 1
    assert 800 < len(a.sent) < 980 and len(a.sent) + len(b.sent) == 1000


def test_interest_that_ends_is_gone() -> None:
    interest, a = LeafInterest(), Link("a")
    assert interest.set(a, b"s", b"", 1) == 0
    assert interest.set(a, b"s", b"", 1) == 1 and interest.count(a) == 1
    assert interest.set(a, b"s", b"", 0) == 1
    assert interest.set(a, b"s", b"", 0) == 0
    assert leaf_route(interest.sublist.match(b"s")) is None


def test_the_router_sends_to_links_and_takes_from_them() -> None:
    router = MessageRouter()
    a, b = Link("a"), Link("b")
    heard: list[tuple[bytes, bytes]] = []
    router.subscriptions.subscribe_internal(
        b"s.>", lambda subject, reply, headers, payload, conn: heard.append((subject, payload))
    )
    assert not router.has_interest(b"t")
    for link in (a, b):
        router.subscriptions.set_leaf_interest(link, b"*", b"", 1)
        router.subscriptions.set_leaf_interest(link, b"s.1", b"", 1)
    assert router.has_interest(b"t")
    router.publish(b"s.1", b"", b"", b"one")
    assert len(a.sent) == len(b.sent) == 1
    router.begin_chunk()
    assert router.publish_from_leaf(a, [(b"s.1", b"r", (), b"", b"two")]) == 1  # type: ignore[arg-type]
    router.end_chunk(a)  # type: ignore[arg-type]
    assert len(a.sent) == 1 and b.sent[1] == (b"s.1", b"r", [], b"", b"two")
    assert heard == [(b"s.1", b"one"), (b"s.1", b"two")]
    for link in (a, b):
        router.subscriptions.set_leaf_interest(link, b"*", b"", 0)
    assert not router.has_interest(b"t")


def test_a_link_is_told_the_sum_of_what_it_may_hear() -> None:
    told = ToldInterest(b"$LDS.me")
    told.add(HERE, (b"a", b""), 2)
    told.add(ELSEWHERE, (b"stream", b""), 1)
    hub, leaf = Link("hub", is_spoke=True), Link("leaf")
    leaf.denied.add(b"secret")
    for link in (hub, leaf):
        told.open(link)
    assert hub.told == [b"LS+ $LDS.me", b"LS+ a"]
    assert leaf.told == [b"LS+ $LDS.me", b"LS+ a", b"LS+ stream"]
    hub.told.clear(), leaf.told.clear()
    told.add(HERE, (b"a", b""), -1)
    told.add(HERE, (b"secret", b""), 1)
    assert hub.told == [b"LS+ secret"] and leaf.told == []
    told.add(HERE, (b"a", b""), -1)
    assert hub.told[-1] == b"LS- a" and leaf.told == [b"LS- a"]
    told.add(HERE, (b"q", b"g"), 1)
    told.set(leaf, (b"q", b"g"), 3)
    assert leaf.told[-1] == b"LS+ q g 1" and hub.told[-1] == b"LS+ q g 4"
    told.set(hub, (b"q", b"g"), 5)
    assert leaf.told[-1] == b"LS+ q g 6" and hub.told[-1] == b"LS+ q g 4"
    told.add(HERE, (b"q", b"g"), -1)
    told.set(hub, (b"q", b"g"), 0)
    assert leaf.told[-1] == b"LS- q g" and hub.told[-1] == b"LS+ q g 3"


def test_leaf_links_hear_of_each_other_unless_they_are_kept_apart() -> None:
    told = ToldInterest(b"$LDS.me")
    a, twin, b, alone = Link("a"), Link("a"), Link("b"), Link("c", is_isolated=True)
    upper = Link("hub", is_spoke=True)
    for link in (a, twin, b, alone, upper):
        told.open(link)
        link.told.clear()
    told.set(a, (b"s", b""), 1)
    assert (a.told, twin.told, alone.told) == ([], [], [])
    assert b.told == upper.told == [b"LS+ s"]
    told.set(upper, (b"down", b""), 1)
    assert b.told[-1] == b"LS+ down" and upper.told[-1] == b"LS+ s"
    told.set(a, (b"$LDS.a", b""), 1)  # loops are noticed by whoever is in them
    assert all(link.told[-1] == b"LS+ $LDS.a" for link in (twin, b, alone, upper))
    told.close(b)
    told.set(a, (b"s", b""), 0)
    assert upper.told[-1] == b"LS- s" and b.told[-1] == b"LS+ $LDS.a"
