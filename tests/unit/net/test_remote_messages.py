"""Core NATS across nodes: servers whose links are in memory, with the real codec between them."""

import pytest

from streamd.limits import PEER_BUFFER_BYTES_MAX
from streamd.net.pubsub.sublist import Subscription
from streamd.net.route import remote_messages
from streamd.protocol import peer_schemas
from tests.scenarios.test_peer_words import NOTES, wrong
from tests.unit.net.bed import Node, Stream
from tests.unit.net.mesh import Mesh
from tests.unit.net.test_message_router import NO_ECHO, msg, pub

# --- interest -----------------------------------------------------------------------------------


def test_a_message_goes_once_to_each_node_that_wants_it():
    mesh = Mesh(3)
    publisher = mesh.peer("a")
    here, there = mesh.peer("a"), [mesh.peer("b"), mesh.peer("b")]
    here.send(b"SUB s.* 1\r\n")
    for peer in there:
        peer.send(b"SUB s.1 1\r\nSUB s.> 2\r\n")
    mesh.settle()
    mesh.links["a"].kinds()
    publisher.send(pub(b"s.1", b"p", b"back"))
    assert mesh.links["a"].kinds() == ["net.msgs"]
    assert here.take() == msg(b"s.1", b"1", b"p", b"back")
    mesh.settle()
    for peer in there:
        assert sorted(peer.take().split(b"p\r\n")) == [
            b"",
            b"MSG s.1 1 back 1\r\n",
            b"MSG s.1 2 back 1\r\n",
        ]
    assert not mesh.wire("a", "c")


def test_messages_that_no_node_wants_are_not_sent():
    mesh = Mesh(2)
    mesh.peer("b").send(b"SUB other 1\r\n")
    mesh.settle()
    mesh.links["a"].kinds()
    mesh.peer("a").send(pub(b"s") * 3 + pub(b"_INBOX.x.1"))
    mesh.settle()
    assert mesh.links["a"].kinds() == []


def test_interest_ends_with_its_last_subscription():
    mesh = Mesh(2)
    one, two, publisher = mesh.peer("b"), mesh.peer("b"), mesh.peer("a")
    one.send(b"SUB s 1\r\n")
    two.send(b"SUB s 1\r\n")
    mesh.settle()
    router = mesh.beds["a"].router
    assert router.has_interest(b"s")
    one.send(b"UNSUB 1\r\n")
    mesh.settle()
    publisher.send(pub(b"s"))
    mesh.settle()
    assert two.take() == msg(b"s", b"1") and one.take() == b""
    two.leave()
    mesh.settle()
    assert not router.has_interest(b"s")


def test_a_node_that_comes_later_is_told_everything_and_a_node_that_goes_is_forgotten():
    mesh = Mesh(2)
    receiver = mesh.peer("b")
    receiver.send(b"SUB s 1\r\nSUB t q 2\r\n")
    mesh.settle()
    mesh.part("a", "b")
    router = mesh.beds["a"].router
    assert not router.has_interest(b"s") and not router.has_interest(b"t")
    receiver.send(b"UNSUB 2\r\nSUB u 3\r\n")
    mesh.settle()
    mesh.join("a", "b")
    mesh.settle()
    assert router.has_interest(b"s") and router.has_interest(b"u")
    assert not router.has_interest(b"t")


def test_subscriptions_change_while_a_node_joins():
    """A client is gone, a link comes up and another client wants the same, within one iteration of
    the loop: the other node, told that nobody does, hears of the second."""
    mesh = Mesh(2)
    one, other = mesh.peer("a"), mesh.peer("a")
    one.send(b"SUB s 1\r\nSUB t q 2\r\n")
    mesh.settle()
    mesh.part("a", "b")
    one.leave()
    mesh.join("a", "b")
    other.send(b"SUB s 1\r\nSUB t q 2\r\n")
    mesh.settle()
    mesh.peer("b").send(pub(b"s") + pub(b"t"))
    mesh.settle()
    assert other.take() == msg(b"s", b"1") + msg(b"t", b"2")


