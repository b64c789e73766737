"""`StallDetector`: notices that the log waits for the disk, or that the whole server stood still.

Both are the same to clients: acks do not come. An operator is to hear which it was.
"""

from __future__ import annotations

from streamd import limits
from streamd.node.context import NodeContext
from streamd.node.replicas.local_groups import LocalGroups


class StallDetector:
    """Detector of one node. Every second it appends nothing to the log: that takes its turn behind
    all other appends, and costs no write, so the answer says how long an append takes."""

    def __init__(self, context: NodeContext, groups: LocalGroups) -> None:
        self._context = context
        self._groups = groups
        self._checked_ms = 0
        self._asked_ms = 0  # 0: the log has answered
        self._is_told = False
        self.wait_count = 0  # appends of its own that waited, and how long
        self.waited_ns = self.waited_ns_max = 0

    def start(self) -> None:
        """Check from now on, until the node stops."""
        self._checked_ms = self._context.env.clock.monotonic_ms()
        self._context.timers.again("slowness", limits.SLOW_LOOK_S, self._check)

    @property
    def waits_s(self) -> float:
        """Seconds for which the log has kept an append waiting by now; 0: it does not."""
        if not self._asked_ms:
            return 0.0
        return (self._context.env.clock.monotonic_ms() - self._asked_ms) / 1000

    def _check(self) -> None:
        context = self._context
        now_ms = context.env.clock.monotonic_ms()
        before_ms, self._checked_ms = self._checked_ms, now_ms
        late_s = (now_ms - before_ms) / 1000 - limits.SLOW_LOOK_S
        if late_s >= limits.SLOW_S:
            context.log.warn("the server was suspended or blocked", seconds=round(late_s, 1))
        elif self.waits_s >= limits.SLOW_S and not self._is_told:
            self._is_told = True
            context.log.warn(
                "the disk is slow: nothing is acked until the log is written",
                seconds=round(self.waits_s, 1),
                unwritten_bytes=self._groups.unwritten_bytes(),
            )
        if not self._asked_ms:
            self._asked_ms = now_ms
            context.wal.append([], self._on_answer)

    def _on_answer(self) -> None:
        waited_s, self._asked_ms = self.waits_s, 0
        waited_ns = round(waited_s * 1e9)
        if waited_ns:
            self.wait_count += 1
            self.waited_ns += waited_ns
            self.waited_ns_max = max(self.waited_ns_max, waited_ns)
        if self._is_told:
            self._is_told = False
            self._context.log.info("the log is written again", seconds=round(waited_s, 1))
