"""`streamctl inspect`: a data directory as it is on disk, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamd.ctl.display import Column, counts, note, say, show_data, show_table, sizes
from streamd.ctl.failures import UNUSABLE, CtlError, unusable
from streamd.ctl.message_display import Shown, as_document, as_text, parse_headers
from streamd.ctl.progress_bar import with_progress
from streamd.ctl.quantities import clock_text, count_text, size_text
from streamd.ctl.settings import Settings
from streamd.ctl.store_keys import key_option
from streamd.ctl.verbs import verb
from streamd.errors import ConfigError, StreamdError

if TYPE_CHECKING:  # storage code is loaded when a directory is read
    from streamd.offline.store_dirs import StoreDir
    from streamd.offline.stream_view import StreamView

Rows = list[dict[str, Any]]

_STREAMS = (
    Column("name", "stream"),
    Column("uid", "uid", is_number=True),
    Column("storage", "storage"),
    *counts(
        "applied=at index", "log_last=log ends", "first_seq=first", "last_seq=last", "messages"
    ),
    *sizes("bytes"),
    *counts("blocks", "consumers"),
    Column("fault", "fault", lambda text: text or "-"),
)
_BLOCKS = (
    Column("block", "block", is_number=True),
    *counts("first_seq=first", "last_seq=last", "messages", "live"),
    *sizes("bytes"),
    Column("is_sealed", "sealed", lambda is_sealed: "yes" if is_sealed else "no"),
    Column("state", "records"),
)
_CONSUMERS = (
    Column("name", "consumer"),
    *counts("delivered_seq=delivered", "ack_floor_seq=ack floor", "pending", "redelivered"),
)


@verb(None, "inspect", example="streamctl inspect data/cluster/node1/store --stream ORDERS")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--stream", default="", help="Blocks and consumers of one stream.")
@click.option("--seq", type=click.IntRange(min=1), help="One message of --stream.")
@click.option(
    "--whole-log",
    is_flag=True,
    help="All that the log has, though this directory alone does not prove that it is committed.",
)
@key_option
def command_inspect(
    settings: Settings, directory: Path, stream: str, seq: int | None, whole_log: bool
) -> int:
    """Show log, snapshots, streams, blocks and consumers of a data directory; changes nothing, and
    the server may be running. Status 1 if something is damaged, 2 if it could not be read."""
    from streamd.offline.store_dirs import find_stores

    if seq is not None and not stream:
        raise unusable("--seq takes --stream NAME")
    try:
        stores = find_stores(directory)
    except FileNotFoundError as err:
        raise unusable(str(err)) from None
    if stream:
        if len(stores) > 1:
            names = ", ".join(str(store.path) for store in stores)
            raise unusable(f"{directory} has several data directories: name one of {names}")
        return _one_stream(settings, stores[0], stream, seq, whole_log)
    found = [_directory(store, whole_log) for store in stores]
    if not show_data(settings, found):
        for each in found:
            _show_directory(each)
    if any(each["unread"] for each in found):
        return UNUSABLE
    return int(any(each["damage"] or any(s["fault"] for s in each["streams"]) for each in found))


def _directory(store: StoreDir, is_whole: bool) -> dict[str, Any]:
    """Return what a data directory has, as far as it can be read."""
    made: dict[str, Any] = {
        "directory": str(store.path),
        "is_running": store.is_running,
        "server": "",
        "cluster_id": "",
        "log": {},
        "damage": [],
        "unread": [],
        "streams": [],
    }
    try:
        identity = store.identity
        made["server"] = identity.get("name", "")
        made["cluster_id"] = identity.get("cluster_id", "")
    except StreamdError as err:
        made["damage"].append(str(err))
    try:
        log = store.open_log(tolerate_damage=True, is_whole=True)
    except (StreamdError, OSError) as err:
        made["unread"].append(str(err))
        return made
    try:
        segments = sorted(path for path in (store.path / "wal").glob("*.wal"))
        made["log"] = {
            "segments": len(segments),
            "bytes": sum(path.stat().st_size for path in segments),
            "groups": len(log.groups),
            "entries": sum(len(group.places) for group in log.groups.values()),
            "torn_bytes": log.torn_bytes,
            "torn_at": log.torn_at,
        }
        made["damage"] += log.damage
        there = store.streams_by(log, tolerate_damage=True)
        for files in with_progress(f"reading {store.path}", there):
            last = log.last_index(files.uid)
            made["streams"].append(_stream_row(store, files, last, is_whole))
    except (StreamdError, OSError) as err:
        made["unread"].append(str(err))
    finally:
        log.close()
    return made


def _stream_row(store: StoreDir, files: Any, last: int, is_whole: bool) -> dict[str, Any]:
    from streamd.offline.stream_view import open_stream
    from streamd.types import stream_label

    label = stream_label(files.asset.key)
    row: dict[str, Any] = {"name": label, "uid": files.uid, "fault": ""}
    row["storage"] = "file" if files.is_file else "memory"
    if not files.is_file:
        return row
    try:
        up_to = last if is_whole else None
        with open_stream(store, label, up_to=up_to, tolerate_damage=True) as view:
            row |= {
                "applied": view.applied,
                "log_last": last,
                "digest": f"{view.digest:016x}",
                "first_seq": view.first_seq,
                "last_seq": view.last_seq,
                "messages": view.messages,
                "bytes": view.bytes,
                "blocks": len(view.blocks),
                "consumers": len(view.machine.consumers),
                "fault": "; ".join(_faults(view)),
            }
    except (StreamdError, OSError) as err:
        row["fault"] = str(err)
    return row


def _faults(view: StreamView) -> list[str]:
    """Return what is wrong with a replica's files; an end that only the log has is not."""
    from streamd.offline.blocks import CUT

    found = [str(each) for each in view.torn if each.reason != CUT]
    return found + ([view.log_damage] if view.log_damage else [])