def test_subscriptions_from_before_the_peers_are_told_too(monkeypatch):
    monkeypatch.setattr("streamd.net.route.remote_messages.REMOTE_NOTE_SUBS", 3)
    monkeypatch.setattr("streamd.net.route.remote_messages.REMOTE_CHANGES_MAX", 2)
    mesh = Mesh(2)
    mesh.part("a", "b")
    mesh.peer("b").send(b"".join(b"SUB s.%d %d\r\n" % (at, at) for at in range(10)))
    mesh.links["b"].kinds()
    mesh.join("a", "b")
    assert mesh.links["b"].kinds() == ["net.sub"] * 4
    mesh.settle()
    assert all(mesh.beds["a"].router.has_interest(b"s.%d" % at) for at in range(10))


def test_subscriptions_of_the_server_itself_are_not_told():
    mesh = Mesh(2)
    heard = []
    for name in mesh.names:
        mesh.beds[name].subscriptions.subscribe_internal(
            b"$JS.API.>", lambda *args: heard.append(args)
        )
    mesh.settle()
    peer, watcher = mesh.peer("a"), mesh.peer("b")
    peer.send(pub(b"$JS.API.INFO", b"", b"r"))
    mesh.settle()
    assert len(heard) == 1
    watcher.send(b"SUB > 1\r\n")  # now messages go there, but not to that server itself
    mesh.settle()
    peer.send(pub(b"$JS.API.INFO", b"", b"r"))
    mesh.settle()
    assert len(heard) == 2 and watcher.take() == msg(b"$JS.API.INFO", b"1", b"", b"r")


# --- requests -----------------------------------------------------------------------------------


def test_the_answer_to_a_request_finds_its_way_though_all_comes_in_one_chunk():
    mesh = Mesh(2)
    asker, service = mesh.peer("a"), mesh.peer("b")
    service.send(b"SUB svc workers 1\r\n")
    mesh.settle()
    mesh.links["a"].kinds()
    asker.send(b"SUB _INBOX.i.* 5\r\n" + pub(b"svc", b"q", b"_INBOX.i.1"))
    assert mesh.links["a"].kinds() == ["net.sub", "net.msgs"]
    mesh.settle()
    assert service.take() == msg(b"svc", b"1", b"q", b"_INBOX.i.1")
    service.send(pub(b"_INBOX.i.1", b"a"))
    mesh.settle()
    assert asker.take() == msg(b"_INBOX.i.1", b"5", b"a")


def test_interest_is_told_before_a_stream_or_the_api_hears_of_a_request():
    """What they send to other nodes goes over the same links, behind the interest."""
    stream = Stream("S", ["js.>"])
    mesh = Mesh(2, {"a": Node(stream)})
    links = mesh.links["a"]
    at_api, at_acks = [], []
    mesh.beds["a"].subscriptions.subscribe_internal(
        b"$JS.API.>", lambda *_: at_api.append(links.kinds())
    )
    stream.acks = lambda *_: at_acks.append(links.kinds())
    peer = mesh.peer("a")
    links.kinds()
    peer.send(b"SUB r.1 1\r\n" + pub(b"$JS.API.CONSUMER.MSG.NEXT.S.C", b"", b"r.1"))
    peer.send(b"SUB r.2 2\r\n" + pub(b"$JS.ACK.S.C.1.1.1.17.9", b"", b"r.2"))
    assert at_api == at_acks == [["net.sub"]]


def test_no_responders_means_no_subscriber_at_any_node():
    mesh = Mesh(2)
    asker, service = mesh.peer("a"), mesh.peer("b")
    asker.send(b"SUB in.* 7\r\n")
    mesh.settle()
    assert b"503" in asker.send(pub(b"svc", b"", b"in.1"))
    service.send(b"SUB svc q 1\r\n")
    mesh.settle()
    assert asker.send(pub(b"svc", b"", b"in.1")) == b""
    mesh.part("a", "b")
    assert b"503" in asker.send(pub(b"svc", b"", b"in.1"))


def test_a_reply_under_a_shared_prefix_reaches_each_node():
    mesh = Mesh(2)
    here, there, service = mesh.peer("a"), mesh.peer("b"), mesh.peer("a")
    here.send(b"SUB _INBOX.one.* 1\r\n")
    there.send(b"SUB _INBOX.two.* 2\r\nSUB _INBOX.one.9 3\r\n")
    mesh.settle()
    for reply in (b"_INBOX.one.1", b"_INBOX.two.1", b"_INBOX.one.9"):
        service.send(pub(reply))
    mesh.settle()
    assert here.take() == msg(b"_INBOX.one.1", b"1") + msg(b"_INBOX.one.9", b"1")
    assert there.take() == msg(b"_INBOX.two.1", b"2") + msg(b"_INBOX.one.9", b"3")


# --- queue groups -------------------------------------------------------------------------------


def test_one_member_of_a_group_in_the_whole_cluster_and_those_here_first():
    mesh = Mesh(3)
    members = [mesh.peer("b"), mesh.peer("b"), mesh.peer("c")]
    for peer in members:
        peer.send(b"SUB s q 1\r\n")
    members[0].send(b"SUB s 2\r\nSUB * other 3\r\n")
    mesh.settle()
    publisher = mesh.peer("a")
    publisher.send(pub(b"s") * 30)
    mesh.settle()
    got = [peer.take() for peer in members]
    counts = [each.count(b"MSG s 1 ") for each in got]
    assert (counts[0] + counts[1], counts[2]) == (20, 10)
    assert all(counts)
    assert got[0].count(b"MSG s 2 ") == got[0].count(b"MSG s 3 ") == 30
    publisher.send(b"SUB s q 1\r\n")
    mesh.settle()
    assert publisher.send(pub(b"s") * 3).count(b"MSG s 1") == 3
    mesh.settle()
    assert [peer.take().count(b"MSG s 1 ") for peer in members] == [0, 0, 0]


def test_a_member_that_wants_no_echo_passes_its_own_on_to_another_node():
    mesh = Mesh(2)
    me, you = mesh.peer("a", NO_ECHO), mesh.peer("b")
    me.send(b"SUB s q 1\r\n")
    you.send(b"SUB s q 1\r\n")
    mesh.settle()
    me.send(pub(b"s") * 3)
    mesh.settle()
    assert me.take() == b"" and you.take() == msg(b"s", b"1") * 3


def test_a_group_is_one_whatever_its_members_subscribe_to():
    mesh = Mesh(2)
    here, there = mesh.peer("a"), mesh.peer("b")
    here.send(b"SUB a.* q 1\r\nSUB a.b q 2\r\n")
    there.send(b"SUB a.> q 3\r\n")
    mesh.settle()
    for name in mesh.names:
        mesh.peer(name).send(pub(b"a.b") * 10)
    mesh.settle()
    assert here.take().count(b"MSG") == there.take().count(b"MSG") == 10


# --- forms of messages --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 100])
def test_order_and_form_are_kept(size):
    """One subject and many, with and without reply and headers."""
    mesh = Mesh(2)
    far, near, publisher = mesh.peer("b"), mesh.peer("a"), mesh.peer("a")
    for peer in (far, near):
        peer.send(b"SUB s.> 1\r\n")
    mesh.settle()
    payloads = [b"%03d" % at * size for at in range(30)]
    for lines in (
        b"".join(pub(b"s.1", each) for each in payloads),
        b"".join(pub(b"s.%d" % (at % 4), each) for at, each in enumerate(payloads)),
        b"".join(pub(b"s.1", each, b"r.%d" % at) for at, each in enumerate(payloads)),
        b"HPUB s.1 r 12 13\r\nNATS/1.0\r\n\r\nx\r\nHPUB s.1 12 12\r\nNATS/1.0\r\n\r\n\r\n",
    ):
        publisher.send(lines)
        mesh.settle()
        assert far.take() == near.take() != b""


