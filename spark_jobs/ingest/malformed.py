"""Records that do not parse: how many, where, and where they are kept: `Malformed`."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from spark_jobs.client.options import ConnectOptions
from spark_jobs.client.wire import Wire, with_retries
from spark_jobs.jobs.command import JobError
from spark_jobs.sink.refused_rows import letter_subject

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN: Final = 10
_SHOWN_CHARACTERS: Final = 120
_LETTER_HEADER_BYTES: Final = 4096
_DIRECTORY: Final = "dir:"


def directory_of(dlq: str | None) -> str:
    """The directory that `--dlq` names; "" if it names a subject or a stream."""
    text = dlq or ""
    if text.startswith(_DIRECTORY):
        return text.removeprefix(_DIRECTORY)
    return text if text.startswith(("/", "./", "../")) or "://" in text else ""


class Record(NamedTuple):
    """A malformed record."""

    file: str
    line: int
    text: bytes
    reason: str

    def __str__(self) -> str:
        text = self.text.decode("utf-8", "backslashreplace")
        shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
        line = f":{self.line}" if self.line else ""
        return f"{self.file}{line}: {self.reason}: {shown}"


class Malformed:
    """The malformed records of one input, counted once; `close` lets go of them."""

    def __init__(self, frame: DataFrame | None) -> None:
        self.count = 0
        self.sample: list[Record] = []
        self._frame = None
        if frame is None:
            return
        self._frame = frame.persist()
        self.count = self._frame.count()
        if self.count:
            first = self._frame.orderBy("file", "line").limit(SHOWN).collect()
            self.sample = [
                Record(
                    shown_path(row["file"]), row["line"], bytes(row["text"] or b""), row["reason"]
                )
                for row in first
            ]

    def close(self) -> None:
        if self._frame is not None:
            self._frame.unpersist()

    def tell(self) -> None:
        """Name the first ones on stderr."""
        for each in self.sample:
            print(f"  malformed: {each}", file=sys.stderr)
        if self.count > len(self.sample):
            print(f"  ... and {self.count - len(self.sample):,} more", file=sys.stderr)

    def keep(self, dlq: str, options: Mapping[str, str], *, run: str) -> str:
        """Write all of them to where `--dlq` says; return that place in words.

        In a directory, JSON lines in a directory of its own, named `run`, which replaces what an
        earlier run of that name wrote. In a stream, a message each, once inside the duplicate
        window. Raises JobError, OptionError, or what Spark raises.
        """
        assert self._frame is not None
        directory = directory_of(dlq)
        if directory:
            return self._write(f"{directory.rstrip('/')}/malformed-{run}")
        return self._publish(dlq, options)

    def _write(self, path: str) -> str:
        from pyspark.sql import functions as f

        assert self._frame is not None
        is_text = f.is_valid_utf8(f.col("text").cast("string"))
        made = self._frame.orderBy("file", "line").select(
            "file",
            "line",
            "reason",
            f.when(is_text, f.col("text").cast("string")).alias("text"),
            f.when(~is_text, f.base64("text")).alias("base64"),
        )
        made.write.mode("overwrite").json(path)
        return path

    def _publish(self, dlq: str, options: Mapping[str, str]) -> str:
        from pyspark.sql import functions as f

        assert self._frame is not None
        connection = {name: value for name, value in options.items() if name not in _OF_THE_WRITE}
        connect = ConnectOptions.parse(connection)

        def look(wire: Wire) -> tuple[str, str, int]:
            return (*letter_subject(wire, dlq), int(wire.info.get("max_payload") or 0))

        subject, stream, max_payload = with_retries(connect, look)
        room = max(0, (max_payload or 1 << 20) - _LETTER_HEADER_BYTES)
        size = f.length("text")
        line = f.col("line").cast("string")
        none = f.create_map().cast("map<string,string>")
        cut = f.when(size > room, f.create_map(f.lit("Streamd-Cut-From"), size.cast("string")))
        letters = self._frame.select(
            f.lit(subject).alias("subject"),
            f.expr(f"substring(text, 1, {room})").alias("payload"),
            f.map_concat(
                f.create_map(
                    f.lit("Streamd-Reason"),
                    f.concat(f.lit("malformed: "), f.regexp_replace("reason", r"\s+", " ")),
                    f.lit("Streamd-Stream"),
                    f.lit(options["stream"]),
                    f.lit("Streamd-File"),
                    f.col("file"),
                    f.lit("Streamd-Line"),
                    line,
                ),
                f.coalesce(cut, none),
            ).alias("headers"),
            f.concat(
                f.lit("malformed:"), f.sha2(f.concat_ws("\n", "file", line, f.hex("text")), 256)
            ).alias("msg_id"),
        )
        writer = letters.write.format("streamd").mode("append").options(**connection)
        writer.options(stream=stream, delivery="at-least-once").save()
        return f"{subject} (stream {stream})"


_OF_THE_WRITE: Final = (
    "stream",
    "delivery",
    "jobId",
    "planId",
    "dlq",
    "rowIds",
    "rate",
    "prepareStream",
)


def run_name(job_id: str | None, paths: list[str], began: str) -> str:
    """Return the name of this run's malformed records: the same for the same `--job-id`."""
    if job_id:
        return job_id
    return f"{began}-{hashlib.blake2b(repr(paths).encode(), digest_size=4).hexdigest()}"


def shown_path(url: str) -> str:
    """A local file's path, else the URL."""
    if url.startswith("file:"):
        return unquote("/" + url.removeprefix("file:").lstrip("/"))
    return url


def check_directory(directory: str) -> None:
    """Raise JobError if the dead letters would go into no directory."""
    from pathlib import Path

    path = Path(directory)
    if "://" not in directory and path.exists() and not path.is_dir():
        raise JobError(f"--dlq {directory}: that is a file, not a directory")
