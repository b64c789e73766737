"""A server process on loopback: started, watched, measured, stopped. Ours or a nats-server.

Both take the same flags and configuration, so nothing here asks which one it is.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

STARTED_WITHIN_S = 90.0  # a dozen of others may start at the same time
STOPPED_WITHIN_S = 60.0


class ServerDied(Exception):
    """The process ended, or never answered; the text is the end of what it logged."""


_launcher: list[str] = []  # what servers are started by; nothing: directly


def slow_syncs(milliseconds: float) -> None:
    """Have each fsync and fdatasync of all servers started from here on take so much longer, with
    `strace`: nothing else of them is traced. Raises FileNotFoundError where that is not installed.
    """
    strace = shutil.which("strace")
    if strace is None:
        raise FileNotFoundError("strace is not installed: apt-get install strace")
    calls = "fsync,fdatasync"
    delay = f"inject={calls}:delay_exit={milliseconds * 1000:.0f}"
    # -DDD: the server stays our child, so that signals and its CPU time are its own.
    quiet = ("-DDD", "-f", "--seccomp-bpf", "-qq", "-o", os.devnull)
    _launcher[:] = [strace, *quiet, "-e", f"trace={calls}", "-e", delay]


def end_servers_on_sigterm() -> None:
    """Let SIGTERM unwind this program, so that the servers it runs end with it."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


# Below those that the kernel hands out for outgoing connections, lest one of them takes the port of
# a server that restarts.
PORTS = range(15_000, 32_000)
_own_ports = PORTS
_given: set[int] = set()


def share_ports(part: int, parts: int) -> None:
    """Give this process its own part of the ports: `parts` of them run tests at the same time."""
    global _own_ports
    size = len(PORTS) // parts
    _own_ports = PORTS[part * size : (part + 1) * size]


def free_port() -> int:
    """Return a TCP port of loopback that was free a moment ago, another one each time."""
    while True:
        port = random.choice(_own_ports)
        if _take(port):
            return port


def free_ports(count: int) -> int:
    """Return the first of `count` TCP ports in a row that were free a moment ago."""
    while True:
        first = random.choice(_own_ports)
        if all(_take(port) for port in range(first, first + count)):
            return first


def _take(port: int) -> bool:
    """Give a port away if it is free, and one of this process's."""
    if port not in _own_ports or port in _given:
        return False  # asked for, perhaps not bound yet: by the same server's other listener
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        _given.add(port)
        return True
    return False


