"""`streamctl` without servers: what it writes, finds, and says when there is nothing."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamd import __version__
from streamd.cli.cluster_local import ClusterError, LocalCluster, LocalNode, Ports, how_it_ended
from streamd.config import flags
from streamd.ctl import app as ctl
from streamd.net.client.auth import has_plain_passwords


def test_the_configurations_are_valid_and_private(tmp_path: Path) -> None:
    """Three names, ports one after the other, one secret that only the owner can read."""
    cluster = LocalCluster.create(tmp_path, Ports(5000, 6000, 7000))
    names, secrets = [], set()
    for at, node in enumerate(cluster.nodes):
        line = flags.parse(["-c", str(node.config_file)])
        options = flags.options_from(line)
        assert (options.port, options.http_port) == (5000 + at, 6000 + at)
        assert not options.warnings
        assert options.is_open_besides_system
        assert not has_plain_passwords(options)
        assert node.config_file.stat().st_mode & 0o077 == 0
        text = node.config_file.read_text()
        secrets.add(text.partition('password: "')[2].partition('"')[0])
        assert all(f"127.0.0.1:{port}\n" in text for port in (7000, 7001, 7002))
        names.append(options.server_name)
    assert names == ["node1", "node2", "node3"]
    assert len(secrets) == 1
    assert len(secrets.pop()) == 32


def test_made_again_it_keeps_its_secret(tmp_path: Path) -> None:
    """A second `up` may change the ports; nodes still know each other."""
    before = json.loads(_described(tmp_path, Ports()))
    after = json.loads(_described(tmp_path, Ports(client=9000)))
    assert before["secret"] == after["secret"]
    assert after["nodes"][2]["port"] == 9002
    assert LocalCluster.load(tmp_path).urls[0] == "nats://127.0.0.1:9000"


def _described(directory: Path, ports: Ports) -> str:
    LocalCluster.create(directory, ports)
    return (directory / "cluster.json").read_text()


def test_a_foreign_pid_is_not_ours(tmp_path: Path) -> None:
    """A pid file whose number belongs to another program by now: the node does not run."""
    node = LocalCluster.create(tmp_path, Ports()).nodes[0]
    assert node.pid() == 0
    (node.directory / "pid").write_text(str(os.getpid()))
    assert node.pid() == 0
    assert node.health() == "not running"
    assert node.end() is False


@pytest.mark.parametrize("flag", ["--port", "--http-port", "--cluster-port"])
def test_up_with_other_ports_leaves_a_running_cluster_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    """Any of the three ports: `status` and `down` would not find the nodes any more."""
    before = _described(tmp_path, Ports())
    monkeypatch.setattr(LocalNode, "pid", lambda node: 1)
    monkeypatch.setattr(LocalCluster, "start", lambda cluster, binary: None)
    assert ctl.main(["cluster", "up", "--dir", str(tmp_path), flag, "9000"]) == 1
    assert "run on other ports: stop the cluster first" in capsys.readouterr().err
    assert (tmp_path / "cluster.json").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--port", "99999"], "--port 99999: ports 99999 to 100001 do not all exist"),
        (["--http-port", "65534"], "--http-port 65534: ports 65534 to 65536 do not all exist"),
        (["--cluster-port=-1"], "--cluster-port -1: ports -1 to 1 do not all exist"),
        (["--port", "0"], "--port 0: ports 0 to 2 do not all exist"),
        (["--port", "8220"], "--http-port 8222: 8222 is one of --port already"),
        (["--nodes", "0"], "--nodes 0: must be 1 to 9"),
    ],
)
def test_a_cluster_that_cannot_start_is_refused_before_a_file_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    """With the flag's name, not with a traceback of a socket."""
    assert ctl.main(["cluster", "up", "--dir", str(tmp_path), *arguments]) == 1
    assert capsys.readouterr().err == f"streamctl: {told}\n"
    assert not list(tmp_path.iterdir())


