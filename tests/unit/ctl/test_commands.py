"""Every command of `streamctl`: its example, its place in the reference, its start."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import click
import jsonschema
import pytest

from streamd.ctl import app
from streamd.ctl.command_groups import COMMANDS, TOP_LEVEL
from streamd.ctl.reference_page import commands, page
from streamd.ctl.verbs import Verb

ROOT = Path(__file__).parents[3]
KNOWN = dict(commands())


def test_the_help_shows_every_command_once() -> None:
    shown = [name for _, names in TOP_LEVEL for name in names]
    assert sorted(shown) == sorted(COMMANDS)


def test_the_reference_is_up_to_date() -> None:
    """Mend it with `python -m streamd.ctl.reference_page > docs/streamctl.md`."""
    assert (ROOT / "docs" / "streamctl.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("path", KNOWN)
def test_the_example_is_a_command_line_of_that_command(path: str) -> None:
    """Each line of it parses, its flags and values too."""
    command = KNOWN[path]
    lines = [line for line in command.example.splitlines() if "streamctl" in line]
    assert lines
    for line in lines:
        words = shlex.split(line.replace('"$(', " ").replace(')"', " "))
        words = words[words.index("streamctl") + 1 :]
        for stop in ("<", ">", "|"):
            words = words[: words.index(stop)] if stop in words else words
        _parse(app.root, words, path)


def _parse(root: click.Command, words: list[str], path: str) -> None:
    context = click.Context(root)
    command = root
    for name in path.split():
        assert isinstance(command, click.Group)
        found = command.get_command(context, words.pop(0))
        assert found is not None and found.name == name
        command = found
    assert isinstance(command, Verb)
    for each in command.params:
        if isinstance(each.type, click.Path):
            each.type.exists = False  # an example's files need not be here
    command.make_context(path, words)


@pytest.mark.parametrize("path", KNOWN)
def test_help_begins_with_a_sentence_and_ends_with_the_example(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main([*path.split(), "--help"]) == 0
    told = capsys.readouterr().out
    assert f"Usage: streamctl {path}" in told
    assert KNOWN[path].example.splitlines()[0] in told
    flags = [each for each in KNOWN[path].params if isinstance(each, click.Option)]
    assert [flag.name for flag in flags if not (flag.help or flag.hidden)] == []


def _loaded(words: list[str], heavy: list[str]) -> list[str]:
    """Modules of `heavy` that a run of the program imports."""
    code = (
        f"import sys, json; from streamd.ctl import app; app.main({words!r}); "
        "print(json.dumps(sorted(set(sys.modules) & set(sys.argv[1:]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *heavy], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_help_loads_neither_the_wire_nor_tables() -> None:
    """None of these modules is imported for it: it starts at once."""
    heavy = ["nats", "rich", "asyncio", "yaml", "aiohttp", "ssl", "streamd.store", "streamd.node"]
    assert _loaded(["--help"], heavy) == []


def test_a_request_loads_no_websockets_and_no_server() -> None:
    heavy = ["aiohttp", "yaml", "streamd.store", "streamd.node", "streamd.net", "msgpack"]
    assert _loaded(["--server", "nats://127.0.0.1:9", "stream", "list"], heavy) == []


def test_completion_names_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("zsh", "fish"):
        assert app.main(["completion", shell]) == 0
        assert "_STREAMCTL_COMPLETE" in capsys.readouterr().out


def test_commands_complete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a shell asks: words so far, and the one that is being typed."""
    monkeypatch.setenv("_STREAMCTL_COMPLETE", "zsh_complete")
    monkeypatch.setenv("COMP_WORDS", "streamctl stream in")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        app.main([])
    assert capsys.readouterr().out.splitlines()[:2] == ["plain", "info"]


TEXT_ONLY = {"cluster logs", "completion"}


def test_every_output_has_a_schema() -> None:
    """But for those of commands that print text only; and there is none of a command that is
    gone."""
    path = ROOT / "streamd" / "ctl" / "schemas" / "outputs.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema({"$defs": known["$defs"]})
    described = set(known["outputs"])
    assert sorted(KNOWN.keys() - TEXT_ONLY - described) == []
    assert sorted(described - KNOWN.keys()) == []
    for schema in known["outputs"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
