"""The reader of `make run`: a process of its own that reads a stream while it is being written.

It reads through a durable pull consumer with explicit acks, through whatever happens to the
servers, and notes the sequence and a digest (subject, id, payload) of each message that it sees
for the first time. On stdin it is told how many messages the stream holds once all are published;
it ends when it has seen as many. On stdout it tells, a JSON line a batch, how many it has read.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import nats
import uvloop
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.client import JetStreamContext
from nats.js.errors import ServiceUnavailableError

from examples.flights import BATCH, LOST_ERRORS, freeze_garbage

ACK_WAIT_S = 2.0  # what a message costs whose ack went to a server that was killed
NEW_WITHIN_S = 60.0
FETCH_WITHIN_S = 1.0
RETRY_S = 0.05
_SEEN = Struct("<Q16s")  # stream sequence, digest
_NO_LEADER = (ServiceUnavailableError, NatsTimeout, NoRespondersError, *LOST_ERRORS)
"""Errors of a request whose server or leader was killed: it may have been done."""


def digest_of(subject: str, msg_id: str, payload: bytes) -> bytes:
    """16 bytes that tell one message from another."""
    head = f"{subject}\0{msg_id}\0".encode()
    return hashlib.blake2b(head + payload, digest_size=16).digest()


def seen_in(path: Path) -> Iterator[tuple[int, bytes]]:
    """(stream sequence, digest) of each message a reader saw, in the order it saw them."""
    return _SEEN.iter_unpack(path.read_bytes())


class Reader:
    """Reads until it has seen all there is, or nothing new for a minute."""

    def __init__(self, stream: str, consumer: str, out: Path) -> None:
        self._stream = stream
        self._consumer = consumer
        self._out = out
        self._seen: set[int] = set()
        self._again_count = 0
        self._wanted = -1  # not known before all is published

    async def run(self, servers: list[str]) -> None:
        async def on_error(_: Exception) -> None:
            """Lost connections are what we came for."""

        connection = await nats.connect(
            servers,
            error_cb=on_error,
            connect_timeout=10,
            reconnect_time_wait=0.05,
            max_reconnect_attempts=-1,
        )
        try:
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(self._listen(), name="stdin")
                await self._read(connection.jetstream())
                listening.cancel()
            await connection.flush()
        finally:
            await connection.close()

    async def _listen(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        self._wanted = int(await reader.readline() or b"0")

    async def _make_consumer(self, js: JetStreamContext) -> None:
        """Make it; one of that name and config that is there already is as good."""
        config = ConsumerConfig(
            durable_name=self._consumer,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_ack_pending=4 * BATCH,
        )
        until = time.monotonic() + NEW_WITHIN_S
        while True:
            try:
                await js.add_consumer(self._stream, config)
                return
            except _NO_LEADER:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(RETRY_S)

    async def _read(self, js: JetStreamContext) -> None:
        await self._make_consumer(js)
        puller = await js.pull_subscribe_bind(self._consumer, self._stream)
        seen = self._seen
        new_at = time.monotonic()
        with self._out.open("wb") as out:
            while not 0 <= self._wanted <= len(seen) and time.monotonic() - new_at < NEW_WITHIN_S:
                try:
                    batch = await puller.fetch(BATCH, FETCH_WITHIN_S)
                except (NatsError, TimeoutError, *LOST_ERRORS) as err:  # two say "timeout"
                    if not isinstance(err, TimeoutError):
                        await asyncio.sleep(RETRY_S)  # no leader at this moment
                    continue
                for msg in batch:
                    seq = int(msg.reply.split(".")[5])
                    if seq in seen:
                        self._again_count += 1
                    else:
                        seen.add(seq)
                        new_at = time.monotonic()
                        msg_id = (msg.headers or {}).get("Nats-Msg-Id", "")
                        out.write(_SEEN.pack(seq, digest_of(msg.subject, msg_id, msg.data)))
                    with contextlib.suppress(NatsError, *LOST_ERRORS):  # it comes again
                        await msg.ack()
                self._tell()

    def _tell(self) -> None:
        print(json.dumps({"read": len(self._seen), "again": self._again_count}), flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", required=True, help="URLs, by comma")
    parser.add_argument("--stream", required=True)
    parser.add_argument("--consumer", required=True, help="name of the durable consumer to make")
    parser.add_argument("--out", required=True, type=Path, help="file for what was seen")
    options = parser.parse_args(argv)
    freeze_garbage()
    reader = Reader(options.stream, options.consumer, options.out)
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    status = 0
    try:
        with contextlib.suppress(KeyboardInterrupt), runner:
            runner.run(reader.run(options.servers.split(",")))
    except* (NatsError, OSError) as group:
        print(f"the reader of {options.stream}: {group.exceptions[0]}", file=sys.stderr)
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
