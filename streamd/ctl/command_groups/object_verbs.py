"""`streamctl object`: buckets of files (ADR-20), which are streams underneath."""

from __future__ import annotations

import base64
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import click

from streamd.ctl.asset_requests import NO_MESSAGE
from streamd.ctl.buckets import BucketKind, bucket_options
from streamd.ctl.display import (
    Column,
    Field,
    counts,
    note,
    say,
    show_data,
    show_fields,
    show_rows,
    sizes,
)
from streamd.ctl.failures import ApiError, CtlError, unusable
from streamd.ctl.message_display import stored_message
from streamd.ctl.name_completion import OBJECT_BUCKET_NAME
from streamd.ctl.nats_link import Link, decoded
from streamd.ctl.progress_bar import progress_bar
from streamd.ctl.pulling import follow
from streamd.ctl.quantities import clock_text, parse_size, parse_span, size_text
from streamd.ctl.questions import confirm, yes_option
from streamd.ctl.verbs import VerbGroup, wire_verb

_BUCKETS: Final = BucketKind("OBJ_", "streamctl object buckets")
_CHUNK_BYTES: Final = 128 * 1024
_DIGEST: Final = "SHA-256="


@click.group("object", cls=VerbGroup)
def command_object() -> None:
    """Use buckets of files."""


bucket_argument = click.argument("bucket", type=OBJECT_BUCKET_NAME)


def _meta_subject(bucket: str, name: str) -> str:
    if not name:
        raise unusable("'' is no name of an object")
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


@wire_verb(command_object, "buckets", example="streamctl object buckets")
async def buckets(link: Link) -> None:
    """List the buckets."""
    infos = await _BUCKETS.listed(link, "$O.*.C.>")
    rows = [
        {
            "bucket": _BUCKETS.bucket(info),
            "bytes": info["state"]["bytes"],
            "replicas": info["config"]["num_replicas"],
            "storage": info["config"]["storage"],
            "sealed": bool(info["config"].get("sealed")),
        }
        for info in infos
    ]
    columns = (
        Column("bucket", "bucket"),
        *sizes("bytes"),
        Column("replicas", "copies", is_number=True),
        Column("storage", "storage"),
        Column("sealed", "sealed", lambda is_sealed: "yes" if is_sealed else "no"),
    )
    show_rows(link.settings, rows, columns, none="no buckets: streamctl object add NAME")


@wire_verb(command_object, "add", example="streamctl object add models --replicas 3")
@bucket_argument
@bucket_options("Time after which objects go, as 30d.")
async def add(
    link: Link,
    bucket: str,
    replicas: int,
    storage: str,
    max_bytes: str,
    ttl: str,
    description: str,
) -> None:
    """Create a bucket."""
    stream = _BUCKETS.stream(bucket)
    config = {
        "name": stream,
        "description": description,
        "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
        "max_age": parse_span(ttl),
        "max_bytes": parse_size(max_bytes),
        "storage": storage,
        "num_replicas": replicas,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
    }
    await link.api(f"STREAM.CREATE.{stream}", config)
    if not show_data(link.settings, {"bucket": bucket, "stream": stream}):
        say(f"bucket {bucket} is stream {stream}")


@wire_verb(command_object, "remove", example="streamctl object remove models --yes")
@bucket_argument
@yes_option
async def remove(link: Link, bucket: str, yes: bool) -> None:
    """Remove a bucket, with all of its objects."""
    found = await _BUCKETS.info(link, bucket)
    await _BUCKETS.remove(link, bucket, size_text(found["state"]["bytes"]), yes)


async def _meta(link: Link, bucket: str, name: str) -> dict[str, Any] | None:
    """Return what is written of an object; None: there is none of that name."""
    body = {"last_by_subj": _meta_subject(bucket, name)}
    try:
        answer = await link.api(f"STREAM.MSG.GET.{_BUCKETS.stream(bucket)}", body)
    except ApiError as err:
        if err.err_code == NO_MESSAGE:
            return None
        await _BUCKETS.info(link, bucket)
        raise
    message = stored_message(answer["message"])
    meta: dict[str, Any] = decoded(message.payload)
    return {**meta, "mtime": message.time}


async def _live(link: Link, bucket: str, name: str) -> dict[str, Any]:
    found = await _meta(link, bucket, name)
    if found is None or found.get("deleted"):
        raise CtlError(f"bucket {bucket} has no object {name!r}", f"streamctl object list {bucket}")
    return found


_FIELDS: Final = ("name", "size", "chunks", "digest", "mtime", "nuid", "description")


def _row(meta: dict[str, Any]) -> dict[str, Any]:
    row = {key: meta[key] for key in _FIELDS if key in meta}
    link = (meta.get("options") or {}).get("link")
    return row | ({"link": link} if link else {})


@wire_verb(command_object, "list", example="streamctl object list models")
@bucket_argument
async def list_objects(link: Link, bucket: str) -> None:
    """List the objects of a bucket."""
    await _BUCKETS.info(link, bucket)
    config = {"filter_subject": f"$O.{bucket}.M.>", "deliver_policy": "last_per_subject"}
    rows = []
    async for message, _ in follow(link, _BUCKETS.stream(bucket), config, is_endless=False):
        meta = decoded(message.payload)
        if not meta.get("deleted"):
            rows.append(_row({**meta, "mtime": message.time}))
    rows.sort(key=lambda row: str(row["name"]))
    columns = (
        Column("name", "name"),
        *sizes("size"),
        *counts("chunks"),
        Column("mtime", "stored", clock_text),
    )
    show_rows(link.settings, rows, columns, none=f"bucket {bucket} is empty")


