"""What a stream's machine holds, and the steps in which an entry changes it: write, remove, roll.

The state lives here, in `StreamContent`. What comes, what leaves and who gets it are layers above
it, each of which sees those below: `StreamConsumers`, `StreamRemoval`, `StreamStoring`, and
`stream.StreamMachine`, which is what everybody else holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from streamd.machine.base import SEAL, ColumnSource, Effects, RecordCodec
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.digest import MASK64, chain64
from streamd.machine.indexes.index import StreamIndex
from streamd.machine.indexes.removal import Gone
from streamd.machine.streams.dedupe import DedupeWindow
from streamd.machine.streams.expiry import Expiry
from streamd.machine.streams.interest_index import Audience
from streamd.machine.streams.retention import Limits
from streamd.types import Index, Msg, Seq, Uid

_SEQ_MAX: Final = (1 << 64) - 2  # it and the one after it fit 64 bits


class StreamContent:
    """The state of one stream with its consumers. Used only as a base of `StreamMachine`."""

    def __init__(
        self,
        *,
        uid: Uid,
        config: dict[str, Any],
        created_ns: int,
        codec: RecordCodec,
        columns: ColumnSource,
        block_bytes: int,
    ) -> None:
        self.uid = uid
        self.name: str = config["name"]
        self.name_bytes = self.name.encode()
        self.created_ns = created_ns
        self.applied: Index = 0
        self.config_meta_index: Index = uid
        self.config = config
        self.limits = Limits(config)
        self.index = StreamIndex(
            codec=codec,
            columns=columns,
            block_bytes=block_bytes,
            is_memory=config.get("storage", "file") == "memory",
            first_seq=int(config.get("first_seq") or 0) or 1,
        )
        self.index.track_seqs(self.limits.tracks_seqs)
        self.dedupe = DedupeWindow(int(config.get("duplicate_window") or 0))
        self.last_msg_id = b""
        self.consumers: dict[str, Consumer] = {}
        self.consumers_by_uid: dict[Uid, Consumer] = {}
        self._audience: Audience[Consumer] | None = None  # of `consumers`
        # With it: those that had another filter before, and may hold what matches that.
        self._refiltered: dict[Consumer, None] = {}
        self.expiry = Expiry(self.index)
        self._codec = codec
        # What the entry being applied has done so far; empty between entries.
        self._blob: list[bytes] = []
        self._blob_offset = 0
        self._stored: list[tuple[Seq, Sequence[Msg]]] = []
        self._gone_seqs: list[Seq] = []
        self._gone_subjects: list[bytes] = []
        self._is_purged = False
        self._out: Effects | None = None

    # --- numbers --------------------------------------------------------------------------------

    @property
    def digest(self) -> int:
        """64-bit content digest of the live messages (machine/digest.py)."""
        return self.index.digest

    def fingerprint(self) -> int:
        """See machine.base.Machine. Costs a little per consumer, nothing per message."""
        index = self.index
        consumers = 0
        for consumer in self.consumers.values():
            consumers += chain64(
                (
                    consumer.uid,
                    consumer.delivered_cseq,
                    consumer.delivered_sseq,
                    consumer.floor_cseq,
                    consumer.floor_sseq,
                    len(consumer.pending),
                    len(consumer.redelivered),
                )
            )
        return chain64(
            (
                self.digest,
                index.first_seq,
                index.last_seq,
                index.count,
                index.bytes,
                len(index.deleted),
                self.config_meta_index,
                len(self.consumers),
                consumers & MASK64,
            )
        )

    @property
    def tail(self) -> tuple[int, int]:
        """(block_no, offset) where the next record goes: all before it belongs to `applied`."""
        return self.index.active.block_no, self.index.active.end_offset

    def state(self) -> dict[str, Any]:
        """The numbers of a StreamInfo's `state`; times in ns, 0 for none."""
        index = self.index
        is_new = not index.last_seq
        return {
            "messages": index.count,
            "bytes": index.bytes,
            "first_seq": 0 if is_new else index.first_seq,
            "first_ts": index.first_ts(),
            "last_seq": index.last_seq,
            "last_ts": index.last_ts,
            "num_subjects": len(index.subjects),
            "num_deleted": len(index.deleted),
            "consumer_count": len(self.consumers),
        }

    def _has_seqs_for(self, count: int) -> bool:
        """False if the stream is at the end of its seqs: a purge or `first_seq` may bring it there
        at once."""
        return self.index.last_seq + count <= _SEQ_MAX

    # --- the steps of an entry ------------------------------------------------------------------

    def _write(self, ts: int, msgs: list[Msg], flags: list[int] | None) -> Seq:
        """Store `msgs`, admitted already, with the next seqs. Returns the first of them."""
        index = self.index
        pieces, lengths, crcs = self._codec.encode_batch(index.last_seq + 1, ts, msgs)
        first = index.append(first_ts=ts, msgs=msgs, lengths=lengths, crcs=crcs, flags=flags)
        self._blob += pieces
        self._stored.append((first, msgs))
        return first

    def _remove(self, seqs: Sequence[Seq]) -> Gone:
        """Remove the live ones among `seqs`. Consumers learn of it when the entry ends."""
        gone, subjects, flags = self.index.remove(seqs)
        self._gone_seqs += gone
        self._gone_subjects += subjects
        return gone, subjects, flags

    def _roll(self, out: Effects) -> None:
        """Seal the active block. What the entry writes from here on goes into the next."""
        sealed, footer = self.index.roll()
        out.block_ops.append((SEAL, sealed.block_no, sealed.end_offset, footer))
        self._blob_offset = self.index.active.end_offset
