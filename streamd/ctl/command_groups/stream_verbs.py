"""`streamctl stream`: streams, their configuration and their messages."""

from __future__ import annotations

import sys
from typing import Any

import click

from streamd.ctl import config_flags
from streamd.ctl.asset_requests import (
    NO_MESSAGE,
    count_subjects,
    next_message,
    refuse_no_name,
    stream_info,
)
from streamd.ctl.config_flags import STREAM_FLAGS, config_options
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
    words,
)
from streamd.ctl.edit_losses import losses
from streamd.ctl.failures import ApiError, CtlError, unusable
from streamd.ctl.message_display import Shown, as_document, as_text, stored_message
from streamd.ctl.name_completion import STREAM_NAME, stream_argument
from streamd.ctl.nats_link import Link
from streamd.ctl.progress_bar import spinner
from streamd.ctl.quantities import (
    clock_text,
    count_text,
    limit_text,
    since_text,
    size_text,
    span_text,
)
from streamd.ctl.questions import confirm, yes_option
from streamd.ctl.verbs import VerbGroup, count_option, wire_verb

SUBJECTS_COUNTED_MAX = 100_000


@click.group("stream", cls=VerbGroup)
def command_stream() -> None:
    """Create, show, change and read streams."""


@wire_verb(command_stream, "list", example="streamctl stream list --subject 'orders.>'")
@click.option("--subject", default="", help="Only streams that store some of these subjects.")
@click.option("--names", is_flag=True, help="Names only, one a line.")
async def list_streams(link: Link, subject: str, names: bool) -> None:
    """List the streams of the account."""
    body = {"subject": subject} if subject else {}
    if names:
        found = await link.pages("STREAM.NAMES", "streams", body)
        if not show_data(link.settings, found):
            for name in found:
                say(name)
        return
    rows = [_row(info) for info in await link.pages("STREAM.LIST", "streams", body)]
    columns = (
        Column("name", "name"),
        Column("subjects", "subjects", _subjects_text),
        Column("storage", "storage"),
        Column("replicas", "copies", is_number=True),
        Column("leader", "leader"),
        Column("consumers", "consumers", is_number=True),
        *counts("messages"),
        *sizes("bytes"),
        Column("last_time", "last message", since_text, is_number=True),
    )
    show_rows(link.settings, rows, columns, none="no streams: add one with `streamctl stream add`")


def _row(info: dict[str, Any]) -> dict[str, Any]:
    config, state = info["config"], info["state"]
    return {
        "name": config["name"],
        "subjects": config.get("subjects") or [],
        "storage": config["storage"],
        "retention": config["retention"],
        "replicas": config["num_replicas"],
        "leader": (info.get("cluster") or {}).get("leader"),
        "consumers": state["consumer_count"],
        "messages": state["messages"],
        "bytes": state["bytes"],
        "first_seq": state["first_seq"],
        "last_seq": state["last_seq"],
        "deleted": state.get("num_deleted", 0),
        "first_time": state.get("first_ts"),
        "last_time": state.get("last_ts"),
    }


def _subjects_text(subjects: list[str]) -> str:
    shown = ", ".join(subjects[:3])
    return f"{shown} (+{len(subjects) - 3})" if len(subjects) > 3 else shown or "-"


@wire_verb(command_stream, "info", example="streamctl stream info ORDERS")
@stream_argument
async def info(link: Link, stream: str) -> None:
    """Show a stream's configuration, state and copies."""
    show_stream(link, await stream_info(link, stream))


