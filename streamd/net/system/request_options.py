"""Options of requests: JSON with typed fields, and the filter that says which servers answer.

Texts of refusals are nats-server's, of Go's JSON decoder; each kind of request has a struct there,
whose name they show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from streamd.api.decoding import FieldType, Shape, decode_one
from streamd.errors import JsError
from streamd.net.monitoring.query import Query
from streamd.net.system.server_description import ServerDescription

Asked = Mapping[str, Any]
"""Options of a request by the names of their fields; those that are not given are absent."""

_FILTER: Final[dict[str, FieldType]] = {
    "server_name": "string",
    "cluster": "string",
    "host": "string",
    "exact_match": "bool",
    "tags": ["string"],
    "domain": "string",
}
_OFFSET: Final = re.compile(r" at offset \d+$")
_CUT_SHORT: Final = "unexpected EOF"


class BadOptions(Exception):
    """Options that cannot be read; the text says why."""


def event_shape(kind: str, fields: Mapping[str, FieldType]) -> Shape:
    """Return the shape of a kind of request: its own fields, and those of the filter."""
    return Shape(f"{kind}EventOptions", {**fields, **_FILTER})


def read(body: bytes, shape: Shape) -> Asked:
    """Return the options in `body`; none at all, if it is empty. Raises BadOptions."""
    if not body:
        return {}
    try:
        return decode_one(body, shape)
    except JsError as err:
        text = _OFFSET.sub("", err.description.removeprefix("invalid JSON: "))
        raise BadOptions(text.replace(_CUT_SHORT, "unexpected end of JSON input")) from None


def is_meant(server: ServerDescription, asked: Asked) -> bool:
    """Return True if the filter of a request is for this server: names are parts of its own, or
    with `exact_match` the whole; it has all the tags."""
    is_exact = bool(asked.get("exact_match"))
    for key, own in (
        ("server_name", server.server_name),
        ("host", server.host),
        ("cluster", server.cluster),
    ):
        wanted = asked.get(key, "")
        if wanted and (wanted != own if is_exact else wanted not in own):
            return False
    if any(tag.lower().strip() not in server.tags for tag in asked.get("tags", ())):
        return False
    domain = asked.get("domain", "")
    return not domain or domain == server.domain


def query_of(asked: Asked, names: Mapping[str, str]) -> Query:
    """Return what the monitoring port would be asked; `names` are its names of the fields."""
    found = {}
    for field, name in names.items():
        value = asked.get(field)
        if value:
            found[name] = "1" if value is True else str(value)
    return found
