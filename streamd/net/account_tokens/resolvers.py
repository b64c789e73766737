"""Resolvers: where the token of an account comes from.

Memory, which the configuration fills; a web server; a directory with all tokens, which servers
compare with each other; a directory with some, the rest of which other servers have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from streamd.config.operator_options import DeletedTokens, ResolverKind, ResolverOptions
from streamd.durations import SECOND_NS
from streamd.errors import TokenError, describe
from streamd.limits import CACHED_TOKENS, TOKEN_BYTES_MAX
from streamd.net.account_tokens.token_directory import TokenDirectory
from streamd.tokens.claims import decode_account
from streamd.tokens.nkeys import KeyKind, is_valid_public

if TYPE_CHECKING:  # libraries that take half a second, for web servers alone
    import ssl

    import aiohttp

LOOK_UP_TIMEOUT_S: Final = 1.9
LookUp = Callable[[str], Awaitable[str | None]]
_T = TypeVar("_T")


class Resolver(Protocol):
    """Source of account tokens. What it returns was not checked beyond the account's name."""

    @property
    def kind(self) -> ResolverKind:
        """Decides on the requests about tokens that the server serves."""

    async def start(self) -> None:
        """Make ready, or raise TokenError or OSError, with which the server does not start."""

    async def fetch(self, account: str) -> str | None:
        """Return the token of an account; None if there is none. Raises TokenError."""

    async def store(self, account: str, token: str) -> None:
        """Keep a token. Raises TokenError."""

    async def list(self) -> list[str]:
        """Return the accounts whose tokens are kept here, sorted."""

    async def delete(self, account: str) -> None:
        """Delete the token of an account. Raises TokenError."""

    async def close(self) -> None: ...


def make_resolver(
    options: ResolverOptions,
    preload: Mapping[str, str],
    look_up: LookUp,
    now_ns: Callable[[], int],
    tls: ssl.SSLContext | None = None,
) -> Resolver:
    """Return the resolver of the configuration; see DirectoryResolver and UrlResolver."""
    if options.kind is ResolverKind.MEMORY:
        return MemoryResolver(preload)
    if options.kind is ResolverKind.URL:
        return UrlResolver(options.url, tls=tls, timeout_s=options.timeout_ns / SECOND_NS)
    is_full = options.kind is ResolverKind.FULL
    directory = TokenDirectory(
        Path(options.directory),
        now_ns,
        limit=options.limit or (0 if is_full else CACHED_TOKENS),
        is_evicting=not is_full,
        ttl_ns=options.ttl_ns,
        is_removing=options.deleted is DeletedTokens.REMOVED,
    )
    # As in nats-server, a cache always deletes what it is told to: it is no place of record.
    is_deletable = not is_full or options.deleted is not DeletedTokens.REFUSED
    return DirectoryResolver(
        directory, look_up, is_full=is_full, preload=preload, is_deletable=is_deletable
    )


class MemoryResolver:
    """Tokens of the configuration; none is added."""

    kind = ResolverKind.MEMORY

    def __init__(self, preload: Mapping[str, str]) -> None:
        self._tokens = dict(preload)

    async def start(self) -> None:
        return

    async def fetch(self, account: str) -> str | None:
        return self._tokens.get(account)

    def replace(self, preload: Mapping[str, str]) -> None:
        """Use these tokens from here on: the configuration was read again."""
        self._tokens = dict(preload)

    async def store(self, account: str, token: str) -> None:
        """Replace the token of an account that is known already."""
        if account not in self._tokens:
            raise TokenError("account missing")
        self._tokens[account] = token

    async def list(self) -> list[str]:
        return sorted(self._tokens)

    async def delete(self, account: str) -> None:
        raise TokenError("delete must be enabled in server config")

    async def close(self) -> None:
        return


