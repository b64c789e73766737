"""Ownership of the store directory and its log: this node's own, and the log that it wrote (I12).

What `node.json` says of both (see store_directory) is compared with what is found, and brought up
to date.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from streamd.errors import ConfigError, CorruptionError
from streamd.node.context import NodeLog
from streamd.node.identity.incarnations import Incarnations
from streamd.node.identity.node_identity import NodeIdentity
from streamd.node.integrity.damage_log import DamageLog
from streamd.node.node_options import NodeOptions
from streamd.store.disk import Disk, Thread
from streamd.store.wal.wal_recovery import Expected
from streamd.store.wal.write_ahead_log import Wal


def check_name(identity: NodeIdentity, name: str, root: str) -> None:
    """Raise ConfigError if the directory is another node's: a copy of it has that node's votes
    and acks, and knows nothing of what this one promised."""
    owner = identity.facts.setdefault("name", name)
    if owner == name:
        return
    if identity.cluster_id:
        raise ConfigError(
            f"store directory {root!r} belongs to node {owner!r} of the cluster: give "
            f"{name!r} its own directory or an empty one"
        )
    identity.facts["name"] = name


def check_kind(identity: NodeIdentity, wal: Wal, root: str, *, is_clustered: bool) -> None:
    """Raise ConfigError if a single server has found a cluster's data, or a node of a cluster that
    of a single server. The log is open."""
    cluster_id = identity.cluster_id
    if cluster_id and not is_clustered:
        raise ConfigError(
            f"store directory {root!r} belongs to a node of cluster id "
            f"{cluster_id}: give this server its cluster configuration"
        )
    if is_clustered and not cluster_id and wal.groups:
        raise ConfigError(
            f"store directory {root!r} holds the data of a single server, which can't "
            "join a cluster: give this node an empty directory"
        )


class LogOwner:
    """Opens the node's log, and says whether it is the one that the node had."""

    def __init__(
        self,
        options: NodeOptions,
        root: str,
        disk: Disk,
        identity: NodeIdentity,
        incarnations: Incarnations,
        damage_log: DamageLog,
        log: NodeLog,
    ) -> None:
        self._options = options
        self._root = root
        self._disk = disk
        self._identity = identity
        self._incarnations = incarnations
        self._damage_log = damage_log
        self._log = log
        self.is_lost = False  # the log that was opened is another one than the node had

    def open(
        self,
        thread: Thread,
        helper: Thread,
        on_error: Callable[[Exception], None],
        *,
        segment_bytes: int,
        accepts_loss: bool,
    ) -> Wal:
        """Open the log. Raises CorruptionError for a single server whose log is another one,
        unless its operator accepts that."""
        options, identity, facts = self._options, self._identity, self._identity.facts
        is_known = "log_id" in facts
        tolerates_loss = options.is_clustered or accepts_loss
        expected = Expected()
        if is_known:
            expected = Expected(int(facts["log_id"], 16), facts.get("log_segment", 0))
        wal = Wal.open(
            self._disk,
            os.path.join(self._root, "wal"),
            thread,
            segment_bytes=segment_bytes,
            sync="always" if options.sync == "always" else float(options.sync),
            on_error=on_error,
            helper=helper,
            tolerate_damage=tolerates_loss,
            expected=expected,
            on_groups_lost=identity.note_groups_lost if options.is_clustered else lambda: None,
        )
        self.is_lost = is_known and facts["log_id"] != wal.log_id
        if self.is_lost and not tolerates_loss:
            raise CorruptionError(f"{self._root}/wal: log {facts['log_id']} of this store is gone")
        log_before = facts.get("log_id", "")
        # Each start begins a segment: of a copy of the log from before this start that tells.
        facts["log_segment"] = wal.segment_no
        facts["log_id"] = wal.log_id
        self._incarnations.begin()
        if self.is_lost:
            self._damage_log.found_at_start(
                f"{self._root}/wal: log {log_before} of this store is gone, and begun anew"
            )
        if not is_known or self.is_lost:
            if self.is_lost and options.is_clustered:
                facts["is_rejoined"] = True
            identity.save()
        else:
            with suppress(OSError):  # the earlier number is as true: a full disk may start
                identity.write()
        for text in wal.damage:
            self._log.warn("the log is damaged", reason=text)
        self._damage_log.damage_count += bool(wal.damage)
        return wal
