"""`streamctl kv`: buckets of keys and values (ADR-8), which are streams underneath."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

import click

from streamd.ctl.asset_requests import NO_MESSAGE
from streamd.ctl.buckets import BucketKind, bucket_options
from streamd.ctl.display import (
    Column,
    Document,
    Field,
    counts,
    say,
    show_data,
    show_fields,
    show_item,
    show_rows,
    sizes,
)
from streamd.ctl.failures import ApiError, CtlError, unusable
from streamd.ctl.message_display import Shown, payload_lines, stored_message
from streamd.ctl.name_completion import KV_NAME
from streamd.ctl.nats_link import Link, decoded
from streamd.ctl.pulling import follow
from streamd.ctl.quantities import (
    clock_text,
    count_text,
    parse_size,
    parse_span,
    span_text,
)
from streamd.ctl.questions import confirm, yes_option
from streamd.ctl.verbs import VerbGroup, wire_verb

_KEY: Final = re.compile(r"[-/_=a-zA-Z0-9]+(?:\.[-/_=a-zA-Z0-9]+)*")
_WRONG_LAST: Final = (10071, 10164)
_BUCKETS: Final = BucketKind("KV_", "streamctl kv list")
HISTORY_MAX: Final = 64


@click.group("kv", cls=VerbGroup)
def command_kv() -> None:
    """Use buckets of keys and values."""


bucket_argument = click.argument("bucket", type=KV_NAME)
key_argument = click.argument("key")


def _subject(bucket: str, key: str) -> str:
    _BUCKETS.stream(bucket)
    if not _KEY.fullmatch(key):
        raise unusable(f"{key!r} is no key: letters, digits, - / _ = and inner dots")
    return f"$KV.{bucket}.{key}"


def _bucket_row(info: dict[str, Any]) -> dict[str, Any]:
    config, state = info["config"], info["state"]
    return {
        "bucket": _BUCKETS.bucket(info),
        "values": state["messages"],
        "keys": state.get("num_subjects", 0),
        "bytes": state["bytes"],
        "history": config.get("max_msgs_per_subject"),
        "ttl_ns": config.get("max_age") or 0,
        "replicas": config["num_replicas"],
        "storage": config["storage"],
    }


_BUCKET_COLUMNS = (
    Column("bucket", "bucket"),
    *counts("keys", "values"),
    *sizes("bytes"),
    Column("history", "history", is_number=True),
    Column("ttl_ns", "ttl", lambda ns: span_text(ns) if ns else "none", is_number=True),
    Column("replicas", "copies", is_number=True),
    Column("storage", "storage"),
)


@wire_verb(command_kv, "list", example="streamctl kv list")
async def list_buckets(link: Link) -> None:
    """List the buckets."""
    rows = [_bucket_row(info) for info in await _BUCKETS.listed(link, "$KV.*.>")]
    show_rows(link.settings, rows, _BUCKET_COLUMNS, none="no buckets: streamctl kv add NAME")


@wire_verb(command_kv, "info", example="streamctl kv info profiles")
@bucket_argument
async def info(link: Link, bucket: str) -> None:
    """Show a bucket's size and configuration."""
    row = _bucket_row(await _BUCKETS.info(link, bucket))
    lines = [Field(each.title, each.text(row[each.key])) for each in _BUCKET_COLUMNS[1:]]
    show_fields(link.settings, row, [(f"Bucket {bucket}", lines)])


@wire_verb(command_kv, "add", example="streamctl kv add profiles --history 5 --replicas 3")
@bucket_argument
@click.option(
    "--history",
    type=click.IntRange(1, HISTORY_MAX),
    default=1,
    show_default=True,
    help="Values that are kept of each key.",
)
@click.option("--max-value-size", default="-1", help="Largest value.")
@bucket_options("Time after which values go, as 1h.")
async def add(
    link: Link,
    bucket: str,
    history: int,
    ttl: str,
    replicas: int,
    storage: str,
    max_bytes: str,
    max_value_size: str,
    description: str,
) -> None:
    """Create a bucket."""
    stream, age = _BUCKETS.stream(bucket), parse_span(ttl)
    window = 120 * 10**9
    config = {
        "name": stream,
        "description": description,
        "subjects": [f"$KV.{bucket}.>"],
        "max_msgs_per_subject": history,
        "max_bytes": parse_size(max_bytes),
        "max_age": age,
        "max_msg_size": parse_size(max_value_size),
        "storage": storage,
        "num_replicas": replicas,
        "duplicate_window": min(age, window) if age else window,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
    }
    made = await link.api(f"STREAM.CREATE.{stream}", config)
    row = _bucket_row(made)
    lines = [Field(each.title, each.text(row[each.key])) for each in _BUCKET_COLUMNS[1:]]
    show_fields(link.settings, row, [(f"Bucket {bucket}", lines)])


