"""Conversion of a configuration value to a text, a flag, a number, a list or an address.

Each raises ConfigError, which names the setting, its place, what it has and what it must have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from streamd.config.cluster_options import RouteUrl, parse_route
from streamd.config.grammar import Value
from streamd.errors import ConfigError
from streamd.subjects import is_valid


def kind_of(value: Value) -> str:
    """The type of the value in words, with its article."""
    raw = value.raw
    if isinstance(raw, bool):
        return "a boolean"
    if isinstance(raw, dict):
        return "a block"
    return {str: "a string", int: "an integer", float: "a number", list: "a list"}[type(raw)]


def go_type(value: Value) -> str:
    """Name of the value's type as nats-server's errors have it."""
    raw = value.raw
    if isinstance(raw, bool):
        return "bool"
    return {
        str: "string",
        int: "int64",
        float: "float64",
        list: "[]interface {}",
        dict: "map[string]interface {}",
    }[type(raw)]


def quoted(text: str) -> str:
    """The text between quotes, what cannot be printed escaped."""
    return json.dumps(text, ensure_ascii=False)


def shown(value: Value) -> str:
    """The value as nats-server's errors have it."""
    raw = value.raw
    if isinstance(raw, bool):
        return "true" if raw else "false"
    return plain_text(value)


def mismatch(value: Value, wanted: str) -> ConfigError:
    """The error of a value that is not `wanted`, which comes with its article."""
    shown = "" if isinstance(value.raw, dict | list) else f" ({plain_text(value)!r})"
    return value.error(f"{_name(value)} must be {wanted}, not {kind_of(value)}{shown}")


def unknown_field(value: Value, key: str, known: Iterable[str]) -> ConfigError:
    """The error of a key that is not among `known`; names the one that was probably meant."""
    from difflib import get_close_matches  # costs 6 ms, which a start without a mistake saves

    near = get_close_matches(key.lower(), known, n=1, cutoff=0.75)
    meant = f': did you mean "{near[0]}"?' if near else ""
    return value.error(f'unknown field "{key}"{meant}')


def _name(value: Value) -> str:
    return f'"{value.key}"' if value.key else "the value"


def as_text(value: Value) -> str:
    """A string. A number is none: of `007` or `5k` nobody knows any more how it was written."""
    if isinstance(value.raw, int | float) and not isinstance(value.raw, bool):
        raise value.error(
            f"{_name(value)} must be a string, not {kind_of(value)} ({plain_text(value)}):"
            " a text that looks like a number needs quotes"
        )
    if not isinstance(value.raw, str):
        raise mismatch(value, "a string")
    return value.raw


def plain_text(value: Value) -> str:
    """Whatever it is, for an error."""
    return str(value.plain())


def as_flag(value: Value) -> bool:
    """True or false."""
    if not isinstance(value.raw, bool):
        raise mismatch(value, "true or false")
    return value.raw


def as_integer(value: Value) -> int:
    """A number of 64 bits with its sign."""
    if isinstance(value.raw, bool) or not isinstance(value.raw, int):
        raise mismatch(value, "an integer")
    if not -(2**63) <= value.raw < 2**63:
        raise value.error(f"{_name(value)}: {value.raw} does not fit in 64 bits")
    return value.raw


def as_number(value: Value) -> float:
    """An integer or a fraction."""
    if isinstance(value.raw, bool) or not isinstance(value.raw, int | float):
        raise mismatch(value, "a number")
    return value.raw


_STORAGE = re.compile(r"(-?\d+) *([kmgt]?)(?:i?b)?\Z", re.IGNORECASE)


def as_size(value: Value) -> int:
    """An amount of storage; as a quoted string its units are powers of 1024."""
    if not isinstance(value.raw, str):
        return as_integer(value)
    match = _STORAGE.match(value.raw)
    if match is None:
        raise value.error(f'{_name(value)}: "{value.raw}" is not a size, such as 512MB or "10GB"')
    power = " kmgt".index(match[2].lower() or " ")
    return int(match[1]) * (1 << 10 * power)


def as_list(value: Value) -> list[Value]:
    """The elements of an array."""
    if not isinstance(value.raw, list):
        raise mismatch(value, "a list")
    return value.raw


def as_routes(value: Value) -> tuple[RouteUrl, ...]:
    """Addresses of peers: an array of URLs."""
    if not isinstance(value.raw, list):
        raise mismatch(value, "a list")
    routes = []
    for entry in value.raw:
        try:
            routes.append(parse_route(as_text(entry)))
        except ValueError as err:
            raise entry.error(str(err)) from err
    return tuple(routes)


def as_members(value: Value, what: str) -> dict[str, Value]:
    """The members of the map `what`."""
    if not isinstance(value.raw, dict):
        raise value.error(f'"{what.rstrip(".")}" must be a block, not {kind_of(value)}')
    return value.raw


def as_host_port(value: Value) -> tuple[str | None, int]:
    """`host:port`, `:port` or a bare port number."""
    if isinstance(value.raw, int) and not isinstance(value.raw, bool):
        return None, value.raw
    text = as_text(value)
    host, colon, port = text.rpartition(":")
    if not colon:
        raise value.error(f'{_name(value)}: "{text}" is not host:port or a port')
    if not re.fullmatch(r"-?\d+", port):
        raise value.error(f'{_name(value)}: "{port}" is not a port')
    return host.strip("[]"), int(port)


def _subjects(value: Value, with_queue: bool) -> list[bytes]:
    if not isinstance(value.raw, str | list):
        raise value.error(
            "Expected subject permissions to be a subject, or array of subjects,"
            f" got {go_type(value)}"
        )
    entries = value.raw if isinstance(value.raw, list) else [value]
    found = []
    for entry in entries:
        if not isinstance(entry.raw, str):
            raise value.error("Subject in permissions array cannot be cast to string")
        words = entry.raw.split()
        if len(words) == 2 and with_queue:
            subject = words[0]
        else:
            subject = entry.raw
        if not is_valid(subject.encode()):
            raise value.error(f"subject {quoted(subject)} is not a valid subject")
        found.append(" ".join(words).encode())
    return found


def as_allow_deny(value: Value, with_queue: bool) -> tuple[list[bytes] | None, list[bytes]]:
    """A subject, a list of them, or `{allow: ..., deny: ...}`."""
    if not isinstance(value.raw, dict):
        return _subjects(value, with_queue), []
    allow: list[bytes] | None = None
    deny: list[bytes] = []
    for key, child in value.raw.items():
        child.key = f"{value.key}.{key}"
        if key.lower() == "allow":
            allow = _subjects(child, with_queue)
        elif key.lower() == "deny":
            deny = _subjects(child, with_queue)
        elif not child.is_referred_to:
            raise child.error(
                f"Unknown field name {quoted(key)} parsing subject permissions, only 'allow' or"
                " 'deny' are permitted"
            )
    return allow, deny
