"""One connection's handshake, answers, rights, keep-alive and end, on a fake transport."""

import gc
import io
import json
import time

import bcrypt
import pytest

from streamd.config.operator_options import OperatorOptions
from streamd.config.options import Options, Permissions, ResponsePermission, User
from streamd.net.client.connection import Connection
from streamd.net.client.output import Output
from streamd.net.client.session import Session
from streamd.obs.server_log import Log
from streamd.protocol.client_protocol import ClientParser
from tests.unit.net.bed import CONNECT, Bed

PARTS = (Connection, Output, Session, ClientParser)
PLAIN = b'CONNECT {"verbose":false,"pedantic":false}\r\n'


def info_of(data):
    assert data.startswith(b"INFO ") and data.endswith(b" \r\n")
    return json.loads(data[5:])


def test_info_comes_first_and_names_the_connection():
    bed = Bed()
    first, second = bed.peer(), bed.peer()
    info = info_of(first.info)
    assert info["client_id"] == 1 and info_of(second.info)["client_id"] == 2
    assert info["proto"] == 1 and info["headers"] is True and info["max_payload"] == 1048576
    assert info["client_ip"] == "127.0.0.1"
    assert "auth_required" not in info and "jetstream" not in info


def test_first_ping_after_connect_brings_connect_info():
    peer = Bed().peer()
    answer = peer.send(b"PING\r\n")
    assert answer.startswith(b"PONG\r\nINFO ")
    assert info_of(answer[6:])["connect_info"] is True
    assert peer.send(b"PING\r\n") == b"PONG\r\n"


def test_protocol_0_gets_no_async_info():
    assert Bed().peer(PLAIN).send(b"PING\r\n") == b"PONG\r\n"


def test_verbose_answers_each_but_pings():
    peer = Bed().peer(b"CONNECT {}\r\n")
    assert peer.take() == b"+OK\r\n"
    data = b"SUB foo 1\r\nPUB foo 1\r\na\r\nSUB foo..a 3\r\nUNSUB 9\r\nSUB foo 1\r\nPING\r\n"
    assert peer.send(data) == (
        b"+OK\r\n+OK\r\nMSG foo 1 1\r\na\r\n-ERR 'Invalid Subject'\r\n+OK\r\n+OK\r\nPONG\r\n"
    )


def test_pedantic_names_a_bad_subject_and_still_publishes():
    peer = Bed().peer(b'CONNECT {"verbose":false,"pedantic":true}\r\n')
    assert peer.send(b"SUB foo.* 1\r\nPUB foo.* 1\r\na\r\n") == (
        b"-ERR 'Invalid Publish Subject'\r\nMSG foo.* 1 1\r\na\r\n"
    )


@pytest.mark.parametrize(
    ("connect", "answer", "reason"),
    [
        (b"CONNECT {x}\r\n", b"", "Protocol Violation"),
        (b"CONNECT []\r\n", b"", "Protocol Violation"),
        (b'CONNECT {"a":%b\r\n' % (b"[" * 2000), b"", "Protocol Violation"),
        (b'CONNECT {"verbose":"x"}\r\n', b"", "Protocol Violation"),
        (b"CONNECT\r\n", b"", "Protocol Violation"),
        (b"CONNECT {} {}\r\n", b"", "Protocol Violation"),
        (b'CONNECT {"protocol":1.0}\r\n', b"", "Protocol Violation"),
        (
            b'CONNECT {"verbose":false,"protocol":2}\r\n',
            b"-ERR 'invalid client protocol'\r\n",
            "Bad Client Protocol Version",
        ),
        (
            b'CONNECT {"verbose":false,"no_responders":true}\r\n',
            b"-ERR 'no responders requires headers support'\r\n",
            "No Responders Requires Headers",
        ),
        (
            b'CONNECT {"verbose":false,"account":"x"}\r\n',
            b"-ERR 'Authorization Violation'\r\n",
            "Authentication Failure",
        ),
    ],
)
def test_bad_connects(connect, answer, reason):
    bed = Bed()
    peer = bed.peer(connect)
    assert peer.take() == answer
    assert peer.transport.is_closing
    assert bed.registry.closed[-1].reason == reason and not bed.registry.open


