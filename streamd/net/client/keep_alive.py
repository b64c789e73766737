"""Keep-alive of one client connection: the server's own PINGs, and the round-trip time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

from streamd.net.client.auth import ClientPolicy
from streamd.net.client.profile import ClientProfile, after_end

_FIRST_PING_S: Final = 2.0  # after CONNECT, so that the round-trip time is known soon


class KeepAlive:
    """Sends a PING to a client that is silent, and reports one that answers too few of them."""

    __slots__ = (
        "_has_rtt",
        "_heard_ns",
        "_is_closed",
        "_loop",
        "_on_stale",
        "_policy",
        "_profile",
        "_send_ping",
        "_sent_at_s",
        "_timer",
        "_unanswered_count",
    )

    def __init__(
        self,
        policy: ClientPolicy,
        profile: ClientProfile,
        loop: asyncio.AbstractEventLoop,
        *,
        heard_ns: Callable[[], int],
        send_ping: Callable[[], None],
        on_stale: Callable[[], None],
    ) -> None:
        """`heard_ns` returns when the client last sent anything."""
        self._policy = policy
        self._profile = profile
        self._loop = loop
        self._heard_ns = heard_ns
        self._send_ping = send_ping
        self._on_stale = on_stale
        self._timer: asyncio.TimerHandle | None = None
        self._unanswered_count = 0
        self._sent_at_s = 0.0  # time of the PING that is not answered yet; 0: all are
        self._has_rtt = False
        self._is_closed = False

    def start(self) -> None:
        """Send the first PING after one interval: the connection is new."""
        self._arm(self._policy.options.ping_interval_ns / 1e9)

    def on_identified(self) -> None:
        """Send the next PING soon, not in step with other clients that connected together."""
        interval_s = min(_FIRST_PING_S, self._policy.options.ping_interval_ns / 1e9)
        self._arm(interval_s * (1 + 0.2 * random.random()))

    def on_pong(self) -> None:
        """Note an answer of the client."""
        self._unanswered_count = 0
        if self._sent_at_s:
            self._profile.rtt_ns = int((self._loop.time() - self._sent_at_s) * 1e9)
            self._sent_at_s = 0.0
            self._has_rtt = True

    def close(self) -> None:
        """Send no more PINGs, and let go of the connection."""
        self._is_closed = True
        self._disarm()
        self._heard_ns = time.time_ns
        self._send_ping = self._on_stale = after_end

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, after_s: float) -> None:
        self._disarm()
        if self._policy.options.ping_interval_ns > 0 and not self._is_closed:
            self._timer = self._loop.call_later(after_s, self._on_due)

    def _on_due(self) -> None:
        self._timer = None
        options = self._policy.options
        silent_ns = time.time_ns() - self._heard_ns()
        if not self._has_rtt or silent_ns >= options.ping_interval_ns:
            if self._unanswered_count + 1 > options.ping_max:
                self._on_stale()
                return
            self._unanswered_count += 1
            self._sent_at_s = self._loop.time()
            self._send_ping()
        self._arm(options.ping_interval_ns / 1e9)
