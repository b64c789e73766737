"""`streamctl server`: servers of a cluster, by the system account."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from streamd.ctl.asset_requests import refuse_no_name
from streamd.ctl.display import (
    Column,
    Field,
    counts,
    note,
    say,
    show_data,
    show_fields,
    show_rows,
    sizes,
    words,
)
from streamd.ctl.failures import CtlError, unusable
from streamd.ctl.name_completion import SERVER_NAME, STREAM_NAME
from streamd.ctl.nats_link import Link
from streamd.ctl.progress_bar import spinner
from streamd.ctl.quantities import count_text, since_text, size_text
from streamd.ctl.questions import confirm, yes_option
from streamd.ctl.server_survey import all_servers, ask_server, chosen_servers
from streamd.ctl.verbs import VerbGroup, count_option, wire_verb

POLL_S = 0.2
GONE_WITHIN_S = 120.0


@click.group("server", cls=VerbGroup)
def command_server() -> None:
    """Show and operate the servers of a cluster; takes a user of the system account."""


def server_row(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a server's statistics say of it, for a table."""
    server, stats = answer["server"], answer["statsz"]
    meta = (stats.get("jetstream") or {}).get("meta") or {}
    leader = meta.get("leader", "")
    return {
        "name": server["name"],
        "id": server["id"],
        "host": server["host"],
        "version": server["ver"],
        "cluster": server.get("cluster", ""),
        "meta": "" if not meta else "leader" if leader == server["name"] else "follower",
        "started": stats["start"],
        "cpu": stats["cpu"],
        "memory": stats["mem"],
        "connections": stats["connections"],
        "subscriptions": stats["subscriptions"],
        "slow_consumers": stats["slow_consumers"],
        "in_msgs": stats["received"]["msgs"],
        "out_msgs": stats["sent"]["msgs"],
    }


SERVER_COLUMNS = (
    *words("name", "version"),
    Column("meta", "meta", lambda role: role or "-"),
    Column("started", "up", since_text, is_number=True),
    Column("cpu", "cpu %", lambda cpu: f"{cpu:.0f}", is_number=True),
    *sizes("memory"),
    *counts(
        "connections=clients",
        "subscriptions=subs",
        "slow_consumers=slow",
        "in_msgs=msgs in",
        "out_msgs=msgs out",
    ),
)


@wire_verb(command_server, "list", example="streamctl server list --user admin --password secret")
async def list_servers(link: Link) -> int:
    """List the servers; status 1 if one that the cluster knows does not answer."""
    servers = await all_servers(link)
    show_rows(link.settings, [server_row(answer) for answer in servers.found], SERVER_COLUMNS)
    if servers.missing:
        note(f"no answer from {', '.join(servers.missing)}")
    return 1 if servers.missing else 0


@wire_verb(command_server, "info", example="streamctl server info n1")
@click.argument("server", type=SERVER_NAME)
async def info(link: Link, server: str) -> None:
    """Show what a server is, and how it is configured (VARZ)."""
    (found,) = (await chosen_servers(link, (server,))).found
    varz = await ask_server(link, found, "VARZ")
    about = [
        Field("version", str(varz["version"])),
        Field("id", str(varz["server_id"])),
        Field("host", f"{varz['host']}:{varz['port']}"),
        Field("monitoring", str(varz.get("http_port") or varz.get("https_port") or "-")),
        Field("started", since_text(varz["start"]) + " ago"),
        Field("memory", size_text(varz["mem"])),
        Field("clients", count_text(varz["connections"])),
        Field("routes", count_text(varz.get("routes", 0))),
        Field("max payload", size_text(varz["max_payload"])),
        Field("max connections", count_text(varz["max_connections"])),
        Field("TLS", "required" if varz.get("tls_required") else "no"),
        Field("login", "required" if varz.get("auth_required") else "no"),
    ]
    js = (varz.get("jetstream") or {}).get("config") or {}
    storage = [
        Field("store", str(js.get("store_dir", "-"))),
        Field("max memory", size_text(js.get("max_memory"))),
        Field("max storage", size_text(js.get("max_storage"))),
    ]
    sections = [(f"Server {varz['server_name']}", about), ("JetStream", storage if js else [])]
    show_fields(link.settings, varz, sections)


