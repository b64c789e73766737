"""Documents about streams: rows of the list, and all about one."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from streamd.api.times import format_ns
from streamd.limits import (
    CURRENT_LAG_MAX,
    DASHBOARD_BLOCKS,
    DASHBOARD_FRESH_S,
    DASHBOARD_SUBJECTS,
    DASHBOARD_TOP,
    SLICE_GROUPS,
)
from streamd.machine.indexes.columns import Block
from streamd.machine.indexes.live_messages import LiveMessages
from streamd.machine.indexes.subject_table import COUNT
from streamd.machine.meta import StreamAsset
from streamd.net.dashboard.stream_table import StreamNumbers, StreamTable, numbers_of
from streamd.net.monitoring.healthz import lag, not_current, short_of_disks
from streamd.net.monitoring.jetstreamz import JetStreamSources
from streamd.net.monitoring.sliced_pages import Steps, looked_at
from streamd.node.clock import Clock
from streamd.node.ports import GroupInfo, StreamHandle
from streamd.types import Document, NodeId, Uid

_SINGLE, _EQUAL, _DIFFERS, _UNKNOWN = "single", "equal", "differs", "unknown"
_RANKS: Final = {_EQUAL: 1, _UNKNOWN: 2, _DIFFERS: 3}
_BLOCK_NAMED: Final = re.compile(r"\b(?:(\d+)\.blk|block (\d+))\b")


class StreamDocuments:
    """Builder of documents about the streams of one node's cluster."""

    def __init__(self, sources: JetStreamSources, table: StreamTable, clock: Clock) -> None:
        self._sources = sources
        self._node = sources.node
        self._table = table
        self._clock = clock

    # --- rows -----------------------------------------------------------------------------------

    def rows(self, uids: Sequence[Uid]) -> Steps[list[Document | None]]:
        """Build the row of each stream for another node; None: it has no replica here."""
        found: list[Document | None] = []
        for uid in looked_at(uids, SLICE_GROUPS):
            if uid is None:
                yield
                continue
            asset, replica = self._node.meta.streams_by_uid.get(uid), self._node.replica(uid)
            if asset is None or replica is None:
                found.append(None)
                continue
            row = self.row(asset, replica)
            row["numbers"] = list(numbers_of(replica))
            found.append(row)
        return found

    def items(
        self, assets: Sequence[StreamAsset], told: Mapping[Uid, Document]
    ) -> Iterator[Document | None]:
        """Iterate over the rows of a page; `told`: rows of streams that other nodes lead. A None
        is a pause."""
        for asset in looked_at(assets, SLICE_GROUPS):
            if asset is None:
                yield None
            else:
                yield self.item(asset, told.get(asset.uid))

    def item(self, asset: StreamAsset, told: Document | None) -> Document:
        """Return the row of a stream: as its leader tells it, or else as it is seen from here."""
        replica = self._node.replica(asset.uid)
        if told is not None:
            row = {key: value for key, value in told.items() if key != "numbers"}
        elif replica is not None:
            row = self.row(asset, replica)
        else:
            row = self._unseen(asset)
        rate, messages = self._table.rate(asset.uid), row["messages"]
        row["rate_msgs"] = round(rate, 1)
        # Of the size of those that are stored: how many bytes came in is not counted.
        row["rate_bytes"] = round(rate * row["bytes"] / messages) if messages else 0
        return row

    def row(self, asset: StreamAsset, replica: StreamHandle) -> Document:
        """Return the row of a stream that has a replica here."""
        facts = self._node.group_info(asset.uid) or {}
        row = self._unseen(asset)
        numbers = numbers_of(replica)
        return row | {
            "messages": numbers.messages,
            "bytes": numbers.bytes,
            "leader": row["leader"] or facts.get("leader", ""),
            "replicas": self._replicas(asset, facts),
            "consumers": numbers.consumers,
            "last_time": format_ns(numbers.last_ns) if numbers.last_ns else "",
            "health": self._health(asset, facts),
        }

    def _unseen(self, asset: StreamAsset) -> Document:
        """Return the row of a stream of which nothing but its configuration is known here."""
        node = self._node
        leader = node.leader_of(asset.uid) if node.is_clustered else node.server_name
        numbers = self._table.numbers(asset.uid)
        up = {node.server_name, *(node.peers.nodes() if node.peers is not None else ())}
        health = node.failed.get((asset.account, asset.name), "")
        if not health:
            health = f"{leader}, which leads it, does not answer" if leader else "no leader"
        return {
            "account": asset.account,
            "name": asset.name,
            "subjects": list(asset.config.get("subjects") or ()),
            "messages": numbers.messages,
            "bytes": numbers.bytes,
            "leader": leader,
            "replicas": [
                {
                    "name": name,
                    "current": False,
                    "offline": name not in up,
                    "lag": None,
                    "digest": _UNKNOWN,
                }
                for name in sorted(asset.peers)
            ],
            "consumers": numbers.consumers,
            "last_time": format_ns(numbers.last_ns) if numbers.last_ns else "",
            "health": health,
        }

    def _replicas(self, asset: StreamAsset, facts: GroupInfo) -> list[Document]:
        node = self._node
        own = node.server_name
        agreement = facts.get("agreement") or {}
        others = facts.get("peers") or []
        digest = _SINGLE
        if others or len(asset.peers) > 1:
            digest = _own_digest(agreement)
        rows: list[Document] = [
            {
                "name": own,
                "current": not not_current(facts),
                "offline": False,
                "lag": lag(facts),
                "digest": digest,
            }
        ]
        knows_lags = facts.get("role") == "leader"
        for peer in others:
            name = peer["name"]
            is_equal = agreement.get(name)
            rows.append(
                {
                    "name": name,
                    "current": peer["current"],
                    "offline": peer["offline"],
                    "lag": peer["lag"] if knows_lags else None,
                    "digest": _UNKNOWN if is_equal is None else _EQUAL if is_equal else _DIFFERS,
                }
            )
        known: set[NodeId] = {str(row["name"]) for row in rows}
        for name in asset.peers:  # wanted, and no member yet
            if name not in known:
                row = {"name": name, "current": False, "offline": False, "lag": None}
                rows.append(row | {"digest": _UNKNOWN})
        rows.sort(key=lambda row: str(row["name"]))
        return rows

    def _health(self, asset: StreamAsset, facts: GroupInfo) -> str:
        """Return what is wrong with a stream, in words; "": nothing."""
        node = self._node
        reasons = [
            node.failed.get((asset.account, asset.name), ""),
            node.health.lost_copy_reason(asset),
            node.health.discarded_reasons().get((asset.account, asset.name), ""),
            node.health.damage_reasons().get(asset.uid, ""),
        ]
        if node.is_clustered:
            reasons += [not_current(facts), short_of_disks(facts)]
            reasons += [
                f"{peer['name']} {_peer_fault(peer['offline'], peer['lag'])}"
                for peer in facts.get("peers") or ()
                if not peer["current"]
            ]
            differing = [name for name, is_equal in (facts.get("agreement") or {}).items()
                         if not is_equal]  # fmt: skip
            if differing:
                reasons.append(f"{', '.join(sorted(differing))} holds something else")
        return "; ".join(dict.fromkeys(filter(None, reasons)))

    def sort_keys(
        self, fresh_s: float = DASHBOARD_FRESH_S
    ) -> dict[str, Callable[[StreamAsset], str | int | float]]:
        """Return by field what streams are sorted by: asked of thousands of them for one page. What
        leaders told counts for `fresh_s`."""
        node, table = self._node, self._table

        def number(
            of_live: Callable[[LiveMessages], int], of_told: Callable[[StreamNumbers], int]
        ) -> Callable[[StreamAsset], int]:
            def key(asset: StreamAsset) -> int:
                replica = node.replica(asset.uid)
                if replica is not None:
                    return of_live(replica.machine.index.live)
                return of_told(table.numbers(asset.uid))

            return key

        def consumers(asset: StreamAsset) -> int:
            return table.numbers(asset.uid).consumers

        def rate_bytes(asset: StreamAsset) -> float:
            rate = table.rate(asset.uid)
            if not rate:
                return 0.0
            numbers = table.numbers(asset.uid)
            return rate * numbers.bytes / numbers.messages if numbers.messages else 0.0

        def known(asset: StreamAsset) -> Document:
            """Return the row as the leader told it lately, or else as it is seen from here."""
            replica = node.replica(asset.uid)
            if not node.is_clustered or node.leader_of(asset.uid) == node.server_name:
                told = None
            else:
                told = table.told(asset.uid, fresh_s)
            if told is not None:
                return told
            return self.row(asset, replica) if replica is not None else self._unseen(asset)

        return {
            "account": lambda asset: asset.account,
            "name": lambda asset: asset.name,
            "messages": number(lambda live: live.count, lambda told: told.messages),
            "bytes": number(lambda live: live.bytes, lambda told: told.bytes),
            "last_time": number(lambda live: live.last_ts, lambda told: told.last_ns),
            "rate_msgs": lambda asset: table.rate(asset.uid),
            "rate_bytes": rate_bytes,
            "leader": lambda asset: node.leader_of(asset.uid),
            "consumers": consumers,
            "replicas": lambda asset: len(asset.peers),
            "health": lambda asset: str(known(asset)["health"]),
            "digests": lambda asset: worst_digest(known(asset)["replicas"]),
        }

    # --- one stream -----------------------------------------------------------------------------

    def detail(self, asset: StreamAsset, replica: StreamHandle) -> Steps[Document]:
        """Build all about a stream that has a replica here."""
        machine = replica.machine
        facts = self._node.group_info(asset.uid) or {}
        blocks = yield from self._blocks(replica)
        top = yield from _top_subjects(replica)
        config = self._sources.stream_config(replica)
        return self.row(asset, replica) | {
            "created": format_ns(machine.created_ns),
            "config": config,
            "state": self._sources.stream_state(replica),
            "blocks": blocks,
            "blocks_total": sum(block.count > 0 for block in machine.index.blocks),
            "stored_on": self._node.server_name,
            "top_subjects": top,
            "mirror": None,
            "sources": [],
            **self._sources.origins(replica),
            "group": group_document(facts),
        }

    def _blocks(self, replica: StreamHandle) -> Steps[list[Document]]:
        """Build the map of the newest blocks, oldest first."""
        machine = replica.machine
        blocks = list(machine.index.blocks[-DASHBOARD_BLOCKS:])
        now_ns = self._clock.now_ns()
        damage = self._damage(replica)
        began_ns, ended_ns = self._node.health.verified_ns
        found = []
        for block in looked_at(blocks):
            if block is None:
                yield
                continue
            if not block.count:
                continue
            is_verified = began_ns and block.last_ts < began_ns
            found.append(
                {
                    "index": block.block_no,
                    "first_seq": block.first_seq,
                    "last_seq": block.last_seq,
                    "messages": block.live,
                    "bytes": block.end_offset,
                    "fill": round(min(1.0, block.end_offset / machine.index.blocks.block_bytes), 3),
                    "dead": round(1 - block.live / block.count, 3),
                    "age_ns": max(0, now_ns - block.last_ts),
                    "scrubbed": format_ns(ended_ns) if is_verified else "",
                    "damage": damage.get(block.block_no, ""),
                }
            )
        return found

    def _damage(self, replica: StreamHandle) -> dict[int, str]:
        """Return what is known to be damaged on this node, by block."""
        found: dict[int, str] = {}
        reason = self._node.health.damage_reasons().get(replica.uid, "")
        for in_file, in_words in _BLOCK_NAMED.findall(reason):
            found[int(in_file or in_words)] = reason
        blocks = replica.machine.index.blocks
        unreadable: dict[int, int] = {}
        for seq in replica.unreadable:
            block: Block = blocks.of(seq)
            unreadable[block.block_no] = unreadable.get(block.block_no, 0) + 1
        for block_no, count in unreadable.items():
            found.setdefault(block_no, f"{count} messages can't be read")
        if reason and not found:
            found[blocks.active.block_no] = reason  # it names no block: shown at the newest
        return found


