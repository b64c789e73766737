"""Headers and replies that change what a publish means: each is done, refused, or dropped."""

from __future__ import annotations

import base64

from tests.parity.recorder import SILENCE_S, Recorder
from tests.parity.registry import scenario
from tests.parity.scenarios.delivery import consumer
from tests.wire import Wire

NOWHERE = b"Nats-Trace-Dest: nowhere.x"
ONLY = b"Nats-Trace-Only: true"
PLAIN = {"name": "S", "subjects": ["s.>"]}
RICH = {
    "name": "R",
    "subjects": ["r.>"],
    "allow_rollup_hdrs": True,
    "allow_msg_ttl": True,
    "allow_atomic": True,
}
LONE_HEADERS = (
    *(b"Nats-Incr: " + value for value in (b"1", b"+1", b"-1", b"x", b"1.5", b"", b" 1", b"1 ")),
    b"Nats-Counter-Sources: {}",
    *(b"Nats-Schedule: " + value for value in (b"@every 1s", b"nonsense", b"", b" ")),
    b"Nats-Schedule-Target: s.b",
    b"Nats-Schedule-Source: s.b",
    b"Nats-Schedule-TTL: 1s",
    b"Nats-Schedule-TTL: nonsense",
    b"Nats-Schedule-Rollup: sub",
    b"Nats-Schedule-Rollup: nonsense",
    *(b"Nats-Schedule-Time-Zone: " + zone for zone in (b"UTC", b"CET")),
    b"Nats-Scheduler: s.b",
    b"Nats-Scheduler: ",
    *(b"Nats-Schedule-Next: " + value for value in (b"purge", b"nonsense", b"")),
    b"Nats-Batch-Id: b",
    b"Nats-Batch-Id: ",
    b"Nats-Batch-Sequence: 1",
    b"Nats-Batch-Commit: 1",
    *(b"Nats-TTL: " + value for value in (b"5", b"nonsense", b"", b"5 ", b"never ")),
    *(b"Nats-Rollup: " + value for value in (b"sub", b"SUB", b"nonsense", b"", b"sub ")),
    *(b"Nats-Expected-Stream: " + value for value in (b"S", b"R", b"Q", b"", b"S ", b"R ")),
    *(b"Nats-Expected-Last-Sequence: " + value for value in (b"9999", b"x", b"", b"-1")),
    *(b"Nats-Expected-Last-Subject-Sequence: " + value for value in (b"9999", b"x", b"")),
    b"Nats-Expected-Last-Subject-Sequence-Subject: s.a",
    b"Nats-Expected-Last-Msg-Id: nonsense",
    b"Nats-Expected-Last-Msg-Id: ",
    b"Nats-Required-Api-Level: 99",
    b"Nats-Required-Api-Level: x",
    b"Nats-Stream-Source: S 1 > > a",
    b"Nats-Stream-Source: ",
    b"Nats-Stream-Identity: x",
    b"Nats-Stream: X",
    b"Nats-Subject: y",
    b"Nats-Sequence: 1",
    b"Nats-Time-Stamp: x",
    b"Nats-Last-Sequence: 4",
    b"Nats-Num-Pending: 4",
    b"Nats-UpTo-Sequence: 4",
    b"Nats-Msg-Size: 3",
    b"Nats-Last-Consumer: 3",
    b"Nats-Last-Stream: 3",
    b"Nats-Consumer-Stalled: x",
    b"Nats-Pending-Messages: 3",
    b"Nats-Pending-Bytes: 3",
    b"Nats-Pin-Id: x",
    b"Nats-Response-Type: create",
    b"Nats-Request-Info: {}",
    b"Nats-Service-Error: x",
    b"Nats-Service-Error-Code: 1",
    b"Nats-Marker-Reason: MaxAge",
    b"Nats-Trace-Hop: 1",
    b"Nats-Trace-Origin-Account: A",
    b"Nats-Trace-Only: true",
    b"Accept-Encoding: gzip",
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"KV-Operation: DEL",
    b"KV-Operation: PURGE",
    b"Status: 503",
    b"Description: x",
)


