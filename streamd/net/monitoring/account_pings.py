"""Account pings, `$SYS.REQ.ACCOUNT.PING.CONNZ` and `.STATZ`: documents on the asker's account.

`nats account report connections` and `statistics` ask them. They are all of `$SYS.REQ` that an
ordinary account may ask besides USER.INFO: the rest (SERVER.PING, SERVER.<id>.VARZ ...) is the
system account's alone, and users of that are not told apart here, so nobody is answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, Protocol

from streamd.limits import MONITORING_PINGS_MAX
from streamd.net.monitoring.documents import Monitoring
from streamd.net.monitoring.query import BadQuery, Query
from streamd.net.monitoring.sliced_pages import Document, Slicer, Steps, encode
from streamd.net.pubsub.subscriptions import Subscriptions

_PREFIX: Final = b"$SYS.REQ.ACCOUNT.PING."
_STATES: Final = ("open", "closed", "any")
_TEXTS: Final = ("sort", "user", "filter_subject", "offset", "limit", "cid")


class Answers(Protocol):
    """Answers of this server to `$SYS.REQ` requests, each with a description of the server."""

    def send(self, reply: bytes, answer: Document) -> None:
        """Send one answer."""

    def whole(self, answer: Document) -> Document:
        """Return an answer as it is sent."""

    def publish(self, reply: bytes, body: bytes) -> None:
        """Send the text of a whole answer."""


class AccountPings:
    """Answers clients of any node, with what this one has."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        monitoring: Monitoring,
        answers: Answers,
        slicer: Slicer,
    ) -> None:
        self._answers = answers
        self._slicer = slicer
        self._asked_count = 0  # and not answered yet
        self._serve(subscriptions, b"CONNZ", connz_query, monitoring.connz)
        self._serve(subscriptions, b"STATZ", statz_query, monitoring.accstatz)

    def _serve(
        self,
        subscriptions: Subscriptions,
        name: bytes,
        query_of: Callable[[Document], Query],
        document: Callable[[Query], Steps[Document]],
    ) -> None:
        def on_request(
            _subject: bytes, reply: bytes, _headers: bytes, payload: bytes, _conn: object
        ) -> None:
            if not reply:
                return
            try:
                asked = json.loads(payload) if payload else {}
                query = query_of(asked if isinstance(asked, dict) else {})
            except (ValueError, RecursionError) as err:  # also: no text, or nested too deeply
                fault = {"code": 400, "description": f"invalid JSON: {err}"}
                self._answers.send(reply, {"error": fault})
                return
            self._answer(reply, document(query))

        subscriptions.subscribe_internal(_PREFIX + name, on_request, is_told=True)

    def _answer(self, reply: bytes, steps: Steps[Document]) -> None:
        if self._asked_count >= MONITORING_PINGS_MAX:
            self._refuse(reply, "too many requests are waiting")
            return
        self._asked_count += 1

        def done(body: bytes) -> None:
            self._asked_count -= 1
            self._answers.publish(reply, body)

        def failed(err: Exception) -> None:
            self._asked_count -= 1
            if not isinstance(err, BadQuery):
                raise err
            self._refuse(reply, str(err))

        self._slicer.start(self._text(steps), done, failed)

    def _refuse(self, reply: bytes, text: str) -> None:
        self._answers.send(reply, {"data": None, "error": {"code": 500, "description": text}})

    def _text(self, steps: Steps[Document]) -> Steps[bytes]:
        document = yield from steps
        pieces = []
        for piece in encode(self._answers.whole({"data": document}), ""):
            pieces.append(piece)
            yield
        return "".join(pieces).encode(errors="replace")


def connz_query(asked: Document) -> Query:
    """Return what the monitoring port would be asked. The account is always the asker's."""
    query = {key: _text(asked[key]) for key in _TEXTS if asked.get(key)}
    if asked.get("auth"):
        query["auth"] = "1"
    if asked.get("subscriptions"):
        query["subs"] = "1"
    if asked.get("subscriptions_detail"):
        query["subs"] = "detail"
    state = asked.get("state") or 0
    if isinstance(state, int) and 0 <= state < len(_STATES):
        query["state"] = _STATES[state]
    else:
        query["state"] = _text(state)
    return query


def _text(value: object) -> str:
    """Return `value` as text that can be sent back: JSON may name halves of characters."""
    return str(value).encode(errors="replace").decode()


def statz_query(asked: Document) -> Query:
    """Return the query of a statistics ping. The account is always the asker's."""
    return {"unused": "1"}
