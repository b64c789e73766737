"""`GroupControl`: the verbs that stop, reopen and repair this node's member of any group.

Integrity checks and catch-up need them of the meta group and of streams alike, and are themselves
used by both; so the node binds the two ends once both exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from streamd.node.replicas.replica_table import ReplicaTable
from streamd.types import META_UID, Uid


class MetaControl(Protocol):
    """The meta group's member: meta_group/meta_member.py."""

    def restart_damaged(self) -> None: ...

    def close(self, done: Callable[[], None]) -> None: ...

    def open_again(self) -> None: ...

    def on_install_failed(self, err: BaseException) -> None: ...


class ReplicaControl(Protocol):
    """The replicas of streams: replicas/replica_set.py."""

    def repair(self, uid: Uid, reason: str, *, is_log_void: bool) -> None: ...

    def stop_serving(self, uid: Uid, reason: str) -> None: ...

    def close_live(self, uid: Uid, done: Callable[[], None]) -> None: ...

    def open_again(self, uid: Uid) -> None: ...

    def not_opened(self, uid: Uid, err: BaseException) -> None: ...

    def reopen(self, uid: Uid) -> None: ...

    def fail_all(self, err: BaseException) -> None: ...


class GroupControl:
    """Passes each verb on to the meta group's member or to the replica set."""

    def __init__(self, table: ReplicaTable) -> None:
        self._table = table
        self._meta: MetaControl | None = None
        self._replicas: ReplicaControl | None = None

    def bind(self, meta: MetaControl, replicas: ReplicaControl) -> None:
        """Name the two ends; before any verb is used."""
        self._meta, self._replicas = meta, replicas

    def repair(self, uid: Uid, reason: str, *, is_log_void: bool = False) -> None:
        """Make a wrong member anew: it stops serving, and its files are set aside.

        `is_log_void`: its log is wrong as well, so it must not answer for what it once acked.
        """
        assert self._meta is not None and self._replicas is not None, uid
        self._table.reasons[uid] = reason
        self._table.renewed_count += 1
        if uid == META_UID:
            self._meta.restart_damaged()
        else:
            self._replicas.repair(uid, reason, is_log_void=is_log_void)

    def stop_serving(self, uid: Uid, reason: str) -> None:
        """Stop a member that may or may not be right, until an operator looks."""
        assert self._replicas is not None, uid
        self._table.reasons[uid] = reason
        self._replicas.stop_serving(uid, reason)

    def close(self, uid: Uid, done: Callable[[], None]) -> None:
        """Stop a member and close its files, to be opened again; then call `done`."""
        assert self._meta is not None and self._replicas is not None, uid
        if uid == META_UID:
            self._meta.close(done)
        else:
            self._replicas.close_live(uid, done)

    def open_again(self, uid: Uid) -> None:
        """Open a member that was closed, from what is on disk now."""
        assert self._meta is not None and self._replicas is not None, uid
        if uid == META_UID:
            self._meta.open_again()
        else:
            self._replicas.open_again(uid)

    def not_opened(self, uid: Uid, err: BaseException) -> None:
        """Report that a closed member can't be opened, for now or for good."""
        assert self._meta is not None and self._replicas is not None, uid
        if uid == META_UID:
            self._meta.on_install_failed(err)
        else:
            self._replicas.not_opened(uid, err)

    def reopen(self, uid: Uid) -> None:
        """Stop a stream's replica, and open it again from what is on disk."""
        assert self._replicas is not None, uid
        self._replicas.reopen(uid)

    def fail_all(self, err: BaseException) -> None:
        """Stop serving all streams on this node."""
        assert self._replicas is not None
        self._replicas.fail_all(err)