class UrlResolver:
    """Tokens of a web server, `<url><account>` each; nothing is kept."""

    kind = ResolverKind.URL

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = LOOK_UP_TIMEOUT_S,
    ) -> None:
        """`tls`: of servers with https; None: as usual on this machine."""
        self._url = url if url.endswith("/") else f"{url}/"
        self._tls: ssl.SSLContext | bool = tls if tls is not None else True
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Ask the server for its root, which has to answer 200."""
        if urlsplit(self._url).scheme not in ("http", "https"):
            raise TokenError(f'could not fetch <"{self._url}">: not a URL of a web server')
        await self._get(self._url)

    async def fetch(self, account: str) -> str | None:
        if not is_valid_public(KeyKind.ACCOUNT, account):
            return None
        return (await self._get(self._url + account)).strip()

    async def store(self, account: str, token: str) -> None:
        raise TokenError("store operation not supported for URL Resolver")

    async def list(self) -> list[str]:
        return []

    async def delete(self, account: str) -> None:
        raise TokenError("delete must be enabled in server config")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _get(self, url: str) -> str:
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            async with self._session.get(url, ssl=self._tls) as response:
                if response.status != 200:
                    reason = f"{response.status} {response.reason}"
                    raise TokenError(f'could not fetch <"{url}">: {reason}')
                content = bytearray()
                async for chunk in response.content.iter_any():
                    content += chunk
                    if len(content) > TOKEN_BYTES_MAX:
                        raise TokenError(f'could not fetch <"{url}">: over {TOKEN_BYTES_MAX} bytes')
                return content.decode("latin-1")
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            reason = f'Get "{url}": {describe(err)}'
            raise TokenError(f'could not fetch <"{url}">: {reason}') from None


class DirectoryResolver:
    """Tokens in a directory of this server; those it lacks are asked for at other servers."""

    def __init__(
        self,
        directory: TokenDirectory,
        look_up: LookUp,
        *,
        is_full: bool,
        preload: Mapping[str, str] | None = None,
        is_deletable: bool = False,
    ) -> None:
        """`look_up(account)` asks other servers. `is_full`: the directory is to have all tokens."""
        self.kind = ResolverKind.FULL if is_full else ResolverKind.CACHE
        self.is_deletable = is_deletable
        self._directory = directory
        self._look_up = look_up
        self._preload = dict(preload or {})
        # One thread: files are read and written one after another, and never on the loop.
        self._thread = ThreadPoolExecutor(1, "account-tokens")

    async def start(self) -> None:
        await self.run(self._open)

    async def fetch(self, account: str) -> str | None:
        token = await self.run(lambda: self._directory.load(account))
        if token is not None or not is_valid_public(KeyKind.ACCOUNT, account):
            return token
        found = await self._look_up(account)
        if not found or decode_account(found).registered.subject != account:
            return None
        await self.store(account, found)
        return found

    async def store(self, account: str, token: str) -> None:
        await self.run(lambda: self._directory.save(account, token))

    async def merge(self, account: str, token: str) -> bool:
        """Keep a token of another server if it is newer; return True if so."""
        return await self.run(lambda: self._directory.save_if_newer(account, token))

    async def list(self) -> list[str]:
        return await self.run(self._directory.names)

    async def delete(self, account: str) -> None:
        if not self.is_deletable:
            raise TokenError("delete must be enabled in server config")
        await self.run(lambda: self._directory.delete(account))

    async def digest(self) -> bytes:
        """Return the digest of all tokens, which servers compare."""
        return await self.run(self._directory.digest)

    async def token_here(self, account: str) -> str | None:
        """Return the token of an account without asking other servers."""
        return await self.run(lambda: self._directory.load(account))

    async def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _open(self) -> None:
        self._directory.open()
        known = set(self._directory.names())
        for account, token in self._preload.items():
            if account not in known:
                self._directory.save(account, token)

    async def run(self, job: Callable[[], _T]) -> _T:
        """Return what `job` does, in the thread of files: it may block, or take its time."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, job)
        except OSError as err:
            raise TokenError(f"account tokens: {describe(err)}") from err
