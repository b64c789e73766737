"""`streamctl audit`: replicas of streams compared, in directories or at servers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import click

from streamd.ctl.display import Column, note, show_rows
from streamd.ctl.failures import UNUSABLE, CtlError, unusable
from streamd.ctl.quantities import count_text
from streamd.ctl.settings import Settings
from streamd.ctl.verbs import verb

EQUAL = "equal"
BAD = ("drift", "damage")
AGAIN_S = 0.3

COLUMNS = (
    Column("stream", "stream"),
    Column("verdict", "verdict"),
    Column("at_index", "at index", count_text, is_number=True),
    Column("messages", "messages", count_text, is_number=True),
    Column("read", "replicas read", lambda names: ", ".join(names) or "none"),
    Column("missing", "missing", lambda names: ", ".join(names) or "none"),
    Column("where", "sequences", lambda text: text or "-"),
)


@verb(None, "audit", example="streamctl audit backup/n1 backup/n2 backup/n3")
@click.argument("directories", metavar="[DIR]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--servers", "is_live", is_flag=True, help="Running servers, by their digests.")
@click.option("--wait", default=10.0, show_default=True, help="Seconds until replicas stand still.")
def command_audit(
    settings: Settings, directories: tuple[Path, ...], is_live: bool, wait: float
) -> int:
    """Compare the replicas of all streams.

    Of directories every message is read, and a difference is told by its sequence; the servers may
    be running. With --servers the digests of the servers' states at one log index are compared,
    which says nothing of their files: `streamctl scrub` does. Status 0: all equal. 1: drift or
    damage. 2: a replica is missing or could not be read."""
    if is_live == bool(directories):
        raise unusable("name directories, or --servers")
    rows = _of_servers(settings, wait) if is_live else _of_directories(directories)
    show_rows(settings, rows, COLUMNS, none="no streams in files")
    for row in rows:
        for reason in row["reasons"]:
            note(f"{row['stream']}: {reason}")
        if row["missing"]:
            note(f"{row['stream']}: nothing was read of {', '.join(row['missing'])}")
    if any(row["verdict"] in BAD for row in rows):
        return 1
    return 0 if rows and all(row["verdict"] == EQUAL for row in rows) else UNUSABLE


def _of_directories(directories: tuple[Path, ...]) -> list[dict[str, Any]]:
    from streamd.ctl.progress_bar import progress_bar
    from streamd.offline.directory_audit import audit_directories
    from streamd.offline.replica_state import ranges_text
    from streamd.offline.store_dirs import find_stores, named_stores

    try:
        paths = [store.path for directory in directories for store in find_stores(directory)]
    except FileNotFoundError as err:
        raise unusable(str(err)) from None
    if len(set(paths)) < len(paths):
        raise unusable("a directory is named twice: it would be compared with itself")
    with progress_bar("comparing streams") as bar:
        verdicts = audit_directories(named_stores(paths), lambda _: bar.advance())
    return [each._asdict() | {"where": ranges_text(each.seqs)} for each in verdicts]


def _of_servers(settings: Settings, wait_s: float) -> list[dict[str, Any]]:
    from streamd.ctl.nats_link import Link, run_on_link

    rows: list[dict[str, Any]] = []

    async def ask(link: Link) -> None:
        rows.extend(await _compare(link, wait_s))

    run_on_link(settings, ask)
    return rows


async def _compare(link: Any, wait_s: float) -> list[dict[str, Any]]:
    """Ask until every stream was seen at one log index on all of its members, or time is up."""
    from streamd.ctl.server_survey import all_servers, replicas_of

    deadline = time.monotonic() + wait_s
    done: dict[tuple[str, str], dict[str, Any]] = {}
    while True:
        servers = await all_servers(link)
        here: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        failures: list[str] = []
        for server in servers.found:
            name = server["server"]["name"]
            try:
                for replica in await replicas_of(link, server):
                    key = replica["account"], replica["name"]
                    here.setdefault(key, {})[name] = replica
            except CtlError as err:
                failures.append(str(err))
        rows = {key: _row(key, replicas, failures) for key, replicas in here.items()}
        for key, row in rows.items():
            if row["verdict"] == EQUAL or key not in done or done[key]["verdict"] != EQUAL:
                done[key] = row
        done = {key: row for key, row in done.items() if key in rows}  # others were deleted
        is_open = any(row["is_moving"] for row in done.values())
        if not is_open or time.monotonic() > deadline:
            for row in done.values():
                row.pop("is_moving")
            return [done[key] for key in sorted(done)]
        await asyncio.sleep(AGAIN_S)


def _row(
    key: tuple[str, str], replicas: dict[str, dict[str, Any]], failures: list[str]
) -> dict[str, Any]:
    account, name = key
    members: set[str] = set()
    for server, replica in replicas.items():
        cluster = replica.get("cluster") or {}
        members |= {server} | {peer["name"] for peer in cluster.get("replicas") or []}
    missing = sorted(members - replicas.keys())
    newest = max(replica["applied"] for replica in replicas.values())
    at_newest = {n: r for n, r in replicas.items() if r["applied"] == newest}
    reasons = list(failures)
    is_moving = len(at_newest) < len(replicas)
    if len({replica["digest"] for replica in at_newest.values()}) > 1:
        verdict, is_moving = "drift", False
        reasons += [f"{n}: digest {r['digest']} at {newest}" for n, r in at_newest.items()]
        reasons.append("audit the servers' directories to see which messages differ")
    elif missing or failures or is_moving:
        verdict = "incomplete"
        if is_moving:
            ends = ", ".join(f"{n} {r['applied']}" for n, r in replicas.items())
            reasons.append(f"never seen at one log index: {ends}")
    else:
        verdict = EQUAL
    return {
        "stream": name if account == "$G" else f"{account}/{name}",
        "verdict": verdict,
        "at_index": newest,
        "messages": max(r["state"]["messages"] for r in replicas.values()),
        "read": sorted(at_newest),
        "missing": missing,
        "seqs": [],
        "where": "",
        "reasons": reasons,
        "is_moving": is_moving,
    }