@pytest.mark.parametrize(
    ("connect", "answer"),
    [
        (b'{"verbose":false,"jwt":null,"nkey":null,"sig":null,"name":null}', b"PONG\r\n"),
        (b'{"verbose":null}', b"+OK\r\nPONG\r\n"),
        (b'{"Verbose":false}', b"PONG\r\n"),
        (b'{"verbose":false,"name":"\xff"}', b"PONG\r\n"),
        (b"null", b"+OK\r\nPONG\r\n"),
    ],
)
def test_connects_are_read_as_nats_server_reads_json(connect, answer):
    """A field that is null is one not given: some clients name all they know, set or not."""
    assert Bed().peer(b"CONNECT %b\r\nPING\r\n" % connect).take() == answer


def test_headers_need_to_be_negotiated():
    bed = Bed()
    plain, other = bed.peer(PLAIN), bed.peer()
    plain.send(b"SUB foo 1\r\n")
    other.send(b"SUB foo 2\r\nHPUB foo 12 14\r\nNATS/1.0\r\n\r\nab\r\n")
    assert plain.take() == b"MSG foo 1 2\r\nab\r\n"
    plain.send(b"HPUB foo 12 14\r\nNATS/1.0\r\n\r\nab\r\n")
    assert plain.transport.is_closing and bed.registry.closed[-1].reason == "Protocol Violation"


def test_second_connect_drops_subscriptions():
    peer = Bed().peer()
    peer.send(b"SUB a 1\r\n")
    assert peer.send(PLAIN + b"PUB a 0\r\n\r\n") == b""


def test_options_that_a_second_connect_does_not_name_still_hold():
    bed = Bed(Options(username="u", password="p"))
    peer = bed.peer(b'CONNECT {"verbose":false,"user":"u","pass":"p","headers":true}\r\n')
    assert peer.send(b'CONNECT {"no_responders":true}\r\nSUB a 1\r\nPING\r\n') == b"PONG\r\n"


def test_reserved_subjects_and_replies_are_refused():
    peer = Bed().peer()
    heads = (b"a $JS.ACK.b", b"a _R_.x", b"a $GR.x", b"$NRG.x", b"a _INBOX.x")
    data = b"".join(b"PUB %b 0\r\n\r\n" % head for head in heads)
    assert peer.send(data) == (
        b"-ERR 'Permissions Violation for Publish with Reply of \"$JS.ACK.b\"'\r\n"
        b"-ERR 'Permissions Violation for Publish with Reply of \"_R_.x\"'\r\n"
        b"-ERR 'Permissions Violation for Publish with Reply of \"$GR.x\"'\r\n"
        b"-ERR 'Permissions Violation for Publish to \"$NRG.x\"'\r\n"
    )


def test_violations_close_after_earlier_events_are_answered():
    bed = Bed()
    peer = bed.peer()
    assert peer.send(b"SUB a 1\r\nPUB a 1\r\nx\r\nBAD\r\nPUB a 1\r\ny\r\n") == (
        b"MSG a 1 1\r\nx\r\n-ERR 'Unknown Protocol Operation'\r\n"
    )
    assert peer.transport.is_closing and bed.subscriptions.sublist.count == 0
    assert peer.send(b"PING\r\n") == b""


def test_a_closing_connection_that_reads_nothing_is_cut_off():
    bed = Bed()
    peer = bed.peer()
    peer.send(b"BAD\r\n")
    bed.clock.advance(bed.options.write_deadline_ns / 1e9)
    assert peer.transport.is_aborted


# --- authentication -----------------------------------------------------------------------------