def worst_digest(replicas: object) -> int:
    """Return the rank of the worst that a stream's replicas say of their digests; 0: there is one
    replica only."""
    rows = replicas if isinstance(replicas, list) else []
    return max((_RANKS.get(row["digest"], 0) for row in rows), default=0) if len(rows) > 1 else 0


def group_document(facts: GroupInfo) -> Document:
    """Return the state of this node's member of a group."""
    return {
        "name": facts.get("raft_group", ""),
        "leader": facts.get("leader", ""),
        "role": facts.get("role", ""),
        "term": facts.get("term", 0),
        "commit": facts.get("commit", 0),
        "applied": facts.get("applied", 0),
        "last_index": facts.get("last_index", 0),
        "members": 1 + len(facts.get("peers") or ()),
        "state": facts.get("state", ""),
        "reason": facts.get("reason", ""),
    }


def _top_subjects(replica: StreamHandle) -> Steps[list[Document]]:
    """Return the subjects with most messages, of the first so many."""
    rows = replica.machine.index.subjects.rows
    names = list(islice(rows, DASHBOARD_SUBJECTS))
    top: list[tuple[int, bytes]] = []
    for name in looked_at(names, 512):
        if name is None:
            yield
            continue
        row = rows.get(name)
        if row is None:
            continue
        entry = (row[COUNT], name)
        if len(top) < DASHBOARD_TOP:
            heapq.heappush(top, entry)
        elif entry > top[0]:
            heapq.heapreplace(top, entry)
    return [
        {"subject": name.decode(errors="replace"), "count": count}
        for count, name in sorted(top, key=lambda entry: (-entry[0], entry[1]))
    ]


def _own_digest(agreement: Mapping[NodeId, bool]) -> str:
    """Return the verdict on this node's own replica: equal if any other one is."""
    if not agreement:
        return _UNKNOWN
    return _EQUAL if any(agreement.values()) else _DIFFERS


def _peer_fault(is_offline: bool, behind: int) -> str:
    if is_offline:
        return "is offline"
    return f"is {behind} entries behind" if behind > CURRENT_LAG_MAX else "is not current"