@wire_verb(command_server, "report", example="streamctl server report connections --sort pending")
@click.argument("kind", type=click.Choice(("jetstream", "connections", "health")))
@click.option("--sort", help="Column of connections to sort by, the highest first.")
@count_option("-n", "--limit", default=100, help_text="Most rows.")
async def report(link: Link, kind: str, sort: str | None, limit: int) -> int:
    """Show streams, connections or health of all servers; status 1 if something is amiss."""
    servers = await all_servers(link)
    status = 0
    columns: tuple[Column, ...]
    if kind == "jetstream":
        rows, columns = await _jetstream(link, servers.found), _JETSTREAM
    elif kind == "health":
        rows, columns = await _health(link, servers.found), _HEALTH
        status = int(any(row["status"] != "ok" for row in rows))
    else:
        rows, columns = await _connections(link, servers.found, limit), _CONNECTIONS
        if sort is not None:
            if sort not in rows[0] if rows else False:
                raise unusable(f"--sort {sort}: there are {', '.join(rows[0])}")
            rows.sort(key=lambda row: (isinstance(row[sort], str), row[sort]), reverse=True)
        rows = rows[:limit]
    if servers.missing:
        note(f"no answer from {', '.join(servers.missing)}")
        status = 1
    show_rows(link.settings, rows, columns)
    return status


_JETSTREAM = (
    Column("server", "server"),
    *counts("streams", "led", "consumers", "messages"),
    *sizes("bytes", "memory=in memory", "storage=in files"),
    *counts("api_total=requests", "api_errors=refused"),
)
_HEALTH = words("server", "status", "reason")
_CONNECTIONS = (
    Column("server", "server"),
    Column("cid", "cid", is_number=True),
    *words("name", "user", "address"),
    *counts("subscriptions=subs"),
    *sizes("pending"),
    *counts("in_msgs=msgs in", "out_msgs=msgs out"),
    Column("started", "since", since_text, is_number=True),
    Column("language", "language"),
)
Rows = list[dict[str, Any]]
Answers = Sequence[Mapping[str, Any]]


async def _asked(link: Link, servers: Answers, name: str, **body: Any) -> list[tuple[str, Any]]:
    """Return the names of servers, and what each answers."""
    return [(each["server"]["name"], await ask_server(link, each, name, body)) for each in servers]


async def _jetstream(link: Link, servers: Answers) -> Rows:
    rows = []
    for name, js in await _asked(link, servers, "JSZ"):
        rows.append(
            {
                "server": name,
                "streams": js.get("streams", 0),
                "led": js.get("streams_leader", js.get("streams", 0) if not js.get("meta_cluster")
                              else 0),
                "consumers": js.get("consumers", 0),
                "messages": js.get("messages", 0),
                "bytes": js.get("bytes", 0),
                "memory": js.get("memory", 0),
                "storage": js.get("storage", 0),
                "api_total": (js.get("api") or {}).get("total", 0),
                "api_errors": (js.get("api") or {}).get("errors", 0),
            }
        )  # fmt: skip
    return rows


async def _health(link: Link, servers: Answers) -> Rows:
    return [
        {"server": name, "status": health.get("status", "?"), "reason": health.get("error", "")}
        for name, health in await _asked(link, servers, "HEALTHZ")
    ]


async def _connections(link: Link, servers: Answers, limit: int) -> Rows:
    rows = []
    for name, connections in await _asked(link, servers, "CONNZ", limit=limit, auth=True):
        for conn in connections["connections"]:
            rows.append(
                {
                    "server": name,
                    "cid": conn["cid"],
                    "name": conn.get("name", ""),
                    "user": conn.get("authorized_user", ""),
                    "address": f"{conn['ip']}:{conn['port']}",
                    "subscriptions": conn["subscriptions"],
                    "pending": conn["pending_bytes"],
                    "in_msgs": conn["in_msgs"],
                    "out_msgs": conn["out_msgs"],
                    "started": conn["start"],
                    "language": conn.get("lang", ""),
                }
            )
    return rows


