"""Attacks of clients that mean harm, each bounded by a count of connections or messages.

An attack opens its connections, sends what it has to send, waits while `hold` lasts, and says how
many of its connections the server has ended by then. It never waits for an answer for longer than
`ANSWERED_WITHIN_S`, and sends no faster than the server reads.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

ANSWERED_WITHIN_S = 60.0
AT_ONCE: Final = 250  # connections that are being opened
GIANT_BYTES: Final = 8 * 1024 * 1024
BOMB_BYTES: Final = 64 * 1024 * 1024
BOMB_BLOCKS: Final = 64  # of S2, each of S2_BLOCK_BYTES
S2_BLOCK_BYTES: Final = 4 * 1024 * 1024
USER: Final = {"user": "good", "pass": "good"}


@dataclass(frozen=True)
class Target:
    """Ports of the server that is attacked."""

    port: int
    websocket_port: int
    leaf_port: int


@dataclass
class Outcome:
    """Result of an attack: connections that were opened, those that the server had ended when the
    attack was over, and the last errors that it was told, by their text."""

    opened: int = 0
    ended: int = 0
    errors: dict[str, int] = field(default_factory=dict)

    def tell(self, text: str) -> None:
        self.errors[text] = self.errors.get(text, 0) + 1


class Foe:
    """Hostile connection."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self.is_ended = False

    @classmethod
    async def open(cls, port: int, outcome: Outcome) -> Foe:
        foe = cls(outcome)
        foe._reader, foe._writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        outcome.opened += 1
        return foe

    async def info(self) -> None:
        """Read the INFO that comes first."""
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            await self._reader.readline()

    async def send(self, data: bytes) -> None:
        """Send as fast as the server reads; the end of the connection is no error."""
        try:
            for at in range(0, len(data), 65536):
                if self._writer.is_closing():
                    break
                self._writer.write(data[at : at + 65536])
                async with asyncio.timeout(ANSWERED_WITHIN_S):
                    await self._writer.drain()
        except (OSError, TimeoutError):
            self.is_ended = True

    async def until(self, words: bytes) -> bytes:
        """Read until `words` or the end; what came."""
        seen = b""
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                while words not in seen:
                    chunk = await self._reader.read(65536)
                    if not chunk:
                        self.is_ended = True
                        break
                    seen += chunk
        except (OSError, TimeoutError):
            self.is_ended = True
        for line in seen.split(b"\r\n"):
            if line.startswith(b"-ERR"):
                self._outcome.tell(line[6:-1].decode(errors="replace"))
        return seen

    def pause_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume_reading(self) -> None:
        with contextlib.suppress(RuntimeError):  # of a connection that is over
            self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    async def read_to_end(self) -> None:
        """Read until the server has ended this connection, for as long as that takes."""
        self.resume_reading()
        while not self.is_ended:
            try:
                self.is_ended = not await self._reader.read(65536)
            except OSError:
                self.is_ended = True

    async def poll(self) -> None:
        """Note whether the server has ended this connection by now."""
        self.resume_reading()
        while not self.is_ended:
            try:
                async with asyncio.timeout(0.005):
                    chunk = await self._reader.read(65536)
            except TimeoutError:
                return
            except OSError:
                chunk = b""
            self.is_ended = not chunk

    def close(self) -> None:
        self._writer.transport.abort()


Hold = Callable[[Sequence[Foe]], Awaitable[None]]
"""Waits, when all was sent, before the connections of an attack are looked at and closed."""


async def _open(port: int, count: int, outcome: Outcome) -> list[Foe]:
    """Open `count` connections, some at a time; those that the server refuses are counted ended."""
    gate = asyncio.Semaphore(AT_ONCE)
    foes: list[Foe] = []

    async def one() -> None:
        async with gate:
            try:
                foes.append(await Foe.open(port, outcome))
            except OSError:
                outcome.ended += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(one())
    return foes


