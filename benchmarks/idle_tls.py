"""Ten thousand idle TLS connections: what memory each takes, and what processor time all of them.

    python -m benchmarks.idle_tls                      # 10,000 connections
    python -m benchmarks.idle_tls --peer PATH          # a nats-server beside it
    python -m benchmarks.idle_tls --count 500          # to try it

Clients come from a process of its own, log in, answer nothing but pings, and stay while the server
is watched. A row says the server's memory before, when all have come and after they rested, and the
share of one processor that it needs for them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.hostile import raise_file_limit
from benchmarks.servers import ServerProcess
from tests.certificates import Authority
from tests.parity.runner import ours_binary

AT_ONCE = 50
REST_S = 10.0
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"protocol":0}\r\nPING\r\n'


async def connect(port: int, ca_file: str, count: int) -> None:
    """Open the connections, say so on standard output, and keep them until standard input ends."""
    context = ssl.create_default_context(cafile=ca_file)
    gate = asyncio.Semaphore(AT_ONCE)
    writers: list[asyncio.StreamWriter] = []

    async def one() -> None:
        async with gate, asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await reader.readline()
            await writer.start_tls(context, server_hostname="localhost")
            writer.write(CONNECT)
            assert await reader.readline() == b"PONG\r\n"
            writers.append(writer)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(one())
    print(len(writers), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for writer in writers:
        writer.transport.abort()


def measure(binary: str, count: int, directory: Path) -> str:
    """Return the row of one server."""
    authority = Authority(directory)
    block = f'tls {{ {authority.issue("server").block}, timeout: 30 }}\nping_interval: "10m"'
    server = ServerProcess(binary, directory=directory / "s", extra=block, is_jetstream=False)
    with server:
        server.launch()
        server.wait_for_log("Server is ready")
        before_mb, _ = server.memory_mb()
        program = [sys.executable, "-m", "benchmarks.idle_tls", "--connect"]
        began = time.perf_counter()
        clients = subprocess.Popen(
            [*program, str(server.port), authority.cert, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert clients.stdin is not None and clients.stdout is not None
        try:
            opened = clients.stdout.readline()
            assert opened.strip() == str(count), (opened, server.log_tail())
            came_s = time.perf_counter() - began
            all_mb, _ = server.memory_mb()
            used_s = server.cpu_s()
            time.sleep(REST_S)
            share = (server.cpu_s() - used_s) / REST_S
            rest_mb, peak_mb = server.memory_mb()
        finally:
            clients.stdin.close()
            clients.wait(60)
    each_kb = (rest_mb - before_mb) * 1024 / count
    return (
        f"{Path(binary).name:12} {count} idle TLS connections: {before_mb:.0f} MiB before,"
        f" {all_mb:.0f} when all had come ({came_s:.0f} s), {rest_mb:.0f} after {REST_S:.0f} s,"
        f" {peak_mb:.0f} at its highest: {each_kb:.1f} KiB each; {share:.1%} of a processor"
    )


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connect", nargs=3, metavar=("PORT", "CA", "COUNT"))
    parser.add_argument("--peer", default="")
    parser.add_argument("--count", type=int, default=10_000)
    arguments = parser.parse_args()
    files_max = raise_file_limit()
    if arguments.connect:
        port, ca_file, count = arguments.connect
        asyncio.run(connect(int(port), ca_file, int(count)))
        return
    wanted = min(arguments.count, files_max - 500)
    for binary in filter(None, (ours_binary(), arguments.peer)):
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as directory:
            print(f"{measure(binary, wanted, Path(directory))} (load {load:.1f})", flush=True)


if __name__ == "__main__":
    main()