@wire_verb(
    command_server, "step-down", example="streamctl server step-down --stream ORDERS --to n2"
)
@click.option(
    "--stream",
    default="",
    type=STREAM_NAME,
    help="Stream whose leader steps down [default: of all].",
)
@click.option("--to", "preferred", default="", type=SERVER_NAME, help="Server that is to lead.")
@yes_option
async def step_down(link: Link, stream: str, preferred: str, yes: bool) -> None:
    """Ask the leader of a stream (by a user of its account), or of the cluster (by the system
    account), to hand over."""
    body = {"placement": {"preferred": preferred}} if preferred else {}
    if stream:
        refuse_no_name(stream)
        before = (await link.api(f"STREAM.INFO.{stream}")).get("cluster") or {}
        confirm(f"have {before.get('leader')} hand over the leadership of stream {stream}", yes)
        await link.api(f"STREAM.LEADER.STEPDOWN.{stream}", body)
        with spinner("waiting for the next leader"):
            after = await _next_leader(link, stream, before.get("leader", ""))
    else:
        before = await _meta_leader(link)
        confirm(f"have {before} hand over the leadership of the cluster", yes)
        await link.api("META.LEADER.STEPDOWN", body)
        after = await _next_meta_leader(link, before)
    if not show_data(link.settings, {"stream": stream or None, "leader": after}):
        say(f"{after} leads {stream or 'the cluster'}")


async def _meta_leader(link: Link) -> str:
    for answer in (await all_servers(link)).found:
        meta = (answer["statsz"].get("jetstream") or {}).get("meta") or {}
        if meta.get("leader"):
            return str(meta["leader"])
    raise CtlError("the cluster has no leader now", "streamctl server report health")


async def _next_meta_leader(link: Link, before: str) -> str:
    deadline = time.monotonic() + link.settings.timeout_s
    while time.monotonic() < deadline:
        try:
            found = await _meta_leader(link)
        except CtlError:
            found = ""
        if found and found != before:
            return found
        await asyncio.sleep(POLL_S)
    return before


async def _next_leader(link: Link, stream: str, before: str) -> str:
    """Return the leader of a stream as soon as it is another; the same if none comes."""
    deadline = time.monotonic() + link.settings.timeout_s
    while True:
        try:
            found = ((await link.api(f"STREAM.INFO.{stream}")).get("cluster") or {}).get("leader")
        except CtlError:
            found = ""
        if (found and found != before) or time.monotonic() > deadline:
            return found or before
        await asyncio.sleep(POLL_S)


@wire_verb(command_server, "drain", example="streamctl server drain n1 --yes", is_long=True)
@click.argument("server", type=SERVER_NAME)
@click.option("--no-wait", is_flag=True, help="Do not wait until it has stopped.")
@yes_option
async def drain(link: Link, server: str, no_wait: bool, yes: bool) -> int:
    """Send a server's clients to the others, hand its leaderships over, and stop it."""
    (found,) = (await chosen_servers(link, (server,))).found
    is_alone = not found["statsz"].get("routes")
    name, clients = found["server"]["name"], found["statsz"]["connections"]
    confirm(f"drain server {name}, which has {count_text(clients)} clients, and stop it", yes)
    await ask_server(link, found, "STREAMD.DRAIN")
    with spinner(f"waiting until {name} has stopped"):
        is_over = no_wait or await _is_gone(link, name, is_alone=is_alone)
    if not is_over:
        raise CtlError(f"{name} still answers after {GONE_WITHIN_S:g} s", "streamctl server list")
    done = {"server": name, "stopped": not no_wait}
    if not show_data(link.settings, done):
        say(f"{name} has stopped" if not no_wait else f"{name} is draining")
    return 0


async def _is_gone(link: Link, name: str, *, is_alone: bool) -> bool:
    """Return True when a server does not answer any more. `is_alone`: no other will tell."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while time.monotonic() < deadline:
        try:
            servers = await all_servers(link)
        except CtlError:
            if is_alone and not link.nc.is_connected:
                return True
            await asyncio.sleep(POLL_S)  # this connection is on its way to another server
            continue
        if name not in {answer["server"]["name"] for answer in servers.found}:
            return True
        await asyncio.sleep(POLL_S)
    return False
