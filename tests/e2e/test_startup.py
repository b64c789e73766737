"""The program from outside: how it starts, says that it is up, refuses, obeys signals and stops.

Real processes on loopback with free ports; nothing here needs a client library.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).parent / "streamd"
READY = "[INF] Server is ready"
PATIENCE_S = 90.0


class Server:
    """A running process and its log so far."""

    def __init__(self, *arguments: str, program: Path = PROGRAM, cwd: Path | None = None) -> None:
        self.log = ""
        self.process = subprocess.Popen(
            [str(program), *arguments], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=cwd
        )
        assert self.process.stderr is not None
        self._stderr = self.process.stderr

    def wait_for(self, text: str) -> str:
        """Read the log until `text` is in it; returns the log."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.log:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} not in:\n{self.log}"
            if select.select([self._stderr], [], [], left)[0]:
                chunk = os.read(self._stderr.fileno(), 65536)
                assert chunk, f"ended without {text!r}:\n{self.log}"
                self.log += chunk.decode()
        return self.log

    def port(self) -> int:
        log = self.wait_for(READY)
        found = re.search(r"\[INF\] Listening for client connections on [\d.]+:(\d+)\n", log)
        assert found, log
        return int(found[1])

    def monitoring_port(self) -> int:
        found = re.search(r"Starting http monitor on [\d.]+:(\d+)\n", self.wait_for(READY))
        assert found
        return int(found[1])

    def get(self, path: str) -> bytes:
        url = f"http://127.0.0.1:{self.monitoring_port()}{path}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            body: bytes = answer.read()
            return body

    def end(self) -> int:
        """Wait for the end; the rest of the log is read."""
        _, rest = self.process.communicate(timeout=PATIENCE_S)
        self.log += rest.decode()
        return self.process.returncode

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.end()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[Server]]:
    """A factory whose servers do not outlive the test."""
    servers: list[Server] = []

    class Started(Server):
        def __init__(self, *arguments: str, **options: Path) -> None:
            super().__init__(*arguments, cwd=tmp_path, **options)
            servers.append(self)

    yield Started
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


def run(*arguments: str, cwd: Path, program: Path = PROGRAM) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, cwd=cwd, timeout=PATIENCE_S
    )


