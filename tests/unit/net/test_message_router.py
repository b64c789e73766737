"""Routing: who gets a message, what streams get, and in which order things happen."""

import json

import pytest

from streamd import errors
from streamd.config.options import Options
from streamd.machine.commands import DUPLICATE
from tests.unit.net.bed import Bed, Node, Stream

QUIET = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true%b}\r\n'
NO_ECHO = QUIET % b',"echo":false'


def pub(subject, payload=b"x", reply=b""):
    gap = reply + b" " if reply else b""
    return b"PUB %b %b%d\r\n%b\r\n" % (subject, gap, len(payload), payload)


def msg(subject, sid, payload=b"x", reply=b""):
    gap = reply + b" " if reply else b""
    return b"MSG %b %b %b%d\r\n%b\r\n" % (subject, sid, gap, len(payload), payload)


# --- core ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 200])
def test_each_subscription_gets_each_message_in_order(size):
    bed = Bed()
    a, b = bed.peer(), bed.peer()
    a.send(b"SUB s.* 1\r\nSUB s.1 2\r\n")
    payloads = [b"%d" % i * size for i in range(20)]
    b.send(b"".join(pub(b"s.1", each) for each in payloads))
    got = a.take()
    ends = [got.find(msg(b"s.1", sid, each)) for each in payloads for sid in (b"1",)]
    assert -1 not in ends and ends == sorted(ends)
    assert got.count(b"MSG s.1 2 ") == 20 and len(a.transport.written) == 0


def test_order_over_subjects_is_the_publishers():
    bed = Bed()
    a, b = bed.peer(), bed.peer()
    a.send(b"SUB s.> 1\r\n")
    names = [b"s.%d" % (i % 3) for i in range(30)]
    b.send(b"".join(pub(name, b"%d" % at) for at, name in enumerate(names)))
    assert a.take() == b"".join(msg(name, b"1", b"%d" % at) for at, name in enumerate(names))


def test_one_write_per_receiver_and_chunk():
    bed = Bed()
    a, b = bed.peer(), bed.peer()
    a.send(b"SUB s.* 1\r\n")
    b.conn.data_received(b"".join(pub(b"s.%d" % (i % 3)) for i in range(30)))
    assert len(a.transport.written) == 1


@pytest.mark.parametrize("count", [1, 40])
def test_no_echo(count):
    bed = Bed()
    quiet, other = bed.peer(NO_ECHO), bed.peer()
    quiet.send(b"SUB s 1\r\n")
    assert quiet.send(pub(b"s", b"y" * 40) * count) == b""
    other.send(pub(b"s", b"y" * 40) * count)
    assert quiet.take() == msg(b"s", b"1", b"y" * 40) * count


@pytest.mark.parametrize("payload", [b"x", b"y" * 80])
def test_unsub_after_max_counts_from_the_subscription(payload):
    bed = Bed()
    a, b = bed.peer(), bed.peer()
    a.send(b"SUB s 1\r\n")
    b.send(pub(b"s", payload))
    assert a.send(b"UNSUB 1 3\r\n") == msg(b"s", b"1", payload)
    b.send(pub(b"s", payload) * 20)
    assert a.take() == msg(b"s", b"1", payload) * 2
    assert bed.subscriptions.sublist.count == 0 and not a.conn.subs
    a.send(b"SUB s 1\r\n")
    b.send(pub(b"s", payload))
    a.take()
    a.send(b"UNSUB 1 1\r\n")
    assert bed.subscriptions.sublist.count == 0


def test_a_live_sid_is_not_replaced():
    peer = Bed().peer()
    assert peer.send(b"SUB a 1\r\nSUB b 1\r\n" + pub(b"a") + pub(b"b")) == msg(b"a", b"1")


def test_headers_travel_and_are_stripped_where_not_understood():
    bed = Bed()
    new, old = bed.peer(), bed.peer(b'CONNECT {"verbose":false}\r\n')
    old.send(b"SUB s 9\r\n")
    answer = new.send(b"SUB s 1\r\nHPUB s r.r 12 13\r\nNATS/1.0\r\n\r\nx\r\n")
    assert answer == b"HMSG s 1 r.r 12 13\r\nNATS/1.0\r\n\r\nx\r\n"
    assert old.take() == b"MSG s 9 r.r 1\r\nx\r\n"


