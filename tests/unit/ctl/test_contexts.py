"""Contexts and flags: which server a run is for, and as whom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamd.ctl import app, context_files
from streamd.ctl.failures import CtlError

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory of settings, and no variable that names a server."""
    for name in ("URL", "CONTEXT", "USER", "PASSWORD", "CREDS", "NKEY", "TIMEOUT"):
        monkeypatch.delenv(f"NATS_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def shown(capsys: Captured, *words: str) -> dict[str, str]:
    """The fields of a context as `context show` prints them."""
    assert app.main(["context", "show", *words, "--output", "json"]) == 0
    found: dict[str, str] = json.loads(capsys.readouterr().out)["fields"]
    return found


def test_a_context_is_saved_privately_selected_and_removed(home: Path, capsys: Captured) -> None:
    """Its file is natscli's kind; only its owner can read it; no secret is shown."""
    words = ["--server", "nats://a:1", "--user", "u", "--password", "secret"]
    assert app.main(["context", "save", "one", *words, "--select"]) == 0
    path = home / "streamctl" / "context" / "one.json"
    assert path.stat().st_mode & 0o077 == 0
    assert json.loads(path.read_text())["password"] == "secret"
    capsys.readouterr()
    assert shown(capsys) == {"url": "nats://a:1", "user": "u", "password": "(set)"}
    assert app.main(["context", "delete", "one"]) == 0
    assert context_files.selected() == ""
    assert app.main(["context", "show"]) == 2


def test_contexts_of_natscli_are_read(home: Path, capsys: Captured) -> None:
    """And the one it has selected is in use, until one is selected here."""
    directory = home / "nats" / "context"
    directory.mkdir(parents=True)
    fields = {"url": "nats://b:2", "token": "t", "nsc": "", "color_scheme": "blue"}
    (directory / "theirs.json").write_text(json.dumps(fields))
    (home / "nats" / "context.txt").write_text("theirs")
    assert shown(capsys) == {"url": "nats://b:2", "token": "(set)"}
    assert app.main(["context", "delete", "theirs"]) == 2
    assert "is natscli's" in capsys.readouterr().err
    app.main(["context", "save", "ours", "--server", "nats://c:3", "--select"])
    capsys.readouterr()
    assert shown(capsys)["url"] == "nats://c:3"


def test_a_context_that_needs_more_than_we_have_is_refused(home: Path) -> None:
    """By the field's name, instead of a login that fails."""
    directory = home / "nats" / "context"
    directory.mkdir(parents=True)
    (directory / "x.json").write_text(json.dumps({"nsc": "nsc://a/b/c"}))
    with pytest.raises(CtlError, match="'nsc' is not served"):
        context_files.load("x")
    (directory / "y.json").write_text("[]")
    with pytest.raises(CtlError, match="holds no JSON object"):
        context_files.load("y")
    with pytest.raises(CtlError, match="there are x, y"):
        context_files.load("z")


def test_a_name_that_leaves_the_directory_is_refused(capsys: Captured) -> None:
    assert app.main(["context", "save", "../x"]) == 2
    assert "is no name of a context" in capsys.readouterr().err


def test_a_flag_wins_over_a_variable_and_that_over_the_context(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and behind the command; a login of the command line replaces the context's whole."""
    app.main(["context", "save", "base", "-s", "nats://base:1", "--creds", "/c", "--select"])
    monkeypatch.setenv("NATS_URL", "nats://variable:2")
    app.main(["context", "save", "two"])
    app.main(["-s", "nats://three:3", "context", "save", "three"])
    app.main(["-s", "nats://x:9", "context", "save", "four", "-s", "nats://four:4", "--user", "u"])
    capsys.readouterr()
    assert shown(capsys, "two") == {"url": "nats://variable:2", "creds": "/c"}
    assert shown(capsys, "three")["url"] == "nats://three:3"
    assert shown(capsys, "four") == {"url": "nats://four:4", "user": "u"}


@pytest.mark.parametrize("given", ["0", "soon", "-1s"])
def test_a_timeout_that_is_none_is_refused(given: str, capsys: Captured) -> None:
    assert app.main(["--timeout", given, "stream", "list"]) == 2
    assert given in capsys.readouterr().err
