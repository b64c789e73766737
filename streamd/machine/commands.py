"""The vocabulary of log entries: what may be proposed to a stream group or to the meta group.

A command is a plain list, `[KIND, ...]`, stored as msgpack. Lists and ints rather than classes,
because one entry holds a whole socket chunk of messages and is encoded on the hot path by one C
call. Times are ns since the epoch and come from the leader that proposed the entry.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import msgpack

from streamd.errors import JsError
from streamd.machine.base import Effects
from streamd.types import Entry, Seq

Command = list[Any]
Handler = Callable[[Entry, Command, Effects], object]
"""A function that applies the commands of one kind; the result is the outcome of its entry."""

# --- stream group -------------------------------------------------------------------------------
PUBLISH_RULES = 2
"""By which rules a publish is checked today. Each entry names its own: the log is applied again at
every start, and what was acked as seq n must be seq n again, whatever was learned since. 0 (no
rules named): blanks on both sides of a header's value mean nothing, and the headers of a schedule
that fired, or is to end, are like any other. 1: see `message_headers` and `publish`, but the
headers of a producer are like any other. 2: see `producers`, too."""
PRODUCER_RULES = 2
"""The first rules by which a producer's headers mean something."""

STORE = 1
"""[STORE, ts, msgs, rules, room]: publishes of one turn; msgs is a list of (subject, headers,
payload). `rules` (absent: 0) is the PUBLISH_RULES of the leader that proposed it. `room`: so many
bytes the account lets the stream store (absent: enough for all of them). Outcome: a list with one
item per message, in order, or a `range` when all were simply stored: int n > 0 stored as seq n;
(DUPLICATE, n) seen before as seq n; (COUNTED, n, total) stored as seq n of a counter; JsError
refused."""
STORE_BATCH = 2
"""[STORE_BATCH, ts, batch_id, msgs, rules, room]: an atomic batch, committed: all of it or nothing.
`rules` and `room` as in STORE. Outcome: (last_seq, count) or JsError."""
DELIVERED = 3
"""[DELIVERED, ts, consumer_uid, items, resets, refilters]: the leader sent these to a client. items
is a list of (first_sseq, last_sseq, first_cseq, kind): inclusive ranges of *live, matching* msgs; a
range of n matching messages uses n consumer seqs, so for a filtered consumer or a stream with gaps
each range holds only consecutive stored seqs. kind: False, delivered a first time; True, again; 2,
not delivered but parked (no consumer seqs): their subjects have enough that is not acked; 3,
delivered a first time after that. `resets` is the consumer's count of
resets when this was planned: deliveries planned before a reset are void after it. `refilters`
(absent: 0) is its count of other filters: what an earlier one let through is not what is counted
now. No outcome."""
ACKED = 4
"""[ACKED, ts, consumer_uid, sseqs]: positive acks (for AckAll each means all up to it).
Outcome (only if tagged): True."""
NAKED = 5
"""[NAKED, ts, consumer_uid, [(sseq, delay_ns)]]: -NAK; redeliver after delay (0 at once)."""
TERMED = 6
"""[TERMED, ts, consumer_uid, [(sseq, reason: str)]]: +TERM."""
PROGRESS = 7
"""[PROGRESS, ts, consumer_uid, sseqs]: +WPI, the ack clock starts anew."""
DEAD = 8
"""[DEAD, ts, consumer_uid, sseqs]: reached max_deliver; leaves pending, stays in the stream."""
POSITION = 9
"""[POSITION, ts, consumer_uid, sseq, cseq, resets, refilters]: where an AckNone consumer has got
to. `resets` and `refilters` as in DELIVERED."""
EXPIRE = 10
"""[EXPIRE, ts, up_to_seq, seqs]: age is over for every live message up to `up_to_seq` (0: none)
and for each of `seqs` (per-message TTL); the leader, who holds the clock, named them. Messages
marked `Nats-TTL: never` survive up_to_seq. May leave delete markers."""
PURGE = 11
"""[PURGE, ts, filter: bytes, seq, keep]: remove messages (0 = not given). Outcome: count."""
DELETE_MSG = 12
"""[DELETE_MSG, ts, seq, no_erase, before, total, sources]. Where the newest message of a counter
goes: the message of its subject before it, and what the counter stood at then (absent: there is
none, or it is no counter). Outcome: True or JsError."""
CONFIGURE = 13
"""[CONFIGURE, ts, config: dict, meta_index]: a new stream config, already committed by meta.
Outcome: True or JsError."""
CREATE_CONSUMER = 14
"""[CREATE_CONSUMER, ts, name: str, config: dict, action: str, is_pedantic, most, begins_anew]:
action is "", "create" or "update". `most`: so many consumers the account lets a stream have (absent
or 0: any number). `begins_anew` (absent: False): if it exists, it is also reset to its ack floor.
The consumer's uid is the entry's index. Outcome: Consumer (machine/consumers/consumer.py), or
JsError."""
DELETE_CONSUMER = 15
"""[DELETE_CONSUMER, ts, name: str, consumer_uid, reason, removes_later]: uid 0 = whatever has the
name. reason "" (asked for) or "inactive". `removes_later` (absent: False): what only this consumer
wanted stays for now, the leader takes it out by and by (REMOVE). Outcome: True or JsError."""
PAUSE_CONSUMER = 16
"""[PAUSE_CONSUMER, ts, name: str, until_ns]: 0 resumes; the time that is set already, once it is
over: the pause has ended. Outcome: Consumer or JsError."""
RESET_CONSUMER = 17
"""[RESET_CONSUMER, ts, name: str, seq]: seq 0: after the ack floor. Outcome: Consumer, JsError."""
CHECKPOINT = 18
"""[CHECKPOINT, ts, index, digest]: take the fingerprint here, at this very entry, so that replicas
can compare theirs. Understood by both kinds of group. `index` and `digest` are what the proposer
had; they are not judged: it proposed before what is in between was applied. Outcome: True."""

