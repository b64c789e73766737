"""Who is let in by what a CONNECT says, and what users with permissions may do."""

from __future__ import annotations

import base64
from typing import Any

import bcrypt
import pytest

from streamd.config import grammar, reader
from streamd.config.operator_options import OperatorOptions
from streamd.config.options import Options, Permissions, ResponsePermission, User
from streamd.config.tls_options import TlsOptions
from streamd.config.websocket_options import WebSocketOptions
from streamd.limits import REPLY_GRANTS_MAX, RIGHTS_CACHE_MAX
from streamd.net.client.auth import Approach, Authenticator, Check, Identity, Refusal, UserRights
from streamd.net.tls.facts import PeerCertificate, Subject, TlsFacts
from streamd.tokens.nkeys import encode_signature
from streamd.types import SYSTEM_ACCOUNT
from tests.minted_tokens import REVOKED_USER, USER
from tests.unit.net.bed import Bed

HASH = bcrypt.hashpw(b"p", bcrypt.gensalt(4)).decode()
SECOND = 1_000_000_000


def who(options: Options, connect: dict[str, Any]) -> str | None:
    """The user's name ("" for one without), or None for a refusal."""
    judged = Authenticator(options).judge(connect)
    found = judged.run() if isinstance(judged, Check) else judged
    return found if found is None else found.user


@pytest.mark.parametrize(
    ("options", "connect", "user"),
    [
        (Options(), {}, ""),
        (Options(), {"user": "u", "pass": "p"}, ""),
        (Options(token="t"), {}, None),
        (Options(token="t"), {"auth_token": "t"}, ""),
        (Options(token="t"), {"auth_token": "T"}, None),
        (Options(token="t"), {"user": "t"}, ""),
        (Options(token="t"), {"user": "t", "pass": "p"}, None),
        (Options(token="t"), {"auth_token": 5}, None),
        (Options(token=HASH), {"auth_token": "p"}, ""),
        (Options(token=HASH), {"auth_token": HASH}, None),
        (Options(username="u", password="p"), {"user": "u", "pass": "p"}, "u"),
        (Options(username="u", password="p"), {"user": "u"}, None),
        (Options(username="u", password="p"), {"user": "v", "pass": "p"}, None),
        (Options(username="u", password="p"), {"pass": "p"}, None),
        (Options(users=[User("u", HASH)]), {"user": "u", "pass": "p"}, "u"),
        (Options(users=[User("u", HASH)]), {"user": "u", "pass": "q"}, None),
        (Options(users=[User("u", "p")]), {"nkey": "U"}, None),
        (Options(users=[User("u", "p")], no_auth_user="u"), {}, "u"),
        (Options(users=[User("u", "p")], no_auth_user="u"), {"user": "v"}, None),
        (Options(users=[User("u", "p")], no_auth_user="u"), {"jwt": "J"}, "u"),
        (Options(users=[User("u", "p")], is_open_besides_system=True), {}, ""),
        (Options(users=[User("u", "p")], is_open_besides_system=True), {"user": "u"}, None),
        (Options(users=[User("u", "p")], is_open_besides_system=True), {"user": "v"}, None),
        (Options(operators=OperatorOptions(trusted_keys=("O",))), {"user": "u", "pass": "p"}, None),
        (Options(operators=OperatorOptions(trusted_keys=("O",))), {}, None),
    ],
)
def test_verdict_on_a_connect(options: Options, connect: dict[str, Any], user: str | None) -> None:
    assert who(options, connect) == user


def test_a_user_of_the_list_is_not_replaced_by_the_single_one() -> None:
    options = Options(users=[User("u", "listed", account="A")], username="u", password="single")
    assert who(options, {"user": "u", "pass": "listed"}) == "u"
    assert who(options, {"user": "u", "pass": "single"}) is None


