"""A node without sockets, disks or Raft: commands are applied to real machines as they come."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from streamd.api.router import Router
from streamd.config.account_options import AccountJetStream
from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.asset_configs import StreamConfig
from streamd.machine.base import APPEND, SEAL, Effects
from streamd.machine.meta import MetaMachine, StreamAsset
from streamd.machine.streams.stream import StreamMachine
from streamd.node.ports import OnMetaEvent, OnStreamEvent
from streamd.store.blocks.block_codec import BlockCodec
from streamd.types import ACCOUNT, SYSTEM_ACCOUNT, AssetLimits, Entry, StoredMsg

START_NS = 1_790_000_000_000_000_000
_SCHEMAS = Path(__file__).parents[4] / "shared/reference/schemas/jetstream"


class Clock:
    """Time stands still unless a test moves it."""

    def __init__(self) -> None:
        self.ns = START_NS

    def now_ns(self) -> int:
        return self.ns

    def monotonic_ms(self) -> int:
        return self.ns // 1_000_000


class Wires:
    """Core NATS: remembers what was published; everybody is interested in what `heard` says."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes, bytes, bytes]] = []
        self.heard: tuple[bytes, ...] = ()

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        self.sent.append((subject, reply, headers, payload))

    def has_interest(self, subject: bytes) -> bool:
        return any(subject.startswith(prefix) for prefix in self.heard)

    def sink(self, subject: bytes, queue: bytes = b"") -> None:
        return None

    def watch(self, subject: bytes, queue: bytes, on_change: Callable[[bool], None]) -> object:
        return object()

    def listen(self, pattern: bytes, on_message: Callable[..., None]) -> object:
        return object()

    def unlisten(self, token: object) -> None:
        return None

    def unwatch(self, token: object) -> None:
        return None


class View:
    """Leader-side facts of a consumer."""

    num_waiting = 0
    is_push_bound = False
    last_delivered_ns = 0
    last_acked_ns = 0
    pinned_id = ""
    pinned_ns = 0

    def unpin(self, reason: str) -> bool:
        was, self.pinned_id = self.pinned_id, ""
        return bool(was)


class Stream:
    """ports.StreamHandle over a machine whose blocks are bytearrays."""

    is_local = True

    def __init__(self, node: Node, asset: StreamAsset) -> None:
        self._node = node
        self.account = asset.account
        self._codec = BlockCodec()
        self._footers: dict[int, bytes] = {}
        self._blocks: dict[int, bytearray] = {}
        self.uid = asset.uid
        self.name = asset.name
        self.name_bytes = asset.name.encode()
        self.view = View()
        self.unreadable: list[int] = []
        self.pulls: list[tuple[str, bytes, bytes, bytes]] = []
        self.machine = StreamMachine(
            uid=asset.uid,
            config=asset.created_config,
            created_ns=asset.created_ns,
            codec=self._codec,
            columns=self,
        )

    def load_footer(self, block_no: int) -> bytes:
        return self._footers[block_no]

    def apply(self, command: list[Any]) -> Any:
        effects = Effects()
        entry = Entry(1, self.machine.applied + 1, b"x", command, tag=object())
        self.machine.apply(entry, effects)
        for op in effects.block_ops:
            if op[0] == APPEND:
                _, block_no, offset, blob = op
                block = self._blocks.setdefault(block_no, bytearray())
                block.extend(bytes(max(0, offset - len(block))))
                block[offset:] = bytes(blob)
            elif op[0] == SEAL:
                self._footers[op[1]] = op[3]
        for kind, fields in effects.events:
            if self._node.on_stream_event is not None:
                self._node.on_stream_event(self, kind, fields)
        return effects.outcomes[0][1] if effects.outcomes else None

    def store(self, subject: str, payload: bytes = b"x", headers: bytes = b"") -> int:
        """Store one message; returns its seq."""
        self._node.clock.ns += 1_000_000_000
        now = self._node.clock.now_ns()
        outcome = self.apply([commands.STORE, now, [(subject.encode(), headers, payload)]])
        seq: int = outcome[0]
        assert isinstance(seq, int), seq
        return seq

    def propose(self, command: list[Any], done: Callable[[Any], None] | None) -> None:
        outcome = self.apply(command)
        if done is not None:
            done(outcome)

    def read_barrier(self, done: Callable[[], None], lost: Callable[[], None]) -> None:
        done()

    def read(self, seqs: list[int], done: Callable[[list[StoredMsg | None] | None], None]) -> None:
        found: list[StoredMsg | None] = []
        if set(seqs) & set(self.unreadable):
            done(None)
            return
        for seq in seqs:
            loc = self.machine.index.locations.locate(seq)
            if loc is None:
                found.append(None)
                continue
            _, block_no, offset, _ = loc
            found.append(self._codec.decode_at(bytes(self._blocks[block_no]), offset))
        done(found)

    def pull(self, consumer: str, reply: bytes, headers: bytes, payload: bytes) -> bool:
        if consumer not in self.machine.consumers:
            return False
        self.pulls.append((consumer, reply, headers, payload))
        return True

    is_close_mirror = True

    @property
    def config(self) -> StreamConfig:
        return self.machine.config

    def origin_infos(self) -> dict[str, Any]:
        return {}

    def dead_letter_error(self, subject: bytes) -> str:
        return f"no stream stores {subject.decode()}"

    def consumer_view(self, consumer: str) -> View | None:
        return self.view if consumer in self.machine.consumers else None


