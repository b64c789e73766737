"""`StreamConsumers`: the consumers of one stream, the commands that name one, their notifications.

Under interest and workqueue retention the consumers' interest decides whether the stream keeps a
message, so a consumer that comes, goes or acks may remove messages. What a consumer does with a
notification: `consumer.Consumer`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final

from streamd import errors, limits
from streamd.errors import JsError
from streamd.machine.asset_configs import StreamConfig
from streamd.machine.base import Effects, RecordCodec
from streamd.machine.commands import Command
from streamd.machine.consumers import consumer_checks
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.extension_settings import dead_letter
from streamd.machine.indexes.seqset import as_ranges
from streamd.machine.streams.dead_letters import MAX_DELIVER, TERMINATED
from streamd.machine.streams.entry_changes import EntryChanges
from streamd.machine.streams.interest_index import InterestIndex
from streamd.machine.streams.stream_content import StreamContent
from streamd.machine.streams.trimming import Unwanted
from streamd.types import Entry, Index, Seq, Uid

_FEW_CONSUMERS: Final = 16  # are asked one by one


class StreamConsumers:
    """The consumers by name and by uid, and an index of their interest.

    Implements `consumer.StreamView`: it is what a consumer knows of its stream.
    """

    def __init__(self, content: StreamContent, changes: EntryChanges, codec: RecordCodec) -> None:
        self._content = content
        self._changes = changes
        self._codec = codec
        self.name = content.name
        self.index = content.index
        self.by_name: dict[str, Consumer] = {}
        self.direct_names: dict[str, None] = {}  # of those by which other streams copy this one
        self.by_uid: dict[Uid, Consumer] = {}
        self._interest: InterestIndex[Consumer] | None = None  # of `by_name`
        # With it: consumers that had another filter before, and may hold what matches that.
        self._refiltered: dict[Consumer, None] = {}

    @property
    def config(self) -> StreamConfig:
        """The stream's configuration."""
        return self._content.config

    @property
    def listed_count(self) -> int:
        """The number of consumers without those by which other streams copy this one."""
        return len(self.by_name) - len(self.direct_names)

    def add(self, consumer: Consumer) -> None:
        """Enter a consumer that is new or comes from a snapshot."""
        self.by_name[consumer.name] = self.by_uid[consumer.uid] = consumer
        if consumer.config.get("direct"):
            self.direct_names[consumer.name] = None

    def enter(self, consumer: Consumer) -> None:
        """Enter a consumer that an entry brought."""
        self.add(consumer)
        self._note_consumer(consumer)

    # --- commands -------------------------------------------------------------------------------

    def apply_to_consumer(self, entry: Entry, command: Command, out: Effects) -> bool:
        consumer = self.by_uid.get(command[2])
        if consumer is None:
            return False  # deleted before this was applied
        consumer.apply(command, out)
        return True

    def apply_create(self, entry: Entry, command: Command, out: Effects) -> Consumer | JsError:
        _, ts, name, config, action, _, *more = command
        refused = consumer_checks.check_create(
            name,
            config,
            action,
            stream_config=self.config,
            consumers=self.by_name,
            account_max=more[0] if more else 0,
        )
        if refused is not None:
            return refused
        existing = self.by_name.get(name)
        if existing is not None:
            refilters = existing.refilters
            existing.update(config)
            if existing.refilters > refilters:
                self._note_consumer(existing)
                if self._content.limits.is_interest:
                    self._changes.remove(self._unwanted())
            if more[1:] == [True]:
                existing.reset(0)
            return existing
        consumer = Consumer.create(
            uid=entry.index, name=name, config=config, created_ns=ts, stream=self
        )
        self.enter(consumer)
        fields = {"stream": self.name, "consumer": name}
        out.events.append(("consumer_created", fields))
        if consumer.paused_until_ns > ts:
            until = {"until_ns": consumer.paused_until_ns}
            out.events.append(("consumer_paused", fields | until))
        return consumer

    def apply_delete(self, entry: Entry, command: Command, out: Effects) -> bool | JsError:
        _, _, name, uid, reason, *later = command
        consumer = self.by_name.get(name)
        if consumer is None or uid not in (0, consumer.uid):
            return errors.CONSUMER_NOT_FOUND()
        del self.by_name[name]
        self.direct_names.pop(name, None)
        del self.by_uid[consumer.uid]
        self._refiltered.pop(consumer, None)
        if self._interest is not None:
            self._interest.drop(consumer)
        if self._content.limits.is_interest and later != [True]:
            self._changes.remove(self._unwanted())
        fields = {
            "stream": self.name,
            "consumer": name,
            "uid": consumer.uid,
            "reason": reason,
        }
        out.events.append(("consumer_deleted", fields))
        return True

    def _unwanted(self) -> list[Seq]:
        """Return the messages that no consumer waits for, and no dead letter needs."""
        letters = self._content.letters
        return Unwanted(self.index, self.interest(), held=letters.held).step()

    def apply_pause(self, entry: Entry, command: Command, out: Effects) -> Consumer | JsError:
        _, now_ns, name, until_ns = command
        consumer = self.by_name.get(name)
        if consumer is None:
            return errors.CONSUMER_NOT_FOUND()
        if consumer.pause(until_ns, now_ns=now_ns):
            fields = {"stream": self.name, "consumer": name, "until_ns": until_ns}
            out.events.append(("consumer_paused", fields))
        return consumer

    def apply_reset(self, entry: Entry, command: Command, out: Effects) -> Consumer | JsError:
        _, _, name, seq = command
        consumer = self.by_name.get(name)
        if consumer is None:
            return errors.CONSUMER_NOT_FOUND()
        refused = consumer_checks.check_reset(consumer, seq)
        if refused is not None:
            return refused
        consumer.reset(seq)
        return consumer

    # --- acks ----------------------------------------------------------------------------------

    def on_acked(self, consumer: Consumer | None, sseqs: Sequence[Seq]) -> None:
        """See consumer.StreamView: remove messages that no consumer needs any longer. None: the
        consumer is not there any more."""
        index = self.index
        held = self._content.letters.held
        done: list[Seq] = []
        for seq in sseqs:
            if not index.live.has(seq) or (held and seq in held):
                continue
            # A work queue gave it to nobody else, whatever the consumer's filter is by now.
            if self._content.limits.is_workqueue or not any(
                each is not consumer and each.awaits(seq)
                for each in self.takers(index.locations.subject_at(seq))
            ):
                done.append(seq)
        if done:
            self._changes.remove(done)

    def on_given_up(
        self, consumer: Consumer, sseq: Seq, *, deliveries: int, ts: int, reason: str | None
    ) -> None:
        """See consumer.StreamView: a letter is to be sent."""
        text = (reason or "").encode()[: limits.DEAD_LETTER_REASON_BYTES_MAX]
        self._content.letters.add(
            sseq=sseq,
            consumer_uid=consumer.uid,
            deliveries=deliveries,
            ts=ts,
            consumer=consumer.name.encode(),
            subject=dead_letter(consumer.config),
            reason=MAX_DELIVER if reason is None else TERMINATED,
            text=text,
        )

    def apply_letters_sent(self, entry: Entry, command: Command, out: Effects) -> int:
        """Dead letters are stored: nobody waits for their messages any more."""
        letters = self._content.letters
        is_limits = not (self._content.limits.is_interest or self._content.limits.is_workqueue)
        count = 0
        for number in command[2]:
            letter = letters.take(number)
            if letter is None:
                continue
            count += 1
            consumer = self.by_uid.get(letter.consumer_uid)
            if consumer is not None:
                consumer.forget_dead(letter.sseq)
            if not is_limits:
                self.on_acked(consumer, [letter.sseq])
        return count

    # --- notifications when an entry ends ---------------------------------------------------------

    def notify_stored(self, out: Effects) -> None:
        """Notify the consumers of the messages that the entry has stored."""
        stored = self._changes.take_stored()
        if len(self.by_name) <= _FEW_CONSUMERS:
            for consumer in self.by_name.values():
                if consumer.remaining.needs_store_hook:
                    for first, msgs in stored:
                        consumer.remaining.on_stored_batch(first, [msg[0] for msg in msgs])
        else:
            audience = self.interest()
            for first, msgs in stored:
                subjects = [msg[0] for msg in msgs]
                for consumer in audience.of_all:
                    if consumer.remaining.needs_store_hook:
                        consumer.remaining.on_stored_batch(first, subjects)
                for consumer in audience.filtered(subjects):
                    consumer.remaining.on_stored_batch(first, subjects)
        first, msgs = stored[-1]
        out.stored_last = first + len(msgs) - 1

    def notify_gone(self, index: Index, out: Effects) -> bytes:
        """Notify the consumers of the messages that left; return the tombstone for those that left
        from the middle of the stream."""
        changes = self._changes
        seqs, subjects = changes.gone_seqs, changes.gone_subjects
        if changes.is_purged:
            is_front = not seqs or max(seqs) < self.index.first_seq
            for consumer in self.by_name.values():
                consumer.on_purged(is_front=is_front)
                out.bereft[consumer] = None
        elif self.by_name:
            if any(a > b for a, b in pairwise(seqs)):
                order = sorted(range(len(seqs)), key=seqs.__getitem__)
                seqs = [seqs[at] for at in order]
                subjects = [subjects[at] for at in order]
            for consumer in self._concerned(subjects):
                consumer.on_removed(seqs, subjects, out)
                out.bereft[consumer] = None
        # first_seq alone says what left from the front.
        first_seq = self.index.first_seq
        middle = sorted(seq for seq in seqs if seq > first_seq)
        return self._codec.encode_tombstone(as_ranges(middle), index) if middle else b""

    def _concerned(self, subjects: Sequence[bytes]) -> Collection[Consumer]:
        """Return the consumers that have to know that messages with these subjects left, in the
        order of their uids."""
        if len(self.by_name) <= _FEW_CONSUMERS:
            return self.by_name.values()
        audience = self.interest()
        found = {*audience.of_all, *audience.filtered(subjects), *self._refiltered}
        return sorted(found, key=attrgetter("uid"))

    # --- interest -------------------------------------------------------------------------------

    def interest(self) -> InterestIndex[Consumer]:
        """Return the consumers by their filters. The index is kept up to date."""
        if self._interest is None:
            consumers = self.by_name.values()
            self._interest = InterestIndex((each, each.matcher) for each in consumers)
            self._refiltered = dict.fromkeys(each for each in consumers if each.refilters)
        return self._interest

    def _note_consumer(self, consumer: Consumer) -> None:
        """Enter a consumer that is new, or has another filter, into the interest index."""
        if self._interest is not None:
            self._interest.put(consumer, consumer.matcher)
            if consumer.refilters:
                self._refiltered[consumer] = None

    def takers(self, subject: bytes) -> Collection[Consumer]:
        """Return the consumers whose filter lets `subject` through."""
        if len(self.by_name) <= _FEW_CONSUMERS:
            return [
                each
                for each in self.by_name.values()
                if each.matcher is None or each.matcher.matches(subject)
            ]
        return self.interest().takers(subject)
