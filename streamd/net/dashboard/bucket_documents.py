"""Documents about buckets: streams that clients use as key-value stores or object stores.

Their names, and the subjects of their keys, are a convention of NATS clients: `KV_<bucket>` with
`$KV.<bucket>.<key>`, and `OBJ_<bucket>` with `$O.<bucket>.M.<base64 of the name>`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from streamd.api.times import format_ns
from streamd.limits import DASHBOARD_SCAN_STEP
from streamd.machine.indexes.subject_table import LAST
from streamd.machine.message_headers import get
from streamd.machine.meta import StreamAsset
from streamd.net.dashboard.client_json import read_object
from streamd.net.dashboard.list_pages import list_document, read_list_query, select_page
from streamd.net.dashboard.message_pages import fitting, message_item, read_messages
from streamd.net.dashboard.peer_questions import NotFound
from streamd.net.dashboard.stream_table import StreamNumbers
from streamd.net.monitoring.sliced_pages import Slicer, Steps, looked_at
from streamd.node.ports import StreamHandle
from streamd.types import Document, StoredMsg

KEY_VALUE: Final = "KV_"
OBJECTS: Final = "OBJ_"
KEY_SORTS: Final = ("key", "revision")
OBJECT_STORE: Final = "objects"
BUCKET_SORTS: Final = ("account", "name", "kind", "bytes", "messages", "history", "ttl_ns")
_TRIES: Final = 3
_WITHOUT_LIMIT: Final = 1 << 63  # all revisions are kept, or for ever: more than any limit
_OPERATIONS: Final = {b"DEL": "delete", b"PURGE": "purge"}
_MARKERS: Final = {b"MaxAge": "expired", b"Purge": "purge", b"Remove": "delete"}


def is_bucket(asset: StreamAsset) -> bool:
    """True of a stream that is a bucket by its name."""
    return asset.name.startswith((KEY_VALUE, OBJECTS))


def bucket_name(asset: StreamAsset) -> str:
    """Return the name by which clients know a bucket."""
    return asset.name.partition("_")[2]


def bucket_item(asset: StreamAsset, numbers: StreamNumbers) -> Document:
    """Return the row of a bucket."""
    config = asset.config
    return {
        "account": asset.account,
        "name": bucket_name(asset),
        "kind": _kind(asset),
        "stream": asset.name,
        "description": config.get("description", ""),
        "messages": numbers.messages,
        "bytes": numbers.bytes,
        "history": config.get("max_msgs_per_subject", -1),
        "ttl_ns": config.get("max_age", 0),
        "last_time": format_ns(numbers.last_ns) if numbers.last_ns else "",
    }


def sort_keys() -> dict[str, Callable[[StreamAsset], str | int]]:
    """Return by field what buckets are sorted by, beside what streams are."""

    def number(asset: StreamAsset, name: str) -> int:
        value = asset.config.get(name)
        return value if isinstance(value, int) and value > 0 else _WITHOUT_LIMIT

    return {
        "name": bucket_name,
        "kind": _kind,
        "history": lambda asset: number(asset, "max_msgs_per_subject"),
        "ttl_ns": lambda asset: number(asset, "max_age"),
    }


def _kind(asset: StreamAsset) -> str:
    return "key-value" if asset.name.startswith(KEY_VALUE) else OBJECT_STORE


def _prefix(handle: StreamHandle) -> bytes:
    """Return how the subjects of a bucket's keys begin."""
    bucket = handle.name.partition("_")[2].encode()
    return b"$KV.%b." % bucket if handle.name.startswith(KEY_VALUE) else b"$O.%b.M." % bucket


def _key_text(handle: StreamHandle, subject: bytes, prefix: bytes) -> str:
    """Return the key of a subject as clients name it."""
    key = subject[len(prefix) :]
    if handle.name.startswith(OBJECTS):
        with suppress(ValueError):  # no client's; shown as it is
            key = base64.urlsafe_b64decode(key)
    return key.decode(errors="replace")


def names_with(rows: Mapping[bytes, object], prefix: bytes) -> Steps[list[bytes]]:
    """Collect the subjects that begin with `prefix`, in no order. While keys come or go between two
    steps it begins anew; if they keep doing so, all are taken in one step, at 20 us a thousand."""
    for _ in range(_TRIES):
        found: list[bytes] = []
        walk = iter(rows)
        try:
            while chunk := list(islice(walk, DASHBOARD_SCAN_STEP)):
                found += [name for name in chunk if name.startswith(prefix)]
                yield
        except RuntimeError:  # "dictionary changed size during iteration"
            continue
        return found
    return [name for name in list(rows) if name.startswith(prefix)]


async def key_page(handle: StreamHandle, query: Mapping[str, str], slicer: Slicer) -> Document:
    """Build a page of a bucket's keys."""
    wanted = read_list_query(query, KEY_SORTS)
    if not wanted.sort:
        wanted = read_list_query({**query, "sort": "key"}, KEY_SORTS)
    prefix, index = _prefix(handle), handle.machine.index
    rows = index.subjects.rows

    def revision(name: bytes) -> int:
        row = rows.get(name)
        return int(row[LAST]) if row is not None else 0

    keys = {"key": lambda name: name.decode(errors="replace"), "revision": revision}
    names = await slicer.wait(names_with(rows, prefix))
    page, total = await slicer.wait(
        select_page(names, wanted, keys, lambda name: _key_text(handle, name, prefix))
    )
    seqs = [seq for name in page if (seq := index.lookup.last_of(name))]
    items: list[Document] = []
    while seqs:  # values may be long, and nothing of them is kept
        part = fitting(index, seqs)
        messages = await read_messages(handle, part)
        items += await slicer.wait(_key_items(handle, messages, prefix))
        del seqs[: len(part)]
    return list_document(iter(items), total, wanted)


async def key_value(handle: StreamHandle, key: str) -> Document:
    """Build what a key holds. Raises NotFound."""
    prefix = _prefix(handle)
    name = key.encode(errors="replace")
    if handle.name.startswith(OBJECTS):
        name = base64.urlsafe_b64encode(name)
    index = handle.machine.index
    seq = index.lookup.last_of(prefix + name)
    messages = await read_messages(handle, [seq]) if seq else []
    if not messages:
        raise NotFound(f"there is no key {key[:200]!r} in {handle.name}")
    return _key_item(handle, messages[0], prefix) | message_item(messages[0])


def _key_items(
    handle: StreamHandle, messages: Sequence[StoredMsg], prefix: bytes
) -> Steps[list[Document]]:
    found = []
    for message in looked_at(messages, 1):  # that of an object is a document to be read
        if message is None:
            yield
        else:
            found.append(_key_item(handle, message, prefix))
    return found


def _key_item(handle: StreamHandle, message: StoredMsg, prefix: bytes) -> Document:
    size, operation = len(message.payload), _operation(message)
    if handle.name.startswith(OBJECTS):  # its meta message says what the object is
        facts = read_object(message.payload) or {}
        stored = facts.get("size")
        size = stored if isinstance(stored, int) else 0
        if facts.get("deleted") is True:
            operation = "delete"
    return {
        "key": _key_text(handle, message.subject, prefix),
        "revision": message.seq,
        "operation": operation,
        "size": size,
        "time": format_ns(message.ts),
    }


def _operation(message: StoredMsg) -> str:
    operation = _OPERATIONS.get(get(message.headers, b"KV-Operation") or b"")
    if operation is None:
        operation = _MARKERS.get(get(message.headers, b"Nats-Marker-Reason") or b"", "put")
    return operation
