"""`streamctl scrub`: every file of servers verified now, while they run."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from streamd.ctl.display import Column, counts, note, show_rows, sizes, words
from streamd.ctl.failures import UNUSABLE, CtlError
from streamd.ctl.name_completion import SERVER_NAME
from streamd.ctl.nats_link import Link
from streamd.ctl.progress_bar import Steps, progress_bar
from streamd.ctl.server_survey import ask_server, chosen_servers
from streamd.ctl.verbs import wire_verb

POLL_S = 0.2

COLUMNS = (
    *words("server", "state"),
    *counts("files"),
    *sizes("read_bytes=read"),
    *counts("skipped=not readable"),
    Column("damaged", "damaged", lambda damaged: "; ".join(damaged) or "nothing"),
)


@wire_verb(None, "scrub", example="streamctl scrub n1 n2")
@click.argument("servers", metavar="[SERVER]...", nargs=-1, type=SERVER_NAME)
@click.option("--status", "is_status", is_flag=True, help="Only say how the last round went.")
async def command_scrub(link: Link, servers: tuple[str, ...], is_status: bool) -> int:
    """Read and verify all files of servers (default: of all), and show what is damaged.

    What is damaged on one server is fetched from others by itself. Status 0: all files were read,
    and are whole. 1: damage. 2: a server or a file could not be read, so nothing is known of it."""
    chosen = await chosen_servers(link, servers)
    with progress_bar("verifying files") as bar:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_scrub(link, one, is_status, bar)) for one in chosen.found]
    rows = [task.result() for task in tasks]
    rows += [_row(name, "no answer", {}) for name in chosen.missing]
    show_rows(link.settings, rows, COLUMNS)
    for row in rows:
        for stream, reason in row["damaged"].items():
            note(f"{row['server']}: {stream}: {reason}")
        for stream, reason in row["failed"].items():
            note(f"{row['server']}: {stream} was not read, it is stopped there: {reason}")
    is_damaged = any(row["damaged"] or row["new_damages"] for row in rows)
    is_known = all(_is_known(row) for row in rows)
    return 1 if is_damaged else 0 if is_known else UNUSABLE


def _row(server: str, state: str, found: dict[str, Any]) -> dict[str, Any]:
    return {
        "server": server,
        "state": state,
        "files": found.get("files", 0),
        "read_bytes": found.get("read_bytes", 0),
        "skipped": found.get("skipped", 0),
        "damaged": found.get("damaged", {}),
        "failed": found.get("failed", {}),
        "new_damages": found.get("new_damages", 0),
    }


def _is_known(row: dict[str, Any]) -> bool:
    return row["state"] == "verified" and not row["skipped"] and not row["failed"]


async def _scrub(link: Link, server: dict[str, Any], is_status: bool, bar: Steps) -> dict[str, Any]:
    name = server["server"]["name"]
    request = "STREAMD.SCRUB"
    try:
        found = await ask_server(link, server, request, {"begin": not is_status})
        before, damages = found["rounds"], found["damages"]
        if is_status:
            state = "running" if found["is_running"] else "verified" if before else "not yet"
            return _row(name, state, found)
        bar.expect(found["files"])
        shown = 0
        while found["rounds"] == before:
            await asyncio.sleep(POLL_S)
            found = await ask_server(link, server, request)
            done = found["files"] - found["files_left"]
            bar.advance(done - shown)
            shown = done
        return _row(name, "verified", found | {"new_damages": found["damages"] - damages})
    except CtlError as err:
        note(str(err))
        return _row(name, "no answer", {})