def test_one_member_of_each_queue_group_and_all_get_a_share():
    bed = Bed()
    members = [bed.peer() for _ in range(3)]
    for peer in members:
        peer.send(b"SUB s q 1\r\n")
    members[0].send(b"SUB s other 2\r\n")
    bed.peer().send(pub(b"s") * 300)
    got = [peer.take() for peer in members]
    assert sum(each.count(b"MSG s 1 ") for each in got) == 300
    assert all(60 < each.count(b"MSG s 1 ") < 140 for each in got)  # 5 deviations
    assert got[0].count(b"MSG s 2 ") == 300


def test_two_groups_of_two_share_each_its_messages():
    """Turns common to all groups gave every message of a group to the same member."""
    bed = Bed()
    members = [bed.peer() for _ in range(4)]
    for at, peer in enumerate(members):
        peer.send(b"SUB s %b 1\r\n" % (b"q", b"w")[at % 2])
    bed.peer().send(pub(b"s") * 100)
    assert all(25 < peer.take().count(b"MSG s 1 ") < 75 for peer in members)


def test_members_share_the_messages_of_a_publisher_in_turn():
    bed = Bed()
    members = [bed.peer() for _ in range(4)]
    for at, peer in enumerate(members):
        peer.send(b"SUB %b q 1\r\n" % (b"a", b"b")[at % 2])
    bed.peer().send((pub(b"a") + pub(b"b")) * 100)
    assert all(25 < peer.take().count(b" 1 ") < 75 for peer in members)


def test_a_queue_member_with_no_echo_passes_its_own_on():
    bed = Bed()
    me, you = bed.peer(NO_ECHO), bed.peer()
    me.send(b"SUB s q 1\r\n")
    you.send(b"SUB s q 1\r\n")
    me.send(pub(b"s") * 10)
    assert you.take() == msg(b"s", b"1") * 10


def test_no_responders():
    bed = Bed()
    peer = bed.peer()
    peer.send(b"SUB in.* 7\r\n")
    assert peer.send(pub(b"nobody", b"ab", b"in.1")) == (
        b"HMSG in.1 7 38 38\r\nNATS/1.0 503\r\nNats-Subject: nobody\r\n\r\n\r\n"
    )
    bed.peer().send(b"SUB nobody 1\r\n")
    assert peer.send(pub(b"nobody", b"ab", b"in.1")) == b""
    quiet = bed.peer(NO_ECHO)  # its own subscription is no responder
    quiet.send(b"SUB a 1\r\nSUB r 2\r\n")
    assert b"503" in quiet.send(pub(b"a", b"", b"r"))


def test_request_and_reply_through_a_shared_inbox():
    bed = Bed()
    asker, service = bed.peer(), bed.peer()
    asker.send(b"SUB _INBOX.abc.* 1\r\n")
    service.send(b"SUB svc workers 1\r\n")
    for at in range(3):
        inbox = b"_INBOX.abc.%d" % at
        asker.send(pub(b"svc", b"q", inbox))
        assert service.take() == msg(b"svc", b"1", b"q", inbox)
        service.send(pub(inbox, b"a"))
        assert asker.take() == msg(inbox, b"1", b"a")
    # A literal subscription below the prefix must be seen at once.
    service.send(b"SUB _INBOX.abc.2 5\r\n")
    assert service.send(pub(b"_INBOX.abc.2", b"b")) == msg(b"_INBOX.abc.2", b"5", b"b")
    assert asker.take() == msg(b"_INBOX.abc.2", b"1", b"b")


# --- streams ------------------------------------------------------------------------------------


def stream_bed(*subjects):
    stream = Stream("S", list(subjects) or ["js.>"])
    node = Node(stream)
    return Bed(node=node), stream, node