def block(*lines: bytes) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def publish(at: Recorder, subject: str, headers: bytes, *, reply: str = "") -> None:
    """Publish, and record the answer and what the stream holds last."""
    if reply:
        wire = at.wire
        sid = wire.subscribe(reply)
        wire.publish(subject, b"x", reply=reply, headers=headers or None)
        at.note_frames(f"{subject} {reply}", wire.collect(count=1, within_s=4 * SILENCE_S))
        wire.unsubscribe(sid)
    else:
        at.pub(subject, headers=headers, within_s=SILENCE_S)
    stored(at, subject[0].upper())


def stored(at: Recorder, stream: str) -> None:
    """Record how much a stream holds, and the headers of its last message as they are."""
    state = at.api(f"STREAM.INFO.{stream}", is_quiet=True).get("state", {})
    last = state.get("last_seq", 0)
    message = at.api(f"STREAM.MSG.GET.{stream}", {"seq": last}, is_quiet=True).get("message", {})
    headers = base64.b64decode(message.get("hdrs", "")).decode()
    at.note(f"stored in {stream}", [state.get("messages"), last, headers])


def heard(at: Recorder, wire: Wire) -> None:
    """Record what subscribers got, headers as they are."""
    frames = wire.fence()
    at.note("heard", [[frame.subject, frame.headers.decode()] for frame in frames])


@scenario
def each_header_alone(at: Recorder) -> None:
    """Every header that a server knows, in a stream with no feature and in one with many."""
    at.api("STREAM.CREATE.S", PLAIN)
    at.api("STREAM.CREATE.R", RICH)
    for subject in ("s.a", "r.a"):
        for line in LONE_HEADERS:
            publish(at, subject, block(line))


@scenario
def schedules_where_there_are_none(at: Recorder) -> None:
    """Which of several faults is told, and that the headers of a schedule that fired are no plain
    message's either."""
    at.api("STREAM.CREATE.S", PLAIN)
    every, bad = b"Nats-Schedule: @every 1s", b"Nats-Schedule: nonsense"
    purge, scheduler = b"Nats-Schedule-Next: purge", b"Nats-Scheduler: s.b"
    expected, source = b"Nats-Expected-Last-Sequence: 9999", b"Nats-Stream-Source: S 1 > > a"
    for lines in (
        (every, b"Nats-Schedule-Target: s.b"),
        (bad, b"Nats-Schedule-Time-Zone: nowhere"),
        (bad, expected),
        (scheduler, expected),
        (bad, source),
        (scheduler, source),
        (bad, b"Nats-TTL: 5"),
        (scheduler, b"Nats-TTL: 5"),
        (bad, b"Nats-Incr: 1"),
        (purge, scheduler),
        (b"Nats-Schedule-Next: nonsense", scheduler),
        (purge, b"Nats-Scheduler: s.a"),
        (purge, b"Nats-Scheduler: s.*"),
        (purge, b"Nats-Scheduler: "),
        (b"Nats-Schedule: ", scheduler),
        (b"Nats-Schedule: ", purge, scheduler),
        (every, scheduler),
        (every, purge, scheduler),
        (b"Nats-Schedule: ", b"Nats-Schedule-Time-Zone: UTC"),
        (b"Nats-Schedule-Time-Zone: UTC", scheduler),
        (b"nats-schedule: @every 1s",),
        (b"Nats-Schedule-Next: purge ", scheduler),
    ):
        publish(at, "s.a", block(*lines))


@scenario
def schedules_in_atomic_batches(at: Recorder) -> None:
    at.api("STREAM.CREATE.R", RICH)
    for number, line in enumerate(
        (
            b"Nats-Schedule: @every 1s",
            b"Nats-Schedule: ",
            b"Nats-Scheduler: r.b",
            b"Nats-Schedule-Next: purge",
            b"Nats-Stream-Source: ",
            b"Nats-Stream-Source: x",
            b"Nats-Request-Info: {}",
            b"Nats-Incr: 1",
            b"Nats-Trace-Dest: nowhere.x",
        )
    ):
        head = b"Nats-Batch-Id: b%d" % number
        publish(at, "r.a", block(head, b"Nats-Batch-Sequence: 1", line))
        publish(at, "r.a", block(head, b"Nats-Batch-Sequence: 2", b"Nats-Batch-Commit: 1"))


