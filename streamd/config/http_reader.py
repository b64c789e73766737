"""Reader of the `http` and `https` blocks: where monitoring listens, and logins of its dashboard.

nats-server has an address there and nothing else; that is read by `reader.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from streamd.config.grammar import Value
from streamd.config.http_options import HttpLogins, HttpUser
from streamd.config.key_blocks import KeyBlocks, put_in
from streamd.config.values import as_host_port, as_integer, as_text, kind_of, quoted

_ROLES = ("reader", "administrator")


class HttpBlock(NamedTuple):
    """Settings of the block; None: it says nothing of them."""

    host: str | None
    port: int | None
    logins: HttpLogins


def read_http(block: Value, blocks: KeyBlocks) -> HttpBlock:
    """Read the block. Raises ConfigError."""
    path = f"{block.key}."
    found: dict[str, Any] = {}
    logins: dict[str, Any] = {}

    def listen(value: Value) -> None:
        host, found["port"] = as_host_port(value)
        if host is not None:
            found["host"] = host

    blocks.read(
        block,
        {
            "listen": listen,
            "host|net": put_in(found, "host", as_text),
            "port": put_in(found, "port", as_integer),
            "users": put_in(logins, "users", lambda value: _users(value, blocks, path)),
            "token": put_in(logins, "token", _secret),
        },
        path,
    )
    return HttpBlock(found.get("host"), found.get("port"), HttpLogins(**logins))


def _users(value: Value, blocks: KeyBlocks, path: str) -> tuple[HttpUser, ...]:
    if not isinstance(value.raw, list):
        raise value.error(f'"{value.key}" must be a list of users, not {kind_of(value)}')
    users: dict[str, HttpUser] = {}
    for entry in value.raw:
        user = _user(entry, blocks, path)
        if user.name in users:
            raise entry.error(f"Duplicate user {quoted(user.name)} detected")
        users[user.name] = user
    return tuple(users.values())


def _user(entry: Value, blocks: KeyBlocks, path: str) -> HttpUser:
    if not isinstance(entry.raw, dict):
        raise entry.error(f'a user of "{entry.key}" must be a block, not {kind_of(entry)}')
    fields: dict[str, Any] = {"name": "", "password": ""}
    blocks.read(
        entry,
        {
            "user|username": put_in(fields, "name", as_text),
            "pass|password": put_in(fields, "password", _secret),
            "role": put_in(fields, "is_administrator", _is_administrator),
            "account": put_in(fields, "account", _account),
        },
        f"{path}users.",
    )
    if not fields["name"] or not fields["password"]:
        raise entry.error(f'a user of "{path}users" requires a user and a password')
    return HttpUser(**fields)


def _is_administrator(value: Value) -> bool:
    role = as_text(value)
    if role not in _ROLES:
        raise value.error(
            f'"{value.key}" must be {" or ".join(map(quoted, _ROLES))}, not {quoted(role)}'
        )
    return role == "administrator"


def _account(value: Value) -> str:
    """A name: an empty one, as of a variable that is not set, would show all accounts."""
    name = as_text(value)
    if not name:
        raise value.error(f'"{value.key}" must not be empty')
    return name


def _secret(value: Value) -> str:
    """A text that no error repeats, and that is not empty."""
    if not isinstance(value.raw, str):
        raise value.error(
            f'"{value.key}" must be a string, not {kind_of(value)}: a text that looks like a number'
            " needs quotes"
        )
    if not value.raw:
        raise value.error(f'"{value.key}" must not be empty')
    return value.raw
