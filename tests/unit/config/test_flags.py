"""The command line: Go's flag rules, every alias, and flags over the file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamd.config import flags
from streamd.config.options import Options
from streamd.config.tls_options import CertificatePair, TlsOptions
from streamd.errors import ConfigError, UnservedError


def options(*arguments: str) -> Options:
    return flags.options_from(flags.parse(list(arguments)))


@pytest.mark.parametrize(
    "arguments",
    [
        ("-p", "4333", "-a", "127.0.0.1", "-m", "8333", "-js", "-sd", "/x", "-n", "s1", "-DV"),
        ("--port", "4333", "--addr", "127.0.0.1", "--http_port", "8333", "--jetstream",
         "--store_dir", "/x", "--name", "s1", "-D", "-V"),
        ("-port=4333", "--net=127.0.0.1", "-m=8333", "-js=true", "-store_dir=/x",
         "--server_name=s1", "--debug=1", "--trace=T"),
    ],
)  # fmt: skip
def test_dashes_aliases_and_equal_signs_mean_the_same(arguments: tuple[str, ...]) -> None:
    """Three spellings of one server."""
    o = options(*arguments)
    assert (o.port, o.host, o.http_port, o.server_name) == (4333, "127.0.0.1", 8333, "s1")
    assert (o.jetstream.is_enabled, o.jetstream.store_dir) == (True, "/x")
    assert (o.is_debug, o.is_trace) == (True, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-foo"], "flag provided but not defined: -foo"),
        (["-p"], "flag needs an argument: -p"),
        (["-p", "abc"], 'invalid value "abc" for flag -p: parse error'),
        (["-js=maybe"], 'invalid boolean value "maybe" for -js: parse error'),
        (["---p"], "bad flag syntax: ---p"),
        (["-=5"], "bad flag syntax: -=5"),
    ],
)
def test_mistakes_are_worded_as_go_words_them(arguments: list[str], words: str) -> None:
    """Tools show them to people who search for them."""
    with pytest.raises(flags.UsageError) as caught:
        flags.parse(arguments)
    assert str(caught.value) == words


def test_flags_end_at_the_first_other_word() -> None:
    """What follows is left for the caller to judge."""
    line = flags.parse(["-D", "xx", "-V"])
    assert line.rest == ["xx", "-V"]
    assert flags.parse(["-D", "--", "-V"]).rest == ["-V"]


def test_a_boolean_takes_no_word_after_it() -> None:
    """`-js false` is -js and a stray word, as in Go."""
    line = flags.parse(["-js", "false"])
    assert (line.settings, line.rest) == ([("jetstream", True)], ["false"])


def test_requests_that_are_not_settings() -> None:
    """Help, version, test and signal."""
    assert flags.parse(["-h"]).wants_help
    assert flags.parse(["--help_tls"]).wants_help
    assert flags.parse(["-v"]).wants_version
    assert flags.parse(["--version"]).wants_version
    line = flags.parse(["-t", "-c", "x.conf", "-sl", "stop=5"])
    assert (line.is_test, line.config_file, line.signal) == (True, "x.conf", "stop=5")


def test_flags_override_the_file(tmp_path: Path) -> None:
    """The file says one thing, the command line another."""
    file = tmp_path / "a.conf"
    file.write_text("port: 1\nhost: h\njetstream { store_dir: /a }\ndebug: true")
    o = options("-c", str(file), "-p", "2", "-sd", "/b", "-D=false")
    assert (o.port, o.host, o.jetstream.store_dir, o.is_debug) == (2, "h", "/b", False)
    assert o.jetstream.is_enabled


FILE_USERS = "authorization { users [{user: a, password: b}] }"
FILE_USER = "authorization { user: a, password: b }"
FILE_TOKEN = "authorization { token: t }"


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        (FILE_USERS, ["--user", "x", "--pass", "y"], (["a"], "", "")),
        (FILE_USERS, ["--auth", "x"], (["a"], "", "")),
        (FILE_USERS, ["--user=", "--pass="], (["a"], "", "")),
        (FILE_USERS, ["--pass", "y"], (["a"], "", "")),
        (FILE_USERS, ["--auth="], (["a"], "", "")),
        (FILE_USER, ["--auth", "x"], ([], "", "x")),
        (FILE_TOKEN, ["--user", "x", "--pass", "y"], ([], "", "t")),
        (FILE_USER, ["--user", "x", "--pass", "y"], ([], "x", "")),
    ],
)
def test_a_flag_never_takes_users_away(
    tmp_path: Path, text: str, arguments: list[str], expected: tuple[list[str], str, str]
) -> None:
    """Of users, a token and a user the first that is there holds, as nats-server 2.15.1 has it. A
    variable of a script that is empty opens no server that has users."""
    file = tmp_path / "a.conf"
    file.write_text(text)
    o = options("-c", str(file), *arguments)
    assert ([user.name for user in o.users], o.username, o.token) == expected
    assert o.is_auth_required


def test_users_with_nkeys_keep_others_out_whatever_the_flags(tmp_path: Path) -> None:
    """A user of the command line does not join those of the file."""
    file = tmp_path / "a.conf"
    file.write_text(
        "authorization { users [{nkey: UCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVZ45L}] }"
    )
    o = options("-c", str(file), "--user", "x", "--pass", "y")
    assert o.is_auth_required and not o.username  # the file's users hold
    assert options("-c", str(file), "--user=").is_auth_required


def test_a_user_of_the_command_line_shuts_out_clients_without_credentials(tmp_path: Path) -> None:
    """A file with the system's users only lets in all others, until a flag says who they are."""
    file = tmp_path / "a.conf"
    file.write_text("accounts { $SYS { users [{user: a, password: b}] } }")
    arguments = ("-c", str(file), "--ignore-unserved")
    assert options(*arguments).is_open_besides_system
    assert options(*arguments, "--user=").is_open_besides_system
    o = options(*arguments, "--user", "x", "--pass", "y")
    assert not o.is_open_besides_system and o.username == "x"