def first_line(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        return client.makefile("rb").readline()


def test_a_free_port_log_lines_and_info(start: type[Server]) -> None:
    """`-p -1` takes a free port; the lines that harnesses wait for are there; INFO says streamd."""
    server = start("-a", "127.0.0.1", "-p", "-1", "-n", "n1")
    info = json.loads(first_line(server.port())[5:])
    assert (info["server_name"], info["port"]) == ("n1", server.port())
    assert info["version"].startswith("2.14.")
    assert info["git_commit"].startswith("streamd-")
    line = re.compile(r"\[\d+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} \[[A-Z]{3}\] ")
    assert all(line.match(text) for text in server.log.splitlines())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_signals_stop_it(start: type[Server], number: int) -> None:
    """Exit status 0, soon."""
    server = start("-p", "-1", "-js", "-sd", "data")
    server.port()
    began = time.monotonic()
    assert server.stop(number) == 0
    assert time.monotonic() - began < 5
    assert "Server Exiting.." in server.log


def test_monitoring_answers_when_ready(start: type[Server]) -> None:
    """/healthz and /varz are 200 after "Server is ready"."""
    server = start("-p", "-1", "-m", "-1", "-js", "-sd", "data")
    assert server.get("/healthz") == b'{"status":"ok"}'
    varz = json.loads(server.get("/varz"))
    assert varz["port"] == server.port()
    assert varz["jetstream"]["config"]["sync_always"] is True
    assert b"jetstream_server_total_streams" in server.get("/metrics")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        server.get("/nope")


def test_pid_and_ports_files(start: type[Server], tmp_path: Path) -> None:
    """Both name this very process while it runs, and are gone when it stopped."""
    server = start("-p", "-1", "-m", "-1", "-P", "pid", "--ports_file_dir", str(tmp_path))
    port = server.port()
    pid = server.process.pid
    assert (tmp_path / "pid").read_text() == str(pid)
    ports = json.loads((tmp_path / f"streamd_{pid}.ports").read_text())
    assert ports["nats"][0] == f"nats://127.0.0.1:{port}"
    assert ports["monitoring"][0] == f"http://127.0.0.1:{server.monitoring_port()}"
    assert server.stop() == 0
    assert not list(tmp_path.glob("*.ports"))
    assert not (tmp_path / "pid").exists()


def test_under_the_name_nats_server(start: type[Server], tmp_path: Path) -> None:
    """A symlink of that name is a drop-in: version line and ports file as tools expect them."""
    link = tmp_path / "nats-server"
    link.symlink_to(PROGRAM)
    assert re.fullmatch(
        r"nats-server: v2\.14\.\d+\n", run("--version", cwd=tmp_path, program=link).stdout
    )
    own = run("-version", cwd=tmp_path).stdout
    assert re.fullmatch(r"streamd: v\S+ \(compatible with nats-server v2\.14\.\d+\)\n", own)
    server = start("-p", "-1", "--ports_file_dir", str(tmp_path), program=link)
    server.port()
    assert (tmp_path / f"nats-server_{server.process.pid}.ports").exists()


def test_configuration_is_tested_without_starting(tmp_path: Path) -> None:
    """`-t`: valid with a digest, or the first mistake with its place; status 0 or 1."""
    file = tmp_path / "a.conf"
    file.write_text("port: 4222\ngateway {}\n")
    done = run("-t", "-c", "a.conf", cwd=tmp_path)
    assert done.returncode == 0
    assert re.search(r"streamd: configuration file a.conf is valid \(sha256:\w{64}\)", done.stderr)
    assert '"gateway" is not served' in done.stderr
    file.write_text("port: 4222\nfoo: 3\n")
    done = run("-t", "-c", "a.conf", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, 'streamd: a.conf:2:1: unknown field "foo"\n')
    assert run("-t", cwd=tmp_path).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-foo"], "flag provided but not defined: -foo"),
        (["-c", "gone.conf"], "open gone.conf: no such file or directory"),
        (["xx"], 'unrecognized command: "xx"'),
        (["-sl", "bogus=1"], 'unknown signal "bogus"'),
        (["-sl", "stop=/nofile"], "invalid pid: /nofile"),
        (["-p", "70000"], '[FTL] Error listening on port: 0.0.0.0:70000, "listen tcp: address'),
        (["-p", "-1", "-P", "/nodir/pid"], "[FTL] Could not write pidfile: open /nodir/pid: no"),
        (["-p", "-1", "-l", "/nodir/log"], "error opening file: open /nodir/log: no such file"),
        (["-p", "-1", "-m", "70000"], "[FTL] Can't start monitoring: Error listening on"),
        (["-p", "-1", "-a", "203.0.113.1"], "cannot assign requested address"),
    ],
)
def test_a_start_that_fails_says_why(arguments: list[str], words: str, tmp_path: Path) -> None:
    """A reason on stderr and exit status 1."""
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert words in done.stderr


def test_help(tmp_path: Path) -> None:
    """On stdout, status 0."""
    done = run("-h", cwd=tmp_path)
    assert done.returncode == 0
    assert "Usage: streamd [options]" in done.stdout


def test_a_port_in_use(start: type[Server], tmp_path: Path) -> None:
    """The reason names the address."""
    port = start("-a", "127.0.0.1", "-p", "-1").port()
    done = run("-a", "127.0.0.1", "-p", str(port), cwd=tmp_path)
    assert done.returncode == 1
    assert f"[FTL] Error listening on port: 127.0.0.1:{port}" in done.stderr
    assert "address already in use" in done.stderr


def test_a_store_directory_has_one_server(start: type[Server], tmp_path: Path) -> None:
    """The second one is refused, the first is not disturbed."""
    server = start("-p", "-1", "-js", "-sd", "data")
    port = server.port()
    done = run("-p", "-1", "-js", "-sd", "data", cwd=tmp_path)
    assert done.returncode == 1
    assert "[FTL] Can't start JetStream: " in done.stderr
    assert "in use by another server" in done.stderr
    assert first_line(port).startswith(b"INFO ")


def test_a_foreign_store_directory_is_left_alone(tmp_path: Path) -> None:
    """nats-server's data is not read, not mixed with ours, not touched."""
    (tmp_path / "data" / "jetstream").mkdir(parents=True)
    done = run("-p", "-1", "-js", "-sd", "data", cwd=tmp_path)
    assert done.returncode == 1
    assert "holds nats-server's data" in done.stderr
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["jetstream"]


