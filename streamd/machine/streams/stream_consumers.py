"""A stream's consumers: commands that name one, and what each of them is told.

Which of them wants a message decides under interest and workqueue retention whether the stream
keeps it, so a consumer that comes, goes or acks may take messages with it. What a consumer makes
of what it is told: `consumer.Consumer`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final

from streamd import errors
from streamd.machine.base import Effects
from streamd.machine.commands import Command
from streamd.machine.consumers import consumer_checks
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.consumers.consumer_position import ConsumerPosition
from streamd.machine.indexes.seqset import as_ranges
from streamd.machine.streams.interest_index import Audience
from streamd.machine.streams.stream_content import StreamContent
from streamd.machine.streams.trimming import Unwanted
from streamd.types import Entry, Index, Seq

_FEW_CONSUMERS: Final = 16  # are asked one by one


class StreamConsumers(StreamContent):
    """The part of `StreamMachine` that has to do with consumers."""

    # --- commands -------------------------------------------------------------------------------

    def _apply_to_consumer(self, entry: Entry, command: Command, out: Effects) -> Any:
        consumer = self.consumers_by_uid.get(command[2])
        if consumer is None:
            return False  # deleted before this was applied
        consumer.apply(command, out)
        return True

    def _apply_create_consumer(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, ts, name, config, action, _ = command
        refused = consumer_checks.check_create(
            name, config, action, stream_config=self.config, consumers=self.consumers
        )
        if refused is not None:
            return refused
        existing = self.consumers.get(name)
        if existing is not None:
            refilters = existing.refilters
            existing.update(config)
            if existing.refilters > refilters:
                self._note_consumer(existing)
                if self.limits.is_interest:
                    self._remove(Unwanted(self.index, self.audience()).step())
            return existing
        consumer = Consumer.create(
            uid=entry.index, name=name, config=config, created_ns=ts, stream=self
        )
        self.consumers[name] = self.consumers_by_uid[entry.index] = consumer
        self._note_consumer(consumer)
        fields = {"stream": self.name, "consumer": name}
        out.events.append(("consumer_created", fields))
        if consumer.paused_until_ns > ts:
            until = {"until_ns": consumer.paused_until_ns}
            out.events.append(("consumer_paused", fields | until))
        return consumer

    def _apply_delete_consumer(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, _, name, uid, reason, *later = command
        consumer = self.consumers.get(name)
        if consumer is None or uid not in (0, consumer.uid):
            return errors.CONSUMER_NOT_FOUND()
        del self.consumers[name]
        del self.consumers_by_uid[consumer.uid]
        self._refiltered.pop(consumer, None)
        if self._audience is not None:
            self._audience.drop(consumer)
        if self.limits.is_interest and later != [True]:
            self._remove(Unwanted(self.index, self.audience()).step())
        fields = {
            "stream": self.name,
            "consumer": name,
            "uid": consumer.uid,
            "reason": reason,
        }
        out.events.append(("consumer_deleted", fields))
        return True

    def _apply_pause_consumer(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, now_ns, name, until_ns = command
        consumer = self.consumers.get(name)
        if consumer is None:
            return errors.CONSUMER_NOT_FOUND()
        if consumer.pause(until_ns, now_ns=now_ns):
            fields = {"stream": self.name, "consumer": name, "until_ns": until_ns}
            out.events.append(("consumer_paused", fields))
        return consumer

    def _apply_reset_consumer(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, _, name, seq = command
        consumer = self.consumers.get(name)
        if consumer is None:
            return errors.CONSUMER_NOT_FOUND()
        refused = consumer_checks.check_reset(consumer, seq)
        if refused is not None:
            return refused
        consumer.reset(seq)
        return consumer

    # --- what a consumer tells ------------------------------------------------------------------

    def on_acked(self, consumer: ConsumerPosition, sseqs: Sequence[Seq]) -> None:
        """See consumer_position.StreamView: remove what nobody needs any longer."""
        index = self.index
        done: list[Seq] = []
        for seq in sseqs:
            if not index.is_live(seq):
                continue
            # A work queue gave it to nobody else, whatever the consumer's filter is by now.
            if self.limits.is_workqueue or not any(
                each is not consumer and each.awaits(seq)
                for each in self._takers(index.subject_at(seq))
            ):
                done.append(seq)
        if done:
            self._remove(done)

    # --- what consumers are told when an entry ends ---------------------------------------------

    def _tell_stored(self, out: Effects) -> None:
        if len(self.consumers) <= _FEW_CONSUMERS:
            for consumer in self.consumers.values():
                if consumer.needs_store_hook:
                    for first, msgs in self._stored:
                        consumer.on_stored_batch(first, [msg[0] for msg in msgs])
        else:
            audience = self.audience()
            for first, msgs in self._stored:
                subjects = [msg[0] for msg in msgs]
                for consumer in audience.of_all:
                    if consumer.needs_store_hook:
                        consumer.on_stored_batch(first, subjects)
                for consumer in audience.filtered(subjects):
                    consumer.on_stored_batch(first, subjects)
        first, msgs = self._stored[-1]
        out.stored_last = first + len(msgs) - 1
        self._stored = []

    def _tell_gone(self, index: Index, out: Effects) -> bytes:
        """Tell consumers what left; return the tombstone for what left from the middle."""
        seqs, subjects = self._gone_seqs, self._gone_subjects
        if self._is_purged:
            is_front = not seqs or max(seqs) < self.index.first_seq
            for consumer in self.consumers.values():
                consumer.on_purged(is_front=is_front)
                out.bereft[consumer] = None
        elif self.consumers:
            if any(a > b for a, b in pairwise(seqs)):
                order = sorted(range(len(seqs)), key=seqs.__getitem__)
                seqs = [seqs[at] for at in order]
                subjects = [subjects[at] for at in order]
            for consumer in self._concerned(subjects):
                consumer.on_removed(seqs, subjects, out)
                out.bereft[consumer] = None
        # What left from the front is told by first_seq alone.
        first_seq = self.index.first_seq
        middle = sorted(seq for seq in seqs if seq > first_seq)
        return self._codec.encode_tombstone(as_ranges(middle), index) if middle else b""

    def _concerned(self, subjects: Sequence[bytes]) -> Collection[Consumer]:
        """Who has to know that messages with these subjects left, in the order they came."""
        if len(self.consumers) <= _FEW_CONSUMERS:
            return self.consumers.values()
        audience = self.audience()
        found = {*audience.of_all, *audience.filtered(subjects), *self._refiltered}
        return sorted(found, key=attrgetter("uid"))

    # --- who wants what -------------------------------------------------------------------------

    def audience(self) -> Audience[Consumer]:
        """The consumers by what they want. It is kept up."""
        if self._audience is None:
            consumers = self.consumers.values()
            self._audience = Audience((each, each.matcher) for each in consumers)
            self._refiltered = dict.fromkeys(each for each in consumers if each.refilters)
        return self._audience

    def _note_consumer(self, consumer: Consumer) -> None:
        """It is new, or has another filter."""
        if self._audience is not None:
            self._audience.put(consumer, consumer.matcher)
            if consumer.refilters:
                self._refiltered[consumer] = None

    def _takers(self, subject: bytes) -> Collection[Consumer]:
        """Those whose filter lets `subject` through."""
        if len(self.consumers) <= _FEW_CONSUMERS:
            return [
                each
                for each in self.consumers.values()
                if each.matcher is None or each.matcher.matches(subject)
            ]
        return self.audience().takers(subject)
