"""Streams that this node can't serve: why, and what the operator is told of it."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from streamd.errors import CorruptionError, DiskError, is_passing
from streamd.node.recovery.lost_copies import REBUILD
from streamd.types import Uid

if TYPE_CHECKING:
    from streamd.node.local_node import Node


class Failures:
    """One node's replicas that had to stop, or could not be opened, by uid: another stream of the
    same name has nothing to do with it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._reasons: dict[Uid, str] = {}
        self._errors: dict[Uid, BaseException] = {}
        self._paused: set[Uid] = set()  # by what passes, and not open again; the log was told

    def __contains__(self, uid: Uid) -> bool:
        return uid in self._reasons

    def by_name(self) -> dict[str, str]:
        """Why, by the name of each stream that there still is."""
        known = self._node.meta.streams_by_uid
        return {known[uid].name: text for uid, text in self._reasons.items() if uid in known}

    def reason(self, uid: Uid) -> str:
        """Why the stream is not served; "": it did not fail."""
        return self._reasons.get(uid, "")

    def error(self, uid: Uid) -> BaseException | None:
        """What stopped the stream, if it is not served."""
        return self._errors.get(uid) if uid in self._reasons else None

    def is_final(self, uid: Uid) -> bool:
        """True if it failed and nobody tries again."""
        return uid in self._reasons and uid not in self._paused

    def note(self, uid: Uid, name: str, err: BaseException) -> str:
        """The stream failed; tells the operator, and returns the reason that clients hear."""
        reason = self._reasons[uid] = f"{type(err).__name__}: {err}"
        self._errors[uid] = err
        if str(err) == self._node.store_watch.reason:
            return reason  # told once, for all of them
        facts = {"where": "".join(traceback.format_exception(err)[-3:]).strip()}
        advice = self._advice(uid, err)
        if advice:
            facts["advice"] = advice
        if not (is_passing(err) and uid in self._paused):
            self._node.error("stream stopped", stream=name, uid=uid, reason=str(err), **facts)
        return reason

    def _advice(self, uid: Uid, err: BaseException) -> str:
        node = self._node
        is_given_up = node.accepts_loss or node.accepts_doubt
        if isinstance(err, CorruptionError) and not is_given_up and self._has_only_copy(uid):
            return REBUILD
        if isinstance(err, DiskError) and not is_passing(err):
            return (
                "no write that failed is repeated: make room, or mend the disk, and restart this "
                "server"
            )
        return ""

    def _has_only_copy(self, uid: Uid) -> bool:
        node = self._node
        asset = node.replicas.asset(uid)
        return not node.is_clustered or (asset is not None and node.lost_copies.is_only(asset))

    def pause(self, uid: Uid) -> None:
        """It will be tried again in a while: nothing is wrong but what passes."""
        self._paused.add(uid)

    def begin_again(self, uid: Uid) -> None:
        """The replica is being opened."""
        self._reasons.pop(uid, None)
        self._errors.pop(uid, None)

    def over(self, uid: Uid, name: str) -> None:
        """The replica is open."""
        if uid in self._paused:
            self._paused.discard(uid)
            self._node.info("stream is open again", stream=name, uid=uid)

    def forget(self, uid: Uid) -> None:
        """The replica is gone."""
        self._reasons.pop(uid, None)
        self._errors.pop(uid, None)
        self._paused.discard(uid)
