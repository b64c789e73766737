"""Requests about account tokens, in the system account: operators push, list and delete tokens, and
servers look them up at each other and compare what they have.

$SYS.REQ.CLAIMS.{UPDATE,LIST,PACK,DELETE}
$SYS.REQ.ACCOUNT.<account>.CLAIMS.{LOOKUP,UPDATE}
$SYS.ACCOUNT.<account>.CLAIMS.UPDATE, of older tools

Which of them are served depends on the resolver, and so do the texts of answers. A token of any
operator is stored: whether it may be used is judged when it is.

Callbacks of subscriptions only put requests into a queue; `run` serves them one after another.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from streamd.config.operator_options import ResolverKind
from streamd.durations import SECOND_NS
from streamd.errors import TokenError
from streamd.limits import CLAIMS_LOOKUPS_MAX, CLAIMS_REQUESTS_MAX
from streamd.net.account_tokens.account_loader import AccountLoader
from streamd.net.account_tokens.resolvers import (
    LOOK_UP_TIMEOUT_S,
    DirectoryResolver,
    Resolver,
)
from streamd.tokens.account_validation import check_account, mapping_problem
from streamd.tokens.claims import AccountClaims, decode_account, decode_generic
from streamd.tokens.issues import joined
from streamd.tokens.nkeys import KeyKind, is_valid_public
from streamd.tokens.validation import Trust

_ALL: Final = b"$SYS.REQ.CLAIMS."
_ACCOUNT: Final = b"$SYS.REQ.ACCOUNT.*.CLAIMS."
_OLD_UPDATE: Final = b"$SYS.ACCOUNT.*.CLAIMS.UPDATE"
_OLD_ACCOUNT_AT: Final = 2  # of the tokens of a subject
_ACCOUNT_AT: Final = 3

Callback = Callable[[bytes, bytes, bytes, bytes, Any], None]
Serve = Callable[[], Awaitable[None]]
Publish = Callable[[bytes, bytes, bytes, bytes], None]
"""`publish(subject, reply, headers, payload)` in the system account."""


class Subscriptions(Protocol):
    """Subject space of the system account, as far as the server itself subscribes in it."""

    def subscribe_internal(
        self, pattern: bytes, callback: Callback, *, is_told: bool = False
    ) -> object: ...


class Answers(Protocol):
    """Sends documents with a description of this server, and texts."""

    def send(self, reply: bytes, answer: dict[str, Any]) -> None: ...

    def send_text(self, reply: bytes, body: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class ClaimsPolicy:
    """Settings that decide on requests, beside the tokens themselves."""

    trust: Trust
    system_account: str
    compare_every_s: float = 60.0  # of full directories


class LookUps:
    """Tokens asked for at other servers: the first answer that is not empty counts."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        publish: Publish,
        server_id: str,
        *,
        timeout_s: float = LOOK_UP_TIMEOUT_S,
    ) -> None:
        self._publish = publish
        self._timeout_s = timeout_s
        self._inbox = b"$SYS._INBOX.claims.%b." % server_id.encode()
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, asyncio.Future[str]] = {}
        subscriptions.subscribe_internal(self._inbox + b"*", self._on_answer, is_told=True)

    async def __call__(self, account: str) -> str | None:
        """Return the token of an account; None if no server has it, or none in time."""
        if len(self._waiting) >= CLAIMS_LOOKUPS_MAX:
            raise TokenError(f"more than {CLAIMS_LOOKUPS_MAX} accounts are looked up")
        reply = self._inbox + b"%d" % next(self._numbers)
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = future
        subject = b"$SYS.REQ.ACCOUNT.%b.CLAIMS.LOOKUP" % account.encode()
        try:
            self._publish(subject, reply, b"", b"")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    return await future
            return None
        finally:
            del self._waiting[reply]

    def _on_answer(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, conn: object
    ) -> None:
        future = self._waiting.get(subject)
        if future is not None and payload and not future.done():
            future.set_result(payload.decode("latin-1"))