def _entry(bucket: str, message: Shown) -> dict[str, Any]:
    """Return a value for programs; `operation` is PUT, DEL or PURGE."""
    from streamd.ctl.message_display import as_document

    operation = message.headers.get("KV-Operation", "PUT")
    if reason := message.headers.get("Nats-Marker-Reason"):
        operation = "DEL" if reason == "Remove" else "PURGE"
    document = as_document(message)
    return {
        "bucket": bucket,
        "key": message.subject.removeprefix(f"$KV.{bucket}."),
        "revision": message.seq,
        "time": message.time,
        "operation": operation,
        **{name: document[name] for name in ("data", "data_base64") if name in document},
    }


async def _last(link: Link, bucket: str, key: str, revision: int | None = None) -> Shown | None:
    """Return the newest message of a key, or one by its revision; None: there is none."""
    subject = _subject(bucket, key)
    body = {"last_by_subj": subject} if revision is None else {"seq": revision}
    try:
        answer = await link.api(f"STREAM.MSG.GET.{_BUCKETS.stream(bucket)}", body)
    except ApiError as err:
        if err.err_code == NO_MESSAGE:
            return None
        await _BUCKETS.info(link, bucket)
        raise
    found = stored_message(answer["message"])
    return found if found.subject == subject else None


@wire_verb(command_kv, "get", example="streamctl kv get profiles ann.email --raw")
@bucket_argument
@key_argument
@click.option("--revision", type=click.IntRange(min=1), help="That revision, not the newest.")
@click.option("--raw", is_flag=True, help="The value only, as it is.")
async def get(link: Link, bucket: str, key: str, revision: int | None, raw: bool) -> int:
    """Show the value of a key; status 1 if it has none."""
    found = await _last(link, bucket, key, revision)
    entry = None if found is None else _entry(bucket, found)
    if found is None or entry is None or (entry["operation"] != "PUT" and revision is None):
        at = f" at revision {revision}" if revision else ""
        raise CtlError(f"bucket {bucket} has no key {key!r}{at}", f"streamctl kv keys {bucket}")
    if raw:
        sys.stdout.buffer.write(found.payload)
        sys.stdout.buffer.flush()
    elif not show_data(link.settings, entry):
        say(f"{key}  revision {found.seq}  {clock_text(found.time)}  {entry['operation']}")
        for line in payload_lines(found.payload):
            say(line)
    return 0


async def _write(
    link: Link, bucket: str, key: str, value: bytes, headers: dict[str, str]
) -> dict[str, Any]:
    try:
        answer = await link.request(_subject(bucket, key), value, headers=headers or None)
    except CtlError as err:
        if str(err).startswith("nobody answers"):
            raise CtlError(f"no bucket {bucket!r}", "streamctl kv list") from None
        raise
    ack: dict[str, Any] = decoded(answer.data)
    return {"bucket": bucket, "key": key, "revision": ack["seq"]}


def _value(given: str | None) -> bytes:
    return sys.stdin.buffer.read() if given is None else given.encode()


def _told(link: Link, done: dict[str, Any]) -> None:
    if not show_data(link.settings, done):
        say(f"{done['key']}  revision {done['revision']}")


@wire_verb(command_kv, "put", example="streamctl kv put profiles ann.email ann@example.org")
@bucket_argument
@key_argument
@click.argument("value", required=False)
async def put(link: Link, bucket: str, key: str, value: str | None) -> None:
    """Set the value of a key: VALUE, or standard input where it is left out."""
    _told(link, await _write(link, bucket, key, _value(value), {}))


@wire_verb(command_kv, "create", example="streamctl kv create locks leader node-1")
@bucket_argument
@key_argument
@click.argument("value", required=False)
async def create(link: Link, bucket: str, key: str, value: str | None) -> None:
    """Set the value of a key that has none; status 1 if it has one."""
    content = _value(value)
    expected = 0
    for _ in range(2):
        headers = {"Nats-Expected-Last-Subject-Sequence": str(expected)}
        try:
            _told(link, await _write(link, bucket, key, content, headers))
            return
        except ApiError as err:
            if err.err_code not in _WRONG_LAST:
                raise
        found = await _last(link, bucket, key)
        if found is None or _entry(bucket, found)["operation"] == "PUT":
            break
        expected = found.seq  # a deleted key counts as none
    raise CtlError(
        f"key {key!r} of bucket {bucket} has a value", f"streamctl kv get {bucket} {key}"
    )


