"""Files of the dashboard: small, of nobody else, and never markup made of a name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import streamd

STATIC = Path(streamd.__file__).parent / "net" / "dashboard" / "static"
FILES = sorted(STATIC.iterdir())
BYTES_MAX = 150_000
_SVG = "http://www.w3.org/2000/svg"


def test_all_files_together_are_small() -> None:
    """A page that is opened over a telephone's link while something is wrong."""
    assert sum(path.stat().st_size for path in FILES) < BYTES_MAX


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    """No address of another host is in any file, and each file that one names is there."""
    text = path.read_text(encoding="utf-8").replace(_SVG, "")
    assert not re.findall(r"https?://|@import|\burl\(['\"]?[\w/]*[:/]", text)
    named = re.findall(r"from \"\./([^\"]+)\"|\"static/([\w.]+)\"", text)
    for module, other in named:
        assert (STATIC / (module or other)).is_file(), module or other


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".js"], ids=lambda p: p.name)
def test_scripts_make_no_markup_of_text(path: Path) -> None:
    """Text becomes text nodes; nothing is evaluated; no style is set as text, which the content
    security policy would refuse."""
    text = path.read_text(encoding="utf-8")
    banned = (
        r"\.(inner|outer)HTML|insertAdjacentHTML|document\.write|DOMParser|setHTML|srcdoc"
        r"|\beval\(|new Function|\bstyle:|\"style\"|createContextualFragment"
    )
    assert not re.findall(banned, text)


def test_the_page_has_nothing_inline() -> None:
    """As the content security policy demands: scripts and styles are files."""
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", text)
