"""What a client asks of `$JS.API.>`: through the router of the node it is connected to.

Whether that node serves a request, passes it on or keeps it for a while is the real forwarding's
business; the answer comes back as a message on the client's inbox, from wherever it was made.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamd.types import Msg, Seq, Uid
from tests.sim.plan import ALONE, COMING_AND_GOING
from tests.sim.world import World, need

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.host import SimProcess
    from tests.sim.ledger import Ledger

Document = dict[str, Any]
Answered = Callable[[Document], None]


class Requester:
    """The API side of a client. `Client` knows how to be connected and to wait for answers."""

    name: bytes
    cluster: SimCluster
    ledger: Ledger
    world: World
    rng: random.Random

    @property
    def process(self) -> SimProcess | None:
        raise NotImplementedError

    def await_reply(self, then: Callable[..., None]) -> bytes:
        """Return an inbox; `then` gets (headers, payload) of the first message on it."""
        raise NotImplementedError

    def finish(self) -> None:
        """The operation under way is over."""
        raise NotImplementedError

    def some_handle(self) -> Any:
        """Some stream, as the node we are connected to holds it; None (and over): none."""
        raise NotImplementedError

    def some_subject(self, handle: Any) -> bytes:
        """A subject of that stream."""
        raise NotImplementedError

    # --- asking -----------------------------------------------------------------------------

    def request(self, endpoint: str, document: Document | None, then: Answered) -> None:
        """Ask; `then` gets the answer, unless nobody answers in time."""
        process = self.process
        assert process is not None

        def answered(headers: bytes, payload: bytes) -> None:
            answer = json.loads(payload)
            code = answer.get("error", {}).get("err_code", 0)
            verb = ".".join(t for t in endpoint.split(".") if len(t) > 2)
            self.world.counts[f"api {verb} {code or 'ok'}"] += 1
            then(answer)

        reply = self.await_reply(answered)
        payload = json.dumps(document).encode() if document is not None else b""
        process.router.handle(b"$JS.API." + endpoint.encode(), reply, b"", payload)

    def _order(self, endpoint: str, document: Document | None, count: str) -> None:
        """Ask for something to be done; what becomes of it is told by the log."""

        def answered(answer: Document) -> None:
            self.world.counts["refused" if "error" in answer else count] += 1
            self.finish()

        self.request(endpoint, document, answered)

    # --- streams ----------------------------------------------------------------------------

    def create_stream(self) -> None:
        name = self.rng.choice(self.cluster.plan.names)
        self._order(f"STREAM.CREATE.{name}", self.cluster.plan.configs[name], "streams")

    def delete_stream(self) -> None:
        self._order(f"STREAM.DELETE.{COMING_AND_GOING}", None, "stream deletes")

    def delete_msg(self) -> None:
        handle = self.some_handle()
        if handle is not None:
            self._delete_from(handle)

    def _delete_from(self, handle: Any) -> None:
        last = self.ledger.last_acked.get(handle.uid, 0)
        seq = self.rng.randint(1, last + 2)
        self._order(f"STREAM.MSG.DELETE.{handle.name}", {"seq": seq}, "deletes")

    def purge(self) -> None:
        handle = self.some_handle()
        if handle is not None:
            wanted: Document = {"keep": self.rng.randint(0, 5)}
            if self.rng.random() < 0.5:
                wanted["filter"] = self.some_subject(handle).decode()
            self._order(f"STREAM.PURGE.{handle.name}", wanted, "purges")

    def step_down(self) -> None:
        """Have some leader hand over, as an operator does."""
        names = [name for name in self.cluster.plan.names if name != ALONE]
        endpoint = f"STREAM.LEADER.STEPDOWN.{self.rng.choice(names)}"
        if self.rng.random() < 0.3:
            endpoint = "META.LEADER.STEPDOWN"
        self._order(endpoint, None, "step-downs")

    # --- consumers --------------------------------------------------------------------------

    def create_consumer(self) -> None:
        self._create_consumer("C", {"ack_policy": "explicit"})

    def create_push_consumer(self) -> None:
        """`P` wants acks, `N` none; both push to the inbox of whoever came first."""
        if self.rng.random() < 0.6:
            self._create_consumer("P", {"ack_policy": "explicit"}, is_push=True)
        else:
            self._create_consumer("N", {"ack_policy": "none"}, is_push=True)

    def _create_consumer(self, name: str, config: Document, *, is_push: bool = False) -> None:
        handle = self.some_handle()
        if handle is None:
            return
        stream = handle.name
        if config["ack_policy"] == "explicit":
            config = config | {"ack_wait": 3 * 10**9, "max_ack_pending": 1000}
        if is_push:
            config = config | {"deliver_subject": f"{self.name.decode()}.push.{stream}"}
        self._order_consumer(stream, name, config)

    def _order_consumer(self, stream: str, name: str, config: Document) -> None:
        config = config | {"durable_name": name, "deliver_policy": "all"}
        document = {"stream_name": stream, "config": config}
        self._order(f"CONSUMER.CREATE.{stream}.{name}", document, "consumers")

    # --- reads ------------------------------------------------------------------------------

    def read_last(self) -> None:
        """A linearizable read: it sees all that was acked before it began."""
        handle = self.some_handle()
        if handle is None:
            return
        uid: Uid = handle.uid
        acked = self.ledger.last_acked.get(uid, 0)

        def answered(answer: Document) -> None:
            # By the time it is answered the name may belong to a later stream.
            if "error" not in answer and self.cluster.is_asset(handle.name, uid):
                last = answer["state"]["last_seq"]
                self.ledger.check_read(uid, last, acked)
            self.finish()

        self.request(f"STREAM.INFO.{handle.name}", None, answered)

    def get_message(self) -> None:
        """One acked message by its seq: it has its bytes, or a committed command removed it."""
        handle = self.some_handle()
        seq = self._some_acked(handle)
        if not seq:
            return
        uid: Uid = handle.uid

        def answered(answer: Document) -> None:
            self._check_answer(handle.name, uid, seq, answer)
            self.finish()

        self.request(f"STREAM.MSG.GET.{handle.name}", {"seq": seq}, answered)

    def _check_answer(self, name: str, uid: Uid, seq: Seq, answer: Document) -> None:
        if not self.cluster.is_asset(name, uid):
            return
        error = answer.get("error")
        if error is None:
            message = answer["message"]
            found: Msg = (
                message["subject"].encode(),
                base64.b64decode(message.get("hdrs", "")),
                base64.b64decode(message.get("data", "")),
            )
            self.ledger.check_message(uid, message["seq"], found)
            need(message["seq"] == seq, f"asked for {seq} of {uid}, got {message['seq']}")
        elif error["err_code"] == 10037:
            self.ledger.check_gone(uid, seq)

    def get_directly(self) -> None:
        """From any replica, which may be behind: what it has is right."""
        handle = self.some_handle()
        seq = self._some_acked(handle)
        process = self.process
        if not seq or process is None:
            return
        uid: Uid = handle.uid
        # In worlds that no seed of before knows.
        is_linearizable = self.cluster.is_encrypted and seq % 2 == 0

        def answered(headers: bytes, payload: bytes) -> None:
            # 500: stored, and this node's disk does not give it back.
            if is_linearizable and headers.startswith(b"NATS/1.0 404"):
                if self.cluster.is_asset(handle.name, uid):
                    self.ledger.check_gone(uid, seq)
            elif not headers.startswith(
                tuple(b"NATS/1.0 %d" % code for code in (404, 408, 500, 503))
            ):
                if self.cluster.is_asset(handle.name, uid):
                    self.ledger.check_payload(uid, seq, payload)
            self.finish()

        reply = self.await_reply(answered)
        subject = f"$JS.API.DIRECT.GET.{handle.name}".encode()
        asked = b"NATS/1.0\r\nNats-Linearizable: true\r\n\r\n" if is_linearizable else b""
        process.router.handle(subject, reply, asked, b'{"seq":%d}' % seq)

    def _some_acked(self, handle: Any) -> Seq:
        """A seq that was acked; 0 (and over): none."""
        if handle is None:
            return 0
        acked = self.ledger.acked.get(handle.uid)
        if not acked:
            self.finish()
            return 0
        return self.rng.randint(1, max(acked))
