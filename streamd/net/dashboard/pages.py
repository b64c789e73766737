"""`Pages`: every document of the dashboard, by what it is about.

A document about a stream is built where there is a replica: here if there is one, else at the
stream's leader. A list shows what each leader says of the streams on the page, and says so of those
whose leader does not answer in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from streamd.limits import (
    DASHBOARD_ANSWER_S,
    DASHBOARD_FRESH_S,
    DASHBOARD_OVERVIEW_S,
    DASHBOARD_REMOTE_ROWS,
    DASHBOARD_SUMMED_STREAMS_PER_S,
)
from streamd.machine.meta import StreamAsset
from streamd.net.dashboard import (
    bucket_documents,
    consumer_documents,
    server_documents,
)
from streamd.net.dashboard.bucket_documents import (
    KEY_VALUE,
    OBJECT_STORE,
    OBJECTS,
    bucket_item,
    is_bucket,
    key_page,
    key_value,
)
from streamd.net.dashboard.consumer_documents import AnyRow, ConsumerDocuments
from streamd.net.dashboard.grants import Grant
from streamd.net.dashboard.list_pages import list_document, read_list_query, select_page
from streamd.net.dashboard.message_pages import message_page, read_message_query
from streamd.net.dashboard.peer_questions import (
    CONSUMERS,
    NODE,
    Elsewhere,
    NotFound,
    PeerQuestions,
)
from streamd.net.dashboard.rates import Rates
from streamd.net.dashboard.server_documents import ServerDocuments
from streamd.net.dashboard.stream_documents import StreamDocuments
from streamd.net.dashboard.stream_table import StreamTable
from streamd.net.dashboard.surroundings import Surroundings
from streamd.net.monitoring.jetstreamz import JetStreamSources
from streamd.net.monitoring.query import Query
from streamd.net.monitoring.sliced_pages import Slicer, Steps, encode, gather, looked_at
from streamd.net.monitoring.stats import Connection
from streamd.node.clock import Clock
from streamd.node.ports import StreamHandle
from streamd.types import Document, NodeId, Uid

DETAIL, MESSAGES, CONSUMER, KEYS, KEY = "detail", "messages", "consumer", "keys", "key"
"""Documents about one stream."""
_WHOLE: Final = 1 << 62
_KNOWN_WITHOUT_ASKING: Final = ("", "account", "name", "leader", "replicas")
_KNOWN_TO_LEADERS: Final = ("health", "digests")


class ConsumersTold(NamedTuple):
    """Rows of the consumers of some streams, as their leader told them."""

    told_s: float
    uids: frozenset[Uid]  # of the streams
    rows: Sequence[Document]

    def holds(self, uids: Sequence[Uid], now_s: float) -> bool:
        """True if it is fresh, and about all of these streams: users of one account see fewer."""
        return now_s - self.told_s < DASHBOARD_FRESH_S and self.uids.issuperset(uids)


_NOTHING_TOLD: Final = ConsumersTold(-DASHBOARD_FRESH_S, frozenset(), ())


class StreamPages:
    """Parts that need a node: made when there is one."""

    def __init__(
        self,
        sources: JetStreamSources,
        slicer: Slicer,
        clock: Clock,
        monotonic_s: Callable[[], float],
    ) -> None:
        self.node = sources.node
        self.questions = PeerQuestions(sources.node)
        self.table = StreamTable(sources.node, self.questions, slicer, monotonic_s)
        self.streams = StreamDocuments(sources, self.table, clock)
        self.consumers = ConsumerDocuments(sources, clock)


class Pages:
    """Builder of documents, for browsers and (`PageSource`) for other nodes."""

    def __init__(
        self,
        around: Surroundings,
        slicer: Slicer,
        clock: Clock,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._around = around
        self._slicer = slicer
        self._clock = clock
        self._monotonic_s = monotonic_s
        self._parts: StreamPages | None = None
        self._servers = ServerDocuments(around, Rates(monotonic_s))
        self._nodes_asked_s = -DASHBOARD_OVERVIEW_S
        self._nodes_told: dict[NodeId, tuple[float, Document]] = {}
        # Of streams without a replica here, by leader.
        self._consumers_told: dict[NodeId, ConsumersTold] = {}

    @property
    def has_streams(self) -> bool:
        """True once there is a node."""
        return self._around.sources is not None

    @property
    def parts(self) -> StreamPages:
        """The parts that need a node. Raises Elsewhere while there is none."""
        sources = self._around.sources
        if sources is None:
            raise Elsewhere("JetStream is not running on this server")
        if self._parts is None or self._parts.node is not sources.node:
            self._parts = StreamPages(sources, self._slicer, self._clock, self._monotonic_s)
        return self._parts

    @property
    def questions(self) -> PeerQuestions | None:
        """Questions to other nodes; None: there is no node here."""
        return self.parts.questions if self.has_streams else None

    # --- for other nodes (PageSource) -------------------------------------------------------------

    def node_facts(self) -> Steps[Document]:
        return self._servers.node_facts()

    def stream_rows(self, uids: Sequence[Uid]) -> Steps[list[Document | None]]:
        return self.parts.streams.rows(uids[:DASHBOARD_REMOTE_ROWS])

    def consumer_rows(self, uids: Sequence[Uid]) -> Steps[list[Document]]:
        by_uid = self.parts.node.meta.streams_by_uid
        assets = [by_uid[uid] for uid in uids if uid in by_uid]
        return self.parts.consumers.documents(assets)

    async def stream_page(
        self, name: str, account: str, stream: str, query: Mapping[str, str]
    ) -> Document:
        asset = self._asset(account, stream)
        replica = self.parts.node.replica(asset.uid)
        if replica is None:
            raise Elsewhere(f"there is no replica of {stream} here")
        return await self._build(name, asset, replica, query)

    def verify(self) -> bool:
        return self._around.controls.scrub(True) is not None

    # --- about one stream -------------------------------------------------------------------------

    def _asset(self, account: str, stream: str) -> StreamAsset:
        asset = self.parts.node.meta.stream(stream, account)
        if asset is None:
            raise NotFound(f"there is no stream {stream[:200]!r} in the account {account[:200]!r}")
        return asset

    def find(self, grant: Grant, account: str, stream: str) -> StreamAsset:
        """Return a stream that `grant` sees. Raises NotFound: of others not even the existence is
        told."""
        if not grant.sees(account):
            raise NotFound(f"there is no stream {stream[:200]!r} in the account {account[:200]!r}")
        return self._asset(account, stream)

    async def page(self, name: str, asset: StreamAsset, query: Mapping[str, str]) -> Document:
        """Build a document about a stream, here or at its leader. Raises BadQuery, Elsewhere."""
        node = self.parts.node
        replica = node.replica(asset.uid)
        if replica is not None:
            return await self._build(name, asset, replica, query)
        leader = node.leader_of(asset.uid)
        if not leader or leader == node.server_name:
            reason = node.failed.get((asset.account, asset.name), "nobody leads it")
            raise Elsewhere(f"{asset.name} can't be shown: {reason}")
        return await self.parts.questions.page(leader, name, asset.account, asset.name, query)

    async def _build(
        self, name: str, asset: StreamAsset, replica: StreamHandle, query: Mapping[str, str]
    ) -> Document:
        parts = self.parts
        if name == MESSAGES:
            return await message_page(replica, read_message_query(query), self._slicer)
        if name == CONSUMER:
            consumer = replica.machine.consumers.get(query.get("consumer", ""))
            if consumer is None:
                shown = query.get("consumer", "")[:200]
                raise NotFound(f"there is no consumer {shown!r} of {asset.name}")
            return parts.consumers.detail(replica, consumer)
        if name == KEYS:
            return await key_page(replica, query, self._slicer)
        if name == KEY:
            return await key_value(replica, query.get("key", ""))
        return await self._slicer.wait(parts.streams.detail(asset, replica))

    async def detail(self, asset: StreamAsset) -> Document:
        """Build all about a stream: its blocks of the replica here, who leads it as the leader
        says."""
        parts = self.parts
        document = await self.page(DETAIL, asset, {})
        await self._slicer.wait(parts.table.look((asset,)))
        told = await parts.table.ask_leaders((asset,))
        return document | parts.streams.item(asset, told.get(asset.uid))

    def members(self, asset: StreamAsset) -> list[NodeId]:
        """Return the nodes that have a replica of a stream."""
        node = self.parts.node
        if not node.is_clustered:
            return [node.server_name]
        return sorted({*asset.peers, *asset.members})

    # --- lists ------------------------------------------------------------------------------------

    async def streams(self, grant: Grant, query: Query) -> Document:
        """Build a page of the streams."""
        parts, wait = self.parts, self._slicer.wait
        assets = await wait(parts.table.assets(grant))
        fresh_s = max(DASHBOARD_FRESH_S, len(assets) / DASHBOARD_SUMMED_STREAMS_PER_S)
        keys = parts.streams.sort_keys(fresh_s)
        wanted = read_list_query(query, keys)
        if wanted.sort not in _KNOWN_WITHOUT_ASKING:
            needs_all = wanted.sort in _KNOWN_TO_LEADERS
            await parts.table.ask_leaders(
                assets, needs_all=needs_all, fresh_s=fresh_s if needs_all else DASHBOARD_FRESH_S
            )
            if wanted.sort.startswith("rate"):
                await wait(parts.table.look(assets))
        page, total = await wait(select_page(assets, wanted, keys, _text_of_stream))
        told = await parts.table.ask_leaders(page)
        await wait(parts.table.look(page))
        parts.table.forget_gone()
        return list_document(parts.streams.items(page, told), total, wanted)

    async def consumers(self, grant: Grant, query: Query) -> Document:
        """Build a page of the consumers."""
        parts, wait = self.parts, self._slicer.wait
        wanted = read_list_query(query, consumer_documents.SORTS)
        assets = await wait(_with_consumers(grant, await wait(parts.table.assets(grant))))
        rows: list[AnyRow] = [*await wait(parts.consumers.rows(assets))]
        rows += await self._remote_consumers(assets)
        keys = _keys(parts.consumers.sort_key, consumer_documents.SORTS)
        page, total = await wait(select_page(rows, wanted, keys, consumer_documents.filter_text))
        return list_document(parts.consumers.items(page), total, wanted)

    async def _remote_consumers(self, assets: Iterable[StreamAsset]) -> list[Document]:
        """Return the rows of consumers of streams without a replica here."""
        parts, now = self.parts, self._monotonic_s()
        node = parts.node
        by_leader: dict[NodeId, list[Uid]] = {}
        for asset in assets:
            if node.replica(asset.uid) is None:
                leader = node.leader_of(asset.uid)
                if leader and leader != node.server_name:
                    by_leader.setdefault(leader, []).append(asset.uid)
        stale = {
            name: uids
            for name, uids in by_leader.items()
            if not self._consumers_told.get(name, _NOTHING_TOLD).holds(uids, now)
        }
        rows: dict[NodeId, list[Document]] = {}
        async for name, _, answer in parts.questions.ask_about(stale, CONSUMERS):
            rows.setdefault(name, []).extend(row for row in answer if isinstance(row, dict))
        for name, told in rows.items():
            self._consumers_told[name] = ConsumersTold(now, frozenset(stale[name]), told)
        known = {(asset.account, asset.name) for asset in assets}
        return [
            row
            for name in by_leader
            for row in self._consumers_told.get(name, _NOTHING_TOLD).rows
            if (row.get("account"), row.get("stream")) in known
        ]

    async def buckets(self, grant: Grant, query: Query) -> Document:
        """Build a page of the buckets."""
        parts, wait = self.parts, self._slicer.wait
        wanted = read_list_query(query, bucket_documents.BUCKET_SORTS)
        assets = [asset for asset in await wait(parts.table.assets(grant)) if is_bucket(asset)]
        await parts.table.ask_leaders(assets, needs_all=False, fresh_s=DASHBOARD_FRESH_S)
        keys = {**parts.streams.sort_keys(), **bucket_documents.sort_keys()}
        page, total = await wait(select_page(assets, wanted, keys, _text_of_stream))
        items = (bucket_item(asset, parts.table.numbers(asset.uid)) for asset in page)
        return list_document(items, total, wanted)

    def bucket(self, grant: Grant, account: str, name: str, kind: str = "") -> StreamAsset:
        """Return the stream of a bucket, of a kind if two have the name. Raises NotFound."""
        if kind != OBJECT_STORE:
            with suppress(NotFound):
                return self.find(grant, account, KEY_VALUE + name)
        return self.find(grant, account, OBJECTS + name)

    async def connections(self, grant: Grant, query: Query) -> Document:
        """Build a page of this server's client connections."""
        wanted = read_list_query(query, server_documents.CONNECTION_SORTS)
        found = self._servers.connections(grant)
        stats_of, now_ns = self._around.stats.stats_of, self._clock.now_ns()

        def sort_key(field: str, conn: Connection) -> str | int | float:
            stats = stats_of(conn)
            match field:
                case "address":
                    return f"{stats.ip}:{stats.port}"
                case "subscriptions":
                    return stats.subscription_count
                case "pending":
                    return stats.pending_bytes
                case "client":
                    return f"{stats.lang} {stats.version}"
                case "idle":
                    return now_ns - stats.last_activity_ns
                case "rtt":
                    return stats.rtt_ns
                case "cid" | "in_msgs" | "in_bytes" | "out_msgs" | "out_bytes":
                    return int(getattr(stats, field))
            return str(getattr(stats, field))

        def text(conn: Connection) -> str:
            stats = stats_of(conn)
            return f"{stats.name} {stats.account} {stats.user} {stats.ip}:{stats.port} {stats.lang}"

        keys = _keys(sort_key, server_documents.CONNECTION_SORTS)
        page, total = await self._slicer.wait(select_page(found, wanted, keys, text))
        return list_document(self._servers.connection_items(page), total, wanted)

    async def groups(self, grant: Grant, query: Query) -> Document:
        """Build a page of the Raft groups with a member here."""
        wait, wanted = self._slicer.wait, read_list_query(query, server_documents.GROUP_SORTS)
        servers, node = self._servers, self.parts.node
        uids = servers.group_uids(grant, await wait(self.parts.table.assets(grant)))
        if wanted.sort or wanted.filter:
            rows = await wait(servers.group_facts(uids))

            def sort_key(field: str, row: Document) -> str | int | float:
                value = row[field]
                return value if isinstance(value, str | int) else ""

            keys = _keys(sort_key, server_documents.GROUP_SORTS)
            found, total = await wait(select_page(rows, wanted, keys, _text_of_group))
            return list_document(iter(found), total, wanted)
        if wanted.is_descending:
            uids.reverse()
        shown = uids[wanted.offset : wanted.offset + wanted.limit]
        assert node is not None
        return list_document(iter(await wait(servers.group_facts(shown))), len(uids), wanted)

    # --- the overview -----------------------------------------------------------------------------

    async def overview_text(self) -> str:
        """Build the overview, as JSON in one line."""
        await self._ask_nodes()
        document = await self._slicer.wait(self._servers.overview(self._nodes_told))
        return await self._slicer.wait(gather(encode(document, ""), _WHOLE))

    async def peer_pages(self) -> list[str]:
        """Return the addresses of the dashboards of other nodes with a link."""
        await self._ask_nodes()
        found = [
            self._servers.page_of(name, said)
            for name, (_, said) in sorted(self._nodes_told.items())
            if self._around.is_up(name)
        ]
        return list(filter(None, found))

    async def _ask_nodes(self) -> None:
        """Ask other nodes about themselves. It waits, and not for long, only for those of which
        nothing is known yet: the others' last words are shown with their age."""
        node = self._around.node
        peers = node.peers if node is not None else None
        now = self._monotonic_s()
        # Pages ask as often as they like, also before anybody has logged in; nodes once a second.
        if peers is None or now - self._nodes_asked_s < DASHBOARD_OVERVIEW_S * 0.9:
            return
        self._nodes_asked_s = now
        unknown = {name for name in peers.nodes() if name not in self._nodes_told}
        all_told = asyncio.Event()
        for name in peers.nodes():

            def told(found: object, name: NodeId = name) -> None:
                if isinstance(found, dict):  # else it is an error
                    self._nodes_told[name] = self._monotonic_s(), found
                unknown.discard(name)
                if not unknown:
                    all_told.set()

            peers.call(name, NODE, [], told, int(DASHBOARD_ANSWER_S * 1000))
        if unknown:
            try:
                async with asyncio.timeout(DASHBOARD_ANSWER_S):
                    await all_told.wait()
            except TimeoutError:
                return


def _keys(
    sort_key: Callable[..., str | int | float], fields: Iterable[str]
) -> dict[str, Callable[..., str | int | float]]:
    return {field: partial(sort_key, field) for field in fields}


def _with_consumers(grant: Grant, assets: Sequence[StreamAsset]) -> Steps[Sequence[StreamAsset]]:
    """Collect the streams of which `grant` may list consumers."""
    if grant.permissions is None:
        return assets
    found = []
    for asset in looked_at(assets):
        if asset is None:
            yield
        elif grant.may_request(f"$JS.API.CONSUMER.LIST.{asset.name}"):
            found.append(asset)
    return found


def _text_of_stream(asset: StreamAsset) -> str:
    return f"{asset.account} {asset.name} {' '.join(asset.config.get('subjects') or ())}"


def _text_of_group(row: Document) -> str:
    return f"{row['group']} {row['account']} {row['stream']} {row['leader']}"
