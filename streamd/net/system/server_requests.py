"""Requests to servers, `$SYS.REQ.SERVER.PING.<X>` to all and `$SYS.REQ.SERVER.<id>.<X>` to one.

Each answers with a document of the monitoring port, but for these: IDZ is bare and has no filter,
STATSZ has a key of its own and is broadcast if nobody is named who wants it, and RELOAD, KICK and
LDM, to one server alone, change something. STREAMD.DRAIN, SCRUB and TRASH, likewise,
STREAMD.REPLICAS, which is JSZ with digests of replicas, and STREAMD.DIGESTS, of ranges of one, are
not nats-server's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from streamd.api.decoding import FieldType, Shape
from streamd.machine.message_headers import get
from streamd.net.monitoring.documents import Monitoring
from streamd.net.monitoring.query import BadQuery, NotLeader, Query
from streamd.net.monitoring.sliced_pages import Document, Steps
from streamd.net.pubsub.subscriptions import Subscriptions
from streamd.net.system.answers import Answers, Silence
from streamd.net.system.compression import encoding_of
from streamd.net.system.profiles import profile
from streamd.net.system.request_options import (
    Asked,
    BadOptions,
    event_shape,
    is_meant,
    query_of,
    read,
)

_ALL: Final = b"$SYS.REQ.SERVER.PING"
_ONE: Final = b"$SYS.REQ.SERVER.%b"


class ServerControls(Protocol):
    """The server as far as an operator changes it by a request."""

    def reload(self) -> str:
        """Read the configuration again; returns why that failed, "" if it did not."""

    def kick(self, cid: int) -> bool:
        """End the connection of a client; False: it has none."""

    def send_away(self, cid: int) -> bool:
        """Tell a client to connect to another server; False: there is no such client."""

    def drain(self) -> None:
        """Send all clients away one by one, hand leaderships over, and stop."""

    def trash(
        self, action: str, names: Sequence[str], answer: Callable[[Document | str], None]
    ) -> None:
        """List what was set aside, `purge` or `restore` it by name; `answer` is called with what
        was done, or with why nothing was."""

    def scrub(self, is_begun: bool) -> Document | None:
        """Verify all files from here on if `is_begun`; return how far that is, and what is
        damaged. None: there is no JetStream here."""


class ServerStatistics(Protocol):
    """Source of STATSZ."""

    def document(self) -> Steps[Document]:
        """Build the statistics of this server."""

    def broadcast(self) -> None:
        """Publish them now."""


class Kind(NamedTuple):
    """A request that a document answers: its options, their names at the monitoring port, and what
    builds the document."""

    shape: Shape
    names: Mapping[str, str]
    build: Callable[[Query], Steps[Document]]


class ServerRequests:
    """Answers the requests of operators to this server, on the system account's subjects."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        monitoring: Monitoring,
        answers: Answers,
        statistics: ServerStatistics,
        controls: ServerControls,
    ) -> None:
        """`subscriptions`: of the system account."""
        self._subscriptions = subscriptions
        self._answers = answers
        self._statistics = statistics
        self._controls = controls
        self._own = _ONE % answers.description.server_id.encode()
        for name, kind in kinds_of(monitoring).items():
            self._serve_all(name, self._document_handler(kind))
        self._serve_all("IDZ", self._on_identity)
        self._serve_all("STATSZ", self._on_statistics)
        self._serve(_ALL, self._on_statistics)
        self._serve(self._own + b".RELOAD", self._on_reload)
        self._serve(self._own + b".KICK", self._on_kick)
        self._serve(self._own + b".LDM", self._on_send_away)
        # Beyond nats-server's.
        self._serve(self._own + b".STREAMD.DRAIN", self._on_drain)
        self._serve(self._own + b".STREAMD.SCRUB", self._on_scrub)
        self._serve(self._own + b".STREAMD.TRASH", self._on_trash)

    def _serve_all(self, name: str, on_request: Callable[..., None]) -> None:
        for start in (_ALL, self._own):
            self._serve(start + b"." + name.encode(), on_request)

    def _serve(self, subject: bytes, on_request: Callable[..., None]) -> None:
        self._subscriptions.subscribe_internal(subject, on_request, is_told=True)

    def _read(self, reply: bytes, body: bytes, shape: Shape) -> Asked | None:
        """Return the options of a request; None: it is refused, or for others."""
        try:
            asked = read(body, shape)
        except BadOptions as err:
            self._answers.refuse(reply, str(err))
            return None
        return asked if is_meant(self._answers.description, asked) else None

    # --- documents ------------------------------------------------------------------------------

    def _document_handler(self, kind: Kind) -> Callable[..., None]:
        def on_request(
            _subject: bytes, reply: bytes, headers: bytes, payload: bytes, _conn: object
        ) -> None:
            asked = self._read(reply, payload, kind.shape) if reply else None
            if asked is not None:
                steps = kind.build(query_of(asked, kind.names))
                self._answers.build(reply, steps, encoding=accepted_encoding(headers))

        return on_request

    def _on_identity(
        self, _subject: bytes, reply: bytes, _headers: bytes, _payload: bytes, _conn: object
    ) -> None:
        if reply:
            self._answers.send_bare(reply, self._answers.description.identity())

    def _on_statistics(
        self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes, _conn: object
    ) -> None:
        if not reply:
            self._statistics.broadcast()
        elif self._read(reply, payload, _STATSZ) is not None:
            self._answers.build(reply, self._statistics.document(), key="statsz")

    # --- changes --------------------------------------------------------------------------------

    def _on_reload(
        self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes, _conn: object
    ) -> None:
        if self._read(reply, payload, _RELOAD) is not None:
            self._tell(reply, self._controls.reload())

    def _on_kick(
        self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes, _conn: object
    ) -> None:
        cid = _cid_of(payload)
        if cid is not None:
            is_done = self._controls.kick(cid)
            self._tell(reply, "" if is_done else "no such client or leafnode id")

    def _on_send_away(
        self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes, _conn: object
    ) -> None:
        cid = _cid_of(payload)
        if cid is not None:
            is_done = self._controls.send_away(cid)
            self._tell(reply, "" if is_done else "no such client id")

    def _on_drain(
        self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes, _conn: object
    ) -> None:
        if self._read(reply, payload, _DRAIN) is not None:
            self._tell(reply, "")
            self._controls.drain()

    def _on_scrub(
        self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes, _conn: object
    ) -> None:
        asked = self._read(reply, payload, _SCRUB) if reply else None
        if asked is None:
            return
        found = self._controls.scrub(bool(asked.get("begin")))
        if found is None:
            self._answers.fail(reply, "JetStream not enabled")
        else:
            self._answers.send(reply, {"data": found})

    def _on_trash(
        self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes, _conn: object
    ) -> None:
        asked = self._read(reply, payload, _TRASH) if reply else None
        if asked is None:
            return

        def answer(found: Document | str) -> None:
            if isinstance(found, str):
                self._answers.fail(reply, found)
            else:
                self._answers.send(reply, {"data": found})

        self._controls.trash(asked.get("action") or "list", asked.get("names") or (), answer)

    def _tell(self, reply: bytes, failure: str) -> None:
        if reply:
            error: Document = {"error": {"code": 500, "description": failure}}
            self._answers.send(reply, error if failure else {})