def test_a_store_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A file in its place, or no such place."""
    (tmp_path / "data").write_text("")
    for directory in ("data", "/proc/nowhere"):
        done = run("-p", "-1", "-js", "-sd", directory, cwd=tmp_path)
        assert done.returncode == 1
        assert "[FTL] Can't start JetStream: " in done.stderr


def test_signals_by_pid_and_pid_file(start: type[Server], tmp_path: Path) -> None:
    """`-sl reopen`, `-sl reload` and `-sl term` reach the process."""
    server = start("-p", "-1", "-P", "pid")
    server.port()
    assert run("-sl", f"reopen={server.process.pid}", cwd=tmp_path).returncode == 0
    server.wait_for("File log re-open ignored, not a file logger")
    assert run("-sl", "reload=pid", cwd=tmp_path).returncode == 0
    server.wait_for("[ERR] Failed to reload server configuration: can only reload config when")
    assert run("--signal=term=pid", cwd=tmp_path).returncode == 0
    assert server.end() == 0
    done = run("-sl", f"stop={server.process.pid}", cwd=tmp_path)
    assert (done.returncode, "no such process" in done.stderr) == (1, True)


def test_the_log_file_is_reopened(start: type[Server], tmp_path: Path) -> None:
    """SIGUSR1 after the file was moved."""
    server = start("-p", "-1", "-l", "a.log", "-P", "pid", "--ports_file_dir", str(tmp_path))
    log = tmp_path / "a.log"
    wait_until(lambda: log.exists() and READY in log.read_text())
    log.rename(tmp_path / "old.log")
    server.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: log.exists() and "File log re-opened" in log.read_text())
    assert server.stop() == 0
    assert "Server Exiting.." in log.read_text()


def test_reload_changes_users_and_refuses_ports(start: type[Server], tmp_path: Path) -> None:
    """SIGHUP: what can change does, what can't is named, a bad file changes nothing."""
    file = tmp_path / "a.conf"
    file.write_text("listen: 127.0.0.1:-1\n")
    server = start("-c", "a.conf")
    port = server.port()
    assert "auth_required" not in json.loads(first_line(port)[5:])
    file.write_text("listen: 127.0.0.1:-1\nauthorization { user: a, password: b }\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for("[INF] Reloaded: authorization.user set")
    server.wait_for("[INF] Reloaded server configuration (sha256:")
    assert json.loads(first_line(port)[5:])["auth_required"] is True
    file.write_text("listen: 127.0.0.1:4999\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for("config reload not supported for port")
    file.write_text("listen 127.0.0.1:-1 {\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for("Parse error on line 1: 'Expected a top-level value to end")
    assert json.loads(first_line(port)[5:])["auth_required"] is True


def test_a_signal_during_the_start_is_not_lost(start: type[Server], tmp_path: Path) -> None:
    """A recovery may take minutes: a reload waits for its end, a re-opened log does not."""
    (tmp_path / "a.conf").write_text("listen: 127.0.0.1:-1\njetstream { store_dir: data }\n")
    server = start("-c", "a.conf")
    server.wait_for("Starting JetStream")
    server.process.send_signal(signal.SIGHUP)
    server.process.send_signal(signal.SIGUSR1)
    server.wait_for("File log re-open ignored, not a file logger")
    server.wait_for("Reloaded server configuration")


def test_reload_changes_routes_and_nothing_else_of_the_cluster(
    start: type[Server], tmp_path: Path
) -> None:
    """SIGHUP: a route that is new is dialed."""
    text = "server_name: a\nlisten: 127.0.0.1:-1\ncluster { name: %s, listen: 127.0.0.1:-1%s }\n"
    file = tmp_path / "a.conf"
    file.write_text(text % ("c", ""))
    server = start("-c", "a.conf")
    server.port()
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(10)
        route = f"nats://127.0.0.1:{other.getsockname()[1]}"
        file.write_text(text % ("c", f", routes: [{route}]"))
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("[INF] Reloaded: cluster routes")
        other.accept()[0].close()
    file.write_text(text % ("other", f", routes: [{route}]"))
    server.process.send_signal(signal.SIGHUP)
    server.wait_for(
        "config reload not supported for the cluster, but for its routes: cluster.name changed"
    )


AT_THE_VERY_END = """
import atexit, os, signal, sys
from streamd.cli.server import main
def look():
    if {signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)} != {signal.SIG_IGN}:
        os._exit(7)
atexit.register(look)
sys.exit(main())
"""


def test_a_signal_at_the_very_end_is_no_failure(start: type[Server]) -> None:
    """The interpreter takes handlers away before it frees what a large store needs memory for:
    a second Ctrl-C or SIGTERM then became the exit status. An ignored signal stays ignored."""
    server = start("-c", AT_THE_VERY_END, "-p", "-1", program=Path(sys.executable))
    server.port()
    assert server.stop() == 0


def test_lame_duck_ends_an_idle_server(start: type[Server]) -> None:
    """SIGUSR2 without clients: it stops at once, with status 0."""
    server = start("-p", "-1", "-js", "-sd", "data")
    server.port()
    assert server.stop(signal.SIGUSR2) == 0
    assert "Entering lame duck mode, stop accepting new clients" in server.log


def connected(port: int) -> socket.socket:
    """A client that has said hello, and was welcomed."""
    client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    client.sendall(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
    heard = b""
    while b'"connect_info":true' not in heard:
        heard += client.recv(65536)
    return client


DUCK = """
listen: "127.0.0.1:-1", http: "127.0.0.1:-1"
lame_duck_duration: "%s", lame_duck_grace_period: "%s"
cluster { name: c, listen: "127.0.0.1:-1" }
"""


def test_a_lame_duck_is_told_from_a_healthy_server(start: type[Server], tmp_path: Path) -> None:
    """/healthz fails, so that load balancers go elsewhere; clients hear of the other servers only.
    SIGTERM changes nothing, as with nats-server: the clients have their time."""
    (tmp_path / "a.conf").write_text(DUCK % ("30s", "1s"))
    server = start("-c", "a.conf")
    with connected(server.port()) as client:
        assert json.loads(server.get("/healthz")) == {"status": "ok"}
        server.process.send_signal(signal.SIGUSR2)
        lines = client.makefile("rb")
        infos = [json.loads(lines.readline()[5:]) for _ in range(2)]
        assert infos[-1]["ldm"] is True
        assert infos[-1]["connect_urls"] == []
        with pytest.raises(urllib.error.HTTPError, match="503"):
            server.get("/healthz")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for('Trapped "terminated" signal')
        assert lines.read() == b""
        assert server.end() == 0
    log = server.log
    assert log.index("Closing existing clients") < log.index("Initiating Shutdown")
    assert log.index('"terminated"') < log.index("Closing existing clients")


def test_a_lame_duck_can_be_stopped_at_once(start: type[Server], tmp_path: Path) -> None:
    """SIGINT. The process used to stay, serving nothing, until the grace period was over."""
    (tmp_path / "a.conf").write_text(DUCK % ("10m", "5m"))
    server = start("-c", "a.conf")
    with connected(server.port()):
        server.process.send_signal(signal.SIGUSR2)
        server.wait_for("Entering lame duck mode")
        assert server.stop(signal.SIGINT) == 0


def test_the_pid_file_of_the_next_server_stays(start: type[Server], tmp_path: Path) -> None:
    """A new server may be up before the old one has sent its clients away."""
    old = start("-p", "-1", "-P", "pid")
    old.port()
    new = start("-p", "-1", "-P", "pid")
    new.port()
    assert old.stop() == 0
    assert (tmp_path / "pid").read_text() == str(new.process.pid)
    assert new.stop() == 0
    assert not (tmp_path / "pid").exists()


def test_a_restart_finds_its_data_directory(start: type[Server], tmp_path: Path) -> None:
    """Stopped, killed, and started again on the same directory; the name stays."""
    names = set()
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        server = start("-a", "127.0.0.1", "-p", "-1", "-js", "-sd", "data")
        names.add(json.loads(first_line(server.port())[5:])["server_name"])
        server.stop(number)
    assert len(names) == 1
    assert names.pop().startswith("streamd-")
    shutil.rmtree(tmp_path / "data")


def request(port: int, *lines: bytes, answers: int) -> list[bytes]:
    """Send protocol lines on a connection of its own; return the payloads of `answers` messages."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        client.sendall(b'CONNECT {"verbose":false}\r\nSUB r 1\r\n' + b"".join(lines))
        reader = client.makefile("rb")
        payloads: list[bytes] = []
        while len(payloads) < answers:
            line = reader.readline()
            assert line, payloads
            if line.startswith(b"MSG "):
                payloads.append(reader.read(int(line.split()[-1])))
        return payloads


def publish(subject: bytes, payload: bytes) -> bytes:
    return b"PUB %b r %d\r\n%b\r\n" % (subject, len(payload), payload)


def test_a_stream_shows_and_keeps_its_digest(start: type[Server]) -> None:
    """/jsz?digest=1 before SIGKILL equals the one after the restart; /metrics counts the same."""
    server = start("-a", "127.0.0.1", "-p", "-1", "-m", "-1", "-js", "-sd", "data")
    config = b'{"name":"S","subjects":["s.*"],"storage":"file"}'
    port = server.port()
    (created,) = request(port, publish(b"$JS.API.STREAM.CREATE.S", config), answers=1)
    acks = request(port, *(publish(b"s.%d" % n, b"x" * n) for n in range(3)), answers=3)
    assert json.loads(created)["config"]["name"] == "S"
    assert [json.loads(ack)["seq"] for ack in acks] == [1, 2, 3]

    def detail(of: Server) -> dict[str, object]:
        document = json.loads(of.get("/jsz?streams=1&digest=1"))
        found: dict[str, object] = document["account_details"][0]["stream_detail"][0]
        return found

    before = detail(server)
    assert b'jetstream_stream_total_messages{account="$G"' in server.get("/metrics")
    assert json.loads(server.get("/healthz?account=$G&stream=S")) == {"status": "ok"}
    server.stop(signal.SIGKILL)
    again = start("-a", "127.0.0.1", "-p", "-1", "-m", "-1", "-js", "-sd", "data")
    after = detail(again)
    assert after["digest"] == before["digest"] != "0" * 16
    assert after["state"] == before["state"]
    assert again.stop() == 0


def test_a_damaged_log_is_refused_until_its_loss_is_accepted(
    start: type[Server], tmp_path: Path
) -> None:
    """What is refused is not touched; what was lost is kept aside, and the rest goes on."""
    arguments = ("-a", "127.0.0.1", "-p", "-1", "-js", "-sd", "data")
    server = start(*arguments)
    config = b'{"name":"S","subjects":["s.*"],"storage":"file"}'
    request(server.port(), publish(b"$JS.API.STREAM.CREATE.S", config), answers=1)
    for number in range(6):  # each its own batch
        request(server.port(), publish(b"s.x", b"message %d" % number), answers=1)
    server.stop(signal.SIGKILL)
    (segment,) = (tmp_path / "data" / "streamd" / "wal").glob("*.wal")
    blob = bytearray(segment.read_bytes())
    blob[blob.index(b"message 3")] ^= 1
    segment.write_bytes(blob)

    refused = run("--port", "-1", *arguments, cwd=tmp_path)
    assert refused.returncode == 1
    assert "is damaged" in refused.stderr
    assert "--accept-loss" in refused.stderr
    assert segment.read_bytes() == blob

    again = start(*arguments, "--accept-loss")
    info = publish(b"$JS.API.STREAM.INFO.S", b"")
    assert json.loads(request(again.port(), info, answers=1)[0])["state"]["last_seq"] == 3
    (ack,) = request(again.port(), publish(b"s.x", b"new"), answers=1)
    assert json.loads(ack)["seq"] == 4
    assert again.stop() == 0
    assert "the log is damaged" in again.log
    (aside,) = (tmp_path / "data" / "streamd" / "wal").glob("damaged-*/" + segment.name)
    assert aside.read_bytes() == blob

    last = start(*arguments)
    assert json.loads(request(last.port(), info, answers=1)[0])["state"]["last_seq"] == 4
    assert last.stop() == 0


def test_connz_shows_open_connections(start: type[Server]) -> None:
    """An open connection with its name and subscriptions, then the closed one with its reason."""
    server = start("-a", "127.0.0.1", "-p", "-1", "-m", "-1")
    with socket.create_connection(("127.0.0.1", server.port()), timeout=PATIENCE_S) as client:
        client.sendall(
            b'CONNECT {"verbose":false,"name":"me","lang":"raw"}\r\nSUB a.* q 7\r\nPING\r\n'
        )
        reader = client.makefile("rb")
        while not reader.readline().startswith(b"PONG"):
            pass
        (entry,) = json.loads(server.get("/connz?subs=detail"))["connections"]
        assert (entry["name"], entry["lang"], entry["subscriptions"]) == ("me", "raw", 1)
        assert entry["subscriptions_list_detail"] == [
            {"subject": "a.*", "qgroup": "q", "sid": "7", "msgs": 0, "cid": entry["cid"]}
        ]
        assert json.loads(server.get("/subsz?subs=1&test=a.b"))["total"] == 1
        reader.close()
    wait_until(lambda: json.loads(server.get("/connz"))["total"] == 0)
    (closed,) = json.loads(server.get("/connz?state=closed"))["connections"]
    assert (closed["cid"], closed["reason"]) == (entry["cid"], "Client Closed")


def wait_until(is_so: object, patience_s: float = PATIENCE_S) -> None:
    """Wait for something that only shows in a file."""
    assert callable(is_so)
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
