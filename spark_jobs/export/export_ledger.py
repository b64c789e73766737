"""The ledger of an export: which files of a directory hold which rows of a stream.

One record per commit, `_streamd_ledger/<n>.json`, numbered from 1 without gaps. The record is the
commit; files get their visible names after it.

    1. Spark writes to `_streamd_staging/<n>/`      a crash here: the staging is removed
    2. files are synced, record <n> is created      a crash after this: the commit counts
    3. files it replaces are removed,               a crash here: the next run does the rest
       its own are renamed into place
    4. the staging is removed

Spark and Arrow skip names that begin with "_", so a reader of the directory sees each row at most
once at any moment, and after a run (or the next one, if it was killed in step 3) exactly those of
the ledger. Files that no record names are never touched, nor counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from spark_jobs.export.files import Files

LEDGER: Final = "_streamd_ledger"
STAGING: Final = "_streamd_staging"
VERSION: Final = 1
EXPORT: Final = "export"
COMPACT: Final = "compact"
MASK64: Final = (1 << 64) - 1


class LedgerError(Exception):
    """The directory is not what its ledger says, or holds something else. Names file and rule."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file. `digest` is the sum modulo 2^64 of its rows' hashes, as 16 hex digits."""

    path: str
    rows: int
    bytes: int
    min_seq: int
    max_seq: int
    digest: str


@dataclass(frozen=True, slots=True)
class Source:
    """The stream that a directory is an export of, its beginning and partitions; never changed."""

    stream: str
    created: str  # tells a recreated stream from the one that was exported before
    subjects: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    first_seq: int = 1  # the export begins here


@dataclass(frozen=True, slots=True)
class Commit:
    """A record of the ledger. An export covers seqs first_seq..last_seq; a compaction covers none
    anew."""

    number: int
    kind: str
    source: Source
    first_seq: int
    last_seq: int
    rows: int
    digest: str
    files: tuple[DataFile, ...]
    removed: tuple[str, ...] = ()
    gap: tuple[int, int] | None = None  # seqs that had left the stream before they were exported
    as_of: str = ""
    created_at: str = ""
    until_ns: int = 0  # no message that the stream held then is younger; 0: not known
    lost: tuple[tuple[int, int], ...] = ()  # seqs of messages that were stored and damaged
    v: int = VERSION

    @property
    def staging(self) -> str:
        return f"{STAGING}/{self.number:012d}"

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode() + b"\n"

    @classmethod
    def decode(cls, content: bytes, name: str) -> Commit:
        """Raises LedgerError for what is no record of this version."""
        try:
            found: dict[str, Any] = json.loads(content)
            if found["v"] != VERSION:
                raise LedgerError(f"{name}: version {found['v']}, this program reads {VERSION}")
            source = found.pop("source")
            source |= {key: tuple(source[key]) for key in ("subjects", "partition_by")}
            found |= {
                "source": Source(**source),
                "files": tuple(DataFile(**each) for each in found["files"]),
                "removed": tuple(found["removed"]),
                "gap": tuple(found["gap"]) if found["gap"] else None,
                "lost": tuple(map(tuple, found.get("lost", ()))),
            }
            return cls(**found)
        except (ValueError, KeyError, TypeError) as err:
            raise LedgerError(f"{name} is not a record of an export ledger: {err!r}") from err


