"""What tests of the sink share: what a stream holds, writers without Spark, a proxy that cuts."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from spark_jobs.client.wire import Wire
from spark_jobs.client.wire_parser import header
from spark_jobs.sink import ledger
from spark_jobs.sink.exactly_once import ExactWriter
from spark_jobs.sink.sink_options import Layout, SinkOptions
from spark_jobs.sink.task import Task

RECEIVED_WITHIN_S = 20.0
PULLED = 10_000
CUT_AT = b"Nats-Batch-Commit: 1"


class Stored(NamedTuple):
    subject: str
    headers: bytes
    payload: bytes

    def header(self, name: str) -> str:
        return (header(self.headers, name.encode()) or b"").decode()


def stored(port: int, stream: str, *, with_ledger: bool = False) -> list[Stored]:
    """All messages of a stream in order, read with a pull consumer. Writers may be at work: what
    is read is what was there, and what they remove meanwhile is not waited for."""
    options = SinkOptions.parse({"servers": f"127.0.0.1:{port}", "stream": stream}).connection
    found: list[Stored] = []
    with Wire.connect(options) as wire:
        inbox = wire.inbox()
        wire.subscribe(inbox)
        config = {"ack_policy": "none", "deliver_policy": "all"}
        made = wire.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        ask = wire.api_subject(f"CONSUMER.MSG.NEXT.{stream}.{made['name']}")
        while read := _pull(wire, ask, inbox):
            found += read
    return [one for one in found if with_ledger or not ledger.is_ledger(one.subject)]


def _pull(wire: Wire, ask: str, inbox: str) -> list[Stored]:
    """The next messages of a consumer, [] if there is none now."""
    wire.publish(ask, json.dumps({"batch": PULLED, "no_wait": True}).encode(), reply=inbox)
    wire.flush()
    found: list[Stored] = []
    while len(found) < PULLED:
        batch = [msg for _, msg in wire.receive(RECEIVED_WITHIN_S)]
        assert batch, f"neither a message nor a status after {len(found)} messages"
        found += [Stored(msg.subject, msg.headers, msg.payload) for msg in batch if not msg.status]
        if batch[-1].status:
            break
    return found


def rows(count: int, *, start: int = 0, tag: str = "r") -> Iterator[Any]:
    """Record batches of subject and payload: `t.<n mod 3>` and `<tag><n>`."""
    for first in range(start, start + count, 700):
        numbers = range(first, min(first + 700, start + count))
        yield pa.record_batch(
            [
                pa.array([f"t.{n % 3}" for n in numbers]),
                pa.array([f"{tag}{n}".encode() for n in numbers], pa.binary()),
            ],
            names=["subject", "payload"],
        )


def exact_writer(
    address: str, *, stream: str = "T", job: str = "job", **options: str
) -> ExactWriter:
    """A writer of partition 0 of subject and payload; prepares the stream."""
    given = {"servers": address, "stream": stream, "jobId": job, "prepareStream": "true"}
    parsed = SinkOptions.parse(given | options)
    with Wire.connect(parsed.connection) as wire:
        facts = ledger.ready_stream(wire, stream, with_ledger=True, may_change=True)
    return ExactWriter(parsed, Layout(0, 1), facts, Task(job, 0, attempt="test"))


def payloads(found: Sequence[Stored]) -> list[str]:
    return [one.payload.decode() for one in found]


class CuttingProxy:
    """Passes bytes to a server. At the commits of atomic batches named by `cuts` (1, 2, ...) it
    ends the connection: after passing the commit on if `is_late`, so that only the ack is lost,
    else before."""

    def __init__(self, port: int, cuts: Sequence[int], *, is_late: bool) -> None:
        self._target = port
        self._cuts = set(cuts)
        self._is_late = is_late
        self._commits = 0
        self.cut_count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            is_cut = threading.Event()  # of this connection
            self._start(self._up, client, server, is_cut)
            self._start(self._down, client, server, is_cut)

    def _up(self, client: socket.socket, server: socket.socket, is_cut: threading.Event) -> None:
        held = b""  # a commit may be split between reads: look at the end of the last one too
        while True:
            data = _read(client)
            if not data:
                break
            seen = (held + data).count(CUT_AT) - held.count(CUT_AT)
            held = data[-len(CUT_AT) :]
            is_due = any(self._commits + at in self._cuts for at in range(1, seen + 1))
            self._commits += seen
            if is_due:
                self.cut_count += 1
                is_cut.set()
                if self._is_late:
                    # The whole frame, and an answer, so that the server has surely taken it.
                    client.settimeout(0.2)
                    server.sendall(data)
                    while data := _read(client):
                        server.sendall(data)
                break
            try:
                server.sendall(data)
            except OSError:
                break
        _end(client, server)

    def _down(self, client: socket.socket, server: socket.socket, is_cut: threading.Event) -> None:
        while data := _read(server):
            if is_cut.is_set():
                continue  # the ack that is to be lost
            try:
                client.sendall(data)
            except OSError:
                break
        _end(client, server)


def _read(source: socket.socket) -> bytes:
    try:
        return source.recv(1 << 16)
    except OSError:
        return b""


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
