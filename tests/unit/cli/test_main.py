"""`main` without a server: versions, help, `-t`, and what files a process leaves."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from streamd import NATS_LEVEL, __version__
from streamd.cli import addresses, runfiles
from streamd.cli.addresses import client_urls
from streamd.cli.server import main, version_text
from streamd.config.options import Options


def test_version_texts() -> None:
    """Tools gate on the first; people read the second."""
    assert version_text("nats-server") == f"nats-server: v{NATS_LEVEL}"
    assert version_text("streamd") == (
        f"streamd: v{__version__} (compatible with nats-server v{NATS_LEVEL})"
    )


@pytest.mark.parametrize("arguments", [["-v"], ["--version"], ["version"]])
def test_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Three spellings, on stdout."""
    assert main(arguments) == 0
    assert NATS_LEVEL in capsys.readouterr().out


def test_usage_follows_a_bad_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """The message first, then the usage text, on stderr."""
    assert main(["-nope"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("flag provided but not defined: -nope\n")
    assert "Usage: " in error


def test_a_configuration_mistake_has_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """file:line:column, whether tested or started."""
    file = tmp_path / "a.conf"
    file.write_text("port: 1\njetstream {\n  max_men: 5\n}\n")
    for arguments in (["-t", "-c", str(file)], ["-c", str(file)]):
        assert main(arguments) == 1
        assert f'{file}:3:3: unknown field "max_men"' in capsys.readouterr().err


def test_unserved_protections_stop_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`[FTL]` for each setting with its place, and status 1: tested or started."""
    file = tmp_path / "a.conf"
    file.write_text("port: -1\nocsp: true\nproxy_protocol: true\ngateway {}\n")
    for arguments in (["-t", "-c", str(file)], ["-c", str(file)]):
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert f'[FTL] {file}:2:1: "ocsp" is not served by this version\n' in error
        assert f'[FTL] {file}:3:1: "proxy_protocol" is not served by this version' in error
        assert "gateway" not in error
        assert "--ignore-unserved" in error


def test_a_tested_configuration_says_how_much_is_not_in_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Warnings are counted; `--strict` makes each an error; `--ignore-unserved` makes errors
    warnings."""
    file = tmp_path / "a.conf"
    file.write_text("port: -1\ngateway {}\nmqtt {}\n")
    assert main(["-t", "-c", str(file)]) == 0
    assert capsys.readouterr().err.endswith(", with 2 warnings\n")
    assert main(["-t", "--strict", "-c", str(file)]) == 1
    error = capsys.readouterr().err
    assert error.count("[FTL]") == 2
    assert "--strict refuses" in error and "--ignore-unserved" not in error
    file.write_text("ocsp: true\n")
    assert main(["-t", "--ignore-unserved", "-c", str(file)]) == 0
    error = capsys.readouterr().err
    assert "NOT IN FORCE" in error
    assert error.endswith(", with 2 warnings\n")


def test_the_example_configuration_is_valid(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """configs/single.conf, without a warning."""
    example = Path(__file__).parents[3] / "configs" / "single.conf"
    assert main(["-t", "-c", str(example)]) == 0
    error = capsys.readouterr().err
    assert "is valid" in error
    assert "warning" not in error


def test_ports_file(tmp_path: Path) -> None:
    """Lists of URLs; a wildcard address becomes addresses one can connect to."""
    path = runfiles.ports_path(str(tmp_path), "nats-server")
    runfiles.write_ports(path, {"nats": ("nats", "0.0.0.0", 4), "monitoring": ("http", "::1", 5)})
    ports = json.loads(Path(path).read_text())
    assert ports["nats"][0] == "nats://127.0.0.1:4"
    assert not any("0.0.0.0" in url for url in ports["nats"])
    assert ports["monitoring"] == ["http://[::1]:5"]
    assert list(tmp_path.iterdir()) == [Path(path)]
    runfiles.remove(path)
    runfiles.remove(path)
    assert not list(tmp_path.iterdir())


def test_clients_are_sent_to_the_advertised_address() -> None:
    """What is advertised, else the address that is listened on, else all there are."""
    assert client_urls(Options(host="127.0.0.1"), 5) == ["127.0.0.1:5"]
    assert client_urls(Options(host="::1"), 5) == ["[::1]:5"]
    assert all(url.endswith(":5") for url in client_urls(Options(), 5))
    advertised = Options(client_advertise="a.example.com")
    assert client_urls(advertised, 5) == ["a.example.com:5"]
    advertised.client_advertise = "[fe80::1]:6"
    assert client_urls(advertised, 5) == ["[fe80::1]:6"]


def test_clients_are_sent_to_the_addresses_of_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine's name resolves to: many systems have it in /etc/hosts as loopback, and
    clients of other servers were told to come to 127.0.0.1 when their own had gone."""
    found = ["127.0.0.1", "192.0.2.7", "169.254.3.4"]
    monkeypatch.setattr(addresses, "_ipv4_addresses", lambda: found)
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    found6 = ["fe80::1", "::1", "2001:db8::7"]
    monkeypatch.setattr(addresses, "_ipv6_addresses", lambda: found6)
    assert client_urls(Options(), 5) == ["192.0.2.7:5", "[2001:db8::7]:5"]
    everywhere = ["127.0.0.1", "::1", "192.0.2.7", "169.254.3.4", "fe80::1", "2001:db8::7"]
    assert addresses.addresses_of("::") == everywhere
    found.remove("192.0.2.7")
    found6.pop()
    assert client_urls(Options(), 5) == ["127.0.0.1:5"]


@pytest.mark.parametrize("arguments", [["-t"], []])
def test_a_cluster_that_anybody_could_join_is_refused_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """`[FTL]` and status 1: tested or started."""
    file = tmp_path / "open.conf"
    file.write_text("server_name: a\ncluster { name: c, port: 6222 }\n")
    assert main(["-c", str(file), *arguments]) == 1
    error = capsys.readouterr().err
    assert f"[FTL] {file}:2:1: cluster: anybody who reaches 0.0.0.0:6222 could join" in error
