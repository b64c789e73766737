"""`streamctl consumer`: consumers, their position and their configuration."""

from __future__ import annotations

import sys
from typing import Any

import click

from streamd.ctl import config_flags
from streamd.ctl.asset_requests import consumer_info, consumers_of, refuse_no_name
from streamd.ctl.config_flags import CONSUMER_FLAGS, config_options
from streamd.ctl.display import (
    Column,
    Field,
    counts,
    note,
    say,
    show_data,
    show_fields,
    show_rows,
    words,
)
from streamd.ctl.failures import ApiError, CtlError, unusable
from streamd.ctl.message_display import as_document, as_text
from streamd.ctl.name_completion import CONSUMER_NAME, consumer_argument, stream_argument
from streamd.ctl.nats_link import Link
from streamd.ctl.pulling import ACKS, pull
from streamd.ctl.quantities import (
    clock_text,
    count_text,
    limit_text,
    parse_span,
    since_text,
    span_text,
)
from streamd.ctl.questions import confirm, yes_option
from streamd.ctl.verbs import VerbGroup, count_option, wire_verb

IS_THERE = 10148


@click.group("consumer", cls=VerbGroup)
def command_consumer() -> None:
    """Create, show, change and read consumers."""


def _row(info: dict[str, Any]) -> dict[str, Any]:
    config = info["config"]
    filters = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
    return {
        "stream": info["stream_name"],
        "name": info["name"],
        "kind": "push" if config.get("deliver_subject") else "pull",
        "ack": config.get("ack_policy"),
        "filters": filters,
        "leader": (info.get("cluster") or {}).get("leader"),
        "pending": info["num_pending"],
        "in_flight": info["num_ack_pending"],
        "redelivered": info["num_redelivered"],
        "waiting": info["num_waiting"],
        "delivered_seq": info["delivered"]["stream_seq"],
        "ack_floor_seq": info["ack_floor"]["stream_seq"],
        "last_delivery": info["delivered"].get("last_active"),
        "paused": bool(info.get("paused")),
    }


_COLUMNS = (
    *words("name", "kind", "ack"),
    Column("filters", "filters", ", ".join),
    *counts("pending", "in_flight", "redelivered", "ack_floor_seq=ack floor"),
    Column("last_delivery", "last delivery", since_text, is_number=True),
)


@wire_verb(command_consumer, "list", example="streamctl consumer list ORDERS")
@stream_argument
@click.option("--names", is_flag=True, help="Names only, one a line.")
async def list_consumers(link: Link, stream: str, names: bool) -> None:
    """List the consumers of a stream."""
    rows = [_row(info) for info in await consumers_of(link, stream)]
    if names:
        if not show_data(link.settings, [row["name"] for row in rows]):
            for row in rows:
                say(row["name"])
        return
    show_rows(link.settings, rows, _COLUMNS, none=f"stream {stream} has no consumers")


@wire_verb(command_consumer, "report", example="streamctl consumer report ORDERS --sort pending")
@stream_argument
@click.option(
    "--sort",
    type=click.Choice(("name", "pending", "in_flight", "redelivered", "waiting")),
    default="name",
    show_default=True,
    help="Column to sort by, the highest first, or the name.",
)
async def report(link: Link, stream: str, sort: str) -> None:
    """Show the position of all consumers of a stream, and who waits."""
    rows = sorted(
        (_row(info) for info in await consumers_of(link, stream)), key=lambda row: str(row["name"])
    )
    if sort != "name":
        rows.sort(key=lambda row: int(row[sort]), reverse=True)
    columns = (
        *_COLUMNS[:2],
        Column("leader", "leader"),
        *_COLUMNS[4:7],
        *counts("waiting=pulls waiting", "delivered_seq=delivered", "ack_floor_seq=ack floor"),
        Column("paused", "paused", lambda is_paused: "yes" if is_paused else "no"),
    )
    show_rows(link.settings, rows, columns, none=f"stream {stream} has no consumers")


@wire_verb(command_consumer, "info", example="streamctl consumer info ORDERS billing")
@stream_argument
@consumer_argument
async def info(link: Link, stream: str, consumer: str) -> None:
    """Show a consumer's configuration and position."""
    show_consumer(link, await consumer_info(link, stream, consumer))


