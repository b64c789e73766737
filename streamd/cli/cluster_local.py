"""Servers on loopback with generated configurations, for `streamctl` and the demonstrations.

The processes outlive whoever started them. What is needed to find them again is in the cluster's
directory: `cluster.json` (names, ports, the nodes' common secret) and a pid file per node.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from streamd.errors import StreamdError, describe

NAMES = ("node1", "node2", "node3")
OPERATOR = "admin"  # the user of the system account; its password is the cluster's secret
HEALTHY_WITHIN_S = 60.0
STOPPED_WITHIN_S = 30.0
ANSWERED_WITHIN_S = 5.0
LOOKED_AT_WITHIN_S = 0.8  # per question of `status`; a frozen node answers none
NODES_MAX = 9
POLL_S = 0.02


class ClusterError(StreamdError):
    """The cluster can not be started or found; the text says why."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of the first node; the others have the numbers after these."""

    client: int = 4222
    http: int = 8222
    cluster: int = 6222

    def refuse_impossible(self, count: int) -> None:
        """Raise ClusterError if `count` nodes can't have ports from these numbers on."""
        taken: dict[int, str] = {}
        for flag, first in (
            ("--port", self.client),
            ("--http-port", self.http),
            ("--cluster-port", self.cluster),
        ):
            last = first + count - 1
            if not 0 < first <= last < 65536:
                raise ClusterError(f"{flag} {first}: ports {first} to {last} do not all exist")
            for port in range(first, last + 1):
                if port in taken:
                    raise ClusterError(f"{flag} {first}: {port} is one of {taken[port]} already")
                taken[port] = flag


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Ports of one node, on 127.0.0.1."""

    name: str
    port: int
    http_port: int
    cluster_port: int


class LocalNode:
    """A server of the cluster: its files, its process, its monitoring answers."""

    def __init__(self, directory: Path, address: NodeAddress) -> None:
        self.directory = directory / address.name
        self.address = address
        self._child: subprocess.Popen[bytes] | None = None
        self._log_bytes_before = 0  # in the log when the server was started
        self._recognized = 0  # the pid of the server that answered for this node's data

    @property
    def name(self) -> str:
        return self.address.name

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.address.port}"

    @property
    def config_file(self) -> Path:
        return self.directory / "node.conf"

    @property
    def log_file(self) -> Path:
        return self.directory / "server.log"

    @property
    def store_dir(self) -> Path:
        return self.directory / "store"

    @property
    def _pid_file(self) -> Path:
        return self.directory / "pid"

    def pid(self) -> int:
        """The pid of the running server, 0 if it does not run.

        A number that some other process has by now is not taken for ours.
        """
        try:
            number = int(self._pid_file.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return 0
        if self._child is not None and self._child.pid == number:
            return number if self._child.poll() is None else 0
        command = Path(f"/proc/{number}/cmdline")
        if Path("/proc/self").exists():
            try:
                words = command.read_bytes().split(b"\0")
            except OSError:
                return 0
            return number if os.fsencode(self.config_file) in words else 0
        try:
            os.kill(number, 0)
        except OSError:
            return 0
        return number

    def start(self, binary: str) -> None:
        """Start the server; does not wait for it. Nothing happens if it runs already."""
        if self.pid():
            return
        with self.log_file.open("ab") as log:
            self._log_bytes_before = log.tell()
            # Its own session: Ctrl-C in the terminal is for whoever started it, not for the node.
            self._child = subprocess.Popen(
                [binary, "-c", str(self.config_file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._pid_file.write_text(str(self._child.pid), encoding="ascii")

    def end(self, how: signal.Signals = signal.SIGTERM) -> bool:
        """Send a signal that ends the process and wait; False if it did not run.

        Whoever does not obey within half a minute is killed.
        """
        number = self.pid()
        if not number:
            return False
        os.kill(number, how)
        deadline = time.monotonic() + STOPPED_WITHIN_S
        while self.pid():
            if time.monotonic() > deadline:
                os.kill(number, signal.SIGKILL)
                deadline = float("inf")
            time.sleep(POLL_S)
        self._child = None
        self._pid_file.unlink(missing_ok=True)
        return True

    def get(self, path: str, within_s: float = ANSWERED_WITHIN_S) -> dict[str, Any]:
        """A JSON document of the monitoring port. Raises OSError when there is no answer."""
        url = f"http://127.0.0.1:{self.address.http_port}{path}"
        with urllib.request.urlopen(url, timeout=within_s) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def health(self, within_s: float = ANSWERED_WITHIN_S) -> str:
        """ "ok", or what is the matter. See `is_ready`."""
        number = self.pid()
        if not number:
            return "not running"
        found = health(f"http://127.0.0.1:{self.address.http_port}/healthz", within_s)
        if is_ready(found) and self._recognized != number:
            other = self.stranger(within_s)
            if other:
                return f"port {self.address.http_port} is taken: {other} answers there"
            self._recognized = number
        return found

    def stranger(self, within_s: float = ANSWERED_WITHIN_S) -> str:
        """The server that answers at this node's monitoring port with other data than this node's;
        "" if it is this node, or if nobody answers."""
        try:
            found = self.get("/varz", within_s)
        except (OSError, ValueError):
            return ""
        config = found.get("jetstream", {}).get("config", {})
        where = str(config.get("store_dir", "")) if isinstance(config, dict) else ""
        if where and Path(where).is_relative_to(self.store_dir):
            return ""
        return f"server {found.get('server_name', '?')!r} with its data in {where or '?'}"

    def taken_ports(self) -> list[int]:
        """Ports of this node on which some process listens."""
        address = self.address
        ports = (address.port, address.http_port, address.cluster_port)
        return [port for port in ports if _is_taken(port)]

    def exit_status(self) -> int | None:
        """Exit status of the process that this object started; None if there is none or it runs."""
        return None if self._child is None else self._child.poll()

    def log_tail(self, lines: int = 15, *, since_bytes: int = 0) -> str:
        """The end of what the server logged."""
        if not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as log:
            log.seek(since_bytes)
            found = log.read().decode(errors="replace").splitlines()
        return "\n".join(found[-lines:])

    def last_words(self) -> str:
        """The end of what the server logged since this object started it; older lines would be
        taken for the reason."""
        said = self.log_tail(since_bytes=self._log_bytes_before)
        return f"its last lines in {self.log_file}:\n{said}" if said else "it logged nothing"


class LocalCluster:
    """The nodes of one directory: three, as many as were asked for, or a single server."""

    def __init__(self, directory: Path, addresses: list[NodeAddress], secret: str) -> None:
        self.directory = directory
        self.nodes = [LocalNode(directory, address) for address in addresses]
        self._secret = secret

    @classmethod
    def create(cls, directory: Path, ports: Ports, names: tuple[str, ...] = NAMES) -> LocalCluster:
        """Write the configurations; a cluster that is there already keeps its data and secret."""
        # Absolute: the path on the servers' command lines tells them from other processes.
        directory = directory.resolve()
        secret = secrets.token_hex(16)
        if (directory / "cluster.json").exists():
            before = cls.load(directory)
            secret = before._secret
            if len(before.nodes) != len(names):
                there = f"{len(before.nodes)} node{'s' if len(before.nodes) > 1 else ''}"
                raise ClusterError(
                    f"the cluster in {directory} has {there}, not {len(names)}:"
                    " use another directory (--dir)"
                )
        addresses = [
            NodeAddress(name, ports.client + at, ports.http + at, ports.cluster + at)
            for at, name in enumerate(names)
        ]
        cluster = cls(directory, addresses, secret)
        directory.mkdir(parents=True, exist_ok=True)
        described = {"nodes": [asdict(address) for address in addresses], "secret": secret}
        _write_private(directory / "cluster.json", json.dumps(described, indent=1) + "\n")
        for node in cluster.nodes:
            node.directory.mkdir(exist_ok=True)
            _write_private(node.config_file, cluster._config(node))
        return cluster

    @classmethod
    def load(cls, directory: Path) -> LocalCluster:
        """Find a cluster that `create` made. Raises ClusterError."""
        directory = directory.resolve()
        path = directory / "cluster.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            addresses = [NodeAddress(**each) for each in found["nodes"]]
            return cls(directory, addresses, found["secret"])
        except FileNotFoundError:
            raise ClusterError(f"no cluster in {directory}: there is no cluster.json") from None
        except (ValueError, KeyError, TypeError) as err:
            raise ClusterError(f"{path}: {err}") from err

    @property
    def urls(self) -> list[str]:
        """URLs of all nodes, for clients."""
        return [node.url for node in self.nodes]

    @property
    def ports(self) -> Ports:
        first = self.nodes[0].address
        return Ports(first.port, first.http_port, first.cluster_port)

    def node(self, name: str) -> LocalNode:
        return next(node for node in self.nodes if node.name == name)

    def start(self, binary: str) -> None:
        """Start what does not run and wait until every node is ready.

        Raises ClusterError, and then none of the servers that this call started runs.
        """
        missing = [node for node in self.nodes if not node.pid()]
        self._refuse_taken(missing)
        try:
            for node in missing:
                node.start(binary)
            self.wait_all_ready()
        except ClusterError:
            for node in missing:
                node.end()
            raise

    def _refuse_taken(self, missing: list[LocalNode]) -> None:
        """Raise ClusterError if a server could not listen where it is to."""
        taken = [(node, ports) for node in missing if (ports := node.taken_ports())]
        if not taken:
            return
        lines = []
        for node, ports in taken:
            other = node.stranger()
            by = f", by {other}" if other else ""
            lines.append(f"{node.name} can't listen on {', '.join(map(str, ports))}: in use{by}")
        lines.append("choose others: --port, --http-port, --cluster-port")
        raise ClusterError("\n".join(lines))

    def wait_healthy(self, node: LocalNode, within_s: float = HEALTHY_WITHIN_S) -> None:
        """Wait until the node says of itself that it is ready. Raises ClusterError."""
        self._wait([node], within_s)

    def wait_all_ready(self, within_s: float = HEALTHY_WITHIN_S) -> None:
        """Wait until every node says of itself that it is ready. Raises ClusterError."""
        self._wait(self.nodes, within_s)

    def _wait(self, nodes: list[LocalNode], within_s: float) -> None:
        """Watches all of `nodes`: one that ended is told at once, whichever is asked first."""
        deadline = time.monotonic() + within_s
        while True:
            for node in nodes:
                if not node.pid():
                    how = how_it_ended(node.exit_status())
                    raise ClusterError(f"{node.name} {how}; {node.last_words()}")
            states = {node.name: node.health() for node in nodes}
            unwell = {name: state for name, state in states.items() if not is_ready(state)}
            if not unwell and all(node.pid() for node in nodes):
                return
            if time.monotonic() > deadline:
                told = "; ".join(f"{name}: {state}" for name, state in unwell.items())
                raise ClusterError(f"not ready after {within_s:g} s: {told}")
            time.sleep(POLL_S)

    def restart(self, node: LocalNode, binary: str) -> float:
        """Stop the node by SIGTERM, start it and wait until every node is ready; return the
        seconds it took. Raises ClusterError."""
        began = time.monotonic()
        node.end()
        node.start(binary)
        self.wait_all_ready()
        return time.monotonic() - began

    def stop(self) -> list[str]:
        """Stop what runs, by SIGTERM one after another; return the names of what ran."""
        return [node.name for node in self.nodes if node.end()]

    @property
    def operator(self) -> tuple[str, str]:
        """Name and password of the user who may ask and manage all servers."""
        return OPERATOR, self._secret

    @cached_property
    def _operator_hash(self) -> str:
        from bcrypt import gensalt, hashpw  # no other command than `up` needs it

        # Of a long random text, which nobody guesses however cheap a guess is.
        return hashpw(self._secret.encode(), gensalt(4)).decode()

    def _config(self, node: LocalNode) -> str:
        address = node.address
        alone = f"""\
