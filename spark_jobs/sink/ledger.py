"""The sink's ledger: how far each partition of a job is, kept in the stream that it writes.

An entry is the last message of an atomic batch, so it becomes true together with the rows that it
counts. docs/adr/0018-spark-sink-ledger.md says why this way, and what streams it works with.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from spark_jobs.client.options import OptionError
from spark_jobs.client.wire import ApiError, Wire, WireError
from spark_jobs.client.wire_parser import encode_headers
from streamd import subjects as matching

ROOT: Final = "$LEDGER"
MSGS_MIN: Final = 100_000  # max_msgs of a stream: fewer, and partitions push each other's entry out
BYTES_MIN: Final = 64 * 1024 * 1024
ENTRY_BYTES_MAX: Final = 2048  # an entry with its headers; max_msg_size must allow it
MADE_UP_TTL_S: Final = 86_400  # entries of a job id that nobody can name again
OLD_ENTRIES_MAX: Final = 32  # of one subject, before a purge
_JOB: Final = re.compile(r"[A-Za-z0-9_=-]{1,64}")
_NO_MESSAGE: Final = 10037
_VERSION: Final = 1


class LedgerError(Exception):
    """The ledger does not fit what is to be written; nothing was written wrongly."""


def pattern_of(stream: str) -> str:
    """The subjects of all ledgers in `stream`."""
    return f"{ROOT}.{stream}.>"


def is_ledger(subject: str) -> bool:
    """True for the subject of a ledger entry of any stream."""
    return subject.startswith(f"{ROOT}.")


def subject_of(stream: str, job: str, partition: int) -> str:
    return f"{ROOT}.{stream}.{job}.{partition}"


def head_of(stream: str, job: str) -> str:
    """The subject of what is known of a job as a whole."""
    return f"{ROOT}.{stream}.{job}"


def check_job(job: str) -> str:
    """Return `job` if it may be part of a subject. Raises OptionError."""
    if not _JOB.fullmatch(job):
        raise OptionError(f"option jobId is {job!r}, must be 1 to 64 letters, digits, _ = or -")
    return job


# --- entries ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """Progress of one partition. `seq`: of the entry's message, 0 if there is none yet."""

    seq: int = 0
    batch: int = -1  # the micro-batch; 0 in a batch job
    rows: int = 0  # source rows done, those left out included
    is_done: bool = False  # these were all rows of the partition
    sums: tuple[int, ...] = ()  # checksums of these rows
    duplicates: int = 0
    rejected: int = 0
    plan: str = ""
    attempt: str = ""
    old: int = 0  # older entries of the subject that may still be stored

    def encode(self) -> bytes:
        fields = {key: value for key, value in asdict(self).items() if key != "seq"}
        return json.dumps({"v": _VERSION, **fields}, separators=(",", ":")).encode()


def decode(payload: bytes, *, seq: int) -> Entry:
    """The entry in a stored message; one without rows if it is but a delete marker.

    Raises LedgerError for anything else.
    """
    if not payload:
        return Entry(seq=seq)
    try:
        found = json.loads(payload)
        if found.pop("v") != _VERSION:
            raise ValueError("unknown version")
        found["sums"] = tuple(found["sums"])
        return Entry(seq=seq, **found)
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise LedgerError(
            f"the message at sequence {seq} is no ledger entry ({err}): {payload[:80]!r}; "
            f"only the sink may publish below {ROOT}."
        ) from None


def read_entry(wire: Wire, stream: str, subject: str) -> Entry:
    """The last entry of `subject`; one with seq 0 if there is none. Asks the stream's leader."""
    found = _last(wire, stream, subject)
    return Entry() if found is None else decode(found[1], seq=found[0])


def entry_headers(
    *, batch_id: str, position: int, expected: int, facts: StreamFacts, is_made_up: bool
) -> bytes:
    """The headers of the entry that commits batch `batch_id` as its message `position`."""
    pairs = [
        ("Nats-Batch-Id", batch_id),
        ("Nats-Batch-Sequence", str(position)),
        ("Nats-Batch-Commit", "1"),
        ("Nats-Expected-Stream", facts.name),
        ("Nats-Expected-Last-Subject-Sequence", str(expected)),
    ]
    if facts.allows_ttl:
        pairs.append(("Nats-TTL", str(MADE_UP_TTL_S) if is_made_up else "never"))
    if facts.allows_rollup:
        pairs.append(("Nats-Rollup", "sub"))
    return encode_headers(pairs)


