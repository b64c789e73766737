"""Whether one publish may be stored: the header checks of JetStream, in their documented order.

Only messages with `Nats-` headers, or streams with room to check, come here; everything else takes
the machine's short way. Checks read the state that all earlier messages of the entry have left.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from streamd import errors
from streamd.durations import SECOND_NS
from streamd.errors import JsError
from streamd.machine import message_headers
from streamd.machine.base import HAS_HEADERS, HAS_TTL, IS_NEVER, NO_MARKER
from streamd.machine.commands import DUPLICATE, PRODUCER_RULES, PUBLISH_RULES
from streamd.machine.streams import counters, producers
from streamd.machine.streams.counters import Total
from streamd.machine.streams.producers import Claim
from streamd.machine.streams.stream_content import StreamContent
from streamd.subjects import Matcher, is_literal, is_valid_literal, matches
from streamd.types import Msg, Seq

MSG_ID: Final = b"Nats-Msg-Id"
EXPECTED_STREAM: Final = b"Nats-Expected-Stream"
EXPECTED_LAST_SEQ: Final = b"Nats-Expected-Last-Sequence"
EXPECTED_SUBJECT_SEQ: Final = b"Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT: Final = b"Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_MSG_ID: Final = b"Nats-Expected-Last-Msg-Id"
ROLLUP: Final = b"Nats-Rollup"
TTL: Final = b"Nats-TTL"
INCR: Final = b"Nats-Incr"
SOURCE: Final = b"Nats-Stream-Source"
SCHEDULE: Final = b"Nats-Schedule"
SCHEDULE_TARGET: Final = b"Nats-Schedule-Target"
SCHEDULE_SOURCE: Final = b"Nats-Schedule-Source"
SCHEDULE_TTL: Final = b"Nats-Schedule-TTL"
SCHEDULE_ROLLUP: Final = b"Nats-Schedule-Rollup"
SCHEDULE_ZONE: Final = b"Nats-Schedule-Time-Zone"
SCHEDULER: Final = b"Nats-Scheduler"
SCHEDULE_NEXT: Final = b"Nats-Schedule-Next"
MARKER_REASON: Final = b"Nats-Marker-Reason"
_NOT_OF_COUNTERS: Final = (
    ROLLUP, EXPECTED_STREAM, EXPECTED_LAST_SEQ, EXPECTED_SUBJECT_SEQ, EXPECTED_SUBJECT,
    EXPECTED_MSG_ID,
)  # fmt: skip
HEADERS_BYTES_MAX: Final = 65535  # what one message's headers may be: NATS' own limit
RECORD_BYTES_MAX: Final = 32 * 1024 * 1024  # a record must fit its length field and a block read

_VERDICTS: Final = {
    kind.err_code: kind
    for kind in (
        errors.MESSAGE_SCHEDULES_PATTERN_INVALID,
        errors.MESSAGE_SCHEDULES_TIME_ZONE_INVALID,
    )
}
Fields = dict[bytes, bytes]
Verdict = tuple[int, int]
"""(when a schedule is due first, err_code of why its pattern is none), as its leader found."""
NO_VERDICTS: Final[Mapping[int, Verdict]] = {}
_match_integer = re.compile(rb"[+-]?[0-9]+").fullmatch


class Admitted:
    """A publish that will be stored, and what follows from its headers."""

    __slots__ = (
        "claim", "due_ns", "ends", "flags", "msg", "msg_id", "rollup", "total", "ttl_ns",
    )  # fmt: skip

    def __init__(self, msg: Msg) -> None:
        self.msg = msg
        self.flags = HAS_HEADERS if msg[1] else 0
        self.msg_id = b""
        self.ttl_ns = 0
        self.rollup = b""
        self.total: Total | None = None  # of its counter
        self.due_ns = 0  # it is a schedule
        self.ends = b""  # subject of the schedule that it ends
        self.claim: Claim | None = None  # of its producer


_ID_HEAD: Final = b"NATS/1.0\r\nNats-Msg-Id: "
_SIMPLE_BYTES_MAX: Final = 4096


def simple_id(headers: bytes) -> bytes | None:
    """Return the message id if the id is the only header the server cares about (b"" if not even
    that); None if `check` must look."""
    if len(headers) > _SIMPLE_BYTES_MAX:
        return None
    if headers.startswith(_ID_HEAD) and headers.count(b"\r\n") == 3:
        return headers[23:-4].lstrip(b" ")
    if b"Nats-" in headers or b"KV-Operation" in headers:
        return None
    return b""


def simple_id_trimmed(headers: bytes) -> bytes | None:
    """`simple_id` by the rules of entries that name none."""
    msg_id = simple_id(headers)
    return msg_id.strip() if msg_id else msg_id


def fields_of(headers: bytes, rules: int) -> Fields:
    """Return the server's own headers in `headers`, read by these rules (see commands.STORE)."""
    fields = message_headers.server_headers(headers)
    return fields if rules else {key: value.strip() for key, value in fields.items()}