@scenario
def traces_that_reach_nobody(at: Recorder) -> None:
    """`Nats-Trace-Only` with a destination: neither subscribers nor streams get the message."""
    at.api("STREAM.CREATE.S", PLAIN)
    listener = at.connect()
    for subject in ("s.>", "c.>"):
        listener.subscribe(subject)
    listener.fence()
    values = (b"true", b"TRUE", b"1", b"on", b"yes", b"false", b"0", b"", b"\ttrue", b"1 ")
    for subject in ("c.a", "s.a"):
        for lines in (
            *((NOWHERE, b"Nats-Trace-Only: " + value) for value in values),
            (ONLY,),
            (NOWHERE,),
            (b"Nats-Trace-Dest: nowhere.*", ONLY),
            (b"Nats-Trace-Dest: a..b", ONLY),
            (b"Nats-Trace-Dest: ", ONLY),
            (b"Nats-Trace-Dest:q", b"Nats-Trace-Only:true"),
            (b"Nats-Trace-Dest: trace disabled", ONLY),
            (b"nats-trace-dest: q", b"nats-trace-only: true"),
            (NOWHERE, b"Nats-Trace-Only: false", ONLY),
            (NOWHERE, ONLY, b"Nats-Trace-Only: false"),
            (b"A: 1", NOWHERE, b"B: 2", ONLY, b"C: 3"),
            (b"Nats-Msg-Id: 1", NOWHERE, ONLY),
            (b"Nats-Msg-Id: 1",),
        ):
            at.wire.publish(subject, b"x", headers=block(*lines))
            at.wire.fence()
            heard(at, listener)
        at.wire.publish(subject, b"x", headers=block(NOWHERE, ONLY).replace(b"1.0", b"1.0 503", 1))
        at.wire.fence()
        heard(at, listener)
        stored(at, "S")


@scenario
def a_trace_of_what_nobody_wants(at: Recorder) -> None:
    """Who would have got nothing hears so; what a stream alone would have stored is silent."""
    at.api("STREAM.CREATE.S", PLAIN)
    publish(at, "s.a", block(NOWHERE, ONLY))
    publish(at, "s.a", block(NOWHERE, ONLY), reply="inbox.b.10.ok.1.0.$FI")
    at.pub("n.a", headers=block(NOWHERE, ONLY), within_s=SILENCE_S)
    at.pub("n.a", headers=block(NOWHERE), within_s=SILENCE_S)
    queue = at.connect()
    queue.subscribe("n.*", "group")
    queue.fence()
    at.pub("n.a", headers=block(NOWHERE, ONLY), within_s=SILENCE_S)
    heard(at, queue)


@scenario
def traced_requests(at: Recorder) -> None:
    """Requests of the API are not done; acks, pulls and direct gets are."""
    at.api("STREAM.CREATE.S", PLAIN | {"allow_direct": True})
    at.fill("s.a", "s.b")
    consumer(at)
    traced = {"Nats-Trace-Dest": "nowhere.x", "Nats-Trace-Only": "true"}
    create = b'{"name":"Q","subjects":["q"]}'
    for subject, body in (
        ("STREAM.INFO.S", b""),
        ("STREAM.CREATE.Q", create),
        ("STREAM.MSG.GET.S", b'{"seq":1}'),
        ("DIRECT.GET.S", b'{"seq":1}'),
        ("CONSUMER.MSG.NEXT.S.C", b"1"),
        ("STREAM.DELETE.S", b""),
        ("NOTHING", b""),
    ):
        frames = at.wire.ask(f"$JS.API.{subject}", body, headers=traced, within_s=SILENCE_S)
        at.note(subject, at.frames(frames))
    at.api("STREAM.NAMES")
    taken = at.pull("S", "C", {"batch": 1}, count=1)
    answer = at.wire.ask(taken[0].reply, b"+ACK", headers=traced, within_s=SILENCE_S)
    at.note("ack", at.frames(answer))
    at.api("CONSUMER.INFO.S.C")