def show_consumer(link: Link, found: dict[str, Any]) -> None:
    """Show a consumer's info document."""
    config, row = found["config"], _row(found)
    shape = [
        Field("kind", f"push to {config['deliver_subject']}" if row["kind"] == "push" else "pull"),
        Field("filters", ", ".join(row["filters"])),
        Field("begins with", config.get("deliver_policy", "all")),
        Field("acks", str(row["ack"])),
        Field("ack wait", span_text(config.get("ack_wait"))),
        Field("max deliveries", limit_text(config.get("max_deliver"))),
        Field("max in flight", limit_text(config.get("max_ack_pending"))),
    ]
    if config.get("description"):
        shape.insert(0, Field("description", config["description"]))
    for key in ("inactive_threshold", "idle_heartbeat"):
        if config.get(key):
            shape.append(Field(key.replace("_", " "), span_text(config[key])))
    delivered, floor = found["delivered"], found["ack_floor"]
    position = [
        Field("delivered", f"stream {delivered['stream_seq']}, own {delivered['consumer_seq']}"),
        Field("ack floor", f"stream {floor['stream_seq']}, own {floor['consumer_seq']}"),
        Field("pending", count_text(row["pending"])),
        Field("in flight", count_text(row["in_flight"])),
        Field("redelivered", count_text(row["redelivered"])),
        Field("pulls waiting", count_text(row["waiting"])),
        Field("last delivery", since_text(row["last_delivery"])),
    ]
    if row["paused"]:
        position.append(Field("paused for", span_text(found.get("pause_remaining"))))
    copies = [Field("leader", row["leader"])] if row["leader"] else []
    heading = f"Consumer {found['name']} of {found['stream_name']}"
    sections = [
        (f"{heading}, created {clock_text(found.get('created'))}", shape),
        ("Position", position),
        ("Copies", copies),
    ]
    show_fields(link.settings, found, sections)