def test_up_again_keeps_the_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without flags those of last time: a node that died comes back beside the others, and after
    `down` clients find the cluster where it was."""
    before = _described(tmp_path, Ports(15222, 18222, 16222))
    monkeypatch.setattr(LocalCluster, "start", lambda cluster, binary: None)
    ctl.main(["cluster", "up", "--dir", str(tmp_path)])
    assert (tmp_path / "cluster.json").read_text() == before
    ctl.main(["cluster", "up", "--dir", str(tmp_path), "--http-port", "18322"])
    assert LocalCluster.load(tmp_path).ports == Ports(15222, 18322, 16222)


def test_last_words_are_of_the_process_that_was_started(tmp_path: Path) -> None:
    """A line of an earlier run would be taken for the reason of this end."""
    node = LocalCluster.create(tmp_path, Ports(), ("node1",)).nodes[0]
    node.log_file.write_text("[FTL] long ago\n")
    node.start("/bin/false")
    assert node._child is not None and node._child.wait() == 1
    assert node.last_words() == "it logged nothing"
    assert "long ago" in LocalCluster.load(tmp_path).nodes[0].last_words()


def test_no_cluster_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("status", "down"):
        assert ctl.main(["cluster", word, "--dir", str(tmp_path)]) == 1
        assert "there is no cluster.json" in capsys.readouterr().err
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(ClusterError, match=r"cluster\.json"):
        LocalCluster.load(tmp_path)


def test_status_of_a_stopped_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line per node, status 1; `down` has nothing to do."""
    monkeypatch.setenv("COLUMNS", "120")
    LocalCluster.create(tmp_path, Ports())
    assert ctl.main(["cluster", "status", "--dir", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["node1", "node2", "node3"]
    assert all(line.strip().endswith("not running") for line in lines[-3:])
    assert ctl.main(["cluster", "down", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "nothing was running\n"


class _Health(http.server.BaseHTTPRequestHandler):
    answer: tuple[int, bytes] = (200, b'{"status":"ok"}')

    def do_GET(self) -> None:
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def health_url() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Health)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/healthz"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        ((200, b'{"status":"ok"}'), 0, "ok\n"),
        ((200, b'{"status":"degraded","error":"S is lost"}'), 0, "degraded: S is lost (http"),
        ((503, b'{"status":"unavailable","error":"no leader"}'), 1, "no leader (http"),
        ((500, b"oops"), 1, "status 500 (http"),
        ((200, b"not json"), 1, "no answer: what came is no server's health (http"),
        ((200, b'["ok"]'), 1, "no answer: what came is no server's health (http"),
    ],
)
def test_health(
    health_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: tuple[int, bytes],
    status: int,
    text: str,
) -> None:
    """0 only for a 200 that says ok, or that the node is well; else why not."""
    monkeypatch.setattr(_Health, "answer", answer)
    assert ctl.main(["health", health_url]) == status
    assert capsys.readouterr().out.startswith(text)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (None, "does not run any more"),
        (-9, "was killed by SIGKILL"),
        (0, "was stopped: it ended without an error"),
        (1, "ended with status 1"),
    ],
)
def test_the_end_of_a_node_is_told_in_words(status: int | None, text: str) -> None:
    """A bare 0 would read as if all were well."""
    assert how_it_ended(status) == text


def test_an_error_without_a_text_is_no_empty_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Python's TimeoutError is: its name is told."""

    def fail(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(LocalCluster, "load", fail)
    assert ctl.main(["cluster", "status", "--dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "streamctl: TimeoutError\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """As every other program has it."""
    assert ctl.main(["--version"]) == 0
    assert capsys.readouterr().out == f"streamctl: v{__version__}\n"


@pytest.mark.parametrize(
    ("url", "told", "advised"),
    [
        ("http://n1:8222", "no address of a server's health", "http://n1:8222/healthz"),
        ("http://n1:8222/", "no address of a server's health", "http://n1:8222/healthz"),
        ("https://n1/base/", "no address of a server's health", "https://n1/base/healthz"),
        ("n1:8222", "is no URL", "http://n1:8222/healthz"),
        ("ftp://n1:8222/healthz", "is no URL", "http://n1:8222/healthz"),
        ("nats://n1", "has no port", "nats://n1:4222"),
    ],
)
def test_another_page_is_no_health(
    capsys: pytest.CaptureFixture[str], url: str, told: str, advised: str
) -> None:
    """No server is asked: status 2, and the address that was meant."""
    assert ctl.main(["health", url]) == 2
    said = capsys.readouterr().err
    assert told in said and said.endswith(f"try: streamctl health {advised}\n")


@pytest.mark.parametrize(
    "url", ["http://[::1/healthz", "http://n1:abc/healthz", "nats://n1:abc", "nats://n1:99999"]
)
def test_what_is_no_url_is_refused(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert ctl.main(["health", url]) == 2
    assert f"streamctl: '{url}' is no URL: " in capsys.readouterr().err


def test_a_port_that_speaks_no_http_is_no_health(capsys: pytest.CaptureFixture[str]) -> None:
    """A server's port for clients: it says INFO at once, which is no status line."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            with listening.accept()[0] as client:
                client.sendall(b'INFO {"server_id":"N"}\r\n')
                client.recv(4096)

        thread = threading.Thread(target=greet)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/healthz"
        assert ctl.main(["health", url]) == 1
        thread.join()
    assert "no answer: what came is no server's health" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--stream", "S"], ["audit"]])
def test_where_no_data_is_nothing_is_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
) -> None:
    """Status 2; 1 says that something is damaged."""
    for directory, told in ((tmp_path, "no data directory"), (tmp_path / "x", "no such directory")):
        assert ctl.main([*words, str(directory)]) == 2
        assert told in capsys.readouterr().err


def test_health_without_a_server_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl.main(["health", "http://127.0.0.1:9/healthz"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("no answer: [Errno ")  # the reason, not the class that wraps it
    assert said.endswith(" (http://127.0.0.1:9/healthz)\n")