def is_stored_once(headers: bytes) -> bool:
    """True if a message with these headers may be sent twice while the stream remembers its id:
    nothing that they ask for is looked at before the id is."""
    if MSG_ID not in headers or b"Nats-Expected-" in headers:
        return False
    return bool(message_headers.server_headers(headers).get(MSG_ID))


_BATCH_HEAD: Final = b"NATS/1.0\r\nNats-Batch-Id: "
# Most messages of batches have no more than this; one match costs a third of looking for each.
_match_batch = re.compile(
    rb"NATS/1\.0\r\nNats-Batch-Id: [^\r]*\r\nNats-Batch-Sequence: [^\r]*\r\n"
    rb"(?:Nats-Msg-Id: ([^\r]*)\r\n)?\r\n"
).fullmatch


def simple_batch_ids(msgs: Sequence[Msg], size_max: int) -> list[bytes]:
    """Return the message ids (b"" for none) of the first messages of an atomic batch, up to the
    first whose headers mean more than an id, or that has more than `size_max` bytes."""
    ids: list[bytes] = []
    for _, headers, payload in msgs:
        size = len(headers)
        if size > _SIMPLE_BYTES_MAX or size + len(payload) > size_max:
            break
        found = _match_batch(headers)
        if found is not None:
            ids.append((found[1] or b"").lstrip(b" "))
            continue
        if not headers.startswith(_BATCH_HEAD) or b"KV-Operation" in headers:
            break
        at = headers.find(b"\r\nNats-Batch-Sequence: ")
        if at < 0:
            break
        own_count = headers.count(b"Nats-")
        if own_count == 2:
            ids.append(b"")
            continue
        at = headers.find(b"\r\nNats-Msg-Id: ", at)
        if own_count != 3 or at < 0:
            break
        at += 15
        ids.append(headers[at : headers.find(b"\r\n", at)].lstrip(b" "))
    return ids


def needs_state(fields: Fields) -> bool:
    """True if these headers ask for, or change, more than the dedupe window and the last seq: all
    that came before must be stored first."""
    return (
        EXPECTED_SUBJECT_SEQ in fields
        or EXPECTED_SUBJECT in fields
        or ROLLUP in fields
        or EXPECTED_MSG_ID in fields
        or SCHEDULER in fields
    )


