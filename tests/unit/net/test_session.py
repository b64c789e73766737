"""The session state machine alone: events in, actions out; no socket, no router, no clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import bcrypt
import pytest

from streamd.config.options import Options, Permissions, ResponsePermission, User
from streamd.net.client import session as actions
from streamd.net.client.auth import Check, ClientPolicy, UserRights
from streamd.net.client.profile import ClientProfile
from streamd.net.client.session import Action, Session, State
from streamd.net.pubsub.message_trace import TRACE_DEST, Kind, MessageTrace
from streamd.net.pubsub.message_tracing import MessageTracing
from streamd.protocol import client_protocol as protocol

NOW = 5_000
PUBS = (protocol.PUBS, [b"a", b"b"], None, None, [b"1", b"22"])
EVENTS: dict[str, tuple[Any, ...]] = {
    "PUBS": PUBS,
    "SUB": (protocol.SUB, b"a", b"", b"1"),
    "UNSUB": (protocol.UNSUB, b"1", 0),
    "PING": (protocol.PING,),
    "PONG": (protocol.PONG,),
    "CONNECT": (protocol.CONNECT, b'{"user":"u","pass":"p","verbose":false,"pedantic":false}'),
    "CLIENT_ERROR": (protocol.CLIENT_ERROR,),
    "ERROR": (protocol.ERROR, b"text", "reason"),
}
HASH = bcrypt.hashpw(b"p", bcrypt.gensalt(4)).decode()


class Target:
    """Settings of deliveries, as a new output has them."""

    def __init__(self) -> None:
        self.has_echo = True
        self.has_headers = self.is_told_no_responders = self.is_granting_replies = False
        self.rights: UserRights | None = None
        self.mapped: dict[bytes, bytes | None] | None = None

    @property
    def is_mapped(self) -> bool:
        return self.mapped is not None

    def map(self, subject: bytes) -> bytes | None:
        return (self.mapped or {}).get(subject, subject)

    def may_be_traced(self, headers: list[bytes]) -> bool:
        return any(TRACE_DEST in block for block in headers)

    def begin_trace(
        self, subject: bytes, header: bytes, payload: bytes
    ) -> tuple[MessageTrace | None, bytes]:
        source = SimpleNamespace(cid=1, name="")
        return MessageTracing().begin(source, Kind.CLIENT, "A", subject, header, payload, None)

    def trace_mapping(self, trace: MessageTrace, before: bytes, after: bytes | None) -> None:
        if self.mapped is not None:
            trace.mapped(after or b"")


class Turn:
    """A share of the loop that lasts for so many looks at the clock."""

    def __init__(self, looks: int = 1_000_000) -> None:
        self.until = float(looks)
        self.looks = 0

    def clock(self) -> float:
        self.looks += 1
        return float(self.looks)


class Side:
    """A session, and its parts at hand."""

    def __init__(self, options: Options | None = None, *, looks: int = 1_000_000) -> None:
        self.policy = ClientPolicy.of(options or Options())
        self.profile = ClientProfile(self.policy.auth.no_auth_identity, start_ns=1_000)
        self.target = Target()
        self.session = Session(
            self.policy, self.profile, self.target, Turn(looks), lambda: 7_000_000
        )

    def receive(self, event: tuple[Any, ...]) -> list[Action]:
        todo = list(self.session.receive(event, NOW))
        for action in todo:  # as the connection does
            if action[0] == actions.UNSUBSCRIBE:
                del self.session.subs[action[1].sid]
        return todo

    def connect(self, **options: Any) -> list[Action]:
        said = ",".join(f'"{key}":{value}' for key, value in options.items())
        return self.receive((protocol.CONNECT, b"{%b}" % said.encode()))


def kinds(todo: list[Action]) -> list[int]:
    return [action[0] for action in todo]


STRANGER = Options(users=[User("u", "p")])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("PUBS", [actions.REFUSE]),
        ("SUB", [actions.REFUSE]),
        ("UNSUB", [actions.REFUSE]),
        ("PING", [actions.REFUSE]),
        ("PONG", [actions.NOTE_PONG]),
        ("CONNECT", [actions.IDENTIFIED]),
        ("CLIENT_ERROR", [actions.FAIL]),
        ("ERROR", [actions.FAIL]),
    ],
)
def test_a_stranger_may_do_nothing_but_connect(name: str, wanted: list[int]) -> None:
    side = Side(STRANGER)
    assert side.session.state is State.STRANGER
    assert kinds(side.receive(EVENTS[name])) == wanted
    assert not side.session.subs and not side.session.in_msgs


@pytest.mark.parametrize("name", EVENTS)
def test_events_are_illegal_while_a_password_is_tried_and_after_the_end(name: str) -> None:
    """The connection holds or drops them; to pass one is a fault of ours, not of the client."""
    side = Side(Options(users=[User("u", HASH)]))
    [(kind, check)] = side.receive(EVENTS["CONNECT"])
    assert kind == actions.TRY_PASSWORD and isinstance(check, Check)
    assert side.session.state is State.CHECKING
    with pytest.raises(KeyError):
        side.session.receive(EVENTS[name], NOW)
    assert kinds(list(side.session.password_checked(check.run()))) == [actions.IDENTIFIED]
    assert side.session.state is State.SERVED
    assert side.session.end() == []
    assert side.session.state is State.CLOSED and not side.session.is_plain
    with pytest.raises(KeyError):
        side.session.receive(EVENTS[name], NOW)


def test_every_event_of_the_parser_has_an_operation_where_events_are_legal() -> None:
    for state in (State.STRANGER, State.SERVED):
        assert set(actions._OPERATIONS[state]) == {event[0] for event in EVENTS.values()}


def test_a_wrong_password_refuses() -> None:
    side = Side(Options(users=[User("u", HASH)]))
    side.connect(user='"u"', **{"pass": '"x"'})
    assert list(side.session.password_checked(None)) == [(actions.REFUSE,)]
    assert side.profile.user == "u" and side.profile.identity is None


def test_publishes_of_a_plain_session_leave_as_they_came() -> None:
    side = Side()
    assert not side.session.is_plain, "verbose and pedantic, until CONNECT says otherwise"
    side.connect(verbose="false", pedantic="false")
    assert side.session.is_plain
    assert side.receive(PUBS) == [PUBS]
    assert (side.session.in_msgs, side.session.in_bytes) == (2, 3)
    assert side.session.last_activity_ns == NOW


def test_publishes_of_a_checked_session_are_judged_one_by_one() -> None:
    rules = Permissions(publish_allow=[b"b"], allow_responses=ResponsePermission(1, 0))
    side = Side(Options(users=[User("u", "p", rules)]))
    side.connect(user='"u"', **{"pass": '"p"'})  # verbose
    denied, ok, (kind, *columns) = side.receive(PUBS)
    assert denied == (actions.SEND_ERROR, b'Permissions Violation for Publish to "a"')
    assert ok == (actions.SEND, b"+OK")
    assert kind == actions.PUBLISH and columns == [[b"b"], None, None, [b"22"]]
    assert side.target.is_granting_replies


def test_mapped_publishes_are_judged_by_the_subject_that_they_go_to() -> None:
    """As by nats-server; what a mapping drops has no receiver."""
    side = Side(Options(users=[User("u", "p", Permissions(publish_allow=[b"to"]))]))
    side.target.mapped = {b"a": b"to", b"b": None, b"c": b"other"}
    login = {"pass": '"p"', "headers": "true", "no_responders": "true"}
    side.connect(user='"u"', verbose="false", **login)
    subjects, replies = [b"a", b"b", b"c"], [b"r"] * 3
    good, dropped, denied = side.receive((protocol.PUBS, subjects, replies, None, [b""] * 3))
    assert good == (actions.PUBLISH, [b"to"], [b"r"], None, [b""])
    assert dropped == (actions.NO_RESPONDERS, b"r")
    assert denied == (actions.SEND_ERROR, b'Permissions Violation for Publish to "other"')


def test_a_session_is_plain_only_as_long_as_its_account_has_no_mappings() -> None:
    side = Side()
    side.connect(verbose="false", pedantic="false")
    for mapped, is_plain in (({}, False), (None, True)):
        side.target.mapped = mapped
        side.session.look_at_mappings()
        assert side.session.is_plain is is_plain


def test_an_account_may_allow_fewer_subscriptions_than_the_server() -> None:
    side = Side(Options(max_subscriptions=3))
    side.connect(verbose="false")
    side.session.limit_subscriptions(1)
    first, second = (side.receive((protocol.SUB, b"a", b"", sid)) for sid in (b"1", b"2"))
    assert kinds(first) == [actions.SUBSCRIBE]
    assert second == [(actions.SEND_ERROR, b"maximum subscriptions exceeded")]


def test_a_reply_granted_by_a_delivery_of_the_same_batch_may_be_used() -> None:
    """Actions are made one by one, so what an action brings about counts for the next."""
    rules = Permissions(publish_allow=[b"a"], allow_responses=ResponsePermission(1, 0))
    side = Side(Options(users=[User("u", "p", rules)]))
    side.connect(user='"u"', verbose="false", **{"pass": '"p"'})
    todo = iter(side.session.receive(PUBS, NOW))
    assert next(todo)[1] == [b"a"]
    assert side.target.rights is not None
    side.target.rights.grant_reply(b"b", now_ns=7_000_000)
    assert next(todo)[1] == [b"b"]


def test_the_rest_of_a_checked_batch_waits_for_the_next_turn() -> None:
    side = Side(looks=2)  # verbose: checked
    columns = [b"x"] * 4
    todo = side.receive((protocol.PUBS, columns, None, [b"h"] * 4, columns))
    assert kinds(todo) == [actions.FAIL], "a client that does not know headers"
    side.connect(headers="true")
    before = side.session.in_msgs, side.session.in_bytes
    todo = side.receive((protocol.PUBS, columns, None, [b"h"] * 4, columns))
    assert kinds(todo) == [actions.SEND, actions.PUBLISH] * 2 + [actions.LATER]
    assert todo[-1][1] == (protocol.PUBS, [b"x"] * 2, None, [b"h"] * 2, [b"x"] * 2)
    after = side.session.in_msgs, side.session.in_bytes
    assert (after[0] - before[0], after[1] - before[1]) == (2, 4)


@pytest.mark.parametrize("reply", [b"$JS.ACK.x", b"_R_.x", b"$GR.x"])
def test_reserved_replies_are_refused(reply: bytes) -> None:
    side = Side()
    side.connect(verbose="false", pedantic="false")
    good, bad = side.receive((protocol.PUBS, [b"a", b"b"], [b"_INBOX.1", reply], None, [b"", b""]))
    assert good == (actions.PUBLISH, [b"a"], [b"_INBOX.1"], None, [b""])
    assert bad[0] == actions.SEND_ERROR and bad[1].endswith(b'Reply of "%b"' % reply)


def test_subscriptions_are_those_that_were_neither_refused_nor_ended() -> None:
    side = Side(Options(max_subscriptions=2, max_sub_tokens=3))
    side.connect(verbose="false")
    for sid, subject in enumerate((b"a", b"b.*", b"c")):
        side.receive((protocol.SUB, subject, b"", b"%d" % sid))
    assert set(side.session.subs) == {b"0", b"1"}
    side.receive(EVENTS["UNSUB"])
    assert set(side.session.subs) == {b"0"}
    assert side.receive((protocol.SUB, b"bad..x", b"", b"9"))[0] == (
        actions.SEND_ERROR, b"Invalid Subject",
    )  # fmt: skip
    assert kinds(side.receive((protocol.SUB, b"a.b.c.d", b"", b"9"))) == [actions.SEND_ERROR]
    side.receive((protocol.UNSUB, b"0", 3))
    assert side.session.subs[b"0"].max_msgs == 3
    assert [sub.sid for sub in side.session.end()] == [b"0"]
    assert not side.session.subs


def test_a_second_connect_ends_subscriptions_and_keeps_options_not_named_again() -> None:
    side = Side()
    side.connect(name='"one"', verbose="false", echo="false")
    side.receive(EVENTS["SUB"])
    todo = side.connect(lang='"go"')
    assert kinds(todo) == [actions.UNSUBSCRIBE, actions.IDENTIFIED]
    assert (side.profile.name, side.profile.lang, side.target.has_echo) == ("one", "go", False)
    assert side.profile.rtt_ns == NOW - 1_000


def test_only_the_first_ping_after_connect_is_answered_with_an_info() -> None:
    side = Side()
    side.connect(protocol="1", verbose="false")
    assert not side.session.is_told_infos
    assert kinds(side.receive(EVENTS["PING"])) == [actions.SEND, actions.SEND_INFO]
    assert kinds(side.receive(EVENTS["PING"])) == [actions.SEND]
    assert side.session.is_told_infos


def test_judged_again_as_a_stranger_only_if_nothing_was_asked() -> None:
    side = Side()
    assert list(side.session.judge_again(None)) == []
    assert side.session.state is State.STRANGER
    other = Side()
    other.receive(EVENTS["SUB"])
    assert list(other.session.judge_again(None)) == [(actions.REFUSE,)]


def test_new_permissions_end_and_filter_subscriptions() -> None:
    side = Side()
    side.connect(verbose="false")
    for sid, subject in ((b"1", b"x.y"), (b"2", b"x.*")):
        side.receive((protocol.SUB, subject, b"", sid))
    denied = Permissions(subscribe_deny=[b"x.y"])
    side.policy.reload(Options(users=[User("u", "p", denied)], no_auth_user="u"))
    assert side.session.is_judged_by_old_policy
    todo = list(side.session.judge_again(side.policy.auth.no_auth_identity))
    assert kinds(todo) == [actions.SEND_ERROR, actions.UNSUBSCRIBE, actions.REROUTE]
    assert todo[1][1].sid == b"1" and todo[2][1] == b"x.*"
    assert side.session.subs[b"2"].is_filtered


def test_each_action_has_a_number_of_its_own() -> None:
    """Of two with one number the connection would carry out the wrong one."""
    numbers = [
        value
        for name, value in vars(actions).items()
        if name.isupper() and not name.startswith("_") and type(value) is int
    ]
    assert len(numbers) > 14 and len(set(numbers)) == len(numbers), sorted(numbers)