@pytest.mark.parametrize("count", [1, 50])
def test_publishes_of_a_chunk_are_posted_once(count):
    bed, stream, _ = stream_bed()
    peer = bed.peer()
    payload = b"p" * 40
    data = b"".join(pub(b"js.a", payload, b"_INBOX.i.%d" % i) for i in range(count))
    peer.send(data)
    ((msgs, replies, sink),) = stream.published
    assert msgs == [(b"js.a", b"", payload)] * count
    assert replies == [b"_INBOX.i.%d" % i for i in range(count)]
    assert sink is peer.conn.output


def test_mixed_subjects_keep_their_order_and_subscribers_see_them_too():
    bed, stream, _ = stream_bed("js.*")
    peer, watcher = bed.peer(), bed.peer()
    watcher.send(b"SUB js.2 1\r\n")
    names = [b"js.%d" % (i % 4) for i in range(40)]
    peer.send(b"".join(pub(name, b"%d" % at, b"r.%d" % at) for at, name in enumerate(names)))
    ((msgs, replies, _),) = stream.published
    assert [each[0] for each in msgs] == names
    assert [each[2] for each in msgs] == [b"%d" % at for at in range(40)]
    assert replies == [b"r.%d" % at for at in range(40)]
    assert watcher.take().count(b"MSG js.2 1 ") == 10


def test_a_new_stream_is_seen_with_the_topology_version():
    bed, stream, node = stream_bed("js.a")
    peer = bed.peer()
    peer.send(pub(b"js.b"))
    assert not stream.published
    other = Stream("T", ["js.b"])
    node.all.append(other)
    node.topology_version += 1
    peer.send(pub(b"js.b"))
    assert len(other.published) == 1


def test_a_captured_subject_has_a_responder():
    bed, _, _ = stream_bed()
    peer = bed.peer()
    peer.send(b"SUB in.* 1\r\n")
    assert peer.send(pub(b"js.a", b"x", b"in.1")) == b""


@pytest.mark.parametrize("subject", [b"o..x", b"o.", b".x", b"o.a..b"])
def test_a_subject_with_an_empty_token_leads_nowhere(subject):
    stream = Stream("S", ["o.>", "*.x"])
    bed = Bed(node=Node(stream))
    other, peer = bed.peer(), bed.peer()
    other.send(b"SUB > 1\r\nSUB *.* 2\r\nSUB o.> 3\r\n")
    got = peer.send(b"SUB r 1\r\nPUB %b r 1\r\nx\r\n" % subject)
    assert b"NATS/1.0 503" in got and not stream.published and other.take() == b""


def test_a_stream_without_acks_is_given_no_replies():
    bed, stream, _ = stream_bed()
    stream.machine.config["no_ack"] = True
    bed.peer().send(pub(b"js.a", b"x", b"in.1") * 2)
    assert stream.published[0][1] == [b"", b""]


def test_a_stream_that_captures_inboxes_gets_them():
    bed, stream, _ = stream_bed("_INBOX.>")
    peer = bed.peer()
    peer.send(b"SUB _INBOX.x.* 1\r\n")
    assert peer.send(pub(b"_INBOX.x.1")) == msg(b"_INBOX.x.1", b"1")
    assert len(stream.published) == 1


def test_api_requests_come_after_earlier_publishes():
    bed, stream, _ = stream_bed()

    def on_request(subject, reply, headers, payload, conn):
        stream.log.append("api")
        assert conn is peer.conn.output and (reply, payload) == (b"in.1", b"{}")

    bed.subscriptions.subscribe_internal(b"$JS.API.>", on_request)
    peer = bed.peer()
    peer.send(
        pub(b"js.a")
        + pub(b"$JS.API.STREAM.INFO.S", b"{}", b"in.1")
        + pub(b"js.a") * 2
        + pub(b"$JS.ACK.S.C.1.2.3.4.5", b"+ACK")
        + pub(b"js.b")
    )
    assert stream.log == ["publish 1", "api", "publish 2", "ack", "publish 1"]


