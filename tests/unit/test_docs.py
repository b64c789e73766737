"""The pages of docs/: links that lead somewhere, commands that there are, a site that builds."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from streamd.config import flags, reader
from streamd.ctl.app import root

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def slugs(page: Path) -> set[str]:
    """Anchors of a page's headings, as they are made of the words."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "streamd").rglob("*.md"))], ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in slugs(target)):
            dead.append(link)
    assert not dead


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command of ours: lines of code, and code in a sentence."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip().removeprefix("$ ") for line in text.splitlines()]
    inline = [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    for line in [*lines, *inline]:
        if re.match(r"(streamctl|streamd) ", line) and not re.match(
            r"streamd (is|has|and)\b", line
        ):
            try:
                words = shlex.split(line, comments=True)
            except ValueError:  # a sentence with an apostrophe
                continue
            ends = [at for at, word in enumerate(words) if word in ("|", ">", "&", "&&", ";")]
            yield words[: ends[0]] if ends else words


def check(words: list[str]) -> None:
    """Raise if there is no such command, flag or argument."""
    if words[0] == "streamd":
        flags.parse(words[1:])
        return
    command: click.Command = root
    rest = words[1:]
    while True:
        context = click.Context(command, info_name=words[0])
        _, rest, _ = command.make_parser(context).parse_args(rest)
        if not isinstance(command, click.Group):
            return
        if not rest:
            return
        found = command.get_command(context, rest[0])
        if found is None:
            raise click.UsageError(f"no command {rest[0]}")
        command, rest = found, rest[1:]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_their_flags_are_there(page: Path) -> None:
    wrong = []
    for words in commands(page):
        try:
            check(words)
        except (click.UsageError, flags.UsageError) as err:
            wrong.append(f"{shlex.join(words)}: {err}")
    assert not wrong, "\n".join(wrong)


def test_a_wrong_flag_is_found() -> None:
    with pytest.raises(click.NoSuchOption):
        check(["streamctl", "stream", "add", "S", "--subjcet", "s"])
    with pytest.raises(flags.UsageError):
        check(["streamd", "-jss"])


REFUSED = {
    "ocsp": "ocsp: true",
    "curve_preferences": "tls { cert_file: c, key_file: k, curve_preferences: [X25519] }",
    "cert_match": "tls { cert_file: c, key_file: k, cert_match: x }",
    "proxy_required": "authorization { proxy_required: true }",
    "allowed_connection_types": "authorization { users: [{user: u, password: p,"
    " allowed_connection_types: [MQTT]}] }",
    "permissions": "cluster { permissions { import: a } }",
    "proxies": "proxies { trusted: [] }",
    "proxy_protocol": "proxy_protocol: true",
    "jetstream { tpm }": "jetstream { tpm {} }",
    "limits { default_max_consumers }": "jetstream { limits { default_max_consumers: 4 } }",
    "connection_rate_limit": "websocket { port: 80, tls { connection_rate_limit: 4 } }",
}
WARNED = {
    "mqtt": "mqtt { port: 1883 }",
    "gateway": "gateway { name: x }",
    "no_system_account": "no_system_account: true",
    "default_js_domain": "default_js_domain { A: b }",
    "syslog": "syslog: true",
    "remote_syslog": "remote_syslog: x",
    "prof_port": "prof_port: 9",
    "cluster { pool_size, compression, accounts }": "cluster { pool_size: 3, accounts: [A] }",
}


@pytest.mark.parametrize("name", [*REFUSED, *WARNED])
def test_settings_that_are_not_served_are_those_of_the_page(name: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    table = page.split("| Stops the start | Warning |\n")[1].split("\n\n")[0]
    rows = [line.strip(" |").split(" | ") for line in table.splitlines()[1:]]
    assert f"`{name}`" in "".join(row[name in WARNED] for row in rows)
    path = tmp_path / "server.conf"
    path.write_text(REFUSED.get(name) or WARNED[name], encoding="utf-8")
    options = reader.load(str(path))
    told = options.warnings if name in WARNED else options.unserved
    assert any("not served by this version" in each for each in told), (told, options.warnings)
    assert name in WARNED or options.unserved
    assert name in REFUSED or not options.unserved


def test_proofs_of_the_guarantees_are_there() -> None:
    """Files of tests and targets of make that docs/guarantees.md names."""
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    files = re.findall(r"`pytest ([^`]+)`", text)
    targets = re.findall(r"`make ([a-z-]+)", text)
    assert len(files) >= 4 and len(targets) >= 4
    assert not [file for file in files if not (ROOT / file).exists()]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert not [each for each in targets if f"\n{each}:" not in makefile]


def test_metrics_of_our_own_are_those_of_the_page() -> None:
    source = (ROOT / "streamd" / "obs" / "metrics.py").read_text(encoding="utf-8")
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    told = {name.removesuffix("_total") for name in re.findall(r"`(streamd_[a-z_]+)`", text)}
    made = {name.removesuffix("_total") for name in re.findall(r'"(streamd_[a-z_]+)"', source)}
    assert told == made | {"streamd_block_bytes", "streamd_block_stored_bytes"}


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed: streamd-server[dev]")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "first-minutes" / "index.html").exists()
