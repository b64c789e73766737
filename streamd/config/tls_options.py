"""Settings of TLS of one listener: clients, servers of the cluster, monitoring, WebSocket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from streamd.durations import SECOND_NS

TLS_TIMEOUT_S = 2.0
FIRST_BYTE_DELAY_NS = SECOND_NS // 20
"""Wait for a client's first byte with `handshake_first: auto`."""


class CertificatePair(NamedTuple):
    """Files of a certificate with its chain, and of its private key."""

    cert_file: str
    key_file: str


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """A `tls` block: which certificates are shown, and which are asked for.

    Names of cipher suites and curves are Go's. A block without a certificate is legal, and then
    every handshake fails.
    """

    certificates: tuple[CertificatePair, ...] = ()
    ca_file: str = ""  # "": the authorities that the system trusts
    is_verifying: bool = False  # the other side must show a certificate
    is_mapping: bool = False  # and it names the user
    checks_known_urls: bool = False  # and it names a host of a configured route
    cipher_suites: tuple[str, ...] = ()  # (): the usual secure ones
    curves: tuple[str, ...] = ()  # (): those of the library
    min_version: str = "1.2"
    timeout_s: float = TLS_TIMEOUT_S  # for one handshake
    connections_per_s_max: int = 0  # handshakes begun in a second; 0: any number
    pinned_certs: frozenset[str] = frozenset()  # hex SHA-256 of public keys; empty: any key
    is_first: bool = False  # the handshake comes before INFO
    first_delay_ns: int = 0  # but INFO comes first if the client is silent so long; 0: never
    is_insecure: bool = False  # this side, when it dials, takes any certificate
    place: tuple[str, int, int] = field(default=("", 0, 0), compare=False)  # file, line, column
