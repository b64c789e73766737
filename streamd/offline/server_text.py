"""Times and message headers as the server reads them; free of its storage code, so that tasks which
only talk to a server load little.
"""

from __future__ import annotations

from streamd.machine import message_headers, rfc3339
from streamd.machine.message_headers import get as header_of
from streamd.machine.rfc3339 import UNSET, parse_ns

__all__ = [
    "UNSET",
    "header_of",
    "message_headers",
    "parse_ns",
    "rfc3339",
]