REWRITE = 19
"""[REWRITE, ts, block_nos, ranges, records]: one block takes the place of neighbouring sealed ones
that hold little that is live. ranges: its seqs, [first, last, ...] inclusive, ascending; records:
theirs, one behind another. Outcome: True, or False if these blocks are not there any more."""
REMOVE = 20
"""[REMOVE, ts, ranges]: a part of what a PURGE, CONFIGURE or DELETE_CONSUMER takes out, removed
apart from it so that no entry holds the loop for long. ranges: seqs, [first, last, ...] inclusive,
ascending. Outcome: how many were still there."""
COPY = 30
"""[COPY, ts, origin, identity, after, last, seqs, times, msgs, room]: messages of another stream,
the origin of a mirror ("") or of the source of that index name, as its leader received them;
identity is that of the origin's stream, "" where it is unknown. `after` and `last`: the origin's
seq up to which its messages had been taken before, and are by this; unless the position is `after`,
nothing changes. seqs: the origin's, ascending, one for each message; times: when the origin stored
them (mirrors; else none). `room` as in STORE. Outcome: the position; less than `last` if the stream
has no room for more."""

IMPORT = 25
"""[IMPORT, ts, msgs, last_seq]: messages of an archive, for a stream that is being restored. msgs
is a list of (seq, ts, subject, headers, payload) with ascending seqs beyond the stream's last; what
is missing between them was deleted. `last_seq` (0: not given): the stream ends there at least.
Outcome: True or JsError."""
IMPORT_CONSUMER = 26
"""[IMPORT_CONSUMER, ts, name: str, config: dict, created_ns, state]: a consumer of an archive, for
a stream that is being restored. state is [delivered_cseq, delivered_sseq, floor_cseq, floor_sseq,
[(sseq, cseq, ts)] of what is pending, [(sseq, deliveries)] of what was delivered more than once].
The consumer's uid is the entry's index. Outcome: True or JsError."""
STORE_SCHEDULED = 40
"""[STORE_SCHEDULED, ts, msgs, rules, verdicts, room]: a STORE with schedules among its messages.
verdicts: [position, due, err_code] of messages that are schedules: when they are due first, or why
their pattern is none. `room` as in STORE. Outcome: as of a STORE."""
STORE_SCHEDULED_BATCH = 41
"""[STORE_SCHEDULED_BATCH, ts, batch_id, msgs, rules, verdicts, room]: a STORE_BATCH with schedules
among its messages. Outcome: as of a STORE_BATCH."""
FIRE = 42
"""[FIRE, ts, items]: schedules are due. Each item: [subject, seq, due, next_due, source, msg]. The
schedule on `subject`, the message `seq`, to be due at `due`, is due next at `next_due` (0: it ends,
and leaves). msg is what is stored for it, [subject, headers, payload]; None if nothing is. source:
[subject, seq] of the message that gave the body; [] if the schedule itself did. An item whose
schedule, or source, is another by now changes nothing. Outcome: how many fired."""
STORE_FAST = 43
"""[STORE_FAST, ts, msgs, rules, members, verdicts, room]: messages of fast batches, in order, with
those that end or ping one, whose msg is not stored. members: [id, is_ok, flow, seq, operation,
count], the members that follow each other in one batch (see `fast_batches`); the counts are as many
as msgs. verdicts as in STORE_SCHEDULED, room as in STORE. Outcome: a list of (position, answers),
for each member that is answered; an answer is an outcome as of a STORE, or (TOLD, 0, JSON)."""
DROP_FAST = 44
"""[DROP_FAST, ts, batches]: fast batches that idled too long, [id, seq]: each is dropped unless
something was done in it behind `seq`. Outcome: how many."""

LETTERS_SENT = 45
"""[LETTERS_SENT, ts, numbers]: dead letters (see `dead_letters`) that are stored where they were to
go, or whose message is not to be had. Outcome: how many were still to be sent."""

