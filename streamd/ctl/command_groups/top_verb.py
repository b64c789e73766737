"""`streamctl top`: servers, streams and consumers, with their rates, again and again."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from streamd.callbacks import ignore
from streamd.ctl.asset_requests import consumers_of
from streamd.ctl.command_groups.server_verbs import SERVER_COLUMNS, server_row
from streamd.ctl.display import Column, clean, console, counts, make_table, show_item, sizes, words
from streamd.ctl.failures import CtlError, unusable
from streamd.ctl.nats_link import Link
from streamd.ctl.progress_bar import no_progress
from streamd.ctl.quantities import parse_span, size_text
from streamd.ctl.server_survey import all_servers
from streamd.ctl.settings import Settings
from streamd.ctl.terminal_keys import pressed_keys
from streamd.ctl.top_state import Rows, TopState
from streamd.ctl.verbs import count_option, wire_verb

VIEWS = ("servers", "streams", "consumers")


def _rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.1f}"


def _bytes_rate(rate: float) -> str:
    return f"{size_text(round(rate))}/s"


_OF_SERVERS = ("meta", "cpu", "memory", "connections")
COLUMNS: dict[str, Sequence[Column]] = {
    "servers": (
        Column("name", "server"),
        *(column for column in SERVER_COLUMNS if column.key in _OF_SERVERS),
        Column("in_rate", "msgs in/s", _rate_text, is_number=True),
        Column("out_rate", "msgs out/s", _rate_text, is_number=True),
        *counts("slow_consumers=slow"),
    ),
    "streams": (
        *words("name=stream", "leader"),
        *counts("messages"),
        *sizes("bytes"),
        *counts("consumers"),
        Column("rate", "msgs/s", _rate_text, is_number=True),
        Column("bytes_rate", "growth", _bytes_rate, is_number=True),
    ),
    "consumers": (
        *words("stream", "name=consumer"),
        *counts("pending", "in_flight", "redelivered"),
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
@count_option("-n", "--limit", default=20, help_text="Most rows of each view.")
@click.option("--times", type=click.IntRange(min=1), help="End after so many looks.")
@click.option("--once", is_flag=True, help="One page, with rates over --every, and no keys.")
async def command_top(
    link: Link,
    view: str,
    sort: str | None,
    pattern: str,
    every: str,
    limit: int,
    times: int | None,
    once: bool,
) -> None:
    """Show servers (to a user of the system account), streams and consumers live, until Ctrl-C.

    Keys at a terminal: q quits, s and S (or the arrows) choose the column to sort by, r reverses,
    / filters, v changes the view, p pauses, + and - change the pace, ? shows the keys."""
    if once and times is not None:
        raise unusable("--once and --times exclude each other")
    keys = {name: [column.key for column in columns] for name, columns in COLUMNS.items()}
    views = [name for name in VIEWS if view in (name, "all")]
    state = TopState(keys, _SORTED, views, sort, pattern, parse_span(every) / 1e9)
    looks = _Looks(link)
    if once:
        await _look(looks, state)
        await asyncio.sleep(state.every_s)
        times = 1
    is_live = link.settings.output == "table" and sys.stdout.isatty() and times is None
    page = _Page(_Screen(link.settings, is_live), looks, state, limit)
    try:
        async with asyncio.timeout(None) as scope:
            await page.show_until_over(times, lambda: scope.reschedule(0))
    except TimeoutError:
        if not scope.expired():
            raise
    finally:
        page.close()


async def _look(looks: _Looks, state: TopState) -> dict[str, Rows]:
    return {name: await looks.at(name) for name in state.views}


class _Page:
    """Page that is shown again with each look, and with each key."""

    def __init__(self, screen: _Screen, looks: _Looks, state: TopState, limit: int) -> None:
        self._screen = screen
        self._looks = looks
        self._state = state
        self._limit = limit
        self._rows: dict[str, Rows] = {}
        self._pressed = asyncio.Event()
        self._quit: Callable[[], None] = ignore

    async def show_until_over(self, times: int | None, on_quit: Callable[[], None]) -> None:
        """Look and show, so many times or until a key ends it, which calls `on_quit`."""
        self._quit = on_quit
        if self._screen.is_live:
            with pressed_keys(self._typed), no_progress():
                await self._go_on(times)
        else:
            await self._go_on(times)

    async def _go_on(self, times: int | None) -> None:
        shown = 0
        while True:
            self._rows = await _look(self._looks, self._state)
            self._show()
            shown += 1
            if times is not None and shown >= times:
                return
            await self._pause()

    def _typed(self, text: str) -> None:
        self._state.type(text)
        if self._state.is_over:
            self._quit()
            self._quit = ignore
        self._pressed.set()

    async def _pause(self) -> None:
        """Wait until it is time for the next look; keys show the last one anew."""
        state, views = self._state, self._state.views
        until = time.monotonic() + state.every_s
        while state.views == views:
            self._pressed.clear()
            left = None if state.is_paused else max(0.0, until - time.monotonic())
            try:
                async with asyncio.timeout(left):
                    await self._pressed.wait()
            except TimeoutError:
                return
            until = min(until, time.monotonic() + state.every_s)
            if state.views == views:
                self._show()

    def _show(self) -> None:
        state = self._state
        page = {view: state.chosen(view, rows)[: self._limit] for view, rows in self._rows.items()}
        footer = state.lines() if self._screen.is_live else []
        self._screen.show(page, self._looks.remarks, footer)

    def close(self) -> None:
        """Give the terminal back as it was."""
        self._screen.close()


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
    """Terminal whose page is written anew with each look; else pages behind each other."""

    def __init__(self, settings: Settings, is_live: bool) -> None:
        self.is_live = is_live
        self._settings = settings
        self._live: Any = None

    def show(self, page: dict[str, Rows], remarks: dict[str, str], footer: list[str]) -> None:
        """Show one look."""
        if show_item(self._settings, {"views": page, "remarks": remarks}):
            return
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [Text(time.strftime("streamctl top  %H:%M:%S"))]
        for view, rows in page.items():
            parts.append(make_table(rows, COLUMNS[view]) if rows else Text(f"no {view}"))
        parts += [Text(clean(text)) for text in (*remarks.values(), *footer)]
        content = Group(*parts)
        if not self.is_live:
            console().print(content)
            sys.stdout.flush()
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
