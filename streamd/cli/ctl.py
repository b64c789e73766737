"""`streamctl`: three nodes on this machine with one word, and a health check for containers.

streamctl cluster up        # three nodes on loopback; waits until all are healthy
streamctl cluster status    # who runs, who leads, how they are
streamctl cluster down      # stops them; the data stays
streamctl health            # 0 if the server at 127.0.0.1:8222 is ready
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from streamd.cli.cluster_local import (
    DEGRADED,
    ClusterError,
    LocalCluster,
    LocalNode,
    Ports,
    health,
    is_ready,
    server_binary,
)

COLUMNS = ("node", "pid", "clients", "monitoring", "meta", "streams", "messages", "health")


def main(arguments: list[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except (ClusterError, OSError) as err:
        print(f"streamctl: {err}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="streamctl", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    cluster = commands.add_parser("cluster", help="three nodes on loopback")
    actions = cluster.add_subparsers(required=True, metavar="up|status|down")
    described = {
        "up": (_up, "start what does not run; wait until all is healthy"),
        "status": (_status, "0 if all three nodes are ready"),
        "down": (_down, "stop the nodes, keep their data"),
    }
    for word, (run, text) in described.items():
        action = actions.add_parser(word, help=text, description=text)
        action.add_argument("--dir", default="data/cluster", help="default: %(default)s")
        action.set_defaults(run=run)
        if word == "up":
            first = Ports()
            action.add_argument(
                "--port",
                type=int,
                default=first.client,
                help="of the first node; three in a row each (default: %(default)s)",
            )
            action.add_argument(
                "--http-port", type=int, default=first.http, help="(default: %(default)s)"
            )
            action.add_argument(
                "--cluster-port", type=int, default=first.cluster, help="(default: %(default)s)"
            )
            action.add_argument("--binary", default="", help="the server (default: streamd)")
    check = commands.add_parser("health", help="ask one server's /healthz")
    check.add_argument(
        "url", nargs="?", default="http://127.0.0.1:8222/healthz", help="(default: %(default)s)"
    )
    check.set_defaults(run=_health)
    return parser


def _up(options: argparse.Namespace) -> int:
    directory = Path(options.dir)
    wanted = Ports(options.port, options.http_port, options.cluster_port)
    if (directory / "cluster.json").exists():
        there = LocalCluster.load(directory)
        running = [node.name for node in there.nodes if node.pid()]
        if running and there.ports != wanted:
            raise ClusterError(f"{', '.join(running)} run on other ports: `down` comes first")
    cluster = LocalCluster.create(directory, wanted)
    cluster.start(options.binary or server_binary())
    _print_table(cluster)
    print(f"\nconnect to {','.join(cluster.urls)}")
    return 0


def _status(options: argparse.Namespace) -> int:
    cluster = LocalCluster.load(Path(options.dir))
    return 0 if _print_table(cluster) else 1


def _down(options: argparse.Namespace) -> int:
    stopped = LocalCluster.load(Path(options.dir)).stop()
    print(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")
    return 0


def _health(options: argparse.Namespace) -> int:
    found = health(options.url)
    print(found if found == "ok" else f"{found} ({options.url})")
    return 0 if is_ready(found) else 1


def _print_table(cluster: LocalCluster) -> bool:
    """Print a line per node, and below them what is lost; True if every one is ready."""
    rows = [_row(node) for node in cluster.nodes]
    states = [row[-1] for row in rows]
    rows = [(*row[:-1], DEGRADED if row[-1].startswith(DEGRADED) else row[-1]) for row in rows]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    for row in (COLUMNS, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    for node, state in zip(cluster.nodes, states, strict=True):
        if state.startswith(DEGRADED):
            print(f"\n{node.name} is {state}")
    return all(map(is_ready, states))


def _row(node: LocalNode) -> tuple[str, ...]:
    state = node.health()
    role, streams, messages = "-", "-", "-"
    if node.pid():
        try:
            found = node.get("/jsz")
        except (OSError, ValueError):
            found = {}
        leader = found.get("meta_cluster", {}).get("leader", "")
        if leader:
            role = "leader" if leader == node.name else "follower"
        streams, messages = str(found.get("streams", "-")), str(found.get("messages", "-"))
    where = f"127.0.0.1:{node.address.http_port}"
    pid = str(node.pid() or "-")
    return node.name, pid, node.url, where, role, streams, messages, state


if __name__ == "__main__":
    sys.exit(main())
