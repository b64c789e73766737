"""What a cluster does not go on without, until its operator has done what docs/cluster.md says."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request

import pytest

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import ServerProcess
from tests.e2e import cluster as load
from tests.e2e.conftest import MakeCluster
from tests.parity.runner import ours_binary
from tests.wire import Wire

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif("nats-server" in ours_binary(), reason="a flag of streamd's own"),
]
DIRECT = {"allow_direct": True}
COUNT = 10
LOST = 7  # the first message of which the log has nothing any more


def create(cluster: ClusterProcess, name: str, replicas: int, tag: str) -> None:
    config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": replicas}
    load.api(cluster, f"STREAM.CREATE.{name}", config | DIRECT | {"placement": {"tags": [tag]}})
    cluster.leader(name)


def body(stream: str, number: int) -> bytes:
    return b"message %d of %b" % (number, stream.encode())


def publish(node: ServerProcess, stream: str, number: int) -> int:
    """Return the sequence number, or 0 if the message was refused."""
    with Wire(node.port) as wire:
        frame = wire.ask(f"{stream}.x", body(stream, number))[0]
        return 0 if frame.status else int(frame.json().get("seq", 0))


def read(node: ServerProcess, stream: str, seq: int) -> bytes:
    """A message as a node gives it; b"" if it has none."""
    with Wire(node.port) as wire:
        frame = wire.ask(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":%d}' % seq)[0]
        return b"" if frame.status else frame.payload


def last_seq(cluster: ClusterProcess, node: ServerProcess, stream: str) -> int:
    return int(cluster.detail(node, stream).get("state", {}).get("last_seq", -1))


def logged(node: ServerProcess, *parts: str) -> str:
    """The last line of the node's log that has all `parts`; "" if there is none."""
    lines = node.log_tail(500).splitlines()
    return next((line for line in reversed(lines) if all(part in line for part in parts)), "")


def health(node: ServerProcess, stream: str) -> str:
    """What /healthz says of a stream, well or not."""
    url = f"http://127.0.0.1:{node.http_port}/healthz?account=$G&stream={stream}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as err:
        return err.read().decode()


def rot(node: ServerProcess, message: bytes) -> None:
    """One bit of a message in the log of a stopped node."""
    (segment,) = (node.store_dir / "streamd" / "wal").glob("*.wal")
    blob = bytearray(segment.read_bytes())
    blob[blob.index(message)] ^= 1
    segment.write_bytes(blob)


def test_accepted_loss_gives_up_entries_that_all_voters_lost(make_cluster: MakeCluster) -> None:
    """S lives on n1 to n3, ONE on n3. n1 and n2 come back empty, the log of n3 has lost its end:
    neither is served, and the log of n3 names the flag. With it both go on with what that log
    proves. KEPT, of which n4 remembers all, and OTHER of n4 need nothing and lose nothing."""
    cluster = make_cluster(size=4, tags=["s", "s", "s one kept", "kept other"])
    nodes = cluster.nodes
    replicas = {"S": (3, "s"), "ONE": (1, "one"), "KEPT": (2, "kept"), "OTHER": (1, "other")}
    for stream, (count, tag) in replicas.items():
        create(cluster, stream, count, tag)
    for number in range(COUNT):
        for stream in replicas:
            assert publish(nodes["n4"], stream, number) == number + 1
            if stream == "S":
                # Else it may be the last in the log of n3, and taken for a torn write once it rots.
                cluster.wait_until(
                    lambda count=number + 1: last_seq(cluster, nodes["n3"], "S") == count, "told"
                )
    cluster.kill("n1", "n2", "n3")
    for name in ("n1", "n2"):
        shutil.rmtree(nodes[name].store_dir)
    rot(nodes["n3"], body("S", LOST))

    for name in ("n1", "n2", "n3"):
        nodes[name].launch()
    told = "a stream has no leader, and its replica here may have lost entries"
    for stream in ("S", "ONE"):
        line = cluster.wait_until(
            lambda s=stream: logged(nodes["n3"], told, f"stream={s} "), "told"
        )
        assert "--accept-loss" in line
    assert "is not current: uncertain" in health(nodes["n3"], "S")
    assert "its only copy may have lost" in health(nodes["n3"], "ONE")
    for stream in ("S", "ONE"):
        assert not publish(nodes["n4"], stream, 0)
    assert publish(nodes["n4"], "KEPT", COUNT) == COUNT + 1

    nodes["n3"].stop()
    nodes["n3"].launch("--accept-loss")
    for stream in ("S", "ONE"):
        cluster.leader(stream)
        assert publish(nodes["n4"], stream, LOST) == LOST + 1
    for node in nodes.values():
        cluster.wait_healthy(node)
    lost = "a majority of the voters may have lost entries: those that only they had are gone"
    over = "the replica has recovered"
    for stream in ("S", "ONE"):
        assert logged(nodes["n3"], lost, f"stream={stream} ", f"last_seq={LOST} ")
        cluster.wait_until(lambda s=stream: logged(nodes["n3"], over, f"stream={s} "), "told")
    nodes["n3"].stop()
    nodes["n3"].launch()
    cluster.wait_healthy(nodes["n3"])
    for name in ("n1", "n2", "n3"):
        assert last_seq(cluster, nodes[name], "S") == LOST + 1
    for stream, count in {
        "S": LOST + 1,
        "ONE": LOST + 1,
        "KEPT": COUNT + 1,
        "OTHER": COUNT,
    }.items():
        kept = [read(nodes["n4"], stream, seq) for seq in range(1, count + 1)]
        assert kept == [body(stream, number) for number in range(count)]
        assert not read(nodes["n4"], stream, count + 1)