def check(
    content: StreamContent,
    msg: Msg,
    fields: Fields,
    *,
    last_seq: Seq,
    last_msg_id: bytes,
    needs_room: bool,
    account_room: int | None = None,
    rules: int = PUBLISH_RULES,
    verdict: Verdict | None = None,
) -> Admitted | JsError | tuple[int, Seq]:
    """Decide about one publish. `last_seq` and `last_msg_id` are what they will be once all
    before it is stored. It needs no room if it will only use up its seq.
    `account_room`: bytes that the account has left; None: enough."""
    limits = content.limits
    subject, headers, payload = msg
    size = len(headers) + len(payload)
    if size + len(subject) > RECORD_BYTES_MAX:
        return errors.STREAM_STORE_FAILED(err="message too large")
    if limits.is_sealed:
        return errors.STREAM_SEALED()
    if 0 <= limits.max_msg_size < size and not limits.is_counter:
        return errors.STREAM_MESSAGE_EXCEEDS_MAXIMUM()
    if len(headers) > HEADERS_BYTES_MAX:
        return errors.STREAM_HEADER_EXCEEDS_MAXIMUM()
    admitted = Admitted(msg)
    if fields:
        if rules >= PRODUCER_RULES and (producers.ID in fields or producers.SEQUENCE in fields):
            # Before all that depends on what is stored: a message again is one, whatever it asks.
            claim = content.producers.judge(fields, limits.producers_max)
            if claim is not None and not isinstance(claim, Claim):
                return claim
            admitted.claim = claim
        refused = _check_expectations(content, msg, fields, last_seq, rules, verdict)
        if refused is not None:
            return refused
        msg_id = fields.get(MSG_ID, b"")
        if msg_id and content.dedupe.window_ns > 0:
            seen = content.dedupe.find(msg_id)
            if seen:
                return DUPLICATE, seen
        admitted.msg_id = msg_id
        expected_id = fields.get(EXPECTED_MSG_ID)
        if expected_id and expected_id != last_msg_id:
            return errors.STREAM_WRONG_LAST_MSG_ID(id=last_msg_id.decode("utf-8", "replace"))
        refused = _check_rollup(content, fields, admitted)
        if refused is not None:
            return refused
        if content.limits.allows_schedules:
            _schedule(fields, admitted, verdict)
    if limits.is_counter:
        refused = _count(content, fields, admitted, last_seq + 1, content.counters.of(subject))
        if refused is not None:
            return refused
    if (
        account_room is not None
        and needs_room
        and content.index.sizes.of_message(admitted.msg) > account_room
    ):
        return errors.ACCOUNT_RESOURCES_EXCEEDED()
    if TTL in fields and needs_room:
        refused = _check_ttl(content, fields, admitted)
        if refused is not None:
            return refused
    if headers:
        admitted.flags |= marker_flags(headers)
    if needs_room and limits.checks_room:
        refused = check_room(content, admitted.msg, is_rollup=bool(admitted.rollup))
        if refused is not None:
            return refused
    return admitted


def claim_of_duplicate(content: StreamContent, fields: Fields, rules: int) -> Claim | None:
    """Return what a producer has stored by a message that was there before by its id; None: it
    names no producer, or its number is stored already. Acked as it is, its number must count: the
    producer goes on with the next."""
    if rules < PRODUCER_RULES or producers.ID not in fields:
        return None
    claim = content.producers.judge(fields, content.limits.producers_max)
    return claim if isinstance(claim, Claim) else None


def _check_expectations(
    content: StreamContent,
    msg: Msg,
    fields: Fields,
    last_seq: Seq,
    rules: int,
    verdict: Verdict | None,
) -> JsError | None:
    subject = msg[0]
    refused = _check_incr(content, msg, fields)
    if refused is not None:
        return refused
    expected = fields.get(EXPECTED_STREAM)
    if expected and expected != content.name_bytes:
        return errors.STREAM_NOT_MATCH()
    ttl = fields.get(TTL)
    if ttl and not content.limits.allows_ttl and message_headers.parse_ttl(ttl) is not None:
        return errors.MESSAGE_TTL_DISABLED()  # one that makes no sense is refused behind the rest
    refused = check_subject_seq(content, subject, fields)
    if refused is not None:
        return refused
    expected = fields.get(EXPECTED_LAST_SEQ)
    if expected and message_headers.parse_number(expected) != last_seq:
        return errors.STREAM_WRONG_LAST_SEQUENCE(seq=last_seq)
    refused = _check_schedule(content, subject, fields, rules, verdict)
    if refused is None and _has(fields, SOURCE, rules):
        refused = errors.MESSAGE_SOURCE_HDR_NOT_ALLOWED()
    return refused


def _has(fields: Fields, key: bytes, rules: int) -> bool:
    """True if a header is given; without a value it is not, unless the entry is an old one."""
    return bool(fields.get(key)) if rules else key in fields