def test_many_bytes_go_in_several_notes(monkeypatch):
    monkeypatch.setattr("streamd.net.route.remote_messages.REMOTE_NOTE_BYTES", 1000)
    mesh = Mesh(2)
    far = mesh.peer("b")
    far.send(b"SUB s.* 1\r\n")
    mesh.settle()
    mesh.links["a"].kinds()
    both = [(b"s.%d" % (at % 2), b"x" * 300) for at in range(10)] + [(b"s.0", b"y" * 3000)]
    mesh.peer("a").send(b"".join(pub(*each) for each in both))
    assert len(mesh.links["a"].kinds()) == 5
    mesh.settle()
    assert far.take() == b"".join(msg(subject, b"1", payload) for subject, payload in both)
    node = mesh.remotes["a"].nodes()[0]
    mesh.peer("a").send(pub(b"s.1", b"x" * 300) * 10)
    mesh.settle()
    assert mesh.links["a"].kinds() == ["net.msgs"]  # a run of one chunk stays together
    assert far.take() == msg(b"s.1", b"1", b"x" * 300) * 10 and node.out_msgs == 21


def test_a_stream_elsewhere_captures_no_message_that_was_passed_on():
    streams = {name: Stream("S", ["js.>"]) for name in ("a", "b")}
    mesh = Mesh(2, {name: Node(stream) for name, stream in streams.items()})
    far = mesh.peer("b")
    far.send(b"SUB js.* 1\r\n")
    mesh.settle()
    mesh.peer("a").send(pub(b"js.1") * 2 + pub(b"js.2", b"x", b"r"))
    mesh.settle()
    assert far.take().count(b"MSG") == 3
    assert sum(len(msgs) for msgs, _, _ in streams["a"].published) == 3
    assert streams["b"].published == []


def test_a_message_of_another_node_goes_no_further():
    mesh = Mesh(3)
    mesh.part("a", "c")
    far = mesh.peer("c")
    far.send(b"SUB s 1\r\n")
    mesh.peer("b").send(b"SUB s 1\r\n")
    mesh.settle()
    mesh.links["b"].kinds()
    mesh.peer("a").send(pub(b"s"))
    mesh.settle()
    assert far.take() == b"" and mesh.links["b"].kinds() == []


def test_acks_reach_subscribers_of_ack_subjects_at_another_node():
    stream = Stream("S", ["js.>"])
    mesh = Mesh(2, {"a": Node(stream)})
    watcher = mesh.peer("b")
    watcher.send(b"SUB $JS.ACK.> 1\r\n")
    mesh.settle()
    subject = b"$JS.ACK.S.C.1.1.1.17.9"
    mesh.peer("a").send(pub(subject, b"+ACK") * 2)
    mesh.settle()
    assert len(stream.acked) == 2 and watcher.take() == msg(subject, b"1", b"+ACK") * 2
    watcher.leave()
    mesh.settle()
    mesh.links["a"].kinds()
    mesh.peer("a").send(pub(subject, b"+ACK") * 2)
    assert len(stream.acked) == 4 and mesh.links["a"].kinds() == []


def test_acks_of_publishes_are_also_shown_elsewhere():
    mesh = Mesh(2, {"a": Node(Stream("S", ["js.>"]))})
    peer, watcher = mesh.peer("a"), mesh.peer("b")
    peer.send(b"SUB _INBOX.i.* 1\r\n")
    watcher.send(b"SUB _INBOX.> 2\r\n")
    mesh.settle()
    peer.conn.output.publish_acks(b"S", [b"_INBOX.i.1", b"_INBOX.i.2"], range(4, 6))
    mesh.settle()
    assert peer.take().count(b"MSG") == watcher.take().count(b"MSG") == 2


# --- what the node asks -------------------------------------------------------------------------


