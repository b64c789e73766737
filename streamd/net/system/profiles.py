"""PROFILEZ: profiles of the process.

nats-server has those of Go's runtime, in a format for Go's tools. Of them `goroutine` means
something here, as text: where each thread and task is. The others are known by name, so that the
answer says that they are not to be had, and not that they do not exist.
"""

from __future__ import annotations

import base64
from typing import Final

from streamd.net.monitoring.query import Query
from streamd.net.monitoring.sliced_pages import Document, Steps
from streamd.net.monitoring.stacks import stacks

_STACKS: Final = "goroutine"
_OF_GO: Final = ("allocs", "block", "cpu", "heap", "mutex", "threadcreate")


def profile(query: Query) -> Steps[Document]:
    """Build the answer: `profile` in base64, or `error`."""
    name = query.get("name", "")
    if name == _STACKS:
        text = yield from stacks()
        data = base64.b64encode(text.encode(errors="replace")).decode()
        return {"profile": data, "error": ""}
    fault = "Profile name not specified"
    if name in _OF_GO:
        fault = f'Profile "{name}" is of the Go runtime and not served by this server'
    elif name:
        fault = f'Profile "{name}" not found'
    return {"profile": None, "error": fault}
