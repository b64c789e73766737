"""Publish acks: the JSON a stream answers a publish with, for many publishes at once."""

from __future__ import annotations

import json

from streamd.errors import JsError
from streamd.machine.commands import COUNTED, DUPLICATE, TOLD, PublishOutcome


def domain_field(domain: str) -> bytes:
    """Return the field by which acks name the server's domain; nothing if it has none."""
    return b'"domain":%b,' % json.dumps(domain).encode() if domain else b""


def ack_body(stream: bytes, outcome: PublishOutcome, domain: bytes = b"") -> bytes:
    """Return the JSON that answers one publish.

    `outcome` is a seq, (DUPLICATE, seq), (COUNTED, seq, total), a JsError, or for an atomic batch
    (last seq, count, batch id); `domain` a `domain_field`.
    """
    if isinstance(outcome, int):
        return b'{"stream":"%b",%b"seq":%d}' % (stream, domain, outcome)
    if isinstance(outcome, JsError):
        error = json.dumps(outcome.as_json(), separators=(",", ":"), ensure_ascii=False)
        return b'{"error":%b,"stream":"%b","seq":0}' % (error.encode(), stream)
    if outcome[0] == TOLD and len(outcome) == 3:
        return outcome[2].encode() if isinstance(outcome[2], str) else outcome[2]
    if outcome[0] == DUPLICATE and len(outcome) == 2:
        return b'{"stream":"%b",%b"seq":%d,"duplicate":true}' % (stream, domain, outcome[1])
    last, count = outcome[0], outcome[1]
    if len(outcome) == 2:
        return b'{"stream":"%b",%b"seq":%d,"count":%d}' % (stream, domain, last, count)
    if last == COUNTED:
        total = outcome[2] if isinstance(outcome[2], str) else outcome[2].decode()
        return b'{"stream":"%b",%b"seq":%d,"val":"%b"}' % (stream, domain, count, total.encode())
    batch = outcome[2]
    is_duplicate = last == DUPLICATE
    if is_duplicate:
        last, count = count, 1
    name = json.dumps(batch if isinstance(batch, str) else batch.decode(errors="replace")).encode()
    head = b'{"stream":"%b",%b"seq":%d,' % (stream, domain, last)
    if is_duplicate:
        head += b'"duplicate":true,'
    return b'%b"batch":%b,"count":%d}' % (head, name, count)


def ack_line(stream: bytes, sid: bytes, reply: bytes, seq: int, domain: bytes) -> tuple[bytes, int]:
    """As `ack_run`, for one."""
    body = b'{"stream":"%b",%b"seq":%d}' % (stream, domain, seq)
    size = len(body)
    return b"MSG %b %b %d\r\n%b\r\n" % (reply, sid, size, body), size


def ack_run(
    stream: bytes, sid: bytes, replies: list[bytes], seqs: range, domain: bytes = b""
) -> tuple[bytes, int]:
    """Return the wire bytes of plain acks to one subscription, and the bytes of their bodies.

    `domain` is a `domain_field`. One `%` over a repeated template formats them all: half the cost
    of one at a time. The size field is part of it, so a run is cut where seqs get a digit longer.
    """
    assert len(replies) == len(seqs), (len(replies), len(seqs))
    blobs: list[bytes] = []
    body_bytes = 0
    done = 0
    while done < len(seqs):
        first = seqs[done]
        digits = len(str(first))
        until = min(len(seqs), done + 10**digits - first)
        count = until - done
        size = len(stream) + len(domain) + digits + 20  # the JSON around them
        body_bytes += size * count
        template = b'MSG %%b %b %d\r\n{"stream":"%b",%b"seq":%%d}\r\n' % (
            sid.replace(b"%", b"%%"),
            size,
            stream.replace(b"%", b"%%"),
            domain.replace(b"%", b"%%"),
        )
        fields: list[bytes | int] = [0] * (2 * count)
        fields[0::2] = replies[done:until]
        fields[1::2] = seqs[done:until]
        blobs.append(template * count % tuple(fields))
        done = until
    return (blobs[0] if len(blobs) == 1 else b"".join(blobs)), body_bytes


def shared_prefix(replies: list[bytes]) -> bytes | None:
    """Return the inbox prefix, with its dot, if each reply is that and one token; else None."""
    first = replies[0]
    prefix = first[: first.rfind(b".") + 1]
    if not prefix:
        return None
    # Each begins with the prefix and has no dot behind it; asked of all at once.
    joined = b"\n".join(replies)
    count = len(replies)
    if joined.count(b"\n" + prefix) != count - 1 or joined.count(b".") != count * prefix.count(
        b"."
    ):
        return None
    return prefix
