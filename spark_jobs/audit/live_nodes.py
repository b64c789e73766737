"""Live nodes as replicas: their state by /jsz or the API, their messages by direct get.

A node with a replica of a stream answers direct gets from it. The record that a message makes on
disk is a pure function of the message, so its crc, and with it the digest, compare with files.
"""

from __future__ import annotations

import json
import struct
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from crc32c import crc32c

from spark_jobs.audit.replica_drift import Held
from spark_jobs.client.options import ConnectOptions
from spark_jobs.client.wire import ApiError, NoResponders, Wire, WireError
from spark_jobs.replica.record_rows import BUCKET_SHIFT
from streamd.errors import StreamdError
from streamd.offline.engine import MASK64, mix64
from streamd.offline.engine import record_format as fmt
from streamd.offline.server_text import parse_ns
from streamd.types import ACCOUNT, stream_label

BATCH_MSGS: Final = 1000  # of one direct get
TIMEOUT_S: Final = 10.0
_MARK: Final = b"\r\nNats-Stream: "


class LiveError(StreamdError):
    """A live node could not be asked."""


@dataclass
class LiveStream:
    """A node's replica of one stream, as the node showed it."""

    label: str
    name: str  # with its account before it, unless that is `$G`
    stream: str
    connection: ConnectOptions
    uid: int  # 0: not known
    applied: int  # 0: not known
    digest: str
    first_seq: int
    last_seq: int
    messages: int
    is_exact: bool = False  # its log index is that at which files were opened
    _held: dict[int, Held] = field(default_factory=dict)

    def load(self) -> tuple[int, int]:
        """Read all messages up to `last_seq`; returns (messages read, bytes)."""
        size = 0
        with Wire.connect(self.connection, timeout_s=TIMEOUT_S) as wire:
            seq = max(self.first_seq, 1)
            while seq <= self.last_seq and self.messages:
                rows, size_read = _read_batch(wire, self.stream, seq)
                size += size_read
                if not rows:
                    break
                for found, held in rows:
                    if found <= self.last_seq:
                        self._held[found] = held
                seq = rows[-1][0] + 1
        return len(self._held), size

    def buckets(self) -> list[tuple[int, int]]:
        """(bucket, digest) of what `load` read."""
        sums: dict[int, int] = defaultdict(int)
        for seq, held in self._held.items():
            sums[seq >> BUCKET_SHIFT] += mix64(seq, held.crc)
        return [(number, total & MASK64) for number, total in sorted(sums.items())]

    def held(self, buckets: Sequence[int]) -> Iterator[tuple[int, Held]]:
        """Read the messages in `buckets`."""
        wanted = set(buckets)
        for seq, held in self._held.items():
            if seq >> BUCKET_SHIFT in wanted:
                yield seq, held