# --- meta group ---------------------------------------------------------------------------------
CREATE_STREAM = 101
"""[CREATE_STREAM, ts, config: dict, peers: list[str] | None, bounds]. The stream's uid is the
entry's index; its account is in the config. Its replicas are to live on `peers` (None or absent: on
the one node there is; empty: nowhere, it exists). Outcome: StreamAsset (machine/meta.py) or
JsError; creating what exists with equal config gives the existing asset.

bounds: [streams, bytes, replicas], the most streams that the account may have, and bytes that those
of this storage may set aside (-1: any number), counted over streams with `replicas` (0: over all).
"""
UPDATE_STREAM = 102
"""[UPDATE_STREAM, ts, name: str, config: dict, peers: list[str] | None, basis]: None or absent:
where its replicas live does not change. Outcome: StreamAsset or JsError.

basis: [uid, *peers] of the stream as it was when this was decided, or absent: if it is another by
now, nothing changes, and the outcome is STREAM_MOVE_IN_PROGRESS."""
DELETE_STREAM = 103
"""[DELETE_STREAM, ts, name: str, uid, is_restoring_only]: uid 0 = what has the name in `$G`.
`is_restoring_only` (absent: False): a stream whose restore came to its end stays. Outcome: True or
JsError."""
SET_PEERS = 104
"""[SET_PEERS, ts, uid, peers: list[str], basis]: where the stream's replicas are to live from now
on; its leader changes the group's membership towards that. basis: see UPDATE_STREAM. Outcome:
StreamAsset or JsError."""
MOVED = 105
"""[MOVED, ts, uid, members: list[str]]: the stream's leader reports that the group's membership is
exactly `members`. Who is in neither these nor the wanted peers may drop its replica. Outcome:
StreamAsset or JsError."""
REMOVE_SERVER = 106
"""[REMOVE_SERVER, ts, name: str]: the server of that name belongs to the cluster no more, and is no
peer of any stream that has others. Outcome: True."""
ADMIT_SERVER = 107
"""[ADMIT_SERVER, ts, name: str]: a server of a removed one's name has joined with an empty store
directory. Outcome: True."""
ADOPT_STREAM = 108
"""[ADOPT_STREAM, ts, uid, config: dict, update_index]: a stream whose files a single server has,
and whose creation its log has lost, is known again by its uid. The stream's own log may have a
later config: that one stays. Outcome: StreamAsset or JsError."""
ACCEPT_LOSS = 109
"""[ACCEPT_LOSS, ts, known_to, used_to]: the group has lost the end of its log, and goes on. Streams
created after entry `known_to` that are not known here are lost, not deleted; no entry up to
`used_to` numbers anything, for one that was lost may have. Outcome: True."""

DUPLICATE = -1
"""First item of a STORE outcome for a message whose id was seen inside the window."""
COUNTED = -2
"""First item of a STORE outcome for a message that changed a counter."""
TOLD = -3
"""First item of an outcome that is the text of the answer: (TOLD, 0, JSON)."""

PublishOutcome = Seq | tuple[int, Seq] | tuple[Seq, int, str | bytes] | JsError
"""Outcome of one message: its seq; (DUPLICATE, seq); (last seq, count, name) of an atomic batch; or
why it is not stored. Also
(DUPLICATE, seq), and (COUNTED, seq, total)."""

_pack = msgpack.Packer(use_bin_type=True).pack
_pack_bin16 = Struct(">BH").pack  # msgpack: bytes of up to 64 KiB, their kind and length
_pack_bin32 = Struct(">BI").pack  # longer ones
_LARGE_PAYLOAD_BYTES = 4096  # from here on a second copy costs more than doing it step by step


def encode(command: Command) -> bytes:
    """Return the bytes of `command` as they are logged and sent."""
    packed: bytes = _pack(command)
    return packed


def encode_store(command: Command) -> bytes:
    """`encode` of a STORE. Copies large payloads once, where msgpack does it twice."""
    ts, msgs, *rest = command[1:]
    if len(msgs[0][2]) < _LARGE_PAYLOAD_BYTES:
        return encode(command)
    # The head of a list, whatever it holds: as many empty items are a byte each.
    head = bytes((0x90 | len(command),)) + _pack((STORE, ts, ()))[1:-1]
    pieces = [head, _pack([None] * len(msgs))[: -len(msgs)]]
    for subject, headers, payload in msgs:
        size = len(payload)
        head = _pack((subject, headers, b""))
        if size <= 0xFF:
            pieces += (head[:-1], bytes((size,)), payload)
        elif size <= 0xFFFF:
            pieces += (head[:-2], _pack_bin16(0xC5, size), payload)
        else:
            pieces += (head[:-2], _pack_bin32(0xC6, size), payload)
    pieces += map(_pack, rest)
    return b"".join(pieces)


def decode(data: bytes) -> Command:
    """Inverse of `encode`. Tuples come back as lists; nothing relies on the difference."""
    command: Command = msgpack.unpackb(data, raw=False, strict_map_key=False, use_list=True)
    return command
