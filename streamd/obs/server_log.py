"""The log, in nats-server's line format: `[pid] 2026/01/02 15:04:05.000000 [INF] text key=value`.

Tools wait for certain lines of it, so format and level names are part of the interface. A call is
a fixed phrase plus key=value fields. Nothing here is called per message.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TextIO

Tap = Callable[[str, str, Mapping[str, object]], None]
"""(level, text, fields) of a line."""

# What a rotation adds to the name of the file. What else begins like it (s.log.gz) is not ours.
_BACKUP = re.compile(r"\.\d{4}(\.\d\d){5}\.\d{9}", re.ASCII)


class Log:
    """Writes log lines to stderr or a file. One per process, handed to whoever logs."""

    __slots__ = (
        "_file",
        "_files_max",
        "_is_utc",
        "_limit",
        "_path",
        "_prefix",
        "_size",
        "_stream",
        "has_time",
        "is_debug",
        "is_trace",
        "tap",
    )

    def __init__(
        self,
        *,
        path: str = "",
        stream: TextIO | None = None,
        is_debug: bool = False,
        is_trace: bool = False,
        has_time: bool = True,
        is_utc: bool = False,
        size_limit: int = 0,
        files_max: int = 0,
    ) -> None:
        self._path = ""
        self._stream = stream if stream is not None else sys.stderr
        self._file: TextIO | None = None
        self._prefix = f"[{os.getpid()}] "
        self._size = 0
        self.tap: Tap | None = None  # told of each line
        self.change(
            path=path,
            is_debug=is_debug,
            is_trace=is_trace,
            has_time=has_time,
            is_utc=is_utc,
            size_limit=size_limit,
            files_max=files_max,
        )

    def change(
        self,
        *,
        path: str,
        is_debug: bool,
        is_trace: bool,
        has_time: bool,
        is_utc: bool,
        size_limit: int,
        files_max: int,
    ) -> None:
        """Log there and so from now on. Raises OSError, and then nothing changes."""
        if path != self._path:
            if path:
                self._open(path)
            else:
                self.close()
            self._path = path
        self.is_debug, self.is_trace = is_debug, is_trace
        self.has_time, self._is_utc = has_time, is_utc
        self._limit, self._files_max = size_limit, files_max

    def info(self, text: str, **fields: object) -> None:
        """A change of state that an operator acts on."""
        self._write("INF", text, fields)

    def warning(self, text: str, **fields: object) -> None:
        """Something is degraded."""
        self._write("WRN", text, fields)

    def error(self, text: str, **fields: object) -> None:
        """Something stopped."""
        self._write("ERR", text, fields)

    def fatal(self, text: str, **fields: object) -> None:
        """The reason why the process ends; the caller ends it."""
        self._write("FTL", text, fields)

    def debug(self, text: str, **fields: object) -> None:
        if self.is_debug:
            self._write("DBG", text, fields)

    def trace(self, text: str, **fields: object) -> None:
        if self.is_trace:
            self._write("TRC", text, fields)

    def reopen(self) -> None:
        """Open the log file anew, after somebody moved it away."""
        if self._path:
            self._open(self._path)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                return  # it is closed; what a full disk had no room for is lost

    def _open(self, path: str) -> None:
        # Line buffering: a line reaches the file when it is written, and a crash loses none.
        opened = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        self.close()
        self._file = opened
        self._size = os.fstat(opened.fileno()).st_size

    def _write(self, level: str, text: str, fields: Mapping[str, object]) -> None:
        self._put(level, text, fields)
        if self.tap is not None:
            self.tap(level, text, fields)
        if self._file is not None and 0 < self._limit < self._size:
            self._rotate()

    def _put(self, level: str, text: str, fields: Mapping[str, object]) -> None:
        stamp = ""
        if self.has_time:
            now = time.time()
            parts = time.gmtime(now) if self._is_utc else time.localtime(now)
            stamp = f"{time.strftime('%Y/%m/%d %H:%M:%S', parts)}.{int(now % 1 * 1e6):06d} "
        line = f"{self._prefix}{stamp}[{level}] {in_words(text, fields)}\n"
        target = self._file or self._stream
        try:
            target.write(line)
            if self._file is None:
                target.flush()
        except (OSError, ValueError):
            return  # a closed terminal or a full disk must not stop the server
        self._size += len(line)

    def _rotate(self) -> None:
        """Move the full file aside under its time, as nats-server does, and keep `files_max`.

        What fails (the directory is gone, or not ours) is told in the log and tried again when as
        much has been written as fits in one file.
        """
        now = time.time()
        stamp = time.strftime("%Y.%m.%d.%H.%M.%S", time.localtime(now))
        backup = f"{self._path}.{stamp}.{int(now % 1 * 1e9):09d}"
        try:
            with suppress(FileNotFoundError):  # somebody else has moved it
                os.replace(self._path, backup)
            self._open(self._path)
            self._remove_backups()
        except OSError as err:
            fields = {"path": self._path, "reason": err.strerror}
            self._put("ERR", "log file can't be rotated", fields)
            self._size = 0

    def _remove_backups(self) -> None:
        if self._files_max <= 0:
            return
        directory, base = os.path.split(self._path)
        backups = sorted(
            name
            for name in os.listdir(directory or ".")
            if name.startswith(base) and _BACKUP.fullmatch(name, len(base))
        )
        for name in backups[: max(0, len(backups) - self._files_max + 1)]:
            os.unlink(os.path.join(directory, name))


def in_words(text: str, fields: Mapping[str, object]) -> str:
    """Return a phrase and its fields as a line has them."""
    return text + "".join(f" {key}={_field(value)}" for key, value in fields.items())


def _field(value: object) -> str:
    """A value as text: quoted when it would not read as one word."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = str(value)
    if text and all(char.isprintable() and char not in ' "=' for char in text):
        return text
    return json.dumps(text, ensure_ascii=False)
