"""`streamctl backup`: streams into a directory or a tar, in increments, and back."""

from __future__ import annotations

from typing import Any

import click

from streamd.backup import create_backup, restore_backup
from streamd.backup.backup_record import BackupRecord, StreamRecord, choose, read_record
from streamd.backup.restore_backup import RestorePlan
from streamd.backup.vault import opened_vault
from streamd.ctl.display import Column, counts, note, say, show_data, show_rows, sizes
from streamd.ctl.failures import FAILED, CtlError, unusable
from streamd.ctl.name_completion import STREAM_NAME
from streamd.ctl.nats_link import Link
from streamd.ctl.progress_bar import progress_bar
from streamd.ctl.quantities import count_text, size_text, time_ns
from streamd.ctl.settings import Settings
from streamd.ctl.verbs import VerbGroup, verb, wire_verb


@click.group("backup", cls=VerbGroup)
def command_backup() -> None:
    """Back up streams to a directory or a tar, verify and restore them."""


_place = click.argument("place", metavar="DIRECTORY|FILE.tar")
_named = click.option("--id", "name", default="", help="Which backup; the newest if not given.")


def _row(record: BackupRecord) -> dict[str, Any]:
    return {
        "id": record.name,
        "server": record.server,
        "streams": [each.name for each in record.streams],
        "messages": record.message_count,
        "bytes": record.byte_count,
    }


_COLUMNS = (
    Column("id", "backup"),
    Column("streams", "streams", lambda names: str(len(names)), is_number=True),
    *counts("messages"),
    *sizes("bytes"),
    Column("server", "server"),
)


@wire_verb(command_backup, "create", example="streamctl backup create /backups/orders ORDERS")
@_place
@click.argument("streams", metavar="[STREAM]...", nargs=-1, type=STREAM_NAME)
@click.option("--no-consumers", is_flag=True, help="Leave out consumers.")
async def create(link: Link, place: str, streams: tuple[str, ...], no_consumers: bool) -> None:
    """Back up streams, all of the account if none is named; each is as of one moment.

    A directory keeps earlier backups, and only what is new is fetched and written; a tar is
    written once."""
    prefix = link.settings.api_prefix
    names = list(streams) or await create_backup.stream_names(link.nc, prefix=prefix)
    if not names:
        raise CtlError("the account has no streams", "streamctl stream list")
    server = link.nc.connected_url.netloc if link.nc.connected_url else ""
    bar = progress_bar("backing up", is_bytes=True)
    with opened_vault(place, is_written=True) as vault, bar as steps:
        record = await create_backup.create(
            link.nc,
            vault,
            names,
            server=str(server),
            prefix=prefix,
            has_consumers=not no_consumers,
            told=lambda stream, count: steps.advance(count),
        )
    if not show_data(link.settings, _row(record)):
        say(
            f"{record.name}: {count_text(record.message_count)} messages of {len(names)} streams, "
            f"{size_text(record.byte_count)}"
        )


@verb(command_backup, "list", example="streamctl backup list /backups/orders")
@_place
def list_backups(settings: Settings, place: str) -> None:
    """List backups, the oldest first."""
    with opened_vault(place) as vault:
        rows = [_row(read_record(vault, name)) for name in vault.records()]
    show_rows(settings, rows, _COLUMNS, none="no backups")


@verb(command_backup, "show", example="streamctl backup show /backups/orders")
@_place
@_named
def show(settings: Settings, place: str, name: str) -> None:
    """Show the streams of a backup."""
    with opened_vault(place) as vault:
        record = choose(vault, name)
    rows = [
        {
            "stream": each.name,
            "messages": each.state["messages"],
            "first_seq": each.first_seq,
            "last_seq": each.last_seq,
            "last_ts": each.state.get("last_ts", ""),
            "consumers": len(each.consumers),
            "bytes": sum(fact.byte_count for fact in each.segments),
        }
        for each in record.streams
    ]
    columns = (
        Column("stream", "stream"),
        *counts("messages"),
        Column("first_seq", "first", is_number=True),
        Column("last_seq", "last", is_number=True),
        Column("last_ts", "last time"),
        Column("consumers", "consumers", is_number=True),
        *sizes("bytes"),
    )
    show_rows(settings, rows, columns)


