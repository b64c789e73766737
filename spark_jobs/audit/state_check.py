"""Checks of a replica's state by the driver: snapshots, index.db, numbers, consumers, limits.

Nothing here reads messages; that is `block_check`, for which `tasks_of` names the blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final

from spark_jobs.audit.block_task import BlockTask
from spark_jobs.audit.discarded_entries import tail_findings
from spark_jobs.audit.findings import Finding, finding
from spark_jobs.audit.replica_files import Store, StreamFiles, View, read_index_db
from streamd.offline.engine import HEADER_BYTES, MASK64, Limits, block_name

CONSUMER_PENDING_MAX: Final = 20  # findings about one consumer's pending messages


def files_findings(files: StreamFiles) -> list[Finding]:
    """Snapshots that do not verify, a log that does not reach them, files that are not there."""
    store, asset = files.store, files.asset
    label, name = store.label, files.name
    found = [
        finding(
            "snapshot-damaged",
            replica=label,
            stream=name,
            file=fact.path,
            expected="the checksum of its bytes",
            got=fact.problem.rpartition(": ")[2],
        )
        for fact in files.bad_snapshots
    ]
    log = store.log.groups.get(asset.uid)
    if not files.is_there:
        if _should_be_there(files):
            found.append(
                finding(
                    "stream-missing",
                    replica=label,
                    stream=name,
                    file=store.directory(asset.uid),
                    expected=f"a replica of stream uid {asset.uid}",
                    got="no directory",
                )
            )
    elif files.has_gap and log is not None and not files.bad_snapshots:
        first = max(log.base, log.first - 1) + 1
        found.append(
            finding(
                "log-gap",
                replica=label,
                stream=name,
                file=store.directory(asset.uid),
                expected=f"a snapshot at log index {first - 1} or later",
                got=f"the newest one at {files.snapshot_index}",
            )
        )
    return found


def _should_be_there(files: StreamFiles) -> bool:
    """True if this node had a replica, or should have one, and the log alone can't make it."""
    log = files.store.log.groups.get(files.asset.uid)
    if log is not None:
        return files.has_gap
    peers = files.asset.peers
    place = files.store.place
    return not peers or files.store.label in peers or place.server_name in peers


def view_findings(view: View) -> list[Finding]:
    """Check the state by itself: whether it can be had, adds up, and keeps its promises."""
    if not view.is_known:
        if not view.files.is_there or (view.files.has_gap and not view.files.bad_snapshots):
            return []  # told by `files_findings`
        return [
            _about(
                view,
                "stream-unreadable",
                expected="a snapshot that verifies, or a log from the start",
                got=view.problem or f"{len(view.files.snapshots)} snapshots, none of them valid",
            )
        ]
    found: list[Finding] = []
    found += _index_findings(view)
    found += _number_findings(view)
    found += _limit_findings(view)
    found += _consumer_findings(view)
    return found


def _about(view: View, code: str, **fields: Any) -> Finding:
    fields.setdefault("file", view.files.store.directory(view.uid))
    return finding(code, replica=view.label, stream=view.name, **fields)


def _index_findings(view: View) -> list[Finding]:
    cache = read_index_db(view.files)
    if not cache.problem:
        return []
    return [
        _about(
            view,
            "index-damaged",
            file=cache.path,
            expected="the checksum of its bytes",
            got=cache.problem,
        )
    ]


def _number_findings(view: View) -> list[Finding]:
    """The digest, the counts and the delete map must add up."""
    first, last, count, _, digest = view.index_row()
    rows = view.block_rows()
    gone = sum(high - low + 1 for low, high in view.deleted())
    texts: list[tuple[str, str]] = []
    total = sum(row[7] for row in rows) & MASK64
    if total != digest:
        texts.append((f"digest {digest:016x}", f"its blocks sum up to {total:016x}"))
    live = sum(row[6] for row in rows)
    if live != count:
        texts.append((f"{count} messages", f"its blocks have {live}"))
    if count != last - first + 1 - gone:
        texts.append((f"{count} messages", f"{last - first + 1} sequences, {gone} deleted"))
    newest = view.files.snapshots[0].path if view.files.snapshots else ""
    return [
        _about(view, "state-digest", file=newest, expected=expected, got=got)
        for expected, got in texts[:1]
    ]


def _limit_findings(view: View) -> list[Finding]:
    limits = Limits(view.config)
    _, _, count, size, _ = view.index_row()
    is_updated = view.machine is None or view.machine.config_meta_index != view.uid
    found = []
    # With discard new, what was let in stays when the limits are lowered later.
    if not (limits.is_discard_new and is_updated):
        if 0 < limits.max_msgs < count:
            found.append(
                _about(
                    view,
                    "limit-exceeded",
                    expected=f"max_msgs {limits.max_msgs}",
                    got=f"{count} messages",
                )
            )
        # A delete marker is written whatever the room is.
        if 0 < limits.max_bytes < size and not limits.marker_ttl_ns:
            found.append(
                _about(
                    view,
                    "limit-exceeded",
                    expected=f"max_bytes {limits.max_bytes}",
                    got=f"{size} bytes",
                )
            )
    if limits.max_per_subject > 0 and view.machine is not None:
        rows = view.machine.index.subjects.rows
        over = [(name, row[2]) for name, row in rows.items() if row[2] > limits.max_per_subject]
        for name, held in sorted(over)[:CONSUMER_PENDING_MAX]:
            found.append(
                _about(
                    view,
                    "limit-exceeded",
                    expected=f"max_msgs_per_subject {limits.max_per_subject}",
                    got=f"{held} messages of subject {name.decode('utf-8', 'replace')}",
                )
            )
    return found