class ServerProcess:
    """Server that may be stopped, killed and started again on the same directory and ports.

    `sync` is "" for the server's own default, else the value of `jetstream.sync_interval`.
    `extra` is appended to the configuration as it is, `jetstream` to the block of that name.
    `on_configured`, of the class, is told of each server that is about to start.
    """

    on_configured: ClassVar[Callable[[ServerProcess], None] | None] = None

    def __init__(
        self,
        binary: str | Path,
        *,
        directory: str | Path | None = None,
        sync: str = "",
        extra: str = "",
        is_jetstream: bool = True,
        jetstream: str = "",
    ) -> None:
        self.binary = str(binary)
        self.sync = sync
        self.port = free_port()
        self.http_port = free_port()
        self._is_temporary = directory is None
        self._directory = Path(directory or tempfile.mkdtemp(prefix="streamd-bench-"))
        self._extra = extra
        self._is_jetstream = is_jetstream
        self._jetstream = jetstream
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def store_dir(self) -> Path:
        return self._directory / "store"

    @property
    def log_file(self) -> Path:
        return self._directory / "server.log"

    @property
    def config_file(self) -> Path:
        return self._directory / "server.conf"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def configure(
        self, *, sync: str | None = None, extra: str | None = None, jetstream: str | None = None
    ) -> None:
        """Change what the next start uses."""
        if jetstream is not None:
            self._jetstream = jetstream
        if sync is not None:
            self.sync = sync
        if extra is not None:
            self._extra = extra

    def start(self, within_s: float = STARTED_WITHIN_S) -> float:
        """Start and wait until clients are answered; return the seconds it took."""
        began = time.perf_counter()
        self.launch()
        self.wait(within_s)
        return time.perf_counter() - began

    def launch(self, *flags: str) -> None:
        """Start the process, with `flags` this time; does not wait for it."""
        assert self._process is None
        self._directory.mkdir(parents=True, exist_ok=True)
        lines = [f"listen: 127.0.0.1:{self.port}"]
        if self.http_port:
            lines.append(f"http: 127.0.0.1:{self.http_port}")
        if self._is_jetstream:
            sync = f'\n  sync_interval: "{self.sync}"' if self.sync else ""
            lines.append(
                f'jetstream {{\n  store_dir: "{self.store_dir}"{sync}\n{self._jetstream}}}'
            )
        self.config_file.write_text("\n".join([*lines, self._extra]) + "\n")
        if (told := type(self).on_configured) is not None:
            told(self)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*_launcher, self.binary, "-c", str(self.config_file), *flags],
                stdout=log,
                stderr=log,
            )

    def wait(self, within_s: float = STARTED_WITHIN_S) -> None:
        """Wait until clients are answered. Raises ServerDied."""
        assert self._process is not None
        deadline = time.perf_counter() + within_s
        while not self._answers():
            if self._process.poll() is not None:
                self._process = None
                raise ServerDied(self.log_tail())
            if time.perf_counter() > deadline:
                self.kill()
                raise ServerDied(f"no answer within {within_s} s\n{self.log_tail()}")
            time.sleep(0.003)

    def wait_for_log(
        self, words: str, within_s: float = STARTED_WITHIN_S, *, count: int = 1
    ) -> None:
        """Wait until the log has `words`, `count` times. Raises ServerDied.

        For a server whose clients need certificates: wait for "Server is ready".
        """
        assert self._process is not None
        deadline = time.perf_counter() + within_s
        while self.log_file.read_text(errors="replace").count(words) < count:
            if self._process.poll() is not None or time.perf_counter() > deadline:
                raise ServerDied(f"no {words!r} within {within_s} s\n{self.log_tail()}")
            time.sleep(0.003)

    def _answers(self) -> bool:
        """True if a client gets INFO and PONG (and with JetStream an account info)."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as client:
                client.settimeout(0.5)
                ask = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n'
                if self._is_jetstream:
                    ask += b"SUB _INBOX.up 1\r\nPUB $JS.API.INFO _INBOX.up 0\r\n\r\n"
                client.sendall(ask)
                wanted = b"account_info_response" if self._is_jetstream else b"PONG"
                seen = b""
                while wanted not in seen:
                    chunk = client.recv(65536)
                    if not chunk or b"-ERR 'Auth" in chunk:
                        return b"-ERR 'Auth" in chunk
                    seen += chunk
                    if b"503" in seen and b"\r\n\r\n" in seen:
                        return False
                return True
        except OSError:
            return False

    def stop(self) -> int:
        """SIGTERM and wait; return the exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL and wait."""
        return self._end(signal.SIGKILL)

    def send(self, how: signal.Signals) -> None:
        """Send a signal that does not end the process."""
        os.kill(self.pid, how)

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        try:
            return process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ServerDied(f"did not stop within {STOPPED_WITHIN_S} s of {how.name}") from None

    def reset(self) -> None:
        """Kill, forget everything stored, start."""
        self.kill()
        shutil.rmtree(self.store_dir, ignore_errors=True)
        self.start()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the log."""
        if not self.log_file.exists():
            return ""
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])

    def cpu_s(self) -> float:
        """CPU seconds used so far by all threads of the process."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> tuple[float, float]:
        """Resident memory now and at its highest, MiB."""
        found = {"VmRSS": 0.0, "VmHWM": 0.0}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) / 1024
        return found["VmRSS"], found["VmHWM"]

    def disk_mb(self) -> float:
        """Bytes allocated below the store directory, MiB."""
        total = 0
        for path in self.store_dir.rglob("*"):
            with contextlib.suppress(OSError):
                total += path.stat().st_blocks * 512
        return total / 2**20

    def close(self) -> None:
        """Kill what runs and remove a temporary directory."""
        self.kill()
        if self._is_temporary:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
