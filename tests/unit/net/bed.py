"""A listener without sockets: connections on fake transports, a fake clock, a fake node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from streamd.config.account_options import AccountLimits, AccountOptions, default_accounts
from streamd.config.options import Options
from streamd.net.client.client_registry import ClientRegistry
from streamd.net.client.listener import Listener
from streamd.net.monitoring.account_views import AccountView
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.system.clients_by_account import ClientsByAccount

CONNECT = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,'
    b'"protocol":1}\r\n'
)


class Timer:
    def __init__(self, at: float, action: Callable[[], None]) -> None:
        self.at = at
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class Clock:
    """As much of an event loop as a connection uses; time passes only in `advance`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []
        self.done: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, action: Callable[..., None], *args: Any) -> Timer:
        timer = Timer(self.now + delay, lambda: action(*args))
        self.timers.append(timer)
        return timer

    def call_soon(self, action: Callable[..., None], *args: Any) -> None:
        self.call_later(0.0, action, *args)

    def run_in_executor(self, _pool: Any, job: Callable[[], Any]) -> Any:
        """Runs the job at `finish_jobs`, as another thread would at some later time."""
        return Job(self, job)

    def finish_jobs(self) -> None:
        while self.done:  # one that ends may begin another
            done, self.done = self.done, []
            for job in done:
                job()

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [timer for timer in self.timers if timer.action and timer.at <= until]:
            timer = min(due, key=lambda each: each.at)
            self.now = max(self.now, timer.at)
            action, timer.action = timer.action, None
            assert action is not None
            action()
        self.now = until


class Job:
    def __init__(self, clock: Clock, job: Callable[[], Any]) -> None:
        self._clock = clock
        self._job = job

    def cancelled(self) -> bool:
        return False

    def result(self) -> Any:
        return self._job()

    def add_done_callback(self, callback: Callable[[Job], None]) -> None:
        self._clock.done.append(lambda: callback(self))


