"""`MetaMachine`: which streams exist and on which nodes. The replicated state of the meta group.

An asset's uid is the index of the entry that created it, so a name may come back but a uid never
does (I6); one that was adopted keeps the uid it had. What a config may say by itself is checked
before it is proposed; here is checked what depends on other streams, because only the log's order
decides who was first.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgpack

from streamd import errors
from streamd.errors import CorruptionError, JsError
from streamd.machine import command_shapes, commands
from streamd.machine.asset_configs import Placement, StreamConfig
from streamd.machine.base import Effects
from streamd.machine.commands import Command, Handler
from streamd.machine.digest import MASK64, chain64
from streamd.subject_tree import SubjectTree
from streamd.types import ACCOUNT, Entry, Index, NodeId, StreamKey, Uid

_STATE_VERSION: Final = 5
"""A lower one has the same fields but for the last, which were left out while they were empty.
While no stream is on the move the state is still written as 4, which earlier releases read."""
_EMPTY: Final[tuple[object, ...]] = (((), ()), (), ())  # the last fields: removals, losses, changes
_NUMBERING: Final = (commands.CREATE_STREAM, commands.UPDATE_STREAM, commands.REMOVE_SERVER)
"""Commands whose entry's index is kept, and compared with others."""
_DYNAMIC_METADATA: Final = ("_nats.ver", "_nats.level", "_nats.req.level")


class PlacementChange(NamedTuple):
    """Change of where a stream lives that its group has not followed yet."""

    created_ns: int
    replicas: int  # of the config before it changed; 0: it did not
    placement: Placement | None  # likewise


class StreamAsset(NamedTuple):
    """A stream as the meta group knows it."""

    uid: Uid
    name: str
    config: StreamConfig
    created_ns: int
    update_index: Index  # of the meta entry that set `config`
    created_config: StreamConfig
    """The config at creation: what a machine that replays its log from the start begins with. With
    a later one it would judge old entries by new limits, and drop what was acked."""
    peers: tuple[NodeId, ...] = ()
    """Where its replicas are wanted; empty: on the one node there is."""
    members: tuple[NodeId, ...] = ()
    """The group's membership as its leader last reported it, and those who may have joined since,
    because they were wanted before somebody else was; at creation the peers."""
    created_peers: tuple[NodeId, ...] = ()
    """The peers at creation: the membership with which the group's log begins."""

    def placed_on(self, peers: Sequence[NodeId]) -> StreamAsset:
        """The asset with its replicas wanted elsewhere. Who was wanted so far may be a member by
        now, its leader's report on its way: it must not take itself for one that is not."""
        joining = tuple(name for name in self.peers if name not in self.members)
        return self._replace(peers=tuple(peers), members=self.members + joining)

    @property
    def account(self) -> str:
        """The account to which the stream belongs."""
        return account_of(self.config)

    @property
    def key(self) -> StreamKey:
        """The stream's account and name."""
        return account_of(self.config), self.name

    @property
    def is_file(self) -> bool:
        """False: it lives in memory."""
        return bool(self.config.get("storage", "file") == "file")

    @property
    def is_moving(self) -> bool:
        """True while others are members of its group than are wanted."""
        return set(self.peers) != set(self.members)

    @property
    def basis(self) -> list[Uid | NodeId]:
        """State on which a decision about the stream's placement rests."""
        return [self.uid, *self.peers]

    def may_be_dropped_by(self, node_id: NodeId) -> bool:
        """True if `node_id` is neither a member of the group nor wanted as one."""
        is_placed = bool(self.peers or self.members)
        return is_placed and node_id not in self.peers and node_id not in self.members


_PLACED_AT: Final = StreamAsset._fields.index("peers")


def account_of(config: StreamConfig) -> str:
    """Return the account to which a stream with this config belongs."""
    return config.get("account", ACCOUNT)


