"""Requests to a service that decides on logins (ADR-26), and its answers.

A request goes out on `$SYS.REQ.USER.AUTH` in the account in which the service listens, signed by
this server's key, of a user key made for it alone; the answer comes to an inbox of the server. Each
account has one subscription for that, made with its first request.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from streamd.config.options import Options
from streamd.net.client.auth import Approach, named_in
from streamd.net.logins.local_zone import local_zone
from streamd.net.logins.server_keys import ServerKeys
from streamd.net.logins.tls_claims import tls_claims
from streamd.net.pubsub.message_router import MessageRouter
from streamd.protocol.connect_options import ConnectOptions
from streamd.tokens.auth_callout import (
    SUBJECT,
    XKEY_HEADER,
    Answer,
    CalloutPolicy,
    Question,
    read_response,
    request_token,
    sealed_request,
)
from streamd.tokens.claims import RegisteredClaims, UserClaims
from streamd.tokens.nkeys import KEY_BYTES, KeyKind, KeyPair
from streamd.tokens.validation import LoginRefused
from streamd.tokens.xkeys import SEAL_NONCE_BYTES

_SUBJECT: Final = SUBJECT.encode()
_LEAF_TYPES: Final = ("LEAFNODE", "LEAFNODE_WS")


class CalloutAsk(NamedTuple):
    """A login, as far as the service learns of it."""

    connect: ConnectOptions
    approach: Approach
    connection_type: str
    token: UserClaims | None = None  # that the client showed


@dataclass(slots=True)
class _Inbox:
    prefix: bytes
    router: MessageRouter
    waiting: dict[bytes, asyncio.Future[bytes]]

    def on_answer(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, conn: object
    ) -> None:
        future = self.waiting.get(subject)
        if future is not None and not future.done():
            future.set_result(payload)


class CalloutRequests:
    """Asks the services of accounts about logins."""

    def __init__(
        self,
        keys: ServerKeys,
        router_of: Callable[[str], MessageRouter],
        server: Callable[[], Mapping[str, Any]],
        options: Callable[[], Options],
    ) -> None:
        """`server` describes this server: name, host, version, cluster and tags."""
        self._keys = keys
        self._router_of = router_of
        self._server = server
        self._options = options
        self._inboxes: dict[str, _Inbox] = {}
        self._numbers = itertools.count(1)

    async def ask(self, policy: CalloutPolicy, ask: CalloutAsk) -> Answer:
        """Return whom the service lets in. Raises CalloutRefused, and LoginRefused if there is no
        answer in time."""
        timeout_s = self._options().auth_timeout_s
        question, payload, headers = self._request(policy, ask, timeout_s)
        inbox = self._inbox(policy.account)
        reply = b"%b%b" % (inbox.prefix, _letters().encode())
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        inbox.waiting[reply] = future
        try:
            inbox.router.publish(_SUBJECT, reply, headers, payload)
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await future
        finally:
            del inbox.waiting[reply]
        if not future.done() or future.cancelled():
            raise LoginRefused(
                f'Authorization callout response not received in time on account "{policy.account}"'
            )
        return read_response(
            future.result(), policy, question, now_ns=time.time_ns(), zone=local_zone()
        )

    def _request(
        self, policy: CalloutPolicy, ask: CalloutAsk, timeout_s: float
    ) -> tuple[Question, bytes, bytes]:
        user = KeyPair(KeyKind.USER, secrets.token_bytes(KEY_BYTES))
        xkey = self._keys.xkey if policy.xkey else None
        question = Question(user.public, self._keys.server_id, xkey)
        tls = ask.approach.tls
        token = request_token(
            self._keys.pair,
            policy,
            question,
            server=self._server(),
            client=_client(ask),
            connect=ask.connect,
            tls=None if tls is None else tls_claims(tls),
            now_s=int(time.time()),
            timeout_s=max(1, round(timeout_s)),
        )
        payload = sealed_request(token, policy, question, secrets.token_bytes(SEAL_NONCE_BYTES))
        headers = b""
        if xkey is not None:
            headers = f"NATS/1.0\r\n{XKEY_HEADER}: {xkey.public}\r\n\r\n".encode()
        return question, payload, headers

    def _inbox(self, account: str) -> _Inbox:
        inbox = self._inboxes.get(account)
        if inbox is None:
            router = self._router_of(account)
            inbox = _Inbox(f"$SYS._INBOX.{_letters()}.".encode(), router, {})
            router.subscriptions.subscribe_internal(
                inbox.prefix + b"*", inbox.on_answer, is_told=True
            )
            self._inboxes[account] = inbox
        return inbox


def _client(ask: CalloutAsk) -> dict[str, Any]:
    """Return what the service learns of the connection."""
    connect, approach = ask.connect, ask.approach
    is_leaf = ask.connection_type in _LEAF_TYPES
    kind = "websocket" if ask.connection_type == "WEBSOCKET" else "nats"
    shown = ask.token.registered if ask.token is not None else RegisteredClaims()
    return {
        "host": approach.ip,
        "id": approach.cid,
        "user": named_in(connect) or shown.subject,
        "name": connect.get("name", ""),
        "tags": list(shown.tags),
        "name_tag": shown.name,
        "kind": "Leafnode" if is_leaf else "Client",
        "type": "" if is_leaf else kind,
        "nonce": approach.nonce,
    }


def _letters() -> str:
    return secrets.token_hex(4)
