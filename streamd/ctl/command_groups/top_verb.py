"""`streamctl top`: servers, streams and consumers, with their rates, again and again."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from streamd.ctl.asset_requests import consumers_of
from streamd.ctl.command_groups.server_verbs import server_row
from streamd.ctl.display import Column, console, make_table
from streamd.ctl.failures import CtlError, unusable
from streamd.ctl.nats_link import Link
from streamd.ctl.quantities import count_text, parse_span, size_text
from streamd.ctl.server_survey import all_servers
from streamd.ctl.verbs import wire_verb

VIEWS = ("servers", "streams", "consumers")
Rows = list[dict[str, Any]]


def _rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.1f}"


def _bytes_rate(rate: float) -> str:
    return f"{size_text(round(rate))}/s"


COLUMNS: dict[str, Sequence[Column]] = {
    "servers": (
        Column("name", "server"),
        Column("meta", "meta", lambda role: role or "-"),
        Column("cpu", "cpu %", lambda cpu: f"{cpu:.0f}", is_number=True),
        Column("memory", "memory", size_text, is_number=True),
        Column("connections", "clients", count_text, is_number=True),
        Column("in_rate", "msgs in/s", _rate_text, is_number=True),
        Column("out_rate", "msgs out/s", _rate_text, is_number=True),
        Column("slow_consumers", "slow", count_text, is_number=True),
    ),
    "streams": (
        Column("name", "stream"),
        Column("leader", "leader"),
        Column("messages", "messages", count_text, is_number=True),
        Column("bytes", "bytes", size_text, is_number=True),
        Column("consumers", "consumers", count_text, is_number=True),
        Column("rate", "msgs/s", _rate_text, is_number=True),
        Column("bytes_rate", "growth", _bytes_rate, is_number=True),
    ),
    "consumers": (
        Column("stream", "stream"),
        Column("name", "consumer"),
        Column("pending", "pending", count_text, is_number=True),
        Column("in_flight", "in flight", count_text, is_number=True),
        Column("redelivered", "redelivered", count_text, is_number=True),
        Column("rate", "msgs/s", _rate_text, is_number=True),
    ),
}
# Counters that rates are made of: (column, counter).
_RATES = {
    "servers": (("in_rate", "in_msgs"), ("out_rate", "out_msgs")),
    "streams": (("rate", "last_seq"), ("bytes_rate", "bytes")),
    "consumers": (("rate", "delivered"),),
}
_SORTED = {"servers": "name", "streams": "rate", "consumers": "pending"}


@wire_verb(None, "top", example="streamctl top streams --sort bytes --filter '^ORD'", is_long=True)
@click.argument("view", type=click.Choice((*VIEWS, "all")), default="all")
@click.option("--sort", help="Column to sort by, the highest first.")
@click.option("--filter", "pattern", default="", help="Only names that match this regex.")
@click.option("--every", default="2s", show_default=True, help="Time between two looks.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--times", type=click.IntRange(min=1), help="End after so many looks.")
async def command_top(
    link: Link,
    view: str,
    sort: str | None,
    pattern: str,
    every: str,
    limit: int,
    times: int | None,
) -> None:
    """Show servers (to a user of the system account), streams and consumers live, until Ctrl-C."""
    views = [name for name in VIEWS if view in (name, "all")]
    if sort is not None and not any(sort in _keys(name) for name in views):
        known = sorted(set().union(*map(_keys, views)))
        raise unusable(f"--sort {sort}: there are {', '.join(known)}")
    try:
        wanted = re.compile(pattern)
    except re.error as err:
        raise unusable(f"--filter {pattern!r}: {err}") from None
    pause_s = max(0.05, parse_span(every) / 1e9)
    looks = _Looks(link)
    screen = _Screen(link.settings.output)
    shown = 0
    try:
        while True:
            page = {}
            for name in views:
                rows = [row for row in await looks.at(name) if wanted.search(str(row["name"]))]
                _sort(rows, name, sort)
                page[name] = rows[:limit]
            screen.show(page, looks.remarks)
            shown += 1
            if times is not None and shown >= times:
                return
            await asyncio.sleep(pause_s)
    finally:
        screen.close()


def _keys(view: str) -> set[str]:
    return {column.key for column in COLUMNS[view]}


def _sort(rows: Rows, view: str, sort: str | None) -> None:
    key = sort if sort in _keys(view) else _SORTED[view]
    rows.sort(key=lambda row: str(row["name"]))
    if rows and not isinstance(rows[0][key], str):
        rows.sort(key=lambda row: float(row[key] or 0), reverse=True)


class _Looks:
    """Samples of a cluster, and the rates between two of them."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._before: dict[str, tuple[float, dict[str, dict[str, Any]]]] = {}
        self.remarks: dict[str, str] = {}

    async def at(self, view: str) -> Rows:
        """Return the rows of a view now; none, and a remark, where they can't be had."""
        try:
            rows = await getattr(self, f"_{view}")()
        except CtlError as err:
            self.remarks[view] = str(err)
            return []
        self.remarks.pop(view, None)
        now = time.monotonic()
        before_at, before = self._before.get(view, (now, {}))
        passed = now - before_at
        for row in rows:
            old = before.get(self._id(row))
            for column, counter in _RATES[view]:
                gained = row[counter] - old[counter] if old and passed else 0
                row[column] = max(0.0, gained / passed) if passed else 0.0
        self._before[view] = now, {self._id(row): row for row in rows}
        return list(rows)

    @staticmethod
    def _id(row: dict[str, Any]) -> str:
        return f"{row.get('stream', '')} {row['name']}"

    async def _servers(self) -> Rows:
        servers = await all_servers(self._link)
        if servers.missing:
            self.remarks["missing"] = f"no answer from {', '.join(servers.missing)}"
        else:
            self.remarks.pop("missing", None)
        return [server_row(answer) for answer in servers.found]

    async def _streams(self) -> Rows:
        return [
            {
                "name": info["config"]["name"],
                "leader": (info.get("cluster") or {}).get("leader"),
                "messages": info["state"]["messages"],
                "bytes": info["state"]["bytes"],
                "consumers": info["state"]["consumer_count"],
                "last_seq": info["state"]["last_seq"],
            }
            for info in await self._link.pages("STREAM.LIST", "streams")
        ]

    async def _consumers(self) -> Rows:
        rows: Rows = []
        for stream in await self._link.pages("STREAM.NAMES", "streams"):
            for info in await consumers_of(self._link, stream):
                rows.append(
                    {
                        "stream": stream,
                        "name": info["name"],
                        "pending": info["num_pending"],
                        "in_flight": info["num_ack_pending"],
                        "redelivered": info["num_redelivered"],
                        "delivered": info["delivered"]["consumer_seq"],
                    }
                )
        return rows


class _Screen:
    """Terminal whose page is written anew with each look; elsewhere pages behind each other."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._live: Any = None

    def show(self, page: dict[str, Rows], remarks: dict[str, str]) -> None:
        """Show one look."""
        if self._output != "table":
            print(json.dumps({"views": page, "remarks": remarks}), flush=True)
            return
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [Text(time.strftime("streamctl top  %H:%M:%S"))]
        for view, rows in page.items():
            parts.append(make_table(rows, COLUMNS[view]) if rows else Text(f"no {view}"))
        parts += [Text(text) for text in remarks.values()]
        content = Group(*parts)
        if not sys.stdout.isatty():
            console().print(content)
            return
        if self._live is None:
            from rich.live import Live

            self._live = Live(console=console(), screen=True, auto_refresh=False)
            self._live.start()
        self._live.update(content, refresh=True)

    def close(self) -> None:
        """Give the terminal back as it was."""
        if self._live is not None:
            self._live.stop()