def accepted_encoding(headers: bytes) -> str:
    """Return the encoding of the answer to a request with these headers."""
    return encoding_of((get(headers, b"Accept-Encoding") or b"").decode(errors="replace"))


def _cid_of(body: bytes) -> int | None:
    """Return the connection that a request is about; None: nothing in it can be read, which has no
    answer."""
    try:
        return int(read(body, _CLIENT).get("cid", 0)) if body else None
    except BadOptions:
        return None


_PAGE: Final[dict[str, FieldType]] = {"offset": "int", "limit": "int"}
_SUBS: Final[dict[str, FieldType]] = {"subscriptions": "bool", "subscriptions_detail": "bool"}
_PAGE_NAMES: Final = {"offset": "offset", "limit": "limit"}
_STATSZ: Final = event_shape("Statsz", {})
_RELOAD: Final = event_shape("Reload", {})
_DRAIN: Final = event_shape("Drain", {})
_SCRUB: Final = event_shape("Scrub", {"begin": "bool"})
_TRASH: Final = event_shape("Trash", {"action": "string", "names": ["string"]})
_CLIENT: Final = Shape("KickClientReq", {"cid": "uint64"})
_STATES: Final = ("open", "closed", "any")

CONNZ: Final = event_shape(
    "Connz",
    {
        "sort": "string",
        "auth": "bool",
        **_SUBS,
        **_PAGE,
        "cid": "uint64",
        "mqtt_client": "string",
        "state": "server.ConnState",
        "user": "string",
        "acc": "string",
        "filter_subject": "string",
    },
)
CONNZ_NAMES: Final = {
    **{name: name for name in ("sort", "auth", "cid", "mqtt_client", "state", "user", "acc")},
    "filter_subject": "filter_subject",
    "subscriptions": "subs",
    "subscriptions_detail": "detail",
    **_PAGE_NAMES,
}
SUBSZ: Final = event_shape(
    "Subsz", {**_PAGE, "subscriptions": "bool", "account": "string", "test": "string"}
)
SUBSZ_NAMES: Final = {"subscriptions": "subs", "account": "acc", "test": "test", **_PAGE_NAMES}
LEAFZ: Final = event_shape("Leafz", {"subscriptions": "bool", "account": "string"})
LEAFZ_NAMES: Final = {"subscriptions": "subs", "account": "acc"}
JSZ: Final = event_shape(
    "Jsz",
    {
        "account": "string",
        **dict.fromkeys(("accounts", "streams", "consumer", "direct_consumer", "config"), "bool"),
        **dict.fromkeys(("leader_only", "raft", "stream_leader_only"), "bool"),
        **_PAGE,
    },
)
JSZ_NAMES: Final = {
    "account": "acc",
    "accounts": "accounts",
    "streams": "streams",
    "consumer": "consumers",
    "direct_consumer": "direct-consumers",
    "config": "config",
    "leader_only": "leader-only",
    "raft": "raft",
    "stream_leader_only": "stream-leader-only",
    **_PAGE_NAMES,
}
REPLICAS: Final = event_shape("Replicas", {"account": "string", **_PAGE})
REPLICAS_NAMES: Final = {"account": "acc", **_PAGE_NAMES}
DIGESTS: Final = event_shape(
    "Digests",
    {
        "account": "string",
        "stream": "string",
        "first_seq": "uint64",
        "last_seq": "uint64",
        "starts": "string",
    },
)
DIGESTS_NAMES: Final = {
    "account": "acc",
    "stream": "stream",
    "first_seq": "first",
    "last_seq": "last",
    "starts": "starts",
}
_DIGESTS: Final = dict.fromkeys(("accounts", "streams", "config", "digest"), "1")
_HEALTH_WORDS: Final = ("js-enabled", "js-enabled-only", "js-server-only", "js-meta-only")
_HEALTH_NAMES: Final = ("account", "stream", "consumer")


