"""`streamctl cluster`: servers on this machine, for trying things out, and to watch them."""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from streamd.cli.cluster_local import (
    DEGRADED,
    LOOKED_AT_WITHIN_S,
    NODES_MAX,
    ClusterError,
    LocalCluster,
    LocalNode,
    Ports,
    is_ready,
    server_binary,
)
from streamd.ctl.display import Column, note, say, show_data, show_table, words
from streamd.ctl.progress_bar import spinner
from streamd.ctl.settings import Settings
from streamd.ctl.verbs import VerbGroup, verb

LOG_POLL_S = 0.2
_FIRST = Ports()


@click.group("cluster", cls=VerbGroup)
def command_cluster() -> None:
    """Run a cluster on this machine, for trying things out."""


_dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path("data/cluster"),
    show_default=True,
    help="Directory of the cluster.",
)
_binary_option = click.option(
    "--binary", default="", help="Program of the server [default: streamd]."
)
_nodes_argument = click.argument("names", metavar="[NODE]...", nargs=-1)


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


COLUMNS = (
    Column("node", "node"),
    Column("pid", "pid", lambda pid: str(pid or "-"), is_number=True),
    *words("clients", "monitoring"),
    Column("meta", "meta", lambda meta: meta or "-"),
    Column("replicas", "replicas", is_number=True),
    Column("health", "health", lambda state: DEGRADED if state.startswith(DEGRADED) else state),
)


@verb(command_cluster, "up", example="streamctl cluster up --nodes 3 --port 4222")
@_dir_option
@_binary_option
@click.option("--nodes", type=int, help="Count of nodes [default: 3, or as last time].")
@click.option(
    "--port",
    type=int,
    help=f"Client port of the first node; the others have the next ones [default: {_FIRST.client}, "
    "or as last time].",
)
@click.option("--http-port", type=int, help=f"Likewise, monitoring [default: {_FIRST.http}].")
@click.option(
    "--cluster-port", type=int, help=f"Likewise, between nodes [default: {_FIRST.cluster}]."
)
def up(
    settings: Settings,
    directory: Path,
    binary: str,
    nodes: int | None,
    port: int | None,
    http_port: int | None,
    cluster_port: int | None,
) -> int:
    """Start the nodes that do not run, and wait until all are ready."""
    count, before, running = 3, Ports(), []
    if (directory / "cluster.json").exists():
        there = LocalCluster.load(directory)
        count, before = len(there.nodes), there.ports
        running = [node.name for node in there.nodes if node.pid()]
    if nodes is not None:
        count = nodes
    if not 1 <= count <= NODES_MAX:
        raise ClusterError(f"--nodes {count}: must be 1 to {NODES_MAX}")
    wanted = Ports(
        before.client if port is None else port,
        before.http if http_port is None else http_port,
        before.cluster if cluster_port is None else cluster_port,
    )
    wanted.refuse_impossible(count)
    if running and before != wanted:
        raise ClusterError(
            f"{', '.join(running)} run on other ports: "
            "stop the cluster first (`streamctl cluster down`)"
        )
    names = tuple(f"node{at}" for at in range(1, count + 1))
    cluster = LocalCluster.create(directory, wanted, names)
    with spinner("waiting until all nodes are ready"):
        cluster.start(binary or server_binary())
    _show(settings, _look(cluster))
    if settings.output == "table":
        user, password = cluster.operator
        say(f"\nconnect to {','.join(cluster.urls)}")
        say(f"operate it with --user {user} --password {password}")
    return 0


@verb(command_cluster, "status", example="streamctl cluster status --output json")
@_dir_option
@click.option("--json", "is_json", is_flag=True, hidden=True, help="As --output json.")
def status(settings: Settings, directory: Path, is_json: bool) -> int:
    """Show the nodes; exit status 0 if all are ready."""
    found = _look(LocalCluster.load(directory))
    _show(replace(settings, output="json") if is_json else settings, found)
    return 0 if all(row.is_ready for row in found) else 1


@verb(command_cluster, "logs", example="streamctl cluster logs node2 --follow")
@_nodes_argument
@_dir_option
@click.option("-n", "--lines", default=20, show_default=True, help="Lines of each node.")
@click.option("-f", "--follow", is_flag=True, help="Show new lines until Ctrl-C.")
def logs(
    _settings: Settings, directory: Path, names: tuple[str, ...], lines: int, follow: bool
) -> int:
    """Show the last lines of the nodes' logs."""
    nodes = _chosen(LocalCluster.load(directory), names)
    places = {}
    for node in nodes:
        prefix = f"{node.name} | " if len(nodes) > 1 else ""
        places[node] = _show_end(node, prefix, lines), prefix
    while follow:
        time.sleep(LOG_POLL_S)
        for node, (at, prefix) in places.items():
            places[node] = _show_new(node, prefix, at), prefix
    return 0


@verb(command_cluster, "restart", example="streamctl cluster restart node2")
@_nodes_argument
@_dir_option
@_binary_option
def restart(settings: Settings, directory: Path, names: tuple[str, ...], binary: str) -> int:
    """Stop and start one node, or all one after another."""
    cluster = LocalCluster.load(directory)
    program = binary or server_binary()
    tell = say if settings.output == "table" else note
    rows = []
    for node in _chosen(cluster, names):
        tell(f"{node.name}: restarting")
        with spinner(f"waiting for {node.name}"):
            took_s = cluster.restart(node, program)
        tell(f"{node.name}: all nodes are ready again after {took_s:.1f} s")
        rows.append({"node": node.name, "took_s": took_s})
    show_data(settings, rows)
    return 0


@verb(command_cluster, "down", example="streamctl cluster down")
@_dir_option
def down(settings: Settings, directory: Path) -> int:
    """Stop the nodes; their data stays."""
    with spinner("waiting until all nodes have stopped"):
        stopped = LocalCluster.load(directory).stop()
    if not show_data(settings, {"stopped": stopped}):
        say(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")
    return 0


def _show(settings: Settings, found: list[NodeStatus]) -> None:
    rows = [asdict(row) for row in found]
    if show_data(settings, rows):
        return
    show_table(rows, COLUMNS)
    for node in found:
        if node.health.startswith(DEGRADED):
            say(f"\n{node.node} is {node.health}")


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


def _chosen(cluster: LocalCluster, names: tuple[str, ...]) -> list[LocalNode]:
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