def test_default_permissions_are_for_users_of_their_block() -> None:
    """The reader has given them to those who have none of their own: a user who still has none is
    another account's, and not bound by them."""
    text = """
        authorization {
          default_permissions { publish: d }
          users [ {user: a, password: p, permissions { publish: a }}, {user: b, password: p} ]
        }
        accounts { A { users [ {user: c, password: p} ] } }
    """
    auth = Authenticator(reader.from_tree(grammar.parse(text)))
    for name, allowed in (("a", [b"a"]), ("b", [b"d"]), ("c", None)):
        found = auth.judge({"user": name, "pass": "p"})
        assert isinstance(found, Identity)
        assert (found.permissions and found.permissions.publish_allow) == allowed
    single = Options(username="u", password="p", default_permissions=Permissions([b"d"]))
    found = Authenticator(single).judge({"user": "u", "pass": "p"})
    assert isinstance(found, Identity) and found.permissions == single.default_permissions


def test_a_secret_that_passed_is_not_tried_again_not_even_after_a_reload() -> None:
    connect = {"user": "u", "pass": "p"}
    options = Options(users=[User("u", HASH)])
    auth = Authenticator(options)
    first = auth.judge(connect)
    assert isinstance(first, Check) and first.run() is not None
    assert isinstance(auth.judge(connect), Identity)
    assert isinstance(auth.judge(connect | {"pass": "q"}), Check)
    assert isinstance(Authenticator(options, before=auth).judge(connect), Identity)


def test_verdicts_are_remembered_within_bounds() -> None:
    rights = UserRights(Permissions(publish_allow=[b"a.*"], subscribe_deny=[b"a.1", b"a.2 q"]))
    for _ in range(2):
        for at in range(RIGHTS_CACHE_MAX + 5):
            assert rights.may_publish(b"a.%d" % at, now_ns=0)
            assert rights.is_denied_delivery(b"a.%d" % at) is (at == 1)
        assert not rights.may_publish(b"b", now_ns=0)
    assert len(rights._may_publish) <= RIGHTS_CACHE_MAX
    assert len(rights._deny_cache) <= RIGHTS_CACHE_MAX


def answering(**response: int) -> UserRights:
    allowed = ResponsePermission(**response)
    return UserRights(Permissions(publish_allow=[], allow_responses=allowed))


@pytest.mark.parametrize(
    ("response", "answers"),
    [
        ({}, [(0, True), (0, False)]),
        ({"max_msgs": 3}, [(0, True), (0, True), (0, True), (0, False)]),
        ({"max_msgs": -1, "ttl_ns": -1}, [(0, True), (10**6, True), (10**9, True)]),
        ({"max_msgs": 5, "ttl_ns": SECOND}, [(0, True), (1, True), (2, False), (0, False)]),
    ],
)
def test_a_reply_may_be_used_so_often_for_so_long(
    response: dict[str, int], answers: list[tuple[int, bool]]
) -> None:
    rights = answering(**response)
    assert not rights.may_publish(b"in.1", now_ns=0)
    rights.grant_reply(b"in.1", now_ns=0)
    found = [(at, rights.may_publish(b"in.1", now_ns=at * SECOND)) for at, _ in answers]
    assert found == answers
    assert not rights.may_publish(b"in.2", now_ns=0)


def test_the_oldest_replies_make_room() -> None:
    rights = answering()
    for at in (*range(REPLY_GRANTS_MAX), 0, REPLY_GRANTS_MAX):
        rights.grant_reply(b"in.%d" % at, now_ns=0)
    assert len(rights._grants) == REPLY_GRANTS_MAX
    assert not rights.may_publish(b"in.1", now_ns=0)
    assert rights.may_publish(b"in.0", now_ns=0)  # asked again since
    assert rights.may_publish(b"in.%d" % REPLY_GRANTS_MAX, now_ns=0)


