"""Notices that the log waits for the disk, or that the whole server stood still, and says so.

Both look the same to clients: acks do not come. An operator is to hear which it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamd import limits

if TYPE_CHECKING:
    from streamd.node.local_node import Node


class Slowness:
    """One node's. It asks the log every second how long an append would take, with one of nothing:
    that takes its turn behind all others, and costs no write."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._looked_ms = 0
        self._asked_ms = 0  # 0: the log has answered
        self._is_told = False
        self.wait_count = 0  # appends of its own that waited, and how long
        self.waited_ns = self.waited_ns_max = 0

    def start(self) -> None:
        """Look from now on, until the node stops."""
        self._looked_ms = self._node.env.clock.monotonic_ms()
        self._node.timers.again("slowness", limits.SLOW_LOOK_S, self._look)

    @property
    def waits_s(self) -> float:
        """How long the log has kept an append waiting by now; 0: it does not."""
        if not self._asked_ms:
            return 0.0
        return (self._node.env.clock.monotonic_ms() - self._asked_ms) / 1000

    def _look(self) -> None:
        node = self._node
        now_ms = node.env.clock.monotonic_ms()
        before_ms, self._looked_ms = self._looked_ms, now_ms
        late_s = (now_ms - before_ms) / 1000 - limits.SLOW_LOOK_S
        if late_s >= limits.SLOW_S:
            node.warn("the server stood still", seconds=round(late_s, 1))
        elif self.waits_s >= limits.SLOW_S and not self._is_told:
            self._is_told = True
            unwritten = sum(each.store.unwritten_bytes for each in node.replicas if each.is_file)
            node.warn(
                "the disk is slow: nothing is acked until the log is written",
                seconds=round(self.waits_s, 1),
                unwritten_bytes=unwritten,
            )
        if not self._asked_ms:
            self._asked_ms = now_ms
            node.wal.append([], self._answered)

    def _answered(self) -> None:
        waited_s, self._asked_ms = self.waits_s, 0
        waited_ns = round(waited_s * 1e9)
        if waited_ns:
            self.wait_count += 1
            self.waited_ns += waited_ns
            self.waited_ns_max = max(self.waited_ns_max, waited_ns)
        if self._is_told:
            self._is_told = False
            self._node.info("the log is written again", seconds=round(waited_s, 1))
