"""Load of mirrors, sources, counters and fast batches; all else is in `load`."""

from __future__ import annotations

import re
import time

from benchmarks.load import (
    STREAM,
    SUBJECT,
    Api,
    Figures,
    Link,
    LoadError,
    Loop,
    Ring,
    payload,
    windows,
)

COPIED_WITHIN_S = 300.0
POLL_S = 0.02
FLOW_ACK = re.compile(rb'\{"type":"(ack|gap|err)"[^}]*"seq":(\d+),"msgs":(\d+)')


def mirror(port: int, *, size: int, seconds: float) -> Figures:
    """Create a mirror of the stream that is filled; until it has all. `seconds` says nothing here:
    the work is the stream."""
    api = Api(port)
    total = api.messages()
    began = time.perf_counter()
    api.create_stream("MIRROR", subjects=None, mirror={"name": STREAM})
    took = _until_copied(api, "MIRROR", total, began)
    api.close()
    return {"rate": total / took, "count": float(total)}


def sources(port: int, *, size: int, seconds: float, origins: int, count: int) -> Figures:
    """Fill `origins` streams with `count` messages each, then create one that sources them all."""
    api = Api(port)
    for origin in range(origins):
        subject = b"origin%d" % origin
        api.create_stream(f"ORIGIN{origin}", subjects=[subject.decode()])
        link = Link(port)
        link.send(b"SUB _INBOX.bench0000000.* 1\r\n")
        ring = Ring(subject, payload(size), 4000, reply=b"_INBOX.bench0000000")
        windows([link], {link: ring}, 2000, count=count)
        link.socket.close()
    total = origins * count
    began = time.perf_counter()
    names = [{"name": f"ORIGIN{origin}"} for origin in range(origins)]
    api.create_stream("SOURCED", subjects=None, sources=names)
    took = _until_copied(api, "SOURCED", total, began)
    api.close()
    return {"rate": total / took, "count": float(total)}


def _until_copied(api: Api, name: str, total: int, began: float) -> float:
    """Wait until a stream has `total` messages; the seconds since `began`."""
    while (found := api.messages(name)) < total:
        if time.perf_counter() - began > COPIED_WITHIN_S:
            raise LoadError(f"{name} has {found} of {total} messages after {COPIED_WITHIN_S} s")
        time.sleep(POLL_S)
    if found > total:
        raise LoadError(f"{name} has {found} messages, its origins {total}")
    return time.perf_counter() - began


def count_up(port: int, *, seconds: float, counters: int, window: int) -> Figures:
    """Add 1 to `counters` counters in turn, `window` of them unacked."""
    api = Api(port)
    api.create_stream(allow_msg_counter=True)
    link = Link(port)
    link.send(b"SUB _INBOX.bench0000000.* 1\r\n")
    keys = [number % counters for number in range(2 * max(window, counters))]
    ring = Ring(
        SUBJECT, b"", len(keys), reply=b"_INBOX.bench0000000", keys=keys, header=b"Nats-Incr: 1"
    )
    began = time.perf_counter()
    acked = windows([link], {link: ring}, window, until=began + seconds)
    took = time.perf_counter() - began
    link.socket.close()
    stored = api.messages()
    api.close()
    if stored != acked:
        raise LoadError(f"{acked} acks but {stored} messages stored")
    return {"rate": acked / took, "count": float(acked)}


def fast_batch(port: int, *, size: int, seconds: float, flow: int) -> Figures:
    """Publish one fast batch, with an ack asked for every `flow` messages, two of them awaited."""
    api = Api(port)
    api.create_stream(allow_batched=True)
    link = Link(port)
    link.send(b"SUB _INBOX.fast.> 1\r\n")
    body = payload(size)
    tail = b".$FI %d\r\n%s\r\n" % (len(body), body)
    head = b"PUB %s _INBOX.fast.bench.%d.fail." % (SUBJECT, flow)
    sent = acked = ended = 0
    every = flow
    loop = Loop([link])
    clock = time.perf_counter

    def on_readable(link: Link) -> None:
        nonlocal sent, acked, every, ended
        data = link.whole_lines()
        for kind, sequence, many in FLOW_ACK.findall(data):
            if kind != b"ack":
                raise LoadError(f"the batch met a gap or an error: {data[:300]!r}")
            acked, every = int(sequence), int(many)
        found = re.search(rb'"count":(\d+)', data)
        if found:
            ended = int(found[1])
        elif b'"error"' in data:
            raise LoadError(f"the batch was refused: {data[:300]!r}")
        if is_committed:
            return
        free = acked + 2 * every - sent
        if free > 0:
            link.send(
                b"".join(head + b"%d.1" % at + tail for at in range(sent + 1, sent + free + 1))
            )
            sent += free

    is_committed = False
    began = clock()
    deadline = began + seconds
    sent = 1
    link.send(head + b"1.0" + tail)
    loop.run(on_readable, lambda: clock() >= deadline)
    is_committed = True
    sent += 1
    link.send(head + b"%d.2" % sent + tail)
    loop.run(on_readable, lambda: ended > 0)
    took = clock() - began
    loop.close()
    stored = api.messages()
    api.close()
    if not stored == ended == sent:
        raise LoadError(f"{sent} sent, {ended} acked, {stored} stored")
    return {"rate": sent / took, "count": float(sent)}