@pytest.mark.parametrize(
    ("allow", "pattern", "queue", "may"),
    [
        ([b"a.*"], b"a.1", b"", True),
        ([b"a.*"], b"a.>", b"", False),
        ([b"a v1"], b"a", b"", False),
        ([b"a v1"], b"a", b"v1", True),
        ([b"a v.*"], b"a", b"v.1", True),
        ([b"a"], b"a", b"any", True),
        ([b"a", b"a v1", b"a *.dev"], b"a", b"", True),
        ([b"a", b"a v1", b"a *.dev"], b"a", b"v1", True),
        ([b"a", b"a v1", b"a *.dev"], b"a", b"x.dev", True),
        ([b"a", b"a v1", b"a *.dev"], b"a", b"any", False),
        ([b"a.>", b"a.* v1"], b"a.b.c", b"any", True),
        ([b"a.>", b"a.* v1"], b"a.>", b"any", False),
        ([b"a.>", b"a.* v1"], b"a.>", b"v1", True),
        ([], b"a", b"", False),
        (None, b"a", b"", True),
        (None, b"no", b"", False),
        (None, b"q", b"", True),
        (None, b"q", b"g", False),
    ],
)
def test_subscriptions_follow_the_permissions(
    allow: list[bytes] | None, pattern: bytes, queue: bytes, may: bool
) -> None:
    rights = UserRights(Permissions(subscribe_allow=allow, subscribe_deny=[b"no", b"q g"]))
    assert rights.may_subscribe(pattern, queue) is may


ADMINISTRATIVE = (
    b"$JS.API.META.LEADER.STEPDOWN",
    b"$JS.API.SERVER.REMOVE",
    b"$JS.API.STREAM.PEER.REMOVE.S",
    b"$JS.API.STREAM.PEER.EVACUATE.S",
    b"$JS.API.STREAM.CANCEL_MOVE.S",
)


def administered(options: Options, connect: dict[str, Any]) -> list[bytes]:
    """The administrative subjects that who connects so may use."""
    found = Authenticator(options).judge(connect)
    assert isinstance(found, Identity)
    return [subject for subject in ADMINISTRATIVE if found.may_administer(subject)]


@pytest.mark.parametrize(
    ("allow", "many"),
    [
        (None, 0),
        ([b">"], 0),
        ([b"$JS.>"], 0),
        ([b"$JS.API.>"], 0),
        ([b"$JS.API.*.LEADER.STEPDOWN"], 0),
        ([b"$JS.API.STREAM.>"], 0),
        ([b"$JS.API.STREAM.*.>"], 0),
        ([b">", b"$JS.API.META.>"], 1),
        ([b"$JS.API.META.LEADER.STEPDOWN"], 1),
        ([b"$JS.API.SERVER.*"], 1),
        ([b"$JS.API.STREAM.PEER.>"], 2),
        ([b">", b"$JS.API.STREAM.PEER.REMOVE.other"], 0),
        ([b">", b"$JS.API.META.>", b"$JS.API.SERVER.>", b"$JS.API.STREAM.PEER.>",
          b"$JS.API.STREAM.CANCEL_MOVE.>"], 5),
    ],
)  # fmt: skip
def test_among_several_users_only_those_named_for_it_administer(
    allow: list[bytes] | None, many: int
) -> None:
    """By permissions to publish that reach into the administrative subjects; what lets all pass
    says nothing of these."""
    permissions = None if allow is None else Permissions(publish_allow=allow)
    options = Options(users=[User("a", "1", permissions), User("b", "2")])
    assert len(administered(options, {"user": "a", "pass": "1"})) == many
    assert administered(options, {"user": "b", "pass": "2"}) == []


def test_any_client_administers_a_server_without_users_and_a_single_user_its_server() -> None:
    """A token or one user and password; several users, one that needs no login, are not that."""
    all_of_them = list(ADMINISTRATIVE)
    assert administered(Options(), {}) == all_of_them
    assert administered(Options(token="t"), {"auth_token": "t"}) == all_of_them
    one = Options(username="u", password="p")
    assert administered(one, {"user": "u", "pass": "p"}) == all_of_them
    system = Options(users=[User("s", "1", account=SYSTEM_ACCOUNT), User("b", "2")])
    assert administered(system, {"user": "s", "pass": "1"}) == all_of_them
    system.is_open_besides_system = True
    assert administered(system, {}) == []
    silent = Options(users=[User("b", "2")], no_auth_user="b")
    assert administered(silent, {}) == []


def _tls(subject: str, *names: str) -> TlsFacts:
    known = tuple(frozenset({tuple(part.split("="))}) for part in subject.split(","))
    certificate = PeerCertificate(
        Subject(subject, subject, known, ""),  # type: ignore[arg-type]
        names,
        (),
        "00",
        "00",
    )
    return TlsFacts("1.3", "", (certificate,))


