"""JSON objects that clients wrote: of any length and depth, and none of them an error."""

from __future__ import annotations

import json

from streamd.limits import DASHBOARD_PAYLOAD_BYTES
from streamd.types import Document


def read_object(payload: bytes) -> Document | None:
    """Return the object that a payload is; None: it is none, or is longer than is looked at."""
    if len(payload) > DASHBOARD_PAYLOAD_BYTES:
        return None
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
