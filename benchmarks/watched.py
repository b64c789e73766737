"""A server that is watched: publish latency while a dashboard is open and /metrics is scraped.

    python -m benchmarks.watched          # 5,000 streams, twenty phases of 3 s each way
    python -m benchmarks.watched --streams 200 --phases 2     # to try it

The watcher is a process of its own: it reads the dashboard's event stream, fetches the page of 50
streams every three seconds as an open page does, and /metrics every second. One client publishes,
one message in flight, while phases without and with the watcher alternate: a machine and its disk
have better and worse minutes, and each kind of phase has its share of them.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time

import aiohttp

from benchmarks.generator import generate
from benchmarks.servers import ServerProcess, end_servers_on_sigterm
from tests.parity.runner import ours_binary
from tests.wire import Wire

PAGE_S = 3.0
SCRAPE_S = 1.0
PHASE_S = 3.0
BODY = bytes(128)
PAGE = "/ui/api/streams?sort=rate_msgs&descending=1&limit=50"


async def watch(port: int) -> None:
    """Watch from one line of standard input to the next; say on standard output that it has begun,
    that it rests, and at the end how much was seen."""
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
    while await asyncio.to_thread(sys.stdin.readline):
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout) as session:
            has_begun = asyncio.Event()
            tasks = [
                asyncio.create_task(listen(session, has_begun)),
                asyncio.create_task(ask(session, PAGE, "pages", PAGE_S)),
                asyncio.create_task(ask(session, "/metrics", "scrapes", SCRAPE_S)),
            ]
            await has_begun.wait()
            print("watching", flush=True)
            ended = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
            await asyncio.wait([*tasks, ended], return_when=asyncio.FIRST_COMPLETED)
            failed = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
        for task in failed:
            task.result()
        print("resting", flush=True)
    print(
        f"{seen['overviews']} overviews, {seen['pages']} pages of streams (at most"
        f" {longest['pages'] * 1000:.0f} ms), {seen['scrapes']} scrapes (at most"
        f" {longest['scrapes'] * 1000:.0f} ms)",
        flush=True,
    )


class Watcher:
    """The process that watches, while it is told to."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.watched", "--watch", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self, said: str) -> None:
        """Have it begin, or rest."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("turn\n")
        self._process.stdin.flush()
        found = self._process.stdout.readline().strip()
        assert found == said, found

    def end(self) -> str:
        """End it; return what it saw."""
        found, _ = self._process.communicate(timeout=60)
        return found.strip()


def measure(server: ServerProcess, phases: int) -> None:
    """Print the row of one server, which has its streams."""
    alone: list[float] = []
    watched: list[float] = []
    watcher = Watcher(server.http_port)
    with Wire(server.port) as wire:
        assert "error" not in wire.api("STREAM.CREATE.W", {"name": "W", "subjects": ["w.x"]})
        wire.subscribe("acks")
        publish(wire, PHASE_S)
        for _ in range(phases):
            alone += publish(wire, PHASE_S)
            watcher.turn("watching")
            watched += publish(wire, PHASE_S)
            watcher.turn("resting")
    print(f"publish, one in flight: {len(alone)} alone, {len(watched)} watched")
    for percent in (50, 90, 99, 99.9):
        before, after = (sorted(of)[int(len(of) * percent / 100)] for of in (alone, watched))
        print(f"p{percent}: {before * 1e6:.0f} us alone, {after * 1e6:.0f} us watched:"
              f" {after / before:.2f}")  # fmt: skip
    print(f"the watcher saw {watcher.end()}")


def publish(wire: Wire, seconds: float) -> list[float]:
    """Publish one message after the other for a while; return the time to each ack."""
    found: list[float] = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        wire.publish("w.x", BODY, reply="acks")
        answer = wire.next(30)
        assert answer.op == "MSG" and b"error" not in answer.payload, answer
        found.append(time.perf_counter() - began)
    return found


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watch", type=int, default=0, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--streams", type=int, default=5000)
    parser.add_argument("--phases", type=int, default=20, help="of each kind")
    arguments = parser.parse_args()
    if arguments.watch:
        asyncio.run(watch(arguments.watch))
        return
    end_servers_on_sigterm()
    with ServerProcess(ours_binary()) as server:
        server.start()
        generate(server.port, "create_streams", {"count": arguments.streams})
        print(f"{arguments.streams} streams, {arguments.phases} phases of {PHASE_S:g} s each way")
        measure(server, arguments.phases)


if __name__ == "__main__":
    main()