@pytest.mark.parametrize(
    ("connect", "tls", "expected"),
    [
        ({}, _tls("CN=carol"), "CN=carol"),
        ({"user": "dave"}, _tls("CN=carol"), "CN=carol"),
        ({"user": "dave", "pass": "d"}, _tls("CN=carol"), None),
        ({}, _tls("CN=x", "dave"), None),
        ({"pass": "d"}, _tls("CN=x", "dave"), "dave"),
        ({"user": "zed", "pass": "d"}, _tls("CN=x", "dave"), "dave"),
        ({"user": "dave", "pass": "d"}, _tls("CN=x"), None),
        ({"user": "dave", "pass": "d"}, TlsFacts("1.3", "", ()), None),
        ({"user": "dave", "pass": "d"}, None, None),
        ({"user": "CN=carol"}, None, None),
        ({}, None, None),
    ],
)
def test_a_certificate_says_who_a_client_is(
    connect: dict[str, str], tls: TlsFacts | None, expected: str | None
) -> None:
    """A name in CONNECT counts nothing, the password is that user's or none; without a certificate
    nobody is let in, `no_auth_user` or not."""
    options = Options(
        users=[User("CN=carol"), User("dave", "d")],
        no_auth_user="dave",
        tls=TlsOptions(is_verifying=True, is_mapping=True),
    )
    auth = Authenticator(options)
    found = auth.judge(connect, Approach(tls))
    assert (found.user if isinstance(found, Identity) else found) == expected
    assert auth.no_auth_identity is None and auth.is_mapping


def test_a_certificate_names_no_user_who_comes_by_another_way() -> None:
    """Such a user is passed over, by an alternative name and by the subject; once that was a
    KeyError, which ended the connection without a word."""
    elsewhere = frozenset({"WEBSOCKET"})
    options = Options(
        users=[
            User("carol@x.io", connection_types=elsewhere),
            User("host.x.io"),
            User("CN=carol", connection_types=elsewhere),
        ],
        tls=TlsOptions(is_verifying=True, is_mapping=True),
    )
    auth = Authenticator(options)
    found = auth.judge({}, Approach(_tls("CN=carol", "carol@x.io", "host.x.io")))
    assert isinstance(found, Identity) and found.user == "host.x.io"
    assert auth.judge({}, Approach(_tls("CN=carol", "carol@x.io"))) is None
    framed = Authenticator(options, "WEBSOCKET")
    found = framed.judge({}, Approach(_tls("CN=carol")))
    assert isinstance(found, Identity) and found.user == "CN=carol"


def test_a_name_without_a_password_opens_no_listener_beside_that_of_certificates() -> None:
    """It once did, to whoever knew the name, on the listener that asks for no certificate. Users
    who are meant for this way to connect, or for who shows nothing, come as before."""
    mapping = TlsOptions(is_verifying=True, is_mapping=True)
    users = [
        User("host.x.io"),
        User("framed", connection_types=frozenset({"WEBSOCKET", "STANDARD"})),
        User("anon"),
        User("pw", "secret"),
    ]
    by_certificate = Options(users=users, no_auth_user="anon", tls=mapping)
    framed_by_certificate = Options(
        users=users, no_auth_user="anon", websocket=WebSocketOptions(port=1, tls=mapping)
    )
    for auth in (
        Authenticator(by_certificate.for_websocket(), "WEBSOCKET"),
        Authenticator(framed_by_certificate),
    ):
        assert auth.judge({"user": "host.x.io"}) is None
        assert auth.judge({"user": "pw"}) is None
        for connect in ({"user": "framed"}, {"user": "anon"}, {"user": "pw", "pass": "secret"}):
            found = auth.judge(connect)
            assert isinstance(found, Identity) and found.user == connect["user"]
        found = auth.judge({})
        assert isinstance(found, Identity) and found.user == "anon"
    plain = Authenticator(Options(users=users)).judge({"user": "host.x.io"})
    assert isinstance(plain, Identity)