def _check_schedule(
    content: StreamContent, subject: bytes, fields: Fields, rules: int, verdict: Verdict | None
) -> JsError | None:
    """Headers of a schedule must not be taken for a message where no schedules are allowed."""
    is_schedule = _has(fields, SCHEDULE, rules)
    is_allowed = content.limits.allows_schedules
    if verdict is not None and verdict[1]:
        return _VERDICTS[verdict[1]]() if is_allowed else errors.MESSAGE_SCHEDULES_DISABLED()
    if is_schedule:
        if not is_allowed or verdict is None:
            return errors.MESSAGE_SCHEDULES_DISABLED()
        refused = _check_fired(content, subject, fields)
        if refused is not None:
            return refused
    if not rules:
        return None
    scheduler, following = fields.get(SCHEDULER), fields.get(SCHEDULE_NEXT)
    if not scheduler and not following:
        return None
    if following == b"purge" and scheduler and scheduler != subject and is_literal(scheduler):
        if not is_allowed:
            return errors.MESSAGE_SCHEDULES_DISABLED()
        if content.schedules.find(scheduler) or not content.index.lookup.last_of(scheduler):
            return None
    return errors.MESSAGE_SCHEDULES_SCHEDULER_INVALID()


def _check_fired(content: StreamContent, subject: bytes, fields: Fields) -> JsError | None:
    """Terms of a schedule for the messages that it will bring."""
    ttl = fields.get(SCHEDULE_TTL)
    if ttl and message_headers.parse_ttl(ttl) is None:
        return errors.MESSAGE_SCHEDULES_TTL_INVALID()
    rollup = fields.get(SCHEDULE_ROLLUP)
    if rollup and rollup != b"sub":
        return errors.MESSAGE_SCHEDULES_ROLLUP_INVALID()
    if ttl and not content.limits.allows_ttl:
        return errors.MESSAGE_TTL_DISABLED()
    own = [pattern.encode() for pattern in content.config.get("subjects") or ()]

    def is_own(name: bytes) -> bool:
        return is_valid_literal(name) and any(matches(pattern, name) for pattern in own)

    target = fields.get(SCHEDULE_TARGET, b"")
    if target == subject or not is_own(target):
        return errors.MESSAGE_SCHEDULES_TARGET_INVALID()
    source = fields.get(SCHEDULE_SOURCE)
    if source and (source in (target, subject) or not is_own(source)):
        return errors.MESSAGE_SCHEDULES_SOURCE_INVALID()
    rollup = fields.get(ROLLUP)
    if rollup and rollup.lower() != b"sub":
        return errors.MESSAGE_SCHEDULES_ROLLUP_INVALID()
    return None


def is_schedule(headers: bytes) -> bool:
    """True if a stored message with these headers is a schedule: none that came from another
    stream is."""
    if SCHEDULE not in headers:
        return False
    fields = message_headers.server_headers(headers)
    return bool(fields.get(SCHEDULE)) and SOURCE not in fields


def _schedule(fields: Fields, admitted: Admitted, verdict: Verdict | None) -> None:
    """Make what was checked a schedule, the only one of its subject, or the end of one."""
    if verdict is not None and verdict[0] and fields.get(SCHEDULE):
        admitted.due_ns = verdict[0]
        if not admitted.rollup:
            admitted.rollup = b"sub"
            subject, headers, payload = admitted.msg
            headers = message_headers.with_header(headers, ROLLUP, b"sub")
            admitted.msg = subject, headers, payload
    if fields.get(SCHEDULER) and fields.get(SCHEDULE_NEXT) == b"purge":
        admitted.ends = fields[SCHEDULER]


def admit_fired(content: StreamContent, given: Sequence[bytes]) -> Admitted | None:
    """Return a message that a schedule brings as it is to be stored; None: no stream can hold it.
    Only what it asks of the stream is looked at: it was checked as a part of its schedule."""
    subject, headers, payload = given
    size = len(subject) + len(headers) + len(payload)
    if size > RECORD_BYTES_MAX or len(headers) > HEADERS_BYTES_MAX or not subject:
        return None
    admitted = Admitted((subject, headers, payload))
    fields = fields_of(headers, PUBLISH_RULES)
    if content.limits.allows_ttl and _check_ttl(content, {TTL: fields.get(TTL, b"")}, admitted):
        return None
    if fields.get(ROLLUP) == b"sub" and content.limits.allows_rollup:
        admitted.rollup = b"sub"
    admitted.flags |= marker_flags(headers)
    return admitted


