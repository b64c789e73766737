"""`StreamContent`: the messages of one stream and the settings that decide about them.

Consumers are not part of it (`stream_consumers`), nor is the entry that changes it
(`entry_changes`): the checks of `publish` read a stream's content and nothing else.
"""

from __future__ import annotations

from typing import Final

from streamd.machine.asset_configs import StreamConfig
from streamd.machine.base import ColumnSource, RecordCodec
from streamd.machine.indexes.index import StreamIndex
from streamd.machine.streams.counters import CounterTotals
from streamd.machine.streams.dead_letters import DeadLetters
from streamd.machine.streams.dedupe import DedupeWindow
from streamd.machine.streams.expiry import Expiry
from streamd.machine.streams.fast_batches import FastBatches
from streamd.machine.streams.origins import MIRROR, Origins, origin_names
from streamd.machine.streams.producers import Producers
from streamd.machine.streams.retention import Limits
from streamd.machine.streams.schedules import Schedules
from streamd.types import Index, Seq, Uid

FeaturesState = dict[str, list[list[bytes | int]]]
"""Part of a snapshot: what is kept for features that the stream uses, by name; absent: nothing."""

SEQ_MAX: Final = (1 << 64) - 2  # it and the one after it fit 64 bits


class StreamContent:
    """Identity, configuration and messages of one stream.

    `index`, `dedupe`, `expiry`, `counters` and `schedules` are the same objects for the stream's
    whole life; `config` and `limits` are replaced by `configure`.
    """

    def __init__(
        self,
        *,
        uid: Uid,
        config: StreamConfig,
        created_ns: int,
        codec: RecordCodec,
        columns: ColumnSource,
        block_bytes: int,
    ) -> None:
        self.uid = uid
        self.name: str = config["name"]
        self.name_bytes = self.name.encode()
        self.created_ns = created_ns
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
        self.expiry = Expiry(self.index)
        self.counters = CounterTotals(self.index)
        self.schedules = Schedules(self.index)
        self.origins = Origins()
        self.origin_names = origin_names(config)
        self.fast_batches = FastBatches()
        self.producers = Producers()
        self.letters = DeadLetters()

    def configure(self, config: StreamConfig, meta_index: Index) -> None:
        """Take over `config`, which the entry `meta_index` of the meta log has set. Messages that
        it no longer allows are still there."""
        self.config = config
        self.config_meta_index = meta_index
        self.limits = Limits(config)
        self.origin_names = origin_names(config)
        self.dedupe.resize(int(config.get("duplicate_window") or 0))
        self.expiry.forget_hint()
        if not config.get("allow_batched"):
            self.fast_batches.clear()
        self.index.track_seqs(self.limits.tracks_seqs)

    def forget_producers(self, now_ts: int) -> None:
        """Forget producers that were silent for too long at `now_ts`, if there is such a limit."""
        if self.limits.producer_expiry_ns:
            self.producers.forget_before(now_ts - self.limits.producer_expiry_ns)

    def features_state(self) -> FeaturesState:
        """Return what a snapshot keeps of features that only some streams use."""
        state = {
            "counters": self.counters.to_state(),
            "origins": self.origins.to_state(),
            "schedules": self.schedules.to_state(),
            "fast": self.fast_batches.to_state(),
            "producers": self.producers.to_state(),
            "letters": self.letters.to_state(),
        }
        return {name: rows for name, rows in state.items() if rows}

    def load_features(self, state: FeaturesState) -> None:
        """Take over what `features_state` gave."""
        self.counters.load(state.get("counters", []))
        self.schedules.load(state.get("schedules", []))
        self.origins.load(state.get("origins", []))
        self.fast_batches.load(state.get("fast", []))
        self.producers.load(state.get("producers", []))
        self.letters.load(state.get("letters", []))

    def position_of(self, name: str, identity: str) -> Seq:
        """Return up to which of its seqs an origin's messages are taken. A mirror has the seqs of
        its origin, whatever that is by now."""
        return self.index.last_seq if name == MIRROR else self.origins.of(name, identity)

    def has_seqs_for(self, count: int) -> bool:
        """Return False if the stream is at the end of its seqs, where a purge or `first_seq` may
        bring it at once."""
        return self.index.last_seq + count <= SEQ_MAX
