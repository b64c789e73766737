"""Keys of encrypted data directories, for commands that read files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from streamd.ctl.failures import unusable

F = TypeVar("F", bound=Callable[..., Any])
_KEY_BYTES_MAX: Final = 64 * 1024


def _use(context: click.Context, _: click.Parameter, paths: tuple[Path, ...]) -> None:
    """Read encrypted directories with the keys in these files until the command ends."""
    if not paths:
        return
    from streamd.offline.read_only_disk import use_keys

    use_keys([_key_in(path) for path in paths])
    context.call_on_close(lambda: use_keys(()))


def _key_in(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            key = file.read(_KEY_BYTES_MAX + 1).strip()
    except (OSError, ValueError) as err:
        raise unusable(f"--key-file {path}: {err}") from err
    if not key or len(key) > _KEY_BYTES_MAX:
        raise unusable(f"--key-file {path}: must hold a key of 1 to {_KEY_BYTES_MAX} characters")
    return key


def key_option(work: F) -> F:
    """Give a command the flag `--key-file`."""
    return click.option(
        "--key-file",
        type=click.Path(path_type=Path),
        multiple=True,
        expose_value=False,
        callback=_use,
        help="File with the key of an encrypted directory; may be repeated, each store takes the "
        "one that fits  [default: the variable STREAMD_KEY].",
    )(work)
