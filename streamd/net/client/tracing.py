"""Protocol trace: the lines between a client and the server, in the log (`trace`), in nats-server's
words: `<<- [PUB a.b 5]`, `->> [MSG a.b 1 5]`, `<-> [DELSUB 1]`.

A connection is traced or not from its beginning: one that is has a `Tracer`, so others pay nothing.
Input is traced message by message, and each is handled before the next; output is read from the
bytes that go to the socket.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from streamd.config.cluster_options import join_address
from streamd.config.options import Options
from streamd.net.client.profile import ClientProfile
from streamd.obs.server_log import Log
from streamd.protocol import client_protocol as protocol
from streamd.protocol.client_protocol import Event
from streamd.protocol.connect_options import ConnectOptions
from streamd.types import ACCOUNT

_SECRETS: Final = ("pass", "auth_token", "sig", "nkey")
_ESCAPES: Final = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
}  # fmt: skip
_WORDS: Final = {protocol.PING: "PING", protocol.PONG: "PONG"}


class Tracer:
    """Writes the trace of one client connection to the log."""

    def __init__(self, log: Log, options: Options) -> None:
        self._log = log
        self._payload_max = options.max_traced_msg_len  # 0: whole
        self._has_headers_only = options.is_trace_headers
        self._address = ""
        self._client = ""  # the client's description of itself

    def begin(
        self, write: Callable[[bytes], None], profile: ClientProfile
    ) -> Callable[[bytes], None]:
        """Name the connection, and return a `write` that traces all it is given."""
        kind = "wid" if profile.is_websocket else "cid"
        proxied = f"{profile.forwarded_for}/" if profile.forwarded_for else ""
        address = join_address(profile.ip, profile.port)
        self._address = f"{proxied}{address} - {kind}:{profile.cid}"

        def write_traced(data: bytes) -> None:
            self._trace_output(data)
            write(data)

        return write_traced

    def identified(self, profile: ClientProfile) -> None:
        """Name the client in all lines from here on."""
        identity = profile.identity
        account = identity.account if identity is not None else ACCOUNT
        self._client = _client_of(profile.connect or {}, profile.user, account)

    def one_by_one(self, event: Event) -> Iterator[Event]:
        """Yield an event, or one event for each of several publishes; trace each before it."""
        for each in _one_by_one(event):
            self._trace_event(each)
            yield each

    def dropped(self, sids: Iterable[bytes]) -> None:
        """Trace the end of subscriptions."""
        for sid in sids:
            self._trace("<->", f"[DELSUB {_plain(sid)}]")

    # --- lines ----------------------------------------------------------------------------------

    def _trace(self, arrow: str, text: str) -> None:
        self._log.trace(f"{self._address}{self._client} - {arrow} {text}")

    def _trace_event(self, event: Event) -> None:
        kind = event[0]
        if kind == protocol.PUBS:
            self._trace_publish(event)
        elif kind == protocol.SUB:
            words = [word for word in event[1:] if word]
            self._trace("<<-", f"[SUB {_plain(b' '.join(words))}]")
        elif kind == protocol.UNSUB:
            most = f" {event[2]}" if event[2] else ""
            self._trace("<<-", f"[UNSUB {_plain(event[1])}{most}]")
        elif kind == protocol.CONNECT:
            self._trace("<<-", f"[CONNECT {_without_secrets(event[1])}]")
        elif kind in _WORDS:
            self._trace("<<-", f"[{_WORDS[kind]}]")

    def _trace_publish(self, event: Event) -> None:
        _, (subject,), replies, headers, (payload,) = event
        words = [subject]
        if replies is not None and replies[0]:
            words.append(replies[0])
        block = headers[0] if headers is not None else b""
        operation = "PUB"
        if block:
            operation = "HPUB"
            words.append(b"%d" % len(block))
        words.append(b"%d" % (len(block) + len(payload)))
        self._trace("<<-", f"[{operation} {_plain(b' '.join(words))}]")
        self._trace_payload("<<-", block, payload)

    def _trace_payload(self, arrow: str, block: bytes, payload: bytes) -> None:
        if self._has_headers_only:
            shown = block.removesuffix(b"\r\n\r\n")
        else:
            shown = block + payload
        if not shown:
            return
        tail = ""
        if 0 < self._payload_max < len(shown):
            shown, tail = shown[: self._payload_max], "..."
        self._trace(arrow, f'MSG_PAYLOAD: ["{_quoted(shown)}{tail}"]')

    def _trace_output(self, data: bytes) -> None:
        """Trace whole lines and messages that are about to be sent."""
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            line = data[at:end]
            at = end + 2
            word = line.partition(b" ")[0]
            if word in (b"MSG", b"HMSG"):
                numbers = line.split(b" ")
                size = int(numbers[-1])
                block_size = int(numbers[-2]) if word == b"HMSG" else 0
                body = data[at : at + size]
                at += size + 2
                self._trace("->>", f"[{_plain(line)}]")
                self._trace_payload("->>", body[:block_size], body[block_size:])
            elif word == b"+OK":
                self._trace("->>", "[OK]")
            elif word == b"-ERR":
                self._trace("->>", f"[-ERR {_plain(line[5:].strip(bytes([39])))}]")
            elif word in (b"PING", b"PONG"):
                self._trace("->>", f"[{_plain(word)}]")


def _one_by_one(event: Event) -> Iterator[Event]:
    """Yield an event, or one event for each of several publishes."""
    if event[0] != protocol.PUBS:
        yield event
        return
    _, subjects, replies, headers, payloads = event
    for at, subject in enumerate(subjects):
        yield (
            protocol.PUBS,
            [subject],
            [replies[at]] if replies is not None and replies[at] else None,
            [headers[at]] if headers is not None and headers[at] else None,
            [payloads[at]],
        )


def _client_of(connect: ConnectOptions, user: str, account: str) -> str:
    """Return the part of a line that describes a client, once it is identified."""
    version = connect.get("version", "")
    words = [f"v{version}" if version else "", connect.get("lang", ""), connect.get("name", "")]
    named = ":".join(word for word in words if word)
    text = f' - "{_quoted(named.encode())}"' if named else ""
    is_key = user != "" and user == connect.get("nkey")  # one that was proved, not any word
    user = user or connect.get("user", "")
    if user:
        who = f"nkey:{user}" if is_key else f"user:{user}"
        text += f' - "{_quoted(f"{account}/{who}".encode())}"'
    return text


def _without_secrets(text: bytes) -> str:
    """CONNECT's JSON with nothing in it that would let somebody else in."""
    try:
        connect = json.loads(text)
    except (ValueError, RecursionError):
        return "[REDACTED]"
    if not isinstance(connect, dict):
        return "[REDACTED]"
    shown = {  # in whatever case they are written: CONNECT is read so
        key: "[REDACTED]" if key.lower() in _SECRETS else value for key, value in connect.items()
    }
    return json.dumps(shown, separators=(",", ":"), ensure_ascii=False)


def _plain(text: bytes) -> str:
    """Bytes of a protocol line as they are, but nothing that would break a log line."""
    return "".join(
        char if char.isprintable() else _escaped(char) for char in text.decode("utf-8", "replace")
    )


def _quoted(text: bytes) -> str:
    """Bytes as Go's %q shows them, without the quotes around."""
    shown = []
    for char in text.decode("utf-8", "surrogateescape"):
        if char in '"\\':
            shown.append("\\" + char)
        elif char.isprintable():
            shown.append(char)
        else:
            shown.append(_escaped(char))
    return "".join(shown)


def _escaped(char: str) -> str:
    code = ord(char)
    if char in _ESCAPES:
        return _ESCAPES[char]
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