def test_token():
    options = Options(token="s3cret")
    bed = Bed(options)
    assert info_of(bed.peer(None).info)["auth_required"] is True
    good = bed.peer(b'CONNECT {"verbose":false,"auth_token":"s3cret"}\r\n')
    assert good.send(b"PING\r\n") == b"PONG\r\n"
    for text in (b'{"verbose":false,"auth_token":"no"}', b'{"verbose":false}'):
        bad = bed.peer(b"CONNECT " + text + b"\r\n")
        assert bad.take() == b"-ERR 'Authorization Violation'\r\n"


def test_another_first_operation_is_refused():
    peer = Bed(Options(token="x")).peer(None)
    assert peer.send(b"PING\r\n") == b"-ERR 'Authorization Violation'\r\n"
    assert peer.transport.is_closing


def test_a_connect_may_come_in_pieces():
    """However the network cuts it: only the first byte of a message tells what it is."""
    line = b'CONNECT {"verbose":false,"auth_token":"x"}\r\n'
    bed = Bed(Options(token="x"))
    for at in range(1, len(line)):
        peer = bed.peer(line[:at])
        assert peer.send(line[at:] + b"PING\r\n") == b"PONG\r\n", at
    peer = bed.peer(None)
    assert b"".join(peer.send(b"%c" % byte) for byte in line + b"PING\r\n") == b"PONG\r\n"
    wrong = bed.peer(line[: line.index(b'x"')])
    assert wrong.send(b'no"}\r\nPING\r\n') == b"-ERR 'Authorization Violation'\r\n"
    long = bed.peer(line[:-3])
    assert b"'maximum control line exceeded'" in long.send(b"x" * 5000)


def test_silence_is_timed_out_only_where_connect_is_due():
    bed = Bed(Options(token="x", auth_timeout_s=2.0))
    peer = bed.peer(None)
    bed.clock.advance(1.9)
    assert not peer.transport.is_closing
    bed.clock.advance(0.2)
    assert peer.take() == b"-ERR 'Authentication Timeout'\r\n"
    open_bed = Bed()
    silent = open_bed.peer(None)
    open_bed.clock.advance(60)
    assert not silent.transport.is_closing


def test_bcrypt_is_checked_off_the_loop_and_later_events_wait():
    hashed = bcrypt.hashpw(b"pw", bcrypt.gensalt(4)).decode()
    bed = Bed(Options(username="joe", password=hashed))
    connect = b'CONNECT {"verbose":false,"user":"joe","pass":"pw"}\r\nSUB a 1\r\n'
    peer = bed.peer(connect)
    assert not peer.transport.is_paused  # else nobody would notice that it is gone
    assert peer.send(b"PUB a 1\r\nx\r\n") == b"" and peer.transport.is_paused
    bed.clock.finish_jobs()
    assert peer.take() == b"MSG a 1 1\r\nx\r\n" and not peer.transport.is_paused
    assert peer.conn.user == "joe"
    assert not peer.transport.is_closing
    # The second time the secret is known, without a job.
    assert bed.peer(connect).send(b"PING\r\n") == b"PONG\r\n"
    wrong, gone = [bed.peer(connect.replace(b'"pw"', b'"no"')) for _ in range(2)]
    gone.leave()
    bed.clock.finish_jobs()
    assert wrong.take() == b"-ERR 'Authorization Violation'\r\n"
    assert gone.take() == b""


@pytest.mark.parametrize(
    "said",
    [
        "",
        '"user":"x",',
        '"user":"x","pass":"y",',
        '"auth_token":"",',
        '"auth_token":"t",',
        '"jwt":"j",',
    ],
)
def test_no_client_is_let_in_where_all_users_have_nkeys(said):
    """There is no secret that could be right; the empty one is not either."""
    bed = Bed(Options(operators=OperatorOptions(trusted_keys=("O",))))
    peer = bed.peer(b'CONNECT {%b"verbose":false}\r\n' % said.encode())
    assert peer.take() == b"-ERR 'Authorization Violation'\r\n"
    assert peer.transport.is_closing


