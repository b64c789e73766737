"""Fast batches over nats-py, as the publishers of the clients' own libraries make them.

Reply subjects are those of orbit.go's and `@nats-io/jetstream`'s: the batch is known by the last
token of its inbox. A publisher waits while two acks are outstanding; if none comes for a second it
pings, for an answer may be lost with the server that would have sent it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

START, APPEND, COMMIT, END, PING = range(5)
PATIENCE_S = 1.0
DEADLINE_S = 120


class FastPublisher:
    """Batch that is being published. Not for two tasks at a time."""

    def __init__(self, client: Client, *, flow: int = 100, is_ok: bool = False) -> None:
        self._client = client
        self._inbox = client.new_inbox()
        self._replies = f"{self._inbox}.{flow}.{'ok' if is_ok else 'fail'}"
        self._subject = ""
        self._heard = asyncio.Event()
        self.seq = 0
        self.acked = 0
        self.flow = 0  # until the first ack
        self.flows: list[int] = []
        self.gaps: list[range] = []
        self.errors: list[dict[str, Any]] = []
        self.result: dict[str, Any] | None = None

    async def add(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> int:
        """Publish the next message; returns its sequence in the batch."""
        if not self.seq:
            self._subject = subject
            await self._client.subscribe(f"{self._inbox}.>", cb=self._on_answer)
        self.seq += 1
        await self._send(subject, payload, APPEND if self.seq > 1 else START, headers)
        while not self.result and (not self.flow or self.seq > self.acked + 2 * self.flow):
            await self._listen()
        return self.seq

    async def commit(self, subject: str, payload: bytes) -> dict[str, Any]:
        """Publish the last message; returns the publish ack."""
        self.seq += 1
        return await self._end(subject, payload, COMMIT)

    async def end(self) -> dict[str, Any]:
        """End the batch without a message."""
        self.seq += 1
        return await self._end(self._subject, b"", END)

    async def _end(self, subject: str, payload: bytes, operation: int) -> dict[str, Any]:
        await self._send(subject, payload, operation)
        async with asyncio.timeout(DEADLINE_S):
            while self.result is None:
                self._heard.clear()
                try:
                    await asyncio.wait_for(self._heard.wait(), PATIENCE_S)
                except TimeoutError:
                    await self._send(subject, payload, operation)
        return self.result

    async def _listen(self) -> None:
        """Wait for an answer; ping if there is none."""
        async with asyncio.timeout(DEADLINE_S):
            self._heard.clear()
            try:
                await asyncio.wait_for(self._heard.wait(), PATIENCE_S)
            except TimeoutError:
                await self._send(self._subject, b"", PING)

    async def _send(
        self, subject: str, payload: bytes, operation: int, headers: dict[str, str] | None = None
    ) -> None:
        reply = f"{self._replies}.{self.seq}.{operation}.$FI"
        await self._client.publish(subject, payload, reply=reply, headers=headers)

    async def _on_answer(self, msg: Msg) -> None:
        answer = json.loads(msg.data)
        kind = answer.get("type", "")
        if kind == "ack":
            self.acked = max(self.acked, answer["seq"])
            self.flow = answer["msgs"]
            self.flows.append(self.flow)
        elif kind == "gap":
            self.gaps.append(range(answer["last_seq"], answer["seq"]))
        elif kind == "err":
            self.errors.append(answer)
        else:
            self.result = answer
        self._heard.set()
