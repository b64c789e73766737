"""Surface of streamd, read from its code: requests, fields, keys, headers, errors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from streamd import errors
from streamd.api import router, shapes
from streamd.api.account_operations import AccountOperations
from streamd.api.decoding import Enum, FieldType, Shape
from streamd.config import key_blocks, reader
from streamd.config.grammar import Value, parse
from streamd.errors import ConfigError, JsErrorKind
from streamd.net.system import account_requests, server_requests

_SOURCE: Final = Path(__file__).parents[3] / "streamd"
_HEADER: Final = re.compile(
    r"(?:Nats-[A-Z][A-Za-z-]*[A-Za-z]|KV-Operation|Traceparent)(?![A-Za-z-])", re.ASCII
)


class Key(NamedTuple):
    """A key of the configuration: the block it is in, its names, and whether it is served."""

    block: str
    names: str  # `a|b`: both are it
    service: str  # "served", "ignored" with a warning, or "refused"

    @property
    def path(self) -> str:
        return f"{self.block}{self.names.partition('|')[0]}"


# --- the JetStream API --------------------------------------------------------------------------

REQUEST_SHAPES: Final[dict[str, Shape]] = {
    "STREAM.NAMES": shapes.STREAM_NAMES,
    "STREAM.LIST": shapes.STREAM_LIST,
    "STREAM.INFO": shapes.STREAM_INFO,
    "STREAM.PURGE": shapes.STREAM_PURGE,
    "STREAM.SNAPSHOT": shapes.STREAM_SNAPSHOT,
    "STREAM.MSG.GET": shapes.MSG_GET,
    "STREAM.MSG.DELETE": shapes.MSG_DELETE,
    "STREAM.PEER.REMOVE": shapes.PEER_REMOVE,
    "STREAM.LEADER.STEPDOWN": shapes.STEP_DOWN,
    "CONSUMER.NAMES": shapes.CONSUMERS,
    "CONSUMER.LIST": shapes.CONSUMERS,
    "CONSUMER.PAUSE": shapes.CONSUMER_PAUSE,
    "CONSUMER.UNPIN": shapes.CONSUMER_UNPIN,
    "CONSUMER.RESET": shapes.CONSUMER_RESET,
    "SERVER.REMOVE": shapes.SERVER_REMOVE,
    "SERVER.EVACUATE": shapes.SERVER_REMOVE,
    "META.RESCUE": shapes.META_RESCUE,
    "ACCOUNT.STREAM.MOVE": shapes.STREAM_MOVE,
}
"""Fields of requests that are no configuration."""


@cache
def requests() -> frozenset[str]:
    """Requests of `$JS.API` that are answered, without the names of streams and consumers."""
    nobody = AccountOperations(cast(Any, None), list)  # that serve is not called
    return frozenset({*router._table(nobody, is_clustered=True), "DIRECT.GET"})


def stream_fields() -> list[str]:
    """Fields of a stream's configuration, those of parts of it by their way there."""
    return list(_flat(shapes.STREAM_CONFIG_FIELDS))


def consumer_fields() -> list[str]:
    return list(_flat(shapes.CONSUMER_CONFIG_FIELDS))


def request_fields() -> list[str]:
    """Fields of the other requests, as `STREAM.PURGE seq`."""
    return [
        f"{request} {field}"
        for request, shape in REQUEST_SHAPES.items()
        for field in _flat(dict(shape.fields))
    ]


def _flat(fields: dict[str, FieldType], way: str = "") -> Iterator[str]:
    for name, kind in fields.items():
        yield way + name
        inner = kind[0] if isinstance(kind, list) else kind
        if isinstance(inner, Shape):
            yield from _flat(dict(inner.fields), f"{way}{name}.")


def words_of(field: str) -> list[str]:
    """Words that a field may have, if there is a fixed set of them."""
    kind = (shapes.STREAM_CONFIG_FIELDS | shapes.CONSUMER_CONFIG_FIELDS).get(field)
    return [word for word in kind.values if word] if isinstance(kind, Enum) else []


@cache
def error_kinds() -> dict[JsErrorKind, str]:
    """The table of errors, with the constants' names."""
    return {kind: name for name, kind in vars(errors).items() if isinstance(kind, JsErrorKind)}