@dataclass
class LiveNode:
    """A server to ask: `LABEL=nats://HOST:PORT` and, if given, its monitoring URL."""

    label: str
    connection: ConnectOptions
    monitoring: str = ""

    def streams(self) -> list[LiveStream]:
        """Its replicas of file streams, of the account that the login is in. Raises LiveError."""
        try:
            with Wire.connect(self.connection, timeout_s=TIMEOUT_S) as wire:
                account = _account_of(wire)
                if not self.monitoring:
                    return list(self._from_api(wire, account))
            return list(self._from_monitoring(account))
        except (WireError, OSError, ValueError, KeyError) as err:
            where = self.monitoring or ", ".join(self.connection.servers)
            raise LiveError(f"--live {self.label}: {where} does not answer: {err}") from err

    def _from_monitoring(self, account: str) -> Iterator[LiveStream]:
        for detail in self._details(account):
            if detail.get("config", {}).get("storage", "file") != "file":
                continue
            state = detail["state"]
            yield LiveStream(
                self.label,
                stream_label((account, detail["name"])),
                detail["name"],
                self.connection,
                int(detail["uid"]),
                int(detail["applied"]),
                str(detail["digest"]),
                int(state["first_seq"]),
                int(state["last_seq"]),
                int(state["messages"]),
            )

    def _details(self, account: str) -> Iterator[dict[str, Any]]:
        """Yield the streams of an account as /jsz shows them, page by page."""
        every = f"streams=1&digest=1&config=1&acc={urllib.parse.quote(account)}"
        count = 0
        while found := self._jsz(f"{every}&offset={count}"):
            page = found[0].get("stream_detail") or []
            yield from page
            count += len(page)
            if not page or count >= found[0].get("streams_total", 0):
                break

    def _jsz(self, query: str) -> list[dict[str, Any]]:
        url = f"{self.monitoring.rstrip('/')}/jsz?{query}"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            found: list[dict[str, Any]] = json.load(answer).get("account_details") or []
            return found

    def _from_api(self, wire: Wire, account: str) -> Iterator[LiveStream]:
        names: list[str] = []
        while True:
            answer = wire.api("STREAM.NAMES", {"offset": len(names)}, timeout_s=TIMEOUT_S)
            page = answer.get("streams") or []
            names += page
            if not page or len(names) >= int(answer["total"]):
                break
        for name in names:
            try:
                info = wire.api(f"STREAM.INFO.{name}", timeout_s=TIMEOUT_S)
            except ApiError:
                continue  # deleted meanwhile
            if info["config"].get("storage", "file") != "file":
                continue
            state = info["state"]
            yield LiveStream(
                self.label,
                stream_label((account, name)),
                name,
                self.connection,
                0,
                0,
                "",
                int(state["first_seq"]),
                int(state["last_seq"]),
                int(state["messages"]),
            )


def _account_of(wire: Wire) -> str:
    """Return the account of a login. A server that does not say has none but `$G`."""
    try:
        answer = json.loads(wire.request("$SYS.REQ.USER.INFO", timeout_s=TIMEOUT_S).payload)
        return str(answer["data"]["account"])
    except (NoResponders, KeyError):
        return ACCOUNT


def _read_batch(wire: Wire, stream: str, seq: int) -> tuple[list[tuple[int, Held]], int]:
    """Read a batch of direct gets from `seq` on: ((seq, what), bytes)."""
    inbox = wire.inbox()
    sid = wire.subscribe(inbox)
    body = json.dumps({"seq": seq, "batch": BATCH_MSGS}).encode()
    wire.publish(wire.api_subject(f"DIRECT.GET.{stream}"), body, reply=inbox)
    rows: list[tuple[int, Held]] = []
    size = 0
    try:
        while True:
            arrived = wire.receive(TIMEOUT_S)
            if not arrived:
                raise LiveError(f"{stream}: no answer to a direct get within {TIMEOUT_S} s")
            for found, msg in arrived:
                if found != sid:
                    continue
                if msg.status in (204, 404):
                    return rows, size
                if msg.status == 503:
                    raise LiveError(
                        f"{stream}: the node answers no direct gets: the stream needs "
                        "allow_direct, and the node a replica of it"
                    )
                if msg.status:
                    raise LiveError(f"{stream}: direct get: {msg.status} {msg.description}")
                rows.append(held_of(msg.headers, msg.payload))
                size += len(msg.headers) + len(msg.payload)
    finally:
        wire.unsubscribe(sid)


def held_of(block: bytes, payload: bytes) -> tuple[int, Held]:
    """(seq, what) of a message as direct get shows it: its own headers, then where it is stored."""
    at = block.rfind(_MARK)
    own, shown = block[:at] + b"\r\n\r\n", block[at + 2 :]
    if own == b"NATS/1.0\r\n\r\n":
        own = b""
    fields = dict(line.split(b": ", 1) for line in shown.split(b"\r\n") if b": " in line)
    subject = fields[b"Nats-Subject"]
    seq = int(fields[b"Nats-Sequence"])
    ts = parse_ns(fields[b"Nats-Time-Stamp"].decode())
    pieces, _, crcs = fmt.encode_batch(seq, ts, [(subject, own, payload)])
    record = b"".join(pieces)
    content = crc32c(record[28:-4], crc32c(record[:20]))
    return seq, Held(crcs[0], ts, content)


assert struct.calcsize("<IBBHIQQ") == 28  # what comes before the subject of a record
