"""Comparison of replicas: the log index at which they can be compared, and the records that differ.

Replicas are opened at one common log index, so lag is no drift. One that can't be opened there
(behind, or a backup, or a live node) is compared too, but only in what both sides hold.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from spark_jobs.audit.findings import Finding, finding
from spark_jobs.audit.replica_files import StreamFiles, View
from spark_jobs.audit.state_check import consumers_of
from spark_jobs.replica.record_rows import BUCKET, BUCKET_SHIFT

BUCKETS_MAX: Final = 64  # of one stream that are narrowed down to records


class Alignment(NamedTuple):
    """The log index at which replicas of a stream can be compared."""

    log_index: int
    aligned: tuple[str, ...]  # labels of those that can be opened at `index`
    notes: tuple[str, ...]


def align(replicas: Sequence[StreamFiles]) -> Alignment:
    """The log index at which most replicas can be opened, and which those are.

    It is no earlier than any snapshot of them, and committed. A replica whose log has another
    entry there than the others has not heard of a new leader yet: it counts as behind.
    """
    usable = [each for each in replicas if each.is_there and not each.has_gap]
    if not usable:
        return Alignment(0, (), ())
    notes: list[str] = []
    start = max(each.snapshot_index for each in usable)
    rest = [each for each in usable if each.log_last >= start]
    for each in usable:
        if each not in rest:
            notes.append(
                f"{each.name}: {each.store.label} is behind: its log ends at "
                f"{each.log_last}, the others' snapshots begin at {start}; compared where both "
                "have a message"
            )
    index = max(start, min(each.commit for each in rest))
    sure = [each for each in rest if each.commit >= index] or rest[:1]
    mark = next((found for each in sure if (found := each.mark_at(index))), None)
    aligned = []
    for each in rest:
        if each.commit >= index or each.mark_at(index) == mark:
            aligned.append(each.store.label)
        else:
            notes.append(
                f"{each.name}: {each.store.label} has not committed log index {index} yet; "
                "compared where both have a message"
            )
    for each in rest:
        ahead = each.log_last - index
        if ahead > 0 and len(rest) > 1:
            notes.append(
                f"{each.name}: {each.store.label} has {ahead} log entries after the common "
                f"index {index}; they are not compared"
            )
    return Alignment(index, tuple(aligned), tuple(notes))


def lag_finding(files: StreamFiles, others: Sequence[StreamFiles]) -> Finding | None:
    """Say that a replica lacks entries that `others` have committed; None if it does not.

    A running node is behind for a moment again and again: it is named only where its own log
    can't bring it further.
    """
    if not files.is_there or files.has_gap:
        return None
    usable = [each for each in others if each.is_there and not each.has_gap]
    is_running = files.store.place.is_running
    reached = [each.snapshot_index if is_running else each.commit for each in usable]
    furthest = max(reached, default=0)
    if files.log_last >= furthest:
        return None
    who = ", ".join(
        each.store.label for each, index in zip(usable, reached, strict=True) if index == furthest
    )
    return finding(
        "replica-behind",
        replica=files.store.label,
        stream=files.name,
        file=files.store.directory(files.asset.uid),
        expected=f"log index {furthest}, which {who} has",
        got=f"its log ends at {files.log_last}: {furthest - files.log_last} entries are not here",
    )


@dataclass
class Cohort:
    """The replicas that should hold the same stream: one uid under one name."""

    name: str
    uid: int
    labels: list[str] = field(default_factory=list)
    aligned: set[str] = field(default_factory=set)  # state known at one common index
    last_seqs: dict[str, int] = field(default_factory=dict)
    first_seqs: dict[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.uid}:{self.name}"


class Held(NamedTuple):
    """The record of one replica under one seq."""

    crc: int
    ts: int
    content: int  # crc of the record without its time


_Verdict = tuple[int, str, str, str, str]
"""(seq, code, replica, expected, got)"""


class DriftedBucket(NamedTuple):
    """`BUCKET` seqs whose digests are not equal everywhere."""

    cohort: str
    number: int

    @property
    def first_seq(self) -> int:
        return self.number << BUCKET_SHIFT

    @property
    def last_seq(self) -> int:
        return self.first_seq + BUCKET - 1


def worth_a_look(
    cohort: Cohort, bucket: DriftedBucket, holders: Iterable[str], local: Sequence[Finding]
) -> bool:
    """False if lag or damage that is told already explains why the bucket differs."""
    present = set(holders)
    if len(present) > 1:
        return True
    return bool(present & cohort.aligned) and any(
        label not in present
        and not _covers(local, label, cohort.name, bucket.first_seq, bucket.last_seq, cohort)
        for label in cohort.aligned
    )


def _covers(
    local: Sequence[Finding], label: str, stream: str, low: int, high: int, cohort: Cohort
) -> bool:
    low = max(low, cohort.first_seqs.get(label, low))
    high = min(high, cohort.last_seqs.get(label, high))
    return any(
        each.replica == label
        and each.stream == stream
        and each.seq_lo is not None
        and each.seq_lo <= low
        and (each.seq_hi or 0) >= high
        for each in local
    )


def compare(
    cohort: Cohort, seq_rows: Mapping[int, Mapping[str, Held]], local: Sequence[Finding]
) -> list[Finding]:
    """Findings for seqs whose records differ: `seq_rows` has, per seq, who holds what."""
    damaged: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for each in local:
        if each.stream == cohort.name and each.seq_lo is not None:
            damaged[each.replica].append((each.seq_lo, each.seq_hi or each.seq_lo))
    verdicts: list[_Verdict] = []
    for seq in sorted(seq_rows):
        held = dict(seq_rows[seq])
        for label in list(cohort.labels):
            if any(low <= seq <= high for low, high in damaged[label]):
                held.pop(label, None)  # told by itself, and no witness
        verdicts += _judge(cohort, seq, held, damaged)
    return _in_runs(cohort, verdicts)


def _judge(
    cohort: Cohort,
    seq: int,
    held: Mapping[str, Held],
    damaged: Mapping[str, Sequence[tuple[int, int]]],
) -> list[_Verdict]:
    """Return what is wrong with `seq` on every replica that differs from the majority.

    Content is compared between all that hold the message; that one is missing can be told only
    between replicas at one log index.
    """
    found: list[_Verdict] = []
    holders = [label for label in cohort.labels if label in held]
    if not holders:
        return found
    top, top_count = Counter(held[label] for label in holders).most_common(1)[0]
    if top_count * 2 <= len(holders):
        # Nobody can tell who is right: one finding names all that differ from the first.
        top = held[holders[0]]
        others = [label for label in holders if held[label] != top]
        if others:
            mine = held[others[0]]
            where = f"{_text(top)}, as on {_names(holders, held, top)}"
            found.append((seq, _code(top, mine), ", ".join(others), where, _text(mine)))
    else:
        where = f"{_text(top)}, as on {_names(holders, held, top)}"
        found += [
            (seq, _code(top, held[label]), label, where, _text(held[label]))
            for label in holders
            if held[label] != top
        ]
    witnesses = [
        label
        for label in cohort.labels
        if label in cohort.aligned
        and not any(low <= seq <= high for low, high in damaged.get(label, ()))
    ]
    have = [label for label in witnesses if label in held]
    lack = [label for label in witnesses if label not in held]
    if not have or not lack:
        return found
    if len(have) < len(lack):
        where = f"no message, as on {', '.join(lack)}"
        found += [(seq, "drift-extra", label, where, _text(held[label])) for label in have]
    else:
        where = f"{_text(held[have[0]])}, as on {', '.join(have)}"
        whose = lack if len(lack) < len(have) else [", ".join(lack)]
        found += [(seq, "drift-missing", label, where, "no message") for label in whose]
    return found


def _names(holders: Sequence[str], held: Mapping[str, Held], wanted: Held) -> str:
    return ", ".join(label for label in holders if held[label] == wanted)


def _code(wanted: Held, mine: Held) -> str:
    return "drift-time" if wanted.content == mine.content else "drift-content"


def _text(held: Held) -> str:
    return f"crc {held.crc:#010x}, time {held.ts}"


def _in_runs(cohort: Cohort, verdicts: Sequence[_Verdict]) -> list[Finding]:
    """Join findings of consecutive seqs of one replica and code into one."""
    lines: dict[tuple[str, str], list[tuple[int, str, str]]] = defaultdict(list)
    for seq, code, label, expected, got in verdicts:
        lines[code, label].append((seq, expected, got))
    found = []
    for (code, label), rows in sorted(lines.items()):
        at = 0
        while at < len(rows):
            end = at
            while end + 1 < len(rows) and rows[end + 1][0] == rows[end][0] + 1:
                end += 1
            _, expected, got = rows[at]
            if end > at:
                got = f"{end - at + 1} messages; the first: {got}"
            found.append(
                finding(
                    code,
                    replica=label,
                    stream=cohort.name,
                    seq=rows[at][0],
                    seq_hi=rows[end][0],
                    expected=expected,
                    got=got,
                )
            )
            at = end + 1
    return found


# --- states -----------------------------------------------------------------------------------


def state_findings(views: Sequence[View], *, has_record_drift: bool) -> list[Finding]:
    """Return the differences of aligned replicas but for messages: consumers, then the rest."""
    known = [view for view in views if view.machine is not None]
    if len(known) < 2:
        return []
    found = _consumer_drift(known)
    if found or has_record_drift:
        return found
    prints = {view.label: view.machine.fingerprint() for view in known if view.machine}
    tally = Counter(prints.values())
    if len(tally) == 1:
        return []
    top, top_count = tally.most_common(1)[0]
    if top_count * 2 <= len(known):
        top = prints[known[0].label]
    agreed = ", ".join(label for label, mine in prints.items() if mine == top)
    return [
        finding(
            "drift-state",
            replica=view.label,
            stream=view.name,
            file=view.files.store.directory(view.uid),
            expected=f"fingerprint {top:016x} at log index {view.applied}, as on {agreed}",
            got=f"fingerprint {prints[view.label]:016x}; {_difference(view, known, prints, top)}",
        )
        for view in known
        if prints[view.label] != top
    ]


def _difference(view: View, known: Sequence[View], prints: Mapping[str, int], top: int) -> str:
    """The first number that differs, in words."""
    other = next(each for each in known if prints[each.label] == top)
    names = ("first sequence", "last sequence", "messages", "bytes", "digest")
    for name, mine, theirs in zip(names, view.index_row(), other.index_row(), strict=True):
        if mine != theirs:
            return f"{name} {mine}, there {theirs}"
    if view.machine and other.machine:
        if view.machine.config_meta_index != other.machine.config_meta_index:
            return "another version of the stream's configuration"
    return "the delete map differs"


def _consumer_drift(known: Sequence[View]) -> list[Finding]:
    """Consumers whose numbers differ at one log index."""
    rows: dict[str, dict[str, Any]] = defaultdict(dict)
    for view in known:
        for each in consumers_of(view):
            rows[each.name][view.label] = (
                each.delivered_cseq,
                each.delivered_sseq,
                each.floor_cseq,
                each.floor_sseq,
                tuple(each.pending),
            )
    found = []
    by_label = {view.label: view for view in known}
    for name, held in sorted(rows.items()):
        tally = Counter(held.get(view.label) for view in known)
        if len(tally) == 1:
            continue
        top, top_count = tally.most_common(1)[0]
        if top_count * 2 <= len(known):
            top = held.get(known[0].label)
        for label, view in by_label.items():
            if held.get(label) != top:
                found.append(
                    finding(
                        "drift-consumer",
                        replica=label,
                        stream=view.name,
                        file=view.files.store.directory(view.uid),
                        expected=f"consumer {name}: {_numbers(top)}",
                        got=_numbers(held.get(label)),
                    )
                )
    return found


def _numbers(row: Any) -> str:
    if row is None:
        return "no such consumer"
    return f"delivered {row[1]}, ack floor {row[3]}, {len(row[4])} pending"
