"""Groups and their replicas as the API shows them, and infos of streams that other nodes lead."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable, Sequence
from typing import Final

from streamd import limits
from streamd.api import times
from streamd.machine.asset_configs import StreamConfig
from streamd.machine.meta import StreamAsset
from streamd.node.ports import GroupInfo, MemberInfo, NodeHandle, StreamHandle
from streamd.types import SYSTEM_ACCOUNT, Document, NodeId, Uid

_ALPHABET: Final = (string.digits + string.ascii_uppercase + string.ascii_lowercase).encode()
_ID_LENGTH: Final = 8


def short_hash(name: str) -> str:
    """Return the eight characters by which nats-server's tools know a server or a group."""
    digest = hashlib.sha256(name.encode()).digest()[:_ID_LENGTH]
    return bytes(_ALPHABET[byte % len(_ALPHABET)] for byte in digest).decode()


def raft_group(asset_uid: Uid, config: StreamConfig, *, consumer_uid: Uid = 0) -> str:
    """Return the name of a stream's group as nats-server would write it; with `consumer_uid`, of a
    consumer, which here is part of its stream's."""
    letter = "M" if config.get("storage") == "memory" else "F"
    size = f"R{config.get('num_replicas', 1)}{letter}"
    if consumer_uid:
        return f"C-{size}-{short_hash(f'{asset_uid}/{consumer_uid}')}"
    return f"S-{size}-{asset_uid:08d}"


def cluster_block(
    node: NodeHandle, uid: Uid, config: StreamConfig, consumer_uid: Uid = 0
) -> Document:
    """Return the `cluster` object of a StreamInfo or ConsumerInfo. Its replicas are the others."""
    facts = node.group_info(uid) or {}
    leader = facts.get("leader") or node.leader_of(uid)
    replicas = replica_rows(facts)
    asset = node.meta.streams_by_uid.get(uid)
    known = {node.server_name, leader, *(row["name"] for row in replicas)}
    for name in asset.peers if asset is not None else ():
        if name not in known:  # wanted, and not a member yet
            row: Document = {"name": name, "current": False, "active": 0}
            replicas.append(row | {"peer": short_hash(name), "pending": True})
    shown: Document = {"name": node.cluster_name}
    if replicas:
        name = raft_group(uid, config, consumer_uid=consumer_uid)
        if not consumer_uid:
            name = facts.get("raft_group") or name
        shown["raft_group"] = name
    if leader:
        shown["leader"] = leader
    if replicas:
        if leader and facts.get("leader_since_ns"):
            shown["leader_since"] = times.format_ns(facts["leader_since_ns"])
        shown["system_account"] = True
        shown["traffic_account"] = SYSTEM_ACCOUNT
        shown["replicas"] = sorted(replicas, key=lambda row: str(row["name"]))
    if asset is not None and asset.is_moving:
        shown["desired"] = _desired(node, asset, facts, leader)
    if facts.get("write_quorum", 0) < facts.get("write_quorum_wanted", 0):
        # So few voters that an ack is on fewer disks than a majority of num_replicas.
        shown["write_quorum"] = facts["write_quorum"]
        shown["write_quorum_wanted"] = facts["write_quorum_wanted"]
    return shown


def _desired(node: NodeHandle, asset: StreamAsset, facts: GroupInfo, leader: NodeId) -> Document:
    """Return where a stream on the move is to live, what was before, and how far it has come."""
    shown: Document = {}
    change = node.meta.changes.get(asset.uid)
    if change is not None:
        shown["created"] = times.format_ns(change.created_ns)
    shown["name"] = node.cluster_name
    shown["replicas"] = [{"name": name, "peer": short_hash(name)} for name in asset.peers]
    if change is not None and change.replicas:
        origin: Document = {"replicas": change.replicas}
        if change.placement:
            origin["placement"] = change.placement
        shown["origin"] = origin
    if leader == node.server_name:
        kind, text = _progress(asset, facts, leader)
        shown["status"] = {"description": text, "type": kind}
    return shown


def _progress(asset: StreamAsset, facts: GroupInfo, leader: NodeId) -> tuple[str, str]:
    """Return what the leader of a stream on the move does next or waits for, in nats-server's
    words: a type, and a description."""
    rows = {row["name"]: row for row in facts.get("peers") or ()}
    voters = {leader, *(name for name, row in rows.items() if row.get("is_voter"))}
    joining = sorted(set(asset.peers) - voters)
    if joining:
        if all(name in rows and rows[name].get("offline") for name in joining):
            return "quorum", "waiting for quorum to add peer"
        ready = [name for name in joining if name in rows and _is_close(rows[name])]
        if ready or not any(name in rows for name in joining):
            return "membership", f"adding peer {(ready or joining)[0]}"
        return "catchup", "waiting for peer to catch up before adding it"
    leaving = sorted(voters - set(asset.peers))
    if leaving:
        return "membership", f"removing peer {leaving[0]}"
    return "meta", "waiting for peer set to settle"


def _is_close(row: MemberInfo) -> bool:
    return not row.get("offline") and row.get("lag", 0) <= limits.LEARNER_LAG_ENTRIES


def replica_rows(facts: GroupInfo) -> list[Document]:
    """Return the PeerInfos of a group's members but this node."""
    rows = []
    for peer in facts.get("peers") or ():
        row: Document = {"name": peer["name"], "current": bool(peer.get("current"))}
        if peer.get("offline"):
            row["offline"] = True
        row["active"] = max(0, peer.get("active_ns", 0))
        if peer.get("lag"):
            row["lag"] = peer["lag"]
        row["peer"] = short_hash(peer["name"])
        rows.append(row)
    return rows


def led_stream(node: NodeHandle, uid: Uid) -> StreamHandle | None:
    """Return the stream `uid` if this node leads it and may answer for it."""
    asset = node.meta.streams_by_uid.get(uid)
    handle = node.account(asset.account).stream(asset.name) if asset is not None else None
    if handle is None or handle.uid != uid or not handle.is_local:
        return None
    return handle


def gather(
    node: NodeHandle,
    assets: Sequence[StreamAsset],
    *,
    is_listed: bool,
    show: Callable[[StreamHandle], Document],
    done: Callable[[dict[Uid, Document]], None],
) -> None:
    """Collect the infos of `assets` from their leaders, asked all at once. The streams of a node
    that does not answer in time, or leads no longer, are left out. `show` makes the info of a
    stream led here.
    """
    found: dict[Uid, Document] = {}
    asked: dict[NodeId, list[Uid]] = {}
    for asset in assets:
        handle = led_stream(node, asset.uid)
        if handle is not None:
            found[asset.uid] = show(handle)
            continue
        leader = node.leader_of(asset.uid)
        if leader and leader != node.server_name:
            asked.setdefault(leader, []).append(asset.uid)
    peers = node.peers
    if not asked or peers is None:
        done(found)
        return
    waiting = len(asked)

    def answered(uids: list[Uid], result: object) -> None:
        nonlocal waiting
        waiting -= 1
        if isinstance(result, list):
            found.update((uid, info) for uid, info in zip(uids, result, strict=False) if info)
        if not waiting:
            done(found)

    def expect(uids: list[Uid]) -> Callable[[object], None]:
        return lambda result: answered(uids, result)

    for leader, uids in asked.items():
        peers.call(leader, "api.stream_infos", [uids, is_listed], expect(uids), limits.API_CALL_MS)
