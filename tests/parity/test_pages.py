"""Each page of the monitoring port has the keys of nats-server's, but for those named here.

Both run as clusters of three with the same streams, consumers, clients and subscriptions. Keys are
compared as paths, those of all members of a list together.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import ClusterProcess
from tests.parity.runner import ours_binary, peer_binary
from tests.waiting import until
from tests.wire import Wire

PAGES = {
    "/varz": "/varz",
    "/connz": "/connz?auth=1&subs=detail",
    "/subsz": "/subsz?subs=1",
    "/jsz": "/jsz?accounts=1&consumers=1&config=1&raft=1",
    "/routez": "/routez?subs=1",
    "/accountz": "/accountz",
    "/accountz?acc": "/accountz?acc=$G",
    "/accstatz": "/accstatz?unused=1",
    "/raftz": "/raftz",
    "/raftz?acc": "/raftz?acc=$G",
    "/healthz": "/healthz?details=1",
    "/gatewayz": "/gatewayz",
    "/leafz": "/leafz",
    "/debug/vars": "/debug/vars",
}
# Keys of nats-server's that are absent here, by decision: docs/operating.md says why.
ABSENT = {
    "/varz": {"jetstream.limits.default_max_consumers"},
    "/jsz": {"limits.default_max_consumers"},
    "/routez": {"routes[].account"},
    "/raftz": {"$SYS._meta_.wal"},
    "/raftz?acc": {"$G.GROUP.wal"},
    "/debug/vars": {"memstats.*"},
}
OURS_ALONE = {
    "/varz": {"git_commit", "jetstream.config.sync_always"},  # theirs by default is not
    "/jsz": {"config.sync_always"},
    "/raftz": {"$SYS._meta_.replica_state"},
    "/raftz?acc": {"$G.GROUP." + key for key in ("replica_state", "uid", "digest_index", "digest")},
}
# There or not by the moment, or by who leads.
PASSING = {
    "leader", "leader_since", "streams_leader", "consumers_leader", "last_active", "lag", "offline",
    "last_duration", "voted_for", "catching_up", "last_replicated_index", "last_seen", "idle",
    "slow_consumers", "http_req_stats", "subscriptions_list", "qgroup", "paused",
}  # fmt: skip


def get(port: int, path: str) -> Any:
    url = f"http://127.0.0.1:{port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError:
        return {}


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """All keys, with the way to them; groups of streams have names of their own on each side."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in PASSING:
                continue
            name = "GROUP" if key.startswith(("S-R", "C-R")) else key
            name = "PEER" if prefix.endswith(".peers.") else name
            yield f"{prefix}{name}"
            yield from paths(inner, f"{prefix}{name}.")
    elif isinstance(value, list):
        for inner in value:
            yield from paths(inner, f"{prefix.removesuffix('.')}[].")


def pages_of(binary: str, directory: Path) -> dict[str, set[str]]:
    """The keys of each page, of all three servers together."""
    found: dict[str, set[str]] = {name: set() for name in PAGES}
    cluster = ClusterProcess(binary, directory=directory)
    try:
        cluster.start()
        wires = [Wire(node.port) for node in cluster.nodes.values()]
        wire = wires[0]
        for name, replicas in (("R3", 3), ("R1", 1)):
            config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": replicas}
            assert "error" not in wire.api(f"STREAM.CREATE.{name}", config, within_s=10)
        config = {"durable_name": "d", "ack_policy": "explicit"}
        wire.api("CONSUMER.DURABLE.CREATE.R3.d", {"stream_name": "R3", "config": config})
        wire.ask("R3.a", b"x")
        for each in wires:
            each.subscribe("plain.*")
            each.subscribe("queued", "q")
            each.fence()
        nodes = list(cluster.nodes.values())

        def has_all() -> bool:
            return sum(get(node.http_port, "/jsz").get("streams", 0) for node in nodes) == 4

        until(has_all, "all have the replicas, and a route its interest")
        for node in nodes:
            for name, path in PAGES.items():
                found[name].update(paths(get(node.http_port, path)))
    finally:
        cluster.close()
    return found


def test_pages_have_the_keys_of_nats_server(tmp_path: Path) -> None:
    theirs, ours = peer_binary(), ours_binary()
    if not theirs:
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    if not ours:
        pytest.skip("streamd is not installed beside this interpreter")
    wanted = pages_of(theirs, tmp_path / "theirs")
    shown = pages_of(ours, tmp_path / "ours")
    faults: dict[str, list[str]] = {}
    for page in PAGES:
        absent, alone = ABSENT.get(page, set()), OURS_ALONE.get(page, set())
        missing = {one for one in wanted[page] - shown[page] if not is_below(one, absent)}
        more = {one for one in shown[page] - wanted[page] if not is_below(one, alone)}
        found = [f"- {one}" for one in sorted(missing)] + [f"+ {one}" for one in sorted(more)]
        found += [f"not absent: {one}" for one in sorted(absent & shown[page])]
        if found:
            faults[page] = found
    assert not faults, json.dumps(faults, indent=1)


def is_below(path: str, roots: set[str]) -> bool:
    """True if `path` is one of `roots` or leads on from it; `x.*` is what is below x."""
    heads = [head for root in roots for head in (f"{root}.", f"{root}[", root.removesuffix("*"))]
    return any(path.startswith(head) for head in heads if head[-1] in ".[") or path in roots