def test_a_consumers_messages_reach_an_inbox_at_another_node_in_order():
    mesh = Mesh(2)
    router = mesh.beds["a"].router
    far = mesh.peer("b")
    assert router.sink(b"_INBOX.i.1") is None
    far.send(b"SUB _INBOX.i.* 4\r\n")
    mesh.settle()
    sink = router.sink(b"_INBOX.i.1")
    sink.status(b"NATS/1.0 100 Idle Heartbeat\r\n\r\n")
    sink.deliver([(b"js.a", b"$JS.ACK.1", b"", b"1"), (b"js.b", b"", b"NATS/1.0\r\n\r\n", b"2")])
    sink.deliver_run(b"A.%d.%d.%d.%d", [b"js.c"], [b"3"], (range(1), range(1), range(1), [7]))
    sink.status(b"NATS/1.0 404 No Messages\r\n\r\n")
    mesh.settle()
    assert far.take() == (
        b"HMSG _INBOX.i.1 4 31 31\r\nNATS/1.0 100 Idle Heartbeat\r\n\r\n\r\n"
        b"MSG js.a 4 $JS.ACK.1 1\r\n1\r\nHMSG js.b 4 12 13\r\nNATS/1.0\r\n\r\n2\r\n"
        b"MSG js.c 4 A.0.0.0.7 1\r\n3\r\n"
        b"HMSG _INBOX.i.1 4 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n"
    )
    assert sink.is_open()
    far.leave()
    mesh.settle()
    assert not sink.is_open()


def test_a_run_is_the_same_bytes_here_there_and_at_both(monkeypatch):
    monkeypatch.setattr("streamd.net.route.remote_messages.REMOTE_NOTE_BYTES", 1000)
    count = 40
    run = (
        b"$JS.ACK.S.C%%.1.%d.%d.%d.%d",
        [b"js.%d" % (at % 3) for at in range(count)],
        [b"%02d" % at for at in range(count)],
        (range(1, 41), range(5, 45), range(100, 140), range(39, -1, -1)),
    )
    for setup in (b"SUB in 4\r\n", b"SUB in 4\r\nUNSUB 4 7\r\n"):
        mesh = Mesh(3)
        near, far = mesh.peer("a"), mesh.peer("b")
        near.send(setup)
        mesh.beds["a"].router.sink(b"in").deliver_run(*run)
        alone = near.take()
        near.leave()
        far.send(setup)
        mesh.settle()
        mesh.beds["a"].router.sink(b"in").deliver_run(*run)
        mesh.settle()
        assert far.take() == alone != b""
        near, third = mesh.peer("a"), mesh.peer("c")
        for peer in (near, third):
            peer.send(setup)
        mesh.settle()
        mesh.beds["a"].router.sink(b"in").deliver_run(*run)
        mesh.settle()
        assert near.take() == third.take() == alone


def test_a_deliver_group_is_served_wherever_its_members_are():
    mesh = Mesh(3)
    router = mesh.beds["a"].router
    members = [mesh.peer("b"), mesh.peer("b"), mesh.peer("c")]
    plain = mesh.peer("b")
    for peer in members:
        peer.send(b"SUB dq g 2\r\n")
    plain.send(b"SUB dq 1\r\n")
    mesh.settle()
    assert router.sink(b"dq", b"nope") is None
    batch = [(b"js.a", b"", b"", b"%02d" % at) for at in range(12)]
    router.sink(b"dq", b"g").deliver(batch)
    mesh.settle()
    counts = [peer.take().count(b"MSG") for peer in members]
    assert (counts[0] + counts[1], counts[2]) == (8, 4)
    assert all(counts)
    assert plain.take() == b"".join(msg(b"js.a", b"1", each[3]) for each in batch)
    near = mesh.peer("a")
    near.send(b"SUB dq g 3\r\n")
    router.sink(b"dq", b"g").deliver(batch)
    mesh.settle()
    assert near.take().count(b"MSG") == plain.take().count(b"MSG") == 12
    assert [peer.take() for peer in members] == [b""] * 3


def test_watches_see_interest_at_other_nodes():
    mesh = Mesh(2)
    heard, grouped = [], []
    mesh.beds["a"].router.watch(b"d.x", b"", heard.append)
    mesh.beds["a"].router.watch(b"d.x", b"g", grouped.append)
    far = mesh.peer("b")
    far.send(b"SUB d.* 1\r\nSUB d.* g 4\r\n")
    mesh.settle()
    assert heard == grouped == [False]
    far.send(b"SUB d.x 3\r\nSUB d.x g 2\r\n")
    mesh.settle()
    assert heard == grouped == [False, True]
    far.send(b"UNSUB 2\r\n")
    mesh.settle()
    assert (heard, grouped) == ([False, True], [False, True, False])
    mesh.part("a", "b")
    assert heard == [False, True, False]