def kinds_of(monitoring: Monitoring) -> dict[str, Kind]:
    """Return the requests that documents answer, by name."""
    m = monitoring
    health: dict[str, FieldType] = {
        **dict.fromkeys((*_HEALTH_WORDS, "details"), "bool"),
        **dict.fromkeys(_HEALTH_NAMES, "string"),
    }
    gateways = event_shape(
        "Gatewayz", {"name": "string", "accounts": "bool", "account_name": "string", **_SUBS}
    )
    profiles: dict[str, FieldType] = {"name": "string", "debug": "int", "duration": "time.Duration"}
    return {
        "STREAMD.REPLICAS": Kind(
            REPLICAS, REPLICAS_NAMES, lambda query: m.jsz({**query, **_DIGESTS})
        ),
        "STREAMD.DIGESTS": Kind(DIGESTS, DIGESTS_NAMES, m.digests),
        "VARZ": Kind(event_shape("Varz", {}), {}, m.varz),
        "SUBSZ": Kind(SUBSZ, SUBSZ_NAMES, m.subsz),
        "CONNZ": Kind(CONNZ, CONNZ_NAMES, lambda query: _connections(m, query)),
        "ROUTEZ": Kind(
            event_shape("Routez", _SUBS),
            {"subscriptions": "subs", "subscriptions_detail": "detail"},
            lambda query: m.routez(_with_detail(query)),
        ),
        "GATEWAYZ": Kind(gateways, {}, m.gatewayz),
        "LEAFZ": Kind(LEAFZ, LEAFZ_NAMES, m.leafz),
        "ACCOUNTZ": Kind(
            event_shape("Accountz", {"account": "string"}), {"account": "acc"}, m.accountz
        ),
        "JSZ": Kind(JSZ, JSZ_NAMES, lambda query: _of_leader(m.jsz(query))),
        "HEALTHZ": Kind(
            event_shape("Healthz", health),
            {name: name for name in health},
            lambda query: _health(m, query),
        ),
        "PROFILEZ": Kind(
            event_shape("Profilez", profiles), {name: name for name in profiles}, profile
        ),
        "EXPVARZ": Kind(event_shape("Expvarz", {}), {}, m.debug_vars),
        "IPQUEUESZ": Kind(
            event_shape("Ipqueuesz", {"all": "bool", "filter": "string"}),
            {"all": "all", "filter": "queues"},
            m.ipqueuesz,
        ),
        "RAFTZ": Kind(
            event_shape("Raftz", {"account": "string", "group": "string"}),
            {"account": "acc", "group": "group"},
            lambda query: _groups(m, query),
        ),
    }


def connz_query(query: Query) -> Query:
    """Return the query of /connz for options that name the state by number."""
    state = int(query.get("state", "0"))
    word = _STATES[state] if 0 <= state < len(_STATES) else str(state)
    return {**_with_detail(query), "state": word}


def _connections(monitoring: Monitoring, query: Query) -> Steps[Document]:
    if query.get("filter_subject") and not query.get("acc"):
        raise BadQuery("filter by subject only valid with account filtering")
    return (yield from monitoring.connz(connz_query(query)))


def _digested(query: Query) -> Query:
    return {**query, **_DIGESTS}


def _with_detail(query: Query) -> Query:
    return {**query, "subs": "detail"} if query.get("detail") else query


def _of_leader(steps: Steps[Document]) -> Steps[Document]:
    """Leave a request to the leader alone to it: over NATS others say nothing."""
    try:
        return (yield from steps)
    except NotLeader:
        raise Silence from None


def _health(monitoring: Monitoring, query: Query) -> Steps[Document]:
    status, document = yield from monitoring.healthz(query)
    word = document.pop("status")
    return {"status": word, "status_code": status, **document}


def _groups(monitoring: Monitoring, query: Query) -> Steps[Document]:
    return (yield from monitoring.raftz(query)) or {}