@cache
def returned_errors() -> frozenset[str]:
    """Constants of the table of errors that the code beside it names."""
    names = set(error_kinds().values())
    table = _SOURCE / "errors.py"
    beside = "\n".join(text for path, text in _texts().items() if path != table)
    found = names & set(re.findall(r"\b[A-Z][A-Z_]+\b", beside))
    tree = ast.parse(_texts()[table])
    for part in tree.body:
        if isinstance(part, ast.ClassDef | ast.FunctionDef):
            found |= names & {at.id for at in ast.walk(part) if isinstance(at, ast.Name)}
    return frozenset(found)


@cache
def headers() -> frozenset[str]:
    """Headers that the code names outside its comments and docstrings."""
    found: set[str] = set()
    for path, text in _texts().items():
        if "Nats-" in text or "KV-Operation" in text or "raceparent" in text:
            found.update(_HEADER.findall(_constants_of(path)))
    return frozenset(found - {"Nats-Wrong-Pin-Id"})  # that is the text of a status


@cache
def _texts() -> dict[Path, str]:
    return {path: path.read_text() for path in _SOURCE.rglob("*.py")}


def sends(status: str) -> bool:
    """True if the code names a status outside its comments and docstrings, with its number."""
    wanted = status.rstrip(" *")
    if wanted.isdigit():
        wanted = f"NATS/1.0 {wanted}"
    return any(wanted in _constants_of(path) for path, text in _texts().items() if wanted in text)


@cache
def _constants_of(path: Path) -> str:
    return "\n".join(_constants(ast.parse(_texts()[path])))


