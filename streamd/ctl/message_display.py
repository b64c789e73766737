"""Messages as they are shown: a line about each, its headers, its payload."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from streamd.ctl.display import clean
from streamd.ctl.quantities import clock_text, size_text

_BLANK = b"NATS/1.0"


class Shown(NamedTuple):
    """A message to show. Sequence 0 and time "": it was never stored."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]
    seq: int = 0
    time: str = ""
    reply: str = ""


def stored_message(message: Mapping[str, Any]) -> Shown:
    """Return a message as `STREAM.MSG.GET` answers it."""
    return Shown(
        message["subject"],
        base64.b64decode(message.get("data") or ""),
        parse_headers(base64.b64decode(message.get("hdrs") or "")),
        message["seq"],
        message["time"],
    )


def parse_headers(block: bytes) -> dict[str, str]:
    """Return headers by name; values of one name have commas between them."""
    found: dict[str, str] = {}
    for line in block.split(b"\r\n"):
        name, colon, value = line.decode("utf-8", "replace").partition(":")
        if colon and not line.startswith(_BLANK):
            value = value.strip()
            found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def as_document(message: Shown) -> dict[str, Any]:
    """Return a message for programs: `data` is text, or `data_base64` where it is no UTF-8."""
    made: dict[str, Any] = {"subject": message.subject}
    if message.seq:
        made |= {"seq": message.seq, "time": message.time}
    if message.reply:
        made["reply"] = message.reply
    made["headers"] = dict(message.headers)
    try:
        made["data"] = message.payload.decode()
    except UnicodeDecodeError:
        made["data_base64"] = base64.b64encode(message.payload).decode()
    return made


def as_text(message: Shown, *, is_pretty: bool = True) -> str:
    """Return a message for people, its payload laid out if that is JSON."""
    parts = [f"[{message.seq}]"] if message.seq else []
    parts.append(message.subject)
    if message.time:
        parts.append(clock_text(message.time))
    if message.reply:
        parts.append(f"reply {message.reply}")
    parts.append(size_text(len(message.payload)))
    lines = ["  ".join(parts)]
    lines += [f"  {name}: {value}" for name, value in message.headers.items()]
    return "\n".join(map(clean, [*lines, *payload_lines(message.payload, is_pretty=is_pretty)]))


def payload_lines(payload: bytes, *, is_pretty: bool = True) -> list[str]:
    """Return the lines of a payload: JSON laid out, other text as it is, else hexadecimal."""
    if not payload:
        return []
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return _hexadecimal(payload)
    if is_pretty and text.lstrip()[:1] in ("{", "["):
        try:
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except ValueError:
            return text.splitlines()
    return text.splitlines()


def _hexadecimal(payload: bytes) -> list[str]:
    lines = []
    for at in range(0, len(payload), 16):
        piece = payload[at : at + 16]
        seen = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{at:08x}  {piece.hex(' '):<47}  {seen}")
    return lines
