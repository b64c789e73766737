"""File operations of an export's target directory: this machine's files, or any Hadoop file system.

Names are relative to the directory, with "/". A local write or rename is durable when the call
returns; what a Hadoop file system promises is its own affair (HDFS: renames are atomic).
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DirectoryBusy(Exception):
    """Another export works in this directory."""


class Files(Protocol):
    """File operations that a ledger needs."""

    url: str  # what Spark is given

    def read(self, name: str) -> bytes | None: ...
    def create(self, name: str, content: bytes) -> None:
        """Make the file, whole or not at all; FileExistsError if it is there."""

    def sizes(self, name: str) -> dict[str, int]:
        """Bytes of every file below directory `name`, by name; {} if there is no such directory."""

    def names(self, name: str) -> list[str]:
        """Return the names in a directory, sorted; [] if there is none."""

    def sync(self, names: list[str]) -> None: ...
    def rename(self, source: str, target: str) -> None:
        """Atomic; makes the directory of `target`, which is a name never used before."""

    def remove(self, name: str) -> None:
        """A file or a whole directory; nothing there is fine."""

    def lock(self) -> Any:
        """A context in which this process alone writes; DirectoryBusy."""


def open_files(target: str, spark: SparkSession) -> Files:
    """The files below `target`: a path or file: URL, else a URL that Hadoop knows."""
    parts = urlsplit(target)
    if parts.scheme in ("", "file"):
        return LocalFiles(Path(unquote(parts.path) if parts.scheme else target).absolute())
    return HadoopFiles(target.rstrip("/"), spark)


class LocalFiles:
    """A directory of this machine, or one that all machines mount."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"file://{root}"  # as Hadoop has it: nothing is escaped

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, content: bytes) -> None:
        path = self.root / name
        self._make_directory(path.parent)
        partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, path)  # unlike a rename it fails where something is
        finally:
            partial.unlink()
        _sync_directory(path.parent)

    def sizes(self, name: str) -> dict[str, int]:
        top = self.root / name
        found = {}
        for directory, _, files in os.walk(top):
            for file in files:
                path = Path(directory, file)
                found[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return found

    def names(self, name: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / name))
        except FileNotFoundError:
            return []

    def sync(self, names: list[str]) -> None:
        directories = set()
        for name in names:
            path = self.root / name
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            directories.add(path.parent)
        for directory in directories:
            _sync_directory(directory)

    def rename(self, source: str, target: str) -> None:
        final = self.root / target
        self._make_directory(final.parent)
        (self.root / source).rename(final)
        _sync_directory(final.parent)

    def remove(self, name: str) -> None:
        path = self.root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                _sync_directory(path.parent)  # a replaced file must not come back

    @contextmanager
    def lock(self) -> Iterator[None]:
        path = self.root / "_streamd_ledger" / ".lock"
        self._make_directory(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a killed holder lets go
            except BlockingIOError as err:
                raise DirectoryBusy(
                    f"{self.root}: another export is writing to this directory; wait until it "
                    "ends, or stop it"
                ) from err
            yield
        finally:
            os.close(descriptor)

    def _make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self._make_directory(path.parent)
        path.mkdir(exist_ok=True)
        _sync_directory(path.parent)


class HadoopFiles:
    """A directory of HDFS, S3A or whatever else the JVM of the session can open."""

    def __init__(self, url: str, spark: SparkSession) -> None:
        self.url = url
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise ValueError(
                f"{url}: only paths can be exported to through Spark Connect; "
                "run this job by spark-submit for other file systems"
            )
        context: Any = spark.sparkContext
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        root = self._path(url)
        self._fs: Any = root.getFileSystem(context._jsc.hadoopConfiguration())
        self._io: Any = jvm.org.apache.hadoop.io.IOUtils
        self._bytes: Any = jvm.java.io.ByteArrayOutputStream
        self._root = str(self._fs.makeQualified(root).toString()).rstrip("/")

    def read(self, name: str) -> bytes | None:
        path = self._at(name)
        if not self._fs.exists(path):
            return None
        taken = self._bytes()
        self._io.copyBytes(self._fs.open(path), taken, 65536, True)
        return bytes(taken.toByteArray())

    def create(self, name: str, content: bytes) -> None:
        partial = self._at(f"{name}._tmp")
        file = self._fs.create(partial, True)
        file.write(bytearray(content))
        file.close()
        if self._fs.exists(self._at(name)) or not self._fs.rename(partial, self._at(name)):
            self._fs.delete(partial, False)
            raise FileExistsError(name)

    def sizes(self, name: str) -> dict[str, int]:
        if not self._fs.exists(self._at(name)):
            return {}
        found = {}
        files = self._fs.listFiles(self._at(name), True)
        while files.hasNext():
            each = files.next()
            found[self._name(each.getPath())] = int(each.getLen())
        return found

    def names(self, name: str) -> list[str]:
        if not self._fs.exists(self._at(name)):
            return []
        return sorted(str(each.getPath().getName()) for each in self._fs.listStatus(self._at(name)))

    def sync(self, names: list[str]) -> None:
        """A closed file is as durable as the file system makes it."""

    def rename(self, source: str, target: str) -> None:
        final = self._at(target)
        self._fs.mkdirs(final.getParent())
        if self._fs.exists(final) or not self._fs.rename(self._at(source), final):
            raise OSError(f"{self.url}: {source} can't be renamed to {target}")

    def remove(self, name: str) -> None:
        self._fs.delete(self._at(name), True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """No lock: of two exports at once the second to commit a number is refused."""
        yield

    def _at(self, name: str) -> Any:
        return self._path(f"{self._root}/{name}" if name else self._root)

    def _name(self, path: Any) -> str:
        return str(path.toString()).removeprefix(f"{self._root}/")


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