def drop_old(wire: Wire, facts: StreamFacts, subject: str) -> None:
    """Remove all entries of `subject` but the last."""
    wire.api(f"STREAM.PURGE.{facts.name}", {"filter": subject, "keep": 1})


def partitions_of(wire: Wire, stream: str, job: str) -> list[int]:
    """The partitions of `job` that have an entry, ascending."""
    found: list[int] = []
    prefix = f"{head_of(stream, job)}."
    offset = 0
    while True:
        body = {"subjects_filter": f"{prefix}*", "offset": offset}
        state = wire.api(f"STREAM.INFO.{stream}", body)
        names = state["state"].get("subjects") or {}
        found += [int(name[len(prefix) :]) for name in names if name[len(prefix) :].isdigit()]
        offset += len(names)
        if not names or offset >= int(state.get("total") or 0):
            return sorted(found)


# --- the job as a whole -----------------------------------------------------------------------


def read_head(wire: Wire, stream: str, job: str) -> dict[str, Any] | None:
    """Return what `write_head` stored last for `job`, with its `seq`; None if nothing."""
    found = _last(wire, stream, head_of(stream, job))
    if found is None or not found[1]:
        return None
    try:
        return dict(json.loads(found[1])) | {"seq": found[0]}
    except ValueError:
        raise LedgerError(f"the head of job {job} in {stream} at {found[0]} is no JSON") from None


def write_head(
    wire: Wire, facts: StreamFacts, job: str, head: dict[str, Any], *, expected: int
) -> int:
    """Store what is known of `job`; `expected` is the seq of its last head, 0 for none.

    Returns the new seq. Raises ApiError 10071 if another run of the job was faster.
    """
    pairs = [
        ("Nats-Expected-Stream", facts.name),
        ("Nats-Expected-Last-Subject-Sequence", str(expected)),
    ]
    if facts.allows_ttl:
        pairs.append(("Nats-TTL", "never"))
    if facts.allows_rollup:
        pairs.append(("Nats-Rollup", "sub"))
    subject = head_of(facts.name, job)
    body = {key: value for key, value in head.items() if key != "seq"}
    answer = wire.request(subject, json.dumps(body).encode(), headers=encode_headers(pairs))
    return int(acked(answer.payload, f"the head of job {job}")["seq"])


def forget(wire: Wire, facts: StreamFacts, job: str) -> int:
    """Remove all that is known of `job`, which must not run; return how many messages."""
    count = 0
    for subject in (head_of(facts.name, job), f"{head_of(facts.name, job)}.>"):
        count += int(wire.api(f"STREAM.PURGE.{facts.name}", {"filter": subject})["purged"])
    return count


def acked(payload: bytes, what: str) -> dict[str, Any]:
    """The fields of a publish ack. Raises ApiError for a refusal, WireError for what is no ack."""
    try:
        found = json.loads(payload)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise WireError(f"{what}: the answer is no publish ack: {payload[:60]!r}")
    error = found.get("error")
    if error:
        code, err_code = int(error.get("code", 0)), int(error.get("err_code", 0))
        raise ApiError(code, err_code, str(error.get("description", "")), what)
    return found


def _last(wire: Wire, stream: str, subject: str) -> tuple[int, bytes] | None:
    try:
        found = wire.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})["message"]
    except ApiError as err:
        if err.err_code == _NO_MESSAGE:
            return None
        raise
    return int(found["seq"]), base64.b64decode(found.get("data") or "")