def _check_incr(content: StreamContent, msg: Msg, fields: Fields) -> JsError | None:
    value = fields.get(INCR)
    if not value:
        return None
    if not _match_integer(value):
        return errors.MESSAGE_INCR_INVALID()
    if not content.limits.is_counter:
        return errors.MESSAGE_INCR_DISABLED()
    if msg[2]:
        return errors.MESSAGE_INCR_PAYLOAD()
    if any(map(fields.get, _NOT_OF_COUNTERS)):
        return errors.MESSAGE_INCR_INVALID()
    return None


def _count(
    content: StreamContent, fields: Fields, admitted: Admitted, seq: Seq, total: Total | None
) -> JsError | None:
    """Make a publish to a counter the message that is stored as `seq`. `total`: what the counter
    stands at; None: nobody knows."""
    increment = fields.get(INCR)
    if not increment:
        return errors.MESSAGE_INCR_MISSING()
    if total is None:
        return errors.MESSAGE_COUNTER_BROKEN()
    made = counters.counted(total, admitted.msg, increment, seq)
    if isinstance(made, JsError):
        return made
    admitted.msg, admitted.total = made
    subject, headers, payload = admitted.msg
    size = len(headers) + len(payload)
    if 0 <= content.limits.max_msg_size < size or size + len(subject) > RECORD_BYTES_MAX:
        return errors.STREAM_MESSAGE_EXCEEDS_MAXIMUM()
    if len(headers) > HEADERS_BYTES_MAX:
        return errors.STREAM_HEADER_EXCEEDS_MAXIMUM()
    return None


def check_subject_seq(content: StreamContent, subject: bytes, fields: Fields) -> JsError | None:
    """`Nats-Expected-Last-Subject-Sequence`, for the message's own subject or a given filter."""
    expected = fields.get(EXPECTED_SUBJECT_SEQ)
    pattern = fields.get(EXPECTED_SUBJECT)
    if expected:
        if pattern and pattern != subject:
            found = content.index.lookup.last_match(Matcher([pattern]))
        else:
            found = content.index.lookup.last_of(subject)
        if message_headers.parse_number(expected) != found:
            return errors.STREAM_WRONG_LAST_SEQUENCE(seq=found)
    elif pattern:
        return errors.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID()
    return None


def _check_rollup(content: StreamContent, fields: Fields, admitted: Admitted) -> JsError | None:
    rollup = fields.get(ROLLUP)
    if not rollup:
        return None
    limits = content.limits
    if not limits.allows_rollup or limits.denies_purge:
        return errors.STREAM_ROLLUP_FAILED(err="rollup not permitted")
    value = rollup.lower()
    if value not in (b"sub", b"all"):
        text = value.decode("utf-8", "replace")
        return errors.STREAM_ROLLUP_FAILED(err=f'rollup value invalid: "{text}"')
    admitted.rollup = value
    return None


def _check_ttl(content: StreamContent, fields: Fields, admitted: Admitted) -> JsError | None:
    value = fields[TTL]
    if not value:
        return None
    ttl_ns = message_headers.parse_ttl(value)
    if ttl_ns is None:
        return errors.MESSAGE_TTL_INVALID()
    if ttl_ns == message_headers.NEVER:
        admitted.flags |= IS_NEVER
        return None
    floor = content.limits.marker_ttl_ns // SECOND_NS  # as it is written down
    floor_ns = floor * SECOND_NS
    if ttl_ns < floor_ns and content.limits.max_per_subject != 1:
        # Else the message would leave before its marker could, and an older one show again.
        ttl_ns = floor_ns
        subject, headers, payload = admitted.msg
        text = b"%d" % floor
        headers = message_headers.with_header(message_headers.without(headers, TTL), TTL, text)
        admitted.msg = subject, headers, payload
    admitted.flags |= HAS_TTL
    admitted.ttl_ns = ttl_ns
    return None


def marker_flags(headers: bytes) -> int:
    """NO_MARKER if the expiry of a message with these headers leaves no delete marker."""
    if MARKER_REASON in headers and message_headers.get(headers, MARKER_REASON):
        return NO_MARKER
    if b"KV-Operation" in headers and message_headers.get(headers, b"KV-Operation") == b"PURGE":
        return NO_MARKER
    return 0