def test_flags_that_are_not_served_are_named() -> None:
    """Accepted with a warning, which `--strict` makes an error."""
    o = options("--profile", "1", "-s")
    assert o.warnings == [
        "flag -profile is not served by this version and is ignored",
        "flag -syslog is not served by this version and is ignored",
    ]
    with pytest.raises(UnservedError) as caught:
        options("--profile", "1", "-s", "--strict")
    assert caught.value.problems == o.warnings


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["--tls"], "certificate"),
        (["--tlscert", "c.pem"], "private key"),
        (["--tlscert", "", "--tlskey", ""], "certificate"),
        (["--tlskey", "k.pem"], "certificate"),
        (["--tlsverify"], "certificate"),
        (["--tlsverify=false"], "certificate"),
        (["-tlscacert", "a.pem"], "certificate"),
    ],
)
def test_a_server_told_to_speak_tls_needs_a_certificate_and_a_key(
    arguments: list[str], missing: str
) -> None:
    """A server must not speak plain text instead; an empty name is a variable that was not set. The
    file's certificate does not stand in for what the flags leave out."""
    with pytest.raises(ConfigError, match=f"TLS Server {missing} must be present and valid"):
        options(*arguments)


def test_flags_take_the_place_of_the_files_certificates(tmp_path: Path) -> None:
    """The rest of its block stays; `--tls=false`, as scripts write it, asks for no TLS at all."""
    assert options("--tls=false").tls is None
    pair = ("--tlscert", "c", "--tlskey", "k")
    o = options(*pair, "--tlsverify", "--tlscacert", "a")
    assert o.tls == TlsOptions((CertificatePair("c", "k"),), ca_file="a", is_verifying=True)
    assert o.auth_timeout_s == 3.0
    file = tmp_path / "a.conf"
    file.write_text("tls { cert_file: x, key_file: y, verify: true, timeout: 7, first: true }\n")
    in_file = options("-c", str(file)).tls
    assert in_file is not None and in_file.is_verifying
    o = options("-c", str(file), *pair)
    assert o.tls == TlsOptions((CertificatePair("c", "k"),), timeout_s=7, is_first=True)
    assert o.auth_timeout_s == 8.0
    assert options("-c", str(file), *pair, "--tls=false").tls is None


def test_a_missing_file_is_reported_in_nats_servers_words(tmp_path: Path) -> None:
    """`open x: no such file or directory`."""
    with pytest.raises(ConfigError, match=r"open .*gone.conf: no such file or directory"):
        options("-c", str(tmp_path / "gone.conf"))


def test_every_flag_of_the_usage_text_is_understood() -> None:
    """The help never promises what the parser refuses."""
    words = flags.USAGE.replace(",", " ").split()
    named = {re.split(r"\[?=", word.lstrip("-"))[0] for word in words if word.startswith("-")}
    known = {alias for aliases, *_ in flags._FLAGS.values() for alias in aliases.split()}
    assert {name.rstrip("]") for name in named if name and name != "1:"} <= known
