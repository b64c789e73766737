"""A server that is watched: publish latency while a dashboard is open and /metrics is scraped.

    python -m benchmarks.watched                       # 5,000 streams, fifteen rounds
    python -m benchmarks.watched --streams 200 --rounds 1 --seconds 2     # to try it

The watcher is a process of its own: it reads the dashboard's event stream, fetches the page of 50
streams every three seconds as an open page does, and /metrics every second. Rounds without and with
it alternate on one server; a row says the medians of publish latency (one in flight), and that of
the ratios of each two rounds that are neighbours.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp

from benchmarks.generator import Figures, generate
from benchmarks.load import STREAM, Api
from benchmarks.servers import ServerProcess, end_servers_on_sigterm
from tests.parity.runner import ours_binary

PAGE_S = 3.0
SCRAPE_S = 1.0
SETTLED_S = 2.0
PAGE = "/ui/api/streams?sort=rate_msgs&descending=1&limit=50"


async def watch(port: int) -> None:
    """Watch until standard input ends; says on standard output that it has begun, and at the end
    how much it saw."""
    seen = {"overviews": 0, "pages": 0, "scrapes": 0}
    longest = {"pages": 0.0, "scrapes": 0.0}

    async def ask(session: aiohttp.ClientSession, path: str, name: str, every_s: float) -> None:
        while True:
            began = time.perf_counter()
            async with session.get(path) as answer:
                answer.raise_for_status()
                await answer.read()
            took = time.perf_counter() - began
            longest[name] = max(longest[name], took)
            seen[name] += 1
            await asyncio.sleep(max(0.0, every_s - took))

    async def listen(session: aiohttp.ClientSession, has_begun: asyncio.Event) -> None:
        async with session.get("/ui/api/live") as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if line.startswith(b"event: overview"):
                    seen["overviews"] += 1
                    has_begun.set()

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout) as session:
        has_begun = asyncio.Event()
        tasks = [
            asyncio.create_task(listen(session, has_begun)),
            asyncio.create_task(ask(session, PAGE, "pages", PAGE_S)),
            asyncio.create_task(ask(session, "/metrics", "scrapes", SCRAPE_S)),
        ]
        await has_begun.wait()
        print("watching", flush=True)
        ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await asyncio.wait([*tasks, ended], return_when=asyncio.FIRST_COMPLETED)
        failed = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
    for task in failed:
        task.result()
    print(
        f"{seen['overviews']} overviews, {seen['pages']} pages of streams (at most"
        f" {longest['pages'] * 1000:.0f} ms), {seen['scrapes']} scrapes (at most"
        f" {longest['scrapes'] * 1000:.0f} ms)",
        flush=True,
    )


@contextmanager
def watcher(port: int) -> Iterator[list[str]]:
    """A watcher while the body runs; the list has what it saw when that has ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.watched", "--watch", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    said: list[str] = []
    try:
        assert process.stdout.readline().strip() == "watching"
        time.sleep(SETTLED_S)
        yield said
    finally:
        process.stdin.close()
        said.append(process.stdout.read().strip())
        process.wait(60)


def measure(server: ServerProcess, rounds: int, seconds: float) -> None:
    """Print the row of one server, which has its streams."""
    alone: list[Figures] = []
    watched: list[Figures] = []
    args = {"size": 128, "window": 1, "seconds": seconds}
    said: list[str] = []
    for _ in range(rounds):
        alone.append(_publish(server, args))
        with watcher(server.http_port) as seen:
            watched.append(_publish(server, args))
        said = seen
    for name in ("p50_us", "p99_us"):
        before, after = (statistics.median(run[name] for run in runs) for runs in (alone, watched))
        # Neighbours in time: a disk may have other minutes.
        ratios = [two[name] / one[name] for one, two in zip(alone, watched, strict=True)]
        print(f"publish, one in flight, {name}: {before:.0f} alone, {after:.0f} watched; ratio of"
              f" neighbours {statistics.median(ratios):.2f}"
              f" ({min(ratios):.2f} to {max(ratios):.2f})")  # fmt: skip
    print(f"the last watcher saw {said[0]}")


def _publish(server: ServerProcess, args: dict[str, float]) -> Figures:
    """Publish to a stream of its own, which is gone afterwards."""
    found = generate(server.port, "publish", args)
    api = Api(server.port)
    api.request(f"$JS.API.STREAM.DELETE.{STREAM}")
    api.close()
    return found


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watch", type=int, default=0, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--streams", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    if arguments.watch:
        asyncio.run(watch(arguments.watch))
        return
    end_servers_on_sigterm()
    with ServerProcess(ours_binary()) as server:
        server.start()
        generate(server.port, "create_streams", {"count": arguments.streams})
        print(f"{arguments.streams} streams, {arguments.rounds} rounds of {arguments.seconds:g} s")
        measure(server, arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
