"""Connections that are there when the configuration is read again."""

from __future__ import annotations

from typing import Any

import bcrypt
import pytest

from streamd.config.options import Options, Permissions, User
from streamd.limits import CLIENT_SHARE_S
from streamd.net.client.auth import Authenticator
from tests.unit.net.bed import Bed, Peer

REFUSED = b"-ERR 'Authorization Violation'\r\n"
ALIVE = b"PONG\r\n"


def connect(bed: Bed, user: str = "", password: str = "") -> Peer:
    said = f'"user":"{user}","pass":"{password}",' if user else ""
    peer = bed.peer(f'CONNECT {{{said}"verbose":false,"pedantic":false}}\r\n'.encode())
    assert peer.send(b"PING\r\n").startswith(ALIVE)
    return peer


def reload(bed: Bed, **options: Any) -> None:
    bed.listener.reload(Options(**options))


def test_a_removed_user_or_a_changed_password_ends_the_connection() -> None:
    bed = Bed(Options(users=[User("a", "1"), User("b", "2"), User("c", "3")]))
    a, b, c = connect(bed, "a", "1"), connect(bed, "b", "2"), connect(bed, "c", "3")
    reload(bed, users=[User("a", "1"), User("b", "other")])
    assert a.send(b"PING\r\n") == ALIVE
    assert b.take() == REFUSED and b.transport.is_closing
    assert c.take() == REFUSED and c.transport.is_closing


@pytest.mark.parametrize("is_silent", [False, True], ids=["without credentials", "no CONNECT"])
def test_a_client_without_login_must_log_in_once_it_is_required(is_silent: bool) -> None:
    bed = Bed(Options())
    peer = bed.peer(None) if is_silent else connect(bed)
    peer.send(b"SUB x 1\r\n")
    idle = bed.peer(None)
    reload(bed, token="t")
    assert peer.take().endswith(REFUSED) and peer.transport.is_closing
    idle.take()
    assert not idle.transport.is_closing  # it may still say it
    assert idle.send(b"SUB x 1\r\n") == REFUSED


def test_a_publish_begun_before_a_login_was_required_is_refused() -> None:
    bed = Bed(Options())
    peer, listening = bed.peer(None), connect(bed, "u", "p")
    listening.send(b"SUB a 1\r\n")
    peer.send(b"PUB a 1\r\n")
    reload(bed, users=[User("u", "p")])
    assert peer.send(b"c\r\nPUB a 1\r\nx\r\n").endswith(REFUSED)
    assert listening.send(b"PING\r\n") == ALIVE


def test_limits_of_messages_are_those_configured_now() -> None:
    bed = Bed(Options(max_payload=100, max_control_line=300))
    large, late, long = connect(bed), connect(bed), connect(bed)
    part = b"PUB x 100\r\n" + b"y" * 50
    late.send(part)  # the rest comes when it is too large
    reload(bed, max_payload=200, max_control_line=400)
    large.take(), long.take()
    assert large.send(b"PUB x 150\r\n" + b"y" * 150 + b"\r\nPING\r\n") == ALIVE
    assert long.send(b"SUB %b 1\r\nPING\r\n" % (b"x" * 350)) == ALIVE
    reload(bed, max_payload=60, max_control_line=300)
    large.take(), late.take(), long.take()
    assert large.send(b"PUB x 61\r\n") == b"-ERR 'Maximum Payload Violation'\r\n"
    assert late.send(b"y" * 50 + b"\r\n") == b"-ERR 'Maximum Payload Violation'\r\n"
    assert long.send(b"SUB %b 2\r\n" % (b"x" * 350)).startswith(b"-ERR 'maximum control line")


def test_new_permissions_hold_for_subscriptions_that_are_open() -> None:
    bed = Bed(Options(users=[User("a", "1")]))
    peer = connect(bed, "a", "1")
    peer.send(b"SUB x.y 1\r\nSUB x.* 2\r\nSUB x.y q 3\r\nSUB z 4\r\n")
    assert peer.send(b"PUB x.y 0\r\n\r\n").count(b"MSG x.y") == 3
    denied = Permissions(subscribe_deny=[b"x.y"], publish_deny=[b"z"])
    reload(bed, users=[User("a", "1", denied)])
    violation = b'-ERR \'Permissions Violation for Subscription to "x.y"'
    assert peer.take() == (
        violation + b' (sid "1")\'\r\n' + violation + b' using queue "q" (sid "3")\'\r\n'
    )
    assert peer.send(b"PUB x.y 0\r\n\r\n") == b""  # the wider one is filtered now
    assert peer.send(b"PUB x.z 0\r\n\r\n") == b"MSG x.z 2 0\r\n\r\n"
    assert b"Publish to" in peer.send(b"PUB z 0\r\n\r\n")
    reload(bed, users=[User("a", "1")])
    assert peer.send(b"PUB x.y 0\r\n\r\n") == b"MSG x.y 2 0\r\n\r\n"
    assert peer.send(b"PUB z 0\r\n\r\n") == b"MSG z 4 0\r\n\r\n"


def test_a_user_that_is_in_another_account_ends_without_a_word() -> None:
    """Its subscriptions belong to the account that it was in; it logs in again."""
    bed = Bed(Options(users=[User("a", "1", account="$G")]))
    peer = connect(bed, "a", "1")
    reload(bed, users=[User("a", "1", account="B")])
    assert peer.take() == b"" and peer.transport.is_closing
    assert peer.conn.reason == "Client Closed"