def test_no_auth_user_serves_clients_without_connect():
    users = [User("anon", "x", Permissions(publish_allow=[b"open"])), User("joe", "pw")]
    bed = Bed(Options(users=users, no_auth_user="anon"))
    peer = bed.peer(PLAIN)
    assert b'Publish to "shut"' in peer.send(b"PUB shut 0\r\n\r\n")
    wrong = bed.peer(b'CONNECT {"verbose":false,"user":"joe","pass":"bad"}\r\n')
    assert wrong.take() == b"-ERR 'Authorization Violation'\r\n"
    assert wrong.conn.user == "joe"  # for the log, and /connz?state=closed


def test_the_first_info_asks_for_no_login_where_none_is_needed():
    """Clients that refuse to come without credentials do come; who is the system's user alone, and
    later INFO, are told of otherwise, as by nats-server."""
    bed = Bed(Options(users=[User("anon")], no_auth_user="anon"))
    peer = bed.peer()
    assert "auth_required" not in info_of(peer.info)
    assert info_of(peer.send(b"PING\r\n").removeprefix(b"PONG\r\n"))["auth_required"] is True
    bed.listener.reload(Options(users=[User("anon")]))
    assert info_of(bed.peer(None).info)["auth_required"] is True
    bed.listener.reload(Options(users=[User("s")], is_open_besides_system=True))
    assert info_of(bed.peer(None).info)["auth_required"] is True


def test_no_auth_user_does_not_serve_silence():
    """A connection that says nothing at all ends as where a login is due; as in nats-server."""
    bed = Bed(Options(users=[User("anon")], no_auth_user="anon", auth_timeout_s=2.0))
    silent, without_connect, other = bed.peer(None), bed.peer(None), bed.peer(PLAIN)
    without_connect.send(b"PING\r\n")
    bed.clock.advance(2.1)
    assert silent.take() == b"-ERR 'Authentication Timeout'\r\n"
    assert not without_connect.transport.is_closing and not other.transport.is_closing


# --- permissions --------------------------------------------------------------------------------


def user_bed(permissions):
    bed = Bed(Options(users=[User("u", "p", permissions), User("root", "p")]))

    def connect(name):
        return bed.peer(
            b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"user":"%b","pass":"p"}\r\n'
            % name
        )

    return connect(b"u"), connect(b"root")


def test_publish_and_subscribe_permissions():
    user, root = user_bed(
        Permissions(
            publish_allow=[b"pub.*"],
            publish_deny=[b"pub.no"],
            subscribe_allow=[b"sub.>"],
            subscribe_deny=[b"sub.no"],
        )
    )
    root.send(b"SUB > 1\r\n")
    answer = user.send(b"PUB pub.a 0\r\n\r\nPUB pub.no 0\r\n\r\nPUB x 0\r\n\r\n")
    assert answer == (
        b"-ERR 'Permissions Violation for Publish to \"pub.no\"'\r\n"
        b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n"
    )
    assert root.take() == b"MSG pub.a 1 0\r\n\r\n"
    answer = user.send(b"SUB sub.* 1\r\nSUB sub.no 2\r\nSUB x q 3\r\n")
    assert answer == (
        b"-ERR 'Permissions Violation for Subscription to \"sub.no\"'\r\n"
        b'-ERR \'Permissions Violation for Subscription to "x" using queue "q"\'\r\n'
    )
    root.send(b"PUB sub.no 1\r\na\r\nPUB sub.yes 1\r\nb\r\n")
    assert user.take() == b"MSG sub.yes 1 1\r\nb\r\n"


def test_a_denied_subject_does_not_come_from_a_stream_either():
    user, _ = user_bed(Permissions(subscribe_deny=[b"secret.>"]))
    user.send(b"SUB > 1\r\n")
    sink = user.conn._router.sink(b"inbox")
    sink.deliver([(b"secret.a", b"", b"", b"x"), (b"open", b"", b"", b"y")])
    assert user.take() == b"MSG open 1 1\r\ny\r\n"
    sink.deliver([(b"secret.a", b"", b"", b"x")])
    numbers = ([1, 2], [1, 2], [5, 6], [1, 0])
    ack = b"$JS.ACK.S.C.1.%d.%d.%d.%d"
    sink.deliver_run(ack, [b"secret.a", b"open"], [b"x", b"y"], numbers)
    assert user.take() == b"MSG open 1 $JS.ACK.S.C.1.2.2.6.0 1\r\ny\r\n"