class MetaMachine:
    """Implements machine.base.Machine for the meta group."""

    def __init__(self, *, max_streams: int = -1) -> None:
        self.applied: Index = 0
        self.digest = 0
        self.max_streams = max_streams
        self.streams_by_key: dict[StreamKey, StreamAsset] = {}
        self.streams_by_uid: dict[Uid, StreamAsset] = {}
        self.removals: dict[NodeId, Index] = {}
        """Servers that were ever removed, with the meta entry of the last time: what had joined
        before that, by its data, must not take part."""
        self.out: set[NodeId] = set()  # of these, who has not joined anew
        self.thin: set[Uid] = set()  # streams that a removal left with fewer peers than they want
        self.losses: list[tuple[Index, Index, tuple[Uid, ...]]] = []
        """What was lost, each time: streams created between two entries, but for some."""
        self.changes: dict[Uid, PlacementChange] = {}
        """Streams on the move, for whoever asks how far that is, or ends it. No part of the
        fingerprint: nothing else rests on it."""
        self.carried: Counter[tuple[NodeId, bool]] = Counter()
        """How many replicas are wanted on a node, by whether the stream has several."""
        # Of each account: names of streams by what they capture.
        self._captured: dict[str, SubjectTree[str]] = {}
        self._handlers: dict[int, Handler] = {
            commands.CREATE_STREAM: self._apply_create,
            commands.UPDATE_STREAM: self._apply_update,
            commands.DELETE_STREAM: self._apply_delete,
            commands.SET_PEERS: self._apply_set_peers,
            commands.MOVED: self._apply_moved,
            commands.REMOVE_SERVER: self._apply_remove_server,
            commands.ADMIT_SERVER: self._apply_admit_server,
            commands.ADOPT_STREAM: self._apply_adopt,
            commands.ACCEPT_LOSS: self._apply_accept_loss,
            commands.CHECKPOINT: self._apply_checkpoint,
        }

    def apply(self, entry: Entry, out: Effects) -> None:
        """See machine.base.Machine. Outcomes: machine/commands.py."""
        assert entry.index == self.applied + 1, (entry.index, self.applied)
        command = command_shapes.admit(entry, self._handlers, out)
        if command is not None:
            if entry.index <= self.used_to and command[0] in _NUMBERING:
                outcome: object = errors.CLUSTER_NOT_AVAIL()
            else:
                outcome = self._handlers[command[0]](entry, command, out)
            if entry.tag is not None:
                out.outcomes.append((entry.tag, outcome))
        self.applied = entry.index

    def snapshot(self) -> bytes:
        """See machine.base.Machine. Inverse: `restore`."""
        rows = [list(asset) for asset in self.streams_by_key.values()]
        removals = [self._removed_rows(), sorted(self.thin)]
        changes = [[uid, *self.changes[uid]] for uid in sorted(self.changes)]
        version = _STATE_VERSION if changes else _STATE_VERSION - 1
        head = (version, self.applied, self.digest, self.max_streams)
        state = [*head, rows, removals, self.losses, *([changes] if changes else [])]
        packed: bytes = msgpack.packb(state, use_bin_type=True)
        return packed

    def _removed_rows(self) -> list[tuple[NodeId, Index, bool]]:
        return [(name, self.removals[name], name in self.out) for name in sorted(self.removals)]

    def fingerprint(self) -> int:
        """See machine.base.Machine."""
        values = [self.digest, len(self.streams_by_key)]
        for name, index, is_out in self._removed_rows():
            values += (zlib.crc32(name.encode()), index, int(is_out))
        values += sorted(self.thin)
        for known_to, used_to, known in self.losses:
            values += (known_to, used_to, *known)
        return chain64(values)

    @classmethod
    def restore(cls, state: bytes) -> MetaMachine:
        """The machine as `snapshot` saw it."""
        values = msgpack.unpackb(state, raw=False, strict_map_key=False)
        version, applied, digest, max_streams, assets, *last = values
        if not 1 <= version <= _STATE_VERSION:
            raise CorruptionError(f"meta snapshot has unknown version {version}")
        last += _EMPTY[len(last) :]
        (removals, thin), losses, changes = last
        machine = cls(max_streams=max_streams)
        machine.applied = applied
        machine.digest = digest
        for row in assets:
            placement = (tuple(names) for names in row[_PLACED_AT:])
            asset = StreamAsset(*row[:_PLACED_AT], *placement)
            machine.streams_by_key[asset.key] = machine.streams_by_uid[asset.uid] = asset
            machine._count_in(asset)
        machine.removals = {name: index for name, index, _ in removals}
        machine.out = {name for name, _, is_out in removals if is_out}
        machine.thin = set(thin)
        for known_to, used_to, known in losses:
            machine.losses.append((known_to, used_to, tuple(known)))
        machine.changes = {uid: PlacementChange(*change) for uid, *change in changes}
        return machine

    # --- commands -------------------------------------------------------------------------------

    def _apply_create(self, entry: Entry, command: Command, out: Effects) -> StreamAsset | JsError:
        _, ts, config, *rest = command
        placement = rest[:1] if rest and rest[0] is not None else []
        peers = tuple(placement[0]) if placement else ()
        name = config["name"]
        existing = self.stream(name, account_of(config))
        if existing is not None:
            if is_same(existing.config, config):
                return existing
            return errors.STREAM_NAME_EXIST()
        if 0 <= self.max_streams <= len(self.streams_by_key):
            return errors.MAXIMUM_STREAMS_LIMIT()
        refused = self._check_bounds(config, rest[1]) if len(rest) > 1 else None
        if refused is not None:
            return refused
        if self.overlaps(config):
            return errors.STREAM_SUBJECT_OVERLAP()
        if placement and not peers:
            return errors.CLUSTER_NOT_AVAIL()  # the name was taken when it was asked for
        left = self._without_removed(peers)
        asset = StreamAsset(entry.index, name, config, ts, entry.index, config, left, left, left)
        self._put_placed(asset, peers)
        out.events.append(("stream_created", {"asset": asset}))
        return asset

    def _apply_adopt(self, entry: Entry, command: Command, out: Effects) -> StreamAsset | JsError:
        _, ts, uid, config, update_index = command
        name = config["name"]
        if (account_of(config), name) in self.streams_by_key or uid in self.streams_by_uid:
            return errors.STREAM_NAME_EXIST()
        if self.overlaps(config):
            return errors.STREAM_SUBJECT_OVERLAP()
        asset = StreamAsset(uid, name, config, ts, update_index, config)
        self._put(asset)
        out.events.append(("stream_created", {"asset": asset}))
        return asset

    def _apply_update(self, entry: Entry, command: Command, out: Effects) -> StreamAsset | JsError:
        _, _, name, config, *placement = command
        existing = self.stream(name, account_of(config))
        if existing is None:
            return errors.STREAM_NOT_FOUND()
        if _is_other(existing, placement[1:]):
            return errors.STREAM_MOVE_IN_PROGRESS()
        if config["name"] != name:
            return errors.STREAM_INVALID_CONFIG(err="stream name can not be changed")
        refused = _check_update(existing.config, config)
        if refused is not None:
            return refused
        if self.overlaps(config):
            return errors.STREAM_SUBJECT_OVERLAP()
        asset = existing._replace(config=config, update_index=entry.index)
        if placement and placement[0]:
            asset = asset.placed_on(self._without_removed(placement[0]))
            self._put_placed(asset, placement[0])
            self._note_change(asset, command[1], before=existing.config)
        else:
            self._put(asset)
        out.events.append(("stream_updated", {"asset": asset}))
        return asset

    def _apply_set_peers(
        self, entry: Entry, command: Command, out: Effects
    ) -> StreamAsset | JsError:
        _, _, uid, peers, *basis = command
        existing = self.streams_by_uid.get(uid)
        if existing is None:
            return errors.STREAM_NOT_FOUND()
        if _is_other(existing, basis):
            return errors.STREAM_MOVE_IN_PROGRESS()
        if not peers:
            return errors.PEER_REMAP()  # a stream without a replica would be a deletion by stealth
        asset = existing.placed_on(self._without_removed(peers))
        self._put_placed(asset, peers)
        self._note_change(asset, command[1], before=None)
        out.events.append(("stream_updated", {"asset": asset}))
        return asset

    def _apply_moved(self, entry: Entry, command: Command, out: Effects) -> StreamAsset | JsError:
        _, _, uid, members = command
        existing = self.streams_by_uid.get(uid)
        if existing is None:
            return errors.STREAM_NOT_FOUND()
        if set(members) != set(existing.peers):
            # Others are wanted by now; whoever was a member is not let go before they are in.
            return existing
        asset = existing._replace(members=tuple(members))
        self._put(asset)
        self.changes.pop(uid, None)
        out.events.append(("stream_moved", {"asset": asset}))
        return asset

    def _apply_remove_server(self, entry: Entry, command: Command, out: Effects) -> bool:
        _, _, name = command
        self.removals[name] = entry.index
        self.out.add(name)
        out.events.append(("server_removed", {"server": name}))
        for asset in list(self.streams_by_key.values()):
            peers = self._without_removed(asset.peers)
            if peers != asset.peers:
                wanted, asset = asset.peers, asset.placed_on(peers)
                self._put_placed(asset, wanted)
                out.events.append(("stream_updated", {"asset": asset}))
        return True

    def _apply_admit_server(self, entry: Entry, command: Command, out: Effects) -> bool:
        _, _, name = command
        self.out.discard(name)
        return True

    def _without_removed(self, peers: Sequence[NodeId]) -> tuple[NodeId, ...]:
        """`peers` but for servers that are out; all of them if none would be left, for a stream
        without a replica would be a deletion by stealth."""
        return tuple(name for name in peers if name not in self.out) or tuple(peers)

    def _apply_accept_loss(self, entry: Entry, command: Command, out: Effects) -> bool:
        _, _, known_to, used_to = command
        if used_to > self.used_to:  # else it is one of those that use up indexes
            known = tuple(uid for uid in sorted(self.streams_by_uid) if uid > known_to)
            self.losses.append((known_to, used_to, known))
            out.events.append(("loss_accepted", {}))
        return True

    def _apply_checkpoint(self, entry: Entry, command: Command, out: Effects) -> bool:
        out.checkpoint = (entry.index, self.fingerprint())
        return True

    def _apply_delete(self, entry: Entry, command: Command, out: Effects) -> bool | JsError:
        _, _, name, uid, *restoring_only = command
        existing = self.streams_by_uid.get(uid) if uid else self.stream(name)
        if existing is None or existing.name != name:
            return errors.STREAM_NOT_FOUND()
        if restoring_only == [True] and not existing.config.get("restoring"):
            return errors.STREAM_NAME_EXIST()
        del self.streams_by_key[existing.key]
        del self.streams_by_uid[existing.uid]
        self.thin.discard(existing.uid)
        self.changes.pop(existing.uid, None)
        self._count_out(existing)
        self.digest = (self.digest - _mix(existing)) & MASK64
        out.events.append(("stream_deleted", {"asset": existing}))
        return True

    def _put(self, asset: StreamAsset) -> None:
        before = self.streams_by_key.get(asset.key)
        if before is not None:
            self.digest = (self.digest - _mix(before)) & MASK64
            self._count_out(before)
        self._count_in(asset)
        self.streams_by_key[asset.key] = self.streams_by_uid[asset.uid] = asset
        self.digest = (self.digest + _mix(asset)) & MASK64
        if len(asset.peers) >= asset.config.get("num_replicas", 1):
            self.thin.discard(asset.uid)

    def _put_placed(self, asset: StreamAsset, wanted: Sequence[NodeId]) -> None:
        """Put an asset that was to be on `wanted`, of whom some may have been removed."""
        self._put(asset)
        if len(asset.peers) < min(len(wanted), asset.config.get("num_replicas", 1)):
            self.thin.add(asset.uid)

    def _note_change(self, asset: StreamAsset, ts: int, before: StreamConfig | None) -> None:
        """Keep when a move began, and what the config was before the first of those under way
        together that changed it. `before`: of a change of the config, too."""
        known = self.changes.get(asset.uid)
        if not asset.is_moving:
            self.changes.pop(asset.uid, None)
        elif before is not None and (known is None or not known.replicas):
            replicas, placement = before.get("num_replicas", 1), before.get("placement")
            self.changes[asset.uid] = PlacementChange(ts, replicas, placement)
        elif known is None:
            self.changes[asset.uid] = PlacementChange(ts, 0, None)

    def stream(self, name: str, account: str = ACCOUNT) -> StreamAsset | None:
        """Return the stream of that name in an account; None: there is none."""
        return self.streams_by_key.get((account, name))

    def streams_of(self, account: str) -> list[StreamAsset]:
        """Return the streams of an account, sorted by name."""
        assets = (asset for asset in self.streams_by_key.values() if asset.account == account)
        return sorted(assets, key=lambda asset: asset.name)

    def _check_bounds(self, config: StreamConfig, bounds: list[int]) -> JsError | None:
        """Refuse a stream that its account has no room for; `bounds` as in commands.CREATE_STREAM.
        Only the order of the log decides which of two requests comes first."""
        streams_max, bytes_max, replicas = bounds
        storage = config.get("storage", "file")
        peers = [
            asset.config
            for asset in self.streams_of(account_of(config))
            if not replicas or asset.config.get("num_replicas", 1) == replicas
        ]
        if 0 <= streams_max <= len(peers):
            return errors.MAXIMUM_STREAMS_LIMIT()
        reserved = sum(
            reserved_bytes(each) for each in peers if each.get("storage", "file") == storage
        )
        if 0 <= bytes_max < reserved + reserved_bytes(config) and reserved_bytes(config):
            if storage == "file":
                return errors.STORAGE_RESOURCES_EXCEEDED()
            return errors.MEMORY_RESOURCES_EXCEEDED()
        return None

    def overlaps(self, config: StreamConfig) -> bool:
        """True if another stream of the account captures a subject that this config captures."""
        return any(
            other != config["name"]
            for subject in config.get("subjects") or ()
            for other in self.capturing(subject.encode(), account_of(config))
        )

    def is_deleted(self, uid: Uid) -> bool:
        """True if a committed command deleted the stream. A meta group that begins anew knows of
        no stream before it comes to the entry that made it, and that one's index is the uid."""
        is_known = uid in self.streams_by_uid or self.is_lost(uid)
        return not is_known and self.applied >= uid

    def is_lost(self, uid: Uid) -> bool:
        """True of a stream whose creation the group has lost: it is not known, nor was deleted."""
        return any(
            known_to < uid <= used_to and uid not in known
            for known_to, used_to, known in self.losses
        )

    @property
    def used_to(self) -> Index:
        """Up to this entry none numbers anything: one that was lost may have had its index."""
        return self.losses[-1][1] if self.losses else 0

    def capturing(self, pattern: bytes, account: str = ACCOUNT) -> set[str]:
        """Names of an account's streams that capture a subject, or any subject of a pattern."""
        captured = self._captured.get(account)
        return set() if captured is None else set(captured.overlapping(pattern))

    def _count_in(self, asset: StreamAsset) -> None:
        for subject in asset.config.get("subjects") or ():
            captured = self._captured.setdefault(asset.account, SubjectTree())
            captured.add(subject.encode(), asset.name)
        for node_id in asset.peers:
            self.carried[node_id, len(asset.peers) > 1] += 1

    def _count_out(self, asset: StreamAsset) -> None:
        for subject in asset.config.get("subjects") or ():
            self._captured[asset.account].remove(subject.encode(), asset.name)
        for node_id in asset.peers:
            self.carried[node_id, len(asset.peers) > 1] -= 1