def hashed(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Passwords that bcrypt was asked about."""
    tried: list[bytes] = []
    check = bcrypt.checkpw

    def checkpw(secret: bytes, wanted: bytes) -> bool:
        tried.append(secret)
        return check(secret, wanted)

    monkeypatch.setattr(bcrypt, "checkpw", checkpw)
    return tried


def test_many_connects_with_one_password_cost_one_check(tried: list[bytes]) -> None:
    bed = Bed(Options(users=[User("a", hashed("1"))]))
    peers = [bed.peer(b'CONNECT {"user":"a","pass":"1","verbose":false}\r\n') for _ in range(5)]
    bed.clock.finish_jobs()
    assert tried == [b"1"]
    assert all(peer.send(b"PING\r\n").startswith(ALIVE) for peer in peers)


def test_a_guess_of_a_closed_connection_is_not_tried(tried: list[bytes]) -> None:
    bed = Bed(Options(users=[User("a", hashed("1"))]))
    guesses = [bed.peer(b'CONNECT {"user":"a","pass":"%d"}\r\n' % at) for at in range(2, 50)]
    for peer in guesses[1:]:
        peer.leave()
    bed.clock.finish_jobs()
    assert tried == [b"2"] and guesses[0].transport.is_closing


def test_a_connection_that_closes_while_it_is_judged_again_does_not_stop_the_others() -> None:
    bed = Bed(Options(users=[User("a", "1")]))
    second, first = connect(bed, "a", "1"), connect(bed, "a", "1")
    now = Options(users=[User("a", hashed("1"))])
    bed.listener.policy.options, bed.listener.policy.auth = now, Authenticator(now)
    bed.listener.connections.reauthenticate([second.conn, first.conn])  # from the end
    first.leave()
    while bed.clock.done:
        bed.clock.finish_jobs()
    assert second.send(b"PING\r\n").startswith(ALIVE)


def test_a_hash_is_tried_again_only_if_it_changed(tried: list[bytes]) -> None:
    users = [User("a", hashed("1")), User("b", hashed("2"))]
    bed = Bed(Options(users=users))
    peers = {}
    for name, password in (("a", "1"), ("b", "2")):
        for at in range(3):
            peer = bed.peer(
                f'CONNECT {{"user":"{name}","pass":"{password}","verbose":false}}\r\n'.encode()
            )
            bed.clock.finish_jobs()
            peers[name, at] = peer
    del tried[:]
    reload(bed, users=[users[0], User("b", hashed("other"))])
    while bed.clock.done:
        bed.clock.finish_jobs()
    assert tried == [b"2"]  # once, for all three
    assert all(peers["b", at].take() == REFUSED for at in range(3))
    assert all(peers["a", at].send(b"PING\r\n").startswith(ALIVE) for at in range(3))


def test_a_reload_while_a_password_is_tried() -> None:
    bed = Bed(Options(users=[User("a", hashed("1"))]))
    peer = bed.peer(b'CONNECT {"user":"a","pass":"1","verbose":false}\r\n')
    reload(bed, users=[User("b", "2")])
    bed.clock.finish_jobs()
    assert peer.take() == REFUSED and peer.transport.is_closing


def test_many_are_judged_a_share_of_the_loop_at_a_time() -> None:
    """A reload must not hold up everybody while thousands of connections are looked at."""
    bed = Bed(Options(users=[User("a", "1")]))
    peers = [connect(bed, "a", "1") for _ in range(5)]
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += CLIENT_SHARE_S / 2
        return now

    bed.router.output_queue.clock = clock
    left = []
    reload(bed, users=[User("a", "2")])
    while bed.clock.timers and len(left) < 5:
        left.append(sum(not peer.transport.is_closing for peer in peers))
        bed.clock.advance(0)
    assert left[0] == 4 and left == sorted(left, reverse=True)
    assert all(peer.take() == REFUSED for peer in peers)


def test_the_youngest_go_if_fewer_may_stay() -> None:
    bed = Bed(Options())
    peers = [connect(bed) for _ in range(4)]
    reload(bed, max_connections=2)
    assert [peer.transport.is_closing for peer in peers] == [False, False, True, True]
    assert peers[3].take() == b"-ERR 'maximum connections exceeded'\r\n"


def test_a_new_connect_counts_while_the_old_password_is_tried() -> None:
    bed = Bed(Options(users=[User("a", "1"), User("b", "2")]))
    peer = connect(bed, "a", "1")
    reload(bed, users=[User("a", hashed("other")), User("b", "2")])
    peer.send(b'CONNECT {"user":"b","pass":"2","verbose":false}\r\n')
    bed.clock.finish_jobs()
    assert peer.send(b"PING\r\n").startswith(ALIVE) and peer.conn.user == "b"


def test_a_reload_changes_administrators() -> None:
    """A reload that names a user for it, or no more, holds for those who are here."""
    named = Permissions(publish_allow=[b">", b"$JS.API.META.>"])
    bed = Bed(Options(users=[User("a", "1"), User("b", "2")]))
    peer = connect(bed, "a", "1")
    subject = b"$JS.API.META.LEADER.STEPDOWN"
    assert not peer.conn.output.may_administer(subject)
    reload(bed, users=[User("a", "1", named), User("b", "2")])
    assert peer.conn.output.may_administer(subject)
    reload(bed, users=[User("a", "1", named), User("b", "2")])
    assert peer.conn.output.may_administer(subject)
    reload(bed, users=[User("a", "1"), User("b", "2")])
    assert not peer.conn.output.may_administer(subject)
    reload(bed, users=[])
    assert peer.conn.output.may_administer(subject)
