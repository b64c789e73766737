"""Bars and spinners of `streamctl`: at a terminal, late, one at a time; elsewhere nothing."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import click
import pytest

from streamd.ctl import nats_link
from streamd.ctl import progress_bar as progress
from streamd.ctl.name_completion import _AskedName
from streamd.ctl.nats_link import Link
from streamd.ctl.settings import Settings


class Terminal(io.StringIO):
    """Standard error at a terminal."""

    def isatty(self) -> bool:
        return True


@contextmanager
def terminal(shown_after_s: float = 0.0) -> Iterator[Terminal]:
    """Show bars at once on a terminal."""
    made = Terminal()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(made):
        patch.setattr(progress, "_SHOWN_AFTER_S", shown_after_s)
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "120")
        yield made
    assert not progress._in_use.locked()


def test_a_bar_counts_and_goes(capsys: pytest.CaptureFixture[str]) -> None:
    """Text that is printed meanwhile goes to standard output all the same."""
    with terminal() as screen:
        with progress.progress_bar("copying", is_bytes=True) as bar:
            bar.expect(2048)
            bar.advance(512)
            print("data")
            bar.advance(512)
            bar.expect(2048)
        assert list(progress.with_progress("steps", "abc")) == ["a", "b", "c"]
    assert "copying" in screen.getvalue() and "4.1 kB" in screen.getvalue()
    assert "3/3" in screen.getvalue() and "data" not in screen.getvalue()
    assert capsys.readouterr().out == "data\n"


def test_one_within_another_stays_unseen() -> None:
    """Two would write over each other; the place is free again afterwards."""
    with terminal() as screen:
        with progress.progress_bar("outer", 2) as outer:
            outer.advance()
            with progress.progress_bar("inner", 2) as inner:
                inner.advance()
            outer.advance()
        assert "outer" in screen.getvalue() and "inner" not in screen.getvalue()
        with progress.progress_bar("inner", 2) as inner:
            inner.advance()
        assert "inner" in screen.getvalue()
        with progress.no_progress(), progress.progress_bar("hidden", 2) as hidden:
            hidden.advance()
        assert "hidden" not in screen.getvalue()


def test_a_spinner_comes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = threading.Event()
    show = progress._Spinner._show

    def noted(spinner: progress._Spinner) -> None:
        show(spinner)
        shown.set()

    monkeypatch.setattr(progress._Spinner, "_show", noted)
    with terminal() as screen, progress.spinner("waiting for n1"):
        assert shown.wait(60)
    assert "waiting for n1" in screen.getvalue()


def test_the_completion_of_a_name_writes_nothing_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell has the cursor at a command line meanwhile."""

    async def ask(_context: click.Context, _link: Link) -> list[str]:
        with progress.progress_bar("reading streams", 2) as bar:
            bar.advance()
        return ["S", "T"]

    def run(_settings: Settings, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(work(None))

    monkeypatch.setattr(nats_link, "run_on_link", run)
    context = click.Context(click.Command("x"))
    with terminal() as screen:
        found = _AskedName(ask).shell_complete(context, click.Argument(["name"]), "T")
    assert [each.value for each in found] == ["T"]
    assert screen.getvalue() == ""


def test_what_is_quick_or_read_by_no_one_shows_nothing() -> None:
    with terminal(shown_after_s=3600.0) as screen:
        with progress.progress_bar("quick", 1) as bar, progress.spinner("quick"):
            bar.advance()
        assert screen.getvalue() == ""
    with terminal(), redirect_stderr(io.StringIO()) as pipe:
        with progress.progress_bar("piped", 1) as bar, progress.spinner("piped"):
            bar.advance()
        assert pipe.getvalue() == ""