def _constants(tree: ast.Module) -> Iterator[str]:
    texts = {
        id(part.body[0].value)
        for part in ast.walk(tree)
        if isinstance(part, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and part.body
        and isinstance(part.body[0], ast.Expr)
    }
    for part in ast.walk(tree):
        if isinstance(part, ast.Constant) and id(part) not in texts:
            if isinstance(part.value, bytes):
                yield part.value.decode("latin-1")
            elif isinstance(part.value, str):
                yield part.value


# --- the system account -------------------------------------------------------------------------


class _Listing:
    """Stands for the subscriptions of an account, and for whatever else is only handed on."""

    def __init__(self) -> None:
        self.subjects: list[str] = []

    def subscribe_internal(self, subject: bytes, *_: object, **__: object) -> None:
        self.subjects.append(subject.decode())

    @property
    def server_id(self) -> str:
        return "*"

    def __getattr__(self, name: str) -> Any:
        return self


@cache
def system_subjects() -> frozenset[str]:
    """Requests that the system account answers, or an account about itself; `*` for names."""
    listing = _Listing()
    given: Any = listing
    server_requests.ServerRequests(given, given, given, given, given)
    account_requests.AccountRequests(given, given, given, given)
    text = "\n".join(
        path.read_text()
        for path in (_SOURCE / "net").rglob("*.py")
        if path.parent.name in ("system", "account_tokens")
    )
    others = set(re.findall(r'= b"(\$SYS\.(?:DEBUG|REQ)\.[A-Z.*]+[A-Z])"', text))
    claims = _SOURCE / "net/account_tokens/claims_requests.py"
    starts = dict(re.findall(r'(?m)^(_ACCOUNT|_ALL): Final = b"([^"]+)"', claims.read_text()))
    for start, name in re.findall(r'(_ACCOUNT|_ALL) \+ b"([A-Z]+)"', claims.read_text()):
        others.add(starts[start] + name)
    return frozenset(subject.replace(".PING.", ".*.") for subject in (*listing.subjects, *others))


# --- the configuration --------------------------------------------------------------------------

BLOCKS: Final[dict[str, str]] = {
    "": "port: 4222, {}",
    "authorization.": "authorization {{ {} }}",
    "authorization.users.": "authorization {{ users: [{{ user: a, {} }}] }}",
    "permissions.": "authorization {{ users: [{{ user: a, permissions: {{ {} }} }}] }}",
    "permissions.allow_responses.": (
        "authorization {{ users: [{{ user: a, permissions: {{ allow_responses: {{ {} }} }} }}] }}"
    ),
    "authorization.auth_callout.": "authorization {{ auth_callout {{ {} }} }}",
    "accounts.A.": "accounts {{ A {{ {} }} }}",
    "accounts.A.jetstream.": "accounts {{ A {{ jetstream {{ {} }} }} }}",
    "accounts.A.limits.": "accounts {{ A {{ limits {{ {} }} }} }}",
    "accounts.A.exports.": "accounts {{ A {{ exports: [{{ stream: x, {} }}] }} }}",
    "accounts.A.imports.": (
        "accounts {{ A {{ imports: [{{ stream: {{ account: B, subject: x }}, {} }}] }}, B {{}} }}"
    ),
    "accounts.A.imports.stream.": "accounts {{ A {{ imports: [{{ stream: {{ {} }} }}] }} }}",
    "accounts.A.msg_trace.": "accounts {{ A {{ msg_trace: {{ {} }} }} }}",
    "mappings.": "mappings: {{ a: [{{ destination: b, weight: 1, {} }}] }}",
    "tls.": "tls {{ {} }}",
    "tls.certs.": "tls {{ certs: [{{ {} }}] }}",
    "jetstream.": "jetstream {{ {} }}",
    "jetstream.limits.": "jetstream {{ limits {{ {} }} }}",
    "jetstream.limits.batch.": "jetstream {{ limits {{ batch {{ {} }} }} }}",
    "cluster.": "cluster {{ {} }}",
    "cluster.authorization.": "cluster {{ authorization {{ {} }} }}",
    "websocket.": "websocket {{ {} }}",
    "websocket.authorization.": "websocket {{ authorization {{ {} }} }}",
    "leafnodes.": "leafnodes {{ {} }}",
    "leafnodes.authorization.": "leafnodes {{ authorization {{ {} }} }}",
    "leafnodes.authorization.users.": "leafnodes {{ authorization {{ users: [{{ {} }}] }} }}",
    "leafnodes.compression.": "leafnodes {{ compression {{ {} }} }}",
    "leafnodes.remotes.": "leafnodes {{ remotes: [{{ {} }}] }}",
}
"""Each block of the configuration, as text into which one more key goes."""

_PATHS: Final = {  # as the reader calls them, where that is shorter
    "authorization.users.": "users.",
    "permissions.allow_responses.": "allow_responses.",
    "accounts.A.jetstream.": "jetstream.",
    "accounts.A.limits.": "limits.",
    "accounts.A.exports.": "exports.",
    "accounts.A.imports.": "imports.",
    "accounts.A.imports.stream.": "imports.stream.",
    "accounts.A.msg_trace.": "msg_trace.",
}
_OF_RESOLVER: Final = "type dir limit ttl interval allow_delete hard_delete timeout"


@cache
def config_keys() -> tuple[Key, ...]:
    """Keys of the configuration, block by block, as the reader of each block has them."""
    found: list[Key] = []
    for block, text in BLOCKS.items():
        setters, unserved = _read(text, _PATHS.get(block, block))
        found += [Key(block, names, "served") for names in setters]
        found += [Key(block, name, "ignored") for name in sorted(unserved.additional)]
        found += [Key(block, name, "refused") for name in sorted(unserved.protecting)]
    return (*found, *(Key("resolver.", name, "served") for name in _OF_RESOLVER.split()))


def _read(text: str, path: str) -> tuple[list[str], key_blocks.Unserved]:
    """Return the names of a block's setters, as its reader hands them on, and its unserved keys."""
    found: list[tuple[list[str], key_blocks.Unserved]] = []
    read = key_blocks.KeyBlocks.read

    def told(
        self: key_blocks.KeyBlocks,
        block: Value,
        setters: dict[str, key_blocks.Setter],
        at: str = "",
        unserved: key_blocks.Unserved = key_blocks.Unserved(),  # noqa: B008
        *,
        unknown: str = "",
    ) -> None:
        if at == path:
            found.append((list(setters), unserved))
        read(self, block, setters, at, unserved, unknown=unknown)

    key_blocks.KeyBlocks.read = told  # type: ignore[method-assign]
    try:
        reader.from_tree(parse(text.format("")))
    except ConfigError:
        pass  # it lacks what such a block needs
    finally:
        key_blocks.KeyBlocks.read = read  # type: ignore[method-assign]
    assert found, f"{path}: no reader of {text}"
    return found[0]
