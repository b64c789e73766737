"""Files of log entries that a leader did not have, set aside before the log released them.

Lines of JSON, for people and for `streamctl discarded`.

The first line names the group and log of the entries (`TailFacts`). Then comes a line for each
message, with what a client published, and one for each entry that stored none. The last line says
how many there are; a file has its name only once it is whole and synced.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from crc32c import crc32c

from streamd.errors import CorruptionError
from streamd.store.disk import Disk, disk_error, opened
from streamd.types import Index, NodeId, Seq, Term, Uid

FORMAT = "streamd-tail/1"
SUFFIX = ".jsonl"
_TMP = ".tmp"
_INFIX = "-tail-"
_END_BYTES = 4096  # of a file, in which its last line is


COMMITTED = "committed"  # some of the entries were: acknowledged, if anybody waited for that
LED = "led"  # the node led when it wrote them: it may have acknowledged some
OPEN = "open"  # not known here


class TailFacts(NamedTuple):
    """First line of a file: the group and the entries that were set aside."""

    stream: str  # empty: the meta group
    group: Uid
    node: NodeId
    leader: NodeId  # whose log took the place of the entries
    first_index: Index
    last_index: Index
    last_term: Term
    committed_to: Index  # known to be committed up to here; 0: not known
    applied_to: Index  # messages of later entries have the sequence they would have been given
    proof: str  # one of the three below
    is_exact: bool  # False: the first entries may be in the leader's log as well
    set_aside: str  # when, RFC 3339


class Tail(NamedTuple):
    """Entry of a listing of `trash/`: a file without its records."""

    path: str
    facts: TailFacts
    messages: int
    first_seq: Seq  # 0: none is known
    last_seq: Seq


def file_name(uid: Uid, first: Index, last: Index, chain: int) -> str:
    """Return the file name for entries: always the same, so that they are set aside once."""
    return f"{uid}{_INFIX}{first}-{last}-{chain:08x}{SUFFIX}"


def is_tail(name: str) -> bool:
    """Return True for the name of a complete file of this kind."""
    return _INFIX in name and name.endswith(SUFFIX)


def text_fields(**fields: bytes) -> dict[str, str]:
    """Return bytes as JSON fields: text as it is, all else in base64 under a name that says so."""
    found: dict[str, str] = {}
    for name, value in fields.items():
        try:
            found[name] = value.decode()
        except UnicodeDecodeError:
            found[f"{name}_base64"] = base64.b64encode(value).decode()
    return found


def bytes_field(record: Mapping[str, object], name: str) -> bytes:
    """Return the inverse of `text_fields`, of one field; b"" if it is missing."""
    coded = record.get(f"{name}_base64")
    if coded is not None:
        return base64.b64decode(str(coded))
    return str(record.get(name, "")).encode()


class TailWriter:
    """Writes one file, piece by piece. Every method may raise OSError; then nothing has the name.

    Not for the event loop.
    """

    def __init__(self, disk: Disk, directory: str, name: str, facts: TailFacts) -> None:
        self._disk = disk
        self._directory = directory
        self._name = name
        self._facts = facts
        self._at = 0
        self._crc = 0
        self._messages = 0
        self._first_seq = self._last_seq = 0

    @property
    def path(self) -> str:
        return os.path.join(self._directory, self._name)

    def begin(self) -> bool:
        """Write the first line; return False if the file exists, complete, from an earlier time."""
        if self._disk.exists(self.path):
            return False
        tmp = self.path + _TMP
        if self._disk.exists(tmp):
            self._disk.unlink(tmp)  # cut off by a crash
        self._put([{"format": FORMAT, **self._facts._asdict()}], is_new=True)
        return True

    def add(self, records: Iterable[Mapping[str, object]]) -> None:
        """Write more lines."""
        lines = list(records)
        for record in lines:
            if "subject" in record or "subject_base64" in record:
                self._messages += 1
                seq = record.get("seq", 0)
                if isinstance(seq, int) and seq:
                    self._first_seq = self._first_seq or seq
                    self._last_seq = seq
        self._put(lines)

    def finish(self) -> Tail:
        """Write the last line, and give the file its name, durably."""
        disk, path = self._disk, self.path
        counts = {
            "messages": self._messages,
            "first_seq": self._first_seq,
            "last_seq": self._last_seq,
            "crc": self._crc,
        }
        self._put([{"end": counts}])
        with opened(disk, path + _TMP) as fd:
            disk.fdatasync(fd)
        disk.crash_point("TAIL_SYNCED")
        disk.replace(path + _TMP, path)
        # On disk before the log releases the entries.
        disk.sync_dir(self._directory)
        disk.crash_point("TAIL_SET_ASIDE")
        return Tail(path, self._facts, self._messages, self._first_seq, self._last_seq)

    def _put(self, lines: Sequence[Mapping[str, object]], *, is_new: bool = False) -> None:
        blob = b"".join(
            json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
            for line in lines
        )
        try:
            with opened(self._disk, self.path + _TMP, create=is_new) as fd:
                self._disk.pwrite(fd, blob, self._at)
        except OSError as err:
            raise disk_error("setting entries aside", self.path, err) from err
        self._at += len(blob)
        self._crc = crc32c(blob, self._crc)


def read_tail(disk: Disk, path: str) -> Tail:
    """Read the first line of a file. Raises CorruptionError, OSError."""
    with opened(disk, path) as fd:
        size = disk.size(fd)
        head = disk.pread(fd, min(size, _END_BYTES), 0).partition(b"\n")[0]
        end = disk.pread(fd, min(size, _END_BYTES), max(0, size - _END_BYTES))
    try:
        facts = parse_facts(json.loads(head))
        counts = json.loads(end.rstrip(b"\n").rpartition(b"\n")[2])["end"]
        return Tail(path, facts, counts["messages"], counts["first_seq"], counts["last_seq"])
    except (ValueError, KeyError, TypeError) as err:
        raise CorruptionError(f"{path}: not a readable file of discarded entries: {err!r}") from err


def parse_facts(line: dict[str, Any]) -> TailFacts:
    """Decode the first line. Raises ValueError, TypeError."""
    fields = dict(line)
    if fields.pop("format", "") != FORMAT:
        raise ValueError(f"format {line.get('format')!r} is not {FORMAT!r}")
    return TailFacts(**fields)


def tails_in(disk: Disk, directory: str) -> list[Tail]:
    """List the files in `directory`. Unreadable ones are left out."""
    found = []
    for name in sorted(filter(is_tail, disk.listdir(directory))):
        try:
            found.append(read_tail(disk, os.path.join(directory, name)))
        except (CorruptionError, OSError):
            continue
    return found
