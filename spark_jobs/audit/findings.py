"""Codes of an audit, a finding, and a list of findings made presentable. Pure.

Codes, severities and field names are API: `findings.parquet` and `findings.json` have them, and
docs/audit.md explains each. A code is never used for two different facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

DAMAGE: Final = "damage"
WARNING: Final = "warning"

FIELDS: Final = (
    "severity",
    "code",
    "replica",
    "stream",
    "seq_lo",
    "seq_hi",
    "file",
    "offset",
    "expected",
    "got",
    "advice",
)

EXIT_CLEAN: Final = 0
EXIT_WARNINGS: Final = 1
EXIT_DAMAGE: Final = 2
EXIT_FAILED: Final = 3


class Code(NamedTuple):
    """A kind of finding: its severity, its text, and the advice for it."""

    severity: str
    meaning: str
    advice: str


_REPLACE = (
    "replace this replica in the order that `what to do next` gives: one node at a time, and never "
    "the last whole copy; without another replica, restore a backup"
)

_EMPTY = (
    "in a cluster the node may also start with an empty directory, and fetches everything from "
    "the others"
)


CODES: Final[dict[str, Code]] = {
    # --- bytes of a block ---
    "record-crc": Code(DAMAGE, "a record's bytes do not match its own crc32c", _REPLACE),
    "seq-gap": Code(
        DAMAGE, "the state says that a message is stored, the block has no record of it", _REPLACE
    ),
    "seq-extra": Code(DAMAGE, "a block holds a message of which the state knows nothing", _REPLACE),
    "block-missing": Code(DAMAGE, "a block file that the state names is not there", _REPLACE),
    "block-unreadable": Code(
        DAMAGE, "the disk does not give a block file back (EIO)", "look at the disk; " + _REPLACE
    ),
    "block-header": Code(
        DAMAGE, "a block's first 64 bytes are damaged, or those of another block", _REPLACE
    ),
    "block-short": Code(
        DAMAGE, "a block file ends before what the newest snapshot covers", _REPLACE
    ),
    "block-digest": Code(
        DAMAGE,
        "every record is valid, and yet the block does not hold the content the state has of it",
        _REPLACE,
    ),
    "footer-damaged": Code(
        DAMAGE,
        "the footer of a sealed block is unreadable; its records are whole",
        "nothing is lost and the server reads such a block more slowly; " + _REPLACE,
    ),
    "footer-differs": Code(
        DAMAGE,
        "a footer is valid and tells of other records than the block holds",
        "the server would read wrong places of this block; " + _REPLACE,
    ),
    "torn-tail": Code(
        WARNING,
        "the newest block ends in an incomplete record, after all that a snapshot covers",
        "normal after a crash: the log has what is torn, and the next start writes it again",
    ),
    # --- state, snapshots, index ---
    "snapshot-damaged": Code(
        DAMAGE,
        "a snapshot file does not match its checksum",
        "the server starts from the one before it if the log reaches back; " + _REPLACE,
    ),
    "state-digest": Code(
        DAMAGE,
        "a snapshot is whole, but its numbers contradict each other",
        "a defect of the server that wrote it: keep a copy of the directory and report it; "
        + _REPLACE,
    ),
    "index-damaged": Code(
        WARNING,
        "index.db does not match its checksum",
        "a cache: the server makes a new one; it may be deleted while the server is stopped",
    ),
    "index-differs": Code(
        DAMAGE,
        "index.db is whole and tells of other messages than the blocks hold",
        "stop the server and delete index.db: it is made anew from the blocks",
    ),
    "identity-damaged": Code(
        DAMAGE,
        "node.json is unreadable: the server does not start on this directory",
        "restore node.json from a backup of this very directory; " + _EMPTY,
    ),
    "stream-missing": Code(
        DAMAGE,
        "the node should have a replica of the stream, and has no files of it",
        "start the node and let it fetch the stream from the others, or restore a backup",
    ),
    "stream-unreadable": Code(
        DAMAGE,
        "neither a snapshot nor the log gives the state of the stream; only its files were checked",
        _REPLACE,
    ),
    "limit-exceeded": Code(
        DAMAGE,
        "the stream keeps more than its limits allow",
        "a defect of the server: keep a copy of the directory and report it",
    ),
    # --- consumers ---
    "consumer-ahead": Code(
        DAMAGE,
        "a consumer was given messages beyond the end of its stream",
        "messages stored next would be skipped: reset the consumer to the stream's last sequence",
    ),
    "consumer-floor": Code(
        DAMAGE,
        "a consumer's ack floor is beyond what it was given",
        "reset the consumer to a sequence that it has surely processed",
    ),
    "consumer-pending": Code(
        DAMAGE,
        "a consumer waits for an ack of a message that it was never given, or has acked",
        "reset the consumer to its ack floor",
    ),
    # --- the write-ahead log ---
    "log-damaged": Code(
        DAMAGE,
        "the write-ahead log is damaged, or a part of it is missing",
        "with other replicas: start the node, it sets the log aside and catches up; "
        "without: entries after the newest snapshots are lost, restore a backup",
    ),
    "log-gap": Code(
        DAMAGE,
        "the log begins after the newest snapshot ends: entries in between are nowhere",
        _REPLACE,
    ),
    "log-torn-tail": Code(
        WARNING,
        "the log ends in an incomplete batch that nothing proves to have been durable",
        "normal after a crash: no ack was sent for it, and the next start drops it",
    ),
    "log-store-mismatch": Code(
        DAMAGE,
        "a block holds a valid record that is not the one which the log's entry makes",
        "the next start writes the log's record over it; until then reads return the other one",
    ),
    "tail-set-aside": Code(
        DAMAGE,
        "the stream lost messages that were acknowledged, or may have been; this node kept them",
        "look at them with `streamctl discarded show FILE`, and publish them again with "
        "`streamctl discarded replay FILE`, or move the file away",
    ),
    "tail-open": Code(
        WARNING,
        "this node kept entries that its leader did not have; nobody knows if they were committed",
        "ordinary after a crash of a leader; look at them with `streamctl discarded show FILE`",
    ),
    # --- several replicas ---
    "drift-missing": Code(
        DAMAGE, "this replica lacks messages that the others have at the same log index", _REPLACE
    ),
    "drift-extra": Code(DAMAGE, "this replica has messages that the others do not have", _REPLACE),
    "drift-content": Code(
        DAMAGE, "this replica has another message under the same sequence", _REPLACE
    ),
    "drift-time": Code(DAMAGE, "this replica has the same message with another time", _REPLACE),
    "drift-state": Code(
        DAMAGE,
        "replicas differ at the same log index, in something else than stored messages "
        "(or the level did not narrow it down)",
        "run with --level digest; then: " + _REPLACE,
    ),
    "drift-consumer": Code(
        DAMAGE, "a consumer's state differs between replicas at the same log index", _REPLACE
    ),
    "replica-behind": Code(
        WARNING,
        "this replica is older than the others: it lacks entries that they have committed",
        "nothing is damaged: started beside the others it catches up; do not start it without "
        "them, and do not restore from it",
    ),
    "stream-recreated": Code(
        WARNING,
        "the stream of this name is another one here: it was deleted and created again",
        "not compared with the others; if both are live nodes, one has not heard of it yet",
    ),
    # --- messages ---
    "duplicate-id": Code(
        DAMAGE,
        "two messages inside one duplicate window have the same Nats-Msg-Id",
        "readers see it twice; delete the later one if they must not",
    ),
    "lost-write": Code(
        DAMAGE,
        "the publisher has an ack for a message that the stream does not hold",
        "an acked write is lost or changed: keep all directories and logs, and publish it again",
    ),
    "phantom-write": Code(
        DAMAGE,
        "the stream holds a message that the publisher's log does not have",
        "find out who wrote it: the log may be of one publisher among several",
    ),
}


REPLACED: Final = frozenset(code for code, each in CODES.items() if _REPLACE in each.advice)
"""Codes after which a replica is to be fetched anew from a whole one."""


class Finding(NamedTuple):
    """A fact that contradicts the promises of the store. None where a field does not apply."""

    severity: str
    code: str
    replica: str
    stream: str
    seq_lo: int | None
    seq_hi: int | None
    file: str
    offset: int | None
    expected: str
    got: str
    advice: str
    records: tuple[tuple[str, str], ...] = ()
    """Evidence, (whose, hex): the bytes of the records that differ. In findings.json only."""

    def row(self) -> dict[str, Any]:
        """The columns of `findings.parquet`."""
        return {name: getattr(self, name) for name in FIELDS}


def finding(
    code: str,
    *,
    replica: str,
    stream: str = "",
    seq: int | None = None,
    seq_hi: int | None = None,
    file: str = "",
    offset: int | None = None,
    expected: str = "",
    got: str = "",
    advice: str = "",
) -> Finding:
    """A finding of `code`; `seq_hi` defaults to `seq`, `advice` to the code's own."""
    known = CODES[code]
    return Finding(
        known.severity,
        code,
        replica,
        stream,
        seq,
        seq if seq_hi is None else seq_hi,
        file,
        offset,
        expected,
        got,
        advice or known.advice,
    )


