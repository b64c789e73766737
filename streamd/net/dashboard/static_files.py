"""`StaticFiles`: the page, its modules and styles, as they are in the package."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Final, NamedTuple

_TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
INDEX: Final = "index.html"


class StaticFile(NamedTuple):
    """A file, and what a browser is told of it."""

    body: bytes
    content_type: str
    etag: str


class StaticFiles:
    """Files by name, read once."""

    def __init__(self) -> None:
        self._files: dict[str, StaticFile] = {}
        directory = resources.files("streamd.net.dashboard") / "static"
        for entry in directory.iterdir() if directory.is_dir() else ():
            suffix = entry.name[entry.name.rfind(".") :]
            if suffix in _TYPES and entry.is_file():
                body = entry.read_bytes()
                etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
                self._files[entry.name] = StaticFile(body, _TYPES[suffix], etag)

    def find(self, name: str) -> StaticFile | None:
        """Return the file of that name; None: there is none."""
        return self._files.get(name)
