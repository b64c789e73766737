"""`$SYS.REQ.ACCOUNT.PING.CONNZ` and `.STATZ`: what each server says of the asker's own account.

`nats account report connections` and `statistics` ask them. They are all of `$SYS.REQ` that an
ordinary account may ask besides USER.INFO: the rest (SERVER.PING, SERVER.<id>.VARZ ...) is the
system account's alone, and users of that are not told apart here, so nobody is answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from streamd.net.query import BadQuery, Query

if TYPE_CHECKING:
    from streamd.net.monitoring import Monitoring
    from streamd.net.pubsub import PubSub
    from streamd.net.user_info import SystemAnswers

_PREFIX: Final = b"$SYS.REQ.ACCOUNT.PING."
_STATES: Final = ("open", "closed", "any")
_TEXTS: Final = ("sort", "user", "filter_subject", "offset", "limit", "cid")
_Document = Callable[[Query], dict[str, Any]]


class AccountPings:
    """Answers clients of any node, with what this one has."""

    def __init__(self, pubsub: PubSub, monitoring: Monitoring, answers: SystemAnswers) -> None:
        self._answers = answers
        self._serve(pubsub, b"CONNZ", connz_query, monitoring.connz)
        self._serve(pubsub, b"STATZ", statz_query, monitoring.accstatz)

    def _serve(
        self,
        pubsub: PubSub,
        name: bytes,
        query_of: Callable[[dict[str, Any]], Query],
        document: _Document,
    ) -> None:
        def on_request(
            _subject: bytes, reply: bytes, _headers: bytes, payload: bytes, _conn: Any
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
            try:
                self._answers.send(reply, {"data": document(query)})
            except BadQuery as err:
                fault = {"code": 500, "description": str(err)}
                self._answers.send(reply, {"data": None, "error": fault})

        pubsub.subscribe_internal(_PREFIX + name, on_request, is_told=True)


def connz_query(asked: dict[str, Any]) -> Query:
    """Return what the monitoring port would be asked. The account is always the asker's."""
    query = {key: _text(asked[key]) for key in _TEXTS if asked.get(key)}
    if asked.get("auth"):
        query["auth"] = "1"
    if asked.get("subscriptions"):
        query["subs"] = "1"
    if asked.get("subscriptions_detail"):
        query["subs"] = "detail"
    state = asked.get("state") or 0
    is_known = isinstance(state, int) and 0 <= state < len(_STATES)
    query["state"] = _STATES[state] if is_known else _text(state)
    return query


def _text(value: Any) -> str:
    """Return `value` as text that can be sent back: JSON may name halves of characters."""
    return str(value).encode(errors="replace").decode()


def statz_query(asked: dict[str, Any]) -> Query:
    """As above. Which accounts are asked for means nothing: it is always the asker's."""
    return {"unused": "1"}
