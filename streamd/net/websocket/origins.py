"""Origins: which pages' scripts may connect, by the `Origin` that their browser names."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """Scheme, host (lower case) and port of a page."""

    scheme: str
    host: str
    port: int


class OriginRules:
    """Rules of one listener. Who names no origin is no browser, and not asked for one."""

    def __init__(self, *, is_same: bool, allowed: tuple[str, ...], has_tls: bool) -> None:
        self._is_same = is_same
        self._allowed = {parse_origin(origin) for origin in allowed}
        self._scheme = "https" if has_tls else "http"

    def why_not(self, origin: str, host: str) -> str:
        """Return why a page of `origin` may not connect to the address `host`; "": it may."""
        if not origin or not (self._is_same or self._allowed):
            return ""
        try:
            found = parse_origin(origin)
        except ValueError:
            return f'parse "{origin}": invalid URI for request'
        if self._is_same:
            try:
                own = parse_origin(f"{self._scheme}://{host}")
            except ValueError:
                return f'parse "{host}": invalid address'
            if found != own:
                return "not same origin"
        if self._allowed and found not in self._allowed:
            return "not in the allowed list"
        return ""


def parse_origin(text: str) -> Origin:
    """Raises ValueError."""
    parts = urlsplit(text)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(text)
    return Origin(parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme])
