"""Reader of operators and of the resolver of account tokens. Error texts are nats-server's."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import partial
from typing import Any, Final

from streamd.config.duration_values import parse_go_duration
from streamd.config.grammar import Value
from streamd.config.key_blocks import KeyBlocks, Setter, put_in
from streamd.config.operator_options import DeletedTokens, ResolverKind, ResolverOptions
from streamd.config.options import Options
from streamd.config.tls_reader import read_tls
from streamd.config.values import as_flag, as_integer, as_text, go_type, quoted
from streamd.errors import TokenError
from streamd.tokens.claims import decode_account, decode_operator
from streamd.tokens.nkeys import KeyKind, is_valid_public

OPERATOR_KEYS: Final = "operator|operators|roots|root|root_operators|root_operator"
_MEMORY: Final = re.compile(r"MEM|MEMORY", re.IGNORECASE)
_URL: Final = re.compile(r'URL(?:\(\s*"?([^\s"]*)"?\s*\))?', re.IGNORECASE)
_DECORATED: Final = re.compile(r"-{3,}[^\n]*-{3,}\s*([A-Za-z0-9_.-]+)\s*-{3,}[^\n]*-{3,}\s*")
_NO_RESOLVER: Final = (
    'error parsing account resolver, should be MEM or  URL("url") or a map containing dir and type'
    " state=[FULL|CACHE])"
)


class OperatorReader:
    """Reads what goes with operators into `Options`."""

    def __init__(self, options: Options, blocks: KeyBlocks) -> None:
        self._options = options
        self._blocks = blocks

    @property
    def setters(self) -> dict[str, Setter]:
        """Setters of top-level keys."""
        return {
            OPERATOR_KEYS: self._operators,
            "trusted_keys|trusted": self._trusted_keys,
            "resolver|account_resolver|accounts_resolver": self._resolver,
            "resolver_tls": self._resolver_tls,
            "resolver_preload": self._preload,
            "resolver_pinned_accounts": self._pinned_accounts,
            "default_sentinel": self._default_sentinel,
        }

    def finish(self) -> None:
        """Put in what the only operator names, where the configuration does not."""
        self._options.operators = self._options.operators.with_resolver()

    def _set(self, **settings: Any) -> None:
        self._options.operators = replace(self._options.operators, **settings)

    def _operators(self, value: Value) -> None:
        entries = value.raw if isinstance(value.raw, list) else [value]
        tokens = []
        claims = []
        for entry in entries:
            if not isinstance(entry.raw, str):
                raise value.error(f"error parsing operators: unsupported type {go_type(entry)}")
            try:
                token = _operator_token(entry.raw)
                claims.append(decode_operator(token))
                tokens.append(token)
            except (ValueError, TokenError) as err:
                raise value.error(f"error parsing operator JWT: {err}") from None
        if tokens:
            self._set(tokens=tuple(tokens), claims=tuple(claims))

    def _trusted_keys(self, value: Value) -> None:
        keys = _texts(value, "trusted")
        for key in keys:
            if not is_valid_public(KeyKind.OPERATOR, key):
                raise value.error(
                    f"trust key {quoted(key)} required to be a valid public operator nkey"
                )
        if keys:
            self._set(trusted_keys=keys)

    def _resolver(self, value: Value) -> None:
        if isinstance(value.raw, str):
            resolver = _resolver_of_text(value)
        elif isinstance(value.raw, dict):
            resolver = self._resolver_of_block(value)
        else:
            raise value.error(f"error parsing operator resolver, wrong type {go_type(value)}")
        if resolver is None:
            raise value.error(_NO_RESOLVER)
        self._set(resolver=resolver)

    def _resolver_of_block(self, block: Value) -> ResolverOptions | None:
        settings: dict[str, Any] = {}
        put = partial(put_in, settings)

        def duration(value: Value) -> int:
            try:
                return parse_go_duration(as_text(value))
            except ValueError as err:
                raise block.error(str(err)) from None

        assert isinstance(block.raw, dict)
        known = {
            "dir": put("directory", as_text),
            "type": put("kind", as_text),
            "allow_delete": put("is_deleting", as_flag),
            "hard_delete": put("is_hard", as_flag),
            "limit": put("limit", as_integer),
            "ttl": put("ttl_ns", duration),
            "interval": put("interval_ns", duration),
            "timeout": put("timeout_ns", duration),
        }
        for key, value in block.raw.items():
            value.key = f"resolver.{key}"
            if key in known:
                known[key](value)
            elif not value.is_referred_to:
                self._blocks.warn(value, f'"resolver.{key}" has no meaning and is ignored')
        kind = settings.get("kind", "").upper()
        if kind in ("MEM", "MEMORY"):
            return ResolverOptions(ResolverKind.MEMORY)
        if kind not in ("FULL", "CACHE"):
            return None
        directory = settings.get("directory", "")
        _check_directory(directory, block)
        if kind == "FULL":
            return _full_resolver(settings, directory, block)
        return _cache_resolver(settings, directory, block)

    def _resolver_tls(self, value: Value) -> None:
        self._set(resolver_tls=read_tls(value, self._blocks, "resolver_tls."))

    def _preload(self, value: Value) -> None:
        if not isinstance(value.raw, dict):
            raise value.error("preload should be a map of account_public_key:account_jwt")
        preload = {}
        for key, child in value.raw.items():
            if not isinstance(child.raw, str):
                raise child.error("preload map value should be a string JWT")
            try:
                decode_account(child.raw)
            except TokenError:
                raise child.error("invalid account JWT") from None
            preload[key] = child.raw
        self._set(preload=preload)

    def _pinned_accounts(self, value: Value) -> None:
        keys = frozenset(_texts(value, "resolver_pinned_accounts"))
        self._set(pinned_accounts=keys)

    def _default_sentinel(self, value: Value) -> None:
        text = as_text(value)
        if text:
            self._set(default_sentinel=text)


def _full_resolver(settings: dict[str, Any], directory: str, block: Value) -> ResolverOptions:
    if settings.get("ttl_ns"):
        raise block.error("FULL does not accept ttl")
    is_deleting = settings.get("is_deleting", False)
    if "is_hard" in settings and not is_deleting:
        raise block.error("hard_delete has no effect without delete")
    deleted = DeletedTokens.REFUSED
    if is_deleting:
        deleted = DeletedTokens.REMOVED if settings.get("is_hard") else DeletedTokens.RENAMED
    return ResolverOptions(
        ResolverKind.FULL, directory=directory, deleted=deleted, **_given(settings, "interval_ns")
    )


def _cache_resolver(settings: dict[str, Any], directory: str, block: Value) -> ResolverOptions:
    if settings.get("interval_ns"):
        raise block.error("CACHE does not accept sync")
    if settings.get("is_deleting"):
        raise block.error("CACHE does not accept allow_delete")
    if "is_hard" in settings:
        raise block.error("CACHE does not accept hard_delete")
    return ResolverOptions(ResolverKind.CACHE, directory=directory, **_given(settings, "ttl_ns"))


def _given(settings: dict[str, Any], own: str) -> dict[str, Any]:
    """Return the limits that are set and not 0, which stands for the default."""
    return {key: settings[key] for key in ("limit", "timeout_ns", own) if settings.get(key)}


def _check_directory(path: str, block: Value) -> None:
    if not path:
        raise block.error("dir has no value and needs to point to a directory")
    if os.path.exists(path) and not (os.path.isdir(path) and os.access(path, os.W_OK)):
        raise block.error("dir needs to point to an accessible directory")


def _resolver_of_text(value: Value) -> ResolverOptions | None:
    text = as_text(value)
    if _MEMORY.search(text):
        return ResolverOptions(ResolverKind.MEMORY)
    found = _URL.search(text)
    if found is None:
        return None
    url = found[1] or ""
    return ResolverOptions(ResolverKind.URL, url=url if url.endswith("/") else url + "/")


def _operator_token(text: str) -> str:
    """Return the JWT that `text` is, or that the file of this name has, without decoration.
    Raises ValueError."""
    if text.startswith("eyJ"):
        content = text
    else:
        try:
            with open(text, encoding="ascii", errors="replace") as file:
                content = file.read()
        except OSError as err:
            raise ValueError(f"open {text}: {(err.strerror or str(err)).lower()}") from None
        found = _DECORATED.search(content)
        if found is not None:
            content = found[1]
    return content.strip()


def _texts(value: Value, name: str) -> tuple[str, ...]:
    if isinstance(value.raw, str):
        return (value.raw,)
    if not isinstance(value.raw, list):
        raise value.error(f"error parsing {name}: unsupported type {go_type(value)}")
    found = []
    for entry in value.raw:
        if not isinstance(entry.raw, str):
            raise entry.error(f"error parsing {name}: unsupported type in array {go_type(entry)}")
        found.append(entry.raw)
    return tuple(found)
