"""`Logins`: who may use the dashboard, and as what.

The logins of the `http` block, where there are any; else those of clients; else nobody has to log
in, and then only browsers on this very host are served (`dashboard.py`). What a client proves by a
signature or a certificate, a page can't: such users get logins in the `http` block.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from streamd.config.http_options import HttpUser
from streamd.config.options import Options
from streamd.config.user_options import User
from streamd.net.client.auth import (
    Approach,
    Authenticator,
    Check,
    Consultation,
    Identity,
    OutsideLogins,
    Verdict,
)
from streamd.net.client.password_checks import PasswordChecks
from streamd.net.dashboard.grants import OPEN, Grant, grant_of
from streamd.protocol.connect_options import ConnectOptions

_TOKEN_USER: Final = "token"
HTTP_USER, HTTP_TOKEN, USER, SINGLE, TOKEN, OUTSIDE, NOBODY = (
    "http user", "http token", "user", "single user", "token", "outside", "nobody",
)  # fmt: skip
"""Sources of a login, by which its words in the configuration are found again."""


class Busy(Exception):
    """A login of which nobody could judge at the moment."""


class Logins:
    """Judge of the dashboard's logins. One for the life of a server; a reload replaces its rules.

    All methods are called on the loop.
    """

    def __init__(
        self,
        options: Options,
        outside: Callable[[], OutsideLogins | None],
        checks: PasswordChecks,
    ) -> None:
        """`outside` returns who decides beyond the configuration, as it is when it is asked."""
        self._checks = checks
        self._outside = outside
        self._options = options
        self._users: dict[str, HttpUser] = {}
        self._by_name: Authenticator | None = None  # of the `http` block
        self._by_token: Authenticator | None = None
        self._of_clients: Authenticator | None = None  # made when somebody logs in
        self.reload(options)

    def reload(self, options: Options) -> None:
        """Judge by other options from here on."""
        self._options = options
        logins = options.http_logins
        self._users = {user.name: user for user in logins.users}
        users = [User(user.name, user.password) for user in logins.users]
        self._by_name = Authenticator(Options(users=users), before=self._by_name) if users else None
        token = Options(token=logins.token)
        self._by_token = Authenticator(token, before=self._by_token) if logins.token else None
        self._of_clients = None

    @property
    def is_needed(self) -> bool:
        """True if somebody has to log in."""
        return bool(self._options.http_logins) or self._options.is_auth_required

    def open_grant(self) -> Grant:
        """Return what a browser on this host may do where nobody has to log in."""
        return replace(OPEN, source=(NOBODY, ""), proof=self.proof_of((NOBODY, "")))

    def is_valid(self, grant: Grant) -> bool:
        """True if the configuration still has the words by which a login was let in."""
        return bool(grant.proof) and self.proof_of(grant.source) == grant.proof

    def proof_of(self, source: tuple[str, str]) -> str:
        """Return a digest of the words of the configuration that a login rests on; "": there are
        none any more."""
        options, (kind, name) = self._options, source
        has_own = bool(options.http_logins)
        # Beside others, the one user or token does not administer everything any more.
        others = (bool(options.users), options.callout, options.operators.has_trusted_keys)
        found: object = None
        if kind == HTTP_USER:
            user = self._users.get(name)
            found = user and (user, user.password)
        elif kind == HTTP_TOKEN:
            found = options.http_logins.token or None
        elif has_own:
            found = None  # clients' logins do not count any more
        elif kind == NOBODY:
            found = None if self.is_needed else NOBODY
        elif kind == USER:
            found = next((user for user in options.users if user.name == name), None)
        elif kind == SINGLE and options.username:
            found = (options.username, options.password, options.default_permissions, others)
        elif kind == TOKEN and options.token:
            found = (options.token, others)
        elif kind == OUTSIDE and (options.callout or options.operators.has_trusted_keys):
            found = (options.callout, options.operators, options.users)
        if found is None:
            return ""
        words = repr((kind, options.system_account, found))
        return hashlib.sha256(words.encode()).hexdigest()

    async def log_in(self, name: str, password: str, token: str, ip: str) -> Grant | None:
        """Return what a login may do; None: it is refused. Raises Busy."""
        try:
            f"{name}{password}{token}".encode()
        except UnicodeEncodeError:  # JSON may hold half a character, a configuration does not
            return None
        if not (name or token):
            return None
        connect: ConnectOptions = {}
        if name:
            connect = {"user": name, "pass": password}
        else:
            connect["auth_token"] = token
        if self._options.http_logins:
            return await self._log_in_here(connect, name, ip)
        if self._of_clients is None:
            self._of_clients = Authenticator(self._options, outside=self._outside())
        verdict = self._of_clients.judge(connect, Approach(ip=ip))
        is_outside = isinstance(verdict, Consultation)
        identity = await self._settle(verdict, ip)
        if identity is None:
            return None
        grant = grant_of(identity, self._options.system_account, identity.user or _TOKEN_USER)
        return self._proven(grant, self._source_of(identity, is_outside=is_outside))

    def _source_of(self, identity: Identity, *, is_outside: bool) -> tuple[str, str]:
        options = self._options
        if is_outside or identity.token is not None:
            return OUTSIDE, identity.user
        if any(user.name == identity.user for user in options.users):
            return USER, identity.user
        return (SINGLE, "") if options.username else (TOKEN, "")

    async def _log_in_here(self, connect: ConnectOptions, name: str, ip: str) -> Grant | None:
        """Judge by the `http` block."""
        judge = self._by_name if name else self._by_token
        identity = await self._settle(judge.judge(connect), ip) if judge is not None else None
        if identity is None:
            return None
        if not name:
            return self._proven(Grant(_TOKEN_USER, "", True), (HTTP_TOKEN, ""))
        user = self._users.get(name)
        if user is None:  # a reload took it away meanwhile
            return None
        grant = Grant(user.name, user.account, user.is_administrator)
        return self._proven(grant, (HTTP_USER, name))

    def _proven(self, grant: Grant, source: tuple[str, str]) -> Grant | None:
        proof = self.proof_of(source)
        return replace(grant, source=source, proof=proof) if proof else None

    async def _settle(self, verdict: Verdict | Check | Consultation, ip: str) -> Identity | None:
        """Return the identity that comes of a verdict, when others had their say."""
        loop = asyncio.get_running_loop()
        if isinstance(verdict, Check):
            if not self._checks.has_room():
                raise Busy("too many passwords are being checked: try again")
            checked: asyncio.Future[Identity | None] = loop.create_future()
            self._checks.submit(
                loop,
                ip,
                verdict,
                is_gone=checked.done,
                done=lambda found: None if checked.done() else checked.set_result(found),
            )
            return await checked
        if isinstance(verdict, Consultation):
            told: asyncio.Future[Verdict] = loop.create_future()
            verdict.begin(lambda found: None if told.done() else told.set_result(found))
            try:
                async with asyncio.timeout(self._options.auth_timeout_s):
                    verdict = await told
            except TimeoutError:
                return None
        return verdict if isinstance(verdict, Identity) else None
