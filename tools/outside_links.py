"""Links of docs/ to files outside of it, for mkdocs: they become paths in the repository."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")


def on_page_markdown(
    markdown: str, page: SimpleNamespace, config: SimpleNamespace, **_: object
) -> str:
    """Return the page with such links as text; a file that is not there is an error."""
    here = (Path(config.docs_dir) / page.file.src_path).parent

    def put(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        if target.is_relative_to(Path(config.docs_dir).resolve()):
            return link[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_path}: no file {link[2]}")
        path = target.relative_to(ROOT).as_posix()
        return f"`{path}`" if link[1].strip("`") == path else f"{link[1]} (`{path}`)"

    return _LINK.sub(put, markdown)
