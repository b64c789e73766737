"""`streamctl inspect`, `audit` and `trash` on directories of three real nodes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.cluster import ClusterProcess
from tests.e2e.conftest import MakeCluster, Start
from tests.e2e.ctl.conftest import CONFIG, Ctl, run_ctl

pytestmark = pytest.mark.slow


@pytest.fixture
def stores(
    make_cluster: MakeCluster, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ClusterProcess, list[Path]]:
    """A cluster with a stream of 300 messages, some deleted, and a consumer; its directories."""
    cluster = make_cluster(extra=CONFIG)
    monkeypatch.setenv("NATS_URL", ",".join(cluster.urls))
    monkeypatch.setenv("NATS_TIMEOUT", "20s")
    run_ctl("stream", "add", "S", "--subject", "s.*", "--replicas", "3")
    run_ctl("pub", "s.a", "text {{Count}}", "--count", "300", "--stream", "-H", "Kind:k")
    run_ctl("stream", "purge", "S", "--seq", "11", "--yes")
    run_ctl("consumer", "add", "S", "c")
    run_ctl("consumer", "next", "S", "c", "-n", "5")
    return cluster, [node.store_dir for node in cluster.nodes.values()]


def block_of(store: Path) -> Path:
    (found,) = store.glob("streamd/streams/*/1.blk")
    return found


def test_directories_are_shown_compared_and_judged(
    stores: tuple[ClusterProcess, list[Path]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Equal while the servers run and after; a byte that turned is told by its sequence; a missing
    replica never counts as equal."""
    cluster, directories = stores
    named = [str(path) for path in directories]
    monkeypatch.setenv("NATS_USER", "admin")
    monkeypatch.setenv("NATS_PASSWORD", "p")
    live = run_ctl("audit", "--servers", "-o", "json")
    assert live.status == 0, live
    (row,) = live.data
    assert (row["stream"], row["verdict"], row["read"]) == ("APP/S", "equal", ["n1", "n2", "n3"])
    cluster.stop()

    found = run_ctl("inspect", named[0], "--whole-log", "-o", "json")
    assert found.status == 0, found
    (directory,) = found.data
    assert directory["server"] == "n1" and not directory["is_running"]
    (stream,) = directory["streams"]
    assert (stream["first_seq"], stream["last_seq"], stream["messages"]) == (11, 300, 290)
    assert "at index" in run_ctl("inspect", named[0]).out
    one = ["inspect", named[0], "--whole-log", "--stream", "S"]
    shown = run_ctl(*one, "-o", "json").data
    assert [block["state"] for block in shown["blocks"]] == ["whole"]
    (consumer,) = shown["consumers"]
    assert (consumer["name"], consumer["ack_floor_seq"]) == ("c", 15)
    message = run_ctl(*one, "--seq", "42", "-o", "json").data
    assert (message["data"], message["headers"]) == ("text 42", {"Kind": "k"})
    gone = run_ctl(*one, "--seq", "5")
    assert gone.status == 1 and "has no message 5 (it has 11..300, with gaps)" in gone.err
    assert "no stream 'T'" in run_ctl("inspect", named[0], "--stream", "T").err
    assert run_ctl("inspect", named[0], "--seq", "5").status == 2

    equal = run_ctl("audit", *named, "-o", "json")
    assert equal.status == 0, equal
    (row,) = equal.data
    assert (row["verdict"], row["messages"], len(row["read"])) == ("equal", 290, 3)
    missing = run_ctl("audit", *named[:2], "-o", "json")
    assert missing.status == 2, missing
    assert missing.data[0]["verdict"] == "incomplete" and missing.data[0]["missing"] == ["n3"]
    assert run_ctl("audit", named[0], named[0]).status == 2
    assert run_ctl("audit").status == 2
    assert run_ctl("audit", str(tmp_path / "nothing")).status == 2

    block = block_of(directories[1])
    content = block.read_bytes()
    at = content.index(b"text 200")
    block.write_bytes(content[:at] + b"T" + content[at + 1 :])
    damaged = run_ctl("audit", *named, "-o", "json")
    assert damaged.status == 1, damaged
    (row,) = damaged.data
    assert row["verdict"] == "damage" and row["seqs"][0] == 200
    assert row["odd"][0]["replicas"] == [row["read"][1]] and 200 in row["odd"][0]["seqs"]
    assert run_ctl("inspect", named[1], "--stream", "S").status == 1
    block.write_bytes(content)
    shutil.rmtree(directories[2] / "streamd" / "wal")
    gone = run_ctl("audit", *named)
    assert gone.status == 2 and "no data directory of streamd" in gone.err, gone


