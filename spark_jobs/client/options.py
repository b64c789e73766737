"""Options of a connection, and how a user's names and texts become typed values.

Names are matched without regard to case. An unknown name is an error that names the nearest known
one; so is a value out of its range. Values of readers and connections are plain and picklable.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import unquote, urlsplit

DEFAULT_PORT = 4222
SEQ_MAX = (1 << 63) - 1

CONNECT_NAMES = (
    "servers",
    "user",
    "password",
    "token",
    "tls.ca",
    "tls.cert",
    "tls.key",
    "domain",
    "name",
)
_UNSUPPORTED = {
    "creds": "use user and password, or token",
    "nkey": "use user and password, or token",
    "url": "the servers' addresses are option servers",
}
_SIZE = re.compile(r"(\d+)\s*(?:([kmgt])(i?b)?|b)?", re.IGNORECASE)
_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}


class OptionError(ValueError):
    """A value that a user gave is wrong; the text names it and the rule."""


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """`options` with lower-case names and text values; None is as good as absent."""
    return {str(key).lower(): str(value) for key, value in options.items() if value is not None}


def check_names(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Raise OptionError for the first name that is not among `known`."""
    by_lower = {name.lower(): name for name in known}
    for name in options:
        lower = name.lower()
        if lower in by_lower:
            continue
        if lower in _UNSUPPORTED:
            raise OptionError(f"option {name} is not supported: {_UNSUPPORTED[lower]}")
        near = difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.6)
        hint = f"; did you mean {by_lower[near[0]]}?" if near else f"; known: {', '.join(known)}"
        raise OptionError(f"unknown option {name}{hint}")


def parse_bool(name: str, text: str) -> bool:
    """true or false. Raises OptionError."""
    lower = text.strip().lower()
    if lower in _TRUE:
        return True
    if lower in _FALSE:
        return False
    raise OptionError(f"option {name} is {text!r}, must be true or false")


def parse_int(name: str, text: str, *, low: int, high: int = SEQ_MAX) -> int:
    """An integer of low..high. Raises OptionError."""
    try:
        value = int(text.strip())
    except ValueError:
        raise OptionError(f"option {name} is {text!r}, must be an integer") from None
    if not low <= value <= high:
        raise OptionError(f"option {name} is {value}, must be in {low}..{high}")
    return value


def parse_size(name: str, text: str) -> int:
    """Bytes of `67108864`, `64m`, `64 MiB`, `64MB` (all binary). Raises OptionError."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise OptionError(f"option {name} is {text!r}, must be bytes, such as 67108864 or 64MiB")
    shift = " kmgt".index((found[2] or " ").lower()) * 10
    value = int(found[1]) << shift
    if not 0 < value <= SEQ_MAX:
        raise OptionError(f"option {name} is {text!r}, must be above 0")
    return value


def parse_time(name: str, text: str) -> int:
    """Nanoseconds since the epoch of an RFC 3339 text (UTC if it says nothing) or such a number.

    What no message can have is the nearest time that one can: 1 ns after 1970 (0 is no bound), or
    the end of 2^63 ns in 2262. Raises OptionError, also for a number that looks like seconds,
    milli- or microseconds.
    """
    text = text.strip()
    if text.isdigit():
        value = int(text)
        if not 10**17 <= value <= SEQ_MAX:
            raise OptionError(
                f"option {name} is {text}, a number must be nanoseconds since 1970 (19 digits)"
            )
        return value
    fraction = re.search(r"\.(\d{1,9})", text)
    plain = text if fraction is None else text[: fraction.start()] + text[fraction.end() :]
    try:
        moment = datetime.fromisoformat(plain)
    except ValueError:
        raise OptionError(
            f"option {name} is {text!r}, must be like 2026-01-31T12:00:00Z or nanoseconds"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    nanos = int(fraction[1].ljust(9, "0")) if fraction else 0
    value = round(moment.timestamp()) * 1_000_000_000 + nanos
    return min(max(1, value), SEQ_MAX - 1)  # whoever looks for what is behind it adds 1


def _servers(text: str) -> tuple[tuple[str, ...], str, str]:
    """(host:port ..., user, password) of a comma-separated list of addresses or nats:// URLs."""
    found: list[str] = []
    user = password = ""
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            url = urlsplit(part if "://" in part else f"nats://{part}")
            port = url.port or DEFAULT_PORT
        except ValueError as err:
            raise OptionError(f"option servers: {part!r} is no host:port: {err}") from None
        if url.scheme not in ("nats", "tls") or not url.hostname:
            raise OptionError(f"option servers: {part!r} must be host:port or nats://host:port")
        user = user or unquote(url.username or "")
        password = password or unquote(url.password or "")
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        prefix = "tls://" if url.scheme == "tls" else ""
        found.append(f"{prefix}{host}:{port}")
    if not found:
        raise OptionError("option servers is empty, must be host:port, more separated by commas")
    return tuple(found), user, password


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Address and credentials of a server. `servers` are "host:port", or "tls://host:port"; tried
    in order."""

    servers: tuple[str, ...] = (f"127.0.0.1:{DEFAULT_PORT}",)
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    domain: str = ""
    name: str = "spark"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ConnectOptions:
        """Take the connection's options out of `options`; others are left alone."""
        given = lowered(options)
        servers, user, password = _servers(given.get("servers", f"127.0.0.1:{DEFAULT_PORT}"))
        made = cls(
            servers=servers,
            user=given.get("user", user),
            password=given.get("password", password),
            token=given.get("token", ""),
            tls_ca=given.get("tls.ca", ""),
            tls_cert=given.get("tls.cert", ""),
            tls_key=given.get("tls.key", ""),
            domain=given.get("domain", ""),
            name=given.get("name", "spark"),
        )
        if bool(made.tls_cert) != bool(made.tls_key):
            raise OptionError("options tls.cert and tls.key go together, one of them is missing")
        if made.token and made.user:
            raise OptionError("give option token, or user and password, not both")
        return made
