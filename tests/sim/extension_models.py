"""Models of dead letters, order by subject and producers, beside the machine that applies a log.

An `ExtensionModel` follows one stream's committed entries: what its consumer `C` was given, and
what became of it, by sets. It says at each entry:

    producers  what is stored of each is 1, 2, 3 ..., each once
    giving up  a message is given up that waits for its ack: because a client terminates it, or it
               was delivered `max_deliver` times, and no message is delivered more often
    leaving    a work queue loses what is acked, and what is given up once its letter is stored
    order      a message is delivered a first time when fewer than so many before it, on its
               subject, are not done

`Letters` are those of all streams: each is of a message that was given up, and says why, how often
it was delivered and what it was; and there is none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from streamd.machine import commands
from streamd.machine.message_headers import get
from streamd.store.blocks.record_format import Record
from streamd.types import Msg, Seq, Uid
from tests.sim.extension_checks import BODY, SEQUENCE, number_of, overtaken
from tests.sim.world import need

CONSUMER = "C"
MAX_DELIVER, TERMINATED = b"max_deliver", b"terminated"
_OF_CONSUMER = (commands.DELIVERED, commands.ACKED, commands.TERMED, commands.DEAD)
_AGAIN, _PARKED, _UNPARKED = 1, 2, 3
# What may take messages out, but of a queue.
_FREE = (commands.STORE, commands.STORE_BATCH, commands.DELETE_MSG)


class GivenUp(NamedTuple):
    """Message that a consumer gave up."""

    seq: Seq
    reason: bytes
    deliveries: int


class ExtensionModel:
    """One stream. `after` each of its entries raises Violation."""

    def __init__(
        self, uid: Uid, machine: Any, content: Mapping[Seq, Msg], letters: Letters
    ) -> None:
        self.name: str = machine.name
        self.content = content  # every message that was ever stored
        self.producers: dict[bytes, int] = {}  # the last sequence that is stored
        self.given_up: dict[int, GivenUp] = {}  # by the numbers of their letters
        self.acked: set[Seq] = set()
        self.sent: set[int] = set()  # letters that are said to be stored
        self.live: set[Seq] = set()
        self._uid = uid
        self._machine = machine
        self._letters = letters
        self._is_queue = machine.config["retention"] == "workqueue"
        self._subjects: dict[Seq, bytes] = {}  # of what is live
        self._deliveries: dict[Seq, int] = {}
        self._pending: set[Seq] = set()
        self._parked: set[Seq] = set()
        self._done: set[Seq] = set()  # acked or given up

    # --- one entry ----------------------------------------------------------------------------

    def after(self, command: commands.Command, stored: Iterable[Record]) -> None:
        """It was applied, and has stored these messages."""
        kind = command[0]
        index = self._machine.index
        live = set(index.live.seqs(index.first_seq, index.last_seq))
        for record in stored:
            if record.seq in live:  # else a limit took it at once
                self._subjects[record.seq] = record.subject
            self._note_produced(record)
            if number_of(record.headers, SEQUENCE) > 0:
                self._letters.on_stored(record)
        gone, self.live = self.live - live, live
        leaving: set[Seq] = set()
        if kind in _OF_CONSUMER:
            leaving = self._follow(command)
        elif kind == commands.LETTERS_SENT:
            leaving = self._note_sent(command[2])
        if not self._is_queue:
            leaving = set()
        if kind not in _FREE or self._is_queue:
            need(gone == leaving, f"{self._who()}: {kind} takes {gone} out, and was to {leaving}")
        for seq in gone:
            self._subjects.pop(seq, None)
        self._pending -= gone
        self._parked -= gone
        self._compare()

    def _note_produced(self, record: Record) -> None:
        producer = get(record.headers, b"Nats-Producer-Id")
        if producer is None or producer.startswith(b"$DL."):  # letters have numbers with holes
            return
        sequence = number_of(record.headers, b"Nats-Producer-Seq")
        last = self.producers.get(producer, 0)
        text = f"{self._who()}: {sequence} of {producer!r} is stored behind {last}"
        need(sequence == last + 1, text)
        self.producers[producer] = sequence

    # --- the consumer -------------------------------------------------------------------------

    @property
    def _consumer(self) -> Any:
        return self._machine.consumers[CONSUMER]

    def _follow(self, command: commands.Command) -> set[Seq]:
        """Return what a work queue loses by this."""
        kind, items = command[0], command[3]
        if kind == commands.DELIVERED:
            for first, last, _, how in items:
                for seq in range(first, last + 1):
                    if seq in self.live:
                        self._deliver(seq, int(how))
            return set()
        if kind == commands.ACKED:
            acked = self._pending.intersection(items)
            for seq in acked:
                need(self._letters.was_acked(self._uid, seq), f"{self._who()}: {seq} acked by none")
            self.acked |= acked
            self._done |= acked
            self._pending -= acked
            return acked
        if kind == commands.TERMED:
            for seq, _ in items:
                if seq in self._pending:
                    text = f"{self._who()}: {seq} terminated by none"
                    need(self._letters.was_terminated(self._uid, seq), text)
                    self._give_up(seq, TERMINATED)
            return set()
        for seq in items:
            if seq in self._pending:
                count, most = self._deliveries[seq], self._consumer.config["max_deliver"]
                text = f"{self._who()}: {seq} is given up after {count} of {most} deliveries"
                need(count == most, text)
                self._give_up(seq, MAX_DELIVER)
        return set()

    def _deliver(self, seq: Seq, how: int) -> None:
        text = f"{self._who()}: {seq}"
        if how == _AGAIN:
            if seq in self._pending:
                self._deliveries[seq] += 1
                most = self._consumer.config["max_deliver"]
                need(self._deliveries[seq] <= most, f"{text} is delivered more than {most} times")
            return
        if how == _PARKED:
            is_new = seq not in self._deliveries and seq not in self._parked
            need(is_new, f"{text} is passed over, and was known")
            self._parked.add(seq)
            return
        need(seq not in self._deliveries, f"{text} is delivered a first time again")
        is_parked = seq in self._parked
        need(is_parked == (how == _UNPARKED), f"{text} is delivered as {how}, {is_parked=}")
        self._parked.discard(seq)
        self._deliveries[seq] = 1
        self._pending.add(seq)
        self.check_order(seq)

    def check_order(self, seq: Seq) -> None:
        """A message is delivered a first time, or a client has got it."""
        settings = self._consumer.config.get("metadata") or {}
        most = int(settings.get("streamd.max_ack_pending_per_subject", 0))
        if most and seq in self._subjects:
            before = overtaken(seq, self._subjects, self._is_open)
            need(len(before) < most, f"{self._who()}: {seq} is delivered, open are {before}")

    def _is_open(self, seq: Seq) -> bool:
        return seq not in self._done

    def _give_up(self, seq: Seq, reason: bytes) -> None:
        self._pending.discard(seq)
        self._done.add(seq)
        self.given_up[len(self.given_up) + 1] = GivenUp(seq, reason, self._deliveries[seq])

    def _note_sent(self, numbers: Iterable[int]) -> set[Seq]:
        """Letters are said to be stored; return their messages, those that are still there."""
        new = set(numbers) - self.sent
        for number in sorted(new):
            is_stored = self._letters.has(self.name, number)
            need(is_stored, f"{self._who()}: letter {number} is stored nowhere, and taken for sent")
        self.sent |= new
        return {self.given_up[number].seq for number in new}

    def _compare(self) -> None:
        """What the machine says of itself."""
        consumer = self._machine.consumers.get(CONSUMER)
        if consumer is None:
            return
        odd = self._pending ^ set(consumer.pending)
        need(not odd, f"{self._who()}: {CONSUMER} waits for other acks: {sorted(odd)[:5]}")
        waiting, wanted = len(self._machine.content.letters), len(self.given_up) - len(self.sent)
        need(waiting == wanted, f"{self._who()}: {waiting} letters wait, {wanted} were to")

    # --- the end ------------------------------------------------------------------------------

    def waiting(self) -> str:
        """What is still to be done; "": nothing."""
        left = sorted(self.given_up.keys() - self.sent)
        if left:
            return f"letters {left[:5]} of {self.name} wait"
        return (
            f"{sorted(self.live)[:5]} are left in {self.name}"
            if self._is_queue and self.live
            else ""
        )

    def given_up_seqs(self) -> set[Seq]:
        """Messages that were given up."""
        return {each.seq for each in self.given_up.values()}

    def _who(self) -> str:
        return f"stream {self.name} ({self._uid}) at {self._machine.applied}"


class Letters:
    """Dead letters of all streams of a run, and what clients said of what they were given."""

    def __init__(
        self,
        *,
        was_acked: Callable[[Uid, Seq], bool],
        was_terminated: Callable[[Uid, Seq], bool],
        bytes_max: int,
    ) -> None:
        """`was_acked`, `was_terminated`: whether a client ever said so. `bytes_max`: the largest
        message that the stream of the letters takes; -1: any."""
        self.was_acked = was_acked
        self.was_terminated = was_terminated
        self._bytes_max = bytes_max
        self.models: dict[str, ExtensionModel] = {}  # by the streams' names
        self.stored: dict[tuple[str, int], tuple[bytes, bytes]] = {}  # headers, body

    def follow(self, uid: Uid, machine: Any, content: Mapping[Seq, Msg]) -> ExtensionModel:
        """Return the model of a stream that begins."""
        model = self.models[machine.name] = ExtensionModel(uid, machine, content, self)
        return model

    def has(self, stream: str, number: int) -> bool:
        """True if this letter is stored."""
        return (stream, number) in self.stored

    def of(self, stream: str) -> list[tuple[bytes, bytes]]:
        """Return the letters of a stream, as (headers, body)."""
        return [letter for (name, _), letter in self.stored.items() if name == stream]

    def on_stored(self, record: Record) -> None:
        """A letter is stored. Raises Violation."""
        stream = (get(record.headers, b"Nats-Dead-Letter-Stream") or b"").decode()
        number = number_of(record.headers, b"Nats-Producer-Seq")
        text = f"letter {number} of {stream}"
        need((stream, number) not in self.stored, f"{text} is stored again, as {record.seq}")
        model = self.models.get(stream)
        given_up = model.given_up.get(number) if model is not None else None
        need(given_up is not None, f"{text} is of nothing that was given up: {record.headers!r}")
        assert model is not None and given_up is not None
        self.stored[(stream, number)] = (record.headers, record.payload)
        head = record.headers
        said = (
            number_of(head, SEQUENCE),
            get(head, b"Nats-Dead-Letter-Reason"),
            number_of(head, b"Nats-Dead-Letter-Deliveries"),
        )
        need(said == given_up, f"{text} is {said}, and was {given_up}")
        subject, _, body = model.content[given_up.seq]
        why = get(head, BODY)
        if why is None:
            need(record.payload == body, f"{text} has the body {record.payload[:20]!r}")
            need(get(head, b"Nats-Dead-Letter-Subject") == subject, f"{text} is not of {subject!r}")
        elif why == b"gone":
            need(given_up.seq not in model.live, f"{text} has no body, and its message is there")
        else:
            size = sum(map(len, model.content[given_up.seq])) + len(head)
            is_large = why == b"too large" and size > self._bytes_max >= 0
            need(is_large, f"{text} of {size} bytes has no body: {why!r}")
