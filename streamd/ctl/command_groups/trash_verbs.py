"""`streamctl trash`: what servers set aside in their data directories."""

from __future__ import annotations

import time
from pathlib import Path

import click

from streamd.ctl.display import Column, note, say, show_data, show_rows
from streamd.ctl.failures import unusable
from streamd.ctl.quantities import parse_span, size_text, span_text
from streamd.ctl.questions import confirm, yes_option
from streamd.ctl.settings import Settings
from streamd.ctl.verbs import VerbGroup, verb


@click.group("trash", cls=VerbGroup)
def command_trash() -> None:
    """Look at what servers set aside in data directories; put it back, or destroy it."""


directory_argument = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))

_COLUMNS = (
    Column("name", "name"),
    Column("kind", "kind"),
    Column("bytes", "bytes", size_text, is_number=True),
    Column("age_ns", "age", span_text, is_number=True),
    Column("directory", "directory"),
)


@verb(command_trash, "list", example="streamctl trash list data/cluster/node1/store")
@directory_argument
def list_items(settings: Settings, directory: Path) -> None:
    """List what lies in the trash of data directories, the oldest first."""
    from streamd.offline.trash_directory import items

    rows = [
        {
            "name": item.path.name,
            "kind": item.kind,
            "bytes": item.size,
            "age_ns": max(0, int((time.time() - item.mtime_s) * 1e9)),
            "directory": str(item.store.path),
        }
        for item in items(directory)
    ]
    show_rows(settings, rows, _COLUMNS, none="the trash is empty")


@verb(command_trash, "restore", example="streamctl trash restore store orphan-7-1700000000 --yes")
@directory_argument
@click.argument("name")
@yes_option
def restore(settings: Settings, directory: Path, name: str, yes: bool) -> None:
    """Put the directory of a stream back to where it was; the server must not run.

    Log entries that were set aside are published again by `streamctl discarded replay`."""
    from streamd.offline.trash_directory import find, put_back

    item = find(directory, name)
    confirm(f"put {name} ({size_text(item.size)}) back into {item.store.path}", yes)
    target = put_back(item)
    if not show_data(settings, {"restored": str(target)}):
        say(f"{target}: the next start takes it")


@verb(command_trash, "purge", example="streamctl trash purge store --older 30d --yes")
@directory_argument
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--older", help="All that is older than this, as 30d.")
@yes_option
def purge(
    settings: Settings, directory: Path, names: tuple[str, ...], older: str | None, yes: bool
) -> None:
    """Destroy what lies in the trash: by name, or by age. The server must not run."""
    from streamd.offline.trash_directory import find, items, remove

    if bool(names) == (older is not None):
        raise unusable("say what to destroy: names, or --older AGE")
    if older is not None:
        limit = time.time() - parse_span(older) / 1e9
        chosen = [item for item in items(directory) if item.mtime_s < limit]
    else:
        chosen = [find(directory, name) for name in names]
    if not chosen:
        note(f"nothing in the trash is older than {older}")
        show_data(settings, {"destroyed": []})
        return
    total = size_text(sum(item.size for item in chosen))
    listed = ", ".join(item.path.name for item in chosen[:5])
    more = f" and {len(chosen) - 5} more" if len(chosen) > 5 else ""
    confirm(f"destroy {listed}{more}, {total}, for ever", yes)
    for item in chosen:
        remove(item)
    if not show_data(settings, {"destroyed": [item.path.name for item in chosen]}):
        say(f"destroyed {len(chosen)}, {total}")
