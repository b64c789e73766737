"""`streamctl lag`: how far consumers are behind, in messages and in time."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from streamd.ctl.asset_requests import consumers_of, next_message
from streamd.ctl.display import Column, counts, note, show_rows, spans, words
from streamd.ctl.failures import CtlError
from streamd.ctl.name_completion import STREAM_NAME
from streamd.ctl.nats_link import Link
from streamd.ctl.progress_bar import progress_bar
from streamd.ctl.quantities import age_ns, parse_span
from streamd.ctl.verbs import wire_verb

AT_ONCE = 16  # requests in flight


@wire_verb(None, "lag", example="streamctl lag ORDERS --max-time 5m --max-messages 10000")
@click.argument("streams", metavar="[STREAM]...", nargs=-1, type=STREAM_NAME)
@click.option("--max-messages", type=click.IntRange(min=0), help="Most messages behind.")
@click.option("--max-time", help="Longest time behind, as 5m.")
@click.option("--all", "is_all", is_flag=True, help="Consumers too that are up to date.")
async def command_lag(
    link: Link,
    streams: tuple[str, ...],
    max_messages: int | None,
    max_time: str | None,
    is_all: bool,
) -> int:
    """Show how far consumers are behind, the worst first; status 1 if one is past a threshold.

    A message counts until it is acked; the time is the age of the oldest that is not."""
    longest = None if max_time is None else parse_span(max_time)
    names = list(streams) or await link.pages("STREAM.NAMES", "streams")
    rows = await _rows(link, names)
    for row in rows:
        row["is_late"] = (max_messages is not None and row["messages"] > max_messages) or (
            longest is not None and row["time_ns"] is not None and row["time_ns"] > longest
        )
    rows.sort(
        key=lambda row: (-(row["time_ns"] or 0), -row["messages"], row["stream"], row["name"])
    )
    late = sum(row["is_late"] for row in rows)
    shown = [row for row in rows if is_all or row["messages"]]
    columns = (
        *words("stream", "name=consumer"),
        *counts("messages=behind"),
        *spans("time_ns=time"),
        *counts("pending", "in_flight", "redelivered"),
        Column("is_late", "", lambda is_late: "LATE" if is_late else ""),
    )
    show_rows(link.settings, shown, columns, none=f"{len(rows)} consumers, none is behind")
    if late:
        note(f"{late} of {len(rows)} consumers are past the threshold")
    return 1 if late else 0


async def _rows(link: Link, names: list[str]) -> list[dict[str, Any]]:
    """Return a row for each consumer of these streams."""
    gate = asyncio.Semaphore(AT_ONCE)
    rows: list[dict[str, Any]] = []

    async def look(info: dict[str, Any]) -> None:
        async with gate:
            rows.append(await _row(link, info))

    try:
        with progress_bar("asking streams for their consumers", len(names)) as bar:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    for info in await consumers_of(link, name):
                        group.create_task(look(info))
                    bar.advance()
    except* CtlError as failed:
        raise failed.exceptions[0] from None
    return rows


async def _row(link: Link, info: dict[str, Any]) -> dict[str, Any]:
    config = info["config"]
    is_acked = config.get("ack_policy") != "none"
    in_flight = info["num_ack_pending"] if is_acked else 0
    behind = info["num_pending"] + in_flight
    oldest: int | None = None
    if behind:
        floor = info["ack_floor" if is_acked else "delivered"]["stream_seq"]
        patterns = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
        for pattern in patterns:
            found = await next_message(link, info["stream_name"], floor + 1, pattern)
            age = age_ns(found["time"]) if found else None
            if age is not None:
                oldest = age if oldest is None else max(oldest, age)
    return {
        "stream": info["stream_name"],
        "name": info["name"],
        "messages": behind,
        "time_ns": oldest,
        "pending": info["num_pending"],
        "in_flight": in_flight,
        "redelivered": info["num_redelivered"],
    }
