"""Messages of a stream or consumer, pulled over a connection."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from streamd.ctl.failures import ApiError, CtlError
from streamd.ctl.message_display import Shown
from streamd.ctl.nats_link import Link, Subscription, errors

ACKS: Final = {"ack": b"+ACK", "nak": b"-NAK", "term": b"+TERM"}
_BATCH: Final = 256
_EXPIRES_NS: Final = 5_000_000_000
_SLACK_S: Final = 2.0  # beyond a pull's own end
_RETRY_S: Final = 0.25
_SECOND_NS: Final = 1_000_000_000
_ENDS: Final = ("404", "408", "409")


class Delivery(NamedTuple):
    """Place of a delivered message, as the subject of its ack tells it."""

    stream_seq: int
    consumer_seq: int
    time_ns: int
    pending: int


def delivery_of(reply: str) -> Delivery:
    """Return what the ack subject of a message says of it."""
    tokens = reply.split(".")
    first = 5 if len(tokens) < 11 else 7  # `$JS.ACK.<domain>.<account>.<stream>...`
    stream_seq, consumer_seq, when, pending = map(int, tokens[first : first + 4])
    return Delivery(stream_seq, consumer_seq, when, pending)


def time_text(ns: int) -> str:
    """Return ns since the epoch as an RFC 3339 time."""
    whole, rest = divmod(ns, _SECOND_NS)
    base = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{base}.{rest:09d}".rstrip("0").rstrip(".") + "Z"


def shown_of(msg: Any) -> Shown:
    """Return a delivered message of nats-py as it is shown."""
    headers = {str(key): str(value) for key, value in (msg.headers or {}).items()}
    if msg.reply.startswith("$JS.ACK."):
        place = delivery_of(msg.reply)
        when = time_text(place.time_ns)
        return Shown(msg.subject, msg.data, headers, place.stream_seq, when)
    return Shown(msg.subject, msg.data, headers, reply=msg.reply)


async def pull(
    link: Link, stream: str, consumer: str, count: int, wait_ns: int
) -> AsyncIterator[tuple[Shown, str]]:
    """Yield up to `count` messages and their ack subjects, as many as come in time."""
    inbox = link.nc.new_inbox()
    subscription = await link.nc.subscribe(inbox)
    subject = f"{link.settings.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    deadline = time.monotonic() + wait_ns / _SECOND_NS
    try:
        body = {"batch": count, "expires": wait_ns}
        await link.nc.publish(subject, json.dumps(body).encode(), reply=inbox)
        for _ in range(count):
            left = deadline - time.monotonic() + _SLACK_S
            try:
                msg = await subscription.next_msg(timeout=max(0.01, left))
            except (errors.TimeoutError, TimeoutError):
                return
            status = (msg.headers or {}).get("Status", "") if not msg.data else ""
            if status == "503":
                raise CtlError(
                    f"stream {stream} has no consumer {consumer!r}, or it has no leader now",
                    f"streamctl consumer list {stream}",
                )
            if status in _ENDS:
                _refuse(status, (msg.headers or {}).get("Description", ""))
                return
            yield shown_of(msg), msg.reply
    finally:
        await _unsubscribe(subscription)


def _refuse(status: str, description: str) -> None:
    """Raise CtlError for an end of a pull that is none of its own."""
    if status == "409" and not description.startswith(("Leadership", "Server Shutdown", "Batch")):
        raise CtlError(f"the pull was refused: {description}")


async def follow(
    link: Link, stream: str, config: Mapping[str, Any], *, is_endless: bool
) -> AsyncIterator[tuple[Shown, int]]:
    """Yield the messages of a stream in order, each once, and how many are behind each.

    `config`: filters and where to begin, as fields of a consumer. A gap, a lost leader or a new
    connection begins again behind the last message that was yielded. Not `is_endless`: ends when
    there are no more.
    """
    last = 0
    while True:
        wanted: dict[str, Any] = {
            **config,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 60 * _SECOND_NS,
        }
        if last:
            wanted = {k: v for k, v in wanted.items() if k not in ("opt_start_time",)}
            wanted |= {"deliver_policy": "by_start_sequence", "opt_start_seq": last + 1}
        try:
            body = {"stream_name": stream, "config": wanted}
            made = await link.api(f"CONSUMER.CREATE.{stream}", body)
        except ApiError as err:
            if not last or err.code < 500:
                raise
            await asyncio.sleep(_RETRY_S)
            continue
        name = made["name"]
        if not is_endless and not made["num_pending"]:
            await _forget(link, stream, name)
            return
        expected = 1
        try:
            async for message, place in _deliveries(link, stream, name):
                if place.consumer_seq != expected:
                    break  # a gap: begin again behind the last one
                expected += 1
                last = place.stream_seq
                yield message, place.pending
                if not is_endless and not place.pending:
                    return
        finally:
            await _forget(link, stream, name)


async def _deliveries(
    link: Link, stream: str, consumer: str
) -> AsyncIterator[tuple[Shown, Delivery]]:
    """Yield deliveries of a consumer until it is gone, or the connection was another meanwhile."""
    inbox = link.nc.new_inbox()
    subscription = await link.nc.subscribe(inbox)
    subject = f"{link.settings.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    body = json.dumps({"batch": _BATCH, "expires": _EXPIRES_NS}).encode()
    connections = link.nc.stats["reconnects"]
    try:
        while link.nc.stats["reconnects"] == connections:
            await link.nc.publish(subject, body, reply=inbox)
            left = _BATCH
            while left:
                try:
                    msg = await subscription.next_msg(timeout=_EXPIRES_NS / _SECOND_NS + _SLACK_S)
                except (errors.TimeoutError, TimeoutError):
                    break
                status = (msg.headers or {}).get("Status", "") if not msg.data else ""
                if status == "408":
                    break
                if status:
                    await asyncio.sleep(_RETRY_S)  # its leader changes, or it is gone
                    return
                left -= 1
                yield shown_of(msg), delivery_of(msg.reply)
    finally:
        await _unsubscribe(subscription)


async def _unsubscribe(subscription: Subscription) -> None:
    with suppress(errors.Error):  # the connection may be closed, if nobody reads on
        await subscription.unsubscribe()


async def _forget(link: Link, stream: str, consumer: str) -> None:
    try:
        await link.api(f"CONSUMER.DELETE.{stream}.{consumer}", within_s=1.0)
    except CtlError:
        return  # it goes by itself when nobody pulls
