"""The rows with three servers: throughput, failover, blackout, catch-up, idle cost."""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from typing import Any

from benchmarks.cluster import ClusterProcess
from benchmarks.generator import Figures, RunFailed, generate
from benchmarks.load import STREAM, SUBJECT, Link, LoadError, payload
from benchmarks.rows import Row

LOST_AFTER_S = 0.1  # a message without an answer for so long is sent again
RETRY_S = 0.002
SERVING_WITHIN_S = 60.0
WHOLE_WITHIN_S = 300.0
SETTLED_S = 15.0  # a group's last checkpoint comes up to 10 s after its last message


class Trickle(threading.Thread):
    """Publishes one message after the other at whatever node answers, and notes the acks."""

    def __init__(self, ports: list[int], *, every_s: float = 0.002) -> None:
        super().__init__(daemon=True)
        self._ports = ports
        self._every_s = every_s
        self._is_stopped = threading.Event()
        self._acked = threading.Condition()
        self.acked_at = 0.0
        self.count = 0

    def run(self) -> None:
        turn = 0
        while not self._is_stopped.is_set():
            turn += 1
            try:
                link = Link(self._ports[turn % len(self._ports)])
            except (OSError, LoadError):
                self._is_stopped.wait(RETRY_S)
                continue
            try:
                self._publish(link)
            except (OSError, LoadError):
                pass  # the next connection goes to the next node
            finally:
                link.socket.close()

    def _publish(self, link: Link) -> None:
        """Publish one by one until the connection fails."""
        body = payload(128)
        link.socket.setblocking(True)
        link.socket.sendall(b"SUB _INBOX.trickle.* 1\r\n")
        number = 0
        while not self._is_stopped.is_set():
            number += 1
            reply = b"_INBOX.trickle.%d" % number
            line = b"PUB %s %s %d\r\n%s\r\n" % (SUBJECT, reply, len(body), body)
            link.socket.sendall(line)
            if self._is_acked(link, reply):
                with self._acked:
                    self.acked_at = time.perf_counter()
                    self.count += 1
                    self._acked.notify_all()
                self._is_stopped.wait(self._every_s)
            else:
                self._is_stopped.wait(RETRY_S)

    def _is_acked(self, link: Link, reply: bytes) -> bool:
        link.socket.settimeout(LOST_AFTER_S)
        seen = b""
        while True:
            try:
                chunk = link.socket.recv(65536)
            except TimeoutError:
                return False
            if not chunk:
                raise LoadError("the server closed the connection")
            if chunk.startswith(b"PING"):
                link.socket.sendall(b"PONG\r\n")
            seen += chunk
            _, found, rest = seen.partition(reply)
            if found and rest.endswith(b"\r\n") and (b"}" in rest or b"503" in rest):
                return b'"seq"' in rest

    def wait_acked(self, after: float, within_s: float = SERVING_WITHIN_S) -> float:
        """Wait for an ack after that moment; return its time. Raises RunFailed."""
        with self._acked:
            if not self._acked.wait_for(lambda: self.acked_at > after, within_s):
                raise RunFailed(f"no ack within {within_s} s")
            return self.acked_at

    def stop(self) -> None:
        self._is_stopped.set()
        self.join(5)


def measure(row: Row, target: str, binary: str, seconds: float) -> Figures:
    """Run of one row against one cluster. `target` is ours, ours_lazy, lazy or always."""
    sync = {"always": "always", "ours_lazy": "2m"}.get(target, "")
    with ClusterProcess(binary) as cluster:
        if row.fill:
            cluster.start()  # the peer would take minutes to fill in its `always` mode
            _fill(cluster, row.fill_size, row.fill)
            cluster.wait_until(lambda: cluster.is_whole(STREAM), "whole", WHOLE_WITHIN_S)
            cluster.stop()
        cluster.configure(sync=sync)
        cluster.start()
        if row.call == "failover":
            return _failover(cluster, int(row.args["rounds"]))
        if row.call == "blackout":
            return _blackout(cluster)
        if row.call == "catch_up":
            return _catch_up(cluster)
        if row.call == "idle":
            return _idle(cluster, row.args)
        return _load(cluster, row, seconds)


def _any_port(cluster: ClusterProcess) -> int:
    return next(iter(cluster.ports.values()))