@pytest.mark.parametrize("count", [1, 60])
def test_acks_reach_their_stream_without_a_route_each(count):
    bed, stream, _ = stream_bed()
    subjects = [b"$JS.ACK.S.C.1.%d.%d.1700000000000000000.9" % (i, i) for i in range(1, count + 1)]
    bed.peer().send(b"".join(pub(each, b"+ACK") for each in subjects))
    assert stream.acked == [(each, b"", b"+ACK") for each in subjects]
    assert len(bed.subscriptions.table.routes) == 0
    bed.peer().send(pub(b"$JS.ACK.d.hash.S.C.1.7.7.17.9.x", b"", b"_INBOX.d"))
    assert stream.acked[-1] == (b"$JS.ACK.d.hash.S.C.1.7.7.17.9.x", b"_INBOX.d", b"")


def test_acks_also_reach_subscribers_of_ack_subjects():
    bed, stream, _ = stream_bed()
    watcher = bed.peer()
    watcher.send(b"SUB $JS.ACK.> 1\r\n")
    subject = b"$JS.ACK.S.C.1.1.1.17.9"
    bed.peer().send(pub(subject, b"+ACK") * 2)
    assert len(stream.acked) == 2 and watcher.take() == msg(subject, b"1", b"+ACK") * 2


def test_flow_replies_and_acks_of_nothing():
    bed, stream, _ = stream_bed()
    peer = bed.peer()
    peer.send(b"SUB in.* 1\r\n")
    peer.send(pub(b"$JS.FC.S.C.xyz", b""))
    block = b"NATS/1.0\r\nNats-Last-Stream: 7\r\n\r\n"
    peer.send(b"HPUB $JS.FC.S.C.xyz %d %d\r\n%b\r\n" % (len(block), len(block), block))
    assert stream.flow == [("C", b"$JS.FC.S.C.xyz", b""), ("C", b"$JS.FC.S.C.xyz", block)]
    assert b"503" in peer.send(pub(b"$JS.ACK.NONE.C.1.1.1.17.9", b"", b"in.1"))
    assert b"503" in peer.send(pub(b"$JS.ACK.S", b"", b"in.1"))


# --- acks of publishes --------------------------------------------------------------------------


def acks_of(data):
    """(reply, body) of each MSG in `data`."""
    parts = data.split(b"\r\n")
    heads, bodies = parts[0:-1:2], parts[1:-1:2]
    found = []
    for head, body in zip(heads, bodies, strict=True):
        verb, reply, _sid, size = head.split(b" ")
        assert verb == b"MSG" and int(size) == len(body)
        found.append((reply, json.loads(body)))
    return found


@pytest.mark.parametrize("first", [1, 95, 998])
def test_a_run_of_acks_is_one_write(first):
    bed, _, _ = stream_bed()
    peer = bed.peer()
    peer.send(b"SUB _INBOX.i.* 1\r\n")
    replies = [b"_INBOX.i.%d" % i for i in range(12)]
    peer.conn.output.publish_acks(b"S", replies, range(first, first + 12))
    assert len(peer.transport.written) == 1
    assert acks_of(peer.take()) == [
        (reply, {"stream": "S", "seq": first + at}) for at, reply in enumerate(replies)
    ]
    assert peer.conn.out_msgs == 12


def test_acks_find_other_ways_when_replies_differ():
    bed, _, _ = stream_bed()
    peer, other = bed.peer(), bed.peer()
    peer.send(b"SUB _INBOX.i.* 1\r\nSUB lit 2\r\n")
    other.send(b"SUB far.* 3\r\n")
    replies = [b"_INBOX.i.1", b"", b"_INBOX.i.1.2", b"lit", b"far.1"]
    peer.conn.output.publish_acks(b"S", replies, range(7, 12))
    assert acks_of(peer.take()) == [
        (b"_INBOX.i.1", {"stream": "S", "seq": 7}),
        (b"lit", {"stream": "S", "seq": 10}),
    ]
    assert acks_of(other.take()) == [(b"far.1", {"stream": "S", "seq": 11})]