def _with_one_filter(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose filters are one or many, not both."""
    if config.get("filter_subjects"):
        config = {key: value for key, value in config.items() if key != "filter_subject"}
        if len(config["filter_subjects"]) == 1:
            (config["filter_subject"],) = config.pop("filter_subjects")
    return config


@wire_verb(
    command_consumer,
    "add",
    example="streamctl consumer add ORDERS billing --filter 'orders.eu.*' --ack-wait 1m",
)
@stream_argument
@click.argument("consumer")
@config_options(CONSUMER_FLAGS)
async def add(link: Link, stream: str, consumer: str, **options: Any) -> None:
    """Create a durable consumer."""
    refuse_no_name(stream)
    refuse_no_name(consumer, "consumer")
    start: dict[str, Any] = {"ack_policy": "explicit", "deliver_policy": "all"}
    config = _with_one_filter(config_flags.changed(start, CONSUMER_FLAGS, options))
    config |= {"durable_name": consumer, "name": consumer}
    body = {"stream_name": stream, "config": config, "action": "create"}
    try:
        made = await link.api(f"CONSUMER.CREATE.{stream}.{consumer}", body)
    except ApiError as err:
        if err.err_code == IS_THERE:
            raise CtlError(
                f"stream {stream} has a consumer {consumer!r} with another configuration",
                f"streamctl consumer edit {stream} {consumer}",
            ) from None
        raise
    made.pop("type", None)
    show_consumer(link, made)


@wire_verb(
    command_consumer, "edit", example="streamctl consumer edit ORDERS billing --max-pending 5000"
)
@stream_argument
@consumer_argument
@config_options(CONSUMER_FLAGS)
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
async def edit(link: Link, stream: str, consumer: str, dry_run: bool, **options: Any) -> None:
    """Change a consumer's configuration; its position stays."""
    found = await consumer_info(link, stream, consumer)
    before = found["config"]
    after = _with_one_filter(config_flags.changed(before, CONSUMER_FLAGS, options))
    lines = config_flags.differences(before, after)
    for line in lines:
        note(f"  {line}")
    if dry_run:
        show_data(link.settings, {"changes": lines})
        return
    if not lines:
        note(f"consumer {consumer} has this configuration already")
        show_consumer(link, found)
        return
    body = {"stream_name": stream, "config": after, "action": "update"}
    made = await link.api(f"CONSUMER.CREATE.{stream}.{consumer}", body)
    made.pop("type", None)
    show_consumer(link, made)


@wire_verb(command_consumer, "delete", example="streamctl consumer delete ORDERS billing --yes")
@stream_argument
@click.argument("consumers", metavar="CONSUMER...", nargs=-1, required=True, type=CONSUMER_NAME)
@yes_option
async def delete(link: Link, stream: str, consumers: tuple[str, ...], yes: bool) -> None:
    """Delete consumers; their positions are lost."""
    for name in consumers:
        found = await consumer_info(link, stream, name)
        confirm(
            f"delete consumer {name} of {stream}, which is at sequence "
            f"{found['ack_floor']['stream_seq']} with {count_text(found['num_pending'])} pending",
            yes,
        )
        await link.api(f"CONSUMER.DELETE.{stream}.{name}")
        note(f"deleted {name}")
    show_data(link.settings, {"stream": stream, "deleted": list(consumers)})


@wire_verb(
    command_consumer, "next", example="streamctl consumer next ORDERS billing -n 10 --no-ack"
)
@stream_argument
@consumer_argument
@count_option("-n", "--count", default=1, help_text="Most messages.")
@click.option("--wait", default="2s", show_default=True, help="Longest wait for messages.")
@click.option("--ack/--no-ack", default=True, help="Acknowledge them  [default: ack].")
@click.option("--nak", is_flag=True, help="Give them back, to be delivered again.")
@click.option("--term", is_flag=True, help="Have them never delivered again.")
async def next_messages(
    link: Link,
    stream: str,
    consumer: str,
    count: int,
    wait: str,
    ack: bool,
    nak: bool,
    term: bool,
) -> int:
    """Pull messages; status 1 if there are none."""
    if nak and term:
        raise unusable("--nak and --term exclude each other")
    refuse_no_name(stream)
    refuse_no_name(consumer, "consumer")
    answer = ACKS["nak"] if nak else ACKS["term"] if term else ACKS["ack"] if ack else None
    is_text = link.settings.output == "table"
    documents, replies = [], []
    async for message, reply in pull(link, stream, consumer, count, parse_span(wait)):
        documents.append(as_document(message))
        replies.append(reply)
        if is_text:
            print(as_text(message) + "\n", flush=True)
            await _answer(link, reply, answer)
    if not documents:
        note(f"no messages for {consumer} within {wait}")
    if not is_text:
        show_data(link.settings, documents)
        sys.stdout.flush()
        for reply in replies:  # what was not shown is not acked
            await _answer(link, reply, answer)
    return 0 if documents else 1


async def _answer(link: Link, reply: str, answer: bytes | None) -> None:
    if answer is not None:
        await link.request(reply, answer)  # a double ack: it is answered when it counts


@wire_verb(command_consumer, "pause", example="streamctl consumer pause ORDERS billing --for 30m")
@stream_argument
@consumer_argument
@click.option("--for", "duration", help="Length of the pause, as 30m.")
@click.option("--until", help="End of the pause, as 2026-01-31T12:00:00Z.")
async def pause(
    link: Link, stream: str, consumer: str, duration: str | None, until: str | None
) -> None:
    """Deliver nothing for a while."""
    if bool(duration) == bool(until):
        raise unusable("say how long: --for DURATION or --until TIME")
    await consumer_info(link, stream, consumer)
    if duration:
        from datetime import UTC, datetime, timedelta

        length = timedelta(seconds=parse_span(duration) / 1e9)
        until = (datetime.now(UTC) + length).isoformat().replace("+00:00", "Z")
    answer = await link.api(f"CONSUMER.PAUSE.{stream}.{consumer}", {"pause_until": until})
    answer.pop("type", None)
    if not show_data(link.settings, answer):
        if answer.get("paused"):
            say(f"{consumer} is paused for {span_text(answer.get('pause_remaining'))}")
        else:
            say(f"{consumer} is not paused: {until} is past")


@wire_verb(command_consumer, "resume", example="streamctl consumer resume ORDERS billing")
@stream_argument
@consumer_argument
async def resume(link: Link, stream: str, consumer: str) -> None:
    """End a pause."""
    await consumer_info(link, stream, consumer)
    answer = await link.api(f"CONSUMER.PAUSE.{stream}.{consumer}", {})
    answer.pop("type", None)
    if not show_data(link.settings, answer):
        say(f"{consumer} goes on")


@wire_verb(
    command_consumer, "reset", example="streamctl consumer reset ORDERS billing --seq 4711 --yes"
)
@stream_argument
@consumer_argument
@click.option("--seq", type=click.IntRange(min=1), help="Sequence to go on with.")
@yes_option
async def reset(link: Link, stream: str, consumer: str, seq: int | None, yes: bool) -> None:
    """Set a consumer back to where it began, or to a sequence."""
    found = await consumer_info(link, stream, consumer)
    floor = found["ack_floor"]["stream_seq"]
    place = f"sequence {seq}" if seq else "its beginning"
    confirm(f"set consumer {consumer} of {stream} from sequence {floor} to {place}", yes)
    made = await link.api(f"CONSUMER.RESET.{stream}.{consumer}", {"seq": seq} if seq else None)
    made.pop("type", None)
    show_consumer(link, made)
