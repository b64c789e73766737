"""Events of the dashboard: which lines and advisories, for whom, and when they are listened to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from streamd import limits
from streamd.config.options import Permissions
from streamd.net.dashboard.event_log import EventLog, advisory_text
from streamd.net.dashboard.grants import OPEN, Grant

OF_A = Grant("a", "A", False)
Taken = list[tuple[bytes, bytes, bytes, bytes]]


class Space:
    """Subject space of an account."""

    def __init__(self) -> None:
        self.subscribed: dict[object, tuple[bytes, Callable[[Taken], object]]] = {}

    def subscribe(self, subject: bytes, on_messages: Callable[[Taken], object]) -> object:
        token = object()
        self.subscribed[token] = subject, on_messages
        return token

    def unsubscribe(self, token: object) -> None:
        del self.subscribed[token]

    def publish(self, subject: bytes, payload: bytes) -> None:
        for pattern, on_messages in self.subscribed.values():
            if subject.startswith(pattern[:-1]):
                on_messages([(subject, b"", b"", payload)])


class Bed:
    def __init__(self) -> None:
        self.now_s = 10.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.spaces = {"A": Space(), "B": Space()}
        self.log = EventLog(
            lambda: 1_700_000_000_000_000_000,
            lambda: self.now_s,
            lambda delay, callback: self.timers.append((self.now_s + delay, callback)),
            lambda: self.spaces.items(),
            {7: ("A", "S")}.get,
        )

    def shown(self, grant: Grant = OPEN) -> list[tuple[str, str, str]]:
        items: list[dict[str, Any]] = self.log.document(grant)["items"]
        return [(item["kind"], item["subject"], item["text"]) for item in items]

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        due, self.timers = self.timers, []
        for at, callback in due:
            if at <= self.now_s:
                callback()
            else:
                self.timers.append((at, callback))


@pytest.mark.parametrize(
    ("level", "text", "kind"),
    [
        ("ERR", "replica has drifted", "drift"),
        ("INF", "block is repaired", "repair"),
        ("INF", "catching up", "repair"),
        ("INF", "JetStream cluster new metadata leader: n1/C", "election"),
        ("WRN", "sync_interval is not 'always'", "server"),
        ("INF", "Server is ready", ""),
    ],
)
def test_lines_of_the_log_that_tell_of_trouble_or_its_end(level: str, text: str, kind: str) -> None:
    bed = Bed()
    bed.log.on_line(level, text, {"group": 7, "block": 2})
    assert bed.shown() == ([(kind, "A > S", f"{text} group=7 block=2")] if kind else [])
    assert bed.shown(OF_A) == bed.shown()
    assert bed.shown(Grant("b", "B", False)) == []


def test_what_concerns_no_stream_is_for_operators_alone() -> None:
    bed = Bed()
    bed.log.on_line("WRN", "low on disk", {})
    bed.log.on_line("WRN", "of a group that is gone", {"group": 99})
    assert len(bed.shown()) == 2 and bed.shown(OF_A) == []


def test_an_event_is_shown_to_whom_may_subscribe_to_it() -> None:
    """A user's permissions hold: the dashboard is no way around them."""
    bed = Bed()
    bed.log.watch()
    bed.log.on_line("ERR", "replica has drifted", {"group": 7})
    for name in (b"S", b"T"):
        bed.spaces["A"].publish(b"$JS.EVENT.ADVISORY.STREAM.CREATED." + name, b"{}")

    def shown(**lists: list[bytes]) -> list[str]:
        return [subject for _, subject, _ in bed.shown(replace(OF_A, permissions=_may(**lists)))]

    of_s, of_t = (f"$JS.EVENT.ADVISORY.STREAM.CREATED.{name}" for name in "ST")
    assert shown() == shown(subscribe_allow=[b">"]) == [of_t, of_s, "A > S"]
    assert shown(subscribe_allow=[b"_INBOX.>"]) == shown(subscribe_deny=[b"$JS.EVENT.>"]) == []
    assert shown(subscribe_allow=[of_s.encode()]) == [of_s]
    assert shown(subscribe_deny=[of_s.encode()]) == [of_t, "A > S"]