def show_stream(link: Link, found: dict[str, Any]) -> None:
    """Show a stream's info document."""
    config, state, cluster = found["config"], found["state"], found.get("cluster") or {}
    shape = [
        Field("subjects", ", ".join(config.get("subjects") or []) or "-"),
        Field("storage", f"{config['storage']}, {config['num_replicas']} copies"),
        Field("retention", f"{config['retention']}, discards {config['discard']}"),
        Field("max messages", limit_text(config.get("max_msgs"))),
        Field("per subject", limit_text(config.get("max_msgs_per_subject"))),
        Field("max bytes", _size_limit(config.get("max_bytes"))),
        Field("max message", _size_limit(config.get("max_msg_size"))),
        Field("max age", span_text(config["max_age"]) if config.get("max_age") else "unlimited"),
        Field("duplicates", span_text(config.get("duplicate_window") or None)),
    ]
    if config.get("description"):
        shape.insert(0, Field("description", config["description"]))
    metadata = {k: v for k, v in (config.get("metadata") or {}).items() if k[:6] != "_nats."}
    shape += [Field("metadata", f"{key}={value}") for key, value in sorted(metadata.items())]
    shape += [Field(key, str(config[key])) for key in sorted(config) if _is_extra(config, key)]
    contents = [
        Field("messages", count_text(state["messages"])),
        Field("bytes", size_text(state["bytes"])),
        Field("first", f"{state['first_seq']} at {clock_text(state.get('first_ts'))}"),
        Field("last", f"{state['last_seq']} at {clock_text(state.get('last_ts'))}"),
        Field("deleted", count_text(state.get("num_deleted", 0))),
        Field("subjects", count_text(state.get("num_subjects", 0))),
        Field("consumers", count_text(state["consumer_count"])),
    ]
    copies = [Field("leader", cluster["leader"])] if cluster.get("leader") else []
    copies += [
        Field(
            "follower",
            f"{peer['name']}, {'current' if peer.get('current') else 'behind'}"
            f"{', offline' if peer.get('offline') else ''}, {peer.get('lag', 0)} entries to come",
        )
        for peer in cluster.get("replicas") or []
    ]
    sections = [
        (f"Stream {config['name']}, created {clock_text(found.get('created'))}", shape),
        ("State", contents),
        ("Copies", copies),
    ]
    show_fields(link.settings, found, sections)


_SHOWN = {
    "name", "description", "subjects", "storage", "num_replicas", "retention", "discard",
    "max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_age",
    "duplicate_window", "metadata",
}  # fmt: skip


def _is_extra(config: dict[str, Any], key: str) -> bool:
    is_default = config[key] in (None, False, "", 0, -1, [], {}) or config[key] == "none"
    return key not in _SHOWN and not is_default


def _size_limit(count: int | None) -> str:
    return "unlimited" if count is None or count <= 0 else size_text(count)


@wire_verb(
    command_stream,
    "add",
    example="streamctl stream add ORDERS --subject 'orders.>' --replicas 3 --max-age 7d",
)
@stream_argument
@config_options(STREAM_FLAGS)
async def add(link: Link, stream: str, **options: Any) -> None:
    """Create a stream."""
    refuse_no_name(stream)
    config = config_flags.changed({}, STREAM_FLAGS, options) | {"name": stream}
    try:
        made = await link.api(f"STREAM.CREATE.{stream}", config)
    except ApiError as err:
        if err.err_code == 10058:
            raise CtlError(
                f"stream {stream!r} is there already, with another configuration",
                f"streamctl stream edit {stream}",
            ) from None
        raise
    made.pop("type", None)
    if not made.pop("did_create", True):
        note(f"stream {stream} was there already, with this configuration")
    show_stream(link, made)


@wire_verb(command_stream, "edit", example="streamctl stream edit ORDERS --max-age 30d --dry-run")
@stream_argument
@config_options(STREAM_FLAGS)
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@yes_option
async def edit(link: Link, stream: str, dry_run: bool, yes: bool, **options: Any) -> None:
    """Change a stream's configuration; asks if messages would be lost."""
    found = await stream_info(link, stream)
    before = found["config"]
    after = config_flags.changed(before, STREAM_FLAGS, options) | {"name": stream}
    lines = config_flags.differences(before, after)
    if not lines:
        note(f"stream {stream} has this configuration already")
        show_stream(link, found)
        return
    lost = losses(before, after, found["state"], await _counts(link, stream, before, after))
    for line in lines:
        note(f"  {line}")
    for line in lost:
        note(f"  LOSS  {line}")
    if dry_run:
        show_data(link.settings, {"changes": lines, "losses": lost})
        return
    if lost:
        confirm(f"change stream {stream}: {'; '.join(lost)}", yes)
    made = await link.api(f"STREAM.UPDATE.{stream}", after)
    made.pop("type", None)
    show_stream(link, made)


