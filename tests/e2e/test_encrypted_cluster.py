"""Real processes: three encrypted nodes and a compressed stream, one node killed and wiped."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import ServerDied, ServerProcess
from streamd.machine import message_headers
from tests.e2e import cluster as load
from tests.e2e.conftest import MakeCluster
from tests.wire import Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
SECRET = b"the cardinal's letters"
BODY = b'{"text":"%b","n":%d}' % (SECRET, 7) * 10_000  # some 430 KB
COUNT = 48  # two blocks and a half
LINEARIZABLE = {"Nats-Linearizable": "true"}


def files_with_the_secret(node: ServerProcess) -> list[Path]:
    found, count = [], 0
    for path in node.store_dir.rglob("*"):
        with suppress(FileNotFoundError):  # it was renamed meanwhile
            if path.is_file():
                count += 1
                found += [path] * (SECRET in path.read_bytes())
    assert count > 5
    return found


def of_stream(cluster: ClusterProcess, node: ServerProcess) -> dict[str, Any]:
    """The row of the stream in a node's /jsz; {}: none."""
    found = cluster.get(node, "/jsz?digest=1")
    for account in found.get("account_details", ()):
        for row in account["stream_detail"]:
            return dict(row)
    return {}


def is_packed(cluster: ClusterProcess, node: ServerProcess) -> bool:
    return bool(of_stream(cluster, node).get("blocks", {}).get("ratio", 0) > 1.5)


def last_seen(node: ServerProcess) -> int:
    """The seq of the last message by a linearizable direct get; 0: there is no answer now."""
    with Wire(node.port) as wire:
        frames = wire.ask("$JS.API.DIRECT.GET.S.s", headers=LINEARIZABLE)
    if not frames or frames[0].status or not frames[0].payload:
        return 0
    return int(message_headers.get(frames[0].headers, b"Nats-Sequence") or 0)


def test_what_three_nodes_store_is_readable_with_their_keys_alone(
    make_cluster: MakeCluster,
) -> None:
    """No file of any node holds what was published; blocks are packed on each; a node that lost all
    fetches it again and encrypts that too; a wrong key is refused by name."""
    cluster = make_cluster(jetstream='  key: "open sesame"\n  cipher: aes\n')
    if "nats-server" in cluster.nodes["n1"].binary:
        pytest.skip("of streamd's own files")
    config = {"name": "S", "subjects": ["s"], "num_replicas": 3, "compression": "s2"}
    load.api(cluster, "STREAM.CREATE.S", config | {"allow_direct": True})
    cluster.wait_until(lambda: cluster.leader("S"), "a leader")
    with Wire(cluster.nodes["n1"].port) as wire:
        for number in range(1, COUNT + 1):
            assert wire.ask("s", BODY, within_s=30)[0].json()["seq"] == number
    for node in cluster.nodes.values():
        assert last_seen(node) == COUNT
        cluster.wait_until(lambda node=node: is_packed(cluster, node), "packed", node=node)
        assert not files_with_the_secret(node)
    victim = next(name for name in cluster.nodes if name != cluster.leader("S"))
    node = cluster.nodes[victim]
    cluster.kill(victim)
    shutil.rmtree(node.store_dir)
    cluster.start()

    def is_whole() -> bool:
        rows = [of_stream(cluster, each) for each in cluster.nodes.values()]
        return len({(row.get("digest"), row.get("applied")) for row in rows}) == 1

    cluster.wait_until(is_whole, "as the others", node=node)
    cluster.wait_until(lambda: is_packed(cluster, node), "packed", node=node)
    assert not files_with_the_secret(node)
    assert last_seen(node) == COUNT
    cluster.kill(victim)
    node.configure(jetstream='  key: "open barley"\n')
    with pytest.raises(ServerDied):
        node.start()
    assert "not with the configured `key`" in node.log_file.read_text()
    node.configure(jetstream='  key: "open barley"\n  prev_key: "open sesame"\n')
    node.start()
    cluster.wait_healthy(node)
    info = json.dumps(load.api(cluster, "STREAM.INFO.S"))
    assert "sesame" not in info and "barley" not in node.log_file.read_text()
