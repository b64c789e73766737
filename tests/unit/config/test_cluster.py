"""Peers in the configuration and on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.config import flags
from streamd.config.cluster_options import (
    RouteUrl,
    client_address,
    join_address,
    parse_route,
    split_address,
)
from streamd.config.options import Options, finish
from streamd.errors import ConfigError


def options(*arguments: str) -> Options:
    return flags.options_from(flags.parse(list(arguments)))


def from_text(tmp_path: Path, text: str, *arguments: str) -> Options:
    file = tmp_path / "a.conf"
    file.write_text(text)
    return options("-c", str(file), *arguments)


FULL = """
server_name: n1
jetstream: enabled
cluster {
  name: c1
  listen: "127.0.0.1:6222"
  authorization { user: u, password: "p", timeout: 3 }
  routes = [
    nats-route://127.0.0.1:6222
    nats://x:y%40z@10.0.0.2:6333
    "nats-route://[::1]:7000"
  ]
  advertise: "a.example:9"
  no_advertise: true
  connect_retries: 5
}
"""


def test_a_cluster_block_names_the_peers(tmp_path: Path) -> None:
    """Every key that is served, in one block."""
    o = from_text(tmp_path, FULL)
    c = o.cluster
    assert (c.name, c.host, c.port, c.advertise) == ("c1", "127.0.0.1", 6222, "a.example:9")
    assert (c.username, c.password, c.auth_timeout_s) == ("u", "p", 3.0)
    assert c.routes == (
        RouteUrl("127.0.0.1", 6222),
        RouteUrl("10.0.0.2", 6333, "x", "y@z"),
        RouteUrl("::1", 7000),
    )
    assert (c.has_advertise, c.connect_retries) == (False, 5)
    assert c.is_enabled and o.is_clustered
    assert o.warnings == []


def test_without_routes_jetstream_stands_alone(tmp_path: Path) -> None:
    """Listening for peers is not yet having any."""
    text = "server_name: a, jetstream: enabled, cluster { name: c, host: localhost, port: -1 }"
    o = from_text(tmp_path, text)
    assert o.cluster.is_enabled and not o.is_clustered
    assert not options("-js").cluster.is_enabled
    o = from_text(tmp_path, "cluster { listen: 127.0.0.1:6222, routes: [nats://b:1] }")
    assert o.cluster.is_enabled and not o.is_clustered


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("jetstream: true, cluster { port: -1 }",
         "jetstream cluster requires `server_name` to be set"),
        ("jetstream: true, server_name: a, cluster { port: -1 }",
         "jetstream cluster requires `cluster.name` to be set"),
        ('cluster { name: "a b" }', "cluster name cannot contain spaces"),
        ('cluster { routes: ["127.0.0.1:1"] }', 'error parsing route url ["127.0.0.1:1"]'),
        ('cluster { routes: ["nats://h:99999"] }', "error parsing route url"),
        ('cluster { routes: "nats://h:1" }', '"cluster.routes" must be a list, not a string'),
        ("cluster { authorization { token: x } }",
         "Cluster authorization does not support tokens"),
        ("cluster { authorization { users: [] } }",
         "Cluster authorization does not allow multiple users"),
        ("cluster { authorization { user: a, password: '$2a$11$abc' } }", "must be plain text"),
        ("cluster { tls { ca_file: x } }", "missing 'cert_file' or 'key_file'"),
        ("cluster { tls { cert_file: x } }", "missing 'key_file'"),
        ("cluster { foo: 1 }", 'unknown field "foo"'),
        ("max_payload: 67108865, max_pending: 67108865, cluster { port: 1 }",
         "max_payload (67108865) cannot be higher than 67108864 in a cluster"),
        ("cluster { port: 1, authorization { timeout: 0 } }", "timeout needs to be positive"),
    ],
)  # fmt: skip
def test_meaningless_cluster_settings_are_refused(tmp_path: Path, text: str, words: str) -> None:
    """In nats-server's words where it has some."""
    with pytest.raises(ConfigError) as caught:
        from_text(tmp_path, text)
    assert words in str(caught.value)


def test_keys_that_have_no_effect_are_named(tmp_path: Path) -> None:
    """Known, accepted, and said to be ignored."""
    o = from_text(tmp_path, "cluster { listen: '[::1]:1', pool_size: 3, compression: off }")
    assert [w.split(": ", 1)[1] for w in o.warnings] == [
        '"cluster.pool_size" is not served by this version and is ignored',
        '"cluster.compression" is not served by this version and is ignored',
    ]


def test_the_command_line_alone_makes_a_cluster() -> None:
    """As tools start one."""
    o = options(
        "-js", "-n", "a", "--cluster", "nats://u:p@127.0.0.1:6222", "--cluster_name", "c",
        "--routes", "nats://127.0.0.1:6222, nats://127.0.0.1:6223", "--no_advertise",
        "--connect_retries=3", "--cluster_advertise", "h:1",
    )  # fmt: skip
    c = o.cluster
    assert o.is_clustered and o.warnings == []
    assert (c.name, c.host, c.port, c.username, c.password) == ("c", "127.0.0.1", 6222, "u", "p")
    assert c.routes == (RouteUrl("127.0.0.1", 6222), RouteUrl("127.0.0.1", 6223))
    assert (c.has_advertise, c.connect_retries, c.advertise) == (False, 3, "h:1")
    assert options("--cluster_listen", "nats://127.0.0.1:-1").cluster.port == -1


