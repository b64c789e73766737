"""One configuration value as what an option wants: a text, a flag, a number, a list, an address.

Each raises ConfigError with the value's place. What a type is called in such an error is what
nats-server, which is written in Go, calls it.
"""

from __future__ import annotations

import re

from streamd.config.cluster import RouteUrl, parse_route
from streamd.config.grammar import Value
from streamd.errors import ConfigError


def kind_of(value: Value) -> str:
    """The Go name of the value's type: what nats-server's own messages say."""
    raw = value.raw
    if isinstance(raw, bool):
        return "bool"
    if isinstance(raw, dict):
        return "map[string]interface {}"
    return {str: "string", int: "int64", float: "float64", list: "[]interface {}"}[type(raw)]


def mismatch(value: Value, wanted: str) -> ConfigError:
    """The error of a value that is no `wanted`."""
    return value.error(f"interface conversion: interface {{}} is {kind_of(value)}, not {wanted}")


def as_text(value: Value) -> str:
    """A string. A number is none: of `007` or `5k` nobody knows any more how it was written."""
    if isinstance(value.raw, int | float) and not isinstance(value.raw, bool):
        raise mismatch(value, "string: a text that looks like a number needs quotes")
    if not isinstance(value.raw, str):
        raise mismatch(value, "string")
    return value.raw


def plain_text(value: Value) -> str:
    """Whatever it is, for an error."""
    return str(value.plain())


def as_flag(value: Value) -> bool:
    """True or false."""
    if not isinstance(value.raw, bool):
        raise mismatch(value, "bool")
    return value.raw


def as_integer(value: Value) -> int:
    """A number of 64 bits with its sign."""
    if isinstance(value.raw, bool) or not isinstance(value.raw, int):
        raise mismatch(value, "int64")
    if not -(2**63) <= value.raw < 2**63:
        raise value.error(f"{value.raw} does not fit in 64 bits")
    return value.raw


def as_number(value: Value) -> float:
    """An integer or a fraction."""
    if isinstance(value.raw, bool) or not isinstance(value.raw, int | float):
        raise mismatch(value, "float64")
    return value.raw


_STORAGE = re.compile(r"(-?\d+) *([kmgt]?)(?:i?b)?\Z", re.IGNORECASE)


def as_size(value: Value) -> int:
    """An amount of storage; as a quoted string its units are powers of 1024."""
    if not isinstance(value.raw, str):
        return as_integer(value)
    match = _STORAGE.match(value.raw)
    if match is None:
        raise value.error(f'"{value.raw}" is not a size')
    power = " kmgt".index(match[2].lower() or " ")
    return int(match[1]) * (1 << 10 * power)


def as_list(value: Value) -> list[Value]:
    """The elements of an array."""
    if not isinstance(value.raw, list):
        raise value.error(f"Expected an array, got {kind_of(value)}")
    return value.raw


def as_routes(value: Value) -> tuple[RouteUrl, ...]:
    """Where peers listen: an array of URLs."""
    if not isinstance(value.raw, list):
        raise mismatch(value, "[]interface {}")
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
        raise value.error(f"Expected map entries for {what.rstrip('.')}, got {kind_of(value)}")
    return value.raw


def as_host_port(value: Value) -> tuple[str | None, int]:
    """`host:port`, `:port` or a bare port number."""
    if isinstance(value.raw, int) and not isinstance(value.raw, bool):
        return None, value.raw
    text = as_text(value)
    host, colon, port = text.rpartition(":")
    if not colon:
        raise value.error(f'could not parse address string "{text}"')
    if not re.fullmatch(r"-?\d+", port):
        raise value.error(f'could not parse port "{port}"')
    return host.strip("[]"), int(port)


def _subjects(value: Value, with_queue: bool) -> list[bytes]:
    entries = value.raw if isinstance(value.raw, list) else [value]
    found = []
    for entry in entries:
        text = as_text(entry)
        words = text.split()
        if not words or len(words) > (2 if with_queue else 1) or not _is_subject(words[0]):
            raise entry.error(f'subject "{text}" is not a valid subject')
        found.append(" ".join(words).encode())
    return found


def _is_subject(subject: str) -> bool:
    tokens = subject.split(".")
    return all(tokens) and ">" not in tokens[:-1]


def as_allow_deny(value: Value, with_queue: bool) -> tuple[list[bytes] | None, list[bytes]]:
    """A subject, a list of them, or `{allow: ..., deny: ...}`."""
    if not isinstance(value.raw, dict):
        return _subjects(value, with_queue), []
    allow: list[bytes] | None = None
    deny: list[bytes] = []
    for key, child in value.raw.items():
        if key.lower() == "allow":
            allow = _subjects(child, with_queue)
        elif key.lower() == "deny":
            deny = _subjects(child, with_queue)
        elif not child.is_referred_to:
            raise child.error(f'unknown field "{key}"')
    return allow, deny