def joined(findings: Iterable[Finding]) -> list[Finding]:
    """Sorted, damage first; neighbours that say the same of consecutive seqs become one."""
    found = sorted(set(findings), key=_order)
    out: list[Finding] = []
    for each in found:
        last = out[-1] if out else None
        if last is not None and _continues(last, each):
            out[-1] = last._replace(seq_hi=each.seq_hi)
        else:
            out.append(each)
    return out


def _order(each: Finding) -> tuple[Any, ...]:
    return (
        each.severity != DAMAGE,
        each.stream,
        each.replica,
        each.code,
        each.seq_lo or 0,
        each.offset or 0,
        *(str(part) for part in each),
    )


_JOINABLE: Final = frozenset({"seq-gap", "drift-missing", "drift-extra", "seq-extra"})


def _continues(last: Finding, each: Finding) -> bool:
    """True if `each` goes on where `last` ends and says nothing else."""
    return (
        each.code in _JOINABLE
        and (last.code, last.replica, last.stream) == (each.code, each.replica, each.stream)
        and (last.file, last.expected, last.got) == (each.file, each.expected, each.got)
        and last.seq_hi is not None
        and each.seq_lo == last.seq_hi + 1
    )


def unexplained(drift: Iterable[Finding], local: Iterable[Finding]) -> list[Finding]:
    """`drift` without what a replica's own damage explains already: one byte, one finding."""
    known: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for each in local:
        if each.seq_lo is not None and each.seq_hi is not None:
            known[each.replica, each.stream].append((each.seq_lo, each.seq_hi))
    return [
        each
        for each in drift
        if each.seq_lo is None
        or not any(
            low <= each.seq_lo and (each.seq_hi or each.seq_lo) <= high
            for low, high in known[each.replica, each.stream]
        )
    ]


def exit_status(findings: Sequence[Finding]) -> int:
    """0 clean, 1 warnings only, 2 damage."""
    if any(each.severity == DAMAGE for each in findings):
        return EXIT_DAMAGE
    return EXIT_WARNINGS if findings else EXIT_CLEAN


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Count the findings of each code."""
    found: dict[str, int] = defaultdict(int)
    for each in findings:
        found[each.code] += 1
    return dict(sorted(found.items()))
