"""Valid requests to JetStream, and valid publishes, with something wrong in most of them.

Each starts from what a client would send: a request of any endpoint, or a message with headers that
mean something. Then up to three things are done to it: another type or size of a value, an unknown,
missing or doubled field, bytes that are no JSON, another subject, other headers. One of five stays
as it is, so that streams and consumers come and go while the rest is sent.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from streamd.api import shapes
from streamd.api.decoding import Enum, Shape

Document = dict[str, Any]

STREAMS = ("a", "b", "c", "d", "e", "f")
CONSUMERS = ("c1", "c2", "c3", "c4")
FEATURED: dict[str, Document] = {
    "k": {"allow_msg_counter": True, "allow_direct": True},
    "h": {"allow_msg_schedules": True, "allow_msg_ttl": True, "allow_rollup_hdrs": True},
    "q": {"allow_batched": True, "allow_atomic": True, "max_msgs": 1000},
    "t": {"allow_msg_ttl": True, "subject_delete_marker_ttl": 10**9, "allow_rollup_hdrs": True},
}
"""Streams that a round begins with, beside those that it makes and deletes."""
UNTOUCHED_SHARE = 0.2
_SECOND_NS = 10**9
_NO_SUBJECT = (" ", "\t", "\r", "\n", "\0")  # ends the line of the protocol, not the request


class Sent(NamedTuple):
    """A message as it goes out; `reply` is added to the inbox of the sender."""

    subject: str
    headers: bytes
    payload: bytes
    reply: str = ""


class Corrupter:
    """Requests of one seed. `replicas`: of the streams that are asked for, mostly."""

    def __init__(self, seed: int, *, replicas: int = 1) -> None:
        self._rng = random.Random(seed)
        self._replicas = replicas
        self._requests: list[tuple[float, Callable[[], tuple[str, Document | None]]]] = [
            (8, self._stream_create),
            (4, self._stream_update),
            (3, lambda: self._of_stream("STREAM.INFO", shapes.STREAM_INFO)),
            (1, lambda: ("STREAM.NAMES", self._fields(shapes.STREAM_NAMES, 1))),
            (0.5, lambda: ("STREAM.LIST", self._fields(shapes.STREAM_LIST, 1))),
            (2, lambda: self._of_stream("STREAM.PURGE", shapes.STREAM_PURGE)),
            (3, lambda: self._of_stream("STREAM.MSG.GET", shapes.MSG_GET)),
            (2, lambda: self._of_stream("STREAM.MSG.DELETE", shapes.MSG_DELETE)),
            (1, lambda: self._of_stream("STREAM.DELETE", None)),
            (0.2, self._snapshot),
            (0.3, self._restore),
            (10, self._consumer_create),
            (1, lambda: self._of_stream("CONSUMER.NAMES", shapes.CONSUMERS)),
            (0.5, lambda: self._of_stream("CONSUMER.LIST", shapes.CONSUMERS)),
            (2, lambda: self._of_consumer("CONSUMER.INFO", None)),
            (1, lambda: self._of_consumer("CONSUMER.DELETE", None)),
            (1, lambda: self._of_consumer("CONSUMER.PAUSE", shapes.CONSUMER_PAUSE)),
            (1, lambda: self._of_consumer("CONSUMER.UNPIN", shapes.CONSUMER_UNPIN)),
            (1, lambda: self._of_consumer("CONSUMER.RESET", shapes.CONSUMER_RESET)),
            (3, self._next),
            (3, lambda: self._of_stream("DIRECT.GET", shapes.MSG_GET)),
            (0.2, lambda: self._of_stream("STREAM.LEADER.STEPDOWN", shapes.STEP_DOWN)),
            (0.2, lambda: self._of_consumer("CONSUMER.LEADER.STEPDOWN", None)),
            (0.3, lambda: self._of_stream("STREAM.PEER.REMOVE", shapes.PEER_REMOVE)),
            (0.3, lambda: self._of_stream("STREAM.CANCEL_MOVE", None)),
            (0.2, lambda: ("SERVER.REMOVE", {"peer": "nobody"})),
            (0.2, lambda: ("ACCOUNT.STREAM.MOVE.$G.a", self._fields(shapes.STREAM_MOVE, 2))),
            (0.1, lambda: ("ACCOUNT.PURGE.NOBODY", None)),
            (1, lambda: ("INFO", None)),
        ]
        self._weights = [weight for weight, _ in self._requests]

    def next(self) -> Sent:
        """Return the next message."""
        rng = self._rng
        is_whole = rng.random() < UNTOUCHED_SHARE
        if rng.random() < 0.4:
            subject, headers, payload, reply = self._publish()
            if not is_whole:
                headers, payload = self._corrupt_headers(headers), self._corrupt_bytes(payload, 0.2)
                if reply and rng.random() < 0.5:
                    reply = self._corrupt_subject(reply)
            return Sent(subject, _block(headers), payload, reply)
        _, make = rng.choices(self._requests, self._weights)[0]
        endpoint, document = make()
        subject = f"$JS.API.{endpoint}"
        if is_whole:
            return Sent(subject, b"", _json(document))
        for _ in range(rng.choice((1, 1, 2, 3))):
            if document is not None and rng.random() < 0.75:
                self._corrupt_document(document)
            elif rng.random() < 0.3:
                subject = self._corrupt_subject(subject)
        payload = self._corrupt_bytes(_json(document), 0.15)
        api_headers: list[tuple[str, str]] = []
        if rng.random() < 0.1:
            api_headers = [("Nats-Required-Api-Level", rng.choice(("0", "4", "99", "x", "-1")))]
        return Sent(subject, _block(api_headers), payload)

    # --- valid requests -----------------------------------------------------------------------

    def _stream(self) -> str:
        return self._rng.choice(STREAMS if self._rng.random() < 0.8 else tuple(FEATURED))

    def _of_stream(self, endpoint: str, shape: Shape | None) -> tuple[str, Document | None]:
        return f"{endpoint}.{self._stream()}", self._fields(shape, 2) if shape else None

    def _of_consumer(self, endpoint: str, shape: Shape | None) -> tuple[str, Document | None]:
        name = f"{self._stream()}.{self._rng.choice(CONSUMERS)}"
        return f"{endpoint}.{name}", self._fields(shape, 1) if shape else None

    def _stream_config(self, name: str) -> Document:
        config: Document = {"name": name, "subjects": [f"{name}.>"], "storage": "file"}
        if self._rng.random() < 0.5:
            config["num_replicas"] = self._replicas
        if self._rng.random() < 0.3:
            config["storage"] = "memory"
        if self._rng.random() < 0.1:
            del config["subjects"]
            config["mirror"] = {"name": self._stream()}
        elif self._rng.random() < 0.1:
            config["sources"] = [{"name": self._stream()}]
        if self._rng.random() < 0.7:
            config |= self._fields(shapes.STREAM_CONFIG, 3) | {"name": name}
        config.pop("placement", None)
        return config

    def _stream_create(self) -> tuple[str, Document]:
        name = self._rng.choice(STREAMS)
        return f"STREAM.CREATE.{name}", self._stream_config(name)

    def _stream_update(self) -> tuple[str, Document]:
        name = self._rng.choice(STREAMS)
        return f"STREAM.UPDATE.{name}", self._stream_config(name)

    def _snapshot(self) -> tuple[str, Document]:
        wanted = {"deliver_subject": "_INBOX.nobody", "chunk_size": 1024}
        return f"STREAM.SNAPSHOT.{self._stream()}", wanted | self._fields(shapes.STREAM_SNAPSHOT, 1)

    def _restore(self) -> tuple[str, Document]:
        name = self._rng.choice(STREAMS)
        state = {"messages": 1, "bytes": 10, "first_seq": 1, "last_seq": 1}
        return f"STREAM.RESTORE.{name}", {"config": self._stream_config(name), "state": state}

    def _consumer_create(self) -> tuple[str, Document]:
        rng = self._rng
        stream, name = self._stream(), rng.choice(CONSUMERS)
        config: Document = {"ack_policy": rng.choice(("explicit", "all", "none"))}
        shape = shapes.CREATE_CONSUMER.fields["config"]
        assert isinstance(shape, Shape)
        config |= self._fields(shape, rng.choice((0, 1, 3)))
        config |= {"name": name, "durable_name": name}
        if rng.random() < 0.2:
            config["deliver_subject"] = f"_INBOX.push.{name}"
        document: Document = {"stream_name": stream, "config": config}
        if rng.random() < 0.3:
            document["action"] = rng.choice(("create", "update", ""))
        kind = rng.random()
        if kind < 0.2:
            return f"CONSUMER.DURABLE.CREATE.{stream}.{name}", document
        if kind < 0.4:
            config["filter_subject"] = f"{stream}.1"
            return f"CONSUMER.CREATE.{stream}.{name}.{stream}.1", document
        if kind < 0.5:
            del config["name"], config["durable_name"]
            config["inactive_threshold"] = _SECOND_NS
            return f"CONSUMER.CREATE.{stream}", document
        return f"CONSUMER.CREATE.{stream}.{name}", document

    def _next(self) -> tuple[str, Document]:
        endpoint, _ = self._of_consumer("CONSUMER.MSG.NEXT", None)
        wanted: Document = {"batch": self._rng.randint(1, 5), "no_wait": True}
        if self._rng.random() < 0.3:
            wanted = {"batch": 1, "expires": 10**7, "max_bytes": 100, "idle_heartbeat": 10**6}
        return endpoint, wanted

    # --- valid publishes ----------------------------------------------------------------------

    def _publish(self) -> tuple[str, list[tuple[str, str]], bytes, str]:
        rng = self._rng
        stream = rng.choice((*STREAMS, *FEATURED, *FEATURED))
        subject = f"{stream}.{rng.randint(0, 5)}"
        headers: list[tuple[str, str]] = []
        payload = b"x" * rng.choice((0, 1, 20, 300))
        number = rng.randint(0, 30)
        if rng.random() < 0.4:
            headers.append(("Nats-Msg-Id", f"id{number}"))
        if rng.random() < 0.2:
            headers.append((rng.choice(_EXPECTING), str(number)))
        if stream == "k":
            headers.append(("Nats-Incr", rng.choice(("1", "+3", "-2"))))
            payload = b""
        elif stream == "h":
            pattern = rng.choice(("@every 5s", "@at 2050-01-01T00:00:00Z", "0 0 0 1 1 *"))
            headers += [("Nats-Schedule", pattern), ("Nats-Schedule-Target", f"h.out.{number}")]
            if rng.random() < 0.3:
                headers.append(("Nats-Schedule-TTL", "5s"))
        elif stream == "t":
            headers.append(("Nats-TTL", rng.choice(("1s", "1h", "never", "5"))))
            if rng.random() < 0.2:
                headers.append(("Nats-Rollup", rng.choice(("sub", "all"))))
        elif stream == "q":
            if rng.random() < 0.5:
                operation = rng.choice((0, 1, 1, 1, 2, 3, 4))
                mode = rng.choice(("ok", "fail"))
                return subject, headers, payload, f"f{number % 4}.8.{mode}.{number}.{operation}.$FI"
            batch = [("Nats-Batch-Id", f"b{number % 4}"), ("Nats-Batch-Sequence", str(number % 6))]
            headers += batch
            if rng.random() < 0.3:
                headers.append(("Nats-Batch-Commit", "1"))
        return subject, headers, payload, ""

    # --- values -------------------------------------------------------------------------------

    def _fields(self, shape: Shape, most: int) -> Document:
        names = self._rng.sample(sorted(shape.fields), min(most, len(shape.fields)))
        return {name: self._value(shape.fields[name]) for name in names}

    def _value(self, wanted: Any) -> Any:
        rng = self._rng
        if isinstance(wanted, Shape):
            return self._fields(wanted, 2)
        if isinstance(wanted, Enum):
            return rng.choice(list(wanted.values))
        if isinstance(wanted, list):
            return [self._value(wanted[0]) for _ in range(rng.randint(0, 2))]
        if isinstance(wanted, dict):
            return {"m": "n"}
        if wanted == "string":
            return rng.choice(("a", "c1", "a.1", "b.>", "", "a.*", "_INBOX.x"))
        if wanted == "bool":
            return rng.random() < 0.5
        if wanted == "time.Time":
            return rng.choice(("2026-01-01T00:00:00Z", "2050-01-01T00:00:00Z"))
        if wanted == "time.Duration":
            return rng.choice((0, _SECOND_NS // 10, _SECOND_NS, 60 * _SECOND_NS))
        return rng.choice((-1, 0, 1, 3, 10, 1000))

    # --- what goes wrong ----------------------------------------------------------------------

    def _odd_value(self) -> Any:
        rng = self._rng
        return rng.choice(
            (
                None, True, False, -1, 0, 1, 1.5, -(1 << 63), (1 << 63) - 1, 1 << 63, 1 << 64,
                10**30, 1e300, "", " ", "*", ">", "a..b", ".a", "a.", "a b", "\u00e9", "\ud7ff",
                "x" * 300, "$JS.API.>", "$SYS.x", [], [None], [[]], {}, {"a": {"b": []}},
                ["a", "a"], [1, "x"], "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "1s", "a/b",
                "..", "C:\\x", "%s%n", "'; --", "\u0000",
            )
        )  # fmt: skip

    def _corrupt_document(self, document: Document) -> None:
        """Change something at some depth."""
        rng = self._rng
        inner = [value for value in document.values() if isinstance(value, dict) and value]
        if inner and rng.random() < 0.6:
            self._corrupt_document(rng.choice(inner))
            return
        kind = rng.random()
        if kind < 0.15 or not document:
            document[rng.choice(("zz", "Name", "NAME", "", "config", "name "))] = self._odd_value()
        elif kind < 0.3:
            del document[rng.choice(list(document))]
        elif kind < 0.4:
            key = rng.choice(list(document))
            document[key.upper() if rng.random() < 0.5 else key + "s"] = document.pop(key)
        elif kind < 0.5:
            key = rng.choice(list(document))
            document[key] = [document[key]] * rng.choice((1, 2, 50))
        else:
            document[rng.choice(list(document))] = self._odd_value()

    def _corrupt_bytes(self, payload: bytes, share: float) -> bytes:
        rng = self._rng
        if rng.random() >= share:
            return payload
        at = rng.randint(0, len(payload))
        kind = rng.randint(0, 7)
        if kind == 0:
            return payload[:at]
        if kind == 1:
            return payload[:at] + rng.randbytes(rng.randint(1, 8)) + payload[at:]
        if kind == 2 and payload:
            at = min(at, len(payload) - 1)
            return payload[:at] + bytes((payload[at] ^ 1 << rng.randint(0, 7),)) + payload[at + 1 :]
        if kind == 3:
            return rng.choice((b"null", b"[]", b"0", b'""', b"{}", b"{", b"\xef\xbb\xbf{}", b"tru"))
        if kind == 4:
            return b'{"config":' * 400 + payload + b"}" * 400
        if kind == 5 and payload.startswith(b"{"):
            return b'{"name":"a","name":"b",' + payload[1:]
        if kind == 6:
            return payload + payload
        return b" " * 5000 + payload

    def _corrupt_subject(self, subject: str) -> str:
        rng = self._rng
        tokens = subject.split(".")
        fixed = 2 if subject.startswith("$JS.API.") else 0
        at = rng.randint(fixed, len(tokens) - 1)
        kind = rng.randint(0, 4)
        if kind == 0:
            tokens.append(rng.choice((*STREAMS, "x" * 300, "1")))
        elif kind == 1 and len(tokens) > fixed + 1:
            del tokens[at]
        elif kind == 2:
            tokens[at] = tokens[at].lower() if rng.random() < 0.5 else tokens[at] + "S"
        elif kind == 3:
            tokens.insert(at, tokens[at])
        else:
            odd = rng.choice(("\u00e9", "x" * 255, "$", "-1", "0", "%", "a/b", "\\", "@", "1e9"))
            tokens[at] = odd
        made = ".".join(tokens)
        return subject if any(each in made for each in _NO_SUBJECT) else made

    def _corrupt_headers(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        rng = self._rng
        made = list(headers)
        for _ in range(rng.choice((1, 1, 2))):
            kind = rng.random()
            if made and kind < 0.5:
                at = rng.randrange(len(made))
                made[at] = (made[at][0], rng.choice(_ODD_HEADER_VALUES))
            elif made and kind < 0.6:
                made.append(rng.choice(made))
            elif made and kind < 0.7:
                at = rng.randrange(len(made))
                made[at] = (made[at][0].lower(), made[at][1])
            else:
                made.append((rng.choice(_HEADERS), rng.choice(_ODD_HEADER_VALUES)))
        return made


_EXPECTING = (
    "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence",
    "Nats-Expected-Last-Msg-Id",
)  # fmt: skip
_HEADERS = (
    *_EXPECTING, "Nats-Expected-Stream", "Nats-Expected-Last-Subject-Sequence-Subject",
    "Nats-Msg-Id", "Nats-Rollup", "Nats-TTL", "Nats-Incr", "Nats-Schedule",
    "Nats-Schedule-Target", "Nats-Schedule-Source", "Nats-Schedule-TTL", "Nats-Schedule-Rollup",
    "Nats-Schedule-Time-Zone", "Nats-Scheduler", "Nats-Schedule-Next", "Nats-Batch-Id",
    "Nats-Batch-Sequence", "Nats-Batch-Commit", "Nats-Required-Api-Level", "Nats-Stream-Source",
    "Nats-Counter-Sources", "Nats-Marker-Reason", "KV-Operation", "Nats-Trace-Dest",
)  # fmt: skip
_ODD_HEADER_VALUES = (
    "", "0", "1", "-1", "+1", "x", "1.5", "18446744073709551616", "9" * 60, "never", "1s", "-5s",
    "all", "sub", "eob", "{}", "null", '{"a":{"b":"1"}}', "a", "a.1", "q.1", "h.out.1", ">", "*",
    "\u00e9", "x" * 300, "@every 1s", "@at never", "@every 0s", "* * * * * *", "purge", "Mars/Base",
    "Europe/Berlin", " 1", "1 ", "\t1",
)  # fmt: skip


def _block(headers: list[tuple[str, str]]) -> bytes:
    if not headers:
        return b""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def _json(document: Document | None) -> bytes:
    if document is None:
        return b""
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