@dataclass(slots=True)
class Ledger:
    """The commits of one directory. Only the holder of `files.lock()` may call what writes."""

    files: Files
    commits: list[Commit] = field(default_factory=list)
    live: dict[str, DataFile] = field(default_factory=dict)

    @classmethod
    def open(cls, files: Files) -> Ledger:
        """Read every record; writes nothing. Raises LedgerError."""
        made = cls(files)
        numbered = [name for name in files.names(LEDGER) if name.endswith(".json")]
        for position, name in enumerate((each for each in numbered if each[0] != "."), start=1):
            if name != f"{position:012d}.json":
                raise LedgerError(
                    f"{files.url}/{LEDGER}: {position:012d}.json is missing, next there is {name}; "
                    "put it back from a backup, or export into a new directory"
                )
            content = files.read(f"{LEDGER}/{name}")
            made._add(Commit.decode(content or b"", f"{files.url}/{LEDGER}/{name}"))
        return made

    @property
    def source(self) -> Source | None:
        return self.commits[0].source if self.commits else None

    @property
    def next_number(self) -> int:
        return len(self.commits) + 1

    @property
    def last_seq(self) -> int:
        """The seq up to which the stream is exported; 0 before the first export."""
        return max((each.last_seq for each in self.commits if each.kind == EXPORT), default=0)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.live.values())

    @property
    def digest(self) -> str:
        """The digest of all rows in all live files."""
        return add_digests(each.digest for each in self.live.values())

    @property
    def lost_count(self) -> int:
        """Count the messages that could not be read when they were exported."""
        return sum(last - first + 1 for each in self.commits for first, last in each.lost)

    def recover(self) -> list[str]:
        """Finish the newest commit and remove the staging of unfinished ones; say what was done.

        Raises LedgerError if a file of the newest commit is nowhere.
        """
        done = []
        if self.commits:
            last = self.commits[-1]
            moved = self._publish(last)
            if moved:
                done.append(f"commit {last.number} was finished: {moved} files put in place")
        stray = self.files.names(STAGING)
        if stray:
            self.files.remove(STAGING)
            done.append(f"{len(stray)} unfinished writes were removed")
        for name in self.files.names(LEDGER):
            if name.endswith("tmp"):
                self.files.remove(f"{LEDGER}/{name}")
        return done

    def commit(self, commit: Commit) -> None:
        """Make `commit` count: its files are complete below `commit.staging`."""
        if commit.number != self.next_number:
            raise LedgerError(f"commit {commit.number} follows {len(self.commits)}")
        self.files.sync([f"{commit.staging}/{each.path}" for each in commit.files])
        name = f"{LEDGER}/{commit.number:012d}.json"
        try:
            self.files.create(name, commit.encode())
        except FileExistsError as err:
            raise LedgerError(
                f"{self.files.url}/{name} appeared meanwhile: another export writes to this "
                "directory; run this one again when the other has ended"
            ) from err
        self._add(commit)
        self._publish(commit)
        self.files.remove(STAGING)

    def check_files(self) -> None:
        """Raise LedgerError if a live file is missing or has another size."""
        sizes = self.files.sizes("")
        for path, each in self.live.items():
            if path not in sizes:
                raise LedgerError(f"{self.files.url}/{path} is missing: the ledger lists it")
            if sizes[path] != each.bytes:
                raise LedgerError(
                    f"{self.files.url}/{path} has {sizes[path]} bytes, the ledger says {each.bytes}"
                )

    def strays(self) -> list[str]:
        """Parquet files that a reader would see and no record names: somebody else's."""
        visible = (
            path
            for path in self.files.sizes("")
            if path.endswith(".parquet") and not any(part[0] in "_." for part in path.split("/"))
        )
        return sorted(path for path in visible if path not in self.live)

    def _add(self, commit: Commit) -> None:
        self.commits.append(commit)
        for path in commit.removed:
            self.live.pop(path, None)
        self.live.update((each.path, each) for each in commit.files)

    def _publish(self, commit: Commit) -> int:
        """Give a commit's files their names; may be done again. Returns how many were renamed."""
        for path in commit.removed:  # first: a row that is missing for a moment is not there twice
            self.files.remove(path)
        staged = self.files.sizes(commit.staging)
        moved = 0
        # In order of seq: what a reader sees in between is the beginning of the commit.
        for each in sorted(commit.files, key=lambda file: file.min_seq):
            source = f"{commit.staging}/{each.path}"
            if source in staged:
                self.files.rename(source, each.path)
                moved += 1
        if moved < len(commit.files):
            sizes = self.files.sizes("")
            for each in commit.files:
                if sizes.get(each.path) != each.bytes:
                    raise LedgerError(
                        f"{self.files.url}/{each.path} has {sizes.get(each.path, 'no')} bytes, "
                        f"commit {commit.number} says {each.bytes}; export into a new directory"
                    )
        return moved


def add_digests(digests: Iterable[str]) -> str:
    """The digest of the rows of several digests together."""
    return f"{sum(int(each, 16) for each in digests) & MASK64:016x}"


def committed_files(directory: str) -> Iterator[str]:
    """The paths of a local export's files, as the ledger has them at this moment.

    `spark.read.option("basePath", directory).parquet(*committed_files(directory))` sees whole
    commits only, also while an export publishes one.
    """
    from pathlib import Path

    from spark_jobs.export.files import LocalFiles

    files = LocalFiles(Path(directory).absolute())
    for path in Ledger.open(files).live:
        yield str(files.root / path)
