"""Sizes for docs/sizing.md: memory of a server by connections, streams, consumers and subjects.

    python -m benchmarks.sizing                       # all rows, a fresh server for each
    python -m benchmarks.sizing --share 0.01          # to try it: a hundredth of each count
    python -m benchmarks.sizing --peer PATH           # a nats-server beside it

A row says the memory before, with all of them and after a rest, what each takes, how fast they were
made, and the share of one processor that the server needs for them while nothing happens.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.hostile import raise_file_limit
from benchmarks.servers import ServerProcess
from tests.parity.runner import ours_binary
from tests.wire import Wire

REST_S = 10.0  # what was written behind the last ack is written, what was freed is freed
FILES_KEPT = 500  # of this process, beside the connections it opens
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"protocol":1}\r\nPING\r\n'
CHUNK = 1000  # publishes before their acks are awaited


class Row(NamedTuple):
    """Things of one kind that a server is given."""

    name: str
    amount: int
    make: Callable[[Wire, int], None]


def make_streams(wire: Wire, count: int) -> None:
    """Create streams, each with a message."""
    for at in range(count):
        config = {"name": f"S{at}", "subjects": [f"s.{at}"]}
        assert "error" not in wire.api(f"STREAM.CREATE.S{at}", config, within_s=30)
        wire.ask(f"s.{at}", b"x", within_s=30)


def make_consumers(wire: Wire, count: int) -> None:
    """Create durable consumers of one stream."""
    assert "error" not in wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    for at in range(count):
        config = {"durable_name": f"C{at}", "ack_policy": "explicit"}
        request = {"stream_name": "S", "config": config}
        answer = wire.api(f"CONSUMER.DURABLE.CREATE.S.C{at}", request, within_s=30)
        assert "error" not in answer, answer


def make_subjects(wire: Wire, count: int) -> None:
    """Publish one message to each of many subjects, as a key-value bucket has them."""
    config = {"name": "S", "subjects": ["s.>"], "max_msgs_per_subject": 1}
    assert "error" not in wire.api("STREAM.CREATE.S", config)
    for first in range(0, count, CHUNK):
        subjects = [f"s.customer.{at:012d}" for at in range(first, min(first + CHUNK, count))]
        wire.send(b"".join(b"PUB %b 1\r\nx\r\n" % subject.encode() for subject in subjects))
        wire.ask(f"s.customer.{first:012d}", b"x", within_s=60)


def measure_connections(server: ServerProcess, count: int) -> str:
    """Measure clients that have logged in, and say nothing."""
    before_mb, _ = server.memory_mb()
    began = time.perf_counter()
    with opened(server.port, count):
        return result(server, "connections", count, before_mb, time.perf_counter() - began)


@contextmanager
def opened(port: int, count: int) -> Iterator[None]:
    """Keep so many logged-in connections open."""
    clients: list[socket.socket] = []
    try:
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", port), 30)
            clients.append(client)
            client.sendall(CONNECT)
            seen = b""
            while b"PONG\r\n" not in seen:
                chunk = client.recv(65536)
                assert chunk, seen
                seen += chunk
        yield
    finally:
        for client in clients:
            client.close()


def measure(server: ServerProcess, row: Row) -> str:
    """Measure what a connection can make."""
    with Wire(server.port) as wire:
        before_mb, _ = server.memory_mb()
        began = time.perf_counter()
        row.make(wire, row.amount)
        return result(server, row.name, row.amount, before_mb, time.perf_counter() - began)


def result(server: ServerProcess, name: str, count: int, before_mb: float, took_s: float) -> str:
    """Return the row of a table, after a rest."""
    all_mb, _ = server.memory_mb()
    used_s = server.cpu_s()
    time.sleep(REST_S)
    share = (server.cpu_s() - used_s) / REST_S
    rest_mb, _ = server.memory_mb()
    each_kb = (rest_mb - before_mb) * 1024 / count
    return (
        f"| {count:,} {name} | {before_mb:.0f} MiB | {all_mb:.0f} MiB | {rest_mb:.0f} MiB |"
        f" {each_kb:.2f} KiB | {count / took_s:,.0f}/s | {share:.1%} |"
    )


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default="")
    parser.add_argument("--share", type=float, default=1.0, help="of each count")
    arguments = parser.parse_args()

    share: float = arguments.share

    def part(count: int) -> int:
        return max(1, round(count * share))

    files_max = raise_file_limit()
    connections = min(part(10_000), (files_max - FILES_KEPT) // 2)
    rows = (
        Row("streams", part(2_000), make_streams),
        Row("consumers", part(5_000), make_consumers),
        Row("subjects", part(500_000), make_subjects),
    )
    for binary in filter(None, (ours_binary(), arguments.peer)):
        print(f"{Path(binary).name}, load {os.getloadavg()[0]:.1f}")
        print("| what | before | with all | at rest | each | made | of a processor at rest |")
        print("|---|---|---|---|---|---|---|")
        with server_of(binary, 'ping_interval: "10m"') as server:
            print(measure_connections(server, connections), flush=True)
        for row in rows:
            with server_of(binary) as server:
                print(measure(server, row), flush=True)


@contextmanager
def server_of(binary: str, extra: str = "") -> Iterator[ServerProcess]:
    """Run a server on an empty directory."""
    with (
        tempfile.TemporaryDirectory() as directory,
        ServerProcess(binary, directory=Path(directory) / "s", extra=extra) as server,
    ):
        server.start()
        yield server


if __name__ == "__main__":
    main()
