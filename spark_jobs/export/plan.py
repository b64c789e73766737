"""Plan of one run of `export`, and the check that its stream is the one of before."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import Final

from spark_jobs.client.stream_facts import has_begun_anew
from spark_jobs.export.export_ledger import Ledger, Source
from spark_jobs.jobs.command import JobError
from spark_jobs.jobs.origin import Facts, Origin

NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class Plan:
    """Seqs of one run: first_seq..last_seq, none if it ends before it begins."""

    source: Source
    first_seq: int
    last_seq: int
    seqs_per_commit: int
    gap: tuple[int, int] | None
    as_of: str
    until_ns: int  # see Commit
    log_damage: str = ""  # see Facts


def partitioning(text: str) -> tuple[str, ...]:
    """`date,subject:2` checked. Raises JobError."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if parts == (NONE,):
        return ()
    for part in parts:
        if part != "date" and not re.fullmatch(r"subject:[1-9]\d?", part):
            raise JobError(
                f"--partition-by {text!r}: {part!r} must be date, subject:N with N from 1 to 99, "
                "or none alone"
            )
    if not parts or len(set(parts)) < len(parts):
        raise JobError(f"--partition-by {text!r} names nothing, or something twice")
    return parts


def plan_of(
    origin: Origin, ledger: Ledger, wanted: tuple[str, ...] | None, args: argparse.Namespace
) -> Plan:
    """Plan a run with `args` of the job; `wanted` is its partitioning, None for that of before.

    Raises JobError where the stream is not the one exported before.
    """
    facts = origin.facts()
    known = ledger.source
    if known is None:
        strays = ledger.strays()
        if strays:
            raise JobError(
                f"{args.to} has Parquet files that no export wrote ({strays[0]}); "
                "export into a new directory"
            )
        first = max(args.start_seq or 1, facts.first_seq)
        partition_by = ("date",) if wanted is None else wanted
        known = Source(facts.name, facts.created, _subjects(args), partition_by, first)
    else:
        _check_same(ledger, known, facts, wanted, args)
        first = max(ledger.last_seq + 1, known.first_seq)
    gap = None
    if ledger.commits and facts.first_seq > first:
        gap = (first, facts.first_seq - 1)
        if not args.accept_gaps:
            raise JobError(
                f"seqs {gap[0]}..{gap[1]} left stream {facts.name} before they were exported "
                "(limits, a purge or a consumer took them); --accept-gaps goes on"
            )
        first = facts.first_seq
    last = facts.last_seq
    if args.as_of:
        last = _as_of(args.as_of, origin, facts)
        if last < ledger.last_seq:
            raise JobError(
                f"--as-of {args.as_of} is seq {last}, {args.to} already goes to "
                f"{ledger.last_seq}; export into another directory"
            )
    seqs = max(1, facts.last_seq - facts.first_seq + 1)
    spread = max(1.0, seqs / max(1, facts.messages))  # seqs per message that is still there
    per_commit = int(args.commit_rows * spread)
    return Plan(
        known, first, last, per_commit, gap, args.as_of or "", facts.until_ns, facts.log_damage
    )


def _check_same(
    ledger: Ledger,
    known: Source,
    facts: Facts,
    wanted: tuple[str, ...] | None,
    args: argparse.Namespace,
) -> None:
    """Raises JobError unless the directory holds what this run would add to."""
    if known.stream != facts.name:
        raise JobError(
            f"{args.to} is an export of stream {known.stream}, not of {facts.name}; "
            "export into another directory"
        )
    if known.created != facts.created:
        raise JobError(
            f"stream {facts.name} was created anew at {facts.created}; {args.to} holds the one "
            f"of {known.created}; export into another directory"
        )
    until_ns = max((each.until_ns for each in ledger.commits), default=0)
    if has_begun_anew(
        first_seq=facts.first_seq,
        first_ns=facts.first_ns,
        last_seq=ledger.last_seq,
        until_ns=until_ns,
    ):
        raise JobError(
            f"stream {facts.name} has begun anew since {args.to} was written: its server has "
            "forgotten it, as streams in memory are; export into another directory"
        )
    if wanted is not None and wanted != known.partition_by:
        raise JobError(
            f"{args.to} is partitioned by {_named(known.partition_by)}, "
            f"not by {_named(wanted)}; leave --partition-by out or export elsewhere"
        )
    subjects = _subjects(args)
    if subjects != known.subjects:
        raise JobError(
            f"{args.to} holds subjects {','.join(known.subjects) or '(all)'}, not "
            f"{','.join(subjects) or '(all)'}; give the same --subjects or export elsewhere"
        )
    # The directory begins where the stream began, if that was behind the --start-seq of its first
    # run: the same again is no other beginning.
    start = args.start_seq or known.first_seq
    if start > known.first_seq or max(start, facts.first_seq) < known.first_seq:
        raise JobError(
            f"{args.to} begins at seq {known.first_seq}, --start-seq says {args.start_seq}; "
            "leave it out or export elsewhere"
        )
    if facts.last_seq < ledger.last_seq:
        raise JobError(
            f"stream {facts.name} ends at seq {facts.last_seq}, {args.to} goes to "
            f"{ledger.last_seq}: this is a replica that lags or an older copy; "
            "ask the stream's leader, or export into another directory"
        )


def _as_of(text: str, origin: Origin, facts: Facts) -> int:
    """The last seq that --as-of lets in; first_seq - 1 if there is none."""
    if text.isdigit() and len(text) < 18:
        return min(int(text), facts.last_seq)
    return min(origin.last_seq_until(text), facts.last_seq)


def _subjects(args: argparse.Namespace) -> tuple[str, ...]:
    return tuple(filter(None, (args.subjects or "").split(",")))


def _named(partition_by: tuple[str, ...]) -> str:
    return ",".join(partition_by) or NONE
