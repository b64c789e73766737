"""`streamctl trash`: what servers set aside in their data directories."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from streamd.ctl.display import Column, note, say, show_data, show_rows, sizes, spans, words
from streamd.ctl.failures import CtlError, unusable
from streamd.ctl.name_completion import SERVER_NAME
from streamd.ctl.progress_bar import spinner, with_progress
from streamd.ctl.quantities import parse_span, size_text
from streamd.ctl.questions import confirm, yes_option
from streamd.ctl.settings import Settings
from streamd.ctl.store_keys import key_option
from streamd.ctl.verbs import VerbGroup, verb

PURGED_WITHIN_S: Final = 120.0
Row = dict[str, Any]


@click.group("trash", cls=VerbGroup)
def command_trash() -> None:
    """Look at what servers set aside in data directories; put it back, or destroy it."""


on_option = click.option(
    "--on",
    "server",
    default="",
    type=SERVER_NAME,
    help="Running server instead of a DIR, by the system account.",
)

_COLUMNS = (
    *words("name", "kind"),
    *sizes("bytes"),
    *spans("age_ns=age"),
    Column("directory", "where"),
)


def _age_ns(mtime_ns: int) -> int:
    return max(0, time.time_ns() - mtime_ns) if mtime_ns else 0


@verb(command_trash, "list", example="streamctl trash list data/cluster/node1/store")
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@on_option
@click.option("--servers", "is_live", is_flag=True, help="All running servers instead of a DIR.")
@key_option
def list_items(settings: Settings, directory: Path | None, server: str, is_live: bool) -> int:
    """List what lies in the trash of data directories or running servers, the oldest first."""
    if sum((directory is not None, bool(server), is_live)) != 1:
        raise unusable("name a directory, --on SERVER, or --servers")
    missing: list[str] = []
    if directory is not None:
        rows = _rows_in(directory)
    else:
        rows, missing = _rows_on(settings, (server,) if server else ())
    show_rows(settings, rows, _COLUMNS, none="the trash is empty")
    if missing:
        note(f"no answer from {', '.join(missing)}")
    return 1 if missing else 0


def _rows_in(directory: Path) -> list[Row]:
    from streamd.offline.trash_directory import items

    return [
        {
            "name": item.path.name,
            "kind": item.kind,
            "bytes": item.size,
            "age_ns": _age_ns(int(item.mtime_s * 1e9)),
            "directory": str(item.store.path),
        }
        for item in items(directory)
    ]


def _rows_on(settings: Settings, names: tuple[str, ...]) -> tuple[list[Row], list[str]]:
    """Return what lies in the trash of running servers, and which servers do not answer."""
    from streamd.ctl.nats_link import Link, run_on_link
    from streamd.ctl.server_survey import ask_server, chosen_servers

    rows: list[Row] = []
    missing: list[str] = []

    async def ask(link: Link) -> None:
        servers = await chosen_servers(link, names)
        missing.extend(servers.missing)
        for server in servers.found:
            answer = await ask_server(link, server, "STREAMD.TRASH", {"action": "list"})
            where = server["server"]["name"]
            for item in answer["items"]:
                age_ns = _age_ns(item.pop("mtime_ns"))
                rows.append({**item, "age_ns": age_ns, "directory": where})
            if answer["total"] > len(answer["items"]):
                note(f"{where}: the oldest {len(answer['items'])} of {answer['total']}")

    run_on_link(settings, ask)
    rows.sort(key=lambda row: (-row["age_ns"], row["name"]))
    return rows, missing


def _change_on(settings: Settings, server: str, action: str, names: Sequence[str]) -> list[Row]:
    """Ask a running server to destroy or put back what is named, one after another; return its
    answers."""
    from streamd.ctl.nats_link import Link, run_on_link
    from streamd.ctl.server_survey import ask_server, chosen_servers

    answers: list[Row] = []

    async def ask(link: Link) -> None:
        (chosen,) = (await chosen_servers(link, (server,))).found
        for name in with_progress(f"asking {server}", names):
            body = {"action": action, "names": [name]}
            with spinner(f"waiting for {server}: {name}"):
                answer = await ask_server(link, chosen, "STREAMD.TRASH", body, PURGED_WITHIN_S)
            answers.append(answer)

    run_on_link(settings, ask)
    return answers


def _words(server: str, words: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """Return the directory and the names of a command line; with a server all words are names."""
    if server:
        return Path(), words
    if not words:
        raise unusable("name a directory, or --on SERVER")
    return Path(words[0]), words[1:]


@verb(command_trash, "restore", example="streamctl trash restore store orphan-7-1700000000 --yes")
@click.argument("words", metavar="[DIR] NAME", nargs=-1)
@on_option
@key_option
@yes_option
def restore(settings: Settings, words: tuple[str, ...], server: str, yes: bool) -> None:
    """Put the directory of a stream back to where it was, for the next start. On a running server
    only where it serves no replica of the stream; else the server must not run.

    Log entries that were set aside are published again by `streamctl discarded replay`."""
    directory, names = _words(server, words)
    if len(names) != 1:
        raise unusable("name the one thing to put back: streamctl trash list")
    if server:
        confirm(f"put {names[0]} back on server {server}", yes)
        (answer,) = _change_on(settings, server, "restore", names)
        target = str(answer["restored"])
    else:
        from streamd.offline.trash_directory import find, put_back

        item = find(directory, names[0])
        confirm(f"put {names[0]} ({size_text(item.size)}) back into {item.store.path}", yes)
        target = str(put_back(item))
    if not show_data(settings, {"restored": target}):
        say(f"{target}: the next start takes it")


@verb(command_trash, "purge", example="streamctl trash purge store --older 30d --yes")
@click.argument("words", metavar="[DIR] [NAME]...", nargs=-1)
@click.option("--older", help="All that is older than this, as 30d.")
@on_option
@key_option
@yes_option
def purge(
    settings: Settings, words: tuple[str, ...], older: str | None, server: str, yes: bool
) -> None:
    """Destroy what lies in the trash: by name, or by age. The server of a DIR must not run; with
    --on a running one does it itself."""
    directory, names = _words(server, words)
    if bool(names) == (older is not None):
        raise unusable("say what to destroy: names, or --older AGE")
    rows = _rows_on(settings, (server,))[0] if server else _rows_in(directory)
    if older is not None:
        least_ns = parse_span(older)
        chosen = [row for row in rows if row["age_ns"] > least_ns and not row["name"].isdigit()]
    else:
        chosen = [_named(rows, name, server or str(directory)) for name in names]
    if not chosen:
        note(f"nothing in the trash is older than {older}")
        show_data(settings, {"destroyed": []})
        return
    total = size_text(sum(row["bytes"] for row in chosen))
    listed = ", ".join(row["name"] for row in chosen[:5])
    more = f" and {len(chosen) - 5} more" if len(chosen) > 5 else ""
    confirm(f"destroy {listed}{more}, {total}, for ever", yes)
    gone = [str(row["name"]) for row in chosen]
    if server:
        _change_on(settings, server, "purge", gone)
    else:
        _remove(directory, chosen)
    if not show_data(settings, {"destroyed": gone}):
        say(f"destroyed {len(chosen)}, {total}")


def _named(rows: list[Row], name: str, where: str) -> Row:
    for row in rows:
        if row["name"] == name:
            return row
    there = ", ".join(row["name"] for row in rows) or "nothing"
    raise CtlError(f"{name!r} is not in the trash of {where}: there is {there}")


def _remove(directory: Path, rows: list[Row]) -> None:
    """Destroy what these rows tell of the trash of data directories."""
    from streamd.offline.trash_directory import items, remove

    there = {(str(item.store.path), item.path.name): item for item in items(directory)}
    for row in with_progress("destroying", rows):
        item = there.get((row["directory"], row["name"]))
        if item is not None:  # else somebody else did it, while this one was asked
            remove(item)
