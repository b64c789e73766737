"""TLS over a transport: the protocol behind it reads and writes plain bytes.

    raw transport -> TlsTransport (bytes through OpenSSL, in memory) -> protocol

Handshake and traffic are the same object's, so bytes that were read before it was known that they
are TLS can be handed in, and what a congested client holds back is the raw transport's own buffer.
Steps of the handshake run on other threads (`handshakes.py`); the object is touched by one thread
at a time, for nothing is read while a step runs.

    HANDSHAKE --done--> OPEN --close, either side--> CLOSED
        |  `-- fault, timeout, end of the socket --------^
"""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from streamd.config.cipher_suites import go_name
from streamd.net.tls.certificates import peer_certificates
from streamd.net.tls.facts import TlsFacts, TlsFault
from streamd.net.tls.handshakes import Handshakes

HANDSHAKE_RECORD: Final = 0x16
"""The first byte of a connection that begins with TLS."""

NO_TLS: Final = TlsFault("tls: first record does not look like a TLS handshake", False)
"""The fault of who does not speak TLS."""

_READ_BYTES: Final = 64 * 1024


class _State(enum.Enum):
    HANDSHAKE = enum.auto()
    OPEN = enum.auto()
    CLOSED = enum.auto()


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """End of TLS on `raw`.

    The protocol that `set_protocol` names is told of the end of the socket; plain bytes come to it
    once TLS is up.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        raw: asyncio.Transport,
        handshakes: Handshakes,
        loop: asyncio.AbstractEventLoop,
        on_result: Callable[[TlsFacts | TlsFault], None],
        host: str = "",
    ) -> None:
        """`host` is the name of the other side, if this side dialed it: then it is the server.

        `on_result` is called once, with facts or the reason why not; after a fault the raw
        transport is closed. It is not called if the transport is closed before that."""
        super().__init__()
        self._raw = raw
        self._handshakes = handshakes
        self._loop = loop
        self._on_result = on_result
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._is_dialer = bool(host)
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=not host,
            server_hostname=host or None,
        )
        self._protocol: asyncio.Protocol | None = None
        self._facts: TlsFacts | None = None
        self._state = _State.HANDSHAKE
        self._received: list[bytes] = []  # while a step runs
        self._is_begun = self._is_stepping = self._is_late = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, timeout_s: float, data: bytes = b"") -> None:
        """Shake hands; `data` is what the raw transport has been read of it so far."""
        self._raw.set_protocol(self)
        self._timer = self._loop.call_later(timeout_s, self._on_timeout)
        if data:
            self.data_received(data)
        elif self._is_dialer:
            self._step()

    # --- protocol of the raw transport ------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Decrypt a chunk, or take it for the handshake."""
        if self._state is _State.OPEN:
            self._incoming.write(data)
            self._read()
        elif self._state is _State.HANDSHAKE:
            self._received.append(data)
            if not self._is_stepping:
                self._step()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the end of the socket on."""
        state, self._state = self._state, _State.CLOSED
        self._stop_timer()
        if state is _State.HANDSHAKE:
            self._on_result(TlsFault("EOF" if exc is None else str(exc), is_certificate=False))
        if self._protocol is not None:
            self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that the other side is behind."""
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the other side has caught up."""
        if self._protocol is not None:
            self._protocol.resume_writing()

    # --- handshake --------------------------------------------------------------------------------

    def _step(self) -> None:
        """Go on with what has come, on another thread; the socket waits."""
        is_first = not (self._is_begun or self._is_dialer)
        if is_first and self._received[0][0] != HANDSHAKE_RECORD:
            # Said without a word of TLS to somebody who would not understand it.
            self._fail(NO_TLS)
            return
        self._incoming.write(b"".join(self._received))
        self._received.clear()
        self._is_begun = self._is_stepping = True
        self._raw.pause_reading()
        self._handshakes.run(
            self._loop,
            self._shake,
            is_gone=lambda: self._state is not _State.HANDSHAKE,
            done=self._on_step,
        )

    def _shake(self) -> TlsFacts | TlsFault | None:
        """Advance the handshake by a step, on any thread; None: the other side continues."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return None
        except (ssl.SSLError, OSError) as err:
            return _fault(err)
        cipher = self._tls.cipher()
        try:
            certificates = peer_certificates(self._tls)
        except ValueError as err:  # OpenSSL takes what a stricter parser does not
            return TlsFault(f"tls: failed to parse certificate: {err}", is_certificate=True)
        version = (self._tls.version() or "").removeprefix("TLSv")
        is_verified = self._tls.context.verify_mode is ssl.CERT_REQUIRED
        suite = go_name(cipher[0] if cipher else "")
        return TlsFacts(version, suite, certificates, is_verified=is_verified)

    def _on_step(self, result: TlsFacts | TlsFault | None) -> None:
        self._is_stepping = False
        self._flush()
        if isinstance(result, TlsFault):
            self._fail(result)
        elif result is not None:
            self._open(result)
        elif self._is_late:
            self._fail(TlsFault("i/o timeout", is_certificate=False))
        elif self._received:
            self._step()
        else:
            self._raw.resume_reading()

    def _open(self, facts: TlsFacts) -> None:
        self._stop_timer()
        self._state = _State.OPEN
        self._raw.resume_reading()
        self._facts = facts
        self._on_result(facts)
        if self._state is _State.OPEN:  # what came with the handshake's last words
            self._incoming.write(b"".join(self._received))
            self._received.clear()
            self._read()

    def _fail(self, fault: TlsFault) -> None:
        self._state = _State.CLOSED
        self._stop_timer()
        self._on_result(fault)
        self._raw.close()

    def _on_timeout(self) -> None:
        self._timer = None
        if self._is_stepping:
            self._is_late = True  # if the other side has more to say; a queue is not its fault
        else:
            self._fail(TlsFault("i/o timeout", is_certificate=False))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- traffic ----------------------------------------------------------------------------------

    def _read(self) -> None:
        """Hand on all that can be decrypted of what has come."""
        read, parts, is_over = self._tls.read, list[bytes](), False
        try:
            while not is_over:
                part = read(_READ_BYTES)
                if part:
                    parts.append(part)
                else:
                    is_over = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # its end, or bytes that are not what was sent
            is_over = True
        self._flush()
        if parts and self._protocol is not None:
            self._protocol.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if is_over:
            self.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    # --- transport of the protocol ----------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self._state is not _State.OPEN or not data:
            return
        write = self._tls.write
        sent = write(data)
        if sent < len(data):  # OpenSSL takes a record at a time
            rest = memoryview(data)[sent:]
            while rest:
                rest = rest[write(rest) :]
        self._raw.write(self._outgoing.read())

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt and send all of them."""
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Say that nothing more comes, and close the socket when all has been sent."""
        if self._state is _State.OPEN:
            with suppress(ssl.SSLError):  # it would wait for the other side's answer
                self._tls.unwrap()
            self._flush()
        self._state = _State.CLOSED
        self._stop_timer()
        self._raw.close()

    def abort(self) -> None:
        """Drop the socket, and what was not sent yet."""
        self._state = _State.CLOSED
        self._stop_timer()
        self._raw.abort()

    def is_closing(self) -> bool:
        """Return True if the transport was closed, by either side."""
        return self._state is _State.CLOSED or self._raw.is_closing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand plain bytes to `protocol` from here on."""
        assert isinstance(protocol, asyncio.Protocol), protocol
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that plain bytes are handed to."""
        assert self._protocol is not None
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return a fact about the connection, by asyncio's name for it."""
        if name == "tls_facts":  # a name of ours; None until TLS is up
            return self._facts
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return self._raw.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Read no more for a while."""
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._raw.resume_reading()

    def is_reading(self) -> bool:
        """Return True if the socket is read."""
        return self._raw.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Bound what may wait to be sent, encrypted."""
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait to be sent."""
        return self._raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the bounds of what may wait."""
        return self._raw.get_write_buffer_limits()

    def can_write_eof(self) -> bool:
        """Return False: TLS has no half-closed connections here."""
        return False


_CERTIFICATE_FAULTS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "tls: client didn't provide a certificate",
    "NO_SHARED_CIPHER": "tls: no cipher suite supported by both client and server",
    "UNSUPPORTED_PROTOCOL": "tls: client offered only unsupported versions",
}


def _fault(err: OSError) -> TlsFault:
    """Return the fault in Go's words, as far as it has the same ones."""
    if isinstance(err, ssl.SSLCertVerificationError):
        reason = err.verify_message or "not accepted"
        return TlsFault(f"tls: failed to verify certificate: x509: {reason}", True)
    reason = getattr(err, "reason", None) or str(err)
    known = _CERTIFICATE_FAULTS.get(reason)
    if known is not None:
        return TlsFault(known, is_certificate=True)
    is_alert = "ALERT" in reason  # of the other side: it does not like ours
    text = reason.lower().replace("_", " ")
    return TlsFault(f"remote error: tls: {text}" if is_alert else f"tls: {text}", is_alert)
