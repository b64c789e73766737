"""Message schedules: what is refused, what is stored, what is fired and when it ends."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.parity.recorder import ANSWER_S, Recorder
from tests.parity.registry import add, scenario

LATER = "@at 2099-01-01T00:00:00Z"
NEXT = re.compile(r"Nats-Schedule-Next: \d[^\r]*")


def stream(at: Recorder, **more: Any) -> None:
    config = {"name": "S", "subjects": ["s.>"], "allow_msg_schedules": True, "allow_msg_ttl": True}
    at.api("STREAM.CREATE.S", config | more)


def schedule(
    at: Recorder, pattern: str | None, subject: str = "s.a", *, target: str = "s.t", **more: str
) -> dict[str, Any]:
    headers: dict[str, str] = {} if pattern is None else {"Nats-Schedule": pattern}
    if target:
        headers["Nats-Schedule-Target"] = target
    headers |= {"Nats-" + key.replace("_", "-"): text for key, text in more.items()}
    return at.pub(subject, b"body", headers=headers)


def shown(at: Recorder, *, last: int = 0) -> None:
    """Record every message, headers as they are but for the time of what comes next."""
    state = at.api("STREAM.INFO.S", is_quiet=True).get("state", {})
    for seq in range(1, (last or state.get("last_seq", 0)) + 1):
        message = at.api("STREAM.MSG.GET.S", {"seq": seq}, is_quiet=True).get("message")
        if message:
            headers = base64.b64decode(message.get("hdrs", "")).decode()
            body = base64.b64decode(message.get("data", "")).decode()
            found = [message["subject"], NEXT.sub("Nats-Schedule-Next: <time>", headers), body]
            at.note(f"message {seq}", found)


def fired(at: Recorder, count: int) -> None:
    """Wait until the stream has given out `count` sequences."""
    at.wait_until(lambda: at.api("STREAM.INFO.S", is_quiet=True)["state"]["last_seq"] >= count, 15)
    shown(at, last=count)


def past(seconds: float = -60) -> str:
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return f"@at {moment:%Y-%m-%dT%H:%M:%SZ}"


PATTERNS = (
    LATER, "@at 2099-01-01T00:00:00+02:00", "@at 2099-01-01T00:00:00.123456789Z",
    "@at 2099-01-01", "@at  2099-01-01T00:00:00Z", "@at 2099-01-01T00:00:00",
    "@AT 2099-01-01T00:00:00Z", "@at ", "@at", "@at 2099-13-01T00:00:00Z",
    "@at 2099-01-01t00:00:00z", "@at 9999-12-31T23:59:59Z", "@every 1h", "@every 1s",
    "@every 1h30m", "@every 0s", "@every 999ms", "@every -1h", "@every 1d", "@every  1h",
    "@every 1.5h", "@Every 1h", "@every", "@every 1h ", "@every 3000000h", "@yearly", "@annually",
    "@monthly", "@weekly", "@daily", "@midnight", "@hourly", "@Daily", "@reboot", "@minutely",
    "0 0 5 * * *", "* * * * *", "0 0 5 * * * *", "0 0 5 31 2 *", "0 0 5 29 2 *", "0 0 5 * * 7",
    "0 0 5 * * 0", "0 0 5 * * sun", "0 0 5 * * SUN-tue", "0 0 5 * JAN,feb *", "0 0 5 * foo *",
    "0 0 5 ? * ?", "0  0\t5 * * *", " 0 0 5 * * *", "0 0 5 * * * ", "60 0 5 * * *",
    "59 59 23 31 12 6", "0 60 5 * * *", "0 0 24 * * *", "0 0 5 0 * *", "0 0 5 32 * *",
    "0 0 5 * 0 *", "0 0 5 * 13 *", "0 0 10-5 * * *", "0 0 5-10 * * *", "0 0 5-10/2 * * *",
    "0 0 5/2 * * *", "0 0 */2 * * *", "0 0 */0 * * *", "0 0 */x * * *", "0 0 */100 * * *",
    "0 0 5, * * *", "0 0 , * * *", "0 0 5,6,7 * * *", "0 0 5 L * *", "0 0 5 15W * *",
    "0 0 5 * * 1#2", "-1 0 5 * * *", "+5 0 5 * * *", "0 0 5-6-7 * * *", "0 0 */2/2 * * *",
    "0 0 *-5 * * *", "0 0 5 * * mon-fri", "nonsense", " ", "0 0 ? * * *", "0 0 5 1 * mon",
    "0 0 5 30,31 2 mon", "0 0 5 31 4,6,9,11 *", "TZ=UTC 0 0 5 * * *", "CRON_TZ=UTC 0 0 5 * * *",
    "1_0 0 5 * * *", "0 0 05 * * *", "*/30 * * * * *",
)  # fmt: skip


def patterns(some: tuple[str, ...]) -> Any:
    def run(at: Recorder) -> None:
        stream(at)
        for number, pattern in enumerate(some):
            if pattern in ("@every 1s", "*/30 * * * * *"):
                continue  # it would fire meanwhile
            schedule(at, pattern, f"s.p{number}")
        at.note("state", at.api("STREAM.INFO.S", is_quiet=True)["state"]["messages"])

    return run


for number in range(0, len(PATTERNS), 20):
    add(f"schedules.patterns from {number}", patterns(PATTERNS[number : number + 20]))

ZONES = (
    "UTC", "Local", "CET", "Europe/Berlin", "europe/berlin", "America/New_York", "Nowhere/X", "",
    "../../etc/passwd", "/etc/localtime", "EST5EDT", "GMT+1", "Etc/GMT+1", "UTC ", "Europe",
    "a" * 300, "posix/Europe/Berlin", "Europe/../Europe/Berlin", "zone.tab", "utc",
)  # fmt: skip


@scenario
def zones(at: Recorder) -> None:
    stream(at)
    for number, zone in enumerate(ZONES):
        schedule(at, "0 0 5 * * *", f"s.z{number}", Schedule_Time_Zone=zone)
    for pattern in ("@daily", LATER, "@every 1h"):
        schedule(at, pattern, Schedule_Time_Zone="UTC")
        schedule(at, pattern, Schedule_Time_Zone="")
    schedule(at, None, Schedule_Time_Zone="Nowhere")
    shown(at)


OTHERS: tuple[dict[str, str], ...] = (
    {"target": ""}, {"target": "s.a"}, {"target": "t.x"}, {"target": "s.*"}, {"target": "s.>"},
    {"target": "s..x"}, {"target": "s.t "}, {"target": "s.x.y.z"}, {"target": ">"},
    {"Schedule_TTL": "5s"}, {"Schedule_TTL": "x"}, {"Schedule_TTL": "0"}, {"Schedule_TTL": "never"},
    {"Schedule_TTL": ""}, {"Schedule_TTL": "500ms"}, {"Schedule_Rollup": "sub"},
    {"Schedule_Rollup": "all"}, {"Schedule_Rollup": "SUB"}, {"Schedule_Rollup": ""},
    {"Schedule_Source": "s.b"}, {"Schedule_Source": "s.a"}, {"Schedule_Source": "s.t"},
    {"Schedule_Source": "t.x"}, {"Schedule_Source": "s.*"}, {"Schedule_Source": ""},
    {"Rollup": "sub"}, {"Rollup": "all"}, {"Rollup": "SUB"}, {"Rollup": "zzz"}, {"Rollup": ""},
    {"TTL": "1h"}, {"TTL": "x"}, {"Msg_Id": "m"}, {"Msg_Id": "m"},
    {"Expected_Last_Sequence": "999"}, {"Expected_Stream": "T"},
    {"Incr": "1"}, {"Scheduler": "s.q"}, {"Schedule_Next": "purge"},
    {"Scheduler": "s.q", "Schedule_Next": "purge"}, {"Scheduler": "s.q", "Schedule_Next": "x"},
    {"Stream_Source": "x"}, {"Schedule_TTL": "x", "Schedule_Rollup": "x", "target": ""},
    {"Schedule_Rollup": "x", "target": ""}, {"target": "", "Schedule_Source": "s.*"},
    {"Schedule_Source": "s.*", "Rollup": "all"},
)  # fmt: skip


def headers(config: dict[str, Any]) -> Any:
    def run(at: Recorder) -> None:
        stream(at, **config)
        for number, more in enumerate(OTHERS):
            subject = "s.a" if "s.a" in more.values() else f"s.o{number}"
            schedule(at, LATER, subject, **more)
            schedule(at, "x", subject, **more)
            schedule(at, "", subject, **more)
            schedule(at, None, subject, **more)
        shown(at)

    return run


for title, config in (
    ("on", {}),
    ("off", {"allow_msg_schedules": False}),
    ("no ttl", {"allow_msg_ttl": False}),
    (
        "rollups denied",
        {"allow_msg_schedules": False, "allow_rollup_hdrs": False, "deny_purge": True},
    ),
):
    add(f"schedules.headers {title}", headers(config))

CREATED: tuple[dict[str, Any], ...] = (
    {"discard": "new"},
    {"deny_purge": True},
    {"deny_purge": True, "allow_rollup_hdrs": True},
    {"pedantic": True},
    {"retention": "workqueue"},
    {"retention": "interest"},
    {"storage": "memory", "max_msgs_per_subject": 1},
    {"allow_atomic": True},
)


def created(more: dict[str, Any]) -> Any:
    def run(at: Recorder) -> None:
        stream(at, **more)
        schedule(at, past())
        schedule(at, LATER, "s.b")
        if at.api("STREAM.INFO.S", is_quiet=True).get("state", {}).get("messages"):
            fired(at, 3)

    return run


for number, one in enumerate(CREATED):
    add(f"schedules.created {number} {' '.join(one)}", created(one))


@scenario
def updates(at: Recorder) -> None:
    stream(at)
    base = {"name": "S", "subjects": ["s.>"], "allow_msg_ttl": True}
    at.api("STREAM.UPDATE.S", base)
    at.api("STREAM.UPDATE.S", base | {"allow_msg_schedules": True, "discard": "new"})
    at.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t.>"]})
    at.api("STREAM.UPDATE.T", {"name": "T", "subjects": ["t.>"], "allow_msg_schedules": True})


@scenario
def one_that_is_past_fires_at_once(at: Recorder) -> None:
    stream(at)
    listener = at.connect()
    listener.subscribe("s.t")
    listener.fence()
    schedule(at, past(), A="b", Msg_Id="m", TTL="1h")
    fired(at, 2)
    at.note_frames("heard", listener.fence())
    at.api("STREAM.INFO.S")


FIRED: tuple[dict[str, str], ...] = (
    {"Schedule_TTL": "1h"},
    {"Schedule_TTL": "never"},
    {"Schedule_Rollup": "sub"},
    {"Schedule_TTL": "5m", "Schedule_Rollup": "sub", "Expected_Stream": "S"},
    {"Marker_Reason": "x", "Trace_Dest": "x", "Required_Api_Level": "2"},
    {"TTL": "2h", "Rollup": "sub"},
)


def fires(more: dict[str, str]) -> Any:
    def run(at: Recorder) -> None:
        stream(at)
        at.fill("s.t", "s.t")
        schedule(at, past(), **more)
        fired(at, 4)
        at.api("STREAM.INFO.S", {"subjects_filter": ">"})

    return run


for number, one_fired in enumerate(FIRED):
    add(f"schedules.fired {number}", fires(one_fired))


@scenario
def repeated(at: Recorder) -> None:
    stream(at)
    schedule(at, "@every 1s")
    fired(at, 3)
    at.api("STREAM.PURGE.S", {"filter": "s.a"})
    at.api("STREAM.INFO.S", {"subjects_filter": ">"}, is_quiet=True)


@scenario
def by_the_clock(at: Recorder) -> None:
    stream(at)
    schedule(at, "* * * * * *", Schedule_Rollup="sub")
    fired(at, 3)
    at.api("STREAM.PURGE.S", {"filter": "s.a"})


@scenario
def source_has_the_body_and_headers(at: Recorder) -> None:
    stream(at)
    at.pub("s.b", b"one", headers={"X": "y", "Nats-Msg-Id": "q", "Nats-TTL": "1h"})
    schedule(at, past(), Schedule_Source="s.b", A="b", Schedule_TTL="10m")
    fired(at, 3)
    schedule(at, past(), Schedule_Source="s.none", A="b")
    fired(at, 5)
    schedule(at, LATER, "s.other")
    schedule(at, past(), Schedule_Source="s.other", A="b")
    fired(at, 8)


@scenario
def ends_by_a_publish(at: Recorder) -> None:
    stream(at)
    schedule(at, LATER)
    end = {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "s.a"}
    at.pub("s.x", headers=end)
    at.api("STREAM.INFO.S", {"subjects_filter": ">"})
    at.pub("s.x", headers=end)
    at.pub("s.a", headers=end)
    at.fill("s.a")
    at.pub("s.x", headers=end)
    at.pub("s.x", headers=end | {"Nats-Scheduler": "s.none"})
    at.pub("s.x", headers=end | {"Nats-Scheduler": "s.*"})
    at.pub("s.x", headers=end | {"Nats-Scheduler": "t.none"})
    at.pub("s.x", headers=end | {"Nats-Schedule-Next": "2099-01-01T00:00:00Z"})
    at.pub("s.x", headers={"Nats-Schedule-Next": "purge"})
    at.pub("s.x", headers={"Nats-Scheduler": "s.a"})
    shown(at)


@scenario
def another_takes_its_place(at: Recorder) -> None:
    stream(at)
    schedule(at, LATER)
    schedule(at, LATER, target="s.u")
    shown(at)
    at.fill("s.a")
    schedule(at, past(2), "s.b")
    at.fill("s.b")
    schedule(at, past(), "s.c")
    fired(at, 7)
    at.api("STREAM.INFO.S", {"subjects_filter": ">"})


@scenario
def batches(at: Recorder) -> None:
    stream(at, allow_atomic=True)
    head = {"Nats-Batch-Id": "b", "Nats-Schedule-Target": "s.t"}
    for batch, second in (("b", past()), ("c", "x"), ("d", "")):
        head["Nats-Batch-Id"] = batch
        one = head | {"Nats-Batch-Sequence": "1", "Nats-Schedule": LATER}
        at.pub("s.a", headers=one)
        last = head | {"Nats-Batch-Sequence": "2", "Nats-Schedule": second}
        at.pub("s.b", headers=last | {"Nats-Batch-Commit": "1"})
    fired(at, 3)


@scenario
def transformed(at: Recorder) -> None:
    stream(at, subject_transform={"src": "s.*", "dest": "x.$1"})
    schedule(at, past(), target="s.t")
    schedule(at, past(), target="x.t")
    fired(at, 2)


@scenario
def consumers_get_what_is_fired(at: Recorder) -> None:
    stream(at, republish={"src": "s.t", "dest": "r.t"})
    listener = at.connect()
    listener.subscribe("r.>")
    listener.fence()
    consumer = {"name": "c", "ack_policy": "explicit", "filter_subject": "s.t"}
    at.api("CONSUMER.CREATE.S.c.s.t", {"stream_name": "S", "config": consumer})
    schedule(at, past())
    at.pull("S", "c", {"batch": 1, "expires": 5_000_000_000}, count=1)
    at.note_frames("heard", listener.collect(count=1, within_s=ANSWER_S))
