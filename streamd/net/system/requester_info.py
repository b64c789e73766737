"""`Nats-Request-Info`: what a service import says of the client whose request it passes on."""

from __future__ import annotations

import json
from typing import Final

from streamd.machine.message_headers import get
from streamd.net.monitoring.sliced_pages import Document

_HEADER: Final = b"Nats-Request-Info"


def request_info(headers: bytes) -> Document:
    """Return the description of the client that asked; empty: it asked in the system account."""
    text = get(headers, _HEADER) if headers else None
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
