"""Two hundred clients that begin TLS at once: how long a publish of those already there takes.

    python -m benchmarks.tls_arrival                      # five arrivals of 200
    python -m benchmarks.tls_arrival --peer PATH          # a nats-server beside it

One client publishes to itself over TLS, again and again, in this process; the others come from a
process of its own. A row says what a round trip took before they came, and while they came.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.servers import ServerProcess
from tests.certificates import Authority
from tests.parity.runner import ours_binary

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"protocol":0}\r\n'
ARRIVED_WITHIN_S = 60.0
PAUSE_S = 0.001  # between two publishes: a client that has other work, too


def context(ca_file: str) -> ssl.SSLContext:
    """Return what a client needs to come in."""
    return ssl.create_default_context(cafile=ca_file)


class Publisher:
    """A client that publishes to itself."""

    def __init__(self, port: int, ca_file: str) -> None:
        import socket

        plain = socket.create_connection(("127.0.0.1", port), 5)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert plain.recv(65536).startswith(b"INFO ")
        self._socket = context(ca_file).wrap_socket(plain, server_hostname="localhost")
        self._socket.sendall(CONNECT + b"SUB a 1\r\nPING\r\n")
        self._read_until(b"PONG\r\n")

    def round_trip_ms(self) -> float:
        """Publish, and wait for the message."""
        began = time.perf_counter()
        self._socket.sendall(b"PUB a 2\r\nhi\r\n")
        self._read_until(b"hi\r\n")
        return (time.perf_counter() - began) * 1000

    def _read_until(self, end: bytes) -> None:
        seen = b""
        while not seen.endswith(end):
            chunk = self._socket.recv(65536)
            assert chunk, seen
            seen += chunk


async def arrive(port: int, ca_file: str, count: int) -> None:
    """Connect `count` clients at once, and be served."""
    tls = context(ca_file)

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.readline()
        await writer.start_tls(tls, server_hostname="localhost")
        writer.write(CONNECT + b"PING\r\n")
        assert await reader.readline() == b"PONG\r\n"

    async with asyncio.timeout(ARRIVED_WITHIN_S), asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(one())


def measure(binary: str, *, count: int, rounds: int, is_rsa: bool) -> str:
    """Return the row of one server."""
    before: list[float] = []
    meanwhile: list[float] = []
    took: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        authority = Authority(Path(directory))
        pair = authority.issue("server", is_rsa=is_rsa)
        block = f"tls {{ {pair.block}, timeout: 30 }}"
        server_of = ServerProcess(
            binary, directory=Path(directory) / "s", extra=block, is_jetstream=False
        )
        with server_of as server:
            server.launch()
            server.wait_for_log("Server is ready")
            publisher = Publisher(server.port, authority.cert)
            for _ in range(rounds):
                until = time.perf_counter() + 1
                while time.perf_counter() < until:
                    before.append(publisher.round_trip_ms())
                    time.sleep(PAUSE_S)
                program = [sys.executable, "-m", "benchmarks.tls_arrival", "--arrive"]
                arguments = [str(server.port), authority.cert, str(count)]
                began = time.perf_counter()
                arriving = subprocess.Popen([*program, *arguments])
                while arriving.poll() is None:
                    meanwhile.append(publisher.round_trip_ms())
                    time.sleep(PAUSE_S)
                took.append(time.perf_counter() - began)
                assert arriving.returncode == 0, server.log_tail()
    return (
        f"{Path(binary).name:12} {'RSA' if is_rsa else 'ECDSA':5}"
        f" before p50 {_at(before, 50):6.2f} p99 {_at(before, 99):6.2f} ms;"
        f" meanwhile p50 {_at(meanwhile, 50):6.2f} p99 {_at(meanwhile, 99):6.2f}"
        f" max {max(meanwhile):6.2f} ms of {len(meanwhile)};"
        f" {count} took {statistics.median(took):.2f} s"
    )


def _at(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arrive", nargs=3, metavar=("PORT", "CA", "COUNT"))
    parser.add_argument("--peer", default="")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.arrive:
        port, ca_file, count = arguments.arrive
        asyncio.run(arrive(int(port), ca_file, int(count)))
        return
    for is_rsa in (False, True):
        for binary in filter(None, (ours_binary(), arguments.peer)):
            load = os.getloadavg()[0]
            row = measure(binary, count=arguments.count, rounds=arguments.rounds, is_rsa=is_rsa)
            print(f"{row} (load {load:.1f})", flush=True)


if __name__ == "__main__":
    main()