@wire_verb(command_kv, "update", example="streamctl kv update locks leader node-2 --revision 17")
@bucket_argument
@key_argument
@click.argument("value", required=False)
@click.option("--revision", type=click.IntRange(min=0), required=True, help="Revision it has.")
async def update(link: Link, bucket: str, key: str, value: str | None, revision: int) -> None:
    """Set the value of a key if it is still at a revision; status 1 if it is not."""
    headers = {"Nats-Expected-Last-Subject-Sequence": str(revision)}
    try:
        _told(link, await _write(link, bucket, key, _value(value), headers))
    except ApiError as err:
        if err.err_code in _WRONG_LAST:
            found = await _last(link, bucket, key)
            now = f"at revision {found.seq}" if found else "not there"
            raise CtlError(f"key {key!r} of bucket {bucket} is {now}, not at {revision}") from None
        raise


@wire_verb(command_kv, "delete", example="streamctl kv delete profiles ann.email")
@bucket_argument
@key_argument
async def delete(link: Link, bucket: str, key: str) -> None:
    """Delete a key; its history stays."""
    _told(link, await _write(link, bucket, key, b"", {"KV-Operation": "DEL"}))


@wire_verb(command_kv, "purge", example="streamctl kv purge profiles ann.email --yes")
@bucket_argument
@key_argument
@yes_option
async def purge(link: Link, bucket: str, key: str, yes: bool) -> None:
    """Delete a key, and its history with it."""
    _subject(bucket, key)
    confirm(f"purge key {key} of bucket {bucket}, with its history", yes)
    headers = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
    _told(link, await _write(link, bucket, key, b"", headers))


@wire_verb(command_kv, "remove", example="streamctl kv remove profiles --yes")
@bucket_argument
@yes_option
async def remove(link: Link, bucket: str, yes: bool) -> None:
    """Remove a bucket, with all of its values."""
    found = _bucket_row(await _BUCKETS.info(link, bucket))
    await _BUCKETS.remove(link, bucket, f"{count_text(found['keys'])} keys", yes)


async def _entries(link: Link, bucket: str, pattern: str, deliver: str) -> list[dict[str, Any]]:
    await _BUCKETS.info(link, bucket)
    config = {"filter_subject": f"$KV.{bucket}.{pattern}", "deliver_policy": deliver}
    messages = follow(link, _BUCKETS.stream(bucket), config, is_endless=False)
    return [_entry(bucket, message) async for message, _ in messages]


def _value_text(entry: Document) -> str:
    text = entry.get("data")
    return "(binary)" if text is None else text if len(text) <= 60 else f"{text[:60]}..."


_ENTRY_COLUMNS = (
    Column("key", "key"),
    Column("revision", "revision", is_number=True),
    Column("operation", "operation"),
    Column("time", "time", clock_text),
    Column("shown", "value"),
)


def _show_entries(link: Link, entries: list[dict[str, Any]], none: str) -> None:
    if show_data(link.settings, entries):
        return
    rows = [entry | {"shown": _value_text(entry)} for entry in entries]
    show_rows(link.settings, rows, _ENTRY_COLUMNS, none=none)


@wire_verb(command_kv, "keys", example="streamctl kv keys profiles 'ann.>'")
@bucket_argument
@click.argument("pattern", default=">")
@click.option("--values", is_flag=True, help="Their values too.")
async def keys(link: Link, bucket: str, pattern: str, values: bool) -> None:
    """List the keys that have values."""
    found = await _entries(link, bucket, pattern, "last_per_subject")
    live = sorted(
        (e for e in found if e["operation"] == "PUT"), key=lambda entry: str(entry["key"])
    )
    if values:
        _show_entries(link, live, f"bucket {bucket} has no keys")
    elif not show_data(link.settings, [entry["key"] for entry in live]):
        for entry in live:
            say(entry["key"])


@wire_verb(command_kv, "history", example="streamctl kv history profiles ann.email")
@bucket_argument
@key_argument
async def history(link: Link, bucket: str, key: str) -> None:
    """Show the values that a key had, as far as the bucket keeps them."""
    _subject(bucket, key)
    entries = await _entries(link, bucket, key, "all")
    _show_entries(link, entries, f"bucket {bucket} has no key {key!r}")


@wire_verb(command_kv, "watch", example="streamctl kv watch profiles 'ann.>'", is_long=True)
@bucket_argument
@click.argument("pattern", default=">")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many changes.")
@click.option("--new", is_flag=True, help="Only changes from now on.")
async def watch(link: Link, bucket: str, pattern: str, count: int | None, new: bool) -> None:
    """Show the values of keys, and each change of them, until Ctrl-C."""
    await _BUCKETS.info(link, bucket)
    config = {
        "filter_subject": f"$KV.{bucket}.{pattern}",
        "deliver_policy": "new" if new else "last_per_subject",
    }
    seen = 0
    async for message, _ in follow(link, _BUCKETS.stream(bucket), config, is_endless=True):
        entry = _entry(bucket, message)
        if not show_item(link.settings, entry):
            say(f"[{message.seq}] {entry['operation']} {entry['key']}: {_value_text(entry)}")
        seen += 1
        if seen == count:
            return
