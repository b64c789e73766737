"""`streamctl`: a cluster on this machine with one word, and a health check for containers.

streamctl cluster up               # three nodes on loopback; waits until all are ready
streamctl cluster status           # each node: does it run, does it lead, is it well
streamctl cluster logs node2 -f    # a node's log
streamctl cluster restart node2    # one node, or all of them one after another
streamctl cluster down             # stops them; the data stays
streamctl health                   # status 0 if the server at 127.0.0.1:8222 is ready
streamctl health --pid 1           # the same of a process, at the address in its configuration
streamctl tail list STORE_DIR      # entries that a node set aside, which its leader did not have
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from streamd import __version__
from streamd.cli import probe, tail_command
from streamd.cli.cluster_local import (
    DEGRADED,
    LOOKED_AT_WITHIN_S,
    NODES_MAX,
    ClusterError,
    LocalCluster,
    LocalNode,
    Ports,
    health,
    is_ready,
    server_binary,
)
from streamd.errors import CorruptionError, describe

LOG_POLL_S = 0.2
DEFAULT_HEALTH_URL = "http://127.0.0.1:8222/healthz"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A row of `cluster status`. Counts are None where the node did not answer."""

    node: str
    pid: int  # 0: it does not run
    clients: str
    monitoring: str
    meta: str  # "leader", "follower" or ""
    replicas: int | None  # copies of streams that live on this node
    health: str  # "ok", "degraded: ...", or what is the matter

    @property
    def is_ready(self) -> bool:
        return is_ready(self.health)


COLUMNS = ("node", "pid", "clients", "monitoring", "meta", "replicas", "health")