class Transport(asyncio.Transport):
    """Collects what is written; `is_stuck` makes it hold everything, as a client that reads not."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closing = self.is_aborted = self.is_paused = False
        self.waiting = 0
        self.is_stuck = False
        self.conn: Any = None
        self.high = 0
        self.on_write: Callable[[], None] | None = None

    def set_write_buffer_limits(self, *, high: int, low: int) -> None:
        self.high = high

    def get_extra_info(self, key: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50_000) if key == "peername" else default

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: bytes) -> None:
        self.written.append(data)
        if self.is_stuck:
            self.waiting += len(data)
            if self.waiting > self.high and not self.conn.output.is_congested:
                self.conn.pause_writing()
        if self.on_write is not None:
            self.on_write()

    def drain(self) -> None:
        self.is_stuck, self.waiting = False, 0
        self.conn.resume_writing()

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        self.is_closing = True

    def abort(self) -> None:
        self.is_aborted = True


class Peer:
    """One client: sends bytes, and takes what the server wrote since the last look."""

    def __init__(self, bed: Bed, connect: bytes | None = CONNECT) -> None:
        self.transport = Transport()
        self.conn = bed.listener.make_connection(bed.clock)  # type: ignore[arg-type]
        self.transport.conn = self.conn
        self.conn.connection_made(self.transport)
        self.info = self.take()
        if connect is not None:
            self.conn.data_received(connect)

    def send(self, data: bytes) -> bytes:
        self.conn.data_received(data)
        return self.take()

    def take(self) -> bytes:
        data = b"".join(self.transport.written)
        self.transport.written.clear()
        return data

    def leave(self) -> None:
        self.conn.connection_lost(None)


class Machine:
    def __init__(self, subjects: list[str]) -> None:
        self.config: dict[str, Any] = {"subjects": subjects}
        self.consumers = {"C": object()}


class Stream:
    """Remembers what was published, acked and answered."""

    def __init__(self, name: str, subjects: list[str]) -> None:
        self.name = name
        self.name_bytes = name.encode()
        self.machine = Machine(subjects)
        self.published: list[tuple[list[Any], list[bytes], Any]] = []
        self.acked: list[tuple[bytes, bytes, bytes]] = []
        self.flow: list[tuple[str, bytes, bytes]] = []
        self.log: list[str] = []
        self.is_local = True

    @property
    def config(self) -> dict[str, Any]:
        return self.machine.config

    def takes_acks(self, name: str) -> bool:
        return name in self.machine.consumers

    def publish(self, msgs: list[Any], replies: list[bytes], sink: Any) -> None:
        self.published.append((msgs, replies, sink))
        self.log.append(f"publish {len(msgs)}")

    def judge(self, msg: Any, done: Any) -> None:
        self.log.append("judge")
        done(7, self.place(msg[0]))

    def place(self, subject: bytes) -> tuple[bytes, bool]:
        return subject, True

    def acks(
        self, subjects: list[bytes], replies: list[bytes] | None, payloads: list[bytes]
    ) -> None:
        for at, subject in enumerate(subjects):
            reply = replies[at] if replies is not None else b""
            self.acked.append((subject, reply, payloads[at]))
            self.log.append("ack")

    def flow_reply(self, consumer: str, subject: bytes, headers: bytes = b"") -> None:
        self.flow.append((consumer, subject, headers))


class Node:
    def __init__(self, *streams: Stream) -> None:
        self.topology_version = 1
        self.all = list(streams)

    def streams(self) -> list[Stream]:
        return self.all

    def stream(self, name: str) -> Stream | None:
        return next((stream for stream in self.all if stream.name == name), None)

    def streams_for(self, subject: bytes) -> tuple[Stream, ...]:
        from streamd.subjects import matches

        return tuple(
            stream
            for stream in self.all
            if any(matches(p.encode(), subject) for p in stream.machine.config["subjects"])
        )

    def streams_under(self, prefix: bytes) -> tuple[Stream, ...] | None:
        from streamd.subjects import collides, matches

        found = []
        for stream in self.all:
            patterns = [p.encode() for p in stream.machine.config["subjects"]]
            if any(matches(pattern, prefix + b"*") for pattern in patterns):
                found.append(stream)
            elif any(collides(pattern, prefix + b"*") for pattern in patterns):
                return None
        return tuple(found)


def make_listener(
    options: Options,
    router: MessageRouter | None = None,
    registry: ClientRegistry | None = None,
    node: Node | None = None,
    log: Any = None,
    *,
    server_name: str = "bed",
    connections_max: int = 0,
) -> Listener:
    """A listener that is not started yet."""
    return Listener(
        options,
        _Sole(router or MessageRouter()),
        registry or ClientRegistry(options.max_closed_clients),
        server_id="N" + "A" * 55,
        server_name=server_name,
        has_jetstream=node is not None,
        log=log,
        connections_max=connections_max,
    )


class _Sole:
    """The subject space of a server with one account."""

    def __init__(self, router: MessageRouter) -> None:
        self._router = router

    def router(self, name: str) -> MessageRouter:
        return self._router

    def enter(self, cid: int, name: str) -> bool:
        return True

    def leave(self, cid: int, name: str) -> None: ...

    def limits(self, name: str) -> AccountLimits:
        return AccountLimits()

    def resume_deliveries(self) -> None:
        self._router.on_drained()


@dataclass(slots=True)
class PlainAccount:
    """An account, as monitoring reads it."""

    name: str
    options: AccountOptions
    router: MessageRouter
    updated_ns: int


class PlainAccounts:
    """Accounts, as monitoring reads them."""

    def __init__(self, main: AccountView, system: AccountView, *others: AccountView) -> None:
        self.main = main
        self.system = system
        self._by_name = {account.name: account for account in (main, system, *others)}

    def names(self) -> Sequence[str]:
        return list(self._by_name)

    def get(self, name: str) -> AccountView | None:
        return self._by_name.get(name)


class Bed:
    def __init__(
        self, options: Options | None = None, node: Node | None = None, log: Any = None
    ) -> None:
        self.options = options or Options()
        self.clock = Clock()
        self.router = MessageRouter(domain=self.options.jetstream.domain)
        self.subscriptions = self.router.subscriptions
        self.router.output_queue.clock = self.clock.time
        self.router.fanout._dice = 1  # the same members are picked in every run
        self.registry = ClientRegistry(self.options.max_closed_clients)
        self.listener = make_listener(self.options, self.router, self.registry, node, log)
        self.accounts = PlainAccounts(
            PlainAccount("$G", default_accounts()["$G"], self.router, 1),
            PlainAccount("$SYS", default_accounts()["$SYS"], MessageRouter(), 1),
        )
        self.clients = ClientsByAccount()
        self.listener.connections.observe(self.clients)
        if node is not None:
            self.router.attach(node)  # type: ignore[arg-type]

    def peer(self, connect: bytes | None = CONNECT) -> Peer:
        return Peer(self, connect)