def test_the_command_line_goes_over_the_file(tmp_path: Path) -> None:
    """Address and credentials together, the rest one by one."""
    c = from_text(tmp_path, FULL, "--cluster", "nats://127.1.2.3:5", "--cluster_name=z").cluster
    assert (c.name, c.host, c.port, c.username, c.password) == ("z", "127.1.2.3", 5, "", "")
    assert len(c.routes) == 3
    assert not from_text(tmp_path, FULL, "--cluster", "").cluster.is_enabled


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--routes", "nats://a:1"], "solicited routes require cluster capabilities"),
        (["--cluster", "nats://a@h:1"], "expected cluster password to be set"),
        (["--cluster", "foo"], "missing port in address"),
        (["--cluster", "nats://h"], "address h: missing port in address"),
        (["--cluster", "nats://h:x"], "Port could not be cast"),
        (["--cluster", "nats://h:1", "--routes", "h:1"], 'error parsing route url ["h:1"]'),
    ],
)
def test_command_lines_that_cannot_be_meant(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(*arguments)
    assert words in str(caught.value)


def test_addresses_read_back() -> None:
    """IPv6 hosts keep their brackets outside."""
    for host, port in (("h", 1), ("::1", 65535)):
        assert split_address(join_address(host, port)) == (host, port)
    assert parse_route("nats://h").port == 6222
    for text in ("h", "h:", "h:x", "h:0", "h:65536", ":-1"):
        with pytest.raises(ValueError, match="is not a host and a port"):
            split_address(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a.example.com", ("a.example.com", 4222)),
        ("a.example.com:4333", ("a.example.com", 4333)),
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        ("[::1]:4333", ("::1", 4333)),
        ("[::1]", ("::1", 4222)),
    ],
)
def test_client_address(text: str, address: tuple[str, int]) -> None:
    assert client_address(text, 4222) == address


@pytest.mark.parametrize("text", ["a:port", "a:", ":4222", "::1", "a:0", "a:65536"])
def test_invalid_client_addresses_are_refused_at_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match="invalid client_advertise value"):
        finish(Options(client_advertise=text))


def test_loss_is_accepted_by_a_server_of_a_cluster_too() -> None:
    """There it is about streams whose voters are all in doubt (docs/adr/0031)."""
    cluster = ["-n", "n", "--cluster_name", "C", "--cluster", "nats://u:p@a:1"]
    for routes in ([], ["--routes", "nats://b:1"]):
        line = ["-js", "--accept-loss", *cluster, *routes]
        assert flags.options_from(flags.parse(line)).accepts_loss


@pytest.mark.parametrize(
    ("block", "is_refused"),
    [
        ("listen: 0.0.0.0:6222", True),
        ("port: 6222", True),
        ("listen: 10.0.0.1:6222", True),
        ("listen: '[::]:6222'", True),
        ("port: 6222, authorization { user: u }", True),
        ("port: 6222, routes: ['nats://u:p@b:1']", True),
        ("port: 6222, authorization { user: u, password: a-long-random-one }", False),
        ("port: 6222, tls { cert_file: a, key_file: b }", False),
        ("listen: localhost:6222", False),
        ("listen: 127.0.0.1:6222", False),
        ("listen: '[::1]:6222'", False),
        ("name: c", False),
    ],
)
def test_a_cluster_that_anybody_could_join_does_not_start(
    tmp_path: Path, block: str, is_refused: bool
) -> None:
    """The place of the block is named, also if a flag says it is to start; then it is a warning."""
    text = f"server_name: a\ncluster {{ {block} }}\n"
    if not is_refused:
        assert not from_text(tmp_path, text).warnings
        return
    with pytest.raises(ConfigError, match="or start with --insecure-cluster") as caught:
        from_text(tmp_path, text)
    assert f"{tmp_path / 'a.conf'}:2:1: cluster: anybody" in str(caught.value)
    (warning,) = from_text(tmp_path, text, "--insecure-cluster").warnings
    assert warning.startswith("--insecure-cluster: whoever reaches")
    assert from_text(tmp_path, text, "--cluster", "nats://u:p@0.0.0.0:1").cluster.password == "p"
    assert not from_text(tmp_path, text, "--cluster", "").cluster.is_enabled
    with pytest.raises(ConfigError) as caught:
        options("-n", "a", "--cluster", "nats://0.0.0.0:6222")
    assert str(caught.value).startswith("cluster: anybody")  # no file is to blame


@pytest.mark.parametrize(
    ("listen", "password", "is_warned_of"),
    [("0.0.0.0:1", "p" * 15, True), ("0.0.0.0:1", "p" * 16, False), ("127.0.0.1:1", "p", False)],
)
def test_a_short_password_of_a_cluster_is_warned_of(
    tmp_path: Path, listen: str, password: str, is_warned_of: bool
) -> None:
    """Whoever can reach the port gets something to try passwords with."""
    block = f'listen: "{listen}", authorization {{ user: u, password: "{password}" }}'
    found = from_text(tmp_path, f"cluster {{ name: c, {block} }}").warnings
    assert [("is shorter than 16" in warning) for warning in found] == [True] * is_warned_of
