"""Campaign of hostile clients against one server: its memory, and how long others wait.

    python -m benchmarks.hostile                         # every attack, some minutes
    python -m benchmarks.hostile --only silent,guesses   # some of them
    python -m benchmarks.hostile --scale 0.01            # a hundredth of the counts, to try it
    python -m benchmarks.hostile --peer PATH             # a nats-server beside it

The attacker is a process of its own (`hostile_attacks`). One client that is there already publishes
to itself all the time; a row says what a round trip took before the attack and during it, what the
server's memory was before, at its highest and after, how many files it held, and what became of the
attacker's connections. A server that is gone, or does not answer afterwards, fails the program.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import bcrypt

from benchmarks.hostile_attacks import ATTACKS, Foe, Outcome, Target
from benchmarks.servers import ServerProcess, free_port
from tests.certificates import Authority
from tests.parity.runner import ours_binary

HOLD_S = 4.0  # connections stay open for so long after all was sent: longer than the time to log in
CALM_S = 2.0
PAUSE_S = 0.002  # between two publishes of the client that is there already
ATTACK_WITHIN_S = 300.0


class Victim:
    """Client that was there before, and publishes to itself."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 5)
        self._socket.settimeout(60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        login = b'CONNECT {"verbose":false,"pedantic":false,"user":"good","pass":"good"}\r\n'
        self._socket.sendall(login + b"SUB victim 1\r\nPING\r\n")
        self._until(b"PONG\r\n")

    def round_trip_ms(self) -> float:
        """Publish, and wait for the message."""
        began = time.perf_counter()
        self._socket.sendall(b"PUB victim 2\r\nhi\r\n")
        self._until(b"hi\r\n")
        return (time.perf_counter() - began) * 1000

    def _until(self, end: bytes) -> None:
        seen = b""
        while not seen.endswith(end):
            chunk = self._socket.recv(65536)
            if not chunk:
                raise ConnectionError(f"the server ended an honest client: {seen!r}")
            seen += chunk.replace(b"PING\r\n", b"")
            if b"PING\r\n" in chunk:
                self._socket.sendall(b"PONG\r\n")

    def close(self) -> None:
        self._socket.close()


@dataclass
class Figures:
    """Figures of one attack."""

    before_p99_ms: float
    p50_ms: float
    p99_ms: float
    longest_ms: float
    before_mb: float
    highest_mb: float
    after_mb: float
    files: int
    seconds: float
    outcome: Outcome

    def line(self, name: str, binary: str) -> str:
        outcome = self.outcome
        return (
            f"{binary:11} {name:26} p99 {self.before_p99_ms:6.2f} -> {self.p99_ms:7.2f} ms"
            f" (p50 {self.p50_ms:5.2f}, longest {self.longest_ms:7.1f});"
            f" {self.before_mb:5.0f} -> {self.highest_mb:5.0f} -> {self.after_mb:5.0f} MiB;"
            f" {self.files} files; {outcome.ended} of {outcome.opened} ended;"
            f" {self.seconds:.1f} s; {json.dumps(outcome.errors)}"
        )


class Attacked:
    """A server with all the doors that an attacker may try: TLS, WebSocket, leaf nodes, users.

    `max_pending`: bytes that may wait for a client to read them.
    """

    def __init__(
        self, binary: str, directory: Path, *, login_s: int = 2, max_pending: int = 64 << 20
    ) -> None:
        pair = Authority(directory).issue("server")
        hashed = bcrypt.hashpw(b"never guessed", bcrypt.gensalt(10)).decode()
        websocket_port, leaf_port = free_port(), free_port()
        extra = "\n".join(
            (
                f"tls {{ {pair.block} }}",
                "allow_non_tls: true",
                f"max_pending: {max_pending}",
                f"websocket {{ host: 127.0.0.1, port: {websocket_port}, no_tls: true,"
                f" compression: true, handshake_timeout: {login_s}s }}",
                f"leafnodes {{ host: 127.0.0.1, port: {leaf_port}, compression: s2_auto }}",
                f"authorization {{ timeout: {login_s}, users: [{{user: good, password: good}},"
                f' {{user: hashed, password: "{hashed}"}}] }}',
            )
        )
        self.server = ServerProcess(
            binary, directory=directory / "server", extra=extra, is_jetstream=False
        )
        self.target = Target(self.server.port, websocket_port, leaf_port)

    def start(self) -> None:
        self.server.launch()
        self.server.wait_for_log("Server is ready")

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.server.pid}/fd"))


