"""`rm -rf` of the store directory under real servers."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from benchmarks.servers import ServerProcess
from tests.e2e import cluster as load
from tests.e2e.conftest import MakeCluster, Start
from tests.wire import Wire

NOTICED_WITHIN_S = 2.0  # half a second, on a machine with something else to do


def _until_noticed(server: ServerProcess) -> str:
    """What /healthz says then."""
    deadline = time.monotonic() + NOTICED_WITHIN_S
    url = f"http://127.0.0.1:{server.http_port}/healthz"
    while True:
        try:
            urllib.request.urlopen(url, timeout=30).close()
        except urllib.error.HTTPError as err:
            assert err.code == 503
            return err.read().decode()
        assert time.monotonic() < deadline, server.log_tail()


def test_a_single_server_says_so_acks_nothing_and_starts_anew(make_server: Start) -> None:
    server = make_server()
    server.start()
    wire = Wire(server.port)
    wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    assert wire.ask("s", b"1")[0].json()["seq"] == 1
    shutil.rmtree(server.store_dir / "streamd")
    assert "the store directory is gone" in _until_noticed(server)
    assert all(b'"seq"' not in frame.payload for frame in wire.ask("s", b"2", within_s=1))
    assert server.stop() == 1
    assert not (server.store_dir / "streamd").exists()
    log = server.log_file.read_text()
    assert "Traceback" not in log
    assert log.count("the store directory is gone: nothing is stored") == 1
    server.start()
    assert Wire(server.port).api("STREAM.NAMES")["total"] == 0


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_node_of_a_cluster_is_led_by_others_and_catches_up(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    load.api(cluster, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
    name = cluster.leader("S")
    wire = Wire(next(node.port for one, node in cluster.nodes.items() if one != name))
    for number in range(100):
        assert wire.ask("s", b"x")[0].json()["seq"] == number + 1
    server = cluster.nodes[name]
    shutil.rmtree(server.store_dir / "streamd")
    # It ends as soon as it has no clients, perhaps before anything can ask for its health.
    cluster.wait_until(lambda: "the store directory is gone" in server.log_tail(), "noticed")
    assert cluster.leader("S", but=name)
    for number in range(100, 200):
        assert wire.ask("s", b"x")[0].json()["seq"] == number + 1
    assert server.stop() == 1
    assert not (server.store_dir / "streamd").exists()
    server.start()
    cluster.wait_healthy(server)
    cluster.wait_until(lambda: cluster.is_whole("S"), "whole")


def test_a_volume_that_is_unmounted_is_no_empty_directory(
    make_server: Start, tmp_path: Path
) -> None:
    """`umount -l` under the server: what is below the mount point is somebody else's, and stays as
    it is. Mounted again, all that was acked is there."""
    place, held = tmp_path / "server", tmp_path / "held"
    for path in (place / "store", held):
        path.mkdir(parents=True)
    if _mount("-t", "tmpfs", "-o", "size=96m", "tmpfs", str(held)):
        pytest.skip("no right to mount a tmpfs here")
    try:
        assert _mount("--bind", str(held), str(place / "store")) == 0
        server = make_server(directory=place)
        server.start()
        wire = Wire(server.port)
        wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        assert wire.ask("s", b"1")[0].json()["seq"] == 1
        subprocess.run(["umount", "-l", str(place / "store")], check=True)
        assert "the store directory is gone" in _until_noticed(server)
        assert server.stop() == 1
        assert list((place / "store").iterdir()) == []
        assert _mount("--bind", str(held), str(place / "store")) == 0
        server.start()
        assert Wire(server.port).ask("s", b"2")[0].json()["seq"] == 2
        server.stop()
    finally:
        for path in (place / "store", held):
            subprocess.run(["umount", "-l", str(path)], check=False, stderr=subprocess.DEVNULL)


def _mount(*arguments: str) -> int:
    return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode
