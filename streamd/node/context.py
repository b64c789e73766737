"""`NodeContext`: the record of what every part of a node needs, made once its log is open.

A part gets the context and, by name, the collaborators that it uses besides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from streamd.callbacks import ignore
from streamd.node.env import NodeEnv, NodeThread
from streamd.node.identity.node_identity import NodeIdentity
from streamd.node.node_options import NodeOptions
from streamd.node.ports import OnMetaEvent, OnStreamEvent
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.node.timers import Timers
from streamd.store.wal.write_ahead_log import Wal
from streamd.types import NodeId, StorageLimit


class LogSink(Protocol):
    """The server's log: obs/server_log.py."""

    def info(self, text: str, **fields: object) -> None: ...

    def warning(self, text: str, **fields: object) -> None: ...

    def error(self, text: str, **fields: object) -> None: ...


class NodeLog:
    """Writes to the server's log, if there is one."""

    def __init__(self, sink: LogSink | None) -> None:
        self._sink = sink

    def info(self, text: str, **facts: object) -> None:
        """Log a change of state that an operator acts on."""
        if self._sink is not None:
            self._sink.info(text, **facts)

    def warn(self, text: str, **facts: object) -> None:
        """Log that something is degraded."""
        if self._sink is not None:
            self._sink.warning(text, **facts)

    def error(self, text: str, **facts: object) -> None:
        """Log that a group, or the node, stopped or lost something."""
        if self._sink is not None:
            self._sink.error(text, **facts)


class NodeLife:
    """Stage of a node's life."""

    def __init__(self) -> None:
        self.is_running = False  # from when the log is open until the last file is closed
        self.is_stopping = False  # from when the node was told to stop
        self.is_removed = False  # this server was removed from the cluster for good
        # Ends a node that can't go on: its process stops it.
        self.give_up: Callable[[BaseException], None] = ignore


StorageLimitOf = Callable[[str, bool, int], StorageLimit | None]
"""(account, in files, replicas): what such streams of the account may store; None: any number of
bytes."""


def no_storage_limit(_account: str, _is_file: bool, _replicas: int) -> StorageLimit | None:
    """Return no limit: nobody says what accounts may store."""
    return None


class NodeHooks:
    """Callbacks that the rooms above give to the node; each may come before its start."""

    def __init__(self) -> None:
        self.on_stream_event: OnStreamEvent | None = None
        self.on_meta_event: OnMetaEvent | None = None
        self.on_store_gone: Callable[[], None] = lambda: None
        self.storage_limit: StorageLimitOf = no_storage_limit
        self.has_requests: Callable[[], bool] = lambda: False
        self.leader_watchers: list[Callable[[], None]] = []

    def on_leaders(self) -> None:
        """Tell the rooms above that a leader has changed that is known here."""
        for on_change in self.leader_watchers:
            on_change()

    def announce(self, replica: LocalStream, kind: str, fields: dict[str, object]) -> None:
        """Tell the rooms above of an event that this node, as a stream's leader, has seen."""
        if self.on_stream_event is not None:
            self.on_stream_event(replica, kind, fields)


@dataclass(frozen=True, slots=True)
class NodeContext:
    """Record without behaviour. `accepts_loss` and `accepts_doubt` hold for this start: the
    operator accepts the loss of what a single server has lost, or of what a recovering voter may
    have had."""

    name: NodeId
    root: str  # the store directory
    options: NodeOptions
    env: NodeEnv
    wal: Wal
    block_thread: NodeThread
    identity: NodeIdentity
    log: NodeLog
    timers: Timers
    life: NodeLife
    hooks: NodeHooks
    is_clustered: bool
    accepts_loss: bool
    accepts_doubt: bool
