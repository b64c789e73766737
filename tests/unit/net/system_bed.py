"""Servers with accounts A and B, and a system account SYS, without sockets."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema

from streamd.config.account_options import (
    AccountOptions,
    ExportOptions,
    ImportOptions,
    LatencyOptions,
    MappingDestination,
    SubjectMapping,
)
from streamd.config.cluster_options import ClusterOptions
from streamd.config.options import Options, User
from streamd.net.monitoring.documents import Monitoring
from streamd.net.monitoring.server_stats import ServerStats
from streamd.net.monitoring.sliced_pages import Slicer
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.system.server_description import ServerDescription
from streamd.net.system.system_account import SystemAccount
from tests.unit.net.bed import CONNECT, Bed, Peer, PlainAccount, PlainAccounts

SERVER_ID = "N" + "A" * 55
_SCHEMAS = Path(__file__).parents[4] / "shared/reference/schemas/server/advisory/v1"
_A = AccountOptions(
    "A",
    exports=(
        ExportOptions("svc.>", is_service=True, accounts=("B",), response_type="stream"),
        ExportOptions("ev.>", is_service=False),
        ExportOptions("lat", is_service=True, latency=LatencyOptions("lat.out", 50)),
    ),
    mappings=(
        SubjectMapping("w.*", (MappingDestination("x.$1", 50, "c9"), MappingDestination("y.$1"))),
    ),
)
_B = AccountOptions(
    "B",
    imports=(
        ImportOptions("A", "ev.>", is_service=False, local_subject="pp.ev.>"),
        ImportOptions("A", "svc.x", is_service=True, local_subject="local.x", is_shared=True),
    ),
    label="Bee",
)


class Message(NamedTuple):
    subject: str
    headers: bytes
    body: bytes

    def json(self) -> Any:
        is_gzip = b"gzip" in self.headers
        return json.loads(gzip.decompress(self.body) if is_gzip else self.body)


class Controls:
    """Remembers what operators wanted."""

    def __init__(self) -> None:
        self.failure = ""
        self.done: list[tuple[str, int]] = []

    def reload(self) -> str:
        self.done.append(("reload", 0))
        return self.failure

    def kick(self, cid: int) -> bool:
        self.done.append(("kick", cid))
        return cid < 100

    def send_away(self, cid: int) -> bool:
        self.done.append(("send away", cid))
        return cid < 100

    def drain(self) -> None:
        self.done.append(("drain", 0))

    def trash(
        self, action: str, names: Sequence[str], answer: Callable[[dict[str, object] | str], None]
    ) -> None:
        self.done.append((action, len(names)))
        answer(self.failure or {"names": list(names)})

    def scrub(self, is_begun: bool) -> dict[str, object] | None:
        self.done.append(("scrub", is_begun))
        return None if self.failure else {"rounds": 1}


class SystemBed:
    """One server. Clients of its listener log in as user a, b or s, of accounts A, B and SYS; their
    subject space is account A's."""

    def __init__(self, options: Options | None = None, name: str = "bed") -> None:
        self.options = options or Options(
            users=[User("a", "p", account="A"), User("b", "p", account="B")],
            server_tags=["az:1", "Big"],
            server_metadata={"rack": "r1"},
            cluster=ClusterOptions(name="c3", port=1),
        )
        self.bed = Bed(self.options)
        self.clock = self.bed.clock
        self.system = MessageRouter(output_queue=self.bed.router.output_queue)
        self.accounts = PlainAccounts(
            PlainAccount("$G", AccountOptions("$G"), MessageRouter(), 1),
            PlainAccount("SYS", AccountOptions("SYS"), self.system, 1),
            PlainAccount("A", _A, self.bed.router, 1),
            PlainAccount("B", _B, MessageRouter(), 1),
        )
        self.stats = stats = ServerStats(self.bed.registry, self.accounts, self.bed.clients.of)
        identity = {"server_id": SERVER_ID, "server_name": name}
        self.monitoring = Monitoring(self.options, stats=stats, **identity)
        self.controls = Controls()
        self.description = ServerDescription(self.options, **identity, has_jetstream=False)
        slicer = Slicer(self.clock.call_soon)
        self.account = SystemAccount(
            stats,
            self.monitoring,
            self.description,
            slicer,
            self.clock,  # type: ignore[arg-type]
            self.controls,
        )
        self.account.observe(self.bed.listener.connections)
        self._inboxes = itertools.count(1)
        self.seen: list[Message] = []

    def client(self, user: str = "a", **said: str) -> Peer:
        words = json.dumps({"user": user, "pass": "p", **said})[1:-1]
        return self.bed.peer(CONNECT.replace(b"{", b"{" + words.encode() + b",", 1))

    def listen(self, *patterns: str) -> None:
        """Have `events` return messages on these subjects of the system account."""

        def note(subject: bytes, _r: bytes, headers: bytes, body: bytes, _c: object) -> None:
            self.seen.append(Message(subject.decode(), headers, body))

        for pattern in patterns:
            self.system.subscriptions.subscribe_internal(pattern.encode(), note)

    def events(self, pass_s: float = 0) -> list[Message]:
        """Return what came since the last call, checked against its schema."""
        self.clock.advance(pass_s)
        seen, self.seen = self.seen, []
        for message in seen:
            check(message.json())
        return seen

    def ask(
        self, subject: str, body: Any = b"", headers: bytes = b"", *, pass_s: float = 0
    ) -> Message | None:
        """Return the answer; None: silence."""
        inbox = f"inbox.{next(self._inboxes)}"
        found: list[Message] = []

        def take(_s: bytes, _r: bytes, got: bytes, payload: bytes, _c: object) -> None:
            found.append(Message(subject, got, payload))

        sub = self.system.subscriptions.subscribe_internal(inbox.encode(), take)
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.system.publish(subject.encode(), inbox.encode(), headers, payload)
        self.clock.advance(pass_s)
        self.system.subscriptions.unsubscribe(sub)
        assert len(found) <= 1, found
        return found[0] if found else None

    def answer(self, subject: str, body: Any = b"") -> Any:
        """Return the answer without the description of the server."""
        found = self.ask(subject, body)
        assert found is not None, subject
        document = found.json()
        if isinstance(document, dict):
            assert document.pop("server")["id"] == SERVER_ID
        return document


def check(event: dict[str, Any]) -> None:
    """Check an event against the published schema of its type, where the schemas are at hand."""
    kind = str(event.get("type", "")).rpartition(".")[2]
    path = _SCHEMAS / f"{kind}.json"
    if not kind or not path.exists():
        return
    # Newer than the schemas, and nats-server's as well.
    event = {key: value for key, value in event.items() if key not in ("name", "num_subscriptions")}
    event["server"] = {k: v for k, v in event["server"].items() if k != "feature_flags"}
    jsonschema.validate(event, json.loads(path.read_text()))