def test_the_trash_is_listed_put_back_and_destroyed(
    stores: tuple[ClusterProcess, list[Path]],
) -> None:
    """Never unasked, never under a running server, never what the next start would not take."""
    cluster, directories = stores
    store = directories[0] / "streamd"
    (streams,) = [path for path in (store / "streams").iterdir() if path.name.isdigit()]
    running = run_ctl("trash", "purge", str(store), "--older", "0s", "--yes")
    assert running.status == 0 and "nothing in the trash is older" in running.err
    (store / "trash" / "orphan-99-1").mkdir()
    (store / "trash" / "orphan-99-1" / "1.blk").write_bytes(b"x" * 2000)
    refused = run_ctl("trash", "purge", str(store), "orphan-99-1", "--yes")
    assert refused.status == 1 and "a server runs on" in refused.err
    cluster.stop()
    listed = run_ctl("trash", "list", str(store), "-o", "json").data
    assert [(row["name"], row["bytes"]) for row in listed] == [("orphan-99-1", 2000)]
    unknown = run_ctl("trash", "restore", str(store), "orphan-99-1", "--yes")
    assert unknown.status == 1 and "no stream of this directory has the uid 99" in unknown.err

    aside = store / "trash" / f"orphan-{streams.name}-2"
    streams.rename(aside)
    assert run_ctl("trash", "restore", str(store), aside.name).status == 2
    back = run_ctl("trash", "restore", str(store), aside.name, "--yes")
    assert back.status == 0, back
    assert streams.is_dir() and not aside.exists()
    assert run_ctl("trash", "purge", str(store), "orphan-99-1").status == 2
    assert (store / "trash" / "orphan-99-1").is_dir()
    assert run_ctl("trash", "purge", str(store), "orphan-99-1", "--yes").status == 0
    assert run_ctl("trash", "list", str(store)).out == "the trash is empty\n"
    missing = run_ctl("trash", "purge", str(store), "orphan-99-1", "--yes")
    assert missing.status == 1 and "is not in the trash" in missing.err


def test_servers_that_can_not_all_be_read_are_never_equal(ctl: Ctl, admin: Ctl) -> None:
    """The shared cluster has all three: equal; an ordinary user may not ask."""
    ctl("stream", "add", "AUD", "--subject", "aud", "--replicas", "3")
    ctl("pub", "aud", "x", "--count", "20", "--stream")
    found = admin("audit", "--servers", "-o", "json")
    assert found.status == 0, found
    row = next(row for row in found.data if row["stream"] == "APP/AUD")
    assert (row["verdict"], row["messages"]) == ("equal", 20)
    assert ctl("--timeout", "500ms", "audit", "--servers").status == 1


def test_encrypted_directories_are_read_with_a_key_from_a_file(
    make_server: Start, own_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Stores take the key that fits; without one nothing is known of them."""
    monkeypatch.delenv("STREAMD_KEY", raising=False)
    server = make_server(jetstream="key: rosebud")
    server.start()
    url = ["-s", server.url]
    assert run_ctl(*url, "stream", "add", "E", "--subject", "e").status == 0
    assert run_ctl(*url, "pub", "e", "text {{Count}}", "--count", "9", "--stream").status == 0
    server.stop()
    store, key, other = str(server.store_dir), tmp_path / "key", tmp_path / "other"
    key.write_text("rosebud\n")
    other.write_text("thorn\n")

    locked = run_ctl("inspect", store, "-o", "json")
    assert locked.status == 2
    assert "is encrypted: give its key" in locked.data[0]["unread"][0]
    assert run_ctl("inspect", store, "--stream", "E").status == 2
    wrong = run_ctl("inspect", store, "--key-file", str(other), "-o", "json")
    assert wrong.status == 2 and "not with a key that was given" in wrong.data[0]["unread"][0]
    keys = ["--key-file", str(other), "--key-file", str(key)]
    one = run_ctl(
        "inspect", store, *keys, "--whole-log", "--stream", "E", "--seq", "3", "-o", "json"
    )
    assert one.status == 0 and one.data["data"] == "text 3"
    equal = run_ctl("audit", store, *keys, "-o", "json")
    assert equal.status == 0, equal
    assert (equal.data[0]["verdict"], equal.data[0]["messages"]) == ("equal", 9)
    assert run_ctl("audit", store).status == 2
    gone = run_ctl("inspect", store, "--key-file", str(tmp_path / "none"))
    assert gone.status == 2 and "--key-file" in gone.err
