"""`$SYS.REQ.USER.<account>.INFO`: the user, account and permissions of the client that asks.

Accounts import it as `$SYS.REQ.USER.INFO`; `nats account info` and nats.js ask it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

from streamd.config.options import Permissions
from streamd.durations import SECOND_NS
from streamd.net.client.output import Output
from streamd.net.client.profile import ClientProfile
from streamd.net.monitoring.sliced_pages import Document
from streamd.net.pubsub.subscriptions import Subscriptions
from streamd.net.system.answers import Answers
from streamd.net.system.requester_info import request_info

SUBJECT: Final = b"$SYS.REQ.USER.INFO"
"""Subject in the accounts of those who ask."""
_IMPORTED: Final = b"$SYS.REQ.USER.*.INFO"


@runtime_checkable
class Passed(Protocol):
    """Origin of a request that a service import passes on."""

    @property
    def requester(self) -> object:
        """The client that asked, if it is one of this node."""


class UserInfo:
    """Answers the clients of this node; each node answers its own."""

    def __init__(self, answers: Answers, label_of: Callable[[str], str]) -> None:
        """`label_of` returns the name of an account for people."""
        self._answers = answers
        self._label_of = label_of

    def serve_account(self, subscriptions: Subscriptions) -> None:
        """Answer in an account itself."""
        subscriptions.subscribe_internal(SUBJECT, self._on_request)

    def serve_imports(self, subscriptions: Subscriptions) -> None:
        """Answer in the system account what comes by the imports of others."""
        subscriptions.subscribe_internal(_IMPORTED, self._on_imported)

    def _on_request(
        self, _subject: bytes, reply: bytes, _headers: bytes, _payload: bytes, conn: object
    ) -> None:
        if reply and isinstance(conn, Output):  # else the server itself, or another node's client
            facts = user_facts(conn.profile, self._label_of)
            self._answers.send(reply, {"data": facts})

    def _on_imported(
        self, _subject: bytes, reply: bytes, headers: bytes, _payload: bytes, conn: object
    ) -> None:
        """Answer what the import tells; without one there is no telling who asks."""
        client = conn.requester if isinstance(conn, Passed) else conn
        if not reply or not isinstance(client, Output):
            return
        info = request_info(headers)
        account = str(info.get("acc", ""))
        identity = client.profile.identity
        if identity is not None and account and identity.account == account:
            facts = user_facts(client.profile, self._label_of)
        else:
            facts = {"user": str(info.get("user", "")), "account": account}
        self._answers.send(reply, {"data": facts})


def user_facts(profile: ClientProfile, label_of: Callable[[str], str]) -> Document:
    """Return the `data` of an answer: `user`, `account`, and `permissions` if there are some."""
    connect, identity = profile.connect or {}, profile.identity
    assert identity is not None  # a stranger can't publish
    token = identity.token
    if connect.get("auth_token") and token is None:
        user = "[REDACTED]"
    else:
        user = identity.user or connect.get("user", "")
    facts: Document = {
        "user": user,
        "account": identity.account,
        "account_name": label_of(identity.account),
    }
    if token is not None and token.name:
        facts["user_name"] = token.name
    if identity.permissions is not None:
        facts["permissions"] = _permissions(identity.permissions)
    if token is not None and token.expires_ns:
        left_s = (token.expires_ns - time.time_ns()) // SECOND_NS
        facts["expires"] = max(0, left_s) * SECOND_NS
    return facts


def _permissions(permissions: Permissions) -> Document:
    rules: Document = {
        "publish": _lists(permissions.publish_allow, permissions.publish_deny),
        "subscribe": _lists(permissions.subscribe_allow, permissions.subscribe_deny),
    }
    response = permissions.allow_responses
    if response is not None:
        rules["responses"] = {"max": response.max_msgs, "ttl": response.ttl_ns}
    return rules


def _lists(allow: list[bytes] | None, deny: list[bytes]) -> dict[str, list[str]]:
    named = {"allow": allow, "deny": deny}
    return {
        name: [pattern.decode(errors="replace") for pattern in patterns]
        for name, patterns in named.items()
        if patterns
    }
