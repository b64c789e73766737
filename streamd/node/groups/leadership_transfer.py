"""`LeadershipTransfer`: a node that stops gives away what it leads; clients are served until then.

A group whose other members do not vote yet first gets on with the change that makes them voters:
to leave before would leave a whole copy behind that cannot lead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import starmap

from streamd import limits
from streamd.errors import JsError
from streamd.node.cluster.leaders import Leaders
from streamd.node.cluster.reconfiguration import Reconfiguration
from streamd.node.context import NodeContext
from streamd.node.groups.monitor import Timer
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.stream_groups.publish_forwarding import PublishForwarding
from streamd.types import META_UID, Index, Uid


class LeadershipTransfer:
    """Transfer at one stop. `done` is called when all is given away, or when that takes too
    long."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        leaders: Leaders,
        reconfiguration: Reconfiguration,
        forwarding: PublishForwarding,
        done: Callable[[], None],
    ) -> None:
        self._context = context
        self._groups = groups
        self._leaders = leaders
        self._reconfiguration = reconfiguration
        self._forwarding = forwarding
        self._done = done
        self._asked: set[Uid] = set()  # groups that were asked to transfer their leadership
        self._begun: dict[Uid, Index] = {}  # those that have answered: how far their logs went
        self._early: set[Uid] = set()  # asked for too early: again at the next look
        self._quiet_checks = 0
        self._is_over = False
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Give away all that this node leads."""
        led = self._led()
        if not self._context.is_clustered or not led:
            self._done()
            return
        loop = self._context.env.loop
        self._timer = loop.call_later(limits.STEP_DOWN_AT_STOP_S, self._finish)
        self._hand(led)
        self._check()

    def _led(self) -> list[Uid]:
        """Return the groups to be given away: also those that it was elected for just now, or that
        others are only about to join."""
        uids = (META_UID, *(replica.uid for replica in self._groups))
        return [uid for uid in uids if self._leads_with_others(uid)]

    def _hand(self, uids: list[Uid]) -> None:
        for uid in uids:
            self._asked.add(uid)
            self._groups.step_down(uid, "", partial(self._on_handed, uid))

    def _check(self) -> None:
        """Check whether all is quiet: requests of this node's clients go to the new leaders. What
        others sent before they heard of that may still be on its way: it is given back, or passed
        on."""
        if self._is_over:
            return
        early, self._early = self._early, set()
        for uid in early:
            self._reconfiguration.carry_on(uid)
        self._hand([uid for uid in early if self._leads_with_others(uid)])
        self._quiet_checks = self._quiet_checks + 1 if self._is_quiet() else 0
        if self._quiet_checks > limits.HAND_OVER_QUIET_LOOKS:
            self._finish()
        else:
            self._context.env.loop.call_later(limits.HAND_OVER_LOOK_S, self._check)

    def _is_quiet(self) -> bool:
        if len(self._begun) < len(self._asked) or self._forwarding.kept_bytes:
            return False
        if self._context.hooks.has_requests() or not all(
            starmap(self._has_passed_on, self._begun.items())
        ):
            return False
        more = [uid for uid in self._led() if uid not in self._asked]
        self._hand(more)
        return not more

    def _on_handed(self, uid: Uid, outcome: object) -> None:
        if isinstance(outcome, JsError) and self._reconfiguration.is_under_way(uid):
            self._asked.discard(uid)
            self._early.add(uid)  # no other member can lead yet
            return
        group = self._groups.group_of(uid)
        self._begun[uid] = 0 if group is None else group.raft.log.last_index

    def _finish(self) -> None:
        if not self._is_over:
            self._is_over = True
            if self._timer is not None:
                self._timer.cancel()
            self._done()

    def _has_passed_on(self, uid: Uid, begun: Index) -> bool:
        """True if another node leads the group, and this one knows what became of the entries up
        to `begun`, which it began itself."""
        group = self._groups.group_of(uid)
        if group is None or group.failure:
            return True
        leader = self._leaders.leader_of(uid)
        is_led = leader not in ("", self._context.name)
        return is_led and group.machine.applied >= begun

    def _leads_with_others(self, uid: Uid) -> bool:
        group = self._groups.group_of(uid)
        return (
            group is not None
            and not group.failure
            and group.raft.is_leader
            and (not group.raft.log.is_sole or self._reconfiguration.is_under_way(uid))
        )