def main(arguments: list[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except (ClusterError, tail_command.TailError, CorruptionError, OSError) as err:
        print(f"streamctl: {describe(err)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="streamctl", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"streamctl: v{__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    cluster = commands.add_parser(
        "cluster", help="a cluster on this machine, for trying things out"
    )
    actions = cluster.add_subparsers(required=True, metavar="up|status|logs|restart|down")
    described = {
        "up": (_up, "start the nodes that do not run, and wait until all are ready"),
        "status": (_status, "show the nodes; exit status 0 if all are ready"),
        "logs": (_logs, "show the last lines of the nodes' logs"),
        "restart": (_restart, "stop and start one node, or all one after another"),
        "down": (_down, "stop the nodes, keep their data"),
    }
    added = {}
    for word, (run, text) in described.items():
        action = added[word] = actions.add_parser(word, help=text, description=text)
        action.add_argument(
            "--dir", default="data/cluster", help="directory of the cluster (default: %(default)s)"
        )
        action.set_defaults(run=run)
    _add_up(added["up"])
    added["status"].add_argument("--json", action="store_true", help="print one JSON document")
    added["logs"].add_argument("node", nargs="*", metavar="NODE", help="name (default: all)")
    added["logs"].add_argument(
        *("-n", "--lines"), type=int, default=20, help="lines of each node (default: %(default)s)"
    )
    added["logs"].add_argument(
        *("-f", "--follow"), action="store_true", help="show new lines until Ctrl-C"
    )
    added["restart"].add_argument("node", nargs="*", metavar="NODE", help="name (default: all)")
    for word in ("up", "restart"):
        added[word].add_argument(
            "--binary", default="", help="program of the server (default: streamd)"
        )
    check = commands.add_parser("health", help="ask one server for its health")
    check.add_argument(
        "url", nargs="?", default="", help=f"URL to ask (default: {DEFAULT_HEALTH_URL})"
    )
    check.add_argument(
        "--pid",
        type=int,
        default=0,
        help="ask the server with this process id, at the address that its command line and "
        "configuration give; a server without monitoring is well if it answers a client",
    )
    check.set_defaults(run=_health)
    tail_command.add(commands)
    return parser


def _add_up(action: argparse.ArgumentParser) -> None:
    first = Ports()
    action.add_argument("--nodes", type=int, help="count of nodes (default: 3, or as last time)")
    for flag, port, of in (
        ("--port", first.client, "client port of the first node; the others have the next ones"),
        ("--http-port", first.http, "likewise, monitoring ports"),
        ("--cluster-port", first.cluster, "likewise, ports between nodes"),
    ):
        action.add_argument(flag, type=int, help=f"{of} (default: {port}, or as last time)")


def _up(options: argparse.Namespace) -> int:
    directory = Path(options.dir)
    count, before, running = 3, Ports(), []
    if (directory / "cluster.json").exists():
        there = LocalCluster.load(directory)
        count, before = len(there.nodes), there.ports
        running = [node.name for node in there.nodes if node.pid()]
    if options.nodes is not None:
        count = options.nodes
    if not 1 <= count <= NODES_MAX:
        raise ClusterError(f"--nodes {count}: must be 1 to {NODES_MAX}")
    wanted = Ports(
        before.client if options.port is None else options.port,
        before.http if options.http_port is None else options.http_port,
        before.cluster if options.cluster_port is None else options.cluster_port,
    )
    wanted.refuse_impossible(count)
    if running and before != wanted:
        raise ClusterError(
            f"{', '.join(running)} run on other ports: "
            "stop the cluster first (`streamctl cluster down`)"
        )
    names = tuple(f"node{at}" for at in range(1, count + 1))
    cluster = LocalCluster.create(directory, wanted, names)
    cluster.start(options.binary or server_binary())
    _print_table(_look(cluster))
    print(f"\nconnect to {','.join(cluster.urls)}")
    return 0


def _status(options: argparse.Namespace) -> int:
    found = _look(LocalCluster.load(Path(options.dir)))
    if options.json:
        print(json.dumps([asdict(row) for row in found], indent=1))
    else:
        _print_table(found)
    return 0 if all(row.is_ready for row in found) else 1


def _logs(options: argparse.Namespace) -> int:
    nodes = _chosen(LocalCluster.load(Path(options.dir)), options.node)
    places = {}
    for node in nodes:
        prefix = f"{node.name} | " if len(nodes) > 1 else ""
        places[node] = _show_end(node, prefix, options.lines), prefix
    while options.follow:
        time.sleep(LOG_POLL_S)
        for node, (at, prefix) in places.items():
            places[node] = _show_new(node, prefix, at), prefix
    return 0


def _show_end(node: LocalNode, prefix: str, count: int) -> int:
    """Print the last `count` lines; return where the file ended."""
    if not node.log_file.exists():
        print(f"{prefix}(no log yet: {node.log_file})")
        return 0
    with node.log_file.open("rb") as file:
        for line in deque(file, maxlen=count):
            _print_line(prefix, line)
        return file.tell()


def _show_new(node: LocalNode, prefix: str, at: int) -> int:
    """Print the whole lines behind `at`; return where they end."""
    try:
        with node.log_file.open("rb") as file:
            if os.fstat(file.fileno()).st_size < at:  # somebody emptied it
                at = 0
            file.seek(at)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                _print_line(prefix, line)
                at += len(line)
    except FileNotFoundError:
        return 0
    return at


def _print_line(prefix: str, line: bytes) -> None:
    print(prefix + line.decode(errors="replace").rstrip("\n"), flush=True)


def _restart(options: argparse.Namespace) -> int:
    cluster = LocalCluster.load(Path(options.dir))
    binary = options.binary or server_binary()
    for node in _chosen(cluster, options.node):
        print(f"{node.name}: restarting", flush=True)
        took_s = cluster.restart(node, binary)
        print(f"{node.name}: all nodes are ready again after {took_s:.1f} s", flush=True)
    return 0


def _down(options: argparse.Namespace) -> int:
    stopped = LocalCluster.load(Path(options.dir)).stop()
    print(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")
    return 0


def _health(options: argparse.Namespace) -> int:
    url = options.url or DEFAULT_HEALTH_URL
    if options.pid:
        url = probe.health_address(options.pid)
    if url.startswith(("nats://", "tls://")):
        found = probe.client_health(url)
    else:
        is_own = bool(options.pid)  # a server of this machine: its name does not matter
        found = health(url, context=probe.unverified_context() if is_own else None)
    print(found if found == "ok" else f"{found} ({url})")
    return 0 if is_ready(found) else 1


def _chosen(cluster: LocalCluster, names: list[str]) -> list[LocalNode]:
    """The nodes called `names`, all if there are none. Raises ClusterError."""
    by_name = {node.name: node for node in cluster.nodes}
    for name in names:
        if name not in by_name:
            raise ClusterError(f"no node {name!r}: there are {', '.join(by_name)}")
    return [by_name[name] for name in names] or cluster.nodes


def _look(cluster: LocalCluster) -> list[NodeStatus]:
    """Ask all nodes at once, so that one that is frozen holds up no other's answer."""
    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        return list(pool.map(_row, cluster.nodes))


def _row(node: LocalNode) -> NodeStatus:
    state = node.health(LOOKED_AT_WITHIN_S)
    meta, replicas = "", None
    if node.pid() and not state.startswith("no answer"):
        try:
            found = node.get("/jsz", LOOKED_AT_WITHIN_S)
        except (OSError, ValueError):
            found = {}
        leader = found.get("meta_cluster", {}).get("leader", "")
        if leader:
            meta = "leader" if leader == node.name else "follower"
        replicas = found.get("streams")
    where = f"127.0.0.1:{node.address.http_port}"
    return NodeStatus(node.name, node.pid(), node.url, where, meta, replicas, state)


def _print_table(found: list[NodeStatus]) -> None:
    rows = [COLUMNS, *(_cells(row) for row in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    for node in found:
        if node.health.startswith(DEGRADED):
            print(f"\n{node.node} is {node.health}")


def _cells(row: NodeStatus) -> tuple[str, ...]:
    replicas = "-" if row.replicas is None else str(row.replicas)
    pid, meta = str(row.pid or "-"), row.meta or "-"
    state = DEGRADED if row.health.startswith(DEGRADED) else row.health  # why: below the table
    return row.node, pid, row.clients, row.monitoring, meta, replicas, state


if __name__ == "__main__":
    sys.exit(main())