@wire_verb(command_object, "info", example="streamctl object info models model-7.bin")
@bucket_argument
@click.argument("name")
async def info(link: Link, bucket: str, name: str) -> None:
    """Show size, digest and time of an object."""
    row = _row(await _live(link, bucket, name))
    lines = [Field(key, str(value)) for key, value in row.items()]
    show_fields(link.settings, row, [(f"Object {name} of {bucket}", lines)])


async def _chunks(link: Link, bucket: str, meta: dict[str, Any]) -> AsyncIterator[bytes]:
    if not meta["chunks"]:
        return
    config = {"filter_subject": f"$O.{bucket}.C.{meta['nuid']}", "deliver_policy": "all"}
    async for message, _ in follow(link, _BUCKETS.stream(bucket), config, is_endless=False):
        yield message.payload


@wire_verb(command_object, "get", example="streamctl object get models model-7.bin --to m.bin")
@bucket_argument
@click.argument("name")
@click.option("--to", "target", type=click.Path(path_type=Path), help="File [default: its name].")
@click.option("--stdout", "is_piped", is_flag=True, help="To standard output instead.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
async def get(
    link: Link, bucket: str, name: str, target: Path | None, is_piped: bool, force: bool
) -> None:
    """Fetch an object into a file; its digest is verified before the file has its name."""
    import hashlib

    meta = await _live(link, bucket, name)
    if (meta.get("options") or {}).get("link"):
        raise CtlError(f"object {name!r} is a link: {meta['options']['link']}")
    path = target or Path(Path(name).name)
    if not is_piped and path.exists() and not force:
        raise unusable(f"{path} exists, and nothing was fetched", "--force, or --to another file")
    digest, size = hashlib.sha256(), 0
    beside = path.with_name(f".{path.name}.part")
    output = sys.stdout.buffer if is_piped else beside.open("wb")
    try:
        with progress_bar(f"fetching {name}", meta["size"], is_bytes=True) as bar:
            async for chunk in _chunks(link, bucket, meta):
                digest.update(chunk)
                size += len(chunk)
                output.write(chunk)
                bar.advance(len(chunk))
        output.flush()
        found = _DIGEST + base64.urlsafe_b64encode(digest.digest()).decode()
        if size != meta["size"] or found != meta["digest"]:
            raise CtlError(
                f"object {name!r} is damaged: {size} bytes with {found}, "
                f"expected {meta['size']} with {meta['digest']}"
            )
        if not is_piped:
            output.close()
            beside.replace(path)
    finally:
        if not is_piped:
            output.close()
            beside.unlink(missing_ok=True)
    if is_piped or not show_data(link.settings, _row(meta) | {"file": str(path)}):
        note(f"{size_text(size)} of {name}" + ("" if is_piped else f" in {path}"))


@wire_verb(command_object, "put", example="streamctl object put models model-7.bin")
@bucket_argument
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--name", help="Name of the object [default: that of the file].")
@click.option("--description", default="", help="Remark for people.")
async def put(link: Link, bucket: str, file: Path, name: str | None, description: str) -> None:
    """Store a file; it takes the place of an object of that name when all of it is stored."""
    import hashlib
    import secrets

    name = name or file.name
    await _BUCKETS.info(link, bucket)
    before = await _meta(link, bucket, name)
    nuid = secrets.token_hex(11)
    digest, size, chunks = hashlib.sha256(), 0, 0
    subject = f"$O.{bucket}.C.{nuid}"
    total = file.stat().st_size
    try:
        shown = progress_bar(f"storing {name}", total, is_bytes=True)
        with file.open("rb") as content, shown as bar:
            while chunk := content.read(_CHUNK_BYTES):
                decoded((await link.request(subject, chunk)).data)
                digest.update(chunk)
                size, chunks = size + len(chunk), chunks + 1
                bar.advance(len(chunk))
        meta = {
            "name": name,
            "description": description,
            "options": {"max_chunk_size": _CHUNK_BYTES},
            "bucket": bucket,
            "nuid": nuid,
            "size": size,
            "chunks": chunks,
            "digest": _DIGEST + base64.urlsafe_b64encode(digest.digest()).decode(),
        }
        await _write_meta(link, bucket, name, meta)
    except CtlError:
        await _purge(link, bucket, nuid)
        raise
    if before and before.get("nuid"):
        await _purge(link, bucket, before["nuid"])
    row = _row({**meta, "mtime": ""})
    row.pop("mtime")
    if not show_data(link.settings, row):
        say(f"{name}  {size_text(size)}  {meta['digest']}")


async def _write_meta(link: Link, bucket: str, name: str, meta: dict[str, Any]) -> None:
    import json

    payload = json.dumps(meta).encode()
    headers = {"Nats-Rollup": "sub"}
    answer = await link.request(_meta_subject(bucket, name), payload, headers=headers)
    decoded(answer.data)


async def _purge(link: Link, bucket: str, nuid: str) -> None:
    await link.api(f"STREAM.PURGE.{_BUCKETS.stream(bucket)}", {"filter": f"$O.{bucket}.C.{nuid}"})


@wire_verb(command_object, "delete", example="streamctl object delete models model-7.bin --yes")
@bucket_argument
@click.argument("name")
@yes_option
async def delete(link: Link, bucket: str, name: str, yes: bool) -> None:
    """Delete an object."""
    meta = await _live(link, bucket, name)
    confirm(f"delete object {name} of bucket {bucket}, {size_text(meta['size'])}", yes)
    gone = {**meta, "deleted": True, "size": 0, "chunks": 0, "digest": ""}
    gone.pop("mtime")
    await _write_meta(link, bucket, name, gone)
    if meta.get("nuid"):
        await _purge(link, bucket, meta["nuid"])
    note(f"deleted {name}")
    show_data(link.settings, {"bucket": bucket, "deleted": name})