def _replicated(cluster: ClusterProcess) -> dict[str, Any]:
    return {"replicas": 3, "nodes": cluster.ports}


def _fill(cluster: ClusterProcess, size: int, count: int) -> None:
    generate(_any_port(cluster), "fill", {"size": size, "count": count, **_replicated(cluster)})


def _load(cluster: ClusterProcess, row: Row, seconds: float) -> Figures:
    """A row of `load`, whose connections go to the stream's leader."""
    port, args = _any_port(cluster), {"seconds": seconds} | row.args
    if row.call in ("publish", "get_last"):
        args |= _replicated(cluster)
    else:
        port = cluster.ports[cluster.leader(STREAM)]
    before = cluster.cpu_s()
    found = generate(port, row.call, args)
    found["cpu_s_per_m"] = (cluster.cpu_s() - before) / found["count"] * 1e6
    found["memory_mb"] = cluster.memory_mb()
    return found


def _failover(cluster: ClusterProcess, rounds: int) -> Figures:
    """SIGKILL of the stream's leader to the next ack, for a client of another node."""
    _fill(cluster, 128, 1000)
    waits = []
    for _ in range(rounds):
        cluster.wait_until(lambda: cluster.is_whole(STREAM), "whole")
        leader = cluster.leader(STREAM)
        ports = [port for name, port in cluster.ports.items() if name != leader]
        trickle = Trickle(ports)
        trickle.start()
        try:
            trickle.wait_acked(0.0)
            began = time.perf_counter()
            cluster.kill(leader)
            # An ack that was on its way when the leader died is not the next leader's.
            waits.append(trickle.wait_acked(began + 0.02) - began)
        finally:
            trickle.stop()
        cluster.start()
    return {"failover_ms": statistics.median(waits) * 1000, "worst_ms": max(waits) * 1000}


def _blackout(cluster: ClusterProcess) -> Figures:
    """Time to the next ack after all three are killed at once and started again."""
    trickle = Trickle(list(cluster.ports.values()))
    trickle.start()
    try:
        trickle.wait_acked(0.0)
        cluster.kill_at_once()
        began = time.perf_counter()
        for node in cluster.nodes.values():
            node.launch()
        return {"outage_s": trickle.wait_acked(began) - began}
    finally:
        trickle.stop()


def _catch_up(cluster: ClusterProcess) -> Figures:
    """A follower without any data becomes whole while publishing goes on."""
    leader = cluster.leader(STREAM)
    name = next(each for each in cluster.nodes if each != leader)
    cluster.kill(name)
    shutil.rmtree(cluster.nodes[name].store_dir)
    ports = [port for each, port in cluster.ports.items() if each != name]
    trickle = Trickle(ports)
    trickle.start()
    try:
        first = trickle.wait_acked(0.0)
        end = cluster.detail(cluster.nodes[leader], STREAM)["state"]["last_seq"]
        began = time.perf_counter()
        cluster.nodes[name].launch()

        def is_whole() -> bool:
            state = cluster.detail(cluster.nodes[name], STREAM).get("state", {})
            if state.get("last_seq", 0) < end or state["messages"] < end:
                return False
            told = cluster.detail(cluster.nodes[leader], STREAM).get("cluster", {})
            return any(
                one["name"] == name and one.get("current") for one in told.get("replicas") or []
            )

        cluster.wait_until(is_whole, "whole", WHOLE_WITHIN_S)
        took = time.perf_counter() - began
        rate = trickle.count / max(0.001, time.perf_counter() - first)
        return {"catch_up_s": took, "publish_rate": rate}
    finally:
        trickle.stop()


def _idle(cluster: ClusterProcess, args: dict[str, Any]) -> Figures:
    """CPU of all three together while nothing happens."""
    asked = {"count": args["count"], "replicas": 3}
    created = generate(_any_port(cluster), "create_streams", asked)
    time.sleep(SETTLED_S)
    before, began = cluster.cpu_s(), time.perf_counter()
    time.sleep(args["seconds"])
    share = (cluster.cpu_s() - before) / (time.perf_counter() - began)
    return {
        "cpu_percent": max(share * 100, 0.1),
        "memory_mb": cluster.memory_mb(),
        "creates_per_s": created["rate"],
    }
