"""`streamctl sub` and `tail`: messages as they come, and those that are stored."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from streamd.ctl.asset_requests import stream_info
from streamd.ctl.display import note, show_item
from streamd.ctl.failures import unusable
from streamd.ctl.message_display import Shown, as_document, as_text
from streamd.ctl.name_completion import stream_argument
from streamd.ctl.nats_link import Link
from streamd.ctl.pulling import follow, shown_of
from streamd.ctl.quantities import parse_span, time_ns
from streamd.ctl.verbs import wire_verb

match_option = click.option("--match", default="", help="Only payloads with this text (a regex).")
raw_option = click.option("--raw", is_flag=True, help="Payloads only, one a line.")
plain_option = click.option("--pretty/--no-pretty", default=True, help="Lay JSON out [default].")


class _Printer:
    """Prints messages that match, each at once."""

    def __init__(self, link: Link, match: str, is_raw: bool, is_pretty: bool) -> None:
        try:
            self._wanted = re.compile(match.encode()) if match else None
        except re.error as err:
            raise unusable(f"--match {match!r}: {err}") from None
        self._settings = link.settings
        self._is_raw = is_raw
        self._is_pretty = is_pretty
        self.count = 0

    def show(self, message: Shown) -> None:
        if self._wanted and not self._wanted.search(message.payload):
            return
        self.count += 1
        if self._is_raw:
            print(message.payload.decode("utf-8", "replace"), flush=True)
        elif not show_item(self._settings, as_document(message)):
            print(as_text(message, is_pretty=self._is_pretty) + "\n", flush=True)


@wire_verb(None, "sub", example="streamctl sub 'orders.>' --count 10 --match error", is_long=True)
@click.argument("subjects", metavar="SUBJECT...", nargs=-1, required=True)
@click.option("--queue", default="", help="Share the messages with others of this queue group.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--wait", help="End when nothing came for so long, as 10s.")
@match_option
@raw_option
@plain_option
async def command_sub(
    link: Link,
    subjects: tuple[str, ...],
    queue: str,
    count: int | None,
    wait: str | None,
    match: str,
    raw: bool,
    pretty: bool,
) -> None:
    """Show messages as they are published, until Ctrl-C."""
    printer = _Printer(link, match, raw, pretty)
    quiet_s = parse_span(wait) / 1e9 if wait else None
    came: asyncio.Queue[Any] = asyncio.Queue()

    async def take(msg: Any) -> None:
        await came.put(msg)

    for subject in subjects:
        await link.nc.subscribe(subject, queue=queue, cb=take)
    await link.nc.flush()
    note(f"listening on {', '.join(subjects)}")
    while count is None or printer.count < count:
        try:
            async with asyncio.timeout(quiet_s):
                msg = await came.get()
        except TimeoutError:
            return
        printer.show(shown_of(msg))


@wire_verb(
    None, "tail", example="streamctl tail ORDERS --since 1h --filter 'orders.eu.*'", is_long=True
)
@stream_argument
@click.option("--all", "is_all", is_flag=True, help="Begin with the first message.")
@click.option("--last", "-n", type=click.IntRange(min=0), help="Begin with the last so many [10].")
@click.option("--since", help="Begin so long ago, as 1h, or at a time.")
@click.option("--from", "start", type=click.IntRange(min=1), help="Begin at a sequence.")
@click.option("--last-per-subject", is_flag=True, help="Begin with the last of each subject.")
@click.option("--filter", "filters", multiple=True, help="Only these subjects; may be repeated.")
@click.option("--no-follow", is_flag=True, help="End with the last message that is stored.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@match_option
@raw_option
@plain_option
async def command_tail(
    link: Link,
    stream: str,
    filters: tuple[str, ...],
    no_follow: bool,
    count: int | None,
    match: str,
    raw: bool,
    pretty: bool,
    **start: Any,
) -> None:
    """Show a stream's messages, and follow it: each once and in order, through changes of leaders
    and connections."""
    found = await stream_info(link, stream)
    config = _start(found["state"], **start)
    if len(filters) == 1:
        config["filter_subject"] = filters[0]
    elif filters:
        config.pop("filter_subject", None)
        config["filter_subjects"] = list(filters)
    printer = _Printer(link, match, raw, pretty)
    async for message, _ in follow(link, stream, config, is_endless=not no_follow):
        printer.show(message)
        if count is not None and printer.count >= count:
            return


def _start(
    state: dict[str, Any],
    is_all: bool,
    last: int | None,
    since: str | None,
    start: int | None,
    last_per_subject: bool,
) -> dict[str, Any]:
    """Return where a consumer begins, as fields of its configuration."""
    given = [is_all, last is not None, bool(since), start is not None, last_per_subject]
    if sum(given) > 1:
        raise unusable("--all, --last, --since, --from and --last-per-subject exclude each other")
    if is_all:
        return {"deliver_policy": "all"}
    if last_per_subject:
        return {"deliver_policy": "last_per_subject", "filter_subject": ">"}
    if since:
        if since[:4].isdigit() and "-" in since:
            ns = time_ns(since)
            assert ns is not None, since
            when = datetime.fromtimestamp(ns / 1e9, UTC)
        else:
            when = datetime.now(UTC) - timedelta(seconds=parse_span(since) / 1e9)
        text = when.isoformat().replace("+00:00", "Z")
        return {"deliver_policy": "by_start_time", "opt_start_time": text}
    if start is None:
        wanted = 10 if last is None else last
        if not wanted:
            return {"deliver_policy": "new"}
        start = max(1, state["last_seq"] - wanted + 1)
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
