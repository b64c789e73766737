"""Answers to `$SYS.REQ`: the envelope around a document, and its way back to the asker.

{"server": {...}, "data": {...}}                      an answer
{"server": {...}, "error": {"code", "description"}}   a request that cannot be read (400)
{"server": {...}, "data": null, "error": {...}}       one that cannot be served (500)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from streamd.limits import MONITORING_PINGS_MAX, SYSTEM_PIECE_CHARS
from streamd.net.monitoring.query import BadQuery
from streamd.net.monitoring.sliced_pages import Document, Slicer, Steps, encode, gather
from streamd.net.system.compression import compress
from streamd.net.system.server_description import ServerDescription

Publish = Callable[[bytes, bytes, bytes, bytes], None]
"""`publish(subject, reply, headers, payload)` of the subject space that was asked in."""

_BAD_REQUEST: Final = 400
_FAILED: Final = 500


class Silence(Exception):
    """A request that this server leaves to others."""


class Answers:
    """Sends answers of this server, each with a description of it.

    Documents are built in slices, so many at a time; beyond that a request is refused.
    """

    def __init__(self, publish: Publish, description: ServerDescription, slicer: Slicer) -> None:
        self.description = description
        self._publish = publish
        self._slicer = slicer
        self._waiting_count = 0

    # --- what is known at once ------------------------------------------------------------------

    def send(self, reply: bytes, answer: Document) -> None:
        """Send `data`, `error` or another key with a description of this server before it."""
        self.send_bare(reply, {"server": self.description.next()} | answer)

    def send_bare(self, reply: bytes, document: Document) -> None:
        """Send a document as it is."""
        self.send_text(reply, "".join(encode(document, "")).encode(errors="replace"))

    def send_text(self, reply: bytes, body: bytes) -> None:
        """Send an answer that is no document."""
        self._publish(reply, b"", b"", body)

    def refuse(self, reply: bytes, text: str) -> None:
        """Say that a request is not understood."""
        self.send(reply, {"error": {"code": _BAD_REQUEST, "description": text}})

    def fail(self, reply: bytes, text: str) -> None:
        """Say why a request is not served."""
        self.send(reply, {"data": None, "error": {"code": _FAILED, "description": text}})

    # --- documents ------------------------------------------------------------------------------

    def build(
        self, reply: bytes, steps: Steps[Document], *, key: str = "data", encoding: str = ""
    ) -> None:
        """Send what `steps` build, as `key`; a BadQuery is the reason of a refusal, and after a
        Silence nothing is sent."""
        if self._waiting_count >= MONITORING_PINGS_MAX:
            steps.close()
            self.fail(reply, f"more than {MONITORING_PINGS_MAX} requests are waiting")
            return
        self._waiting_count += 1

        def done(body: bytes) -> None:
            self._waiting_count -= 1
            headers = b"NATS/1.0\r\nContent-Encoding: %b\r\n\r\n" % encoding.encode()
            self._publish(reply, b"", headers if encoding else b"", body)

        def failed(err: Exception) -> None:
            self._waiting_count -= 1
            if isinstance(err, BadQuery):
                self.fail(reply, str(err))
            elif not isinstance(err, Silence):
                raise err

        self._slicer.start(self._text(steps, key, encoding), done, failed)

    def _text(self, steps: Steps[Document], key: str, encoding: str) -> Steps[bytes]:
        document = yield from steps
        answer = {"server": self.description.next(), key: document}
        return (yield from compress((yield from _pieces(encode(answer, ""))), encoding))


def _pieces(text: Iterator[str]) -> Steps[list[bytes]]:
    found: list[bytes] = []
    while piece := (yield from gather(text, SYSTEM_PIECE_CHARS)):
        found.append(piece.encode(errors="replace"))
    return found
