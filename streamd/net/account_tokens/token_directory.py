"""A directory of account tokens, `<account>.jwt` each, as nats-server keeps them.

All of it blocks: the resolver calls it from a thread of its own, one call at a time. A token that
is saved is on disk when `save` returns, and the one before is there until then.

The digest of all tokens, the XOR of their SHA-256, tells two servers whether they have the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamd.errors import TokenError
from streamd.limits import TOKEN_BYTES_MAX
from streamd.tokens.claims import decode_account
from streamd.tokens.nkeys import KeyKind, is_valid_public

_ENDING: Final = ".jwt"
_DIGEST_BYTES: Final = 32


@dataclass(slots=True)
class _Entry:
    digest: int
    used_ns: int


class TokenDirectory:
    """Tokens in a directory, which no other program writes to."""

    def __init__(
        self,
        path: Path,
        now_ns: Callable[[], int],
        *,
        limit: int = 0,
        is_evicting: bool = False,
        ttl_ns: int = 0,
        is_removing: bool = False,
    ) -> None:
        """`limit`: tokens at most (0: any number); beyond it, `is_evicting` has the one go that was
        not used for longest, else none is saved. A token not used for `ttl_ns` goes (0: none).
        `is_removing`: a deleted token's file goes, instead of being renamed."""
        self._path = path
        self._now_ns = now_ns
        self._limit = limit
        self._is_evicting = is_evicting
        self._ttl_ns = ttl_ns
        self._is_removing = is_removing
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # the one used last is last
        self._digest = 0

    def open(self) -> None:
        """Make the directory, or learn what is in it. Raises OSError."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self._path.iterdir()):
            name = path.name.removesuffix(_ENDING)
            if path.name.endswith(_ENDING) and is_valid_public(KeyKind.ACCOUNT, name):
                token = self._read(name)
                if token is not None:
                    self._note(name, token)

    def names(self) -> list[str]:
        """Return the accounts whose tokens are here, sorted."""
        return sorted(self._entries)

    def load(self, account: str) -> str | None:
        """Return the token of an account; None if there is none. Raises OSError."""
        entry = self._entries.get(account)
        if entry is None:
            return None
        now_ns = self._now_ns()
        if self._ttl_ns and now_ns - entry.used_ns > self._ttl_ns:
            self._drop(account)
            return None
        entry.used_ns = now_ns
        self._entries.move_to_end(account)
        return self._read(account)

    def save(self, account: str, token: str) -> None:
        """Keep a token in place of the account's older one. Raises OSError, TokenError."""
        if not is_valid_public(KeyKind.ACCOUNT, account):
            raise TokenError(f"not a public account key: {account[:64]!r}")
        if account not in self._entries and self._limit and len(self._entries) >= self._limit:
            if not self._is_evicting:
                raise TokenError("jwt store is full")
            self._drop(next(iter(self._entries)))
        self._write(account, token)
        self._note(account, token)

    def save_if_newer(self, account: str, token: str) -> bool:
        """Keep a token of another server, unless the one that is here was issued later.

        Return True if it was kept. Raises OSError, and TokenError for what is no token of it.
        """
        claims = decode_account(token)
        if claims.registered.subject != account:
            raise TokenError("subject does not match jwt content")
        known = self._read(account) if account in self._entries else None
        if known is not None:
            if known == token:
                return False
            with contextlib.suppress(TokenError):
                if decode_account(known).registered.issued_s >= claims.registered.issued_s:
                    return False
        self.save(account, token)
        return True

    def delete(self, account: str) -> None:
        """Delete the token of an account. Raises OSError."""
        if account not in self._entries:
            return
        path = self._path_of(account)
        with contextlib.suppress(FileNotFoundError):
            if self._is_removing:
                path.unlink()
            else:
                os.replace(path, path.with_name(f"{path.name}.deleted"))
            self._sync()
        self._forget(account)

    def digest(self) -> bytes:
        """Return the digest of all tokens."""
        return self._digest.to_bytes(_DIGEST_BYTES, "big")

    def pack(self) -> Iterator[str]:
        """Yield all tokens as `account|token`. Raises OSError."""
        for account in self.names():
            token = self._read(account)
            if token is not None:
                yield f"{account}|{token}"

    def _path_of(self, account: str) -> Path:
        return self._path / f"{account}{_ENDING}"

    def _read(self, account: str) -> str | None:
        """Return a file's text; None if it is gone, or is no token's."""
        try:
            with open(self._path_of(account), "rb") as file:
                content = file.read(TOKEN_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        if len(content) > TOKEN_BYTES_MAX or not content.isascii():
            return None
        return content.decode("ascii").strip()

    def _write(self, account: str, token: str) -> None:
        path = self._path_of(account)
        temporary = path.with_name(f".{path.name}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(token.encode("ascii"))
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)  # on disk now: the old token, or this one, whole
        self._sync()

    def _sync(self) -> None:
        """Make what was renamed or removed last."""
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _note(self, account: str, token: str) -> None:
        digest = int.from_bytes(hashlib.sha256(token.encode()).digest(), "big")
        known = self._entries.pop(account, None)
        self._digest ^= digest ^ (known.digest if known is not None else 0)
        self._entries[account] = _Entry(digest, self._now_ns())

    def _forget(self, account: str) -> None:
        self._digest ^= self._entries.pop(account).digest

    def _drop(self, account: str) -> None:
        """Remove a token that can be asked for again."""
        with contextlib.suppress(FileNotFoundError):
            self._path_of(account).unlink()
        self._forget(account)
