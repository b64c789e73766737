"""Reader of the `websocket` block. Error texts are nats-server's where it has them."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

from streamd.config.grammar import Value
from streamd.config.key_blocks import KeyBlocks, put_in
from streamd.config.tls_options import TlsOptions
from streamd.config.tls_reader import read_tls
from streamd.config.values import (
    as_flag,
    as_host_port,
    as_integer,
    as_list,
    as_members,
    as_number,
    as_text,
)
from streamd.config.websocket_options import WebSocketOptions
from streamd.durations import SECOND_NS

_HEADER_NAME: Final = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+\Z")


def read_websocket(block: Value, blocks: KeyBlocks) -> WebSocketOptions:
    """Read the block. Raises ConfigError; what other options bear on is checked by `check`."""
    settings: dict[str, Any] = {}
    put = partial(put_in, settings)

    def listen(value: Value) -> None:
        host, settings["port"] = as_host_port(value)
        if host is not None:
            settings["host"] = host

    def duration(value: Value) -> int:
        return max(0, blocks.duration_of(value, value.key))

    blocks.read(
        block,
        {
            "listen": listen,
            "host|net": put("host", as_text),
            "port": put("port", as_integer),
            "advertise": put("advertise", as_text),
            "no_tls": put("has_no_tls", as_flag),
            "tls": put("tls", lambda v: _read_tls(v, blocks)),
            "same_origin": put("is_same_origin", as_flag),
            "allowed_origins|allowed_origin|allow_origins|allow_origin|origins|origin": put(
                "allowed_origins", _origins
            ),
            "handshake_timeout": put("handshake_timeout_ns", duration),
            "compress|compression": put("is_compressing", as_flag),
            "headers": put("headers", _headers),
            "authorization|authentication": lambda v: _read_login(v, blocks, settings),
            "jwt_cookie": put("jwt_cookie", as_text),
            "user_cookie": put("user_cookie", as_text),
            "pass_cookie": put("pass_cookie", as_text),
            "token_cookie": put("token_cookie", as_text),
            "no_auth_user": put("no_auth_user", as_text),
            "ping_interval": put("ping_interval_ns", duration),
        },
        "websocket.",
    )
    return WebSocketOptions(**settings)


def _read_tls(block: Value, blocks: KeyBlocks) -> TlsOptions:
    tls = read_tls(block, blocks, "websocket.tls.")
    if tls.connections_per_s_max:
        blocks.refuse(block, '"websocket.tls.connection_rate_limit" is not served by this version')
    return tls


def _read_login(block: Value, blocks: KeyBlocks, settings: dict[str, Any]) -> None:
    put = partial(put_in, settings)

    def timeout_s(value: Value) -> float:
        if isinstance(value.raw, str):
            return blocks.duration_of(value, "timeout") / SECOND_NS
        return float(as_number(value))

    blocks.read(
        block,
        {
            "user|username": put("username", as_text),
            "pass|password": put("password", as_text),
            "token": put("token", as_text),
            "timeout": put("auth_timeout_s", timeout_s),
        },
        "websocket.authorization.",
    )


def _origins(value: Value) -> tuple[str, ...]:
    entries = as_list(value) if isinstance(value.raw, list) else [value]
    return tuple(as_text(entry) for entry in entries)


def _headers(block: Value) -> tuple[tuple[str, str], ...]:
    found = []
    for name, value in as_members(block, "websocket.headers").items():
        value.key = f"websocket.headers.{name}"
        text = as_text(value)
        # A name or text that is none would let one setting write another header, or a body.
        if not _HEADER_NAME.match(name):
            raise value.error(f'websocket: invalid header name "{name}"')
        if not text.isascii() or not text.isprintable():
            raise value.error(f'websocket: invalid value of header "{name}"')
        found.append((name, text))
    return tuple(found)