class Accounts:
    """ApiAccounts that share their wires, with what each may use of JetStream."""

    system_account = SYSTEM_ACCOUNT

    def __init__(self, wires: Wires, given: Mapping[str, AccountJetStream | None]) -> None:
        self._wires = wires
        self.given = {ACCOUNT: AccountJetStream(), **given}

    def wires(self, account: str) -> Wires:
        return self._wires

    def jetstream(self, account: str) -> AccountJetStream | None:
        return self.given.get(account)

    def with_jetstream(self) -> list[str]:
        return sorted(name for name, limits in self.given.items() if limits is not None)

    def when_settled(self, account: str, action: Callable[[], None]) -> None:
        action()


class AccountStreams:
    """ports.AccountStreams of a bed's node."""

    def __init__(self, node: Node, account: str) -> None:
        self._node = node
        self._account = account

    def stream(self, name: str) -> Any:
        return self._node.stream(name, self._account)

    def streams(self) -> list[Any]:
        return [each for each in self._node.streams() if each.account == self._account]

    @property
    def topology_version(self) -> int:
        return self._node.topology_version


class Node:
    """ports.NodeHandle whose groups decide at once."""

    is_clustered = False
    peers = None

    def __init__(self) -> None:
        self.clock = Clock()
        self.meta = MetaMachine()
        self.server_id = "N" * 56
        self.server_name = "bed"
        self.store_dir = "/nowhere"
        self.memory_max = -1
        self.storage_max = -1
        self.failed: dict[tuple[str, str], str] = {}
        self.topology_version = 0
        self.on_stream_event: OnStreamEvent | None = None
        self._streams: dict[tuple[str, str], Stream] = {}

    def is_short_of_files(self) -> bool:
        return False

    def watch_events(self, on_stream: OnStreamEvent, on_meta: OnMetaEvent) -> None:
        self.on_stream_event = on_stream

    def propose_meta(self, command: list[Any], done: Callable[[Any], None]) -> None:
        effects = Effects()
        entry = Entry(1, self.meta.applied + 1, b"x", command, tag=object())
        self.meta.apply(entry, effects)
        outcome = effects.outcomes[0][1]
        for kind, fields in effects.events:
            asset = fields["asset"]
            if kind == "stream_created":
                self._streams[asset.key] = Stream(self, asset)
            elif kind == "stream_deleted":
                del self._streams[asset.key]
            else:
                change = [commands.CONFIGURE, self.clock.ns, asset.config, asset.update_index]
                changed = self._streams[asset.key].apply(change)
                outcome = changed if isinstance(changed, JsError) else outcome
        done(outcome)

    def run(self, stream: Stream) -> None:
        """Have the group of a stream that the meta group knows run."""
        self._streams[stream.account, stream.name] = stream

    def stream(self, name: str, account: str = ACCOUNT) -> Stream | None:
        return self._streams.get((account, name))

    def streams(self) -> list[Stream]:
        return [self._streams[key] for key in sorted(self._streams)]

    def leader_of(self, uid: int) -> str:
        return self.server_name

    def account(self, name: str) -> AccountStreams:
        return AccountStreams(self, name)

    def used_bytes(self, account: str, replicas: int = 0) -> tuple[int, int]:
        used = [0, 0]
        for stream in self._streams.values():
            config = stream.machine.config
            if stream.account == account and replicas in (0, config["num_replicas"]):
                is_file = config["storage"] == "file"
                used[is_file] += stream.machine.index.live.bytes
        return used[0], used[1]

    def memory_bytes(self) -> int:
        return 0

    def storage_bytes(self) -> int:
        return sum(stream.machine.index.live.bytes for stream in self._streams.values())


