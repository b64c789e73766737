"""`Leaders`: which node leads which group, by this node's own groups and what others announce."""

from __future__ import annotations

from collections.abc import Callable

from streamd import limits
from streamd.types import NodeId, Term, Uid


class Leaders:
    """Table of leaders as one node knows them. On a single server every group is its own.

    A leader announces itself when it has applied all before its term, and again when it leads no
    more. A later term overrules an earlier one, whatever arrives first.
    """

    def __init__(
        self, name: NodeId, now_ms: Callable[[], int], *, is_clustered: bool = True
    ) -> None:
        self._name = name
        self._is_clustered = is_clustered
        self._now_ms = now_ms
        self._due: dict[Uid, int] = {}  # groups without a leader: until when one is expected
        self._known: dict[Uid, tuple[Term, NodeId]] = {}
        self._watchers: list[Callable[[], None]] = []

    def leader_of(self, uid: Uid) -> NodeId:
        """Return the node that leads a group; empty: none, as far as is known here."""
        if not self._is_clustered:
            return self._name
        known = self._known.get(uid)
        return known[1] if known is not None else ""

    def record_own(self, uid: Uid, term: Term, *, is_ready: bool) -> None:
        """Record that this node began or ceased to lead."""
        self.record(self._name, uid, term, is_ready=is_ready)

    def record(self, node_id: NodeId, uid: Uid, term: Term, *, is_ready: bool) -> None:
        """Record that `node_id` leads `uid` in `term`, or does so no more."""
        known = self._known.get(uid)
        if is_ready:
            if known is not None and known[0] > term:
                return
            if known == (term, node_id):
                return
            self._known[uid] = (term, node_id)
            self._due.pop(uid, None)
        elif known is not None and known[1] == node_id and known[0] <= term:
            self._lose(uid)
        else:
            return
        self._notify()

    def own_term(self, uid: Uid) -> Term:
        """Return the term in which this node leads `uid`; 0: it does not."""
        term, who = self._known.get(uid, (0, ""))
        return term if who == self._name else 0

    def own(self) -> list[tuple[Uid, Term]]:
        """Return the groups that this node leads, each with its term."""
        return [(uid, term) for uid, (term, who) in self._known.items() if who == self._name]

    def led_by(self, node_id: NodeId) -> list[Uid]:
        """Return the groups that `node_id` leads."""
        return [uid for uid, (_, who) in self._known.items() if who == node_id]

    def on_down(self, node_id: NodeId) -> None:
        """Record that a node can't be reached: it leads nothing from here."""
        led = self.led_by(node_id)
        for uid in led:
            self._lose(uid)
        if led:
            self._notify()

    def forget(self, uid: Uid) -> None:
        """Remove a group that is gone."""
        self._known.pop(uid, None)
        self._due.pop(uid, None)

    # --- groups that will have one soon -----------------------------------------------------

    def expect(self, uid: Uid) -> None:
        """Expect a leader for a group that is new here."""
        if uid not in self._known:
            self._due[uid] = self._now_ms() + limits.PUBLISH_KEPT_MS
            self._notify()

    def _lose(self, uid: Uid) -> None:
        del self._known[uid]
        self._due[uid] = self._now_ms() + limits.PUBLISH_KEPT_MS

    def is_expected(self, uid: Uid) -> bool:
        """True if the group has a leader, or will soon: it is new, or its leader has just gone."""
        return uid in self._known or self._due.get(uid, 0) > self._now_ms()

    def has_expected(self) -> bool:
        """True if there are groups without a leader that had one a moment ago, or are new."""
        return bool(self._due)

    def expire_expected(self) -> bool:
        """Forget groups for which no leader is expected any more; True if there were any."""
        now_ms = self._now_ms()
        over = [uid for uid, until_ms in self._due.items() if until_ms <= now_ms]
        for uid in over:
            del self._due[uid]
        return bool(over)

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever a leader that is known here changes."""
        self._watchers.append(on_change)

    def _notify(self) -> None:
        for on_change in self._watchers:
            on_change()
