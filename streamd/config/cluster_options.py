"""Settings of a server that has peers, and the URLs by which peers are named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from streamd.config.tls_options import TlsOptions
from streamd.errors import ConfigError
from streamd.limits import CLUSTER_PASSWORD_CHARS_MIN

DEFAULT_CLUSTER_PORT = 6222
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class RouteUrl(NamedTuple):
    """Address of a peer; with credentials if they differ from the cluster's own."""

    host: str
    port: int
    username: str = ""
    password: str = ""

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Peers of this server and how it connects to them."""

    name: str = ""  # "": any cluster's
    host: str = "0.0.0.0"
    port: int = 0  # 0: not part of a cluster; -1: any free one
    username: str = ""
    password: str = ""  # shared by all peers; proven, never sent
    auth_timeout_s: float = 2.0  # for the whole handshake
    routes: tuple[RouteUrl, ...] = ()
    advertise: str = ""  # host:port that others should dial
    has_advertise: bool = True  # tell others where this server's clients can connect
    connect_retries: int = 0  # more tries for a peer that only other peers named
    tls: TlsOptions | None = None  # both ends show certificates

    @property
    def is_enabled(self) -> bool:
        """True if this server listens for peers."""
        return self.port != 0

    @property
    def is_open(self) -> bool:
        """True if whoever reaches the cluster's port, from another machine too, can join."""
        is_guarded = bool(self.password) or self.tls is not None
        return self.is_enabled and not is_guarded and not is_loopback(self.host)

    @property
    def has_guessable_password(self) -> bool:
        """True if others can reach the cluster's port, and its password is a short one."""
        is_short = 0 < len(self.password) < CLUSTER_PASSWORD_CHARS_MIN
        return self.is_enabled and is_short and not is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """True if nobody outside of this machine can reach `host`."""
    return host in LOOPBACK or host.startswith("127.")


def parse_route(text: str) -> RouteUrl:
    """Read `nats://user:password@host:port`. Raises ValueError."""
    text = text.strip()
    parts = urlsplit(text)
    if not parts.scheme or "://" not in text or not parts.hostname:
        raise ValueError(f'error parsing route url ["{text}"]')
    try:
        port = parts.port or DEFAULT_CLUSTER_PORT
    except ValueError as err:
        raise ValueError(f'error parsing route url ["{text}"]: {err}') from err
    return RouteUrl(
        parts.hostname, port, unquote(parts.username or ""), unquote(parts.password or "")
    )


def parse_routes(text: str) -> tuple[RouteUrl, ...]:
    """Read the comma-separated URLs of a command line. Raises ConfigError."""
    try:
        return tuple(parse_route(url) for url in text.split(",") if url.strip())
    except ValueError as err:
        raise ConfigError(str(err)) from err


def parse_cluster_url(text: str) -> tuple[str, int, str, str]:
    """Parse the value of `--cluster`: host, port (-1: any free one), user and password.

    Raises ConfigError.
    """
    is_random = text.endswith(":-1")
    parts = urlsplit(text[:-3] + ":0" if is_random else text)
    if not parts.scheme or not parts.netloc:
        raise ConfigError("missing port in address")
    try:
        port = parts.port
    except ValueError as err:
        raise ConfigError(str(err)) from err
    if port is None:
        raise ConfigError(f"address {parts.netloc}: missing port in address")
    if parts.username is not None and parts.password is None:
        raise ConfigError("expected cluster password to be set")
    return (
        parts.hostname or "0.0.0.0",
        -1 if is_random else port,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
    )


def join_address(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str) -> tuple[str, int]:
    """Inverse of `join_address`. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f'"{text}" is not a host and a port')
    return host.strip("[]"), int(port)


def client_address(text: str, port: int) -> tuple[str, int]:
    """Return (host, port) of an address to advertise to clients: a host, or a host and a port;
    without one it is `port`. Raises ValueError."""
    if text.startswith("[") and text.endswith("]"):
        return text[1:-1], port
    if ":" not in text:
        return text, port
    host, port = split_address(text)
    if not host or (":" in host and not text.startswith("[")):
        raise ValueError(f'"{text}" is not a host and a port')
    return host, port
