"""Settings of leaf links: the listener for leaf nodes, and the remotes that this server dials."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from streamd.config.cluster_options import client_address, join_address
from streamd.config.tls_options import TlsOptions
from streamd.durations import SECOND_NS
from streamd.errors import ConfigError
from streamd.tokens.nkeys import KeyKind, is_valid_public
from streamd.types import ACCOUNT

DEFAULT_LEAF_PORT: Final = 7422
_SCHEMES: Final = {
    "nats": DEFAULT_LEAF_PORT,
    "nats-leaf": DEFAULT_LEAF_PORT,
    "tls": DEFAULT_LEAF_PORT,
    "ws": 80,
    "wss": 443,
}
_MIN_VERSION: Final = (2, 8, 0)
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
OFF: Final = ("off", "disabled", "disable", "false")
COMPRESSIONS: Final = (
    *OFF,
    *("accept", "on", "enabled", "enable", "true"),
    *("s2_auto", "s2_fast", "s2_better", "s2_best"),
)
"""Modes of compression, as they may be written."""
DEFAULT_RTTS_NS: Final = (10_000_000, 50_000_000, 100_000_000)


@dataclass(frozen=True, slots=True)
class LeafCompression:
    """Compression of leaf links. With `s2_auto` the round trip decides how much."""

    mode: str = "off"  # nats-server's default is s2_auto; see docs/leaf.md
    rtts_ns: tuple[int, ...] = DEFAULT_RTTS_NS

    @classmethod
    def of(cls, mode: str, rtts_ns: tuple[int, ...] = ()) -> LeafCompression:
        """Return the compression that is written as `mode`."""
        mode = mode.lower()
        if mode in OFF:
            mode = "off"
        elif mode in ("on", "enabled", "enable", "true"):
            mode = "s2_auto"
        return cls(mode, rtts_ns or DEFAULT_RTTS_NS)


class LeafUrl(NamedTuple):
    """Address of a server that accepts leaf links."""

    scheme: str
    host: str
    port: int
    username: str = ""
    password: str = ""
    path: str = ""  # of the WebSocket endpoint, without `/leafnode`

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    @property
    def is_websocket(self) -> bool:
        return self.scheme in ("ws", "wss")

    @property
    def asks_for_tls(self) -> bool:
        return self.scheme in ("tls", "wss")

    @property
    def text(self) -> str:
        """The URL without its password."""
        return f"{self.scheme}://{self.address}{self.path}"


_NO_ACCOUNT_KEY: Final = (
    "operator mode requires account nkeys in remotes. Please add an `account` key to each remote in"
    " your `leafnodes` section, to assign it to an account. Each account value should be a 56"
    " character public key, starting with the letter 'A'"
)


@dataclass(frozen=True, slots=True)
class LeafUser:
    """A login of leaf nodes, and the account that they are joined to."""

    name: str
    password: str = ""
    account: str = ""  # "": the main one


@dataclass(frozen=True, slots=True)
class LeafRemote:
    """A server that this one joins as its leaf node; of several URLs any one will do."""

    urls: tuple[LeafUrl, ...] = ()
    account: str = ACCOUNT  # of this server, that is joined
    credentials: str = ""  # path of a file with a user token and its seed
    nkey_seed: str = ""
    tls: TlsOptions | None = None
    is_hub: bool = False  # the roles are exchanged: the other side is this server's leaf node
    is_isolated: bool = False  # interest of the hub's other leaf nodes is not wanted
    is_disabled: bool = False
    deny_imports: tuple[bytes, ...] = ()  # subjects that don't come from the hub
    deny_exports: tuple[bytes, ...] = ()  # subjects that don't go there
    is_randomized: bool = True  # the order of URLs
    ignores_discovered: bool = False  # servers that the hub tells of are not dialed
    is_compressing: bool = False  # WebSocket frames
    compression: LeafCompression = LeafCompression()
    first_info_timeout_ns: int = SECOND_NS
    dial_timeout_ns: int = SECOND_NS
    place: tuple[str, int, int] = field(default=("", 0, 0), compare=False)  # file, line, column

    @property
    def addresses(self) -> list[str]:
        return [url.address for url in self.urls]

    @property
    def key(self) -> tuple[object, ...]:
        """Identity of a remote in a configuration: another one is another remote."""
        return self.urls, self.account

    @property
    def text(self) -> str:
        """The remote without its secrets, as the log names it."""
        urls = " ".join(f'"{url.text}"' for url in self.urls)
        return f'urls=[{urls}], account="{self.account}"'

    @property
    def is_secure(self) -> bool:
        return self.tls is not None or any(url.asks_for_tls for url in self.urls)


@dataclass(frozen=True, slots=True)
class LeafOptions:
    """A `leafnodes` block. Times are ns."""

    host: str = "0.0.0.0"
    port: int = 0  # 0: no listener; -1: any free port
    advertise: str = ""
    has_advertise: bool = True
    tls: TlsOptions | None = None
    username: str = ""  # of the single login, if there is one
    password: str = ""
    nkey: str = ""
    account: str = ""  # of the single login, or of all logins of clients' kind
    users: tuple[LeafUser, ...] = ()
    auth_timeout_s: float = 0.0  # 0: as for clients
    min_version: str = ""
    is_isolating: bool = False  # no leaf node is told of another's interest
    reconnect_ns: int = SECOND_NS
    write_deadline_ns: int = 0  # 0: as for clients
    remotes: tuple[LeafRemote, ...] = ()
    compression: LeafCompression = LeafCompression()  # of the listener
    compressions: tuple[str, ...] = ()  # all modes that were named, to be checked

    @property
    def is_enabled(self) -> bool:
        """True if this server listens for leaf nodes."""
        return self.port != 0

    @property
    def has_own_logins(self) -> bool:
        """True if leaf nodes log in by the block's own rules, not by those of clients."""
        return bool(self.users or self.username or self.nkey or self.account)

    def check(self, accounts: Collection[str], *, has_operators: bool) -> None:
        """Check what only makes sense with the other options. Raises ConfigError."""
        for mode in self.compressions:
            if mode.lower() not in COMPRESSIONS:
                raise ConfigError(f'unsupported compression mode "{mode}"')
        if has_operators:
            self._check_operated()
        else:
            self._check_accounts(accounts)
        for remote in self.remotes:
            if len({url.is_websocket for url in remote.urls}) > 1:
                shown = " ".join(f'"{url.text}"' for url in remote.urls)
                raise ConfigError(
                    "remote leaf node configuration cannot have a mix of websocket and"
                    f" non-websocket urls: [{shown}]"
                )
        if self.advertise:
            try:
                client_address(self.advertise, DEFAULT_LEAF_PORT)
            except ValueError as err:
                raise ConfigError(
                    f'invalid leafnodes advertise value of "{self.advertise}": {err}'
                ) from None

    def _check_accounts(self, accounts: Collection[str]) -> None:
        for account in (self.account, *(user.account for user in self.users)):
            if account and account not in accounts:
                raise ConfigError(
                    f'cannot find local account "{account}" specified in leafnode authorization'
                )
        for remote in self.remotes:
            if remote.account not in accounts:
                raise ConfigError(
                    f'cannot find local account "{remote.account}" specified in leafnode remote'
                )

    def _check_operated(self) -> None:
        """Check accounts where they are those of tokens: they are looked up at the start."""
        if self.users:
            raise ConfigError("operator mode does not allow specifying users in leafnode config")
        for remote in self.remotes:
            if not is_valid_public(KeyKind.ACCOUNT, remote.account):
                raise ConfigError(_NO_ACCOUNT_KEY)
        if self.is_enabled and self.account and not is_valid_public(KeyKind.ACCOUNT, self.account):
            raise ConfigError("operator mode and non account nkeys are incompatible")


def parse_leaf_url(text: str) -> LeafUrl:
    """Read `scheme://user:password@host:port/path`. Raises ValueError."""
    parts = urlsplit(text.strip())
    if "://" not in text or parts.scheme not in _SCHEMES or not parts.hostname:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise ValueError(
            f'"{text}" is not the URL of a server: it needs one of {known}, and a host'
        )
    port = parts.port or _SCHEMES[parts.scheme]  # `port` raises as well
    is_websocket = parts.scheme in ("ws", "wss")
    return LeafUrl(
        parts.scheme,
        parts.hostname,
        port,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        parts.path.rstrip("/") if is_websocket else "",
    )


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Return the three numbers of a version; None: it is none."""
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def check_min_version(text: str) -> str:
    """Return `text` if leaf nodes may be asked to be at least of that version. Raises
    ValueError."""
    version = parse_version(text)
    if version is None:
        raise ValueError("invalid leafnode's minimum version: invalid semver")
    if version < _MIN_VERSION:
        raise ValueError("the minimum version should be at least 2.8.0")
    return text
