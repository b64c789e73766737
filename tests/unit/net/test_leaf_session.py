"""The session of a leaf link as transcripts: both ends talk to each other, and to strangers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamd.config.leaf_options import LeafRemote, parse_leaf_url
from streamd.config.options import Permissions
from streamd.net.leaf import leaf_session as actions
from streamd.net.leaf.leaf_session import Credentials, LeafSession, LocalEnd, State
from streamd.protocol import leaf_protocol as protocol
from streamd.protocol.leaf_protocol import LeafParser

URL = parse_leaf_url("nats-leaf://u:p@hub:7422")


def listener(**more: Any) -> LeafSession:
    local = LocalEnd("NHUB", "HUB", domain="hub", has_jetstream=True, leaf_urls=["h:1"], **more)
    return LeafSession(local, lid=5, nonce="once")


def dialer(url: Any = URL, credentials: Credentials | None = None, **more: Any) -> LeafSession:
    remote = LeafRemote(urls=(url,), **more)
    local = LocalEnd("NLEAF", "LEAF", domain="leaf", has_jetstream=True)
    return LeafSession(local, lid=9, nonce="", remote=remote, url=url, credentials=credentials)


def events(line: bytes) -> list[tuple[Any, ...]]:
    return LeafParser(line_bytes_max=10_000, payload_bytes_max=100).feed(line + b"\r\n")


def give(session: LeafSession, line: bytes) -> list[tuple[Any, ...]]:
    """The actions that follow from one line."""
    return [action for event in events(line) for action in session.receive(event)]


def lines(found: list[tuple[Any, ...]]) -> list[bytes]:
    return [action[1] for action in found if action[0] == actions.SEND]


def connect_of(hub: LeafSession, leaf: LeafSession) -> dict[str, Any]:
    """Exchange INFO and CONNECT; returns CONNECT's document."""
    (connect,) = lines(give(leaf, hub.greeting()))
    ((kind, document),) = give(hub, connect)
    assert kind == actions.JUDGE
    return document


def joined(hub: LeafSession, leaf: LeafSession, permissions: Permissions | None = None) -> None:
    connect_of(hub, leaf)
    info, opened = hub.accept("A", "u", permissions)
    assert opened == (actions.OPENED,)
    assert (actions.OPENED,) in give(leaf, info[1])
    assert hub.is_open and leaf.is_open


def test_both_ends_open_and_know_each_other() -> None:
    hub, leaf = listener(), dialer(account="X")
    document = connect_of(hub, leaf)
    assert {key: document[key] for key in ("user", "pass", "name", "cluster", "domain")} == {
        "user": "u",
        "pass": "p",
        "name": "LEAF",
        "cluster": "LEAF",
        "domain": "leaf",
    }
    assert (document["remote_account"], document["compress_mode"]) == ("X", "off")
    info, _ = hub.accept("A", "u", None)
    give(leaf, info[1])
    assert (hub.is_spoke, leaf.is_spoke) == (False, True)
    assert (hub.end.name, hub.end.account, hub.end.domain) == ("LEAF", "X", "leaf")
    assert (leaf.end.name, leaf.end.account, leaf.end.domain) == ("HUB", "A", "hub")


def test_the_dialer_may_be_the_hub() -> None:
    hub, leaf = listener(), dialer(is_hub=True)
    joined(hub, leaf)
    assert (hub.is_spoke, leaf.is_spoke) == (True, False)


def test_permissions_hold_at_both_ends() -> None:
    hub, leaf = listener(), dialer(deny_imports=(b"b.no",), deny_exports=(b"a.no",))
    rights = Permissions(publish_allow=[b"a.>"], subscribe_allow=[b"b.>"], subscribe_deny=[b"b.x"])
    joined(hub, leaf, rights)
    for subject in (b"a.1", b"b.1", b"b.x", b"b.no", b"c", b"a.no"):
        up = subject in (b"a.1", b"a.no")
        assert hub.rights.receive.permits(subject) == up
        assert leaf.rights.send.permits(subject) == (up and subject != b"a.no")
        down = subject == b"b.1"
        assert hub.rights.send.permits(subject) == down
        assert leaf.rights.receive.permits(subject) == down
    assert leaf.rights.may_tell(b"b.*") and leaf.rights.may_tell(b">")
    assert not leaf.rights.may_tell(b"c.*") and leaf.rights.may_tell(b"$LDS.x")