def _show_directory(found: dict[str, Any]) -> None:
    running = ", a server runs on it" if found["is_running"] else ""
    say(f"{found['directory']}: server {found['server'] or '(unknown)'}{running}")
    log = found["log"]
    if log:
        say(
            f"  log: {log['segments']} segments, {size_text(log['bytes'])}, "
            f"{count_text(log['entries'])} entries of {log['groups']} groups"
        )
        if log["torn_bytes"]:
            say(f"  log: ends with {log['torn_bytes']} bytes that are no batch, {log['torn_at']}")
    for text in (*found["damage"], *found["unread"]):
        say(f"  DAMAGE {text}")
    say("")
    if found["streams"]:
        show_table(found["streams"], _STREAMS)
    else:
        say("  no streams")


def _one_stream(
    settings: Settings, store: StoreDir, name: str, seq: int | None, is_whole: bool
) -> int:
    from streamd.offline.store_dirs import StoreBusy
    from streamd.offline.stream_view import StreamMissing, find_stream, open_stream

    try:
        log = store.open_log(tolerate_damage=True)
        try:
            last = log.last_index(find_stream(store, name, log, tolerate_damage=True).uid)
        finally:
            log.close()
        up_to = last if is_whole else None
        view = open_stream(store, name, up_to=up_to, tolerate_damage=True)
    except StreamMissing as err:
        raise CtlError(str(err), f"streamctl inspect {store.path}") from None
    except (ConfigError, StoreBusy, OSError) as err:  # nothing is known of it
        raise unusable(str(err)) from err
    with view:
        if seq is not None:
            return _one_message(settings, view, seq)
        blocks, consumers = _block_rows(view), _consumer_rows(view)
        snapshots = sorted(path.name for path in view.directory.glob("*.snap*"))
        document = {
            "stream": view.name,
            "uid": view.uid,
            "applied": view.applied,
            "log_last": last,
            "digest": f"{view.digest:016x}",
            "config": dict(view.config),
            "created_ns": view.created_ns,
            "first_seq": view.first_seq,
            "last_seq": view.last_seq,
            "messages": view.messages,
            "snapshots": snapshots,
            "blocks": blocks,
            "consumers": consumers,
            "torn": [str(each) for each in view.torn],
        }
        if not show_data(settings, document):
            say(
                f"stream {view.name} (uid {view.uid}) at log index {view.applied}: "
                f"{count_text(view.messages)} messages, {view.first_seq}..{view.last_seq}, "
                f"digest {view.digest:016x}\n"
            )
            say(f"snapshots: {', '.join(snapshots) or 'none'}\n")
            show_table(blocks, _BLOCKS)
            if consumers:
                say("")
                show_table(consumers, _CONSUMERS)
            for each in view.torn:
                note(str(each))
            if view.applied < last:
                note(f"the log goes on to {last}, which nothing here proves: see --whole-log")
        is_intact = all(block["state"] == "whole" for block in blocks) and not _faults(view)
        return 0 if is_intact else 1


def _block_rows(view: StreamView) -> Rows:
    from streamd.offline.replica_state import messages_of

    rows: Rows = []
    for block in with_progress("reading blocks", view.blocks):
        try:
            count = sum(1 for _ in messages_of(block)) if block.live else 0
            state = "whole" if count == block.live else f"{block.live - count} are missing"
        except (StreamdError, OSError) as err:
            state = str(err)
        rows.append(
            {
                "block": block.block_no,
                "first_seq": block.first_seq,
                "last_seq": block.last_seq,
                "messages": block.count,
                "live": block.live,
                "bytes": block.byte_count,
                "is_sealed": block.is_sealed,
                "state": state,
            }
        )
    return rows


def _consumer_rows(view: StreamView) -> Rows:
    return [
        {
            "name": name,
            "delivered_seq": consumer.delivered_sseq,
            "ack_floor_seq": consumer.floor_sseq,
            "pending": len(consumer.pending),
            "redelivered": len(consumer.redelivered),
        }
        for name, consumer in sorted(view.machine.consumers.items())
    ]


def _one_message(settings: Settings, view: StreamView, seq: int) -> int:
    from streamd.ctl.pulling import time_text
    from streamd.offline.replica_state import messages_of

    block = next((b for b in view.blocks if b.first_seq <= seq <= b.last_seq), None)
    found = None
    if block is not None:
        found = next((message for message in messages_of(block) if message.seq == seq), None)
    if block is None or found is None:
        reach = f"{view.first_seq}..{view.last_seq}"
        raise CtlError(f"stream {view.name} has no message {seq} (it has {reach}, with gaps)")
    when = time_text(found.ts_ns)
    headers = parse_headers(found.headers)
    shown = Shown(found.subject.decode("utf-8", "replace"), found.payload, headers, seq, when)
    if not show_data(settings, as_document(shown) | {"block": block.block_no, "crc": found.crc}):
        print(as_text(shown))
        note(f"block {block.block_no}, crc {found.crc:08x}, {clock_text(when)}")
    return 0
