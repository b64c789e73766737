"""`streamctl audit`: replicas of streams compared, in directories or at servers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import click

from streamd.ctl.display import Column, counts, note, show_rows, words
from streamd.ctl.drift_search import Ask, find_drift
from streamd.ctl.failures import UNUSABLE, CtlError, unusable
from streamd.ctl.progress_bar import progress_bar, spinner
from streamd.ctl.settings import Settings
from streamd.ctl.store_keys import key_option
from streamd.ctl.verbs import verb
from streamd.errors import StreamdError

EQUAL, DRIFT, INCOMPLETE = "equal", "drift", "incomplete"
BAD = (DRIFT, "damage")
AGAIN_S = 0.3

COLUMNS = (
    *words("stream", "verdict"),
    *counts("at_index", "messages"),
    Column("read", "replicas read", lambda names: ", ".join(names) or "none"),
    Column("missing", "missing", lambda names: ", ".join(names) or "none"),
    Column("where", "sequences", lambda text: text or "-"),
)


@verb(None, "audit", example="streamctl audit backup/n1 backup/n2 backup/n3")
@click.argument("directories", metavar="[DIR]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--servers", "is_live", is_flag=True, help="Running servers, by their digests.")
@key_option
@click.option("--wait", default=10.0, show_default=True, help="Seconds until replicas stand still.")
def command_audit(
    settings: Settings, directories: tuple[Path, ...], is_live: bool, wait: float
) -> int:
    """Compare the replicas of all streams.

    Of directories every message is read; the servers may be running. With --servers the digests
    of the servers' states at one log index are compared, which says nothing of their files:
    `streamctl scrub` does. A difference is told by its sequences, and by the servers that have
    something else there than most. Status 0: all equal. 1: drift or damage. 2: a replica is
    missing or could not be read."""
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
    from streamd.offline.directory_audit import audit_directories
    from streamd.offline.replica_state import ranges_text
    from streamd.offline.store_dirs import find_stores, named_stores

    try:
        paths = [store.path for directory in directories for store in find_stores(directory)]
    except FileNotFoundError as err:
        raise unusable(str(err)) from None
    if len(set(paths)) < len(paths):
        raise unusable("a directory is named twice: it would be compared with itself")
    try:
        with progress_bar("comparing streams") as bar:
            verdicts = audit_directories(named_stores(paths), lambda _: bar.advance())
    except StreamdError as err:  # nothing can be read
        raise unusable(str(err)) from err
    return [
        each._asdict()
        | {"where": ranges_text(each.seqs), "odd": [odd._asdict() for odd in each.odd]}
        for each in verdicts
    ]


def _of_servers(settings: Settings, wait_s: float) -> list[dict[str, Any]]:
    from streamd.ctl.nats_link import Link, run_on_link

    rows: list[dict[str, Any]] = []

    async def ask(link: Link) -> None:
        with spinner("comparing the servers' replicas"):
            rows.extend(await _compare(link, wait_s))

    run_on_link(settings, ask)
    return rows


async def _compare(link: Any, wait_s: float) -> list[dict[str, Any]]:
    """Ask until every stream was seen at one log index on all of its members, or time is up."""
    from streamd.ctl.server_survey import all_servers, ask_server, replicas_of

    by_name: dict[str, dict[str, Any]] = {}

    async def ask(server: str, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await ask_server(link, by_name[server], "STREAMD.DIGESTS", body)
        return answer

    deadline = time.monotonic() + wait_s
    done: dict[tuple[str, str], dict[str, Any]] = {}
    while True:
        servers = await all_servers(link)
        here: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        failures: list[str] = []
        for server in servers.found:
            name = server["server"]["name"]
            by_name[name] = server
            try:
                for replica in await replicas_of(link, server):
                    key = replica["account"], replica["name"]
                    here.setdefault(key, {})[name] = replica
            except CtlError as err:
                failures.append(str(err))
        rows = {key: _row(key, replicas, failures) for key, replicas in here.items()}
        for key, row in rows.items():
            if key in done and not _is_news(row, done[key]):
                continue
            if row["verdict"] == DRIFT:
                await _narrow(ask, key, row)
            done[key] = row
        done = {key: row for key, row in done.items() if key in rows}  # others were deleted
        is_open = any(row["is_moving"] for row in done.values())
        if not is_open or time.monotonic() > deadline:
            for row in done.values():
                row.pop("is_moving")
            return [done[key] for key in sorted(done)]
        await asyncio.sleep(AGAIN_S)


def _is_news(row: dict[str, Any], before: dict[str, Any]) -> bool:
    """True if a row tells more of a stream than the one of before: a look that could compare
    nothing takes nothing back, and of drift the sequences are known unless it read more."""
    if before["verdict"] == INCOMPLETE:
        return True
    if row["verdict"] == before["verdict"] == DRIFT:
        return len(row["read"]) > len(before["read"])
    return row["verdict"] not in (INCOMPLETE, before["verdict"])


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
        verdict = DRIFT  # one that is yet to come here may tell which of these is odd
        reasons += [f"{n}: digest {r['digest']} at {newest}" for n, r in at_newest.items()]
    elif found := _differing_state(replicas):
        verdict, is_moving = DRIFT, False
        reasons.append(found)
    elif missing or failures or is_moving:
        verdict = INCOMPLETE
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
        "odd": [],
        "reasons": reasons,
        "is_moving": is_moving,
    }


def _differing_state(replicas: dict[str, dict[str, Any]]) -> str:
    """Return which replicas took other fingerprints at the index of one checkpoint, though their
    messages are equal; "" if none did. A fingerprint is of consumers and configuration too."""
    by_index: dict[int, dict[str, str]] = {}
    for name, replica in replicas.items():
        checkpoint = replica.get("checkpoint") or {}
        if checkpoint.get("index"):
            taken = by_index.setdefault(checkpoint["index"], {})
            taken[name] = checkpoint["fingerprint"]
    for index, taken in by_index.items():
        if len(set(taken.values())) > 1:
            told = ", ".join(" ".join(each) for each in sorted(taken.items()))
            return f"consumers or configuration differ at {index}: fingerprints {told}"
    return ""


async def _narrow(ask: Ask, key: tuple[str, str], row: dict[str, Any]) -> None:
    """Tell at which sequences replicas differ, and whose."""
    from streamd.offline.odd_replicas import gathered
    from streamd.offline.replica_state import ranges_text

    account, name = key
    if len(row["read"]) < 2:
        return
    try:
        found = await find_drift(ask, row["read"], account, name, row["at_index"])
    except CtlError as err:
        row["reasons"].append(f"{err}; audit the servers' directories to see which messages differ")
        return
    row["seqs"] = sorted(found.seqs)
    row["where"] = ranges_text(row["seqs"])
    for names, seqs in gathered(found.seqs):
        row["odd"].append({"replicas": names, "seqs": seqs})
        row["reasons"].append(f"{', '.join(names)}: other messages at {ranges_text(seqs)}")
    if found.reason:
        row["reasons"].append(found.reason)