def test_a_hub_ends_a_link_that_wants_what_it_may_not() -> None:
    hub, leaf = listener(), dialer()
    joined(hub, leaf, Permissions(subscribe_allow=[b"b.>"]))
    (failure,) = give(hub, b"LS+ c")
    assert failure[:3] == (
        actions.FAIL,
        "Permissions Violation",
        'Permissions Violation for Subscription to "c"',
    )


def test_the_api_of_jetstream_does_not_cross_but_a_domain_does() -> None:
    hub, leaf = listener(), dialer()
    joined(hub, leaf)
    for rights in (hub.rights, leaf.rights):
        for subject in (b"$JS.API.INFO", b"$KV.b.k", b"$OBJ.b.C.x"):
            assert not rights.send.permits(subject) and not rights.receive.permits(subject)
    assert leaf.rights.send.permits(b"$JS.hub.API.INFO")
    assert not leaf.rights.send.permits(b"$JS.leaf.API.INFO")
    assert hub.rights.receive.permits(b"$JS.hub.API.INFO")


def test_without_domains_each_side_answers_for_itself() -> None:
    hub = LeafSession(
        LocalEnd("NHUB", "HUB", has_jetstream=True, leaf_urls=["h:1"]), lid=5, nonce=""
    )
    leaf = LeafSession(
        LocalEnd("NLEAF", "LEAF", has_jetstream=True),
        lid=9, nonce="", remote=LeafRemote(urls=(URL,)), url=URL,
    )  # fmt: skip
    document = connect_of(hub, leaf)
    assert document["jetstream"] is True and "domain" not in document
    info, _ = hub.accept("A", "u", None)
    give(leaf, info[1])
    for rights in (hub.rights, leaf.rights):
        for rule in (rights.send, rights.receive):
            assert not rule.permits(b"$JS.API.INFO") and not rule.permits(b"$KV.b.k")
            assert rule.permits(b"$JS.ACK.S.c.1") and rule.permits(b"a")


def test_a_message_that_may_not_cross_is_dropped_and_the_link_stays() -> None:
    """A nats-server ends the link of who sends one: docs/leaf.md."""
    hub, leaf = listener(), dialer()
    joined(hub, leaf, Permissions(publish_allow=[b"a.>"]))
    assert give(hub, b"LMSG b 1\r\nx") == [(actions.MSGS, [])]
    assert hub.is_open


def test_a_leaf_node_may_ask_to_be_kept_apart() -> None:
    hub, leaf = listener(), dialer(is_isolated=True)
    assert connect_of(hub, leaf)["isolate"] is True
    assert hub.end.is_isolated
    for hub, leaf, is_apart in (
        (listener(is_isolating=True), dialer(), True),
        (listener(), dialer(), False),
    ):
        assert "isolate" not in connect_of(hub, leaf)
        assert hub.end.is_isolated == is_apart


def test_interest_and_messages() -> None:
    hub, leaf = listener(), dialer()
    joined(hub, leaf)
    assert give(hub, b"LS+ a.*") == [(actions.INTEREST, b"a.*", b"", 1)]
    assert give(hub, b"LS+ q g 3") == [(actions.INTEREST, b"q", b"g", 3)]
    assert give(hub, b"LS- q g") == [(actions.INTEREST, b"q", b"g", 0)]
    assert give(hub, b"LS- q g") == []  # it told nothing of the kind
    assert lines(give(hub, b"LS+ a..b")) == [b"-ERR 'Invalid Subject'"]
    assert give(hub, b"LMSG a 1\r\nx") == [(actions.MSGS, [(b"a", b"", (), b"", b"x")])]
    assert give(hub, b"LMSG $KV.a 1\r\nx") == [(actions.MSGS, [])]
    assert lines(give(hub, b"PING")) == [b"PONG"]
    assert give(hub, b"PONG") == [(actions.NOTE_PONG,)]