@pytest.mark.proof
def test_a_cluster_whose_logs_all_lost_their_end_goes_on_when_the_operator_says_so(
    make_cluster: MakeCluster,
) -> None:
    """All three logs end in the middle of S, before LATE was created: nobody leads the meta group.
    With the flag at one server both groups go on; the files of LATE stay, and are not served."""
    cluster = make_cluster()
    nodes = cluster.nodes
    for name in ("S", "LATE"):
        config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": 3}
        load.api(cluster, f"STREAM.CREATE.{name}", config | DIRECT)
        for number in range(COUNT):
            assert publish(nodes["n1"], name, number) == number + 1
        cluster.wait_until(lambda name=name: cluster.is_whole(name), "whole")
    folders = [node.store_dir / "streamd" / "streams" for node in nodes.values()]
    late = max(int(path.name) for path in folders[0].iterdir())
    cluster.kill_at_once()
    for node in nodes.values():
        rot(node, body("S", LOST))

    for node in nodes.values():
        node.launch()
    why = "the meta group has no leader, and this server may have lost entries of it"
    line = cluster.wait_until(lambda: logged(nodes["n2"], why), "told")
    assert "--accept-loss" in line
    assert "has not established contact with a meta leader" in health(nodes["n2"], "S")
    nodes["n2"].stop()
    nodes["n2"].launch("--accept-loss")
    kept = "files of a stream are kept, not served: the meta group has lost the entry that created"
    for node in nodes.values():
        cluster.wait_healthy(node)
        cluster.wait_until(lambda node=node: logged(node, kept, f"group={late} "), "told")
    nodes["n2"].stop()
    nodes["n2"].launch()
    cluster.wait_healthy(nodes["n2"])
    cluster.wait_until(lambda: cluster.is_whole("S"), "whole")
    assert publish(nodes["n2"], "S", LOST) == LOST + 1
    found = [read(nodes["n1"], "S", seq) for seq in range(1, LOST + 3)]
    assert found == [*(body("S", number) for number in range(LOST + 1)), b""]
    assert load.api(cluster, "STREAM.NAMES")["streams"] == ["S"]
    assert all((folder / str(late)).is_dir() for folder in folders)
    load.api(cluster, "STREAM.CREATE.LATE", config | DIRECT)
    cluster.leader("LATE")
    assert max(int(path.name) for path in folders[0].iterdir()) > late


@pytest.mark.proof
def test_a_majority_that_comes_back_empty_is_waited_for_and_its_loss_told(
    make_cluster: MakeCluster,
) -> None:
    """n1 and n2 acknowledge what n3 never had, and lose their disks. n3 serves nothing alone, nor
    with one of them; with both the stream is what n3 has, and the log says that it lost."""
    cluster = make_cluster()
    nodes = cluster.nodes
    load.api(
        cluster, "STREAM.CREATE.S", {"name": "S", "subjects": ["S.>"], "num_replicas": 3} | DIRECT
    )
    for number in range(COUNT):
        assert publish(nodes["n1"], "S", number) == number + 1
    cluster.wait_until(lambda: cluster.is_whole("S"), "whole")
    cluster.kill("n3")
    for number in range(COUNT, 2 * COUNT):
        assert publish(nodes["n1"], "S", number) == number + 1
    cluster.kill("n1", "n2")
    for name in ("n1", "n2"):
        shutil.rmtree(nodes[name].store_dir)
    nodes["n3"].launch()
    nodes["n1"].launch()
    why = "the meta group has no leader, and this server may have lost entries of it"
    cluster.wait_until(lambda: logged(nodes["n1"], why), "told")
    assert "has not established contact with a meta leader" in health(nodes["n3"], "S")
    nodes["n2"].launch()
    for node in nodes.values():
        cluster.wait_healthy(node)
    cluster.wait_until(lambda: cluster.is_whole("S"), "whole")
    lost = "a majority of the voters may have lost entries: those that only they had are gone"
    assert logged(nodes["n3"], lost, "stream=S ", f"last_seq={COUNT} ")
    assert logged(nodes["n3"], lost, "group=0 ")
    assert publish(nodes["n1"], "S", COUNT) == COUNT + 1
    kept = [read(nodes["n1"], "S", seq) for seq in range(1, COUNT + 2)]
    assert kept == [body("S", number) for number in range(COUNT + 1)]
