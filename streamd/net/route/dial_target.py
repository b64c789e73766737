"""Dial target: the address of another server that this one dials."""

from __future__ import annotations

import asyncio

from streamd.config.cluster_options import RouteUrl
from streamd.types import NodeId


class DialTarget:
    """Address to dial, from the configuration or told by another server.

    `name` is empty until the server behind the address has said its name.
    """

    def __init__(self, url: RouteUrl, *, name: NodeId = "", is_explicit: bool) -> None:
        self.url = url
        self.name = name
        self.is_explicit = is_explicit  # configured here
        self.is_self = False  # leads back to this server
        self.is_dropped = False
        self.is_failing = False
        self.tries = 0
        self.wake = asyncio.Event()  # something changed that the dialer should look at

    @property
    def address(self) -> str:
        return self.url.address