# --- the stream -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """Facts that the sink needs of the stream it writes. Sizes in bytes, 0 for no limit."""

    name: str
    subjects: tuple[str, ...]
    max_payload: int
    max_msg_size: int = 0
    allows_ttl: bool = False
    allows_rollup: bool = False
    allows_purge: bool = True
    leader: str = ""
    config: dict[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def ask(cls, wire: Wire, stream: str) -> StreamFacts:
        """Ask the server. Raises OptionError if there is no such stream."""
        try:
            info = wire.api(f"STREAM.INFO.{stream}")
        except ApiError as err:
            if err.err_code == 10059:
                raise OptionError(f"option stream: there is no stream {stream!r}") from None
            raise
        config = info["config"]
        rollup = bool(config.get("allow_rollup_hdrs")) and not config.get("deny_purge")
        return cls(
            name=stream,
            subjects=tuple(config.get("subjects") or ()),
            max_payload=int(wire.info.get("max_payload") or 0),
            max_msg_size=max(0, int(config.get("max_msg_size") or 0)),
            allows_ttl=bool(config.get("allow_msg_ttl")),
            allows_rollup=rollup,
            allows_purge=not (config.get("deny_purge") or config.get("sealed")),
            leader=str((info.get("cluster") or {}).get("leader") or ""),
            config=config,
        )

    def captures(self, subject: str) -> bool:
        raw = subject.encode()
        return any(matching.matches(pattern.encode(), raw) for pattern in self.subjects)

    def faults(self) -> list[str]:
        """Why messages can't be published here at all; empty if they can."""
        config, found = self.config, []
        if config.get("mirror"):
            found.append("it is a mirror, which takes no messages")
        if config.get("sealed"):
            found.append("it is sealed")
        if config.get("no_ack"):
            found.append("no_ack is set: nobody would know what was stored")
        if config.get("allow_msg_counter"):
            found.append("it is a stream of counters")
        return found

    def ledger_faults(self) -> list[str]:
        """Why no ledger can be kept here, whatever else is changed; empty if one can."""
        config, found = self.config, []
        retention = config.get("retention", "limits")
        if retention != "limits":
            found.append(f"retention is {retention}: the ledger would be removed by acks")
        if config.get("discard_new_per_subject"):
            found.append("discard_new_per_subject would refuse a ledger's second entry")
        if 0 < int(config.get("max_msgs") or 0) < MSGS_MIN:
            found.append(f"max_msgs is {config['max_msgs']}, a ledger needs {MSGS_MIN} or more")
        if 0 < int(config.get("max_bytes") or 0) < BYTES_MIN:
            found.append(f"max_bytes is {config['max_bytes']}, a ledger needs {BYTES_MIN} or more")
        if 0 < self.max_msg_size < ENTRY_BYTES_MAX:
            found.append(
                f"max_msg_size is {self.max_msg_size}, an entry may take {ENTRY_BYTES_MAX}"
            )
        source = str((config.get("subject_transform") or {}).get("src") or "")
        if config.get("subject_transform") and (
            not source or matching.collides(source.encode(), pattern_of(self.name).encode())
        ):
            found.append(f"its subject transform of {source or '>'!r} would move the ledger")
        return found

    def ledger_changes(self) -> dict[str, Any]:
        """Return what must change in the stream's config before a ledger can be kept; {} if
        nothing."""
        changes: dict[str, Any] = {}
        if not self.config.get("allow_atomic"):
            changes["allow_atomic"] = True
        pattern = pattern_of(self.name)
        if not any(matching.is_subset(pattern.encode(), one.encode()) for one in self.subjects):
            changes["subjects"] = [*self.subjects, pattern]
        if self.config.get("max_age") and not self.allows_ttl:
            changes["allow_msg_ttl"] = True
        return changes


def ready_stream(wire: Wire, stream: str, *, with_ledger: bool, may_change: bool) -> StreamFacts:
    """Return the facts of a stream that can be written, with a ledger if so asked.

    `may_change`: change its config where that is all it takes. Raises OptionError saying what is
    in the way and what to do.
    """
    facts = StreamFacts.ask(wire, stream)
    faults = facts.faults()
    if faults:
        raise OptionError(f"stream {stream} can't be written: {'; '.join(faults)}")
    if not with_ledger:
        return facts
    faults = facts.ledger_faults()
    if faults:
        raise OptionError(
            f"stream {stream} can't be written exactly once: {'; '.join(faults)}. Write another "
            'stream, or use .option("delivery", "at-least-once")'
        )
    changes = facts.ledger_changes()
    if not changes:
        return facts
    if not may_change:
        raise OptionError(
            f"stream {stream} can't be written exactly once before its config has "
            f"{json.dumps(changes)}: update it, or let the sink do so by "
            '.option("prepareStream", "true"), or use .option("delivery", "at-least-once")'
        )
    wire.api(f"STREAM.UPDATE.{stream}", facts.config | changes)
    facts = StreamFacts.ask(wire, stream)
    left = facts.ledger_changes()
    if left:
        raise OptionError(f"stream {stream}: the server did not take {json.dumps(left)}")
    return facts