def flags_from(headers: bytes) -> int:
    """The flags of a stored message, from its record: what `check` gave it."""
    if not headers:
        return 0
    flags = HAS_HEADERS | marker_flags(headers)
    value = message_headers.server_headers(headers).get(TTL) if TTL in headers else None
    if value:
        # Trimmed: of a message that was stored by older rules, blanks behind it meant nothing.
        ttl_ns = message_headers.parse_ttl(value.strip())
        if ttl_ns == message_headers.NEVER:
            flags |= IS_NEVER
        elif ttl_ns is not None:
            flags |= HAS_TTL
    return flags


def check_room(
    content: StreamContent,
    msg: Msg,
    *,
    count: int = 0,
    more_bytes: int = 0,
    same: int = 0,
    is_rollup: bool = False,
) -> JsError | None:
    """Discard new: is there room for one more message, when `count` messages of `more_bytes` are
    already promised theirs, `same` of them on its subject? What is stored here never pushes out
    another subject's message; one that replaces an older one of its own subject needs no more
    room than that has. One that takes the place of all of them is none too many of its subject."""
    limits, index = content.limits, content.index
    subject = msg[0]
    size = index.sizes.of_message(msg)
    stored = index.subjects.count_of(subject)
    replaces = 0 < limits.max_per_subject <= stored
    is_full = 0 < limits.max_per_subject <= stored + same
    if is_full and limits.is_discard_new_per_subject and not is_rollup:
        return errors.STREAM_STORE_FAILED(err="maximum messages per subject exceeded")
    if 0 < limits.max_msgs <= index.count + count and not replaces:
        return errors.STREAM_STORE_FAILED(err="maximum messages exceeded")
    if 0 < limits.max_bytes < index.live.bytes + more_bytes + size:
        if not replaces or index.locations.size_of(index.lookup.first_of(subject)) < size:
            return errors.STREAM_STORE_FAILED(err="maximum bytes exceeded")
    return None


def check_batch(
    content: StreamContent,
    msgs: Sequence[Msg],
    rules: int = PUBLISH_RULES,
    account_room: int | None = None,
    verdicts: Mapping[int, Verdict] = NO_VERDICTS,
) -> tuple[list[bytes], list[Admitted], JsError | None]:
    """Decide about an atomic batch as a whole, against the state before it.

    Returns the ids of its first messages, which need no more than these (`simple_batch_ids`), what
    is to be stored of each behind them, and why the batch is refused. `account_room` as in `check`.
    """
    index = content.index
    admitted: list[Admitted] = []
    simple: list[bytes] = []
    ids: set[bytes] = set()
    written: Counter[bytes] = Counter()  # messages by subject
    more_bytes = 0
    totals: dict[bytes, Total] = {}  # of counters, as this batch leaves them
    if content.limits.is_plain:
        simple = simple_batch_ids(msgs, content.limits.size_max)
        if not rules:
            simple = [msg_id.strip() for msg_id in simple]
        given = [msg_id for msg_id in simple if msg_id]
        ids.update(given)
        if len(ids) < len(given) or any(map(content.dedupe.find, given)):
            return [], [], errors.ATOMIC_PUBLISH_CONTAINS_DUPLICATE_MESSAGE()
        written.update([msg[0] for msg in msgs[: len(simple)]])
    for position in range(len(simple), len(msgs)):
        msg = msgs[position]
        subject, headers, payload = msg
        fields = fields_of(headers, rules) if headers else {}
        verdict = verdicts.get(position)
        refused = _check_in_batch(content, msg, fields, position, ids, written, rules, verdict)
        if refused is not None:
            return [], [], refused
        one = Admitted(msg)
        one.msg_id = fields.get(MSG_ID, b"")
        if one.msg_id:
            ids.add(one.msg_id)
        refused = _check_rollup(content, fields, one)
        if refused is None and one.rollup == b"all" and position:
            refused = errors.STREAM_ROLLUP_FAILED(err="batch rollup all invalid")
        if refused is None and one.rollup == b"sub" and subject in written:
            refused = errors.STREAM_ROLLUP_FAILED(err="batch rollup sub invalid")
        if refused is None and TTL in fields:
            refused = _check_ttl(content, fields, one)
        if refused is None and content.limits.allows_schedules:
            _schedule(fields, one, verdict)
            msg = one.msg
            _, headers, payload = msg
        if refused is None and content.limits.is_counter:
            total = totals[subject] if subject in totals else content.counters.of(subject)
            refused = _count(content, fields, one, index.last_seq + 1 + position, total)
            if one.total is not None:
                totals[subject] = one.total
                msg = one.msg
                _, headers, payload = msg
        size = len(headers) + len(payload)
        if refused is None and 0 <= content.limits.max_msg_size < size:
            refused = errors.STREAM_MESSAGE_EXCEEDS_MAXIMUM()
        if refused is None and len(headers) > HEADERS_BYTES_MAX:
            refused = errors.STREAM_HEADER_EXCEEDS_MAXIMUM()
        if refused is None and content.limits.checks_room:
            same = written[subject]
            refused = check_room(
                content,
                msg,
                count=position,
                more_bytes=more_bytes,
                same=same,
                is_rollup=bool(one.rollup),
            )
        if refused is not None:
            return [], [], refused
        more_bytes += index.sizes.of_message(msg)
        written[subject] += 1
        one.flags |= marker_flags(headers) if headers else 0
        admitted.append(one)
    assert len(simple) + len(admitted) == len(msgs), (len(admitted), index.last_seq)
    if account_room is not None and sum(map(index.sizes.of_message, msgs)) > account_room:
        return [], [], errors.ACCOUNT_RESOURCES_EXCEEDED()
    return simple, admitted, None