@pytest.mark.parametrize(
    ("line", "reason", "text"),
    [
        (
            b'CONNECT {"lang":"go"}',
            "Incorrect Port",
            "attempted to connect to leaf node port",
        ),
        (b"CONNECT [1]", "Protocol Violation", ""),
        (b'CONNECT {"a":', "Protocol Violation", ""),
        (b"PING", "Authentication Failure", "Authorization Violation"),
        (b"LS+ a", "Authentication Failure", "Authorization Violation"),
        (
            b'CONNECT {"version":"2.9.0","name":"x"}',
            "Minimum Version Required",
            'connection rejected since minimum version required is "2.10.0"',
        ),
        (
            b'CONNECT {"version":"2.10.0","name":"x","cluster":"C"}',
            "Cluster Names Identical",
            "remote leafnode has same cluster name",
        ),
        (b"FOO", "Authentication Failure", "Authorization Violation"),
    ],
)
def test_strangers_are_refused(line: bytes, reason: str, text: str) -> None:
    hub = listener(min_version="2.10.0", cluster="C")
    assert give(hub, line) == [(actions.FAIL, reason, text, 0.0)]


def test_a_hub_may_name_no_urls() -> None:
    """`no_advertise` of a nats-server."""
    found = give(dialer(), b'INFO {"client_id":4,"compression":"off","info_on_connect":true}')
    assert lines(found)[0].startswith(b"CONNECT ")


def test_a_dialer_notices_another_kind_of_port() -> None:
    for info in (b'INFO {"client_id":4}', b'INFO {"leafnode_urls":["a:1"]}'):
        fault, failure = give(dialer(), info)
        assert fault == (actions.FAULT, "attempted to connect to wrong port")
        assert failure == (actions.FAIL, "Incorrect Port", "", 0.0)


@pytest.mark.parametrize(
    ("text", "retry_s"),
    [
        ('Loop detected for leafnode account="$G". Delaying attempt to reconnect for 30s', 30.0),
        ('connection rejected since minimum version required is "2.99.0"', 5.0),
        ('Permissions Violation for Publish to "a"', 30.0),
        ("remote leafnode has same cluster name", 30.0),
    ],
)
def test_an_error_says_when_to_come_again(text: str, retry_s: float) -> None:
    refused, failure = give(dialer(), f"-ERR '{text}'".encode())
    assert refused == (actions.REFUSED, text)
    assert failure[3] == retry_s


def test_other_errors_are_for_the_log() -> None:
    assert give(dialer(), b"-ERR 'Authorization Violation'") == [
        (actions.REFUSED, "Authorization Violation")
    ]
    assert give(listener(), b"-ERR 'Loop detected'") == [(actions.REFUSED, "Loop detected")]


def test_tls_comes_behind_the_first_info() -> None:
    leaf = dialer(parse_leaf_url("tls://hub"))
    found = give(leaf, listener().greeting())
    assert [action[0] for action in found] == [actions.LEARN, actions.SECURE]
    assert lines(leaf.secured())[0].startswith(b"CONNECT ")
    plain = dialer()
    asking = LeafSession(LocalEnd("N", "H", leaf_urls=["h:1"]), lid=1, nonce="", asks_for_tls=True)
    assert actions.SECURE in [action[0] for action in give(plain, asking.greeting())]


def test_credentials_sign_the_nonce() -> None:
    url = parse_leaf_url("nats-leaf://hub")
    for jwt in ("", "token"):
        leaf = dialer(url, Credentials(lambda nonce: f"signed {nonce}", jwt=jwt, nkey="UKEY"))
        document = connect_of(listener(), leaf)
        assert document["sig"] == "signed once"
        assert (document.get("jwt", ""), document.get("nkey", "")) == (jwt, "" if jwt else "UKEY")


def test_rights_follow_a_later_info() -> None:
    hub, leaf = listener(), dialer()
    joined(hub, leaf)
    info = {"connect_info": True, "export": {"allow": ["only"]}, "import": {"deny": ["no"]}}
    assert (actions.RERIGHT,) in give(leaf, b"INFO " + json.dumps(info).encode())
    assert leaf.rights.send.permits(b"only") and not leaf.rights.send.permits(b"other")
    assert not leaf.rights.receive.permits(b"no")


def test_a_closed_session_says_nothing() -> None:
    hub, leaf = listener(), dialer()
    joined(hub, leaf)
    hub.state = State.CLOSED
    assert give(hub, b"PING") == [] and give(hub, b"LS+ a") == []
    assert protocol.error_line("x") == b"-ERR 'x'"