def test_a_queue_member_gets_messages_that_another_is_denied():
    user, root = user_bed(Permissions(subscribe_deny=[b"secret.>"]))
    for peer in (user, root):
        peer.send(b"SUB > g 1\r\n")
    user.conn._router.sink(b"d", b"g").deliver([(b"secret.a", b"", b"", b"x")] * 20)
    assert (user.take(), root.take().count(b"MSG secret.a")) == (b"", 20)


def test_denied_pattern_denies_those_that_it_matches_as_if_they_were_subjects():
    user, root = user_bed(Permissions(subscribe_deny=[b"a.b.*"]))
    for wanted in (b"a.b.>", b"a.b.* q", b"a.b.c"):
        assert b"Violation" in user.send(b"SUB %b 1\r\n" % wanted)
    for at, wider in enumerate((b"a.>", b"a.*.c", b"a.b.c.>")):
        assert user.send(b"SUB %b %d\r\n" % (wider, at)) == b""
    root.send(b"PUB a.b.c 0\r\n\r\n")
    assert user.take() == b""


def test_queue_permissions_name_the_group():
    user, _ = user_bed(Permissions(subscribe_allow=[b"a v*", b"b v1"]))
    assert user.send(b"SUB b v1 1\r\n") == b""
    assert b"Violation" in user.send(b"SUB b v2 1\r\n")
    assert b"Violation" in user.send(b"SUB b 1\r\n")


def test_allow_responses_lets_a_service_answer_so_often():
    user, root = user_bed(
        Permissions(publish_allow=[], allow_responses=ResponsePermission(max_msgs=2))
    )
    user.send(b"SUB svc 1\r\n")
    root.send(b"SUB in.1 1\r\nPUB svc in.1 0\r\n\r\n")
    answer = b"PUB in.1 0\r\n\r\n"
    assert user.send(answer * 2) == b"MSG svc 1 in.1 0\r\n\r\n"
    assert b'Violation for Publish to "in.1"' in user.send(answer)
    assert root.take() == b"MSG in.1 1 0\r\n\r\n" * 2


# --- limits, keep-alive, slow consumers ---------------------------------------------------------


def test_limits_on_subscriptions_and_connections():
    bed = Bed(Options(max_subscriptions=1, max_sub_tokens=3, max_connections=1))
    peer = bed.peer()
    assert peer.send(b"SUB a.b.c.d 1\r\n") == (
        b"-ERR 'Permissions Violation for Subscription to \"a.b.c.d\", too many tokens'\r\n"
    )
    assert peer.send(b"SUB a 1\r\nSUB b 2\r\n") == b"-ERR 'maximum subscriptions exceeded'\r\n"
    assert peer.send(b"SUB a _sys_ 3\r\n").endswith(b'using queue "_sys_"\'\r\n')
    refused = bed.peer(None)
    assert refused.info == b"-ERR 'maximum connections exceeded'\r\n"
    assert refused.transport.is_closing and len(bed.registry.open) == 1


def test_a_client_that_never_pongs_is_stale():
    bed = Bed(Options(ping_interval_ns=10_000_000_000, ping_max=2))
    peer = bed.peer()
    bed.clock.advance(2.5)
    assert peer.take() == b"PING\r\n"
    bed.clock.advance(10)
    assert peer.take() == b"PING\r\n"
    bed.clock.advance(10)
    assert peer.take() == b"-ERR 'Stale Connection'\r\n"
    assert bed.registry.stale_connections_count == 1