class Bed:
    """A router on a `Node`, asked as a client asks."""

    def __init__(
        self,
        asset_limits: AssetLimits | None = None,
        accounts: Mapping[str, AccountJetStream | None] | None = None,
    ) -> None:
        """`accounts`: what others than `$G` may use."""
        self.node = Node()
        self.wires = Wires()
        self.accounts = Accounts(self.wires, accounts or {})
        self.soon: list[Callable[[], object]] = []  # what the router wants called later
        self.router = Router(
            self.node,  # type: ignore[arg-type]
            self.accounts,
            server_version="2.14.0",
            clock=self.node.clock,
            asset_limits=asset_limits,
            call_later=lambda _, callback, *args: self.soon.append(partial(callback, *args)),
        )
        self._replies = count(1)
        self.router.announce()
        self.router.attach(self)

    def subscribe_internal(self, pattern: bytes, callback: Any) -> None:
        assert pattern == b"$JS.API.>"

    def ask_raw(
        self, subject: str, body: Any = b"", headers: bytes = b"", account: str = ACCOUNT
    ) -> list[tuple[bytes, bytes]]:
        """Send a request; returns the (headers, payload) of all its replies."""
        reply = b"_INBOX.%d" % next(self._replies)
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        asked = b"$JS.API." + subject.encode()
        self.router.handle(asked, reply, headers, payload, account=account)
        replies = [item[2:] for item in self.wires.sent if item[0] == reply]
        self.wires.sent = [item for item in self.wires.sent if item[0] != reply]
        return replies

    def ask(
        self, subject: str, body: Any = b"", headers: bytes = b"", account: str = ACCOUNT
    ) -> dict[str, Any]:
        """Send a request that has one JSON answer; returns it, checked against its schema."""
        ((head, payload),) = self.ask_raw(subject, body, headers, account)
        assert head == b""
        answer: dict[str, Any] = json.loads(payload)
        check_schema("api", answer)
        return answer

    def error(
        self, subject: str, body: Any = b"", headers: bytes = b"", account: str = ACCOUNT
    ) -> tuple[int, str]:
        """Send a request that is refused; returns (err_code, description)."""
        answer = self.ask(subject, body, headers, account)
        assert "error" in answer, answer
        return answer["error"]["err_code"], answer["error"]["description"]

    def make(self, name: str, account: str = ACCOUNT, **config: Any) -> Stream:
        """Create a stream."""
        answer = self.ask(f"STREAM.CREATE.{name}", {"name": name} | config, account=account)
        assert "error" not in answer, answer
        stream = self.node.stream(name, account)
        assert stream is not None
        return stream

    def make_consumer(self, stream: str, name: str, **config: Any) -> dict[str, Any]:
        """Create a durable consumer; returns the response."""
        given = {"stream_name": stream, "config": {"durable_name": name} | config}
        return self.ask(f"CONSUMER.CREATE.{stream}.{name}", given)


_validators: dict[str, Any] = {}


def check_schema(kind: str, document: dict[str, Any]) -> None:
    """Check a document against the published schema of its type, where the schemas are at hand."""
    short = document["type"].rpartition(".")[2]
    path = _SCHEMAS / kind / "v1" / f"{short}.json"
    if not path.exists():
        return
    validator = _validators.get(str(path))
    if validator is None:
        validator = jsonschema.Draft7Validator(json.loads(path.read_text()))
        _validators[str(path)] = validator
    if "error" in document:
        # Beside an error nats-server, and so we, show empty fields that its schemas do not foresee.
        kept = ("type", "error", "total", "offset", "limit")
        document = {key: document[key] for key in kept if key in document}
    validator.validate(document)


needs_schemas = pytest.mark.skipif(
    not _SCHEMAS.exists(), reason="the published JetStream schemas are not beside this checkout"
)
