"""Archives between a server and a client: what `nats stream backup` and `restore` do on the wire.

Works with any nats-server of JetStream and with streamd, on a connection of nats-py. An archive is
taken and given in pieces, so that memory does not grow with the stream.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Protocol

from streamd.errors import StreamdError
from streamd.types import Document

CHUNK_BYTES: Final = 128 * 1024
WINDOW_BYTES: Final = 8 * 1024 * 1024
UPLOAD_BYTES: Final = 64 * 1024  # of a chunk on its way to a server
UPLOADS_MAX: Final = 8  # chunks on their way
_QUIET_S: Final = 10.0  # a server that sends nothing for so long has given up
_ANSWER_S: Final = 10.0
_REASON_S: Final = 5.0
_END_S: Final = 3600.0  # a server may still have much to do when all was uploaded


class TransferError(StreamdError):
    """A server refused an archive, or one that was cut off on its way. `err_code`: the server's
    reason, 0 if it gave none."""

    def __init__(self, text: str, err_code: int = 0) -> None:
        super().__init__(text)
        self.err_code = err_code


class Message(Protocol):
    """A message of nats-py, as far as it is read here."""

    subject: str
    reply: str
    data: bytes
    headers: dict[str, str] | None


class Link(Protocol):
    """A connection of nats-py, as far as it is used here."""

    def new_inbox(self) -> str: ...

    async def subscribe(
        self,
        subject: str,
        *,
        cb: Callable[[Any], Awaitable[None]] | None = None,
        pending_bytes_limit: int = 0,
    ) -> Any: ...

    async def publish(self, subject: str, payload: bytes = b"", reply: str = "") -> None: ...

    async def request(
        self, subject: str, payload: bytes = b"", timeout: float = 0.5
    ) -> Message: ...

    async def flush(self, timeout: int = 10) -> None: ...


async def api_request(
    link: Link, subject: str, body: Document | None = None, *, prefix: str = "$JS.API"
) -> Document:
    """Return a server's answer to a request of its API. Raises TransferError if it refuses."""
    payload = json.dumps(body).encode() if body is not None else b""
    try:
        answer = await link.request(f"{prefix}.{subject}", payload, timeout=_ANSWER_S)
    except Exception as err:
        raise TransferError(f"{subject}: no answer ({type(err).__name__})") from err
    return _decoded(answer.data, subject)


def _decoded(data: bytes, what: str) -> Document:
    document = json.loads(data)
    if not isinstance(document, dict):
        raise TransferError(f"{what}: the answer is no JSON object")
    error = document.get("error")
    if error:
        err_code = int(error.get("err_code", 0))
        raise TransferError(f"{what}: {error.get('description')} ({err_code})", err_code)
    return document


class Download:
    """An archive on its way here: `begin`, then iterate over `chunks`."""

    def __init__(self, link: Link, stream: str, *, prefix: str = "$JS.API") -> None:
        self._link = link
        self._stream = stream
        self._prefix = prefix
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._subscription: Any = None

    async def begin(
        self,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        window_bytes: int = WINDOW_BYTES,
        has_consumers: bool = True,
        is_checked: bool = False,
        start_seq: int = 0,
    ) -> Document:
        """Ask for the archive; return `{config, state}` of the stream. With `start_seq`, which is
        streamd's own, for one without the messages before it: only an increment reads that."""
        inbox = self._link.new_inbox()
        self._subscription = await self._link.subscribe(
            inbox, cb=self._messages.put, pending_bytes_limit=4 * window_bytes
        )
        wanted: Document = {
            "deliver_subject": inbox,
            "chunk_size": chunk_bytes,
            "window_size": window_bytes,
        }
        if not has_consumers:
            wanted["no_consumers"] = True
        if is_checked:
            wanted["jsck"] = True
        if start_seq:
            wanted["start_seq"] = start_seq
        try:
            return await api_request(
                self._link, f"STREAM.SNAPSHOT.{self._stream}", wanted, prefix=self._prefix
            )
        except TransferError:
            await self._subscription.unsubscribe()
            raise

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the archive; each is acked once the next is asked for. Raises
        TransferError if the server ends before the archive does."""
        try:
            while True:
                try:
                    message = await asyncio.wait_for(self._messages.get(), _QUIET_S)
                except TimeoutError:
                    raise TransferError(
                        f"{self._stream}: the server sent nothing for {_QUIET_S:g} s"
                    ) from None
                status = (message.headers or {}).get("Status", "")
                if not message.data:
                    if status and status != "204":
                        why = (message.headers or {}).get("Description", "")
                        raise TransferError(f"{self._stream}: {status} {why}".rstrip())
                    return
                yield message.data
                if message.reply:
                    await self._link.publish(message.reply)
        finally:
            await self._subscription.unsubscribe()


async def upload(
    link: Link,
    config: Document,
    state: Document,
    chunks: AsyncIterator[bytes],
    *,
    prefix: str = "$JS.API",
    on_bytes: Callable[[int], Awaitable[None] | None] | None = None,
) -> Document:
    """Restore a stream from the pieces of its archive; return its StreamInfo. `on_bytes` is told
    how many bytes were taken by the server so far. Raises TransferError."""
    name = config["name"]
    body = {"config": config, "state": state}
    begun = await api_request(link, f"STREAM.RESTORE.{name}", body, prefix=prefix)
    subject = begun["deliver_subject"]
    answers: asyncio.Queue[Message] = asyncio.Queue()
    inbox = link.new_inbox()
    subscription = await link.subscribe(inbox, cb=answers.put)
    under_way: deque[int] = deque()  # chunks that are not answered yet, which are so in their order
    taken = 0

    async def await_first() -> None:
        nonlocal taken
        size = under_way.popleft()
        await _answered(answers, size, name)
        taken += size
        told = on_bytes(taken) if on_bytes is not None else None
        if told is not None:
            await told

    try:
        async for piece in chunks:
            for at in range(0, len(piece), UPLOAD_BYTES):
                part = piece[at : at + UPLOAD_BYTES]
                await _publish(link, subject, part, inbox, name)
                under_way.append(len(part))
                if len(under_way) >= UPLOADS_MAX:
                    await await_first()
        while under_way:
            await await_first()
        await _publish(link, subject, b"", inbox, name)
        answer = await _answered(answers, 0, name)
    finally:
        await subscription.unsubscribe()
    if not answer:
        raise TransferError(f"{name}: the server did not say what became of it")
    return _decoded(answer, f"restore of {name}")


async def _publish(link: Link, subject: str, part: bytes, inbox: str, name: str) -> None:
    try:
        await link.publish(subject, part, inbox)
    except Exception as err:
        raise TransferError(f"{name}: a chunk can't be sent ({type(err).__name__})") from err


async def _answered(answers: asyncio.Queue[Message], size: int, name: str) -> bytes:
    """Return the answer to a chunk of that size; 0: to the end of an archive."""
    within_s = _ANSWER_S if size else _END_S
    is_refused = False
    while True:
        try:
            answer = await asyncio.wait_for(answers.get(), within_s)
        except TimeoutError:
            why = f"no answer within {within_s:g} s" if not is_refused else "no taker any more"
            raise TransferError(f"{name}: a chunk got {why}") from None
        if (answer.headers or {}).get("Status") != "503":
            break
        # Nobody takes chunks any more: the server ended, or the reason for its end comes yet, as
        # the answer to a chunk before this one.
        is_refused, within_s = True, min(within_s, _REASON_S)
    if answer.data and (size or is_refused):
        _decoded(answer.data, f"restore of {name}")
    return answer.data