def test_every_kind_of_outcome_has_its_body():
    bed, _, _ = stream_bed()
    peer = bed.peer()
    peer.send(b"SUB _INBOX.i.* 1\r\n")
    outcomes = [3, (DUPLICATE, 2), errors.STREAM_WRONG_LAST_SEQUENCE(seq=5), (9, 4, "b1")]
    peer.conn.output.publish_acks(b"S", [b"_INBOX.i.%d" % i for i in range(4)], outcomes)
    bodies = [body for _, body in acks_of(peer.take())]
    assert bodies == [
        {"stream": "S", "seq": 3},
        {"stream": "S", "seq": 2, "duplicate": True},
        {
            "error": {"code": 400, "err_code": 10071, "description": "wrong last sequence: 5"},
            "stream": "S",
            "seq": 0,
        },
        {"stream": "S", "seq": 9, "batch": "b1", "count": 4},
    ]


def test_a_stream_gets_the_acks_whose_replies_it_captures():
    bed, stream, _ = stream_bed("acks.>")
    peer = bed.peer()
    peer.send(b"SUB acks.* 1\r\n")
    bodies = [b'{"stream":"S","seq":%d}' % seq for seq in (1, 2)]
    peer.conn.output.publish_acks(b"S", [b"acks.1", b"acks.2"], range(1, 3))
    stored = [msgs[0] for msgs, replies, _ in stream.published if replies == [b""]]
    assert stored == [(b"acks.1", b"", bodies[0]), (b"acks.2", b"", bodies[1])]
    assert peer.take() == msg(b"acks.1", b"1", bodies[0]) + msg(b"acks.2", b"1", bodies[1])


def test_acks_to_a_connection_that_is_gone_are_dropped():
    bed, _, _ = stream_bed()
    peer = bed.peer()
    peer.send(b"SUB _INBOX.i.* 1\r\n")
    peer.leave()
    peer.conn.output.publish_acks(b"S", [b"_INBOX.i.1", b"_INBOX.i.2"], range(1, 3))
    assert peer.take() == b""


# --- what the node asks -------------------------------------------------------------------------


def test_a_sink_delivers_under_the_messages_own_subjects():
    bed, _, _ = stream_bed()
    peer = bed.peer()
    assert bed.router.sink(b"_INBOX.i.1") is None
    peer.send(b"SUB _INBOX.i.* 4\r\n")
    sink = bed.router.sink(b"_INBOX.i.1")
    sink.deliver(
        [
            (b"js.a", b"$JS.ACK.1", b"", b"one"),
            (b"js.b", b"", b"", b"three"),
            (b"js.c", b"$JS.ACK.2", b"NATS/1.0\r\n\r\n", b"five5"),
            (b"js.d", b"", b"NATS/1.0\r\n\r\n", b""),
        ]
    )
    assert len(peer.transport.written) == 1
    assert peer.take() == (
        b"MSG js.a 4 $JS.ACK.1 3\r\none\r\nMSG js.b 4 5\r\nthree\r\n"
        b"HMSG js.c 4 $JS.ACK.2 12 17\r\nNATS/1.0\r\n\r\nfive5\r\n"
        b"HMSG js.d 4 12 12\r\nNATS/1.0\r\n\r\n\r\n"
    )
    sink.status(b"NATS/1.0 404 No Messages\r\n\r\n")
    assert peer.take() == (b"HMSG _INBOX.i.1 4 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n")
    assert sink.is_open()
    peer.send(b"UNSUB 4\r\n")
    assert not sink.is_open()
    sink.deliver([(b"js.a", b"", b"", b"x")])
    assert peer.take() == b""


def test_a_sink_honours_max_and_queues():
    bed, _, _ = stream_bed()
    a, b = bed.peer(), bed.peer()
    a.send(b"SUB one 1\r\nUNSUB 1 2\r\nSUB dq g 2\r\n")
    b.send(b"SUB dq g 2\r\n")
    batch = [(b"js.a", b"", b"", b"%d" % at) for at in range(6)]
    bed.router.sink(b"one").deliver(batch)
    assert a.take() == msg(b"js.a", b"1", b"0") + msg(b"js.a", b"1", b"1")
    assert bed.router.sink(b"dq", b"nope") is None
    bed.router.sink(b"dq", b"g").deliver(batch)
    counts = [peer.take().count(b"MSG") for peer in (a, b)]
    assert sum(counts) == 6
    assert all(counts)