def test_the_server_publishes_to_other_nodes_too():
    mesh = Mesh(2, {"a": Node(Stream("S", ["js.>"]))})
    router = mesh.beds["a"].router
    far = mesh.peer("b")
    far.send(b"SUB js.a 1\r\n")
    mesh.settle()
    assert router.has_interest(b"js.a")
    mesh.links["a"].kinds()
    for at in range(3):
        router.publish(b"js.a", b"", b"", b"%d" % at)
    mesh.settle()
    assert mesh.links["a"].kinds() == ["net.msgs"]  # of one iteration, so one note
    assert far.take() == b"".join(msg(b"js.a", b"1", b"%d" % at) for at in range(3))


# --- room ---------------------------------------------------------------------------------------


def test_a_full_link_holds_deliveries_and_publishers_back():
    mesh = Mesh(2, {"a": Node(Stream("S", ["js.>"]))})
    far, publisher = mesh.peer("b"), mesh.peer("a")
    far.send(b"SUB d 1\r\n")
    mesh.settle()
    sink = mesh.beds["a"].router.sink(b"d")
    links = mesh.links["a"]
    links.buffered["b"] = 3 * 1024 * 1024
    assert sink.is_congested()
    told = []
    mesh.beds["a"].router.when_drained(lambda: told.append(sink.is_congested()))
    publisher.send(pub(b"d"))
    assert not publisher.transport.is_paused
    links.buffered["b"] = 9 * 1024 * 1024
    publisher.send(pub(b"d"))
    assert publisher.transport.is_paused and mesh.beds["a"].router.stalled_count == 1
    mesh.beds["a"].clock.advance(1.0)
    assert not publisher.transport.is_paused
    publisher.send(pub(b"nobody"))  # is not what fills the link
    assert not publisher.transport.is_paused
    links.buffered["b"] = 0
    for on_change in links.drained:
        on_change("b")
    assert told == [False]


def test_publishers_into_a_stream_that_another_node_leads_rest_too():
    stream = Stream("S", ["js.>"])
    stream.is_local = False
    mesh = Mesh(2, {"a": Node(stream)})
    publisher = mesh.peer("a")
    mesh.links["a"].buffered["b"] = 9 * 1024 * 1024
    publisher.send(pub(b"nobody"))
    assert not publisher.transport.is_paused
    publisher.send(pub(b"js.1"))
    assert publisher.transport.is_paused and len(stream.published) == 1
    mesh.beds["a"].clock.advance(1.0)
    assert not publisher.transport.is_paused
    publisher.send(pub(b"js.1"))  # as before, by the shorter way of what has been seen already
    assert publisher.transport.is_paused and len(stream.published) == 2


@pytest.mark.parametrize("is_leaving", [False, True])
def test_a_slow_client_at_another_node_holds_its_deliveries_back(is_leaving):
    mesh = Mesh(2, {"a": Node(Stream("S", ["js.>"]))})
    far, other = mesh.peer("b"), mesh.peer("b")
    far.send(b"SUB d 1\r\n")
    other.send(b"SUB d 2\r\nSUB e 3\r\n")
    mesh.settle()
    router = mesh.beds["a"].router
    sink = router.sink(b"d")
    far.transport.is_stuck = True
    sink.deliver([(b"js.a", b"", b"", b"x" * 2_000_000)])
    assert not sink.is_congested()
    mesh.settle()
    assert sink.is_congested() and not router.sink(b"e").is_congested()
    told = []
    router.when_drained(lambda: told.append(sink.is_congested()))
    if is_leaving:
        far.leave()
    else:
        far.transport.drain()
    mesh.settle()
    assert told == [False]
    far.transport.is_stuck = True
    sink.deliver([(b"js.a", b"", b"", b"x" * 2_000_000)])
    mesh.settle()
    if not is_leaving:
        mesh.part("a", "b")
        mesh.join("a", "b")
        mesh.settle()
    assert not sink.is_congested()


