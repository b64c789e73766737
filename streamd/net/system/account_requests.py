"""Requests about one account, `$SYS.REQ.ACCOUNT.<account>.<X>`, and about all, `PING.STATZ`.

Operators ask them in the system account; other accounts import CONNZ and STATZ of their own, so
their answers say nothing of others whatever a request's options name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from streamd.api.decoding import Shape
from streamd.net.monitoring.documents import Monitoring
from streamd.net.monitoring.query import Query
from streamd.net.monitoring.sliced_pages import Document, Steps
from streamd.net.pubsub.subscriptions import Subscriptions
from streamd.net.system.answers import Answers, Silence
from streamd.net.system.request_options import (
    Asked,
    BadOptions,
    event_shape,
    is_meant,
    query_of,
    read,
)
from streamd.net.system.server_requests import (
    CONNZ,
    CONNZ_NAMES,
    JSZ,
    JSZ_NAMES,
    LEAFZ,
    LEAFZ_NAMES,
    SUBSZ,
    SUBSZ_NAMES,
    accepted_encoding,
    connz_query,
)

_START: Final = b"$SYS.REQ.ACCOUNT."
_ALL: Final = "PING"  # where a name of an account belongs
_ACCOUNT_AT: Final = 3  # of the tokens of a subject
_STATZ: Final = event_shape("AccountStatz", {"accounts": ["string"], "include_unused": "bool"})
_CONNECTIONS: Final = Shape("accNumConnsReq", {"acc": "string"})
_INFO: Final = event_shape("Account", {})


class _Kind(NamedTuple):
    """A request: its options, and what builds the answer for an account."""

    shape: Shape
    build: Callable[[str, Asked], Steps[Document]]


class AccountRequests:
    """Answers questions of operators about accounts, on the system account's subjects."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        monitoring: Monitoring,
        answers: Answers,
        send_connections: Callable[[str, bytes], None],
    ) -> None:
        """`subscriptions`: of the system account. `send_connections(account, reply)` answers with
        the event that counts an account's connections; not if there are none."""
        m = monitoring
        kinds = {
            b"SUBSZ": _Kind(
                SUBSZ,
                lambda name, asked: m.subsz({**_own(name, asked, SUBSZ_NAMES), "subs": "1"}),
            ),
            b"CONNZ": _connections_of(m),
            b"LEAFZ": _Kind(LEAFZ, lambda name, asked: m.leafz(_own(name, asked, LEAFZ_NAMES))),
            b"JSZ": _Kind(JSZ, lambda name, asked: m.account_jsz(_own(name, asked, JSZ_NAMES))),
            b"INFO": _Kind(_INFO, lambda name, _: m.account_info(name)),
            b"STATZ": _statistics_of(m, all_name=_ALL),
        }
        for name, kind in kinds.items():
            handler = _handler(kind, answers)
            subscriptions.subscribe_internal(_START + b"*." + name, handler, is_told=True)

        def on_connections(
            subject: bytes, reply: bytes, _headers: bytes, payload: bytes, _conn: object
        ) -> None:
            try:
                read(payload, _CONNECTIONS)
            except BadOptions:  # as nats-server: it is another server's question, and has no answer
                return
            if reply:
                send_connections(_account_in(subject), reply)

        subscriptions.subscribe_internal(_START + b"*.CONNS", on_connections, is_told=True)


class OwnRequests:
    """Answers what an account asks about itself, in its own subject space: the subjects by which
    accounts import CONNZ and STATZ from the system account."""

    def __init__(
        self, subscriptions: Subscriptions, account: str, monitoring: Monitoring, answers: Answers
    ) -> None:
        connections, statistics = _connections_of(monitoring), _statistics_of(monitoring)
        for subject, kind in (
            (_START + b"PING.CONNZ", connections),
            (b"$SYS.REQ.SERVER.PING.CONNZ", connections),
            (_START + b"PING.STATZ", statistics),
        ):
            handler = _handler(kind, answers, account)
            subscriptions.subscribe_internal(subject, handler, is_told=True)


def _handler(kind: _Kind, answers: Answers, account: str = "") -> Callable[..., None]:
    """Return what answers a request: about `account`, or about the one that the subject names."""

    def on_request(
        subject: bytes, reply: bytes, headers: bytes, payload: bytes, _conn: object
    ) -> None:
        if not reply:
            return
        try:
            asked = read(payload, kind.shape)
        except BadOptions as err:
            answers.refuse(reply, str(err))
            return
        if is_meant(answers.description, asked):
            steps = kind.build(account or _account_in(subject), asked)
            answers.build(reply, steps, encoding=accepted_encoding(headers))

    return on_request


def _own(name: str, asked: Asked, names: Mapping[str, str]) -> Query:
    """Return the query of a page about one account, whatever account the options name."""
    return {**query_of(asked, names), "acc": name}


def _connections_of(monitoring: Monitoring) -> _Kind:
    return _Kind(
        CONNZ, lambda name, asked: monitoring.connz(connz_query(_own(name, asked, CONNZ_NAMES)))
    )


def _statistics_of(monitoring: Monitoring, *, all_name: str = "") -> _Kind:
    """Return STATZ: nothing is said where nothing is used, unless that is asked for. `all_name`
    stands for all accounts, or those that the options name."""

    def build(name: str, asked: Asked) -> Steps[Document]:
        names = (asked.get("accounts") or None) if name == all_name else [name]
        has_unused = bool(asked.get("include_unused"))
        found = yield from monitoring.account_statistics(names, has_unused=has_unused)
        if not found["account_statz"] and not has_unused:
            raise Silence
        return found

    return _Kind(_STATZ, build)


def _account_in(subject: bytes) -> str:
    return subject.split(b".")[_ACCOUNT_AT].decode(errors="replace")
