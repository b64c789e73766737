"""`StreamTable`: all streams of the cluster, with the few numbers that lists are sorted by.

Of a stream with a replica here they are read from it; of another one they are what its leader said
last. Nothing is kept up to date that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from streamd.limits import DASHBOARD_FRESH_S
from streamd.machine.meta import StreamAsset
from streamd.net.dashboard.grants import Grant
from streamd.net.dashboard.peer_questions import ROWS, PeerQuestions
from streamd.net.dashboard.rates import Rates
from streamd.net.monitoring.sliced_pages import Slicer, Steps, looked_at
from streamd.node.ports import NodeHandle, StreamHandle
from streamd.types import Document, NodeId, Uid


class StreamNumbers(NamedTuple):
    """Numbers of a stream."""

    messages: int = 0
    bytes: int = 0
    last_seq: int = 0
    last_ns: int = 0  # when the last message was stored; 0: never
    consumers: int = 0


def numbers_of(replica: StreamHandle) -> StreamNumbers:
    """Return the numbers of a replica here."""
    machine = replica.machine
    live = machine.index.live
    return StreamNumbers(live.count, live.bytes, live.last_seq, live.last_ts, machine.listed_count)


class StreamTable:
    """Streams by uid. `clock` counts seconds."""

    def __init__(
        self,
        node: NodeHandle,
        questions: PeerQuestions,
        slicer: Slicer,
        clock: Callable[[], float],
    ) -> None:
        self._node = node
        self._questions = questions
        self._slicer = slicer
        self._clock = clock
        self._rates: Rates[Uid] = Rates(clock)
        # Those of an account ("": of all) as of an entry of the meta group's log.
        self._sorted: tuple[int, str, Sequence[StreamAsset]] = (-1, "", ())
        self._told: dict[Uid, tuple[float, Document]] = {}  # by a leader: when, and its row

    def assets(self, grant: Grant) -> Steps[Sequence[StreamAsset]]:
        """Collect the streams that `grant` sees, by account and name."""
        meta = self._node.meta
        at, account, known = self._sorted
        if (at, account) == (meta.applied, grant.account):
            return known
        applied, by_key = meta.applied, meta.streams_by_key
        keys = [key for key in by_key if grant.sees(key[0])]
        keys.sort()
        found = []
        for key in looked_at(keys):
            if key is None:
                yield
                continue
            asset = by_key.get(key)  # another one, or none, after a pause
            if asset is not None:
                found.append(asset)
        self._sorted = applied, grant.account, found
        return found

    def numbers(self, uid: Uid) -> StreamNumbers:
        """Return the numbers of a stream, as far as they are known here."""
        replica = self._node.replica(uid)
        if replica is not None:
            return numbers_of(replica)
        _, row = self._told.get(uid, (0.0, None))
        return StreamNumbers(*row["numbers"]) if row is not None else StreamNumbers()

    def told(self, uid: Uid, fresh_s: float) -> Document | None:
        """Return the row of a stream as its leader told it; None: not in the last `fresh_s`."""
        told_s, row = self._told.get(uid, (0.0, None))
        return row if self._clock() - told_s < fresh_s else None

    def rate(self, uid: Uid) -> float:
        """Return the messages a second of a stream at the last look."""
        return self._rates.rate(uid)

    def look(self, assets: Iterable[StreamAsset]) -> Steps[None]:
        """Look at the counters of these streams, for their rates."""
        replica_of, note = self._node.replica, self._rates.note
        for asset in looked_at(assets):
            if asset is None:
                yield
                continue
            replica = replica_of(asset.uid)
            if replica is not None:
                note(asset.uid, replica.machine.index.live.last_seq)
            else:
                note(asset.uid, self.numbers(asset.uid).last_seq)

    def forget_gone(self) -> None:
        """Forget what was known of streams that are gone."""
        uids = self._node.meta.streams_by_uid
        self._rates.keep(uids)
        if len(self._told) > 2 * len(uids) + 64:
            self._told = {uid: told for uid, told in self._told.items() if uid in uids}

    # --- what leaders say -----------------------------------------------------------------------

    async def ask_leaders(
        self, assets: Iterable[StreamAsset], *, needs_all: bool = True, fresh_s: float = 0.0
    ) -> dict[Uid, Document]:
        """Return the rows of streams that other nodes lead, as these tell them; what nobody tells
        in time is left out. Without `needs_all` only streams without a replica here are asked for.
        What was told less than `fresh_s` ago is not asked for again."""
        node, now = self._node, self._clock()
        asked: dict[NodeId, list[Uid]] = {}
        found: dict[Uid, Document] = {}
        for asset in assets:
            leader = node.leader_of(asset.uid)
            if leader == node.server_name or not leader:
                continue
            told_s, row = self._told.get(asset.uid, (-DASHBOARD_FRESH_S, None))
            if not needs_all and node.replica(asset.uid) is not None:
                continue
            if row is not None and now - told_s < fresh_s:
                found[asset.uid] = row
                continue
            asked.setdefault(leader, []).append(asset.uid)
        async for _, uids, answer in self._questions.ask_about(asked, ROWS):
            if len(answer) == len(uids):
                rows = zip(uids, answer, strict=True)
                told = {uid: row for uid, row in rows if isinstance(row, dict)}
                found |= told
                self._told |= {uid: (now, row) for uid, row in told.items()}
        return found
