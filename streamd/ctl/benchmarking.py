"""Workloads of `streamctl bench`: each does one kind of operation again and again, and returns how
long each took.

All are made with one connection of nats-py, so that they measure what a Python client sees, and
two servers by the same measure; a server's own limits are far beyond some of them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from streamd.ctl.failures import CtlError
from streamd.ctl.nats_link import Link, decoded
from streamd.ctl.progress_bar import Steps, progress_bar
from streamd.ctl.pulling import ACKS, pull

_FETCH: Final = 100
_WAIT_NS: Final = 5_000_000_000


class Plan(NamedTuple):
    """Size of a run."""

    operations: int
    size: int
    window: int  # acks that may be outstanding
    replicas: int
    storage: str


class Measured(NamedTuple):
    """Outcome of a run: seconds in all, and ns of each operation."""

    took_s: float
    samples_ns: list[int]


Workload = Callable[[Link, Plan, Steps], Awaitable[Measured]]


async def core_publish(link: Link, plan: Plan, steps: Steps) -> Measured:
    """Publish without acks; the last is awaited by a flush."""
    subject, payload = f"bench.{secrets.token_hex(6)}", bytes(plan.size)
    samples = []
    began = time.perf_counter_ns()
    for _ in range(plan.operations):
        at = time.perf_counter_ns()
        await link.nc.publish(subject, payload)
        samples.append(time.perf_counter_ns() - at)
        steps.advance()
    await link.nc.flush(timeout=60)
    return Measured((time.perf_counter_ns() - began) / 1e9, samples)


async def stored_publish(link: Link, plan: Plan, steps: Steps) -> Measured:
    """Publish to a stream; each ack is awaited, so many at a time."""
    async with _Stream(link, plan) as stream:
        return await _windowed(plan, steps, lambda _: _publish(link, stream.subject, plan.size))


async def fetch(link: Link, plan: Plan, steps: Steps) -> Measured:
    """Pull stored messages in batches and ack each; a sample is a batch."""
    async with _Stream(link, plan) as stream:
        await _fill(link, plan, stream)
        config = {"durable_name": "bench", "ack_policy": "explicit", "max_ack_pending": -1}
        body = {"stream_name": stream.name, "config": config}
        await link.api(f"CONSUMER.CREATE.{stream.name}.bench", body)
        samples = []
        done = 0
        began = time.perf_counter_ns()
        while done < plan.operations:
            at = time.perf_counter_ns()
            wanted = min(_FETCH, plan.operations - done)
            got = 0
            async for _, reply in pull(link, stream.name, "bench", wanted, _WAIT_NS):
                await link.nc.publish(reply, ACKS["ack"])
                got += 1
                steps.advance()
            if not got:
                raise CtlError(f"no message came within {_WAIT_NS / 1e9:g} s, after {done}")
            done += got
            samples.append(time.perf_counter_ns() - at)
        await link.nc.flush(timeout=60)
        return Measured((time.perf_counter_ns() - began) / 1e9, samples)


async def push(link: Link, plan: Plan, steps: Steps) -> Measured:
    """Receive stored messages that a push consumer sends; a sample is the time between two."""
    async with _Stream(link, plan) as stream:
        await _fill(link, plan, stream)
        inbox = link.nc.new_inbox()
        subscription = await link.nc.subscribe(inbox, pending_msgs_limit=-1, pending_bytes_limit=-1)
        config = {"deliver_subject": inbox, "ack_policy": "none", "deliver_policy": "all"}
        began = at = time.perf_counter_ns()
        await link.api(
            f"CONSUMER.CREATE.{stream.name}", {"stream_name": stream.name, "config": config}
        )
        samples = []
        for _ in range(plan.operations):
            await subscription.next_msg(timeout=_WAIT_NS / 1e9)
            now = time.perf_counter_ns()
            samples.append(now - at)
            at = now
            steps.advance()
        await subscription.unsubscribe()
        return Measured((at - began) / 1e9, samples)


async def kv_put(link: Link, plan: Plan, steps: Steps) -> Measured:
    """Put values of a thousand keys in turn."""
    async with _Stream(link, plan, is_bucket=True) as stream:
        return await _windowed(
            plan,
            steps,
            lambda at: _publish(link, f"{stream.subject}.k{at % 1000}", plan.size),
        )


async def kv_get(link: Link, plan: Plan, steps: Steps) -> Measured:
    """Get values of a thousand keys in turn, by direct get."""
    async with _Stream(link, plan, is_bucket=True) as stream:
        keys = min(1000, plan.operations)
        filled = plan._replace(operations=keys)
        await _windowed(
            filled, None, lambda at: _publish(link, f"{stream.subject}.k{at}", plan.size)
        )
        prefix = f"{link.settings.api_prefix}.DIRECT.GET.{stream.name}.{stream.subject}"

        async def get(at: int) -> None:
            answer = await link.request(f"{prefix}.k{at % keys}")
            if (answer.headers or {}).get("Status"):
                raise CtlError(f"a direct get was refused: {answer.headers}")

        return await _windowed(plan, steps, get)


async def request(link: Link, plan: Plan, steps: Steps) -> Measured:
    """Ask a service on a connection of its own, which echoes."""
    from streamd.ctl.nats_link import connect

    subject = f"bench.{secrets.token_hex(6)}"
    service = await connect(link.settings)

    async def echo(msg: Any) -> None:
        await msg.respond(msg.data)

    try:
        await service.nc.subscribe(subject, cb=echo)
        await service.nc.flush()
        payload = bytes(plan.size)

        async def ask(_: int) -> None:
            await link.request(subject, payload)

        return await _windowed(plan, steps, ask)
    finally:
        await service.nc.close()


WORKLOADS: Final[dict[str, Workload]] = {
    "pub": core_publish,
    "js-pub": stored_publish,
    "fetch": fetch,
    "push": push,
    "kv-put": kv_put,
    "kv-get": kv_get,
    "request": request,
}


class _Stream:
    """Stream that exists for one run."""

    def __init__(self, link: Link, plan: Plan, *, is_bucket: bool = False) -> None:
        self._link = link
        self._plan = plan
        tail = secrets.token_hex(6)
        self.name = f"KV_bench{tail}" if is_bucket else f"BENCH{tail}"
        self.subject = f"$KV.bench{tail}" if is_bucket else f"bench.{tail}"
        self._is_bucket = is_bucket

    async def __aenter__(self) -> _Stream:
        config = {
            "name": self.name,
            "subjects": [f"{self.subject}.>" if self._is_bucket else self.subject],
            "storage": self._plan.storage,
            "num_replicas": self._plan.replicas,
            "allow_direct": True,
            "max_msgs_per_subject": 1 if self._is_bucket else -1,
        }
        await self._link.api(f"STREAM.CREATE.{self.name}", config)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._link.api(f"STREAM.DELETE.{self.name}")


async def _publish(link: Link, subject: str, size: int) -> None:
    decoded((await link.request(subject, bytes(size))).data)


async def _fill(link: Link, plan: Plan, stream: _Stream) -> None:
    with progress_bar("storing what is to be read", plan.operations) as steps:
        await _windowed(plan, steps, lambda _: _publish(link, stream.subject, plan.size))


async def _windowed(
    plan: Plan, steps: Steps | None, operate: Callable[[int], Awaitable[None]]
) -> Measured:
    """Run the operations with `plan.window` of them in flight, and time each."""
    samples: list[int] = []
    numbers = iter(range(plan.operations))
    began = time.perf_counter_ns()

    async def work() -> None:
        for at in numbers:
            start = time.perf_counter_ns()
            await operate(at)
            samples.append(time.perf_counter_ns() - start)
            if steps is not None:
                steps.advance()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(plan.window, plan.operations)):
                group.create_task(work())
    except* CtlError as failed:
        raise failed.exceptions[0] from None
    return Measured((time.perf_counter_ns() - began) / 1e9, samples)