def test_a_congested_receiver_is_reported_and_so_is_its_relief():
    bed, _, _ = stream_bed()
    peer = bed.peer()
    peer.send(b"SUB d 1\r\n")
    sink = bed.router.sink(b"d")
    peer.transport.is_stuck = True
    sink.deliver([(b"js.a", b"", b"", b"x" * 2_000_000)])
    told = []
    bed.router.when_drained(lambda: told.append(sink.is_congested()))
    assert sink.is_congested() and not told
    peer.transport.drain()
    assert told == [False]
    bed.router.on_drained()
    assert told == [False]


def test_watches_tell_of_interest_as_it_comes_and_goes():
    bed, _, _ = stream_bed()
    heard = []
    token = bed.router.watch(b"d.x", b"", heard.append)
    assert heard == [False]
    peer, other = bed.peer(), bed.peer()
    other.send(b"SUB d.* 1\r\nSUB > 2\r\nSUB d.x q 3\r\n")
    assert heard == [False]  # who looks at everything is not who it is for
    peer.send(b"SUB d.x 2\r\nSUB e 3\r\n")
    assert heard == [False, True]
    peer.leave()
    assert heard == [False, True, False]
    bed.router.unwatch(token)
    bed.peer().send(b"SUB d.x 1\r\n")
    assert len(heard) == 3


def test_a_watch_on_a_queue_wants_a_member():
    bed, _, _ = stream_bed()
    heard = []
    bed.router.watch(b"d", b"g", heard.append)
    peer = bed.peer()
    peer.send(b"SUB d 1\r\nSUB d h 2\r\n")
    assert heard == [False]
    peer.send(b"SUB d g 3\r\n")
    assert heard == [False, True]


def test_the_server_publishes_to_subscribers_streams_and_itself():
    bed, stream, _ = stream_bed("js.>")
    peer = bed.peer()
    peer.send(b"SUB js.* 1\r\nSUB back 2\r\n")
    heard = []
    bed.subscriptions.subscribe_internal(b"js.a", lambda *args: heard.append(args))
    assert bed.router.has_interest(b"js.a") and not bed.router.has_interest(b"zzz")
    bed.router.publish(b"js.a", b"back", b"", b"adv")
    assert peer.take() == msg(b"js.a", b"1", b"adv", b"back")
    assert heard == [(b"js.a", b"back", b"", b"adv", None)]
    ((msgs, replies, sink),) = stream.published
    assert msgs == [(b"js.a", b"", b"adv")]
    sink.publish_acks(b"S", replies, [5])
    assert peer.take() == msg(b"back", b"2", b'{"stream":"S","seq":5}')


def test_the_route_cache_is_bounded(monkeypatch):
    monkeypatch.setattr("streamd.net.pubsub.subject_cache.NET_ROUTE_CACHE_MAX", 50)
    bed = Bed()
    bed.peer().send(b"".join(pub(b"s.%d" % i) + pub(b"_INBOX.%d.x" % i) for i in range(500)))
    assert len(bed.subscriptions.table.routes) <= 50


def test_a_run_goes_out_as_the_same_messages_would_one_by_one():
    """deliver_run to one plain subscriber, to a limited one and to two: the bytes of deliver."""
    ack = b"$JS.ACK.S.C%%.1.%d.%d.%d.%d"
    count = 40
    subjects = [b"js.%d" % (at % 3) for at in range(count)]
    payloads = [b"%02d" % at for at in range(count)]
    numbers = (range(1, 41), range(5, 45), range(100, 140), range(39, -1, -1))
    rows = zip(subjects, zip(*numbers, strict=True), payloads, strict=True)
    batch = [(subject, ack % row, b"", payload) for subject, row, payload in rows]
    for setup in (b"SUB in 4\r\n", b"SUB in 4\r\nUNSUB 4 7\r\n", b"SUB in 4\r\nSUB in %d\r\n"):
        bed, _, _ = stream_bed()
        one, other = bed.peer(), bed.peer()
        one.send(setup)
        bed.router.sink(b"in").deliver_run(ack, subjects, payloads, numbers)
        got = one.take()
        other.send(setup)
        one.send(b"UNSUB 4\r\nUNSUB %d\r\n")
        bed.router.sink(b"in").deliver(batch)
        assert got == other.take()
        assert b"$JS.ACK.S.C%.1.1.5.100.39 2\r\n00\r\n" in got