def _may(**lists: list[bytes]) -> Permissions:
    return Permissions(**lists)  # type: ignore[arg-type]


def test_advisories_are_listened_to_while_somebody_looks() -> None:
    bed = Bed()
    created = b"$JS.EVENT.ADVISORY.STREAM.CREATED.S"
    bed.spaces["A"].publish(created, b"{}")
    assert bed.shown() == []
    bed.log.watch()
    bed.log.watch()
    bed.spaces["A"].publish(
        created,
        b'{"type":"io.nats.jetstream.advisory.v1.stream_action","id":"x","stream":"S",'
        b'"action":"create","client":{"user":"u"}}',
    )
    bed.spaces["B"].publish(b"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.S", b"no json \xff")
    assert bed.shown() == [
        ("election", "$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.S", "no json \ufffd"),
        ("advisory", created.decode(), "stream action stream=S action=create"),
    ]
    assert [kind for kind, _, _ in bed.shown(OF_A)] == ["advisory"]
    bed.advance(limits.DASHBOARD_WATCHED_S - 1)
    bed.log.watch()
    bed.advance(limits.DASHBOARD_WATCHED_S - 1)
    assert bed.spaces["A"].subscribed
    listener = bed.log.listen(lambda event: None)
    bed.advance(2 * limits.DASHBOARD_WATCHED_S)  # an open page watches, however quiet it is
    assert bed.spaces["A"].subscribed
    bed.advance(limits.DASHBOARD_WATCHED_S - 1)
    bed.log.unlisten(listener)
    bed.advance(1)  # the while begins when the page is closed
    assert bed.spaces["A"].subscribed
    bed.advance(limits.DASHBOARD_WATCHED_S - 1)
    assert not bed.spaces["A"].subscribed and not bed.spaces["B"].subscribed and not bed.timers


def test_no_advisory_is_asked_for_that_is_made_for_each_message() -> None:
    bed = Bed()
    bed.log.watch()
    patterns = [pattern for pattern, _ in bed.spaces["A"].subscribed.values()]
    assert patterns and not any(b"API" in pattern or b"NAKED" in pattern for pattern in patterns)
    assert b"$JS.EVENT.ADVISORY.>" not in patterns


def test_events_are_bounded_in_number_and_length() -> None:
    bed = Bed()
    heard: list[str] = []
    token = bed.log.listen(lambda event: heard.append(event.text))
    for number in range(limits.DASHBOARD_EVENTS + 5):
        bed.log.on_line("ERR", "x" * 5000, {"n": number})
    bed.log.unlisten(token)
    bed.log.on_line("ERR", "last", {})
    assert len(heard) == limits.DASHBOARD_EVENTS + 5
    shown = bed.shown()
    assert len(shown) == limits.DASHBOARD_EVENTS and shown[0][2] == "last"
    assert len(shown[1][2]) == limits.DASHBOARD_EVENT_CHARS


def test_an_advisory_is_told_by_its_own_fields() -> None:
    assert advisory_text("s", b'{"a": 1, "b": [1], "c": {"d": 1}, "e": "two words"}') == (
        's a=1 e="two words"'
    )
    assert advisory_text("s", b"[1]") == "[1]"


def test_an_advisory_of_a_hostile_client_is_text() -> None:
    """Anybody may publish to such a subject: what can't be read is shown as it begins."""
    deep = b"[" * 60_000
    long = b'{"a": "' + b"x" * limits.DASHBOARD_PAYLOAD_BYTES + b'"}'
    for payload in (deep, long):
        shown = payload[: limits.DASHBOARD_EVENT_CHARS].decode()
        assert advisory_text("s", payload) == shown
    bed = Bed()
    bed.log.watch()
    bed.spaces["A"].publish(b"$JS.EVENT.ADVISORY.STREAM.CREATED.S", deep)
    assert [kind for kind, _, _ in bed.shown(OF_A)] == ["advisory"]