class ClaimsRequests:
    """Serves requests about account tokens."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        publish: Publish,
        answers: Answers,
        resolver: Resolver,
        loader: AccountLoader,
        policy: ClaimsPolicy,
        now_ns: Callable[[], int],
        server_id: str,
    ) -> None:
        """`loader` is told of tokens that change, and of those that go."""
        self._subscriptions = subscriptions
        self._publish = publish
        self._answers = answers
        self._resolver = resolver
        self._loader = loader
        self._policy = policy
        self._now_ns = now_ns
        self._pack_inbox = b"$SYS._INBOX.pack.%b" % server_id.encode()
        self._queue: asyncio.Queue[Serve] = asyncio.Queue(CLAIMS_REQUESTS_MAX)
        self.dropped_count = 0
        self._subscribe()

    async def run(self) -> None:
        """Serve requests, and compare full directories now and then; until cancelled."""
        is_full = isinstance(self._directory, DirectoryResolver) and (
            self._resolver.kind is ResolverKind.FULL
        )
        loop = asyncio.get_running_loop()
        next_s = loop.time() + self._policy.compare_every_s
        while True:
            try:
                async with asyncio.timeout_at(next_s if is_full else None):
                    serve = await self._queue.get()
            except TimeoutError:
                next_s = loop.time() + self._policy.compare_every_s
                serve = self._compare
            with suppress(TokenError):  # of a disk that fails: the next request may do better
                await serve()

    @property
    def _directory(self) -> DirectoryResolver | None:
        return self._resolver if isinstance(self._resolver, DirectoryResolver) else None

    def _subscribe(self) -> None:
        updates = (_ACCOUNT + b"UPDATE", _OLD_UPDATE)
        if self._directory is None:
            for pattern in updates:
                self._on(pattern, self._update_loaded)
            return
        self._on(_ALL + b"LIST", self._list)
        self._on(_ALL + b"DELETE", self._delete)
        if self._resolver.kind is ResolverKind.CACHE:
            for pattern in (*updates, _ALL + b"UPDATE"):
                self._on(pattern, self._update_cached)
            return
        for pattern in (*updates, _ALL + b"UPDATE"):
            self._on(pattern, self._update_stored)
        self._on(_ACCOUNT + b"LOOKUP", self._look_up)
        self._on(_ALL + b"PACK", self._pack)
        self._on(self._pack_inbox, self._merge)

    def _on(self, pattern: bytes, serve: Callable[[bytes, bytes, bytes], Awaitable[None]]) -> None:
        def on_request(
            subject: bytes, reply: bytes, headers: bytes, payload: bytes, conn: object
        ) -> None:
            if self._queue.full():
                self.dropped_count += 1
            else:
                self._queue.put_nowait(partial(serve, subject, reply, payload))

        self._subscriptions.subscribe_internal(pattern, on_request, is_told=True)

    # --- updates --------------------------------------------------------------------------------

    async def _update_stored(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        """Store a token, of any account; use it if the account is loaded."""
        token, directory = payload.decode("latin-1"), self._directory
        assert directory is not None
        try:
            claims, problem = await directory.run(lambda: self._checked(token))
        except TokenError as err:
            self._refuse(reply, "n/a", f"jwt update resulted in error - {err}")
            return
        account = claims.registered.subject
        if problem:
            self._refuse(reply, account, f"jwt validation failed - {problem}")
            return
        named = _account_in(subject) or account
        failed = "jwt update resulted in error"
        if named != account:
            self._refuse(reply, named, f"{failed} - subject does not match jwt content")
        elif claims.registered.issuer in self._policy.trust.strict_operators:
            text = "operator requires issuer to be a signing key"
            self._refuse(reply, account, f"{failed} - {text}")
        else:
            try:
                await directory.store(account, token)
            except TokenError as err:
                self._refuse(reply, account, f"{failed} - {err}")
                return
            with suppress(TokenError):  # of an operator who is not trusted: stored, and not used
                self._loader.update(account, token)
            self._accept(reply, account, "jwt updated")

    def _checked(self, token: str) -> tuple[AccountClaims, str]:
        """Return the claims of a token, and what is wrong with them. Takes its time."""
        claims = decode_account(token)
        errors = check_account(claims, self._now_ns() // SECOND_NS).errors
        if errors:
            return claims, f"validation errors: {joined(errors)}"
        return claims, mapping_problem(claims)

    async def _update_cached(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        """Use a newer token of an account that is loaded here, and keep it."""
        failed = "jwt update cache resulted in error"
        claims = self._decoded(payload, _account_in(subject), reply, failed)
        if claims is None:
            return
        account = claims.registered.subject
        if self._loader.get(account) is None:
            self._accept(reply, account, "jwt update cache skipped")
            return
        token = payload.decode("latin-1")
        directory = self._directory
        assert directory is not None
        try:
            if await directory.merge(account, token):
                self._loader.update(account, token)
        except TokenError as err:
            self._refuse(reply, account, f"{failed} - {err}")
            return
        self._accept(reply, account, "jwt updated cache")

    async def _update_loaded(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        """Use a token of an account that is loaded here; where others come from does not change."""
        account = _account_in(subject)
        if not payload:
            self._refuse(reply, account, "jwt update error - request body is empty")
            return
        failed = "jwt update resulted in error"
        if self._decoded(payload, account, reply, failed) is None:
            return
        try:
            is_loaded = self._loader.update(account, payload.decode("latin-1"))
        except TokenError as err:
            self._refuse(reply, account, f"{failed} - {err}")
            return
        self._accept(reply, account, "jwt updated" if is_loaded else "jwt update skipped")

    def _decoded(
        self, payload: bytes, account: str, reply: bytes, failed: str
    ) -> AccountClaims | None:
        """Return the claims of a token, of this account unless it is ""; None once its refusal is
        sent."""
        try:
            claims = decode_account(payload.decode("latin-1"))
            if account and claims.registered.subject != account:
                raise TokenError("subject does not match jwt content")
        except TokenError as err:
            self._refuse(reply, account or "n/a", f"{failed} - {err}")
            return None
        return claims

    # --- other requests of operators ------------------------------------------------------------

    async def _list(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        if reply:
            self._answers.send(reply, {"data": await self._resolver.list()})

    async def _delete(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        """Delete tokens, as an operator wishes who signs the request."""
        asker = ""
        try:
            claims = decode_generic(payload.decode("latin-1"))
            asker = claims.registered.subject
            accounts = self._deletable(claims.registered.issuer, asker, claims.content)
        except TokenError as err:
            self._refuse(reply, "", f"delete accounts request by {asker} failed - {err}")
            return
        failures: list[str] = []
        for account in accounts:
            try:
                await self._resolver.delete(account)
                self._loader.forget(account)
            except TokenError as err:
                failures.append(str(err))
        done = f"deleted {len(accounts) - len(failures)} accounts"
        if failures:
            text = f"{done}, failed for {len(failures)} - " + "\n".join(failures)
            self._refuse(reply, "", text)
        else:
            self._accept(reply, "", done)

    def _deletable(self, issuer: str, asker: str, content: Mapping[str, Any]) -> list[str]:
        """Return the accounts to delete; raise TokenError if the request may not be served."""
        directory = self._directory
        if directory is None or not directory.is_deletable:
            raise TokenError("delete must be enabled in server config")
        if asker != issuer:
            raise TokenError("not self signed")
        if asker not in self._policy.trust.keys:
            raise TokenError("not trusted")
        accounts = content.get("accounts")
        if not isinstance(accounts, list):
            raise TokenError("malformed request")
        for account in accounts:
            if not isinstance(account, str) or not is_valid_public(KeyKind.ACCOUNT, account):
                raise TokenError("malformed request")
            if account == self._policy.system_account:
                raise TokenError("not allowed to delete system account")
        return accounts

    # --- requests of other servers --------------------------------------------------------------

    async def _look_up(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        directory = self._directory
        if reply and directory is not None:
            token = await directory.token_here(_account_in(subject))
            self._answers.send_text(reply, (token or "").encode("latin-1"))

    async def _pack(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        """Send all tokens to a server that has others, one message each, and an empty one."""
        directory = self._directory
        if not reply or directory is None:
            return
        if payload != await directory.digest():
            for account in await directory.list():
                token = await directory.token_here(account)
                if token is not None:
                    self._answers.send_text(reply, f"{account}|{token}".encode("latin-1"))
        self._answers.send_text(reply, b"")

    async def _merge(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        """Keep what is newer of another server's tokens."""
        directory = self._directory
        assert directory is not None
        for line in payload.decode("latin-1").split("\n"):
            account, separator, token = line.partition("|")
            if not separator or not is_valid_public(KeyKind.ACCOUNT, account):
                continue
            with suppress(TokenError):
                if await directory.merge(account, token):
                    self._loader.update(account, token)

    async def _compare(self) -> None:
        """Ask other servers for what they have, if that is not what this one has."""
        directory = self._directory
        assert directory is not None
        self._publish(_ALL + b"PACK", self._pack_inbox, b"", await directory.digest())

    # --- answers --------------------------------------------------------------------------------

    def _accept(self, reply: bytes, account: str, message: str) -> None:
        if reply:
            data = {"code": 200, "message": message}
            self._answers.send(reply, {"data": _about(account) | data})

    def _refuse(self, reply: bytes, account: str, description: str) -> None:
        if reply:
            error = {"code": 500, "description": description}
            self._answers.send(reply, {"error": _about(account) | error})


def _about(account: str) -> dict[str, Any]:
    return {"account": account} if account else {}


def _account_in(subject: bytes) -> str:
    """Return the account that a subject names; "" for requests about all."""
    tokens = subject.split(b".")
    if tokens[1] == b"ACCOUNT":
        return tokens[_OLD_ACCOUNT_AT].decode("latin-1")
    return tokens[_ACCOUNT_AT].decode("latin-1") if tokens[2] == b"ACCOUNT" else ""
