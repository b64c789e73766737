"""Where a server is asked for its health: by the command line and configuration of its process."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamd.cli import probe
from streamd.cli.cluster_local import ClusterError
from streamd.ctl import app as ctl

# Looks like a server to whoever reads /proc, and lives until its standard input ends.
_STAND_IN = "#!{python}\nimport sys\nprint('up', flush=True)\nsys.stdin.read()\n"


_INIT = ("sh", "-c", '"$0" "$@"; exit $?')  # a process of its own, whose only child is the program


@contextmanager
def process(
    directory: Path, *arguments: str, name: str = "streamd", init: tuple[str, ...] = ()
) -> Iterator[int]:
    program = directory / name
    program.write_text(_STAND_IN.format(python=sys.executable))
    program.chmod(0o700)
    with subprocess.Popen(
        [*init, program, *arguments], cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as started:
        assert started.stdin is not None and started.stdout is not None
        started.stdout.readline()
        yield started.pid
        started.stdin.close()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["-a", "0.0.0.0", "-js", "-m", "8222"], "http://127.0.0.1:8222/healthz"),
        (["-a", "::", "-m", "9000"], "http://[::1]:9000/healthz"),
        (["-c", "a.conf"], "http://127.0.0.2:7000/base/healthz"),
        (["-p", "5000"], "nats://127.0.0.1:5000"),
    ],
)
def test_the_port_is_the_configurations(tmp_path: Path, arguments: list[str], wanted: str) -> None:
    """Of flags, of a file beside which it was started, or of clients if nothing is monitored."""
    (tmp_path / "a.conf").write_text("http: 127.0.0.2:7000\nhttp_base_path: /base\n")
    for name in ("streamd", "nats-server"):
        with process(tmp_path, *arguments, name=name) as pid:
            assert probe.health_address(pid) == wanted


def test_a_server_under_an_init_is_found(tmp_path: Path) -> None:
    """Containers may have one: the pid is then not the server's own."""
    with process(tmp_path, "-m", "7777", init=_INIT) as pid:
        assert probe.health_address(pid) == "http://127.0.0.1:7777/healthz"


def test_a_process_that_is_no_server_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 1, as an unhealthy server."""
    with process(tmp_path, name="other") as pid:
        assert ctl.main(["health", "--pid", str(pid)]) == 1
        assert f"process {pid} is no streamd or nats-server" in capsys.readouterr().err
    with process(tmp_path, "-m", "-1") as pid, pytest.raises(ClusterError, match="chose its port"):
        probe.health_address(pid)
    missing = pytest.raises(ClusterError, match=r"open .*gone\.conf: no such file")
    with process(tmp_path, "-c", "gone.conf") as pid, missing:
        probe.health_address(pid)


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (b"INFO {}\r\nPONG\r\n", "ok"),
        (b"INFO {}\r\n-ERR 'Authorization Violation'\r\n", "ok"),
        (b"INFO {}\r\n-ERR 'maximum connections exceeded'\r\n", "-ERR 'maximum connections"),
        (b"", "no answer: the connection was closed"),
    ],
)
def test_a_server_without_monitoring_answers_as_a_client_hears_it(
    answer: bytes, wanted: str
) -> None:
    """One that asks for a password is well; one that answers nothing is not."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            link, _ = listening.accept()
            with link:
                link.recv(4096)
                link.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        found = probe.client_health(f"nats://127.0.0.1:{listening.getsockname()[1]}")
        thread.join()
    assert found.startswith(wanted)
