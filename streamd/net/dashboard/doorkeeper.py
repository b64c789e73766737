"""`Doorkeeper`: which request is served, and for whom.

- Where logins are configured, a session is demanded, on this host as well: whoever may open a
  socket here may not therefore read messages.
- Where none are, only browsers on this host are served, as clients are: without a login. A request
  that a proxy passed on is none of this host, and neither is one that names another host: a page
  from elsewhere may have its own name lead here (DNS rebinding).
- What changes anything must come from a page of this server (`Sec-Fetch-Site`, `Origin`), carry the
  session's second secret, and be an administrator's.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from streamd.net.dashboard.actions import Refused
from streamd.net.dashboard.logins import Logins
from streamd.net.dashboard.sessions import Session, Sessions

if TYPE_CHECKING:
    from aiohttp import web

CSRF_HEADER: Final = "X-CSRF-Token"
_FORWARDED: Final = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")
_PORT: Final = re.compile(r":\d*\Z", re.ASCII)
_OWN_SITE: Final = ("same-origin", "none", "")
CLOSED: Final = (
    "The dashboard is closed to other hosts: this server has no logins. Configure"
    " `http { users: [{ user: NAME, password: PASSWORD, role: administrator }] }`, or logins of"
    " clients (`authorization`, `accounts`), and reload the server; or open the page on the host"
    " of the server itself, as http://127.0.0.1:PORT/ui/."
)


class LoginWanted(Exception):
    """A request without a session, where one is demanded (401)."""


class Doorkeeper:
    """Judge of requests."""

    def __init__(self, logins: Logins, sessions: Sessions, cookie: str) -> None:
        """`cookie` is the name of the sessions' cookie: of its own for each server on a host, for
        browsers send cookies to all ports."""
        self._logins = logins
        self._sessions = sessions
        self.cookie = cookie

    def session_of(self, request: web.Request) -> Session | None:
        """Return the session of a request; None: it has none."""
        secret = request.cookies.get(self.cookie, "")
        session = self._sessions.find(secret) if secret else None
        if session is not None and not self._logins.is_needed and not is_from_here(request):
            return None  # a session without a login is this host's
        return session

    def admit(self, request: web.Request) -> Session | None:
        """Return the session for which a request is served; None: nobody has to log in, and there
        is none. Raises LoginWanted, Refused."""
        if request.headers.get("Sec-Fetch-Site", "") not in _OWN_SITE:
            raise Refused("the dashboard does not answer pages of other sites")
        session = self.session_of(request)
        if session is not None:
            return session
        if self._logins.is_needed:
            raise LoginWanted
        if not is_from_here(request):
            raise Refused(CLOSED)
        return None

    def check_same_site(self, request: web.Request) -> None:
        """Raise Refused if a request comes from a page of another server."""
        if request.headers.get("Sec-Fetch-Site", "") not in _OWN_SITE:
            raise Refused("the dashboard takes nothing from pages of other sites")
        origin = request.headers.get("Origin", "")
        if origin and _netloc(origin) != request.host.lower():
            raise Refused(f"the origin {origin[:200]} is not this server")

    def check_own_page(self, request: web.Request) -> None:
        """Raise Refused unless a request that changes something may come from a page of ours."""
        self.check_same_site(request)
        if request.content_type != "application/json":
            raise Refused("the body must be application/json")

    def admit_action(self, request: web.Request) -> Session:
        """Return the session of an administrator who changes something. Raises as `admit`."""
        self.check_own_page(request)
        session = self.admit(request)
        if session is None:
            raise Refused("there is no session: ask for /ui/api/session first")
        if not session.has_csrf(request.headers.get(CSRF_HEADER, "")):
            raise Refused(f"{CSRF_HEADER} is missing or not that of the session")
        if not session.grant.is_administrator:
            raise Refused(f"{session.grant.user!r} is a reader: only administrators may do that")
        return session


def source_of(request: web.Request) -> str:
    """Return the address that a request comes from, of the proxy if one passed it on."""
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


def is_from_here(request: web.Request) -> bool:
    """True of a request of a browser on this host, to this host by a name of loopback."""
    if any(name in request.headers for name in _FORWARDED):
        return False
    netloc = _netloc(f"//{request.host}")
    host = netloc.rpartition(":")[0] if _PORT.search(netloc) else netloc
    host = host.strip("[]")
    return _is_loopback(source_of(request)) and (host == "localhost" or _is_loopback(host))


def _netloc(url: str) -> str:
    """Return host and port of an address; of what is none a text that no host is."""
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return "?"


def _is_loopback(address: str) -> bool:
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)