async def _all(foes: list[Foe], do: Callable[[Foe], Awaitable[object]]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(foe: Foe) -> None:
        async with gate:
            await do(foe)

    async with asyncio.TaskGroup() as tasks:
        for foe in foes:
            tasks.create_task(one(foe))


async def _finish(foes: list[Foe], outcome: Outcome, hold: Hold) -> Outcome:
    await hold(foes)
    for foe in foes:
        await foe.poll()
    outcome.ended += sum(foe.is_ended for foe in foes)
    for foe in foes:
        foe.close()
    return outcome


# --- before a login -----------------------------------------------------------------------------


async def silent(target: Target, count: int, hold: Hold) -> Outcome:
    """Connect, and never say anything."""
    outcome = Outcome()
    return await _finish(await _open(target.port, count, outcome), outcome, hold)


async def slow_handshakes(target: Target, count: int, hold: Hold) -> Outcome:
    """Send a CONNECT byte by byte, and never its end."""
    outcome = Outcome()
    foes = await _open(target.port, count, outcome)
    for byte in b'CONNECT {"verb':
        await _all(foes, lambda foe, byte=byte: foe.send(bytes((byte,))))  # type: ignore[misc]
    return await _finish(foes, outcome, hold)


async def half_open_tls(target: Target, count: int, hold: Hold) -> Outcome:
    """Begin a TLS handshake, and stop in the middle of the first record."""
    outcome = Outcome()
    foes = await _open(target.port, count, outcome)
    await _all(foes, lambda foe: foe.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"))
    return await _finish(foes, outcome, hold)


async def giant_connects(target: Target, count: int, hold: Hold) -> Outcome:
    """Send a CONNECT that is far longer than a line may be."""
    outcome = Outcome()
    foes = await _open(target.port, count, outcome)
    line = b'CONNECT {"name":"' + b"x" * GIANT_BYTES + b'"}\r\n'
    await _all(foes, lambda foe: foe.send(line))
    return await _finish(foes, outcome, hold)


async def giant_tokens(target: Target, count: int, hold: Hold) -> Outcome:
    """Send leaf nodes' logins with tokens of a megabyte, made of what a token is made of."""
    outcome = Outcome()
    foes = await _open(target.leaf_port, count, outcome)
    part = base64.urlsafe_b64encode(b'{"nats":' + b"[" * 250_000 + b"]" * 250_000 + b"}")
    token = b".".join((base64.urlsafe_b64encode(b"{}"), part, b"x"))
    line = b'CONNECT {"jwt":"' + token + b'"}\r\nPING\r\n'
    await _all(foes, lambda foe: foe.send(line))
    return await _finish(foes, outcome, hold)


async def guesses(target: Target, count: int, hold: Hold) -> Outcome:
    """Guess the password of a user whose password is a bcrypt hash, another guess each time."""
    outcome = Outcome()
    numbers = itertools.count()

    async def guess(foe: Foe) -> None:
        login = {"user": "hashed", "pass": f"guess{next(numbers)}", "verbose": False}
        await foe.info()
        await foe.send(b"CONNECT " + json.dumps(login).encode() + b"\r\nPING\r\n")
        await foe.until(b"PONG")

    foes = await _open(target.port, count, outcome)
    await _all(foes, guess)
    return await _finish(foes, outcome, hold)


# --- WebSocket ----------------------------------------------------------------------------------

_UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)


async def _websockets(
    target: Target, count: int, hold: Hold, send: Callable[[Foe], Awaitable[None]]
) -> Outcome:
    outcome = Outcome()

    async def one(foe: Foe) -> None:
        await foe.send(_UPGRADE)
        await foe.until(b"INFO")
        await send(foe)

    foes = await _open(target.websocket_port, count, outcome)
    await _all(foes, one)
    return await _finish(foes, outcome, hold)


def frame(first: int, data: bytes, *, is_masked: bool = True) -> bytes:
    """Return a frame whose mask is zero."""
    bit, size = (0x80 if is_masked else 0), len(data)
    if size < 126:
        head = bytes((first, bit | size))
    elif size < 65536:
        head = bytes((first, bit | 126)) + size.to_bytes(2)
    else:
        head = bytes((first, bit | 127)) + size.to_bytes(8)
    return head + (bytes(4) if is_masked else b"") + data


async def slow_upgrades(target: Target, count: int, hold: Hold) -> Outcome:
    """Send a request for an upgrade without its end."""
    outcome = Outcome()
    foes = await _open(target.websocket_port, count, outcome)
    await _all(foes, lambda foe: foe.send(_UPGRADE[:-2] + b"X-Padding: x"))
    return await _finish(foes, outcome, hold)


async def unmasked_frames(target: Target, count: int, hold: Hold) -> Outcome:
    """Send frames without a mask, which only servers may."""

    async def send(foe: Foe) -> None:
        await foe.send(frame(0x82, b"PING\r\n", is_masked=False))

    return await _websockets(target, count, hold, send)


async def broken_frames(target: Target, count: int, hold: Hold) -> Outcome:
    """Send frames of random bytes."""

    async def send(foe: Foe) -> None:
        await foe.send(os.urandom(4096))

    return await _websockets(target, count, hold, send)


async def endless_frames(target: Target, count: int, hold: Hold) -> Outcome:
    """Announce a frame of 2^62 bytes, and send as much of it as the server reads."""

    async def send(foe: Foe) -> None:
        await foe.send(b"\x82\xff" + (1 << 62).to_bytes(8) + bytes(4) + b"x" * GIANT_BYTES)

    return await _websockets(target, count, hold, send)


async def endless_fragments(target: Target, count: int, hold: Hold) -> Outcome:
    """Send a compressed message in fragments without a last one."""
    packed = _deflated(b"PUB a 1\r\nx\r\n" * 1000)

    async def send(foe: Foe) -> None:
        login = json.dumps(USER | {"verbose": False}).encode()
        await foe.send(frame(0x82, b"CONNECT " + login + b"\r\nPING\r\n"))
        await foe.until(b"PONG")
        await foe.send(frame(0x42, packed[:100]))
        for _ in range(200):
            await foe.send(frame(0x00, os.urandom(4096)))

    return await _websockets(target, count, hold, send)


async def compression_bombs(target: Target, count: int, hold: Hold) -> Outcome:
    """Send, logged in or not, small messages that inflate to a thousand times their size."""
    bomb = frame(0xC2, _deflated(bytes(BOMB_BYTES)))
    sides = itertools.count()

    async def send(foe: Foe) -> None:
        if next(sides) % 2:
            login = json.dumps(USER | {"verbose": False}).encode()
            await foe.send(frame(0x82, b"CONNECT " + login + b"\r\nPING\r\n"))
            await foe.until(b"PONG")
        await foe.send(bomb)

    return await _websockets(target, count, hold, send)


async def leaf_bombs(target: Target, count: int, hold: Hold) -> Outcome:
    """Compress a leaf link, and send before the login few bytes that stand for 4 MiB of zeros."""
    return await _compressed_leaves(target, count, hold, _s2_bomb(b"\0") * BOMB_BLOCKS)


async def leaf_floods(target: Target, count: int, hold: Hold) -> Outcome:
    """Log in over a compressed leaf link, and send few bytes that stand for 4 MiB of PINGs."""
    login = USER | {"version": "2.15.1", "name": "flood", "server_id": "H", "headers": True}
    connect = b"CONNECT " + json.dumps(login).encode() + b"\r\nPING\r\n"
    begin = _s2_frame(0x01, connect, connect)
    return await _compressed_leaves(
        target, count, hold, begin + _s2_bomb(b"PING\r\n") * BOMB_BLOCKS
    )


async def _compressed_leaves(target: Target, count: int, hold: Hold, data: bytes) -> Outcome:
    outcome = Outcome()
    asked = {"server_id": "H", "compression": "s2_fast", "proto": 1}

    async def one(foe: Foe) -> None:
        await foe.info()
        await foe.send(b"INFO " + json.dumps(asked).encode() + b"\r\n")
        await foe.until(b"S2sTwO")  # both directions are S2 from here on
        await foe.send(_S2_BEGIN + data)

    foes = await _open(target.leaf_port, count, outcome)
    await _all(foes, one)
    return await _finish(foes, outcome, hold)


_S2_BEGIN: Final = b"\xff\x06\x00\x00S2sTwO"


def _s2_bomb(pattern: bytes) -> bytes:
    """Return a frame of a few bytes that stands for at most 4 MiB of a pattern."""
    size = S2_BLOCK_BYTES // len(pattern) * len(pattern)
    rest = size - len(pattern) - 4  # behind a literal, and a copy of four bytes
    repeat = b"\x1d\x00" + (rest - 4 - 65536).to_bytes(3, "little")
    literal = bytes((len(pattern) - 1 << 2,)) + pattern
    block = _varint(size) + literal + bytes((0x01, len(pattern))) + repeat
    return _s2_frame(0x00, block, pattern * (size // len(pattern)))


def _s2_frame(kind: int, body: bytes, content: bytes) -> bytes:
    crc = crc32c(content)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    head = bytes((kind,)) + (len(body) + 4).to_bytes(3, "little")
    return head + masked.to_bytes(4, "little") + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes((value,))


def _deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=-15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


# --- after a login ------------------------------------------------------------------------------


async def subscriptions(target: Target, count: int, hold: Hold) -> Outcome:
    """Subscribe to `count` subjects over ten connections, each another subject."""
    outcome = Outcome()
    foes = await _open(target.port, 10, outcome)
    numbers = itertools.count()

    async def subscribe(foe: Foe) -> None:
        login = json.dumps(USER | {"verbose": False}).encode()
        await foe.send(b"CONNECT " + login + b"\r\n")
        while (first := next(numbers) * 1000) < count:
            subs = (b"SUB hostile.%d.x %d\r\n" % (at, at) for at in range(first, first + 1000))
            await foe.send(b"".join(subs))
        await foe.send(b"PING\r\n")
        await foe.until(b"PONG")

    await _all(foes, subscribe)
    return await _finish(foes, outcome, hold)


async def readers_that_read_nothing(target: Target, count: int, hold: Hold) -> Outcome:
    """Subscribe to what is published all the time, and read none of it."""
    outcome = Outcome()
    foes = await _open(target.port, count, outcome)

    async def subscribe(foe: Foe) -> None:
        login = json.dumps(USER | {"verbose": False}).encode()
        await foe.send(b"CONNECT " + login + b"\r\nSUB flood 1\r\nPING\r\n")
        await foe.until(b"PONG")
        foe.pause_reading()

    await _all(foes, subscribe)
    flood = await Foe.open(target.port, Outcome())
    await flood.send(b"CONNECT " + json.dumps(USER | {"verbose": False}).encode() + b"\r\n")
    for _ in range(200):
        await flood.send((b"PUB flood 65536\r\n" + bytes(65536) + b"\r\n") * 4)
    await flood.send(b"PING\r\n")
    await flood.until(b"PONG")
    flood.close()
    return await _finish(foes, outcome, hold)


Attack = Callable[[Target, int, Hold], Awaitable[Outcome]]

ATTACKS: Final[dict[str, tuple[Attack, int]]] = {
    "silent": (silent, 10_000),
    "slow_handshakes": (slow_handshakes, 2000),
    "half_open_tls": (half_open_tls, 2000),
    "giant_connects": (giant_connects, 50),
    "giant_tokens": (giant_tokens, 50),
    "guesses": (guesses, 500),
    "slow_upgrades": (slow_upgrades, 2000),
    "unmasked_frames": (unmasked_frames, 500),
    "broken_frames": (broken_frames, 500),
    "endless_frames": (endless_frames, 20),
    "endless_fragments": (endless_fragments, 100),
    "compression_bombs": (compression_bombs, 50),
    "leaf_bombs": (leaf_bombs, 50),
    "leaf_floods": (leaf_floods, 25),
    "subscriptions": (subscriptions, 1_000_000),
    "readers_that_read_nothing": (readers_that_read_nothing, 20),
}
"""Attacks by name, and how many connections or messages a campaign has."""
