"""The server's own time zone, for windows of time without a location."""

from __future__ import annotations

from datetime import datetime, tzinfo


def local_zone() -> tzinfo:
    """Return the zone that holds now."""
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    return zone
