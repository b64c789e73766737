"""Facts that several replicas of a stream prove together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streamd.errors import CorruptionError, StreamdError
from streamd.offline.engine import Membership, SnapshotFile
from streamd.offline.log_reader import LogReader
from streamd.offline.read_only_disk import ReadOnlyDisk
from streamd.offline.store_dirs import StoreBusy, StoreDir, StreamMissing, find_stream
from streamd.offline.stream_view import known_commit, members_of
from streamd.types import Index, Uid


class Survey(NamedTuple):
    """Committed index and last entries of a stream in several directories."""

    committed: Index  # what they together prove to be committed
    lasts: dict[str, Index]  # last log index by replica; those without the stream are not here
    problems: dict[str, StreamdError]  # replicas that cannot be read at all


def survey(stores: Sequence[StoreDir], name: str) -> Survey:
    """Look at all replicas of stream `name`.

    Together they prove more than each alone: an entry of the newest term there is, held with the
    same history by a majority of the group's members, is committed. Raises StreamMissing if none
    has the stream, and a replica's CorruptionError or StoreBusy if no other can be read.
    """
    lasts: dict[str, Index] = {}
    problems: dict[str, StreamdError] = {}
    missing: list[StreamMissing] = []
    held: list[tuple[LogReader, Uid]] = []
    proven = term = quorum = 0
    try:
        for store in stores:
            try:
                seen = store.read(lambda store=store: _look(store, name))  # type: ignore[misc]
            except StreamMissing as err:
                missing.append(err)
                continue
            except (CorruptionError, StoreBusy) as err:
                problems[store.server_name] = err
                continue
            held.append((seen.log, seen.uid))
            lasts[store.server_name] = seen.last
            proven = max(proven, seen.proven)
            term = max(term, seen.log.current_term(seen.uid))
            quorum = max(quorum, seen.quorum)
        if not lasts:
            if problems:
                raise next(iter(problems.values()))
            raise StreamMissing("; ".join(map(str, missing)))
        ranked = sorted((log.last_index(uid) for log, uid in held), reverse=True)
        if len(ranked) >= quorum and ranked[quorum - 1] > proven:
            index = ranked[quorum - 1]
            marks = [log.mark_at(uid, index) for log, uid in held if log.last_index(uid) >= index]
            newest = [mark for mark in marks if mark is not None and mark[0] == term]
            if any(newest.count(mark) >= quorum for mark in newest):
                proven = index
        return Survey(proven, lasts, problems)
    finally:
        for log, _ in held:
            log.close()


class _Look(NamedTuple):
    """A replica in a survey."""

    log: LogReader
    uid: Uid
    last: Index
    proven: Index
    quorum: int


def _quorum(members: Membership) -> int:
    """So many of a group's members hold a majority of its voters, whichever they are."""
    if members.is_joint:
        return len(members.members())
    return len(members.learners) + len(members.voters) // 2 + 1


def _look(store: StoreDir, name: str) -> _Look:
    log = store.open_log()
    try:
        files = find_stream(store, name, log)
        snapshot = SnapshotFile.load(
            ReadOnlyDisk(), str(files.directory), "stream", group=files.uid
        )
        index = snapshot.index if snapshot is not None else 0
        return _Look(
            log,
            files.uid,
            max(index, log.last_index(files.uid)),
            max(index, known_commit(store, log, files, snapshot)),
            _quorum(members_of(files, log, snapshot)),
        )
    except BaseException:
        log.close()
        raise
