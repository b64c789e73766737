"""Events of client connections: CONNECT, DISCONNECT and refused logins, in the system account.

$SYS.ACCOUNT.<account>.CONNECT          a client has logged in
$SYS.ACCOUNT.<account>.DISCONNECT       it is gone: its traffic, and why
$SYS.SERVER.<id>.CLIENT.AUTH.ERR        a client was not let in; a DISCONNECT of `$G` follows
$SYS.ACCOUNT.CLIENT.AUTH.ERR            the same, inside the account that refused the client
"""

from __future__ import annotations

import time
from typing import Final

from streamd.machine.rfc3339 import format_ns
from streamd.net.client.client_registry import ClientConnection
from streamd.net.monitoring.account_views import AccountsView
from streamd.net.monitoring.connz import label_of
from streamd.net.monitoring.sliced_pages import Document, encode
from streamd.net.monitoring.stats import connection_stats
from streamd.net.system.event_outbox import EventOutbox
from streamd.types import ACCOUNT

_REFUSED: Final = "Authentication Failure"


class ConnectionEvents:
    """Observer of client connections (`ClientEvents`) that publishes what becomes of them."""

    def __init__(self, outbox: EventOutbox, accounts: AccountsView, server_id: str) -> None:
        self._outbox = outbox
        self._accounts = accounts
        self._refusals = f"$SYS.SERVER.{server_id}.CLIENT.AUTH.ERR"

    def admitted(self, conn: ClientConnection) -> None:
        """Nothing is told before a client has logged in."""

    def identified(self, conn: ClientConnection) -> None:
        subject = f"$SYS.ACCOUNT.{conn.account}.CONNECT"
        if self._outbox.has_interest(subject):
            event = self._outbox.head("client_connect")
            self._outbox.put(subject, event | {"client": self._client(conn, conn.account)})

    def refused(self, conn: ClientConnection) -> None:
        if self._outbox.has_interest(self._refusals):
            self._outbox.put(self._refusals, self._end_of(conn, ACCOUNT, _REFUSED))
        refusal = conn.profile.refusal
        if refusal is not None and refusal.account:
            self.refused_by(refusal.account, conn, refusal.reason)

    def closed(self, conn: ClientConnection) -> None:
        subject = f"$SYS.ACCOUNT.{conn.account}.DISCONNECT"
        if self._outbox.has_interest(subject):
            self._outbox.put(subject, self._end_of(conn, conn.account, conn.reason))

    def refused_by(self, account: str, conn: ClientConnection, reason: str) -> None:
        """Tell an account that it has refused a client; for logins that the account judges."""
        found = self._accounts.get(account)
        if found is None:
            return
        subject = b"$SYS.ACCOUNT.CLIENT.AUTH.ERR"
        if found.router.has_interest(subject):
            event = self._end_of(conn, account, reason)
            found.router.publish(
                subject, b"", b"", "".join(encode(event, "")).encode("utf-8", "replace")
            )

    def _end_of(self, conn: ClientConnection, account: str, reason: str) -> Document:
        client = self._client(conn, account, stop_ns=conn.stop_ns or time.time_ns())
        return {
            **self._outbox.head("client_disconnect"),
            "client": client,
            "sent": {"msgs": conn.in_msgs, "bytes": conn.in_bytes},
            "received": {"msgs": conn.out_msgs, "bytes": conn.out_bytes},
            "reason": reason,
        }

    def _client(self, conn: ClientConnection, account: str, stop_ns: int = 0) -> Document:
        login = conn.login
        shown: Document = {
            "start": format_ns(conn.start_ns),
            "host": conn.ip,
            "id": conn.cid,
            "acc": account,
            "user": connection_stats(conn).user,
            "name": _said(conn, "name"),
            "lang": _said(conn, "lang"),
            "ver": _said(conn, "version"),
            "rtt": conn.rtt_ns if stop_ns else 0,
            "stop": format_ns(stop_ns) if stop_ns else "",
            "jwt": login.jwt,
            "issuer_key": login.issuer_key,
            "name_tag": label_of(self._accounts, account),
            "tags": list(login.tags),
            "kind": "Client",
            "client_type": "websocket" if conn.is_websocket else "nats",
        }
        return {key: value for key, value in shown.items() if value}


def _said(conn: ClientConnection, key: str) -> str:
    """Return what a client says of itself, let in or not."""
    return str((conn.connect or {}).get(key) or "")