async def _counts(
    link: Link, stream: str, before: dict[str, Any], after: dict[str, Any]
) -> dict[str, int] | None:
    """Return the messages of each subject if an edit may lose some of them; None: too many."""
    field = "max_msgs_per_subject"
    if before.get(field) == after.get(field):
        return {}
    return await count_subjects(link, stream, ">", SUBJECTS_COUNTED_MAX)


@wire_verb(command_stream, "delete", example="streamctl stream delete ORDERS --yes")
@click.argument("streams", metavar="STREAM...", nargs=-1, required=True, type=STREAM_NAME)
@yes_option
async def delete(link: Link, streams: tuple[str, ...], yes: bool) -> None:
    """Delete streams, with all of their messages and consumers."""
    held = [(name, await stream_info(link, name)) for name in streams]
    for name, found in held:
        state = found["state"]
        confirm(
            f"delete stream {name} with {count_text(state['messages'])} messages and "
            f"{count_text(state['consumer_count'])} consumers",
            yes,
        )
        with spinner(f"deleting {name}"):
            await link.api(f"STREAM.DELETE.{name}")
        note(f"deleted {name}")
    show_data(link.settings, {"deleted": list(streams)})


@wire_verb(
    command_stream, "purge", example="streamctl stream purge ORDERS --subject orders.eu --keep 100"
)
@stream_argument
@click.option("--subject", help="Only messages of this subject or pattern.")
@click.option("--seq", type=click.IntRange(min=1), help="Only messages before this sequence.")
@click.option("--keep", type=click.IntRange(min=1), help="Keep so many of the newest.")
@yes_option
async def purge(
    link: Link, stream: str, subject: str | None, seq: int | None, keep: int | None, yes: bool
) -> None:
    """Remove messages of a stream; the stream stays."""
    if subject == "":
        raise unusable(
            "--subject '' is no subject, and nothing was removed",
            "leave --subject out to purge all subjects",
        )
    if seq and keep:
        raise unusable("--seq and --keep exclude each other")
    found = await stream_info(link, stream)
    count = found["state"]["messages"]
    if subject is not None:
        count = sum((await count_subjects(link, stream, subject) or {}).values())
    of = f" on {subject!r}" if subject else ""
    limits = f", those before {seq}" if seq else f", but for the newest {keep}" if keep else ""
    confirm(f"purge stream {stream}: {count_text(count)} messages{of}{limits}", yes)
    body: dict[str, Any] = {"filter": subject, "seq": seq, "keep": keep}
    with spinner(f"purging {stream}"):
        answer = await link.api(
            f"STREAM.PURGE.{stream}", {key: value for key, value in body.items() if value}
        )
    if not show_data(link.settings, {"stream": stream, "purged": answer["purged"]}):
        say(f"{count_text(answer['purged'])} messages purged from {stream}")


@wire_verb(command_stream, "get", example="streamctl stream get ORDERS 4711")
@stream_argument
@click.argument("seq", type=click.IntRange(min=1), required=False)
@click.option("--last", metavar="SUBJECT", help="Newest message of a subject instead.")
@click.option("--raw", is_flag=True, help="Payload only, as it is.")
async def get(link: Link, stream: str, seq: int | None, last: str | None, raw: bool) -> None:
    """Show one message, by its sequence or its subject."""
    if (seq is None) == (last is None):
        raise unusable("name one message: a sequence, or --last SUBJECT")
    refuse_no_name(stream)
    body = {"seq": seq} if seq is not None else {"last_by_subj": last}
    try:
        answer = await link.api(f"STREAM.MSG.GET.{stream}", body)
    except ApiError as err:
        if err.err_code == NO_MESSAGE:
            wanted = f"sequence {seq}" if seq is not None else f"a message on {last!r}"
            raise CtlError(
                f"stream {stream} has no {wanted}", f"streamctl stream info {stream}"
            ) from None
        raise
    message = stored_message(answer["message"])
    if raw:
        sys.stdout.buffer.write(message.payload)
        sys.stdout.buffer.flush()
    elif not show_data(link.settings, as_document(message)):
        print(as_text(message))


