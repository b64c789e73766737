"""Description of a server: the `server` object of its answers and events."""

from __future__ import annotations

import time
from typing import Final

from streamd import NATS_LEVEL
from streamd.config.options import Options
from streamd.machine.rfc3339 import format_ns
from streamd.net.monitoring.documents import FEATURE_FLAGS
from streamd.net.monitoring.sliced_pages import Document

_HAS_JETSTREAM: Final = 1  # the one of nats-server's capability flags that says something here


class ServerDescription:
    """Describes this server; each description that leaves has a number and a time of its own."""

    def __init__(
        self, options: Options, *, server_id: str, server_name: str, has_jetstream: bool
    ) -> None:
        self.server_id = server_id
        self.server_name = server_name
        self._has_jetstream = has_jetstream
        self._count = 0
        self.change(options)

    def change(self, options: Options) -> None:
        """Describe a configuration that was read again."""
        self.host = options.host or "0.0.0.0"
        cluster = options.cluster
        self.cluster = cluster.name if cluster.is_enabled else ""
        self.domain = options.jetstream.domain if self._has_jetstream else ""
        self.tags = tuple(tag.lower() for tag in options.server_tags)
        optional = {
            "cluster": self.cluster,
            "domain": self.domain,
            "ver": NATS_LEVEL,
            "tags": list(self.tags),
            "metadata": options.server_metadata,
        }
        self._lasting: Document = {
            **self.identity(),
            **{key: value for key, value in optional.items() if value},
            "feature_flags": dict(FEATURE_FLAGS),
            "jetstream": self._has_jetstream,
            "flags": _HAS_JETSTREAM if self._has_jetstream else 0,
        }

    def identity(self) -> Document:
        """Return name, host and id alone."""
        return {"name": self.server_name, "host": self.host, "id": self.server_id}

    def for_services(self) -> Document:
        """Return how a service that decides on logins knows this server."""
        return {
            **self.identity(),
            "version": NATS_LEVEL,
            "cluster": self.cluster,
            "tags": list(self.tags),
        }

    def next(self) -> Document:
        """Return the description for the next message that leaves."""
        self._count += 1
        return self._lasting | {"seq": self._count, "time": format_ns(time.time_ns())}
