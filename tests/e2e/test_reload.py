"""A configuration that is read again: hubs that are dialed, and the files of the process."""

from __future__ import annotations

import signal
from pathlib import Path

from benchmarks.servers import ServerProcess, free_port
from tests.leaf_bed import page
from tests.parity.runner import ours_binary
from tests.waiting import until


def test_hubs_come_and_go_by_a_reload(tmp_path: Path) -> None:
    """From none at all, to one, to another login, to one that is disabled, and to none."""
    port = free_port()
    users = "authorization { users: [{user: a, password: p}, {user: b, password: p}] }"
    hub = ServerProcess(
        ours_binary(),
        directory=tmp_path / "hub",
        extra=f'server_name: HUB\nleafnodes {{ listen: "127.0.0.1:{port}"\n{users} }}',
        is_jetstream=False,
    )
    leaf = ServerProcess(
        ours_binary(), directory=tmp_path / "leaf", extra="server_name: LEAF", is_jetstream=False
    )
    url = f'url: "nats-leaf://{{}}:p@127.0.0.1:{port}"'

    def reload(remotes: str, count: int) -> None:
        text = leaf.config_file.read_text().partition("leafnodes")[0]
        leaf.config_file.write_text(f"{text}\nleafnodes {{ remotes: [ {remotes} ] }}\n")
        leaf.send(signal.SIGHUP)
        until(lambda: page(hub, "leafz")["leafnodes"] == count, f"{count} links")

    with hub, leaf:
        hub.start()
        leaf.start()
        reload(f"{{ {url.format('a')} }}", 1)
        (first,) = page(hub, "leafz")["leafs"]
        reload(f'{{ {url.format("a")} }}, {{ {url.format("b")}, account: "$SYS" }}', 2)
        names = [each["account"] for each in page(leaf, "leafz")["leafs"]]
        assert sorted(names) == ["$G", "$SYS"]
        reload(f"{{ {url.format('a')} }}", 1)
        (same,) = page(hub, "leafz")["leafs"]
        assert (same["ip"], same["port"]) == (first["ip"], first["port"]), "it was left alone"
        reload(f"{{ {url.format('a')}, disabled: true }}", 0)
        reload(f"{{ {url.format('b')} }}", 1)
        reload("", 0)
        log = leaf.log_file.read_text()
        remote = f'LeafNode Remote urls=["nats-leaf://127.0.0.1:{port}"], account="$G"'
        for change in ("added", "removed", "Disabled value is: true"):
            assert f"Reloaded: {remote} {change}" in log, log
        assert "p@" not in log


def test_files_of_the_process_move(tmp_path: Path) -> None:
    text = 'debug: true\npid_file: "{0}/{1}.pid"\nports_file_dir: "{0}/{1}"\n'
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    server = ServerProcess(
        ours_binary(),
        directory=tmp_path,
        extra=text.format(tmp_path, "one"),
        is_jetstream=False,
    )
    with server:
        server.start()
        server.wait_for_log("Server is ready")
        until(lambda: len(list((tmp_path / "one").iterdir())) == 1, "a ports file")
        config = server.config_file
        config.write_text(config.read_text().replace("/one", "/two"))
        server.send(signal.SIGHUP)
        server.wait_for_log("Reloaded server configuration")
        assert (tmp_path / "two.pid").read_text() == str(server.pid)
        assert not (tmp_path / "one.pid").exists()
        assert len(list((tmp_path / "two").iterdir())) == 1
        assert not list((tmp_path / "one").iterdir())
        assert server.stop() == 0
        assert not (tmp_path / "two.pid").exists() and not list((tmp_path / "two").iterdir())