@wire_verb(command_stream, "view", example="streamctl stream view ORDERS --from 100 -n 20")
@stream_argument
@click.option("--from", "start", type=click.IntRange(min=1), default=1, help="First sequence.")
@click.option("--subject", default=">", show_default=True, help="Only these subjects.")
@count_option("-n", "--count", default=10, help_text="Most messages.")
async def view(link: Link, stream: str, start: int, subject: str, count: int) -> None:
    """Show messages in order."""
    refuse_no_name(stream)
    shown: list[Shown] = []
    seq = start
    while len(shown) < count:
        found = await next_message(link, stream, seq, subject)
        if found is None:
            break
        message = stored_message(found)
        seq = message.seq + 1
        shown.append(message)
        if link.settings.output == "table":
            print(as_text(message) + "\n")
    if show_data(link.settings, [as_document(message) for message in shown]):
        return
    if len(shown) == count:
        note(f"more: streamctl stream view {stream} --from {seq}")
    else:
        note(f"no more messages from {seq} on" if shown else f"no messages from {start} on")


@wire_verb(command_stream, "report", example="streamctl stream report --sort bytes")
@click.option(
    "--sort",
    type=click.Choice(("name", "messages", "bytes", "consumers", "deleted")),
    default="name",
    show_default=True,
    help="Column to sort by, the highest first, or the name.",
)
async def report(link: Link, sort: str) -> None:
    """Show the storage, state and copies of all streams."""
    infos = await link.pages("STREAM.LIST", "streams")
    rows: list[dict[str, Any]] = []
    for each in infos:
        peers = (each.get("cluster") or {}).get("replicas") or []
        late = [peer["name"] for peer in peers if peer.get("offline") or not peer.get("current")]
        rows.append(_row(each) | {"lost": (each["state"].get("lost") or {}).get("msgs"),
                                  "behind": late})  # fmt: skip
    rows.sort(key=lambda row: row["name"])
    if sort != "name":
        rows.sort(key=lambda row: int(row[sort]), reverse=True)
    columns = (
        *words("name", "storage", "retention", "leader"),
        Column("replicas", "copies", is_number=True),
        Column("behind", "behind", lambda names: ", ".join(names) or "none"),
        *counts("consumers", "messages"),
        *sizes("bytes"),
        *counts("deleted"),
        Column("lost", "lost", lambda lost: count_text(len(lost)), is_number=True),
    )
    show_rows(link.settings, rows, columns, none="no streams")


@wire_verb(command_stream, "subjects", example="streamctl stream subjects ORDERS --filter 'eu.>'")
@stream_argument
@click.option("--filter", "pattern", default=">", show_default=True, help="Only these subjects.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="So many of the largest.")
async def subjects(link: Link, stream: str, pattern: str, count: int | None) -> None:
    """Count the messages of each subject, the most first."""
    await stream_info(link, stream)
    found = await count_subjects(link, stream, pattern) or {}
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:count]
    rows = [{"subject": subject, "messages": number} for subject, number in ordered]
    columns = (
        Column("subject", "subject"),
        *counts("messages"),
    )
    show_rows(link.settings, rows, columns, none=f"no messages on {pattern}")


@wire_verb(command_stream, "seal", example="streamctl stream seal ORDERS-2025 --yes")
@stream_argument
@yes_option
async def seal(link: Link, stream: str, yes: bool) -> None:
    """Close a stream for ever: nothing is stored or removed any more."""
    found = await stream_info(link, stream)
    confirm(
        f"seal stream {stream} with {count_text(found['state']['messages'])} messages; it can't "
        "be undone",
        yes,
    )
    made = await link.api(f"STREAM.UPDATE.{stream}", found["config"] | {"sealed": True})
    made.pop("type", None)
    show_stream(link, made)