def test_a_pong_measures_the_round_trip_and_forgives():
    bed = Bed(Options(ping_interval_ns=10_000_000_000))
    peer = bed.peer()
    bed.clock.advance(2.5)
    bed.clock.advance(0.25)
    peer.take()
    peer.send(b"PONG\r\n")
    assert 250_000_000 <= peer.conn.rtt_ns < 1_000_000_000
    bed.clock.advance(10)
    assert not peer.transport.is_closing


def test_the_round_trip_is_guessed_until_it_is_measured():
    """From the time that CONNECT took, as in nats-server; the first PING comes after 2 s still."""
    bed = Bed()
    peer = bed.peer()
    assert peer.conn.rtt_ns > 0
    bed.clock.advance(2.5)
    assert peer.take() == b"PING\r\n"


def test_a_receiver_that_buffers_too_much_is_dropped_unflushed():
    bed = Bed(Options(max_pending=2_000_000, max_payload=1_100_000))
    slow, fast = bed.peer(), bed.peer()
    slow.send(b"SUB a 1\r\n")
    slow.transport.is_stuck = True
    message = b"PUB a 1000000\r\n" + b"x" * 1_000_000 + b"\r\n"
    fast.send(message)
    assert not slow.transport.is_aborted and not fast.transport.is_paused
    fast.send(message)
    assert slow.transport.is_aborted
    assert bed.registry.closed[-1].reason == "Slow Consumer (Pending Bytes)"
    assert bed.registry.slow_consumers_count == 1 and bed.subscriptions.sublist.count == 0
    fast.send(message)  # nobody there any more


def test_a_publisher_rests_while_a_receiver_is_far_behind():
    bed = Bed(Options(max_pending=2_000_000, max_payload=1_900_000))
    slow, fast = bed.peer(), bed.peer()
    slow.send(b"SUB a 1\r\n")
    slow.transport.is_stuck = True
    fast.send(b"PUB a 1800000\r\n" + b"x" * 1_800_000 + b"\r\n")
    assert fast.transport.is_paused
    bed.clock.advance(0.02)
    assert not fast.transport.is_paused


def test_a_receiver_that_never_drains_is_dropped_in_time():
    bed = Bed(Options(max_payload=3_000_000))
    slow, fast = bed.peer(), bed.peer()
    slow.send(b"SUB a 1\r\n")
    slow.transport.is_stuck = True
    fast.send(b"PUB a 2000000\r\n" + b"x" * 2_000_000 + b"\r\n")
    bed.clock.advance(9.9)
    assert not slow.transport.is_aborted
    bed.clock.advance(0.2)
    assert slow.transport.is_aborted
    assert bed.registry.closed[-1].reason == "Slow Consumer (Write Deadline)"


def test_a_receiver_that_reads_on_may_stay_behind():
    """What counts is that everything leaves within the deadline, not that nothing waits."""
    bed = Bed(Options(max_payload=3_000_000))
    late, fast = bed.peer(), bed.peer()
    late.send(b"SUB a 1\r\n")
    late.transport.is_stuck = True
    message = b"PUB a 2000000\r\n" + b"x" * 2_000_000 + b"\r\n"
    fast.send(message)
    for _ in range(20):
        bed.clock.advance(6.0)
        before = late.transport.waiting
        fast.send(message)
        late.transport.waiting -= before  # it read what was there, but never catches up
        assert not late.transport.is_aborted
    fast.send(message)
    bed.clock.advance(6.0)
    late.transport.waiting -= 2_000_000  # one message of two
    bed.clock.advance(20.0)
    assert late.transport.is_aborted
    assert bed.registry.closed[-1].reason == "Slow Consumer (Write Deadline)"