def reserved_bytes(config: StreamConfig) -> int:
    """Return the bytes that a stream sets aside of its account's storage, over all replicas."""
    return max(0, config.get("max_bytes", -1)) * config.get("num_replicas", 1)


def _is_other(asset: StreamAsset, basis: list[list[Uid | NodeId]]) -> bool:
    """True if the stream is not what a command rests on any more: `basis` is of none or one."""
    return bool(basis) and basis[0] != asset.basis


def _check_update(old: StreamConfig, new: StreamConfig) -> JsError | None:
    """Refuse updates that no stream allows, whichever of two requests came first."""
    if old.get("storage", "file") != new.get("storage", "file"):
        return errors.STREAM_INVALID_CONFIG(
            err="stream configuration update can not change storage type"
        )
    kinds = (old.get("retention", "limits"), new.get("retention", "limits"))
    if kinds[0] != kinds[1] and "workqueue" in kinds:
        return errors.STREAM_INVALID_CONFIG(
            err="stream configuration update can not change retention policy to/from workqueue"
        )
    if old.get("sealed") and not new.get("sealed"):
        return errors.STREAM_INVALID_CONFIG(
            err="stream configuration update can not unseal a sealed stream"
        )
    return None


def is_same(left: StreamConfig, right: StreamConfig) -> bool:
    """True if two normalised configs ask for the same stream (metadata the server adds aside)."""
    return _comparable(left) == _comparable(right)


def _comparable(config: StreamConfig) -> dict[str, object]:
    plain = {key: value for key, value in config.items() if value is not None}
    metadata = dict(config.get("metadata") or {})
    for key in _DYNAMIC_METADATA:
        metadata.pop(key, None)
    plain["metadata"] = metadata
    return plain


def _mix(asset: StreamAsset) -> int:
    """The share of one asset in the digest: which config it has, by the entry that set it, and
    where it lives."""
    share = asset.uid * 0x9E3779B97F4A7C15 + asset.update_index * 0xD1B54A32D192ED03 + 1
    if asset.peers or asset.members:
        names = "\n".join(asset.peers) + "\n\n" + "\n".join(asset.members)
        share += (zlib.crc32(names.encode()) + 1) * 0xA0761D6478BD642F
    return share & MASK64