@scenario
def traces_into_streams(at: Recorder) -> None:
    """A message is traced once: what a stream gives back later must not be."""
    at.api("STREAM.CREATE.S", PLAIN)
    for lines in (
        (b"A: 1", NOWHERE, b"B: 2"),
        (b"Nats-Trace-Dest:q",),
        (NOWHERE, b"Nats-Trace-Dest: other"),
        (b"Nats-Trace-Dest: a b",),
        (b"Nats-Trace-Dest: a.*",),
        (b"Nats-Trace-Dest: $SYS.a",),
        (b"Nats-Trace-Dest: ",),
        (NOWHERE, b"Nats-Request-Info: {}"),
    ):
        publish(at, "s.a", block(*lines))


@scenario
def status_lines(at: Recorder) -> None:
    """The text of a status line is cut on the way into a stream; subscribers see what was sent."""
    at.api("STREAM.CREATE.S", PLAIN)
    at.api("STREAM.CREATE.R", RICH)
    listener = at.connect()
    listener.subscribe("s.>")
    listener.fence()
    for headers in (
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0 503 X\r\nA: 1\r\n\r\n",
        b"NATS/1.0 \r\n\r\n",
        b"NATS/1.0X\r\nA: 1\r\n\r\n",
        b"NATS/1.0\r\n\r\n",
        b"XATS/1.0 503\r\n\r\n",
        b"nats/1.0 503\r\n\r\n",
        b"NATS/1.1 503\r\n\r\n",
        b"\r\n\r\n",
        b"NATS/1.0",
        b"NATS/1.0 503",
        b"NATS/1.0 503\r\n",
        b"NATS/1.0 503\r\nA: 1\r\n",
        b"NATS/1.0 503\r\nA: 1",
        b"NATS/1.0\nA: 1\r\n\r\n",
        b"NATS/1.0 404 No Messages\r\n\r\n\r\n",
        b"NATS/1.0 503\r\nNats-Msg-Id: x\r\n\r\n",
        b"NATS/1.0 503\r\nNats-Request-Info: x\r\n\r\n",
        b"NATS/1.0\r\nNats-Request-Info: x\r\n\r\n",
        b"NATS/1.0\r\nNats-Request-Info:x\r\nNats-Request-Info: y\r\nA: 1\r\n\r\n",
        b"NATS/1.0\r\nnats-request-info: x\r\n\r\n",
        b"NATS/1.0 503\r\nNats-Trace-Dest: q.x\r\n\r\n",
    ):
        publish(at, "s.a", headers)
        heard(at, listener)
    for number, commit in ((1, b""), (2, b"Nats-Batch-Commit: 1\r\n")):
        head = b"NATS/1.0 503\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: %d\r\n" % number
        publish(at, "r.a", head + commit + b"\r\n")


@scenario
def a_status_line_and_a_pull(at: Recorder) -> None:
    """A fetched message is a message: it can be acked, and the next one comes."""
    at.api("STREAM.CREATE.S", PLAIN)
    consumer(at)
    publish(at, "s.a", b"NATS/1.0 404 No Messages\r\n\r\n")
    publish(at, "s.a", b"NATS/1.0 409 Consumer Deleted\r\nA: 1\r\n\r\n")
    for _ in range(2):
        at.ack(at.pull("S", "C", {"batch": 1}, count=1)[0])
    at.api("CONSUMER.INFO.S.C")


