"""Limits of accounts: what each may create, change, store and see is what a real nats-server says.

Requests of one scenario go to both servers; their answers are compared whole, but for times and
versions. Streams are deleted between scenarios.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from streamd.archives import message_archive
from streamd.archives.archive_records import Row
from streamd.archives.s2_frames import S2Writer
from tests.parity.runner import ours_binary, peer_binary
from tests.waiting import until
from tests.wire import CONNECT, Wire

pytestmark = pytest.mark.slow

CONFIG = """accounts {
  A { jetstream: {max_mem: 4096, max_store: 8192, max_streams: 3, max_consumers: 2,
                  max_ack_pending: 50, mem_max_stream_bytes: 2048, disk_max_stream_bytes: 4096,
                  max_bytes_required: true}
      users: [{user: A, password: A}] }
  B { jetstream: {max_mem: 4096, max_store: 8192, max_streams: 3, max_consumers: 2,
                  max_ack_pending: 50}
      users: [{user: B, password: B}] }
  C { jetstream: {max_mem: 4096, max_store: 0, max_streams: 0}, users: [{user: C, password: C}] }
  D { jetstream: {max_streams: 1}, users: [{user: D, password: D}] }
  E { jetstream: {disk_max_stream_bytes: 4096}, users: [{user: E, password: E}] }
  F { jetstream: enabled, users: [{user: F, password: F}] }
  N { users: [{user: N, password: N}] }
}
"""
_VARYING = (
    "created",
    "ts",
    "cluster",
    "metadata",
    "api",
    "delivered",
    "ack_floor",
    "first_ts",
    "last_ts",
)
Step = tuple[Any, ...]


def cut(value: Any) -> Any:
    """Return `value` without what differs between any two servers."""
    if isinstance(value, dict):
        return {key: cut(each) for key, each in value.items() if key not in _VARYING}
    return [cut(each) for each in value] if isinstance(value, list) else value


class Account:
    """A client of one account; every answer is kept."""

    def __init__(self, port: int, name: str) -> None:
        self.wire = Wire(port, CONNECT | {"user": name, "pass": name})
        self.seen: list[Any] = []

    def api(self, subject: str, body: Any = None) -> None:
        self.seen.append((subject, cut(self.wire.api(subject, body))))

    def create(self, name: str, **config: Any) -> None:
        self.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]} | config)

    def update(self, name: str, **config: Any) -> None:
        self.api(f"STREAM.UPDATE.{name}", {"name": name, "subjects": [f"{name}.>"]} | config)

    def consumer(self, stream: str, name: str, action: str = "", **config: Any) -> None:
        given = {"durable_name": name, "ack_policy": "explicit"} | config
        body = {"stream_name": stream, "config": given, "action": action}
        self.api(f"CONSUMER.CREATE.{stream}.{name}", body)

    def publish(self, subject: str, size: int, times: int = 1) -> None:
        for _ in range(times):
            frames = self.wire.ask(subject, b"x" * size)
            self.seen.append([frame.json() for frame in frames])

    def send(self, subject: str, size: int, **headers: str) -> None:
        """Publish once, with headers."""
        frames = self.wire.ask(subject, b"x" * size, headers=headers)
        self.seen.append([frame.json() for frame in frames if frame.payload])

    def erase(self, stream: str, seq: int) -> None:
        self.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq})

    def state(self, method: str) -> None:
        """Keep the answer of `STREAM.INFO.S` and the like: bytes and counts of what is stored."""
        state = self.wire.api(method).get("state", {})
        self.seen.append({key: state.get(key) for key in ("messages", "bytes", "last_seq")})

    def holds(self, stream: str, messages: int) -> None:
        """Wait until a stream has just as many messages, then keep what `state` does."""
        method = f"STREAM.INFO.{stream}"
        until(
            lambda: self.wire.api(method)["state"]["messages"] == messages,
            f"{stream} has {messages} messages",
            60,
        )
        self.state(method)

    def restore(self, name: str, size: int, consumer_count: int = 0, **request: Any) -> None:
        """Upload an archive of a message and some consumers; keep the first answer and the last."""
        config = {"name": name, "subjects": [f"{name}.>"]} | request.pop("config", {})
        answer = self.wire.api(f"STREAM.RESTORE.{name}", request | {"config": config})
        where = answer.pop("deliver_subject", "")
        self.seen.append(cut(answer))
        if where:
            self.wire.ask(where, archive_of(name, size, consumer_count))
            self.seen += [cut(frame.json()) for frame in self.wire.ask(where, within_s=60)]

    def clear(self) -> None:
        for name in self.wire.api("STREAM.NAMES").get("streams") or ():
            self.wire.api(f"STREAM.DELETE.{name}")


def archive_of(name: str, size: int, consumer_count: int) -> bytes:
    """Archive of a stream with one message of `size` bytes."""
    start = {"consumer_seq": 0, "stream_seq": 0}
    rows: list[Row] = []
    for at in range(consumer_count):
        config = {"name": f"c{at}", "durable_name": f"c{at}", "ack_policy": "explicit"}
        body = {"config": config, "state": {"delivered": start, "ack_floor": start}}
        rows.append((0, 1, b"consumers/c%d" % at, b"", json.dumps(body).encode()))
    rows.append((1, 1_700_000_000_000_000_000, f"{name}.a".encode(), b"", b"x" * size))
    state = {"messages": 1, "bytes": 1, "first_seq": 1, "last_seq": 1}
    plain = message_archive.begin(state | {"consumer_count": consumer_count}, 1)
    frames = S2Writer()
    plain += message_archive.encode_messages(rows) + message_archive.end()
    return frames.write(plain) + frames.finish()


MEMORY = {"storage": "memory"}
SCENARIOS: dict[str, tuple[str, list[Step]]] = {
    "max bytes are required": (
        "A",
        [
            ("create", "S", {}),
            ("create", "S", {"max_bytes": -1}),
            ("create", "S", {"max_bytes": 0}),
            ("create", "S", {"max_bytes": 10}),
            ("update", "S", {}),
            ("create", "S", {}),
            ("create", "M", MEMORY),
        ],
    ),
    "most bytes of a stream in a file": (
        "A",
        [
            ("create", "S", {"max_bytes": 4097}),
            ("create", "S", {"max_bytes": 4096}),
            ("update", "S", {"max_bytes": 4097}),
            ("update", "S", {"max_bytes": 4095}),
            ("create", "S", {"max_bytes": 9999}),
            ("update", "NONE", {"max_bytes": 9999}),
            ("update", "NONE", {"max_bytes": 99}),
        ],
    ),
    "most bytes of a stream in memory": (
        "A",
        [
            ("create", "M", MEMORY | {"max_bytes": 2049}),
            ("create", "M", MEMORY | {"max_bytes": 2048}),
            ("update", "M", MEMORY | {"max_bytes": 2049}),
            ("update", "M", {"max_bytes": 9999}),
            ("update", "M", {"max_bytes": 99}),
        ],
    ),
    "one kind of storage is limited": (
        "E",
        [
            ("create", "S", {}),
            ("create", "T", {"max_bytes": 5000}),
            ("create", "M", MEMORY | {"max_bytes": 5000}),
            ("create", "T", {"max_bytes": 4000}),
            ("update", "T", {}),
            ("info",),
        ],
    ),
    "number of streams": (
        "D",
        [
            ("create", "S", {}),
            ("create", "T", {}),
            ("create", "S", {}),
            ("create", "S", {"max_bytes": 3}),
            ("create", "T", {"max_bytes": 10**12}),
            ("create", "T", {"subjects": ["S.x"]}),
            ("create", "T", {"num_replicas": 3}),
            ("create", "T", MEMORY),
            ("info",),
        ],
    ),
    "a deleted stream makes place": (
        "D",
        [
            ("create", "S", {}),
            ("create", "T", {}),
            ("api", "STREAM.DELETE.S"),
            ("create", "T", {}),
            ("create", "S", {}),
        ],
    ),
    "no streams are any number": (
        "C",
        [("create", name, MEMORY) for name in ("S", "T", "U", "V")] + [("info",)],
    ),
    "no storage is none": (
        "C",
        [
            ("create", "S", {}),
            ("create", "S", {"max_bytes": 1}),
            ("create", "M", MEMORY | {"max_bytes": 4097}),
            ("create", "M", MEMORY | {"max_bytes": 4096}),
            ("create", "N", MEMORY),
            ("info",),
        ],
    ),
    "streams set bytes aside": (
        "B",
        [
            ("create", "S", {}),
            ("create", "T", {"max_bytes": 8193}),
            ("create", "T", {"max_bytes": 8192}),
            ("create", "U", {"max_bytes": 1}),
            ("create", "U", {}),
            ("info",),
            ("update", "T", {"max_bytes": 8193}),
            ("update", "S", {"max_bytes": 1}),
            ("update", "T", {"max_bytes": 8191}),
            ("update", "S", {"max_bytes": 1}),
            ("update", "T", {"max_bytes": 8192}),
            ("update", "S", {}),
            ("info",),
        ],
    ),
    "memory is set aside by itself": (
        "B",
        [
            ("create", "S", {"max_bytes": 8192}),
            ("create", "M", MEMORY | {"max_bytes": 4000}),
            ("create", "N", MEMORY | {"max_bytes": 97}),
            ("create", "N", MEMORY | {"max_bytes": 96}),
            ("info",),
        ],
    ),
    "a stream that exists is shown, or is another": (
        "B",
        [
            ("create", "S", {"max_bytes": 8192}),
            ("create", "S", {"max_bytes": 8192}),
            ("create", "S", {"max_bytes": 8193}),
            ("create", "S", {"max_bytes": 8191}),
        ],
    ),
    "consumers of a stream": (
        "B",
        [
            ("create", "S", {}),
            ("consumer", "S", "c1", {}),
            ("consumer", "S", "c2", {}),
            ("consumer", "S", "c3", {}),
            ("consumer", "S", "c3", {"action": "update"}),
            ("consumer", "S", "c3", {"action": "create"}),
            ("consumer", "S", "c1", {}),
            ("consumer", "S", "c1", {"description": "x"}),
            ("consumer", "S", "c1", {"action": "create"}),
            ("info",),
        ],
    ),
    "consumers are counted for each stream": (
        "B",
        [
            ("create", "S", {}),
            ("create", "T", {}),
            ("consumer", "S", "c1", {}),
            ("consumer", "S", "c2", {}),
            ("consumer", "T", "c1", {}),
            ("consumer", "T", "c2", {}),
            ("consumer", "T", "c3", {}),
            ("api", "CONSUMER.DELETE.T.c1"),
            ("consumer", "T", "c3", {}),
            ("info",),
        ],
    ),
    "the stream allows fewer consumers": (
        "B",
        [
            ("create", "S", {"max_consumers": 1}),
            ("consumer", "S", "c1", {}),
            ("consumer", "S", "c2", {}),
        ],
    ),
    "the stream allows more consumers": (
        "B",
        [
            ("create", "S", {"max_consumers": 3}),
            ("create", "S", {"max_consumers": 2}),
            ("update", "S", {"max_consumers": 3}),
            ("update", "S", {"max_consumers": -1}),
        ],
    ),
    "which limit comes first": (
        "A",
        [
            ("create", "S", {"max_bytes": 9999, "max_consumers": 9}),
            ("create", "S", {"max_consumers": 9}),
            ("create", "S", {"num_replicas": 3}),
            ("create", "S", {"num_replicas": 3, "max_bytes": 9999}),
            ("create", "S", {"num_replicas": 3, "max_bytes": 10}),
            ("create", "S", {"max_bytes": 4096}),
            ("create", "T", {"max_bytes": 9999, "subjects": ["S.x"]}),
            ("create", "T", {"max_bytes": 90, "subjects": ["S.x"]}),
            ("update", "S", {"max_bytes": 9999, "storage": "memory"}),
            ("update", "S", {"max_bytes": 400, "max_consumers": 9}),
        ],
    ),
    "pending acks are capped": (
        "B",
        [
            ("create", "S", {}),
            ("consumer", "S", "c1", {}),
            ("consumer", "S", "c2", {"max_ack_pending": 51}),
            ("consumer", "S", "c2", {"max_ack_pending": 50}),
            ("consumer", "S", "c2", {"max_ack_pending": 51}),
            ("consumer", "S", "c2", {"max_ack_pending": 49}),
        ],
    ),
    "pending acks without end": (
        "B",
        [
            ("create", "S", {}),
            ("consumer", "S", "c1", {"max_ack_pending": -1}),
            ("consumer", "S", "c2", {"ack_policy": "none"}),
        ],
    ),
    "limits of a stream's consumers may be wider": (
        "B",
        [
            ("create", "S", {"consumer_limits": {"max_ack_pending": 60}}),
            ("consumer", "S", "c1", {}),
            ("consumer", "S", "c1", {"max_ack_pending": 55}),
            ("consumer", "S", "c1", {"max_ack_pending": 45}),
            ("update", "S", {"consumer_limits": {"max_ack_pending": 70}}),
        ],
    ),
    "stored bytes of a file": (
        "B",
        [
            ("create", "S", {}),
            ("publish", "S.a", 4000),
            ("info",),
            ("publish", "S.a", 4158),  # with 33 bytes each just too many
            ("publish", "S.a", 4126),
            ("publish", "S.a", 0),
            ("info",),
            ("state", "STREAM.INFO.S"),
            ("create", "T", {}),
            ("publish", "T.a", 0),
            ("create", "M", MEMORY),
            ("publish", "M.a", 0),
            ("erase", "S", 1),
            ("publish", "T.a", 3000),
            ("info",),
            ("publish", "T.a", 3000),
            ("api", "STREAM.PURGE.S"),
            ("publish", "T.a", 5000),
            ("publish", "T.a", 5000),
            ("api", "STREAM.DELETE.T"),
            ("publish", "S.a", 5000),
            ("info",),
        ],
    ),
    "stored bytes of memory": (
        "B",
        [
            ("create", "M", MEMORY),
            ("publish", "M.a", 4078),
            ("publish", "M.a", 4077),
            ("publish", "M.a", 0),
            ("info",),
            ("create", "S", {}),
            ("publish", "S.a", 0),
            ("api", "STREAM.PURGE.M"),
            ("publish", "M.a", 100),
            ("info",),
        ],
    ),
    "order of checks in a full account": (
        "B",
        [
            ("create", "S", {"duplicate_window": 10**11, "max_msg_size": 7000}),
            ("send", "S.a", 100, {"Nats-Msg-Id": "one"}),
            ("publish", "S.a", 6900),
            ("publish", "S.a", 6900),
            ("publish", "S.a", 7100),
            ("send", "S.a", 6900, {"Nats-Msg-Id": "one"}),
            ("send", "S.a", 6900, {"Nats-Msg-Id": "two"}),
            ("send", "S.a", 10, {"Nats-Msg-Id": "two"}),
            ("send", "S.a", 6900, {"Nats-Expected-Last-Sequence": "9"}),
            ("send", "S.a", 6900, {"Nats-Expected-Last-Sequence": "3"}),
            ("send", "S.a", 6900, {"Nats-Expected-Stream": "T"}),
            ("send", "S.a", 6900, {"Nats-Rollup": "sub"}),
            ("state", "STREAM.INFO.S"),
        ],
    ),
    "limits of the stream in a full account": (
        "B",
        [
            (
                "create",
                "S",
                {
                    "max_bytes": 8000,
                    "max_msgs_per_subject": 1,
                    "allow_rollup_hdrs": True,
                    "allow_msg_ttl": True,
                },
            ),
            ("publish", "S.a", 6000),
            ("publish", "S.a", 6000),
            ("send", "S.a", 6000, {"Nats-Rollup": "all"}),
            ("send", "S.a", 6000, {"Nats-TTL": "xx"}),
            ("publish", "S.b", 1000, 4),
            ("state", "STREAM.INFO.S"),
        ],
    ),
    "discard new in a full account": (
        "B",
        [
            ("create", "S", {"max_bytes": 1000, "discard": "new"}),
            ("create", "T", {"max_msgs": 2, "discard": "new"}),
            ("publish", "S.a", 6000),
            ("publish", "T.a", 6000, 2),
            ("publish", "T.a", 2000, 2),
            ("publish", "S.a", 900),
        ],
    ),
    "interest without consumers in a full account": (
        "B",
        [
            ("create", "S", {"retention": "interest"}),
            ("publish", "S.a", 9000),
            ("create", "T", {}),
            ("publish", "T.a", 8000),
            ("publish", "S.a", 900),
            ("state", "STREAM.INFO.S"),
        ],
    ),
    "no storage at all": (
        "C",
        [
            ("create", "M", MEMORY),
            ("publish", "M.a", 10),
        ],
    ),
    "what a stream may set aside does not bound what is stored": (
        "E",
        [
            ("create", "S", {}),
            ("create", "T", {}),
            ("publish", "S.a", 3000),
            ("publish", "T.a", 3000),
            ("publish", "T.a", 1000),
            ("create", "M", MEMORY),
            ("publish", "M.a", 9000),
        ],
    ),
    "a mirror in a full account": (
        "B",
        [
            ("create", "O", {}),
            ("publish", "O.a", 1500, 3),
            ("api", "STREAM.CREATE.S", {"name": "S", "mirror": {"name": "O"}}),
            ("holds", "S", 2),
            ("publish", "O.a", 1000),
            ("publish", "O.b", 100),
            ("erase", "O", 1),
            ("erase", "O", 2),
            ("holds", "S", 4),
            ("publish", "O.b", 10),
            ("holds", "S", 5),
        ],
    ),
    "a source in a full account": (
        "B",
        [
            ("create", "O", {}),
            ("publish", "O.a", 1500, 3),
            ("create", "S", {"sources": [{"name": "O", "filter_subject": "O.a"}]}),
            ("holds", "S", 2),
            ("publish", "S.a", 2000),
            ("publish", "O.a", 1500),
            ("erase", "O", 1),
            ("holds", "S", 3),
            ("publish", "O.a", 10),
            ("holds", "S", 4),
            ("publish", "S.a", 4000),
        ],
    ),
    "a copy in memory has its own limit": (
        "B",
        [
            ("create", "O", {}),
            ("publish", "O.a", 1500, 5),
            ("api", "STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}} | MEMORY),
            ("holds", "M", 2),
            ("api", "STREAM.DELETE.M"),
            ("api", "STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}, "max_bytes": 5000}),
            ("api", "STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}, "max_bytes": 2000}),
        ],
    ),
    "what a full account may still do": (
        "B",
        [
            ("create", "S", {}),
            ("publish", "S.a", 8100),
            ("publish", "S.a", 8100),
            ("consumer", "S", "c1", {}),
            ("update", "S", {"max_msgs": 1}),
            ("update", "S", {"max_bytes": 8192}),
            ("update", "S", {"max_bytes": 8193}),
            ("create", "T", {"max_bytes": 1}),
            ("create", "T", {}),
            ("create", "M", MEMORY),
            ("update", "S", {"storage": "memory"}),
            ("publish", "S.a", 20),
            ("state", "STREAM.INFO.S"),
            ("info",),
        ],
    ),
    "archives need room": (
        "B",
        [
            ("restore", "S", 1000, {"config": {"max_bytes": 8193}}),
            ("restore", "S", 1000, {"config": {"max_consumers": 3}}),
            ("restore", "M", 1000, {"config": MEMORY | {"max_bytes": 4097}}),
            ("restore", "M", 1000, {"config": MEMORY}),
            ("create", "O", {"max_bytes": 8000}),
            ("restore", "S", 1000, {"config": {"max_bytes": 193}}),
            ("restore", "S", 1000, {"config": {"max_bytes": 192}, "consumer_count": 2}),
            ("api", "CONSUMER.NAMES.S"),
            ("info",),
        ],
    ),
    "an archive for more than is left": (
        "B",
        [
            ("create", "O", {}),
            ("publish", "O.a", 8000),  # 159 bytes are left
            ("restore", "S", 126, {}),
            ("publish", "S.a", 0),
            ("erase", "S", 1),
            ("restore", "T", 127, {}),
        ],
    ),
    "an archive for more memory than is left": (
        "B",
        [
            ("restore", "M", 4000, {"config": MEMORY}),
            ("restore", "S", 4000, {}),
            ("restore", "N", 80, {"config": MEMORY}),
        ],
    ),
    "archives of more consumers than may be": (
        "B",
        [
            ("restore", "S", 10, {"consumer_count": 3}),
            ("restore", "T", 10, {"config": {"max_consumers": 1}, "consumer_count": 2}),
        ],
    ),
    "archives of what a stream may be": (
        "A",
        [
            ("restore", "S", 10, {}),
            ("restore", "S", 10, {"config": {"max_bytes": 4097}}),
            ("restore", "S", 10, {"config": {"max_bytes": 4096}}),
            ("restore", "M", 10, {"config": MEMORY}),
            ("restore", "M", 10, {"config": MEMORY | {"max_bytes": 2049}}),
        ],
    ),
    "archives count as streams": (
        "D",
        [
            ("create", "S", {}),
            ("restore", "T", 10, {}),
            ("restore", "S", 10, {}),
            ("api", "STREAM.DELETE.S"),
            ("restore", "T", 10, {}),
            ("create", "S", {}),
            ("info",),
        ],
    ),
    "account without JetStream": (
        "N",
        [("info",), ("create", "S", {}), ("api", "STREAM.NAMES"), ("api", "STREAM.INFO.S")],
    ),
    "account without limits": (
        "F",
        [("info",), ("create", "S", {"max_bytes": 5000}), ("create", "T", {}), ("info",)],
    ),
    "limits are shown": ("A", [("info",)]),
    "a client's account is an unknown field": (
        "F",
        [
            ("create", "S", {"account": "A"}),
            ("create", "S", {"account": "F"}),
            ("create", "S", {}),
            ("update", "S", {"account": "A"}),
        ],
    ),
}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """Both servers with the accounts."""
    binaries = (ours_binary(), peer_binary())
    if not all(binaries):
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    servers: list[ServerProcess] = []
    try:
        for binary in binaries:
            directory: Path = tmp_path_factory.mktemp("limits")
            servers.append(ServerProcess(binary, directory=directory, extra=CONFIG))
            servers[-1].launch()
            servers[-1].wait_for_log("Server is ready")
        yield [server.port for server in servers]
    finally:
        for server in servers:
            server.close()


def run(port: int, account: str, steps: list[Step]) -> list[Any]:
    client = Account(port, account)
    try:
        client.clear()
        for verb, *args in steps:
            if verb == "info":
                client.api("INFO")
            elif verb != "api" and isinstance(args[-1], dict):
                getattr(client, verb)(*args[:-1], **args[-1])
            else:
                getattr(client, verb)(*args)
        client.clear()
    finally:
        client.wire.close()
    return client.seen


@pytest.mark.parametrize("name", SCENARIOS)
def test_answers_are_the_same(ports: list[int], name: str) -> None:
    account, steps = SCENARIOS[name]
    ours, peers = (run(port, account, steps) for port in ports)
    assert len(ours) >= len(steps)
    for one, other in zip(ours, peers, strict=True):
        assert one == other
