"""Who leads which group, as far as this node knows: its own groups, and what others announce."""

from __future__ import annotations

from collections.abc import Callable

from streamd import limits
from streamd.types import NodeId, Term, Uid


class Leaders:
    """A leader announces itself when it has applied all before its term, and again when it is
    over. A later term overrules an earlier one, whatever arrives first."""

    def __init__(self, name: NodeId, now_ms: Callable[[], int]) -> None:
        self._name = name
        self._now_ms = now_ms
        self._due: dict[Uid, int] = {}  # groups without a leader: until when one is expected
        self._known: dict[Uid, tuple[Term, NodeId]] = {}
        self._watchers: list[Callable[[], None]] = []

    def leader_of(self, uid: Uid) -> NodeId:
        known = self._known.get(uid)
        return known[1] if known is not None else ""

    def note_own(self, uid: Uid, term: Term, *, is_ready: bool) -> None:
        """This node began or ceased to lead."""
        self.note(self._name, uid, term, is_ready=is_ready)

    def note(self, node_id: NodeId, uid: Uid, term: Term, *, is_ready: bool) -> None:
        """`node_id` says that it leads `uid` in `term`, or does so no more."""
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
        self._tell()

    def own_term(self, uid: Uid) -> Term:
        """In which term this node leads `uid`; 0: it does not."""
        term, who = self._known.get(uid, (0, ""))
        return term if who == self._name else 0

    def own(self) -> list[tuple[Uid, Term]]:
        """What this node leads."""
        return [(uid, term) for uid, (term, who) in self._known.items() if who == self._name]

    def led_by(self, node_id: NodeId) -> list[Uid]:
        return [uid for uid, (_, who) in self._known.items() if who == node_id]

    def on_down(self, node_id: NodeId) -> None:
        """That node can't be reached: it leads nothing from here."""
        led = self.led_by(node_id)
        for uid in led:
            self._lose(uid)
        if led:
            self._tell()

    def forget(self, uid: Uid) -> None:
        """The group is gone."""
        self._known.pop(uid, None)
        self._due.pop(uid, None)

    # --- groups that will have one soon -----------------------------------------------------

    def expect(self, uid: Uid) -> None:
        """The group is new here."""
        if uid not in self._known:
            self._due[uid] = self._now_ms() + limits.PUBLISH_KEPT_MS
            self._tell()

    def _lose(self, uid: Uid) -> None:
        del self._known[uid]
        self._due[uid] = self._now_ms() + limits.PUBLISH_KEPT_MS

    def is_expected(self, uid: Uid) -> bool:
        """True if somebody leads the group, or will soon: it is new, or the last is just gone."""
        return uid in self._known or self._due.get(uid, 0) > self._now_ms()

    def has_expected(self) -> bool:
        """True if there are groups without a leader that had one a moment ago, or are new."""
        return bool(self._due)

    def settle_expected(self) -> bool:
        """Forget groups for which no leader is expected any more; True if there were any."""
        now_ms = self._now_ms()
        over = [uid for uid, until_ms in self._due.items() if until_ms <= now_ms]
        for uid in over:
            del self._due[uid]
        return bool(over)

    def watch(self, on_change: Callable[[], None]) -> None:
        self._watchers.append(on_change)

    def _tell(self) -> None:
        for on_change in self._watchers:
            on_change()
