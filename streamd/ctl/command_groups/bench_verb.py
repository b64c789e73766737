"""`streamctl bench`: how fast a server answers one client, and two servers side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from streamd.ctl.benchmarking import WORKLOADS, Plan
from streamd.ctl.display import Column, say, show_data, show_table, spans, words
from streamd.ctl.failures import unusable
from streamd.ctl.latencies import histogram_lines, summary
from streamd.ctl.nats_link import Link, run_on_link
from streamd.ctl.progress_bar import progress_bar
from streamd.ctl.quantities import count_text, parse_size, size_text
from streamd.ctl.settings import Settings
from streamd.ctl.verbs import verb

COUNTS = {"pub": 100_000}
COUNT = 10_000

COLUMNS = (
    *words("server", "workload"),
    Column("messages_per_s", "messages/s", lambda rate: count_text(round(rate)), is_number=True),
    Column("bytes_per_s", "bytes/s", lambda rate: size_text(round(rate)), is_number=True),
    *spans("p50_ns=p50", "p90_ns=p90", "p99_ns=p99", "p99.9_ns=p99.9", "max_ns=max"),
)


@verb(
    None,
    "bench",
    example="streamctl bench js-pub fetch --replicas 3 --against nats://127.0.0.1:5222",
)
@click.argument("workloads", metavar="WORKLOAD...", nargs=-1, required=True)
@click.option("--count", type=click.IntRange(min=1), help="Operations of each workload.")
@click.option("--size", default="128", show_default=True, help="Bytes of a payload, as 1K.")
@click.option("--window", type=click.IntRange(1, 10_000), default=100, show_default=True,
              help="Operations in flight.")  # fmt: skip
@click.option("--replicas", type=int, default=1, show_default=True, help="Copies of the streams.")
@click.option(
    "--storage", type=click.Choice(("file", "memory")), default="file", help="Place of the streams."
)
@click.option("--against", default="", help="URL of a second server, measured likewise.")
def command_bench(
    settings: Settings,
    workloads: tuple[str, ...],
    count: int | None,
    size: str,
    window: int,
    replicas: int,
    storage: str,
    against: str,
) -> None:
    """Measure pub, js-pub, fetch, push, kv-put, kv-get, request, or all: rate and latencies.

    Streams that it needs are made for it and deleted. A second server is measured right after the
    first, workload by workload."""
    known = list(WORKLOADS)
    chosen = known if workloads == ("all",) else list(workloads)
    for name in chosen:
        if name not in WORKLOADS:
            raise unusable(f"no workload {name!r}: there are {', '.join(known)} and all")
    sides = [settings] + ([replace(settings, url=against)] if against else [])
    rows = []
    for name in chosen:
        wanted = count or COUNTS.get(name, COUNT)
        plan = Plan(wanted, parse_size(size), window, replicas, storage)
        rows += [_measure(side, name, plan) for side in sides]
    if show_data(settings, rows):
        return
    show_table(rows, COLUMNS)
    for row in rows:
        say(f"\n{row['workload']} at {row['server']}")
        for line in histogram_lines(row):
            say(line)
    for first, second in zip(rows[::2], rows[1::2], strict=True) if against else ():
        ratio = first["messages_per_s"] / second["messages_per_s"]
        say(f"\n{first['workload']}: {first['server']} has {ratio:.2f} times the rate of "
            f"{second['server']}")  # fmt: skip


def _measure(settings: Settings, name: str, plan: Plan) -> dict[str, Any]:
    """Run one workload at one server."""
    row: dict[str, Any] = {}

    async def work(link: Link) -> None:
        with progress_bar(f"{name} at {settings.servers[0]}", plan.operations) as bar:
            found = await WORKLOADS[name](link, plan, bar)
        rate = plan.operations / found.took_s
        row.update(
            server=settings.servers[0].rpartition("@")[2].rpartition("/")[2],
            workload=name,
            messages=plan.operations,
            size=plan.size,
            took_s=found.took_s,
            messages_per_s=rate,
            bytes_per_s=rate * plan.size,
            **summary(found.samples_ns),
        )

    run_on_link(settings, work)
    return row
