"""The load generator: prepared protocol bytes over raw sockets, in a process of its own.

One row is one function here: it sets up what it needs, sends for a number of seconds (or reads a
whole stream) and returns figures. Requests are laid out beforehand in a ring of equal-sized
publishes whose reply subjects all differ, as a client library's do; answers are counted, not
parsed, wherever the row allows it. So the generator costs a fraction of the server's work.

    python -m benchmarks.load_rows --port 4222 --row publish --args '{"size": 128, "seconds": 3}'
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.doors import Door

CONNECT = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,'
    b'"protocol":1,"lang":"bench","version":"1","echo":true}\r\n'
)
RECV_BYTES = 1 << 18
SILENT_S = 15.0  # nothing heard for so long: the run failed
HEAVY_LEAD_S = 0.5  # until the other process is at work
ACK_SUBJECT = re.compile(rb" (\$JS\.ACK\.[^ ]+) ")
FLOW_SUBJECT = re.compile(rb"(\$JS\.FC\.[^ \r]+)")
STREAM = "BENCH"
SUBJECT = b"bench.data"

Figures = dict[str, float]


class LoadError(Exception):
    """The server answered with an error, or not at all."""


class Link:
    """Raw client connection: non-blocking, with the bytes that could not be sent yet."""

    door = Door({})  # of all links of this process

    def __init__(self, port: int, *, is_reader: bool = False) -> None:
        """`is_reader`: it only receives; behind some doors it is another user."""
        self.socket = self.door.open(port)
        info = self.socket.recv(65536)
        if not info.startswith(b"INFO "):
            raise LoadError(f"no INFO: {info[:80]!r}")
        self.socket.sendall(self.door.login(CONNECT, is_reader=is_reader) + b"PING\r\n")
        seen = b""
        while b"PONG\r\n" not in seen:
            seen += self.socket.recv(65536)
        self.socket.setblocking(False)
        self.unsent: deque[memoryview] = deque()
        self.rest = b""
        self.in_flight = 0
        self.sent_at = 0.0
        self.next = 0

    def send(self, data: bytes | memoryview) -> None:
        """Send, keeping what the socket does not take for `flush`."""
        view = memoryview(data)
        if not self.unsent:
            with contextlib.suppress(BlockingIOError):
                view = view[self.socket.send(view) :]
            if not view:
                return
        self.unsent.append(view)

    def flush(self) -> None:
        while self.unsent:
            try:
                sent = self.socket.send(self.unsent[0])
            except BlockingIOError:
                return
            if sent == len(self.unsent[0]):
                self.unsent.popleft()
            else:
                self.unsent[0] = self.unsent[0][sent:]

    def receive(self) -> bytes:
        """Return what has arrived; answers the server's pings."""
        try:
            data = self.socket.recv(RECV_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            raise LoadError("the server closed the connection")
        if data.startswith(b"PING\r\n") or data.endswith(b"\r\nPING\r\n"):
            self.send(b"PONG\r\n")
        if data.startswith(b"-ERR"):
            raise LoadError(data[:200].decode(errors="replace"))
        return data

    def whole_lines(self) -> bytes:
        """Return what has arrived up to the last line end; the rest waits for more."""
        data = self.rest + self.receive()
        end = data.rfind(b"\r\n") + 2
        if end == 1:
            self.rest = data
            return b""
        self.rest = data[end:]
        return data[:end]

    def count(self, needle: bytes) -> int:
        """Count `needle` in what has arrived, also across the borders of chunks."""
        data = self.rest + self.receive()
        self.rest = data[-(len(needle) - 1) :]
        return data.count(needle)


class Loop:
    """Calls back per readable link until the row is done or the server falls silent."""

    def __init__(self, links: list[Link]) -> None:
        self.links = {link.socket.fileno(): link for link in links}
        self._poll = select.epoll()
        self._writing: set[int] = set()
        for number in self.links:
            self._poll.register(number, select.EPOLLIN)

    def run(self, on_readable: Callable[[Link], None], is_done: Callable[[], bool]) -> None:
        self._watch_unsent()
        while not is_done():
            events = self._poll.poll(SILENT_S)
            if not events:
                raise LoadError(f"the server was silent for {SILENT_S} s")
            for number, event in events:
                link = self.links[number]
                if event & select.EPOLLOUT:
                    link.flush()
                if event & ~select.EPOLLOUT:
                    on_readable(link)
            self._watch_unsent()

    def _watch_unsent(self) -> None:
        for number, link in self.links.items():
            if bool(link.unsent) != (number in self._writing):
                both = select.EPOLLIN | (select.EPOLLOUT if link.unsent else 0)
                self._poll.modify(number, both)
                self._writing ^= {number}

    def close(self) -> None:
        self._poll.close()
        for link in self.links.values():
            link.socket.close()


class Api:
    """A blocking JetStream API client for setting rows up."""

    def __init__(self, port: int) -> None:
        self._link = Link(port)
        self._link.socket.setblocking(True)
        self._link.socket.settimeout(60)
        self._link.socket.sendall(b"SUB _INBOX.api.* 1\r\n")
        self._count = 0

    def request(self, subject: str, body: Any = None) -> dict[str, Any]:
        """Return the JSON answer; an error in it is a LoadError."""
        self._count += 1
        inbox = f"_INBOX.api.{self._count}"
        data = b"" if body is None else json.dumps(body).encode()
        line = f"PUB {subject} {inbox} {len(data)}\r\n".encode()
        self._link.socket.sendall(line + data + b"\r\n")
        seen = b""
        marker = inbox.encode()
        while True:
            seen += self._link.socket.recv(1 << 20)
            at = seen.find(b"MSG " + marker)
            end = seen.find(b"\r\n", at)
            if at < 0 or end < 0:
                continue
            size = int(seen[at:end].rpartition(b" ")[2])
            if len(seen) >= end + 2 + size:
                break
        found: dict[str, Any] = json.loads(seen[end + 2 : end + 2 + size])
        if "error" in found:
            raise LoadError(f"{subject}: {found['error']}")
        return found

    def create_stream(self, name: str = STREAM, **config: Any) -> None:
        whole = {"name": name, "subjects": ["bench.>"], "storage": "file", "retention": "limits"}
        self.request(f"$JS.API.STREAM.CREATE.{name}", whole | config)

    def leader_port(self, nodes: dict[str, int], name: str = STREAM) -> int:
        """Return the port of the node that leads the stream, of `nodes` by name."""
        for _ in range(500):
            info = self.request(f"$JS.API.STREAM.INFO.{name}")
            leader = info.get("cluster", {}).get("leader", "")
            if leader:
                return nodes[leader]
            time.sleep(0.02)
        raise LoadError(f"{name} has no leader")

    def messages(self, name: str = STREAM) -> int:
        count: int = self.request(f"$JS.API.STREAM.INFO.{name}")["state"]["messages"]
        return count

    def close(self) -> None:
        self._link.socket.close()


def payload(size: int) -> bytes:
    """Return printable bytes that hold no protocol word."""
    return (b"abcdefghijklmnopqrstuvwxyz0123456789" * (size // 36 + 1))[:size]


class Ring:
    """Equal-sized publishes laid out one after another; sent as slices. With `keys` each goes to
    a subject of its own, in that order."""

    def __init__(
        self,
        subject: bytes,
        body: bytes,
        count: int,
        *,
        reply: bytes = b"",
        keys: Sequence[int] = (),
        header: bytes = b"",
    ) -> None:
        """`header`: one line of each publish, "Name: value"; "" for none."""
        verb, sizes, content = b"PUB", b"%d" % len(body), body
        if header:
            block = b"NATS/1.0\r\n%s\r\n\r\n" % header
            verb, content = b"HPUB", block + body
            sizes = b"%d %d" % (len(block), len(content))
        parts = []
        for number in range(count):
            to = b" %s.%06d" % (reply, number) if reply else b""
            name = b"%s.%06d" % (subject, keys[number]) if keys else subject
            parts.append(b"%s %s%s %s\r\n%s\r\n" % (verb, name, to, sizes, content))
        self.count = count
        self.each = len(parts[0])
        self.first = parts[0]
        self._view = memoryview(b"".join(parts))

    def send(self, link: Link, count: int) -> None:
        """Send the next `count` publishes of this link's turn round the ring."""
        while count:
            start = link.next
            take = min(count, self.count - start)
            link.send(self._view[start * self.each : (start + take) * self.each])
            link.next = (start + take) % self.count
            count -= take


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def publish(
    port: int,
    *,
    size: int,
    seconds: float,
    connections: int = 1,
    window: int = 1000,
    compression: str = "none",
    replicas: int = 1,
    nodes: dict[str, int] | None = None,
) -> Figures:
    """Publish to a file stream; `window` unacked per connection; window 1 is the sync publish.

    With `nodes` (ports by name) the connections go to the node that leads the stream.
    """
    api = Api(port)
    api.create_stream(num_replicas=replicas, compression=compression)
    if nodes:
        port = api.leader_port(nodes)
    links = [Link(port) for _ in range(connections)]
    rings = {}
    for number, link in enumerate(links):
        inbox = b"_INBOX.bench%07d" % number
        rings[link] = Ring(SUBJECT, payload(size), max(2 * window, 64), reply=inbox)
        link.send(b"SUB %s.* 1\r\n" % inbox)
    waits: list[float] = []
    began = time.perf_counter()
    if window == 1:
        waits = _one_by_one(links, {link: rings[link].first for link in links}, began + seconds)
        acked = len(waits)
    else:
        acked = windows(links, rings, window, until=began + seconds)
    took = time.perf_counter() - began
    for link in links:
        link.socket.close()
    stored = api.messages()
    api.close()
    if stored != acked:
        raise LoadError(f"{acked} acks but {stored} messages stored")
    figures = {"rate": acked / took, "count": float(acked)}
    if waits:
        figures["p50_us"] = percentile(waits, 0.5) * 1e6
        figures["p99_us"] = percentile(waits, 0.99) * 1e6
    return figures


def put_keys(port: int, *, size: int, seconds: float, keys: int, window: int) -> Figures:
    """Put to a bucket whose `keys` keys all exist, in random order, `window` unacked."""
    api = Api(port)
    api.create_stream(max_msgs_per_subject=1, allow_direct=True)
    inbox, body = b"_INBOX.bench", payload(size)
    in_order = list(range(keys))
    shuffled = random.Random(1).sample(in_order, keys)
    for order, lasts in ((in_order, 0.0), (shuffled, seconds)):
        link = Link(port)
        link.send(b"SUB %s.* 1\r\n" % inbox)
        ring = Ring(SUBJECT, body, keys, reply=inbox, keys=order)
        began = time.perf_counter()
        count = 0 if lasts else keys
        acked = windows([link], {link: ring}, window, until=began + lasts, count=count)
        took = time.perf_counter() - began
        link.socket.close()
    stored = api.messages()
    api.close()
    if stored != keys:
        raise LoadError(f"{keys} keys, but {stored} messages stored")
    return {"rate": acked / took, "count": float(acked)}


def publish_beside(port: int, *, size: int, seconds: float) -> Figures:
    """Publish 128 bytes with one in flight, while another process publishes `size` with a window
    of 1,000 into another stream. Work that holds up the log or the loop shows in the longest
    waits."""
    api = Api(port)
    api.create_stream("BESIDE", subjects=["beside"])
    api.close()
    link, ready = Link(port), b"_INBOX.beside"
    link.send(b"SUB %s 1\r\n" % ready)
    body = payload(128)
    message = b"PUB beside %s %d\r\n%s\r\n" % (ready, len(body), body)
    heavy_args = json.dumps({"size": size, "seconds": seconds + HEAVY_LEAD_S})
    command = [sys.executable, "-m", "benchmarks.load_rows", "--port", str(port)]
    heavy = subprocess.Popen(
        [*command, "--row", "publish", "--args", heavy_args], stdout=subprocess.PIPE
    )
    try:
        began = time.perf_counter()
        waits = _one_by_one([link], {link: message}, began + HEAVY_LEAD_S + seconds)
        took = time.perf_counter() - began
        told, _ = heavy.communicate(timeout=SILENT_S)
    finally:
        heavy.kill()
        heavy.wait()
    link.socket.close()
    if "error" in (beside := json.loads(told)):
        raise LoadError(beside["error"])
    return {
        "rate": len(waits) / took,
        "count": float(len(waits)),
        "beside_rate": beside["rate"],
        "p50_us": percentile(waits, 0.5) * 1e6,
        "p999_us": percentile(waits, 0.999) * 1e6,
        "max_us": max(waits) * 1e6,
    }


def windows(
    links: list[Link],
    rings: dict[Link, Ring],
    window: int,
    *,
    until: float = 0.0,
    count: int = 0,
) -> int:
    """Keep `window` publishes unacked on each link, `until` a time or for `count` each; returns how
    many were acked."""
    acked = 0
    clock = time.perf_counter
    left = dict.fromkeys(links, count or sys.maxsize)

    def send(link: Link, most: int) -> None:
        most = min(most, left[link])
        left[link] -= most
        link.in_flight += most
        rings[link].send(link, most)

    def on_readable(link: Link) -> None:
        nonlocal acked
        got = link.count(b"MSG _INBOX.bench")
        if not got:
            return
        acked += got
        link.in_flight -= got
        if count or clock() < until:
            send(link, window - link.in_flight)

    loop = Loop(links)
    for link in links:
        send(link, window)
    loop.run(on_readable, lambda: all(link.in_flight == 0 for link in links))
    loop.close()
    return acked


def _one_by_one(links: list[Link], messages: dict[Link, bytes], deadline: float) -> list[float]:
    """Publish the next message of a link when its last one is acked; returns all waits, in s.

    Two system calls per message and little else: what is measured is the server.
    """
    waits: list[float] = []
    clock = time.perf_counter
    poll = select.epoll()
    lanes = {}
    for link in links:
        link.socket.settimeout(SILENT_S)
        number = link.socket.fileno()
        poll.register(number, select.EPOLLIN)
        lanes[number] = (link, link.socket.recv, link.socket.sendall, messages[link])
        link.sent_at = clock()
        link.socket.sendall(messages[link])
    waiting = len(links)
    while waiting:
        events = poll.poll(SILENT_S)
        if not events:
            raise LoadError(f"the server was silent for {SILENT_S} s")
        for number, _ in events:
            link, receive, send, message = lanes[number]
            data = link.rest + receive(4096)
            if not (data.startswith(b"MSG ") and data.endswith(b"}\r\n")):
                data = _without_pings(link, data)
                if not (data.startswith(b"MSG ") and data.endswith(b"}\r\n")):
                    link.rest = data  # not all of it yet
                    continue
            link.rest = b""
            now = clock()
            waits.append(now - link.sent_at)
            if now < deadline:
                link.sent_at = now
                send(message)
            else:
                waiting -= 1
    poll.close()
    return waits


def _without_pings(link: Link, data: bytes) -> bytes:
    """Answer the server's pings; `data` without them."""
    if data.startswith(b"-ERR") or not data:
        raise LoadError(data[:200].decode(errors="replace") or "the server closed the connection")
    for _ in range(data.count(b"PING\r\n")):
        link.socket.sendall(b"PONG\r\n")
    return data.replace(b"PING\r\n", b"")


def fill(
    port: int,
    *,
    size: int,
    count: int,
    subject: bytes = SUBJECT,
    subjects: int = 1,
    window: int = 2000,
    compression: str = "none",
    replicas: int = 1,
    nodes: dict[str, int] | None = None,
) -> Figures:
    """Store `count` messages, `window` of them unacked, on `subject` or on `subjects` below it."""
    api = Api(port)
    api.create_stream(num_replicas=replicas, compression=compression)
    if nodes:
        port = api.leader_port(nodes)
    link = Link(port)
    ring_count = 2 * max(window, subjects)
    keys = [number % subjects for number in range(ring_count)] if subjects > 1 else ()
    ring = Ring(subject, payload(size), ring_count, reply=b"_INBOX.bench0000000", keys=keys)
    link.send(b"SUB _INBOX.bench0000000.* 1\r\n")
    loop = Loop([link])
    acked = sent = 0

    def on_readable(link: Link) -> None:
        nonlocal acked, sent
        acked += link.count(b"MSG _INBOX.bench")
        free = min(window - (sent - acked), count - sent)
        ring.send(link, free)
        sent += free

    began = time.perf_counter()
    sent = min(window, count)
    ring.send(link, sent)
    loop.run(on_readable, lambda: acked >= count)
    took = time.perf_counter() - began
    loop.close()
    api.close()
    return {"rate": count / took, "count": float(count)}


def fetch(port: int, *, size: int, seconds: float, batch: int = 500) -> Figures:
    """Pull `batch` at a time and ack each message explicitly, until the stream is read."""
    api = Api(port)
    total = api.messages()
    config = {"durable_name": "puller", "ack_policy": "explicit", "max_ack_pending": 20000}
    api.request(
        f"$JS.API.CONSUMER.CREATE.{STREAM}.puller", {"stream_name": STREAM, "config": config}
    )
    link = Link(port)
    link.send(b"SUB _INBOX.fetch.* 1\r\n")
    body = b'{"batch":%d,"expires":30000000000}' % batch
    ask = b"PUB $JS.API.CONSUMER.MSG.NEXT.%s.puller _INBOX.fetch.%%06d %d\r\n%s\r\n" % (
        STREAM.encode(),
        len(body),
        body,
    )
    loop = Loop([link])
    got = due = asked = 0
    clock = time.perf_counter
    deadline = clock() + seconds

    def pull() -> None:
        nonlocal due, asked
        due += batch
        asked += 1
        link.send(ask % asked)

    def on_readable(link: Link) -> None:
        nonlocal got
        replies = ACK_SUBJECT.findall(link.whole_lines())
        if not replies:
            return
        got += len(replies)
        acks = b" 4\r\n+ACK\r\nPUB ".join(replies)
        link.send(b"PUB %s 4\r\n+ACK\r\n" % acks)
        if got >= due and got < total:
            pull()

    began = clock()
    pull()
    loop.run(on_readable, lambda: got >= total or (got >= due and clock() > deadline))
    took = clock() - began
    loop.close()
    wanted = got
    for _ in range(200):
        info = api.request(f"$JS.API.CONSUMER.INFO.{STREAM}.puller")
        if info["ack_floor"]["stream_seq"] >= wanted:
            break
        time.sleep(0.01)
    else:
        raise LoadError(f"acked {wanted}, the consumer's floor is {info['ack_floor']}")
    api.close()
    return {"rate": got / took, "count": float(got)}


def push(port: int, *, size: int, seconds: float, is_ordered: bool) -> Figures:
    """Read the stream by a push consumer without acks; ordered ones with flow control."""
    api = Api(port)
    total = api.messages()
    link = Link(port)
    link.send(b"SUB _INBOX.push 1\r\nPING\r\n")
    config: dict[str, Any] = {"deliver_subject": "_INBOX.push", "ack_policy": "none"}
    if is_ordered:
        config |= {"flow_control": True, "idle_heartbeat": 5_000_000_000, "max_deliver": 1}
        config |= {"mem_storage": True, "num_replicas": 1, "inactive_threshold": 300_000_000_000}
    loop = Loop([link])
    got = 0
    needle = b"MSG %s 1 " % SUBJECT

    def on_readable(link: Link) -> None:
        nonlocal got
        data = link.whole_lines()
        if b"$JS.FC." in data:
            for reply in dict.fromkeys(FLOW_SUBJECT.findall(data)):
                link.send(b"PUB %s 0\r\n\r\n" % reply)
        got += data.count(needle)

    began = time.perf_counter()
    api.request(f"$JS.API.CONSUMER.CREATE.{STREAM}", {"stream_name": STREAM, "config": config})
    loop.run(on_readable, lambda: got >= total)
    took = time.perf_counter() - began
    loop.close()
    api.close()
    if got != total:
        raise LoadError(f"{got} messages delivered of {total}")
    return {"rate": got / took, "count": float(got)}


def get_last(
    port: int,
    *,
    size: int,
    seconds: float,
    connections: int = 1,
    is_direct: bool = True,
    replicas: int = 1,
    nodes: dict[str, int] | None = None,
) -> Figures:
    """The last message of one of 1,000 subjects, one in flight per connection: by DIRECT.GET, which
    any replica answers, or by STREAM.MSG.GET, which the leader does."""
    api = Api(port)
    api.create_stream(max_msgs_per_subject=1, allow_direct=True, num_replicas=replicas)
    if nodes:
        port = api.leader_port(nodes)
    writer = Link(port)
    body = payload(size)
    lines = [b"SUB _INBOX.fill 1\r\n"]
    for number in range(1000):
        lines.append(b"PUB bench.%04d _INBOX.fill %d\r\n%s\r\n" % (number, size, body))
    writer.send(b"".join(lines))
    loop = Loop([writer])
    filled = 0

    def on_ack(link: Link) -> None:
        nonlocal filled
        filled += link.count(b"MSG _INBOX.fill")

    loop.run(on_ack, lambda: filled >= 1000)
    loop.close()

    links = [Link(port) for _ in range(connections)]
    loop = Loop(links)
    clock = time.perf_counter
    waits: list[float] = []
    got = 0
    deadline = clock() + seconds

    def ask(link: Link) -> None:
        link.next = (link.next + 1) % 1000
        link.in_flight = 1
        link.sent_at = clock()
        target = link.next * 7 % 1000
        place = link.socket.fileno(), link.next
        if is_direct:
            link.send(b"PUB $JS.API.DIRECT.GET.%s.bench.%04d _INBOX.get.%d.%06d 0\r\n\r\n"
                      % (STREAM.encode(), target, *place))  # fmt: skip
        else:
            body = b'{"last_by_subj":"bench.%04d"}' % target
            link.send(b"PUB $JS.API.STREAM.MSG.GET.%s _INBOX.get.%d.%06d %d\r\n%s\r\n"
                      % (STREAM.encode(), *place, len(body), body))  # fmt: skip

    def on_readable(link: Link) -> None:
        nonlocal got
        # One in flight: an answer is one chunk's worth.
        if (b"Nats-Sequence" if is_direct else b'"seq":') in link.receive():
            got += 1
            link.in_flight = 0
            waits.append(clock() - link.sent_at)
            if clock() < deadline:
                ask(link)

    for link in links:
        link.send(b"SUB _INBOX.get.%d.* 1\r\n" % link.socket.fileno())
    began = clock()
    for link in links:
        ask(link)
    loop.run(on_readable, lambda: not any(link.in_flight for link in links))
    took = clock() - began
    loop.close()
    api.close()
    return {
        "rate": got / took,
        "count": float(got),
        "p50_us": percentile(waits, 0.5) * 1e6,
        "p99_us": percentile(waits, 0.99) * 1e6,
    }


def core(port: int, *, size: int, seconds: float, subscribers: int = 1) -> Figures:
    """Core pub/sub: one publisher, `subscribers` links that each get everything; deliveries/s."""
    readers = [Link(port, is_reader=True) for _ in range(subscribers)]
    for reader in readers:
        reader.send(b"SUB core.data 1\r\nPING\r\n")
    loop = Loop(readers)
    ready: set[Link] = set()

    def on_pong(link: Link) -> None:
        if link.receive():
            ready.add(link)

    loop.run(on_pong, lambda: len(ready) == len(readers))
    writer = Link(port)
    chunk = max(1, 65536 // (size + 24))
    ring = Ring(b"core.data", payload(size), chunk * 4)
    window = max(4 * chunk, min(40_000, (8 << 20) // (size + 24)))
    loop.links[writer.socket.fileno()] = writer
    loop._poll.register(writer.socket.fileno(), select.EPOLLIN)
    needle = b"MSG core.data"
    clock = time.perf_counter
    sent = 0
    began = clock()
    deadline = began + seconds

    def on_readable(link: Link) -> None:
        nonlocal sent
        if link is writer:
            link.receive()
            return
        link.in_flight += link.count(needle)
        refill()

    def refill() -> None:
        nonlocal sent
        slowest = min(reader.in_flight for reader in readers)
        while not writer.unsent and sent - slowest <= window - chunk and clock() < deadline:
            ring.send(writer, chunk)
            sent += chunk

    refill()
    loop.run(
        on_readable,
        lambda: clock() >= deadline and all(reader.in_flight >= sent for reader in readers),
    )
    took = clock() - began
    loop.close()
    total = sum(reader.in_flight for reader in readers)
    if total != sent * subscribers:
        raise LoadError(f"{sent} published, {total} delivered")
    return {"rate": total / took, "count": float(total)}


def request_reply(port: int, *, size: int, seconds: float, window: int = 1) -> Figures:
    """Requests to a responder on another connection, `window` in flight on one connection."""
    responder, asker = Link(port), Link(port)
    body = payload(size)
    responder.send(b"SUB core.service 1\r\nPING\r\n")
    ready = Loop([responder])
    seen: list[bytes] = []
    ready.run(lambda link: seen.append(link.receive()), lambda: b"PONG" in b"".join(seen))
    asker.send(b"SUB _INBOX.ask0000000.* 2\r\n")
    ring = Ring(b"core.service", body, 1024, reply=b"_INBOX.ask0000000")
    answers = re.compile(rb"MSG core.service 1 ([^ ]+) ")
    loop = Loop([responder, asker])
    clock = time.perf_counter
    waits: list[float] = []
    got = 0
    began = clock()
    deadline = began + seconds

    def on_readable(link: Link) -> None:
        nonlocal got
        if link is responder:
            found = answers.findall(link.whole_lines())
            out = [b"PUB %s %d\r\n%s\r\n" % (to, size, body) for to in found]
            link.send(b"".join(out))
            return
        count = link.count(b"MSG _INBOX.ask")
        if count:
            now = clock()
            got += count
            link.in_flight -= count
            waits.append(now - link.sent_at)
            if now < deadline:
                link.sent_at = now
                free = window - link.in_flight
                link.in_flight += free
                ring.send(link, free)

    asker.in_flight = window
    asker.sent_at = clock()
    ring.send(asker, window)
    loop.run(on_readable, lambda: asker.in_flight == 0)
    took = clock() - began
    ready._poll.close()
    loop.close()
    figures = {"rate": got / took, "count": float(got)}
    if window == 1:
        figures["p50_us"] = percentile(waits, 0.5) * 1e6
        figures["p99_us"] = percentile(waits, 0.99) * 1e6
    return figures


def create_streams(port: int, *, count: int, replicas: int = 1) -> Figures:
    """Create `count` file streams with one message each, for the idle row."""
    api = Api(port)
    began = time.perf_counter()
    for number in range(count):
        api.create_stream(f"IDLE{number}", subjects=[f"idle.{number}"], num_replicas=replicas)
    took = time.perf_counter() - began
    for number in range(count):
        api.request(f"idle.{number}", "one")
    api.close()
    return {"rate": count / took, "count": float(count)}