def _check_in_batch(
    content: StreamContent,
    msg: Msg,
    fields: Fields,
    position: int,
    ids: set[bytes],
    written: Collection[bytes],
    rules: int,
    verdict: Verdict | None,
) -> JsError | None:
    """The header checks of one message of an atomic batch."""
    subject = msg[0]
    if sum(map(len, msg)) > RECORD_BYTES_MAX:
        return errors.STREAM_STORE_FAILED(err="message too large")
    if content.limits.is_sealed:
        return errors.STREAM_SEALED()
    if fields.get(EXPECTED_MSG_ID):
        return errors.ATOMIC_PUBLISH_UNSUPPORTED_HEADER_BATCH(header=EXPECTED_MSG_ID.decode())
    if rules >= PRODUCER_RULES and (fields.get(producers.ID) or fields.get(producers.SEQUENCE)):
        return errors.ATOMIC_PUBLISH_UNSUPPORTED_HEADER_BATCH(header=producers.ID.decode())
    refused = _check_incr(content, msg, fields)
    if refused is not None:
        return refused
    expected = fields.get(EXPECTED_STREAM)
    if expected and expected != content.name_bytes:
        return errors.STREAM_NOT_MATCH()
    ttl = fields.get(TTL)
    if ttl and not content.limits.allows_ttl:
        return errors.MESSAGE_TTL_DISABLED()
    if ttl and message_headers.parse_ttl(ttl) is None:
        return errors.MESSAGE_TTL_INVALID()
    msg_id = fields.get(MSG_ID)
    if msg_id and (msg_id in ids or content.dedupe.find(msg_id)):
        return errors.ATOMIC_PUBLISH_CONTAINS_DUPLICATE_MESSAGE()
    if _has(fields, SOURCE, rules):
        return errors.MESSAGE_SOURCE_HDR_NOT_ALLOWED()
    expected = fields.get(EXPECTED_LAST_SEQ)
    if expected:
        last_seq = content.index.last_seq + position
        if message_headers.parse_number(expected) != last_seq:
            return errors.STREAM_WRONG_LAST_SEQUENCE(seq=last_seq)
        if position:  # true, but only of the batch itself
            return errors.STREAM_WRONG_LAST_SEQUENCE_CONSTANT()
    if fields.get(EXPECTED_SUBJECT_SEQ):
        named = fields.get(EXPECTED_SUBJECT) or subject
        if named == subject or is_literal(named):
            was_written = named in written
        else:
            was_written = any(map(Matcher([named]).test, written))
        if was_written:
            return errors.STREAM_WRONG_LAST_SEQUENCE_CONSTANT()
    refused = check_subject_seq(content, subject, fields)
    if refused is not None:
        return refused
    return _check_schedule(content, subject, fields, rules, verdict)