def test_a_key_may_sign_where_certificates_name_users() -> None:
    """Whatever its certificate says; and no certificate but one that names a user does as well."""
    options = Options(
        users=[User("CN=carol"), User("", nkey=USER.public)],
        tls=TlsOptions(is_verifying=True, is_mapping=True),
    )
    auth = Authenticator(options)
    approach = Approach(_tls("CN=nobody"), nonce="once")
    signed = {"nkey": USER.public, "sig": encode_signature(USER.sign(b"once"))}
    found = auth.judge(signed, approach)
    assert isinstance(found, Identity) and found.user == USER.public
    assert auth.judge({}, approach) is None


def test_one_user_has_its_password_asked_for_beside_a_certificate() -> None:
    """There is no list of users to look into."""
    tls = TlsOptions(is_verifying=True, is_mapping=True)
    auth = Authenticator(Options(username="u", password="p", tls=tls))
    assert auth.judge({}, Approach(_tls("CN=u", "u"))) is None
    assert isinstance(auth.judge({"user": "u", "pass": "p"}, Approach(_tls("CN=x"))), Identity)


def test_a_user_with_a_key_has_no_name_and_no_password() -> None:
    """It is not let in by what others would show: an empty name, or a token beside none."""
    options = Options(users=[User("", nkey="U"), User("u", "p")])
    auth = Authenticator(options)
    for shown in ({"user": "U"}, {"auth_token": "t"}, {"pass": ""}, {"user": "", "pass": "p"}):
        found = auth.judge(shown)
        assert found is None or (isinstance(found, Check) and found.run() is None), shown


def test_a_user_with_a_key_signs_the_nonce_of_its_connection() -> None:
    """In either form of base64; neither another nonce nor another key will do."""
    options = Options(users=[User("", nkey=USER.public, account="A"), User("u", "p")])
    auth = Authenticator(options)
    assert auth.needs_nonce and not Authenticator(Options(users=[User("u", "p")])).needs_nonce
    signed = USER.sign(b"once")
    for signature in (encode_signature(signed), base64.b64encode(signed).decode()):
        found = auth.judge({"nkey": USER.public, "sig": signature}, Approach(nonce="once"))
        assert isinstance(found, Identity) and (found.user, found.account) == (USER.public, "A")
        refused = auth.judge({"nkey": USER.public, "sig": signature}, Approach(nonce="twice"))
        assert refused == Refusal("Signature not verified")
    assert auth.judge({"nkey": USER.public}) == Refusal("Signature missing")
    assert auth.judge({"nkey": USER.public, "sig": "!"}) == Refusal("Signature not valid base64")
    other = {"nkey": REVOKED_USER.public, "sig": encode_signature(REVOKED_USER.sign(b"once"))}
    assert auth.judge(other | {"user": "u", "pass": "p"}, Approach(nonce="once")) is None


def test_a_key_may_stand_for_clients_without_credentials_that_say_connect() -> None:
    auth = Authenticator(
        Options(users=[User("", nkey=USER.public), User("u", "p")], no_auth_user=USER.public)
    )
    for connect in ({}, {"nkey": USER.public}):
        found = auth.judge(connect)
        assert isinstance(found, Identity) and found.user == USER.public
    assert auth.no_auth_identity is None  # it says nothing at all


def test_a_reload_ends_connections_of_keys_that_are_gone() -> None:
    stays, goes = User("", nkey=USER.public), User("", nkey=REVOKED_USER.public)
    bed = Bed(Options(users=[stays, goes]))
    peers = []
    for pair in (USER, REVOKED_USER):
        peer = bed.peer(None)
        nonce = peer.transport.conn.profile.nonce
        peer.send(
            b'CONNECT {"verbose":false,"nkey":"%b","sig":"%b"}\r\n'
            % (pair.public.encode(), encode_signature(pair.sign(nonce.encode())).encode())
        )
        assert peer.send(b"PING\r\n").startswith(b"PONG\r\n")
        peers.append(peer)
    bed.listener.reload(Options(users=[stays]))
    assert peers[0].send(b"PING\r\n") == b"PONG\r\n"
    assert peers[1].take() == b"-ERR 'Authorization Violation'\r\n"