def measure(attacked: Attacked, name: str, count: int) -> Figures:
    """Run one attack."""
    server = attacked.server
    victim = Victim(server.port)
    before = _publish_for(victim, CALM_S)
    before_mb, _ = server.memory_mb()
    program = [sys.executable, "-m", "benchmarks.hostile", "--attack", name, str(count)]
    target = json.dumps(asdict(attacked.target))
    began = time.perf_counter()
    attacker = subprocess.Popen([*program, target], stdout=subprocess.PIPE, text=True)
    meanwhile: list[float] = []
    highest_mb, files = before_mb, 0
    sampled = 0.0
    while attacker.poll() is None:
        if time.perf_counter() - began > ATTACK_WITHIN_S:
            attacker.kill()
        meanwhile.append(victim.round_trip_ms())
        if time.perf_counter() - sampled > 0.1:
            sampled = time.perf_counter()
            highest_mb = max(highest_mb, server.memory_mb()[0])
            files = max(files, attacked.files())
        time.sleep(PAUSE_S)
    seconds = time.perf_counter() - began
    said = attacker.communicate()[0]
    if attacker.returncode:
        raise RuntimeError(f"attack {name} failed\n{server.log_tail()}")
    _publish_for(victim, CALM_S)
    after_mb, _ = server.memory_mb()
    victim.close()
    return Figures(
        before_p99_ms=_at(before, 99),
        p50_ms=_at(meanwhile, 50),
        p99_ms=_at(meanwhile, 99),
        longest_ms=max(meanwhile),
        before_mb=before_mb,
        highest_mb=highest_mb,
        after_mb=after_mb,
        files=files,
        seconds=seconds,
        outcome=Outcome(**json.loads(said)),
    )


def _publish_for(victim: Victim, seconds: float) -> list[float]:
    until = time.perf_counter() + seconds
    took: list[float] = []
    while time.perf_counter() < until:
        took.append(victim.round_trip_ms())
        time.sleep(PAUSE_S)
    return took


def _at(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


async def _attack(name: str, count: int, target: Target) -> Outcome:
    attack, _ = ATTACKS[name]

    async def hold(foes: Sequence[Foe]) -> None:
        await asyncio.sleep(HOLD_S)

    return await attack(target, count, hold)


def raise_file_limit() -> int:
    """Let this process, and those that it starts, open as many files as they may; return that."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attack", nargs=3, metavar=("NAME", "COUNT", "TARGET"))
    parser.add_argument("--peer", default="")
    parser.add_argument("--only", default=",".join(ATTACKS))
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    files_max = raise_file_limit()
    if arguments.attack:
        name, count, target = arguments.attack
        outcome = asyncio.run(_attack(name, int(count), Target(**json.loads(target))))
        print(json.dumps(asdict(outcome)))
        return
    for name in arguments.only.split(","):
        count = max(1, int(ATTACKS[name][1] * arguments.scale))
        if name != "subscriptions":
            count = min(count, files_max - 500)
        for binary in filter(None, (ours_binary(), arguments.peer)):
            with tempfile.TemporaryDirectory() as directory:
                attacked = Attacked(binary, Path(directory))
                with attacked.server:
                    attacked.start()
                    figures = measure(attacked, name, count)
                    print(figures.line(f"{name} x {count}", Path(binary).name), flush=True)


if __name__ == "__main__":
    main()
