"""Storage that the limits of accounts leave: what their streams hold, over the whole cluster.

A stream's leader asks for the room of each batch before it proposes it, and writes into the log
entry what it was told if that is less than the batch needs: every replica then stores and refuses
the same messages. The room is what the limit leaves of

* streams that have a replica here: as applied here, and what was proposed here and is not applied;
* other streams: what their leaders said last, every `limits.ACCOUNT_STORAGE_TOLD_S` if it changed.

So an account may exceed its limit by what other nodes' leaders store between two notes. Each
replica counts, as it does for nats-server; in a tier (`R3`) each stream counts once.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from streamd import limits
from streamd.machine.meta import StreamAsset
from streamd.machine.streams.stream import StreamMachine
from streamd.node.context import NodeContext
from streamd.node.ports import Peers
from streamd.node.replicas.local_groups import LocalGroups
from streamd.types import Index, NodeId, StorageLimit, Uid


class Pool(NamedTuple):
    """Streams whose bytes are limited together."""

    account: str
    is_file: bool
    replicas: int


class AccountStorage:
    """Bytes stored by the streams of each account, as one node knows them."""

    def __init__(self, context: NodeContext, groups: LocalGroups, peers: Peers | None) -> None:
        self._context = context
        self._groups = groups
        self._peers = peers
        self._counted: dict[Uid, tuple[Pool, int]] = {}  # bytes of one replica
        self._totals: defaultdict[Pool, int] = defaultdict(int)
        self._by_account: defaultdict[str, set[int]] = defaultdict(set)  # numbers of replicas
        self._shares: dict[Uid, ReplicaShare] = {}  # of the streams that are here
        self._told: dict[Uid, int] = {}  # what leaders on other nodes said
        self._pruned_at: Index = 0  # of the meta group
        self._uncounted: set[Uid] = set()  # have changed since the totals were made
        self._untold: set[Uid] = set()  # are led here; other nodes do not know it yet

    # --- streams that are here ----------------------------------------------------------------

    def share_of(self, asset: StreamAsset, machine: StreamMachine) -> ReplicaShare:
        """Return the share of a replica that is being opened; it takes the place of another."""
        share = self._shares[asset.uid] = ReplicaShare(self, asset, machine)
        self._uncounted.add(asset.uid)
        return share

    def forget(self, uid: Uid) -> None:
        """Count a replica no more: it is closed. What its leader says of the stream counts on."""
        self._shares.pop(uid, None)
        self._uncounted.discard(uid)
        self._untold.discard(uid)
        self._count_told(uid)

    def mark_changed(self, uid: Uid, *, is_leading: bool) -> None:
        """Note that a stream that is here holds more, or less. One that is closed is not here."""
        if uid not in self._shares:
            return
        self._uncounted.add(uid)
        if is_leading and self._peers is not None:
            self._untold.add(uid)

    def _count(self, uid: Uid, pool: Pool, byte_count: int) -> None:
        """Record the bytes of one replica of a stream."""
        self._drop(uid)
        self._counted[uid] = pool, byte_count
        self._totals[pool] += byte_count
        self._by_account[pool.account].add(pool.replicas)

    def _drop(self, uid: Uid) -> None:
        counted = self._counted.pop(uid, None)
        if counted is not None:
            self._totals[counted[0]] -= counted[1]

    # --- what is left -------------------------------------------------------------------------

    def room(self, pool: Pool, wanted: int = 0) -> int | None:
        """Return how many bytes more a stream of this pool may store; None: there is no limit.
        If that is less than `wanted`, streams that are gone by now were not counted."""
        limit = self._limit(pool)
        if limit is None:
            return None
        self._count_changed()
        left = self._left(pool, limit)
        applied = self._groups.meta.applied
        if left < wanted and self._pruned_at != applied:
            self._pruned_at = applied
            self._recount_told()
            left = self._left(pool, limit)
        return max(0, left)

    def _count_changed(self) -> None:
        uncounted, self._uncounted = self._uncounted, set()
        for uid in uncounted:
            share = self._shares.get(uid)
            if share is not None:
                self._count(uid, share.pool, share.byte_count)

    def _limit(self, pool: Pool) -> StorageLimit | None:
        return self._context.hooks.storage_limit(*pool)

    def _left(self, pool: Pool, limit: StorageLimit) -> int:
        if limit.is_of_tier:
            return limit.byte_count - self._totals[pool]
        counts = sorted(self._by_account[pool.account])
        used = sum(self._totals[pool._replace(replicas=count)] * count for count in counts)
        return (limit.byte_count - used) // pool.replicas

    # --- what nodes tell each other -----------------------------------------------------------

    def start(self) -> None:
        """Begin to tell other nodes, again and again."""
        timers = self._context.timers
        timers.again("account storage", limits.ACCOUNT_STORAGE_TOLD_S, self.tell)
        timers.again("all account storage", limits.FACTS_EVERY_S, self.tell_all)

    def tell_all(self) -> None:
        """Tell other nodes of all streams that are led here: one may have missed something."""
        self._untold.update(self._shares)
        self.tell()

    def tell(self) -> None:
        """Tell other nodes what has changed since they were told, of accounts with limits."""
        if not self._untold or self._peers is None:
            return
        untold, self._untold = sorted(self._untold), set()
        rows: list[list[int]] = []
        for uid in untold:
            share = self._shares.get(uid)
            if share is not None and share.is_leading and self._limit(share.pool) is not None:
                rows.append([uid, share.byte_count])
        if rows:
            for node_id in self._peers.nodes():
                self._peers.note(node_id, "stored", rows)

    def on_note(self, sender: NodeId, rows: list[tuple[Uid, int]]) -> None:
        """Record what streams hold that another node leads: the note `stored`."""
        known = self._groups.meta.streams_by_uid
        for uid, byte_count in rows:
            if uid in known:  # else it is not known yet, and told again
                self._told[uid] = byte_count
                if uid not in self._shares:
                    self._count_told(uid)

    def _count_told(self, uid: Uid) -> None:
        self._drop(uid)
        asset = self._groups.meta.streams_by_uid.get(uid)
        if asset is None:
            self._told.pop(uid, None)
        elif uid in self._told:
            self._count(uid, _pool_of(asset), self._told[uid])

    def _recount_told(self) -> None:
        for uid in sorted(self._told):
            if uid not in self._shares:
                self._count_told(uid)
            elif uid not in self._groups.meta.streams_by_uid:
                del self._told[uid]


def _pool_of(asset: StreamAsset) -> Pool:
    return Pool(asset.account, asset.is_file, asset.config.get("num_replicas", 1))


class ReplicaShare:
    """Part that one replica has in the bytes of its account."""

    __slots__ = (
        "_config",
        "_in_flight",
        "_in_flight_bytes",
        "_live",
        "_machine",
        "_seen",
        "_storage",
        "_uid",
        "is_leading",
        "pool",
    )

    def __init__(self, storage: AccountStorage, asset: StreamAsset, machine: StreamMachine) -> None:
        self._storage = storage
        self._uid = asset.uid
        self._machine = machine
        self._live = machine.index.live
        self._config = machine.config
        self._seen = -1  # bytes stored at the end of the last turn
        self._in_flight: dict[Index, int] = {}  # proposed here, and not applied: bytes by entry
        self._in_flight_bytes = 0
        self.pool = _pool_of(asset)
        self.is_leading = False

    @property
    def byte_count(self) -> int:
        """Bytes stored, and those that entries under way may store."""
        return self._live.bytes + self._in_flight_bytes

    def room(self, wanted: int) -> int | None:
        """Return how many bytes more the stream may store; see `AccountStorage.room`."""
        return self._storage.room(self.pool, wanted)

    def hold(self, index: Index, byte_count: int) -> None:
        """Count bytes that entry `index` may store."""
        self._in_flight[index] = byte_count
        self._in_flight_bytes += byte_count
        self._storage.mark_changed(self._uid, is_leading=True)

    def release(self, index: Index) -> None:
        """Entry `index` is applied: what it has stored is counted as such from now on."""
        if self._in_flight:
            self._in_flight_bytes -= self._in_flight.pop(index, 0)
            self._storage.mark_changed(self._uid, is_leading=True)

    def release_all(self) -> None:
        """Count nothing that was proposed: this member leads no more, or is at its end."""
        if self._in_flight:
            self._in_flight.clear()
            self._in_flight_bytes = 0
            self._storage.mark_changed(self._uid, is_leading=False)

    def update(self, *, is_leading: bool) -> None:
        """Look at what is stored, at the end of a turn."""
        stored, config = self._live.bytes, self._machine.config
        if stored == self._seen and config is self._config and is_leading == self.is_leading:
            return
        self._seen, self._config, self.is_leading = stored, config, is_leading
        self.pool = self.pool._replace(replicas=config.get("num_replicas", 1))
        self._storage.mark_changed(self._uid, is_leading=is_leading)