def test_without_other_nodes_a_link_that_says_nothing_is_no_burden():
    mesh = Mesh(1)
    peer = mesh.peer("a")
    peer.send(b"SUB s 1\r\n")
    assert peer.send(pub(b"s")) == msg(b"s", b"1")
    assert mesh.remotes["a"].nodes() == []


def test_a_slow_link_is_not_filled_by_many_publishers(monkeypatch):
    """40 clients send a chunk whenever they are read, over a link of 16 MB/s; in 128ths."""
    monkeypatch.setattr(
        remote_messages, "REMOTE_STALL_BYTES", remote_messages.REMOTE_STALL_BYTES // 128
    )
    mesh = Mesh(2)
    mesh.peer("b").send(b"SUB d 1\r\n")
    mesh.settle()
    publishers = [mesh.peer("a") for _ in range(40)]
    wire, sent = mesh.wire("a", "b"), 0
    for _ in range(3000):  # 10 ms each
        for publisher in publishers:
            if not publisher.transport.is_paused:
                publisher.send(pub(b"d", b"x" * 2048))
        # At all of it the link would be closed.
        assert mesh.links["a"].buffered_bytes("b") < PEER_BUFFER_BYTES_MAX // 128 // 2
        room = 1250
        while wire and room > 0:
            room -= len(wire[0])
            sent += len(wire.popleft())
        mesh.beds["a"].clock.advance(0.01)
    assert sent > 3000 * 1250  # it was never idle


def test_a_group_whose_members_here_just_left_is_served_elsewhere():
    """Who had many subscriptions is taken out in steps."""
    mesh = Mesh(2)
    gone, far = mesh.peer("a"), mesh.peer("b")
    gone.send(b"SUB d g 0\r\n" + b"".join(b"SUB s.%d g %d\r\n" % (at, at) for at in range(1, 500)))
    far.send(b"SUB d g 1\r\n")
    mesh.settle()
    router = mesh.beds["a"].router
    ticks = iter(range(10**9))
    router.output_queue.clock = lambda: next(ticks)
    gone.leave()
    assert router.subscriptions.sublist.has_literal(b"d", b"g")
    router.sink(b"d", b"g").deliver([(b"m", b"", b"", b"x")])
    mesh.settle()
    assert far.take() == msg(b"m", b"1")


def test_nonsense_from_a_peer_reaches_no_client():
    """Each note of core NATS with each part of it replaced by something of another type, left out
    or one too many: refused at the door, or harmless; clients get what is published afterwards."""
    mesh = Mesh(2)
    listener, publisher = mesh.peer("a"), mesh.peer("b")
    listener.send(b"SUB a 1\r\nSUB to 2\r\n")
    mesh.settle()
    refused = passed = 0
    for kind, args in NOTES.items():
        if not kind.startswith(remote_messages.PREFIX) or kind in ("net.peers", "net.urls"):
            continue  # those two are the links' own
        for each in wrong(args):
            if type(each) is not list:
                continue
            try:
                peer_schemas.check_note(kind, each)
            except peer_schemas.MalformedArgs:
                refused += 1
            else:
                mesh.links["a"].take("b", kind, each)
                mesh.settle()
                passed += 1
    assert refused > 400 and refused > 5 * passed
    listener.take()
    mesh.part("a", "b")
    mesh.join("a", "b")
    mesh.settle()
    publisher.send(pub(b"a", b"p"))
    mesh.settle()
    assert listener.take() == msg(b"a", b"1", b"p")


def test_interest_that_changes_in_a_chunk_of_another_account_is_told() -> None:
    """An import subscribes in the exporter's subject space, whose end of a chunk never comes."""
    mesh = Mesh(2)
    at, client = mesh.beds["a"], mesh.peer("a")
    at.router.output_queue.begin_chunk()  # which the accounts of a node share
    at.subscriptions.add(Subscription(b"x", sid=b"1", conn=client.conn.output))
    mesh.settle()
    assert mesh.beds["b"].subscriptions.remote_interest.sublist.count == 1