@scenario
def blanks_of_header_values(at: Recorder) -> None:
    """Blanks before a value are skipped; a tab, and all that follows a value, belongs to it."""
    at.api("STREAM.CREATE.S", PLAIN)
    for value in (b"one", b" one", b"   one", b" one ", b" one  ", b"\tone", b" one\t", b" \tone"):
        publish(at, "s.a", b"NATS/1.0\r\nNats-Msg-Id:" + value + b"\r\n\r\n")
        publish(at, "s.a", b"NATS/1.0\r\nNats-Msg-Id:" + value + b"\r\nA: 1\r\n\r\n")
    at.api("STREAM.CREATE.R", RICH)
    for value in (b" two", b" two ", b"two", b" two"):
        head = b"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: 1\r\nNats-Batch-Commit: 1\r\n"
        publish(at, "r.a", head + b"Nats-Msg-Id:" + value + b"\r\n\r\n")
    for lines in (
        (b"Nats-Batch-Id: c", b"Nats-Batch-Sequence: 1 ", b"Nats-Batch-Commit: 1"),
        (b"Nats-Batch-Id: d ", b"Nats-Batch-Sequence: 1", b"Nats-Batch-Commit: 1"),
        (b"Nats-Batch-Id: e", b"Nats-Batch-Sequence: 1", b"Nats-Batch-Commit: 1 "),
        (b"Nats-Batch-Id:f", b"Nats-Batch-Sequence:   1", b"Nats-Batch-Commit:1"),
        (b"Nats-Batch-Id: ", b"Nats-Batch-Sequence: 1", b"Nats-Batch-Commit: 1"),
    ):
        publish(at, "r.a", block(*lines))
    for level in ("1", " 1", "1 ", "\t1", "99 "):
        frames = at.wire.ask(
            "$JS.API.STREAM.NAMES", headers={"Nats-Required-Api-Level": level}, within_s=SILENCE_S
        )
        at.note(f"level {level!r}", at.frames(frames))


@scenario
def fast_batches_where_there_are_none(at: Recorder) -> None:
    """A reply subject of a fast batch is no plain publish's; it is told before all else."""
    at.api("STREAM.CREATE.S", PLAIN)
    at.api("STREAM.CREATE.R", RICH)
    for reply in (
        "inbox.b.10.ok.1.0.$FI",
        "inbox.b.10.fail.1.2.$FI",
        "inbox.b.10.ok.2.1.$FI",
        "inbox.b.10.ok.3.4.$FI",
        "inbox.bad.$FI",
        "b.$FI",
        "inbox.b.10.nonsense.1.0.$FI",
        f"inbox.{'b' * 65}.10.ok.1.0.$FI",
        "$FI",
        "inbox.b.10.ok.1.0.$FI.x",
        "inbox.b.10.ok.1.0.$fi",
    ):
        publish(at, "s.a", b"", reply=reply)
    fast = "inbox.b.10.ok.1.0.$FI"
    batch = block(b"Nats-Batch-Id: b", b"Nats-Batch-Sequence: 1")
    for headers in (block(b"Nats-Expected-Last-Sequence: 99"), block(b"Nats-Msg-Id: 1"), batch):
        publish(at, "s.a", headers, reply=fast)
        publish(at, "r.a", headers, reply=fast)
    publish(at, "s.a", block(b"Nats-Msg-Id: 1"))
    at.api("STREAM.CREATE.N", {"name": "N", "subjects": ["n.>"], "no_ack": True})
    publish(at, "n.a", b"", reply=fast)
    at.api("STREAM.CREATE.M", {"name": "M", "subjects": ["m.>"], "max_msg_size": 0})
    at.api("STREAM.UPDATE.S", PLAIN | {"sealed": True})
    publish(at, "s.a", b"", reply=fast)
    publish(at, "s.a", batch)
    at.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t.>"], "max_msg_size": 3})
    wire = at.wire
    wire.subscribe(fast)
    wire.publish("t.a", b"too much", reply=fast)
    at.note_frames("too much", wire.collect(count=1, within_s=4 * SILENCE_S))


@scenario
def fast_batches_that_nobody_stores(at: Recorder) -> None:
    """Between subscribers such a reply subject is one like any other."""
    listener = at.connect()
    listener.subscribe("c.>")
    listener.fence()
    at.wire.publish("c.a", b"x", reply="inbox.b.10.ok.1.0.$FI")
    at.note_frames("heard", listener.collect(count=1, within_s=4 * SILENCE_S))