# Written by `streamctl cluster up`; the next `up` writes it again.
server_name: {address.name}
listen: 127.0.0.1:{address.port}
http: 127.0.0.1:{address.http_port}

jetstream {{
  store_dir: "{node.store_dir}"
  sync_interval: always
}}

# Clients need no login; `streamctl --user {OPERATOR}` sees and manages the servers.
accounts {{ $SYS {{ users: [{{ user: {OPERATOR}, password: '{self._operator_hash}' }}] }} }}
"""
        if len(self.nodes) == 1:
            return alone
        routes = "\n".join(
            f"    nats://streamd:{self._secret}@127.0.0.1:{other.address.cluster_port}"
            for other in self.nodes
        )
        return f"""{alone}
cluster {{
  name: local
  listen: 127.0.0.1:{address.cluster_port}
  authorization {{ user: streamd, password: "{self._secret}", timeout: 2 }}
  routes = [
{routes}
  ]
}}
"""


def how_it_ended(status: int | None) -> str:
    """Words for the exit status of a process that should have gone on; None: not known."""
    if status is None:
        return "does not run any more"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    if status == 0:
        return "was stopped: it ended without an error"
    return f"ended with status {status}"


DEGRADED = "degraded"


def is_ready(state: str) -> bool:
    """True if what `health` returned is no reason to wait: all is well, or the node is, and what
    it names does not come back by itself."""
    return state == "ok" or state.startswith(DEGRADED)


def health(
    url: str, within_s: float = ANSWERED_WITHIN_S, context: ssl.SSLContext | None = None
) -> str:
    """ "ok", or why the server at this /healthz is not; "degraded: " and why: it is well, but for
    streams whose only copy is lost."""
    try:
        with urllib.request.urlopen(url, timeout=within_s, context=context) as answer:
            found = json.load(answer)
            text = str(found["status"])
            return f"{text}: {found['error']}" if found.get("error") else text
    except urllib.error.HTTPError as err:
        try:
            found = json.load(err)
            return str(found.get("error") or found.get("status") or err.code)
        except (ValueError, AttributeError):
            return f"status {err.code}"
    except OSError as err:
        return f"no answer: {describe(err)}"
    except (ValueError, KeyError, TypeError, http.client.HTTPException):
        return "no answer: what came is no server's health"


def server_binary() -> str:
    """The `streamd` beside this interpreter, else the one on the path. Raises ClusterError."""
    beside = Path(sys.executable).parent / "streamd"
    found = str(beside) if beside.exists() else shutil.which("streamd")
    if not found:
        raise ClusterError("there is no streamd beside this Python and none on the path")
    return found


def _is_taken(port: int) -> bool:
    """True if nothing new could listen on this port of loopback."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _write_private(path: Path, text: str) -> None:
    """A file that only its owner reads: it holds the secret."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(number, "w", encoding="utf-8") as file:
        file.write(text)
