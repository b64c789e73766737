"""Three server processes on loopback that form a cluster: ours or nats-servers."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.servers import ServerDied, ServerProcess, free_port

READY_WITHIN_S = 60.0
ANSWERED_WITHIN_S = 5.0
POLL_S = 0.01


class ClusterProcess:
    """Some servers named n1, n2, ... with routes to each other.

    Each may be stopped, killed and started again by itself. `sync` and `jetstream` are as for a
    `ServerProcess`; `secret` and `extra` go into every configuration, and the first of `tags`
    into that of n1, and so on.
    """

    def __init__(
        self,
        binary: str | Path,
        *,
        size: int = 3,
        directory: str | Path | None = None,
        sync: str = "",
        secret: str = "bench",
        extra: str = "",
        tags: Sequence[str] = (),
        jetstream: str = "",
    ) -> None:
        self._is_temporary = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="streamd-cluster-"))
        self.cluster_ports = [free_port() for _ in range(size)]
        self._secret = secret
        self.nodes: dict[str, ServerProcess] = {}
        for at, port in enumerate(self.cluster_ports):
            name = f"n{at + 1}"
            tagged = f"server_tags: [{', '.join(tags[at].split())}]" if tags else ""
            self.nodes[name] = ServerProcess(
                binary,
                directory=self.directory / name,
                sync=sync,
                jetstream=jetstream,
                extra=f"{self.cluster_block(name, port)}\n{tagged}\n{extra}",
            )

    def cluster_block(
        self, name: str, port: int, *, secret: str = "", cluster: str = "bench"
    ) -> str:
        """The lines that make a server a node of this cluster."""
        secret = secret or self._secret
        routes = ", ".join(f'"nats://route:{secret}@127.0.0.1:{at}"' for at in self.cluster_ports)
        return (
            f"server_name: {name}\n"
            f"cluster {{\n  name: {cluster}\n  listen: 127.0.0.1:{port}\n"
            f'  authorization {{ user: route, password: "{secret}", timeout: 2 }}\n'
            f"  routes: [{routes}]\n}}"
        )

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes.values()]

    @property
    def ports(self) -> dict[str, int]:
        """Client ports by name."""
        return {name: node.port for name, node in self.nodes.items()}

    def start(self, within_s: float = READY_WITHIN_S) -> float:
        """Start all that do not run, wait until each is healthy; return the seconds it took."""
        began = time.perf_counter()
        for node in self.nodes.values():
            if not node.is_running():
                node.launch()
        for node in self.nodes.values():
            node.wait(within_s)
            self.wait_healthy(node, within_s)
        return time.perf_counter() - began

    def stop(self) -> None:
        """SIGTERM to one after the other."""
        for node in self.nodes.values():
            node.stop()

    def kill(self, *names: str) -> None:
        """SIGKILL to those named, one after the other."""
        for name in names:
            self.nodes[name].kill()

    def kill_at_once(self) -> None:
        """SIGKILL to all before any is waited for."""
        running = [node for node in self.nodes.values() if node.is_running()]
        for node in running:
            node.send(signal.SIGKILL)
        for node in running:
            node.kill()

    def configure(self, *, sync: str) -> None:
        for node in self.nodes.values():
            node.configure(sync=sync)

    def get(self, node: ServerProcess, path: str) -> dict[str, Any]:
        """A document of the monitoring port; {} when there is no answer."""
        url = f"http://127.0.0.1:{node.http_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=ANSWERED_WITHIN_S) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, ValueError):
            return {}

    def is_healthy(self, node: ServerProcess) -> bool:
        found = self.get(node, "/healthz")
        # A leader that was killed says so of entries that no other node had (docs/adr/0036).
        is_told = "may have been acknowledged" in str(found.get("error", ""))
        return found.get("status") == "ok" or (found.get("status") == "degraded" and is_told)

    def wait_healthy(self, node: ServerProcess, within_s: float = READY_WITHIN_S) -> None:
        """Wait until /healthz is 200. Raises ServerDied."""
        self.wait_until(lambda: self.is_healthy(node), "healthy", within_s, node)

    def wait_until(
        self,
        is_true: Callable[[], Any],
        what: str,
        within_s: float = READY_WITHIN_S,
        node: ServerProcess | None = None,
    ) -> Any:
        """Ask again and again; return what was true. Raises ServerDied with the logs."""
        deadline = time.perf_counter() + within_s
        while not (found := is_true()):
            if time.perf_counter() > deadline or (node and not node.is_running()):
                logs = [node] if node else list(self.nodes.values())
                tails = "\n---\n".join(one.log_tail(12) for one in logs)
                raise ServerDied(f"not {what} within {within_s:g} s\n{tails}")
            time.sleep(POLL_S)
        return found

    def detail(self, node: ServerProcess, stream: str) -> dict[str, Any]:
        """The stream as this node's /jsz shows its own copy, with the digest; {} if it does not."""
        found = self.get(node, "/jsz?accounts=1&streams=1&consumers=1&digest=1")
        for account in found.get("account_details") or []:
            for each in account.get("stream_detail") or []:
                if each["name"] == stream:
                    return dict(each)
        return {}

    def leader(self, stream: str, *, but: str = "", within_s: float = READY_WITHIN_S) -> str:
        """The name of the node that leads the stream, once a running node names one."""

        def named() -> str:
            for name, node in self.nodes.items():
                if name == but or not node.is_running():
                    continue
                found = str(self.detail(node, stream).get("cluster", {}).get("leader", ""))
                if found and found != but and self.nodes[found].is_running():
                    return found
            return ""

        return str(self.wait_until(named, f"led ({stream})", within_s))

    def is_whole(self, stream: str) -> bool:
        """True if the stream's leader calls every other copy current, and all end at one seq."""
        details = {name: self.detail(node, stream) for name, node in self.nodes.items()}
        ends = {detail.get("state", {}).get("last_seq", -1) for detail in details.values()}
        leader = next(iter(details.values())).get("cluster", {}).get("leader", "")
        told = details.get(leader, {}).get("cluster", {}).get("replicas") or []
        current = [one for one in told if one.get("current") and not one.get("offline")]
        return len(ends) == 1 and -1 not in ends and len(current) == len(self.nodes) - 1

    def remove_stream(self, name: str) -> None:
        """Remove what a stopped node has in its directory of streams."""
        for place in ("streamd/streams", "jetstream/$G/streams"):
            directory = self.nodes[name].store_dir / place
            if directory.exists():
                shutil.rmtree(directory)
                directory.mkdir()

    def cpu_s(self) -> float:
        return sum(node.cpu_s() for node in self.nodes.values())

    def memory_mb(self) -> float:
        """The highest resident memory of all together, MiB."""
        return sum(node.memory_mb()[1] for node in self.nodes.values())

    def close(self) -> None:
        """Kill what runs and remove a temporary directory."""
        for node in self.nodes.values():
            with contextlib.suppress(ServerDied):
                node.close()
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> ClusterProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