def test_messages_and_subscriptions_are_activity_and_pings_are_not(monkeypatch):
    """What /connz shows as `last_activity`; without it a client that only answers pings would
    never look idle, and one that only receives would."""
    at = [1000]
    monkeypatch.setattr(time, "time_ns", lambda: at[0])
    bed = Bed()
    receiver, publisher = bed.peer(), bed.peer()

    def active_after(peer, sender, data):
        at[0] += 1000
        sender.send(data)
        return peer.conn.last_activity_ns == at[0]

    for data in (b"PING\r\n", b"PONG\r\n", b"PI", b"NG\r\n", b"PING\r\n"):
        assert not active_after(receiver, receiver, data)
    assert active_after(receiver, receiver, b"SUB a 1\r\n")
    assert active_after(publisher, publisher, b"PUB a 1\r\nx\r\n")
    assert receiver.conn.last_activity_ns == at[0]
    assert active_after(receiver, publisher, b"PUB a 1\r\nx\r\n" * 30)
    assert not active_after(receiver, publisher, b"PUB b 1\r\nx\r\n")
    assert active_after(receiver, receiver, b"UNSUB 1\r\n")


def test_totals_survive_their_connections():
    bed = Bed()
    peer = bed.peer()
    peer.send(b"SUB a 1\r\nPUB a 3\r\nabc\r\n")
    peer.leave()
    assert (bed.registry.closed_in_msgs, bed.registry.closed_in_bytes) == (1, 3)
    assert (bed.registry.closed_out_msgs, bed.registry.closed_out_bytes) == (1, 3)
    facts = bed.registry.closed[-1]
    assert facts.reason == "Client Closed" and facts.subscription_count == 1
    assert facts.stop_ns >= facts.start_ns


def _count_of(kind: type) -> int:
    return sum(type(each) is kind for each in gc.get_objects())


@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize("ending", ["leaves", "fails", "is slow"])
def test_a_closed_connection_is_freed_without_the_garbage_collector(
    ending: str, is_traced: bool
) -> None:
    """Connections get old, and the collector hardly ever looks at old objects (GC_THRESHOLDS)."""
    options = Options(is_trace=is_traced, auth_timeout_s=2.0, token="t", max_pending=100)
    bed = Bed(options, log=Log(stream=io.StringIO(), is_trace=is_traced))
    connect = CONNECT.replace(b"{", b'{"auth_token":"t",', 1)
    gc.collect()
    gc.disable()
    try:
        before = [_count_of(kind) for kind in PARTS]
        peer = bed.peer(connect)
        peer.send(b"SUB a 1\r\nPUB a 1\r\nx\r\nPING\r\n")
        assert [_count_of(kind) for kind in PARTS] == [count + 1 for count in before]
        if ending == "fails":
            peer.send(b"nonsense\r\n")
        elif ending == "is slow":
            peer.transport.is_stuck = True
            peer.transport.high = 50
            peer.send(b"PUB a 200\r\n" + b"x" * 200 + b"\r\n")
            assert peer.transport.is_aborted
        peer.leave()
        bed.clock.timers.clear()
        peer.transport.conn = None  # as a transport does whose connection is lost
        del peer
        assert [_count_of(kind) for kind in PARTS] == before
    finally:
        gc.enable()


def test_no_timer_is_left_of_a_client_that_its_ping_cuts_off():
    """The PING is one byte too many for it: the connection ends within the timer's own turn."""
    bed = Bed(Options(max_pending=100, ping_interval_ns=1_000_000_000, write_deadline_ns=0))
    peer = bed.peer()
    peer.transport.is_stuck, peer.transport.waiting = True, 100
    peer.conn.pause_writing()
    bed.clock.advance(2.0)
    assert peer.transport.is_aborted
    assert not [timer for timer in bed.clock.timers if timer.action is not None]


def test_info_reaches_a_client_while_another_is_handled() -> None:
    """As when an operator asks by a message that a client be sent away."""
    bed = Bed()
    told = bed.peer(CONNECT)
    told.send(b"PING\r\n")
    bed.subscriptions.subscribe_internal(b"go", lambda *_: told.conn.send_info(is_lame_duck=True))
    bed.peer(CONNECT).send(b"PUB go 0\r\n\r\n")
    assert b'"ldm":true' in told.take()
