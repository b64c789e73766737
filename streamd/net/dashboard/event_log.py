"""`EventLog`: what happened lately, for operators: lines of the server's log that tell of trouble
or of its end, and advisories.

The log is listened to from the start, for it says little. Advisories are made only while somebody
listens (`api/advisories.py`): the event log does so while a dashboard is looked at, and for a while
after that. What is told for each message (negative acks, requests of the API) is left to others.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from streamd.api.times import format_ns
from streamd.limits import DASHBOARD_EVENT_CHARS, DASHBOARD_EVENTS, DASHBOARD_WATCHED_S
from streamd.net.dashboard.client_json import read_object
from streamd.net.dashboard.grants import Grant
from streamd.obs.server_log import in_words
from streamd.types import Document

ADVISORY, ELECTION, REPAIR, DRIFT, SERVER = "advisory", "election", "repair", "drift", "server"
_PREFIX: Final = "$JS.EVENT.ADVISORY."
_ADVISORIES: Final = tuple(
    f"{_PREFIX}{rest}".encode()
    for rest in (
        "STREAM.>",
        "DOMAIN.>",
        "CONSUMER.MAX_DELIVERIES.>",
        "CONSUMER.CREATED.>",
        "CONSUMER.DELETED.>",
        "CONSUMER.PAUSE.>",
        "CONSUMER.LEADER_ELECTED.>",
        "CONSUMER.PINNED.>",
        "CONSUMER.UNPINNED.>",
    )
)
_KINDS: Final = (
    (ELECTION, re.compile("metadata leader")),
    (DRIFT, re.compile("drifted|replicas differ|replicas disagree")),
    (
        REPAIR,
        re.compile(
            "damage|repaired|undamaged|whole again|can be read again|written again|open again"
            "|catching up|caught up|catch-up|set aside|on enough disks"
        ),
    ),
)
_ALWAYS: Final = ("WRN", "ERR", "FTL")
_ELECTED: Final = ".LEADER_ELECTED."
_GROUP_FIELDS: Final = ("group", "uid")

OnEvent = Callable[["Event"], None]


class CallLater(Protocol):
    def __call__(self, delay: float, callback: Callable[[], None], /) -> object: ...


class Event(NamedTuple):
    """Something that happened. `account`: to whom it may be told besides operators; "": nobody."""

    time_ns: int
    kind: str
    subject: str  # of an advisory; else the stream that it is about, if any
    text: str
    account: str

    def document(self) -> Document:
        """Return the event as it is shown."""
        return {
            "time": format_ns(self.time_ns),
            "kind": self.kind,
            "subject": self.subject,
            "text": self.text,
        }


class AdvisoryWires(Protocol):
    """Subject space of an account."""

    def subscribe(
        self,
        subject: bytes,
        on_messages: Callable[[list[tuple[bytes, bytes, bytes, bytes]]], object],
    ) -> object: ...

    def unsubscribe(self, token: object) -> None: ...


class EventLog:
    """The last events of a server, and those who want to hear of the next ones."""

    def __init__(
        self,
        now_ns: Callable[[], int],
        monotonic_s: Callable[[], float],
        call_later: CallLater,
        spaces: Callable[[], Iterable[tuple[str, AdvisoryWires]]],
        stream_of: Callable[[int], tuple[str, str] | None],
    ) -> None:
        """`spaces` returns the accounts that there are; `stream_of` the account and name of the
        stream that is a group."""
        self._now_ns = now_ns
        self._monotonic_s = monotonic_s
        self._call_later = call_later
        self._spaces = spaces
        self._stream_of = stream_of
        self._events: deque[Event] = deque(maxlen=DASHBOARD_EVENTS)
        self._listeners: dict[object, OnEvent] = {}
        self._listening: dict[str, list[tuple[AdvisoryWires, object]]] = {}  # by account
        self._watched_s = -DASHBOARD_WATCHED_S

    def document(self, grant: Grant) -> Document:
        """Return the last events that `grant` sees, newest first."""
        items = [event.document() for event in reversed(self._events) if is_shown(event, grant)]
        return {"items": items, "total": len(items), "offset": 0, "limit": DASHBOARD_EVENTS}

    def listen(self, on_event: OnEvent) -> object:
        """Call `on_event` for each event from here on. Returns a token for `unlisten`."""
        token = object()
        self._listeners[token] = on_event
        return token

    def unlisten(self, token: object) -> None:
        """Take back a `listen`."""
        self._listeners.pop(token, None)
        self._watched_s = self._monotonic_s()

    # --- sources --------------------------------------------------------------------------------

    def on_line(self, level: str, text: str, fields: Mapping[str, object]) -> None:
        """Take a line of the log, if it is of interest."""
        kind = next((kind for kind, words in _KINDS if words.search(text)), "")
        if not kind:
            if level not in _ALWAYS:
                return
            kind = SERVER
        account, subject = "", ""
        for name in _GROUP_FIELDS:
            uid = fields.get(name)
            stream = self._stream_of(uid) if isinstance(uid, int) else None
            if stream is not None:
                account, name_of_stream = stream
                subject = f"{account} > {name_of_stream}"
        self._add(kind, subject, in_words(text, fields), account)

    def watch(self) -> None:
        """Listen to advisories from here on, for a while: somebody looks at the dashboard."""
        self._watched_s = self._monotonic_s()
        if not self._listening:
            self._call_later(DASHBOARD_WATCHED_S, self._rest)
        for account, wires in self._spaces():
            if account not in self._listening:
                self._listening[account] = [
                    (wires, wires.subscribe(subject, self._taker(account)))
                    for subject in _ADVISORIES
                ]

    def _rest(self) -> None:
        """Listen no more if nobody has looked for a while, and nobody looks now."""
        if self._listeners:
            self._watched_s = self._monotonic_s()
        left_s = self._watched_s + DASHBOARD_WATCHED_S - self._monotonic_s()
        if self._listening and left_s > 0:
            self._call_later(left_s, self._rest)
        else:
            self.close()

    def close(self) -> None:
        """Listen to no advisories any more."""
        listening, self._listening = self._listening, {}
        for tokens in listening.values():
            for wires, token in tokens:
                wires.unsubscribe(token)

    def _taker(self, account: str) -> Callable[[list[tuple[bytes, bytes, bytes, bytes]]], None]:
        def take(messages: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
            for subject, _, _, payload in messages:
                self._on_advisory(account, subject.decode(errors="replace"), payload)

        return take

    def _on_advisory(self, account: str, subject: str, payload: bytes) -> None:
        kind = ELECTION if _ELECTED in subject else ADVISORY
        self._add(kind, subject, advisory_text(subject, payload), account)

    def _add(self, kind: str, subject: str, text: str, account: str) -> None:
        event = Event(self._now_ns(), kind, subject, text[:DASHBOARD_EVENT_CHARS], account)
        self._events.append(event)
        for on_event in list(self._listeners.values()):
            on_event(event)


def is_shown(event: Event, grant: Grant) -> bool:
    """True if `grant` may see an event: an advisory as a client could, a line of the log as all
    advisories."""
    if not (grant.sees_all or (event.account and grant.sees(event.account))):
        return False
    is_advisory = event.subject.startswith(_PREFIX)
    return grant.may_hear(event.subject if is_advisory else f"{_PREFIX}>")


def advisory_text(subject: str, payload: bytes) -> str:
    """Return an advisory in words: its own fields without those that all have."""
    body = read_object(payload)
    if body is None:
        return payload[:DASHBOARD_EVENT_CHARS].decode(errors="replace")
    what = str(body.get("type", "")).rpartition(".")[2].replace("_", " ") or subject
    said = {
        key: value
        for key, value in body.items()
        if key not in ("type", "id", "timestamp", "client", "domain")
        and isinstance(value, str | int | float)
    }
    return in_words(what, said)
