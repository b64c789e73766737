"""`FailedReplicas`: the streams that this node can't serve, why, and what the operator is told."""

from __future__ import annotations

import traceback

from streamd.errors import CorruptionError, DiskError, IncarnationError, is_passing
from streamd.node.context import NodeContext
from streamd.node.identity.store_watch import StoreWatch
from streamd.node.integrity.damage_log import DamageLog
from streamd.node.recovery.lost_copies import REBUILD, is_only_copy
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.replicas.replica_table import ReplicaTable
from streamd.types import StreamKey, Uid


class FailedReplicas:
    """Replicas of one node that had to stop, or could not be opened, by uid: another stream of the
    same name has nothing to do with it."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        table: ReplicaTable,
        store_watch: StoreWatch,
        damage_log: DamageLog,
    ) -> None:
        self._context = context
        self._groups = groups
        self._table = table
        self._store_watch = store_watch
        self._damage_log = damage_log
        self._reasons: dict[Uid, str] = {}
        self._errors: dict[Uid, BaseException] = {}
        self._paused: set[Uid] = set()  # by what passes, and not open again; the log was told

    def __contains__(self, uid: Uid) -> bool:
        return uid in self._reasons

    def by_key(self) -> dict[StreamKey, str]:
        """Return the reasons by account and name of each stream that still exists."""
        known = self._groups.meta.streams_by_uid
        return {known[uid].key: text for uid, text in self._reasons.items() if uid in known}

    def reason(self, uid: Uid) -> str:
        """Return why the stream is not served; "": it did not fail."""
        return self._reasons.get(uid, "")

    def error(self, uid: Uid) -> BaseException | None:
        """Return the error that stopped the stream, if it is not served."""
        return self._errors.get(uid) if uid in self._reasons else None

    def is_final(self, uid: Uid) -> bool:
        """True if the replica failed and is not tried again."""
        return uid in self._reasons and uid not in self._paused

    def record(self, uid: Uid, name: str, err: BaseException) -> str:
        """Record that a stream failed and tell the operator; return the reason that clients
        hear."""
        if isinstance(err, IncarnationError):
            self._damage_log.found_conflict(uid, str(err))
        reason = self._reasons[uid] = f"{type(err).__name__}: {err}"
        self._errors[uid] = err
        if str(err) == self._store_watch.reason:
            return reason  # told once, for all of them
        facts = {"where": "".join(traceback.format_exception(err)[-3:]).strip()}
        advice = self._advice(uid, err)
        if advice:
            facts["advice"] = advice
        if not (is_passing(err) and uid in self._paused):
            log = self._context.log
            log.error("stream stopped", stream=name, uid=uid, reason=str(err), **facts)
        return reason

    def record_damage(self, name: str, err: BaseException) -> None:
        """Record that a replica is damaged, and is to be made anew from its peers."""
        self._damage_log.damage_count += 1
        self._context.log.error(
            "replica is damaged, and is fetched from another server", stream=name, reason=str(err)
        )

    def _advice(self, uid: Uid, err: BaseException) -> str:
        context = self._context
        is_loss_accepted = context.accepts_loss or context.accepts_doubt
        if isinstance(err, CorruptionError) and not is_loss_accepted and self._has_only_copy(uid):
            return REBUILD
        if isinstance(err, DiskError) and not is_passing(err):
            return (
                "no write that failed is repeated: make room, or mend the disk, and restart this "
                "server"
            )
        return ""

    def _has_only_copy(self, uid: Uid) -> bool:
        asset = self._table.assets.get(uid)
        if not self._context.is_clustered:
            return True
        return asset is not None and is_only_copy(self._context, asset)

    def pause(self, uid: Uid) -> None:
        """Record that it will be tried again in a while: nothing is wrong but what passes."""
        self._paused.add(uid)

    def begin_again(self, uid: Uid) -> None:
        """Clear the failure of a replica that is being opened."""
        self._reasons.pop(uid, None)
        self._errors.pop(uid, None)

    def clear(self, uid: Uid, name: str) -> None:
        """Record that the replica is open; the log is told if it had been paused."""
        if uid in self._paused:
            self._paused.discard(uid)
            self._context.log.info("stream is open again", stream=name, uid=uid)

    def forget(self, uid: Uid) -> None:
        """Remove a replica that is gone."""
        self._reasons.pop(uid, None)
        self._errors.pop(uid, None)
        self._paused.discard(uid)