def test_a_double_ack_of_a_consumer_that_is_gone_hears_no_responders():
    """One ack, and a chunk of them; once the client waited for its timeout."""
    bed, stream, _ = stream_bed()
    peer = bed.peer()
    peer.send(b"SUB _INBOX.d.* 1\r\n")
    del stream.machine.consumers["C"]
    for count in (1, 60):
        acks = [b"$JS.ACK.S.C.1.%d.%d.1700000000000000000.9" % (i, i) for i in range(count)]
        got = peer.send(b"".join(pub(each, b"+ACK", b"_INBOX.d.1") for each in acks))
        assert got.count(b"NATS/1.0 503") == count
    assert stream.acked == []


# --- who asks for much --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["run", "mixed", "large", "queues"])
def test_a_fan_out_to_very_many_is_written_in_parts(monkeypatch, kind):
    for module in ("fanout", "output_queue"):
        monkeypatch.setattr(f"streamd.net.pubsub.{module}.FANOUT_BYTES", 20_000)
    bed = Bed()
    a, b = bed.peer(), bed.peer()
    count = 500
    group = b"q%d " if kind == "queues" else b""
    a.send(b"".join(b"SUB s %b%d\r\n" % (group and group % at, at) for at in range(count)))
    wanted = [b"x"] * 20 if kind == "run" else [b"a", b"bc"]
    if kind == "large":
        wanted = [b"y" * 30_000]
    b.conn.data_received(b"".join(pub(b"s", each) for each in wanted))
    assert max(map(len, a.transport.written)) < 100_000
    got = a.take()
    for at in range(0, count, 99):
        sid = b"%d" % at
        ends = [got.find(msg(b"s", sid, each)) for each in wanted]
        assert -1 not in ends and ends == sorted(ends)
    assert got.count(b"MSG s ") == count * len(wanted)


def test_a_receiver_that_reads_nothing_is_cut_off_before_the_rest_is_gathered():
    bed = Bed(Options(max_pending=100_000))
    a, b = bed.peer(), bed.peer()
    a.send(b"".join(b"SUB s %d\r\n" % at for at in range(1000)))
    a.transport.is_stuck = True
    b.send(pub(b"s", b"x" * 100) * 2000)  # 200 MB
    assert a.conn.is_closed and a.transport.waiting < 20_000_000
    assert b.conn.in_msgs == 2000 and not bed.subscriptions.sublist.count


@pytest.mark.parametrize("kind", ["run", "mixed", "checked", "lines"])
def test_a_long_chunk_lets_others_go_first(kind):
    bed = Bed()
    a, b = bed.peer(), bed.peer()
    a.send(b"SUB s.* 1\r\nSUB s.* 2\r\n")
    if kind == "checked":
        b.send(b'CONNECT {"verbose":true,"pedantic":false}\r\n')
    steps = iter(range(1, 1000))
    bed.router.output_queue.clock = lambda: next(steps)  # each look takes more than a share
    names = [b"s.%d" % (at % 2 if kind != "run" else 0) for at in range(6)]
    lines = [pub(name, b"%d" % at) for at, name in enumerate(names)]
    gap = b"PING\r\n" if kind == "lines" else b""
    b.conn.data_received(gap.join(lines))
    first = a.take()
    if kind != "run":  # so few to so few are one part
        assert first.count(b"MSG s") == 2 and b.transport.is_paused
        b.conn.data_received(pub(b"s.9", b"last"))  # was on its way
        assert a.take() == b""
        bed.clock.advance(0)
        assert b.conn.in_msgs == 7
    assert not b.transport.is_paused
    rest = first + a.take()
    assert [int(part[:1]) for part in rest.split(b" 1 1\r\n")[1:]] == list(range(6))


