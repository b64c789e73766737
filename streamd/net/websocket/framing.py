"""Framing of one WebSocket connection, sans-IO: bytes of the socket to frames, and bytes to frames.

The client's protocol is a stream of bytes inside: where a message of WebSocket begins or ends means
nothing, so no message is put together. A frame is passed on when it is whole, a fragment like any
other, which bounds what is held by the largest frame. Parsing, masks and compression are those of
the library `websockets` (docs/adr/0041); the rules about order are here.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from websockets.exceptions import PayloadTooBig, ProtocolError
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.streams import StreamReader

try:
    from websockets.speedups import apply_mask
except ImportError:  # built without a compiler
    from websockets.utils import apply_mask

from streamd.limits import (
    WEBSOCKET_BROWSER_FRAME_BYTES,
    WEBSOCKET_CLOSE_TEXT_BYTES,
    WEBSOCKET_PLAIN_BYTES,
)

_WHOLE_BINARY: Final = 0x82
_MASK_BIT: Final = 0x80
_TWO_BYTES: Final = 126  # as a length: it follows in two bytes
_SHORT_HEAD: Final = 6  # bytes before the content: kind, length, mask

DATA: Final = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)


class FramingError(Exception):
    """The other side broke the rules; `code` and text are those of the frame that says so."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Framing:
    """Frames of one connection, in both directions.

    `is_masked`: frames of the client are, as the standard demands. `is_deflating`: compression was
    agreed upon. `frame_bytes`, if not 0, is how much is put into a frame: browsers are served
    better by small ones.
    """

    __slots__ = (
        "_extensions",
        "_frame_bytes",
        "_is_in_message",
        "_is_masked",
        "_parsing",
        "_reader",
    )

    def __init__(
        self, *, is_masked: bool = True, is_deflating: bool = False, frame_bytes: int = 0
    ) -> None:
        self._reader = StreamReader()
        self._is_masked = is_masked
        self._extensions = [_deflate()] if is_deflating else []
        self._frame_bytes = frame_bytes
        self._is_in_message = False  # a fragment came, and its message has not ended
        self._parsing: Generator[None, None, Frame] | None = None

    # --- in -------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take in bytes of the socket."""
        self._reader.feed_data(data)

    def next(self, payload_max: int) -> Frame | None:
        """Return the next frame, unmasked and inflated; None: it is not whole yet.

        Raises FramingError for one that is larger than `payload_max`, or illegal here.
        """
        parsing = self._parsing
        if parsing is None:
            if not self._reader.buffer:
                return None
            parsing = self._parsing = Frame.parse(
                self._reader.read_exact,
                mask=self._is_masked,
                max_size=payload_max,
                extensions=self._extensions,
            )
        try:
            parsing.send(None)
        except StopIteration as whole:
            self._parsing = None
            frame: Frame = whole.value
        except ProtocolError as err:
            raise FramingError(CloseCode.PROTOCOL_ERROR, str(err)) from err
        except PayloadTooBig as err:
            raise FramingError(CloseCode.MESSAGE_TOO_BIG, "frame is too large") from err
        else:
            return None
        self._check_order(frame)
        return frame

    def take_plain(self, size_wanted: int) -> list[bytes]:
        """Return the content of the whole frames that come next, up to about `size_wanted`, as long
        as they are of the simplest kind: a short binary message in one frame, masked.

        Most clients send nothing else, many of them a frame for each of their messages, and this is
        eight times as quick as `next`, which takes whatever is of another kind.
        """
        pieces: list[bytes] = []
        if self._parsing is not None or self._is_in_message or not self._is_masked:
            return pieces
        buffer = self._reader.buffer
        at, end, size = 0, len(buffer), 0
        while end - at >= _SHORT_HEAD and size < size_wanted and buffer[at] == _WHOLE_BINARY:
            length = buffer[at + 1] - _MASK_BIT
            start = at + _SHORT_HEAD
            if length == _TWO_BYTES:
                length = buffer[at + 2] << 8 | buffer[at + 3]
                start += 2
            elif not 0 <= length < _TWO_BYTES:
                break
            if start + length > end:
                break
            at = start + length
            pieces.append(apply_mask(buffer[start:at], buffer[start - 4 : start]))
            size += length
        del buffer[:at]
        return pieces

    def _check_order(self, frame: Frame) -> None:
        opcode = frame.opcode
        if opcode not in DATA:
            return
        if opcode is Opcode.CONT and not self._is_in_message:
            raise FramingError(CloseCode.PROTOCOL_ERROR, "invalid continuation frame")
        if opcode is not Opcode.CONT and self._is_in_message:
            text = "new message started before final frame for previous message was received"
            raise FramingError(CloseCode.PROTOCOL_ERROR, text)
        self._is_in_message = not frame.fin

    # --- out ------------------------------------------------------------------------------------

    def pack(self, data: bytes) -> bytes:
        """Return `data` in frames."""
        size = self._frame_bytes
        extensions = self._extensions if len(data) > WEBSOCKET_PLAIN_BYTES else None
        if not size or len(data) <= size:
            return Frame(Opcode.BINARY, data).serialize(mask=False, extensions=extensions)
        pieces = []
        opcode = Opcode.BINARY
        for at in range(0, len(data), size):
            # Plain pieces are messages of their own, compressed ones fragments of one.
            is_last = not extensions or at + size >= len(data)
            frame = Frame(opcode, data[at : at + size], fin=is_last)
            pieces.append(frame.serialize(mask=False, extensions=extensions))
            opcode = Opcode.BINARY if is_last else Opcode.CONT
        return b"".join(pieces)


def pong(payload: bytes) -> bytes:
    """Return the frame that answers a PING with `payload`."""
    return Frame(Opcode.PONG, payload).serialize(mask=False)


def close_frame(code: int, text: str) -> bytes:
    """Return the frame that ends a connection; `text` is cut if it is too long for it."""
    said = text.encode()
    if len(said) > WEBSOCKET_CLOSE_TEXT_BYTES:
        said = said[: WEBSOCKET_CLOSE_TEXT_BYTES - 3].decode(errors="ignore").encode() + b"..."
    return Frame(Opcode.CLOSE, code.to_bytes(2, "big") + said).serialize(mask=False)


def close_answer(frame: Frame) -> bytes:
    """Return the frame that answers the client's own end, with its code and text.

    Raises FramingError if they are illegal.
    """
    payload = bytes(frame.data)
    try:
        Close.parse(payload)
    except ProtocolError as err:
        raise FramingError(CloseCode.PROTOCOL_ERROR, str(err)) from err
    except UnicodeDecodeError:
        return close_frame(CloseCode.INVALID_DATA, "invalid utf8 body in close frame")
    return Frame(Opcode.CLOSE, payload).serialize(mask=False)


def _deflate() -> PerMessageDeflate:
    return PerMessageDeflate(
        remote_no_context_takeover=True,
        local_no_context_takeover=True,
        remote_max_window_bits=15,
        local_max_window_bits=15,
        # Quick rather than small, and 100 KiB instead of 260 while a message is made.
        compress_settings={"level": 1, "memLevel": 7},
    )


def browser_frame_bytes(user_agent: str, *, is_deflating: bool) -> int:
    """Return how much a frame for this client may hold; 0: any number of bytes."""
    if not user_agent.startswith("Mozilla/"):
        return 0
    # Chrome calls itself Safari as well, but only Safari has a version; it can't put compressed
    # fragments together.
    if is_deflating and "Version/" in user_agent and "Safari/" in user_agent:
        return 0
    return WEBSOCKET_BROWSER_FRAME_BYTES
