"""`$SYS.REQ.USER.INFO`: the user, account and permissions of the client that asks.

`nats account info` and nats.js ask it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final

from streamd import NATS_LEVEL
from streamd.config.options import Options, Permissions
from streamd.machine.rfc3339 import format_ns
from streamd.net.client.output import Output
from streamd.net.client.profile import ClientProfile
from streamd.net.pubsub.subscriptions import Subscriptions

SUBJECT: Final = b"$SYS.REQ.USER.INFO"
_HAS_JETSTREAM: Final = 1  # the one of nats-server's capability flags that says something here


class SystemAnswers:
    """Answers to `$SYS.REQ`: a description of this server, then the data that was asked for."""

    def __init__(
        self,
        publish: Callable[[bytes, bytes, bytes, bytes], None],
        options: Options,
        *,
        server_id: str,
        server_name: str,
        has_jetstream: bool,
    ) -> None:
        """`publish(subject, reply, headers, payload)` is the router's."""
        self._publish = publish
        self._has_jetstream = has_jetstream
        self._described: dict[str, object] = {
            "name": server_name,
            "host": options.host or "0.0.0.0",
            "id": server_id,
        }
        if options.cluster.is_enabled and options.cluster.name:
            self._described["cluster"] = options.cluster.name
        if has_jetstream and options.jetstream.domain:
            self._described["domain"] = options.jetstream.domain
        self._count = 0

    def send(self, reply: bytes, answer: dict[str, object]) -> None:
        body = json.dumps(self.whole(answer), separators=(",", ":"), ensure_ascii=False).encode()
        self.publish(reply, body)

    def whole(self, answer: dict[str, object]) -> dict[str, object]:
        """Return an answer as it is sent."""
        return {"server": self._server()} | answer

    def publish(self, reply: bytes, body: bytes) -> None:
        """Send the text of a whole answer."""
        self._publish(reply, b"", b"", body)

    def _server(self) -> dict[str, object]:
        self._count += 1
        return self._described | {
            "ver": NATS_LEVEL,
            "jetstream": self._has_jetstream,
            "flags": _HAS_JETSTREAM if self._has_jetstream else 0,
            "seq": self._count,
            "time": format_ns(time.time_ns()),
        }


class UserInfo:
    """Answers the clients of this node; each node answers its own."""

    def __init__(self, subscriptions: Subscriptions, answers: SystemAnswers) -> None:
        self._answers = answers
        subscriptions.subscribe_internal(SUBJECT, self._on_request)

    def _on_request(
        self, _subject: bytes, reply: bytes, _headers: bytes, _payload: bytes, conn: object
    ) -> None:
        if not reply or not isinstance(conn, Output):  # the server itself, or another node's client
            return
        self._answers.send(reply, {"data": user_facts(conn.profile)})


def user_facts(profile: ClientProfile) -> dict[str, object]:
    """Return the `data` of an answer: `user`, `account`, and `permissions` if there are some."""
    connect, identity = profile.connect or {}, profile.identity
    assert identity is not None  # a stranger can't publish
    user = "[REDACTED]" if connect.get("auth_token") else identity.user or connect.get("user", "")
    facts: dict[str, object] = {
        "user": user,
        "account": identity.account,
        "account_name": identity.account,
    }
    if identity.permissions is not None:
        facts["permissions"] = _permissions(identity.permissions)
    return facts


def _permissions(permissions: Permissions) -> dict[str, object]:
    rules: dict[str, object] = {
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
