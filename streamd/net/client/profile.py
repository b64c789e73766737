"""Profile of a client: facts about one connection that its parts learn and others may read."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamd.net.client.auth import Approach, Identity, Refusal
from streamd.net.tls.facts import TlsFacts
from streamd.protocol.connect_options import ConnectOptions


@dataclass(slots=True)
class ClientProfile:
    """The client of one connection: address, identity, and its own words about itself.

    Each fact is written by the part of the connection that learns it, and read by deliveries,
    administrative requests, logs and monitoring.
    """

    identity: Identity | None  # None: not known yet
    start_ns: int
    cid: int = 0  # number of the connection, from 1
    ip: str = ""
    port: int = 0
    connect: ConnectOptions | None = None  # options of all CONNECTs so far; None: there was none
    user: str = ""
    name: str = ""
    lang: str = ""
    version: str = ""
    tls: TlsFacts | None = None  # None: it speaks in clear
    is_websocket: bool = False
    nonce: str = ""  # of INFO; "": no login is by signature
    refusal: Refusal | None = None  # of the last login, if it has a reason for the log
    login: dict[str, str] = field(default_factory=dict)  # of cookies; fills what CONNECT leaves out
    forwarded_for: str = ""  # address of the client, as the proxy that it came by tells it
    rtt_ns: int = 0  # of the last PING; before the first one, the time that CONNECT took to come

    @property
    def approach(self) -> Approach:
        """Facts about the connection that logins are judged by."""
        return Approach(self.tls, self.nonce, self.ip, self.cid)


def after_end(*_values: object) -> None:
    """Callback of the parts of a connection that has ended: ignores the call."""
