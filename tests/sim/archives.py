"""Worlds of five nodes in which clients take archives of streams and make new streams of them.

An archive is the stream, with its consumers, as of one applied entry between the request and its
answer. A stream that came back from it has the same messages under the same seqs, and the same
consumers. At the end no stream is left that is neither whole nor gone.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from typing import TYPE_CHECKING

from streamd.archives.archive_reader import ArchiveReader
from streamd.archives.archive_records import (
    ArchivedConsumer,
    ArchivedEnd,
    ArchivedMessages,
    ArchivedState,
    ArchiveError,
    Row,
)
from streamd.types import Index, Msg, Seq, Uid
from tests.sim import plan
from tests.sim.cuts import cut_of
from tests.sim.plan import ALWAYS, Document, Plan
from tests.sim.workload import Client
from tests.sim.world import SECOND, Violation, need

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

PATIENCE_US = 12 * SECOND  # of a client, for an archive and what is made of it
GONE_US = 60 * SECOND  # until what nobody carries on is gone
CHUNK = 1024


def draw_archives(rng: random.Random, node_count: int) -> Plan:
    """Draw the plan of one seed."""
    drawn = plan.draw(rng, node_count)
    return Plan(drawn.configs, drawn.actions | {"back_up": 4.0, "create_consumer": 2.0})


class _Archive:
    """An archive on its way to a client."""

    def __init__(self, uid: Uid, since: Index) -> None:
        self.uid = uid
        self.since = since  # committed when it was asked for
        self.until: Index = 0  # when the answer came
        self.config: Document = {}
        self.state: Document = {}
        self.chunks: list[bytes] = []
        self.rows: list[Row] = []
        self.consumers: list[ArchivedConsumer] = []
        self.last_seq: Seq = 0

    def read(self) -> None:
        """Read what came. Raises ArchiveError."""
        reader = ArchiveReader()
        for piece in (*self.chunks, b""):
            for record in reader.feed(piece) if piece else reader.finish():
                if isinstance(record, ArchivedMessages):
                    self.rows += record.rows
                elif isinstance(record, ArchivedConsumer):
                    self.consumers.append(record)
                elif isinstance(record, ArchivedState):
                    self.last_seq = record.last_seq
                elif isinstance(record, ArchivedEnd):
                    self.last_seq = max(self.last_seq, record.last_seq)


class ArchivesClient(Client):
    """A client that also backs streams up, and restores what it got under another name."""

    def __init__(self, name: bytes, cluster: SimCluster) -> None:
        super().__init__(name, cluster, cluster.ledger)
        self._archive: _Archive | None = None
        self._deliver = b""
        self._restored = f"R-{name.decode()}"

    def _wait_longer(self) -> None:
        """Have more patience than with other operations."""
        self._operation += 1
        self.world.after(PATIENCE_US, self._timed_out, self._operation)

    # --- an archive ---------------------------------------------------------------------------

    def back_up(self) -> None:
        """Ask for an archive; what it brings comes on a subject of its own."""
        names = [name for name in ALWAYS if name in self.cluster.plan.configs]
        process = self.process
        handle = process.node.stream(self.rng.choice(names)) if process is not None else None
        truth = self.ledger.checkers.truths.get(handle.uid) if handle is not None else None
        if handle is None or truth is None:
            self.finish()
            return
        truth.begin_cuts()
        self._wait_longer()
        archive = self._archive = _Archive(handle.uid, truth.last)
        self._deliver = b"%b.a.%d" % (self.name, next(self._replies))

        def answered(answer: Document) -> None:
            if "error" in answer or archive is not self._archive:
                self._archive = None
                self.finish()
                return
            archive.until = truth.last
            archive.config, archive.state = answer["config"], answer["state"]

        document = {"deliver_subject": self._deliver.decode(), "chunk_size": CHUNK}
        self.request(f"STREAM.SNAPSHOT.{handle.name}", document, answered)

    def finish(self) -> None:
        self._archive = None
        super().finish()

    def on_message(
        self, to: bytes, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> None:
        if to != self._deliver:
            super().on_message(to, subject, reply, headers, payload)
            return
        archive = self._archive
        if archive is None:
            return
        if payload:
            is_next = not reply or int(reply.split(b".")[-1]) == len(archive.chunks) + 1
            if is_next:
                archive.chunks.append(payload)
            else:
                self._give_up()  # one was lost on its way
        elif headers and not headers.startswith(b"NATS/1.0 204"):
            self._give_up()
        else:
            self._on_whole(archive)

    def _give_up(self) -> None:
        self.world.counts["archives not whole"] += 1
        self.finish()

    def _on_whole(self, archive: _Archive) -> None:
        try:
            archive.read()
        except ArchiveError:
            self._give_up()
            return
        if not archive.config:
            self._give_up()
            return
        self._check(archive)
        if self.rng.random() < 0.7:
            self._restore(archive)
        else:
            self.finish()

    def _check(self, archive: _Archive) -> None:
        truth = self.ledger.checkers.truths[archive.uid]
        if archive.uid in self.ledger.checkers.forfeited:
            return
        for seq, _, *msg in archive.rows:
            found = truth.content.get(seq)
            need(tuple(msg) == found, f"an archive of {archive.uid} has {seq} as {msg}: {found}")
        cut = cut_of(
            [row[0] for row in archive.rows],
            archive.last_seq,
            [(each.name, each.delivered, each.floor, _pending(each)) for each in archive.consumers],
        )
        cuts = truth.cuts or {}
        known = [index for index in range(archive.since, archive.until + 1) if cuts[index] == cut]
        need(
            known,
            f"an archive of {archive.uid} is that of no entry from {archive.since} to "
            f"{archive.until}: {cut}, not {cuts[archive.since]} ... {cuts[archive.until]}",
        )
        self.world.counts["archives"] += 1
        self.world.counts["archived messages"] += len(archive.rows)

    # --- a stream of it -----------------------------------------------------------------------

    def _restore(self, archive: _Archive) -> None:
        name = self._restored
        own = {"name": name, "subjects": [name + ".>"]}
        document = {"config": archive.config | own, "state": archive.state}

        def answered(answer: Document) -> None:
            if "error" in answer:
                self.world.counts["restores refused"] += 1
                self._delete()
                return
            self._upload(archive, answer["deliver_subject"].encode(), 0)

        if self.process is None:
            self.finish()
        else:
            self.request(f"STREAM.RESTORE.{name}", document, answered)

    def _upload(self, archive: _Archive, to: bytes, at: int) -> None:
        """Send the chunk `at`, and behind the last an empty one."""
        process = self.process
        if process is None:
            self.finish()
            return

        def answered(headers: bytes, payload: bytes) -> None:
            if not payload:
                self._upload(archive, to, at + 1)
            elif b'"error"' in payload:
                self.world.counts["restores failed"] += 1
                self._delete()
            else:
                self._check_restored(archive)
                self._delete()

        chunk = archive.chunks[at] if at < len(archive.chunks) else b""
        reply = self.await_reply(answered)
        process.schedule(0, process.wires.send, to, [(to, reply, b"", chunk)])

    def _check_restored(self, archive: _Archive) -> None:
        truth = self.ledger.checkers.named(self._restored)
        need(truth is not None, f"{self._restored} is said to be whole, and is not there")
        assert truth is not None
        wanted: dict[Seq, Msg] = {row[0]: row[2:] for row in archive.rows}
        need(truth.content == wanted, f"{self._restored} has other messages than its archive")
        index = truth.machine.index
        live = list(index.live.seqs(index.first_seq, index.last_seq))
        need(live == sorted(wanted), f"{self._restored} has {live}, not {sorted(wanted)}")
        need(index.last_seq == archive.last_seq, f"{self._restored} ends at {index.last_seq}")
        consumers = truth.machine.consumers
        names = sorted(each.name for each in archive.consumers)
        need(sorted(consumers) == names, f"{self._restored} has {sorted(consumers)}, not {names}")
        for each in archive.consumers:
            held = consumers[each.name]
            if held.is_push:
                continue  # it goes on at once
            pending = sorted((seq, cseq) for seq, (cseq, _) in held.pending.items())
            delivered = (held.delivered_cseq, self._behind(live, held.delivered_sseq))
            floor = (held.floor_cseq, self._behind(live, held.floor_sseq))
            had = (
                (each.delivered[0], self._behind(live, each.delivered[1])),
                (each.floor[0], self._behind(live, each.floor[1])),
                _pending(each),
            )
            text = f"{each.name} of {self._restored} is at {delivered} {floor} {pending}"
            need((delivered, floor, pending) == had, f"{text}, was at {had}")
            self.world.counts["consumers restored"] += 1
        self.world.counts["restores"] += 1

    @staticmethod
    def _behind(live: list[Seq], seq: Seq) -> int:
        """Return how many messages are at or before `seq`: it may pass over what is not there."""
        return bisect_right(live, seq)

    def _delete(self) -> None:
        if self.process is None:
            self.finish()
        else:
            self._order(f"STREAM.DELETE.{self._restored}", None, "restored streams deleted")


def _pending(consumer: ArchivedConsumer) -> list[tuple[Seq, int]]:
    return sorted((seq, cseq) for seq, cseq, _ in consumer.pending)


def await_none_restoring(cluster: SimCluster) -> None:
    """Wait until each stream is whole, or gone."""
    is_settled = cluster.every_ms(
        100, lambda: not any(each.config.get("restoring") for each in cluster.assets())
    )
    if not cluster.world.run(cluster.world.now_us + GONE_US, is_settled):
        left = [each.name for each in cluster.assets() if each.config.get("restoring")]
        raise Violation(f"after {GONE_US / SECOND} s neither whole nor gone: {left}")
