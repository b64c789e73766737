"""A server for Spark tests, and quick ways to fill its streams."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.servers import ServerProcess
from tests.wire import Wire, header_block

ACKED_WITHIN_S = 30.0
WINDOW = 4096  # publishes on their way at once
WINDOW_BYTES = 4 * 1024 * 1024

Publish = tuple[str, bytes] | tuple[str, bytes, Mapping[str, str] | bytes | None]
"""(subject, payload) or (subject, payload, headers)"""


class SparkTestServer(ServerProcess):
    """One streamd process: `url`, `port`, `monitoring_url`, `store_dir`, `pid`; `kill()` is
    SIGKILL, `stop()` SIGTERM, and `start()` brings it back on the same directory and ports."""

    def __init__(self, binary: str | Path, directory: Path, **options: Any) -> None:
        super().__init__(binary, directory=directory, **options)

    @property
    def monitoring_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def address(self) -> str:
        """What option `servers` takes."""
        return f"127.0.0.1:{self.port}"

    def api(self, subject: str, body: object = None) -> dict[str, Any]:
        """The answer of `$JS.API.<subject>`; AssertionError if it is an error."""
        with Wire(self.port) as wire:
            answer = wire.api(subject, body)
        assert "error" not in answer, answer
        return answer

    def create_stream(
        self, name: str, subjects: Iterable[str] = (), **config: Any
    ) -> dict[str, Any]:
        """Create a file stream; its subjects are `<name in lower case>.>` unless given."""
        wanted = {"name": name, "subjects": list(subjects) or [f"{name.lower()}.>"], **config}
        return self.api(f"STREAM.CREATE.{name}", wanted)

    def delete_msg(self, stream: str, seq: int) -> None:
        self.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq})

    def purge(self, stream: str, **what: Any) -> int:
        """`filter`, `seq` and `keep` as the API has them; returns how many went."""
        return int(self.api(f"STREAM.PURGE.{stream}", what)["purged"])

    def state(self, stream: str) -> dict[str, Any]:
        """`first_seq`, `last_seq`, `messages` and so on."""
        return dict(self.api(f"STREAM.INFO.{stream}")["state"])

    def publish(self, msgs: Iterable[Publish]) -> int:
        """Publish all of `msgs` in order and wait until each is stored; return how many.

        AssertionError at the first one that is refused.
        """
        return flood(self.port, map(frame_of, msgs))

    def with_nats(self, work: Callable[..., Awaitable[Any]]) -> Any:
        """What `work(client, jetstream)` returns, run with a nats-py connection."""

        async def run() -> Any:
            import nats

            client = await nats.connect(self.url)
            try:
                return await asyncio.wait_for(work(client, client.jetstream()), 60)
            finally:
                await client.close()

        return asyncio.run(run())


def frame_of(msg: Publish) -> bytes:
    """One PUB or HPUB, which asks for an ack."""
    subject, payload = msg[0], msg[1]
    headers = msg[2] if len(msg) > 2 else None
    if not headers:
        return b"PUB %b _INBOX.f.a %d\r\n%b\r\n" % (subject.encode(), len(payload), payload)
    block = headers if isinstance(headers, bytes) else header_block(dict(headers))
    sizes = (len(block), len(block) + len(payload))
    return b"HPUB %b _INBOX.f.a %d %d\r\n%b%b\r\n" % (subject.encode(), *sizes, block, payload)


def flood(port: int, frames: Iterable[bytes]) -> int:
    """Send ready-made publishes with reply `_INBOX.f.a`, at most WINDOW unanswered; return how
    many were acked: all of them."""
    frames = iter(frames)
    total = 0
    with socket.create_connection(("127.0.0.1", port), 5) as link:
        link.settimeout(ACKED_WITHIN_S)
        link.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nSUB _INBOX.f.* 1\r\n')
        while chunk := _window(frames):
            link.sendall(b"".join(chunk))
            total += len(chunk)
            _await_acks(link, len(chunk))
    return total


def _window(frames: Iterator[bytes]) -> list[bytes]:
    chunk: list[bytes] = []
    size = 0
    for frame in islice(frames, WINDOW):
        chunk.append(frame)
        size += len(frame)
        if size >= WINDOW_BYTES:
            break
    return chunk


def _await_acks(link: socket.socket, count: int) -> None:
    seen = 0
    rest = b""
    while seen < count:
        data = link.recv(1 << 20)
        assert data, "the server closed the connection"
        data = rest + data
        assert b'"error"' not in data and b"-ERR" not in data, data[-500:]
        # Counted line by line: a piece of a line waits for its end.
        end = data.rfind(b"\n") + 1
        seen += data.count(b'"seq":', 0, end)
        rest = data[end:]
