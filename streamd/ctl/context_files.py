"""Contexts: named sets of a server's address and credentials, in files.

A file is a JSON object with the fields of natscli's contexts, so that the files of either program
serve both: `streamctl` writes its own below `$XDG_CONFIG_HOME/streamctl`, and reads those of
natscli, below `$XDG_CONFIG_HOME/nats`, where it has none of that name.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from streamd.ctl.failures import CtlError, unusable

FIELDS: Final = (
    "description", "url", "user", "password", "token", "creds", "nkey", "user_jwt", "user_seed",
    "cert", "key", "ca", "tls_first", "jetstream_domain", "jetstream_api_prefix", "inbox_prefix",
)  # fmt: skip
_REFUSED: Final = ("nsc", "socks_proxy")  # another program's key store, another transport
_NAME: Final = re.compile(r"[^\s/\\.]+(?:\.[^\s/\\.]+)*")
_OWN: Final = "streamctl"
_FOREIGN: Final = "nats"


class Context(NamedTuple):
    """A context as it was read: its name, where it stands, its fields."""

    name: str
    path: Path
    fields: dict[str, str | bool]


def config_home() -> Path:
    """Return the directory below which programs of this user keep their settings."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def names() -> dict[str, Path]:
    """Return the files of all contexts by name, in order; own ones come before natscli's."""
    found: dict[str, Path] = {}
    for owner in (_FOREIGN, _OWN):
        directory = config_home() / owner / "context"
        if directory.is_dir():
            found |= {path.stem: path for path in directory.glob("*.json")}
    return dict(sorted(found.items()))


def selected() -> str:
    """Return the name of the context in use, "" if there is none."""
    for owner in (_OWN, _FOREIGN):
        try:
            name = (config_home() / owner / "context.txt").read_text(encoding="utf-8").strip()
        except OSError:
            continue
        if name:
            return name
    return ""


def load(name: str) -> Context:
    """Return the context of that name. Raises CtlError if there is none, or it can't be used."""
    path = names().get(name)
    if path is None:
        there = ", ".join(names()) or "none yet"
        raise unusable(f"no context {name!r}: there are {there}", "streamctl context list")
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise CtlError(f"context {name!r}: {path}: {err}") from err
    if not isinstance(read, dict):
        raise CtlError(f"context {name!r}: {path} holds no JSON object")
    for field in _REFUSED:
        if read.get(field):
            raise unusable(f"context {name!r}: {field!r} is not served: {path}")
    fields = {key: read[key] for key in FIELDS if read.get(key)}
    for key, value in fields.items():
        if not isinstance(value, bool if key == "tls_first" else str):
            raise CtlError(f"context {name!r}: {path}: {key!r} is {value!r}")
    return Context(name, path, fields)


def save(name: str, fields: dict[str, str | bool]) -> Path:
    """Write a context that only this user can read. Raises CtlError for a name of no file."""
    if not _NAME.fullmatch(name):
        raise unusable(f"{name!r} is no name of a context: no spaces, slashes or outer dots")
    path = config_home() / _OWN / "context" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(path, json.dumps({key: fields.get(key, "") for key in FIELDS}, indent=2) + "\n")
    return path


def select(name: str) -> None:
    """Make a context the one in use. Raises CtlError if there is none of that name."""
    load(name)
    path = config_home() / _OWN / "context.txt"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(path, name + "\n")


def delete(name: str) -> Path:
    """Remove a context of our own. Raises CtlError for one of natscli, and for none."""
    path = load(name).path
    if path.parent.parent.name != _OWN:
        raise unusable(f"context {name!r} is natscli's: remove {path} with `nats context rm`")
    path.unlink()
    chosen = config_home() / _OWN / "context.txt"
    if chosen.exists() and chosen.read_text(encoding="utf-8").strip() == name:
        chosen.unlink()
    return path


def _write(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".new")
    number = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(number, "w", encoding="utf-8") as file:
        file.write(text)
    beside.replace(path)