@verb(command_backup, "verify", example="streamctl backup verify /backups/orders")
@_place
@_named
def verify(settings: Settings, place: str, name: str) -> int:
    """Read all of a backup, and check it; status 1 if anything is missing or damaged.

    Checksums, order and numbers of messages; no server is asked."""
    with opened_vault(place) as vault:
        record = choose(vault, name)
        with progress_bar("verifying messages", record.message_count) as steps:
            found = list(restore_backup.verify(vault, record, steps.advance))
    rows = [
        {"stream": each.stream, "messages": each.message_count, "fault": each.fault}
        for each in found
    ]
    columns = (
        Column("stream", "stream"),
        *counts("messages"),
        Column("fault", "", lambda fault: fault or "whole"),
    )
    show_rows(settings, rows, columns)
    faults = sum(bool(each.fault) for each in found)
    if faults:
        note(f"{faults} of {len(found)} streams of backup {record.name} are damaged")
    return FAILED if faults else 0


@wire_verb(
    command_backup, "restore", example="streamctl backup restore /backups/orders ORDERS --as COPY"
)
@_place
@click.argument("streams", metavar="[STREAM]...", nargs=-1)
@_named
@click.option("--as", "new_name", default="", help="Name of the restored stream.")
@click.option("--subject", "subjects", multiple=True, help="Subjects instead of its own.")
@click.option("--replicas", type=int, default=0, help="Copies instead of as many as it had.")
@click.option("--until-seq", type=click.IntRange(min=1), default=None, help="Last sequence.")
@click.option("--until-time", default=None, help="Last time, as 2026-05-01T10:00:00Z.")
@click.option("--no-consumers", is_flag=True, help="Leave out consumers.")
async def restore(
    link: Link,
    place: str,
    streams: tuple[str, ...],
    name: str,
    new_name: str,
    subjects: tuple[str, ...],
    replicas: int,
    until_seq: int | None,
    until_time: str | None,
    no_consumers: bool,
) -> None:
    """Restore streams, all of a backup if none is named. None of them may exist.

    Needs a server that reads archives of nats-server 2.15: streamd or nats-server."""
    plan = RestorePlan(
        new_name,
        subjects,
        replicas,
        until_seq or 0,
        _moment_ns(until_time) if until_time else 0,
        not no_consumers,
    )
    rows: list[dict[str, Any]] = []
    with opened_vault(place) as vault:
        for stream in _chosen(choose(vault, name), streams, is_one=bool(new_name or subjects)):
            size = sum(fact.byte_count for fact in stream.segments)
            with progress_bar(f"restoring {stream.name}", size, is_bytes=True) as steps:
                done = 0

                def told(count: int) -> None:
                    nonlocal done
                    steps.advance(count - done)
                    done = count

                info = await restore_backup.restore(
                    link.nc, vault, stream, plan, prefix=link.settings.api_prefix, told=told
                )
            state = info["state"]
            rows.append(
                {
                    "stream": info["config"]["name"],
                    "messages": state["messages"],
                    "last_seq": state["last_seq"],
                    "consumers": state["consumer_count"],
                }
            )
    columns = (
        Column("stream", "stream"),
        *counts("messages"),
        Column("last_seq", "last", is_number=True),
        Column("consumers", "consumers", is_number=True),
    )
    show_rows(link.settings, rows, columns)


def _chosen(record: BackupRecord, names: tuple[str, ...], *, is_one: bool) -> list[StreamRecord]:
    """Return the streams of a backup that are to be restored."""
    found = []
    for name in names:
        stream = record.stream(name)
        if stream is None:
            known = ", ".join(each.name for each in record.streams)
            raise CtlError(f"no stream {name!r} in backup {record.name}", f"one of: {known}")
        found.append(stream)
    found = found or record.streams
    if is_one and len(found) != 1:
        raise unusable("--as and --subject are for one stream", "name the stream to restore")
    return found


def _moment_ns(text: str) -> int:
    found = time_ns(text)
    if found is None:
        raise unusable(f"{text!r} is no time: write 2026-01-31T12:00:00Z")
    return found