class ConsumerFacts:
    """The numbers of one consumer, from a machine or from a snapshot's state."""

    def __init__(self, row: list[Any]) -> None:
        """`row` is `Consumer.to_state()`."""
        self.name: str = row[2]
        self.delivered_cseq, self.delivered_sseq, self.floor_cseq, self.floor_sseq = row[5:9]
        self.pending: list[int] = list(row[11][::3])
        self.state = row


def consumers_of(view: View) -> list[ConsumerFacts]:
    """The consumers of a view, by name."""
    rows: Iterable[list[Any]] = ()
    if view.machine is not None:
        rows = [consumer.to_state() for consumer in view.machine.consumers.values()]
    elif view.state is not None:
        rows = view.state.consumers
    return sorted((ConsumerFacts(row) for row in rows), key=lambda facts: facts.name)


def _consumer_findings(view: View) -> list[Finding]:
    last_seq = view.index_row()[1]
    found: list[Finding] = []
    for each in consumers_of(view):
        who = f"consumer {each.name}: "
        # A consumer that was given nothing yet may begin beyond the end: its creator said so.
        if each.delivered_cseq and each.delivered_sseq > last_seq:
            found.append(
                _about(
                    view,
                    "consumer-ahead",
                    seq=last_seq + 1,
                    seq_hi=each.delivered_sseq,
                    expected=f"{who}delivered up to {last_seq} at most, the stream's last sequence",
                    got=f"delivered up to {each.delivered_sseq}",
                )
            )
        if each.floor_sseq > each.delivered_sseq or each.floor_cseq > each.delivered_cseq:
            found.append(
                _about(
                    view,
                    "consumer-floor",
                    expected=f"{who}ack floor {each.delivered_sseq} at most, as delivered",
                    got=f"ack floor {each.floor_sseq} (consumer sequence {each.floor_cseq} of "
                    f"{each.delivered_cseq})",
                )
            )
            continue
        wrong = [seq for seq in each.pending if not each.floor_sseq < seq <= each.delivered_sseq]
        for seq in wrong[:CONSUMER_PENDING_MAX]:
            found.append(
                _about(
                    view,
                    "consumer-pending",
                    seq=seq,
                    expected=f"{who}pending between {each.floor_sseq} and {each.delivered_sseq}",
                    got=f"sequence {seq} waits for its ack",
                )
            )
    return found


def store_findings(store: Store) -> list[Finding]:
    """Snapshots of the meta group, which knows the streams."""
    found = [
        finding(
            "snapshot-damaged",
            replica=store.label,
            file=fact.path,
            expected="the checksum of its bytes",
            got=fact.problem.rpartition(": ")[2],
        )
        for fact in store.meta_snapshots
        if fact.problem
    ]
    if store.identity_problem:
        found.append(
            finding(
                "identity-damaged",
                replica=store.label,
                file=f"{store.root}/node.json",
                expected="the identity of the node",
                got=store.identity_problem.partition(": unreadable: ")[2],
            )
        )
    if store.problem:
        found.append(
            finding(
                "stream-unreadable",
                replica=store.label,
                file=store.root,
                expected="the list of streams",
                got=f"{store.problem}; what has a snapshot of its own is audited all the same",
            )
        )
    return found + tail_findings(store.root, store.label)


# --- which blocks to read ---------------------------------------------------------------------


def tasks_of(view: View) -> list[BlockTask]:
    """Return a task per block that the state names, or per block file if there is no state."""
    if not view.is_known:
        return _raw_tasks(view)
    first_seq = view.index_row()[0]
    rows = [row for row in view.block_rows() if row[5] or row[8] > HEADER_BYTES]
    gone: list[tuple[int, int]] = []
    if rows and rows[0][1] and rows[0][1] < first_seq:
        gone.append((rows[0][1], first_seq - 1))
    gone += view.deleted()
    highs = [high for _, high in gone]
    tasks = []
    for row in rows:
        block_no, low, high, _, _, count, live, digest, end_offset, is_sealed = row
        at = bisect_right(highs, low - 1)
        dead: list[tuple[int, int]] = []
        while at < len(gone) and gone[at][0] <= high:
            dead.append((max(gone[at][0], low), min(gone[at][1], high)))
            at += 1
        tail_at, tail = view.tails.get(block_no, (0, b""))
        tasks.append(
            BlockTask(
                replica=view.label,
                stream=view.name,
                uid=view.uid,
                path=_path(view, block_no),
                block_no=block_no,
                first_seq=low,
                last_seq=high,
                message_count=count,
                live=live,
                digest=digest,
                end_offset=end_offset,
                is_sealed=bool(is_sealed),
                dead=tuple(dead),
                durable_end=view.durable_ends.get(block_no, 0),
                tail=tail,
                tail_at=tail_at,
            )
        )
    return tasks


def _path(view: View, block_no: int) -> str:
    return f"{view.files.store.directory(view.uid)}/{block_name(block_no)}"


def _raw_tasks(view: View) -> list[BlockTask]:
    """The block files as they are: without a state only their bytes can be judged."""
    return [
        BlockTask(
            replica=view.label,
            stream=view.name,
            uid=view.uid,
            path=_path(view, block_no),
            block_no=block_no,
            first_seq=0,
            last_seq=0,
            message_count=0,
            live=0,
            digest=0,
            end_offset=0,
            is_sealed=False,
            dead=(),
            durable_end=0,
            is_judged=False,
        )
        for block_no in view.files.block_numbers()
    ]
