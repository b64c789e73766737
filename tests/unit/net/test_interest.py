"""What nodes tell each other of their clients' subscriptions, without a network."""

from streamd.net.pubsub.interest import LocalInterest, RemoteInterest, sees_acks
from streamd.net.pubsub.remote_routes import RemoteRoute
from streamd.net.route.remote_messages import RemoteNode
from tests.unit.net.mesh import Links, Mesh


def test_a_pattern_is_told_once_however_many_want_it():
    local = LocalInterest()
    local.add(b"a", b"")
    local.add(b"a", b"")
    assert local.take_changes() == [(b"a", b"", 1)]
    local.add(b"a", b"")
    local.discard(b"a", b"")
    local.discard(b"a", b"")
    assert not local.has_changes
    local.discard(b"a", b"")
    assert local.take_changes() == [(b"a", b"", 0)]
    assert local.all() == []


def test_interest_that_came_and_went_is_not_told():
    local = LocalInterest()
    local.add(b"a", b"")
    local.discard(b"a", b"")
    local.add(b"b", b"q")
    local.add(b"b", b"q")
    local.discard(b"b", b"q")
    assert local.take_changes() == [(b"b", b"q", 1)]
    local.add(b"b", b"q")
    local.discard(b"b", b"q")
    assert local.take_changes() == []


def test_members_of_a_group_are_counted():
    local = LocalInterest()
    for count in (1, 2, 3):
        local.add(b"a", b"q")
        assert local.take_changes() == [(b"a", b"q", count)]
    assert local.all() == [(b"a", b"q", 3)]


def remote_node(name):
    return RemoteNode("$G", name, Links(Mesh(0), "me"))


def test_only_differences_are_reported_as_changed():
    interest, node = RemoteInterest(), remote_node("n")
    assert interest.apply(node, [(b"a", b"", 1), (b"$JS.>", b"q", 2)]) == [
        (b"a", b""),
        (b"$JS.>", b"q"),
    ]
    assert interest.apply(node, [(b"a", b"", 1), (b"$JS.>", b"q", 3), (b"x", b"", 0)]) == [
        (b"$JS.>", b"q")
    ]
    assert interest.ack_watcher_count == 1 and len(interest.of_node("n")) == 2
    assert sorted(interest.forget(node)) == [(b"$JS.>", b"q"), (b"a", b"")]
    assert interest.sublist.count == interest.ack_watcher_count == len(interest.of_node("n")) == 0


def test_nodes_get_shares_by_their_members_evenly_spread():
    interest, big, small = RemoteInterest(), remote_node("big"), remote_node("small")
    interest.apply(big, [(b"a", b"q", 2), (b"*", b"q", 1)])
    interest.apply(small, [(b"a", b"q", 1)])
    route = RemoteRoute(interest.sublist.match(b"a"))
    for _ in range(40):
        assert route.send(b"a", b"", b"", b"x") == 1
    assert len(big.outbox) == 30 and len(small.outbox) == 10
    picks = [route.groups[b"q"].pick() for _ in range(8)]
    assert all(small in picks[at : at + 4] for at in range(5))


def test_huge_groups_keep_their_proportions():
    interest, big, small = RemoteInterest(), remote_node("big"), remote_node("small")
    interest.apply(big, [(b"a", b"q", 30_000)])
    interest.apply(small, [(b"a", b"q", 10_000)])
    group = RemoteRoute(interest.sublist.match(b"a")).groups[b"q"]
    picks = [group.pick() for _ in range(1024)]
    assert picks.count(big) == 768


def test_patterns_that_may_see_acks():
    for pattern in (b">", b"$JS.>", b"$JS.ACK.>", b"*.>", b"*.*.x", b"$JS.FC.S.>"):
        assert sees_acks(pattern)
    for pattern in (b"*", b"$JS", b"$JS.API.>", b"a.>", b"ACK.>"):
        assert not sees_acks(pattern)