def test_a_closed_member_gets_no_turn():
    bed = Bed()
    a, b = bed.peer(), bed.peer()
    a.send(b"SUB s.* 1\r\n")
    steps = iter(range(1, 1000))
    bed.router.output_queue.clock = lambda: next(steps)
    b.conn.data_received((pub(b"s.1") + b"PING\r\n") * 3)
    b.leave()
    a.take()
    bed.clock.advance(1)
    assert a.take() == b""


def test_a_star_in_an_inbox_is_text():
    """Where the subjects of a prefix share a route, too."""
    peer = Bed().peer()
    peer.send(b"SUB _INBOX.*.* 1\r\n")
    assert peer.send(pub(b"_INBOX.*.x")) == msg(b"_INBOX.*.x", b"1")


@pytest.mark.parametrize("queue", [b"", b"q "])
def test_one_of_many_on_a_subject_ends_and_the_others_keep_their_order(queue):
    bed = Bed()
    a = bed.peer()
    a.send(b"".join(b"SUB s %b%d\r\n" % (queue, at) for at in range(50)))
    subs = list(a.conn.subs.values())
    a.send(b"UNSUB 49\r\nUNSUB 7\r\n")
    match = bed.subscriptions.sublist.match(b"s")
    kept = match.queues[0] if queue else match.plain
    assert kept == subs[:7] + subs[8:49]


def test_very_many_subscriptions_end_a_share_at_a_time():
    bed = Bed()
    peer, other = bed.peer(), bed.peer()
    peer.send(
        b"".join(b"SUB a.%d %d\r\nSUB in.%d q q%d\r\n" % (at, at, at, at) for at in range(500))
    )
    other.send(b"SUB in.7 q 1\r\n")
    ticks = iter(range(10**9))
    bed.router.output_queue.clock = lambda: next(ticks) * 1e-3  # each look takes a millisecond
    peer.leave()
    assert bed.registry.closed[-1].subscription_count == 1000
    assert 500 < bed.subscriptions.sublist.count < 1000
    # What is still there to be taken out gets nothing, and stands for nobody.
    assert bed.router.sink(b"a.0") is None and bed.router.sink(b"in.8", b"q") is None
    # Members of groups go first: other nodes may still choose this one for them.
    assert not bed.subscriptions.sublist.has_literal(b"in.499", b"q")
    for _ in range(8):
        bed.router.sink(b"in.7", b"q").deliver([(b"m", b"", b"", b"x")])
    assert other.take() == msg(b"m", b"1") * 8
    asker = bed.peer()
    assert asker.send(b"SUB r 1\r\n" + pub(b"a.0", b"", b"r")).startswith(b"HMSG r 1 ")
    bed.clock.advance(1)
    assert bed.subscriptions.sublist.count == 2


def test_a_closed_connection_remembers_its_first_32_subscriptions():
    bed = Bed()
    peer = bed.peer()
    peer.send(b"".join(b"SUB a.%d %d\r\n" % (at, at) for at in range(500)))
    peer.leave()
    gone = bed.registry.closed[-1]
    assert gone.subscription_count == 500
    assert [sub.subject for sub in gone.subscriptions()] == [f"a.{at}" for at in range(32)]


def test_a_member_that_ends_within_a_batch_leaves_the_rest_to_others():
    bed = Bed()
    peer, other = bed.peer(), bed.peer()
    peer.send(b"SUB d g 1\r\nUNSUB 1 2\r\n")
    other.send(b"SUB d g 1\r\n")
    bed.router.sink(b"d", b"g").deliver([(b"m", b"", b"", b"x")] * 40)
    assert peer.take() == msg(b"m", b"1") * 2
    assert other.take() == msg(b"m", b"1") * 38
