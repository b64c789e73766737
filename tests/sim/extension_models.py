"""Models of dead letters, order by subject and producers, beside the machine that applies a log.

An `ExtensionModel` follows one stream's committed entries: what its consumers were given, and what
became of it, by sets. It says at each entry:

    producers  what is stored of each is 1, 2, 3 ..., each once
    giving up  a message is given up that waits for its ack: because a client terminates it, or it
               was delivered `max_deliver` times, and no message is delivered more often
    leaving    a work queue loses what is acked, and what is given up once its letter is stored; of
               a stream with interest that has to be so for each of its consumers
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
from streamd.types import Msg, Seq, Uid
from tests.sim.extension_checks import BODY, SEQUENCE, number_of, overtaken
from tests.sim.world import need

MAX_DELIVER, TERMINATED = b"max_deliver", b"terminated"
_OF_CONSUMER = (commands.DELIVERED, commands.ACKED, commands.TERMED, commands.DEAD)
_AGAIN, _PARKED, _UNPARKED = 1, 2, 3
# What may take messages out of a stream of limits.
_FREE = (
    commands.STORE, commands.STORE_BATCH, commands.DELETE_MSG, commands.PURGE, commands.REMOVE,
)  # fmt: skip


class GivenUp(NamedTuple):
    """Message that a consumer gave up."""

    seq: Seq
    reason: bytes
    deliveries: int


class _Given:
    """Model of a consumer: messages that it was given, and what became of them."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.deliveries: dict[Seq, int] = {}
        self.pending: set[Seq] = set()
        self.parked: set[Seq] = set()
        self.acked: set[Seq] = set()
        self.done: set[Seq] = set()  # acked, terminated or given up
        # By all configurations that it has had: what was planned by one may be applied later.
        self.deliveries_max = 0
        self.deliveries_min = 1 << 62
        self.open_max = 0
        self.configure()

    def configure(self) -> None:
        """Take note of its configuration, when it is made or changed."""
        most = int(self.consumer.config["max_deliver"])
        most = most if most > 0 else 1 << 62
        self.deliveries_max = max(most, self.deliveries_max)
        self.deliveries_min = min(most, self.deliveries_min)
        order = int(self.setting("max_ack_pending_per_subject") or 1 << 62)
        self.open_max = max(order, self.open_max)

    @property
    def name(self) -> str:
        return str(self.consumer.name)

    def setting(self, name: str) -> str:
        """Return a setting of ours; "": it has none."""
        return str((self.consumer.config.get("metadata") or {}).get("streamd." + name, ""))

    def drop(self, seqs: set[Seq]) -> None:
        """These have left the stream."""
        self.pending -= seqs
        self.parked -= seqs

    def end(self, seqs: set[Seq]) -> None:
        """Nothing more comes of these."""
        self.pending -= seqs
        self.done |= seqs

    def deliver(self, seq: Seq, how: int) -> str:
        """Take note of a delivery; return what is wrong with it."""
        if how == _AGAIN:
            if seq not in self.pending:
                return ""
            self.deliveries[seq] += 1
            most = self.deliveries_max
            return f"is delivered more than {most} times" if self.deliveries[seq] > most else ""
        if seq in self.deliveries:
            return f"was delivered before, and is so as {how}"
        if (seq in self.parked) != (how == _UNPARKED):
            return f"is delivered as {how}, of {sorted(self.parked)}"
        if how == _PARKED:
            self.parked.add(seq)
        else:
            self.parked.discard(seq)
            self.deliveries[seq] = 1
            self.pending.add(seq)
        return ""


class ExtensionModel:
    """Model of a stream. `after` each of its entries raises Violation."""

    def __init__(
        self, uid: Uid, machine: Any, content: Mapping[Seq, Msg], letters: Letters
    ) -> None:
        self.name: str = machine.name
        self.content = content  # every message that was ever stored
        self.producers: dict[bytes, int] = {}  # the last sequence that is stored
        self.given_up: dict[int, GivenUp] = {}  # by the numbers of their letters
        self.sent: set[int] = set()  # letters that are said to be stored
        self.live: set[Seq] = set()
        self._uid = uid
        self._machine = machine
        self._letters = letters
        self._is_kept = machine.config["retention"] == "limits"
        self._last_seq: Seq = 0
        self._subjects: dict[Seq, bytes] = {}  # of what is live
        self._given: dict[Uid, _Given] = {}  # by their consumers
        self._held: set[Seq] = set()  # letters of these are on their way

    # --- one entry ----------------------------------------------------------------------------

    def after(self, command: commands.Command) -> None:
        """Follow an entry that was applied; what it has stored is in `content`."""
        kind = command[0]
        index = self._machine.index
        live = set(index.live.seqs(index.first_seq, index.last_seq))
        for seq in range(self._last_seq + 1, index.last_seq + 1):
            msg = self.content[seq]
            if seq in live:  # else a limit took it at once, or nobody wanted it
                self._subjects[seq] = msg[0]
            self._note_produced(seq, msg[1])
            if number_of(msg[1], SEQUENCE) > 0:
                self._letters.on_stored(seq, msg)
        self._last_seq = index.last_seq
        gone, self.live = self.live - live, live
        ended: set[Seq] = set()
        if kind == commands.CREATE_CONSUMER:
            for uid, consumer in self._machine.consumers_by_uid.items():
                self._given.setdefault(uid, _Given(consumer)).configure()
        elif kind in _OF_CONSUMER and command[2] in self._given:
            ended = self._follow(self._given[command[2]], command)
        elif kind == commands.LETTERS_SENT:
            ended = self._note_sent(command[2])
        if self._is_kept:
            ended = set()
        leaving = {seq for seq in ended & (gone | live) if not self._is_wanted(seq)}
        if kind not in _FREE or not self._is_kept:
            need(gone == leaving, f"{self._who()}: {kind} takes {gone} out, and was to {leaving}")
        for seq in gone:
            self._subjects.pop(seq, None)
        for given in self._given.values():
            given.drop(gone)
            self._compare(given)
        waiting, wanted = len(self._machine.content.letters), len(self.given_up) - len(self.sent)
        need(waiting == wanted, f"{self._who()}: {waiting} letters wait, {wanted} were to")

    def _is_wanted(self, seq: Seq) -> bool:
        """True if a consumer has yet to be done with a message, or its letter is on its way."""
        is_done = all(seq in given.done for given in self._given.values())
        return seq in self._held or not is_done

    def _note_produced(self, seq: Seq, headers: bytes) -> None:
        producer = get(headers, b"Nats-Producer-Id")
        if producer is None or producer.startswith(b"$DL."):  # letters have numbers with holes
            return
        sequence = number_of(headers, b"Nats-Producer-Seq")
        last = self.producers.get(producer, 0)
        text = f"{self._who()}: {sequence} of {producer!r} is stored behind {last}, as {seq}"
        need(sequence == last + 1, text)
        self.producers[producer] = sequence

    # --- consumers ----------------------------------------------------------------------------

    def _follow(self, given: _Given, command: commands.Command) -> set[Seq]:
        """Return with what the consumer is done by this."""
        kind, items, who = command[0], command[3], (self._uid, given.name)
        text = f"{self._who()}: {given.name}:"
        ended: set[Seq] = set()
        if kind == commands.DELIVERED:
            for first, last, _, how in items:
                for seq in sorted(self.live.intersection(range(first, last + 1))):
                    wrong = given.deliver(seq, int(how))
                    need(not wrong, f"{text} {seq} {wrong}")
                    if seq in given.pending and int(how) != _AGAIN:
                        self._check_order(given, seq)
        elif kind == commands.ACKED:
            ended = given.pending.intersection(items)
            for seq in ended:
                need(self._letters.was_acked(*who, seq), f"{text} {seq} is acked by nobody")
            given.acked |= ended
        elif kind == commands.TERMED:
            for seq in dict.fromkeys(seq for seq, _ in items if seq in given.pending):
                is_meant = self._letters.was_terminated(*who, seq)
                need(is_meant, f"{text} {seq} is terminated by nobody")
                ended.add(seq)
                self._give_up(given, seq, TERMINATED)
        else:
            for seq in dict.fromkeys(seq for seq in items if seq in given.pending):
                count, least = given.deliveries[seq], given.deliveries_min
                need(count >= least, f"{text} {seq} is given up after {count} deliveries")
                ended.add(seq)
                self._give_up(given, seq, MAX_DELIVER)
        given.end(ended)
        return ended

    def check_order(self, name: str, seq: Seq) -> None:
        """A client has got a message."""
        for given in self._given.values():
            if given.name == name:
                self._check_order(given, seq)

    def _check_order(self, given: _Given, seq: Seq) -> None:
        if given.open_max < len(self._subjects) and seq in self._subjects:
            before = overtaken(seq, self._subjects, lambda each: each not in given.done)
            text = f"{self._who()}: {given.name}: {seq} is delivered, open are {before}"
            need(len(before) < given.open_max, text)

    def _give_up(self, given: _Given, seq: Seq, reason: bytes) -> None:
        if given.setting("dead_letter"):
            letter = GivenUp(seq, reason, given.deliveries[seq])
            self.given_up[len(self.given_up) + 1] = letter
            self._held.add(seq)

    def _note_sent(self, numbers: Iterable[int]) -> set[Seq]:
        """Letters are said to be stored; return their messages."""
        new = set(numbers) - self.sent
        for number in sorted(new):
            is_stored = self._letters.has(self.name, number)
            need(is_stored, f"{self._who()}: letter {number} is stored nowhere, and taken for sent")
        self.sent |= new
        seqs = {self.given_up[number].seq for number in new}
        self._held -= seqs
        return seqs

    def _compare(self, given: _Given) -> None:
        """Compare the model with what the machine says of itself."""
        odd = sorted(given.pending ^ set(given.consumer.pending))
        need(not odd, f"{self._who()}: {given.name} waits for other acks: {odd[:5]}")

    # --- the end ------------------------------------------------------------------------------

    def waiting(self) -> str:
        """Return what is still to be done; "": nothing."""
        left = sorted(self.given_up.keys() - self.sent)
        if left:
            return f"letters {left[:5]} of {self.name} wait"
        is_left = self.live and not self._is_kept
        return f"{sorted(self.live)[:5]} are left in {self.name}" if is_left else ""

    def given_up_seqs(self) -> set[Seq]:
        """Messages that were given up, and have, or get, a letter."""
        return {each.seq for each in self.given_up.values()}

    def acked_by(self, name: str) -> set[Seq]:
        """Messages that were acked to a consumer."""
        return {seq for each in self._given.values() if each.name == name for seq in each.acked}

    def _who(self) -> str:
        return f"stream {self.name} ({self._uid}) at {self._machine.applied}"


class Letters:
    """Dead letters of all streams of a run, and what clients said of what they were given."""

    def __init__(
        self,
        *,
        was_acked: Callable[[Uid, str, Seq], bool],
        was_terminated: Callable[[Uid, str, Seq], bool],
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

    def on_stored(self, seq: Seq, msg: Msg) -> None:
        """A letter is stored. Raises Violation."""
        _, head, payload = msg
        stream = (get(head, b"Nats-Dead-Letter-Stream") or b"").decode()
        number = number_of(head, b"Nats-Producer-Seq")
        text = f"letter {number} of {stream}"
        need((stream, number) not in self.stored, f"{text} is stored again, as {seq}")
        model = self.models.get(stream)
        given_up = model.given_up.get(number) if model is not None else None
        need(given_up is not None, f"{text} is of nothing that was given up: {head!r}")
        assert model is not None and given_up is not None
        self.stored[(stream, number)] = (head, payload)
        said = (
            number_of(head, SEQUENCE),
            get(head, b"Nats-Dead-Letter-Reason"),
            number_of(head, b"Nats-Dead-Letter-Deliveries"),
        )
        need(said == given_up, f"{text} is {said}, and was {given_up}")
        subject, _, body = model.content[given_up.seq]
        why = get(head, BODY)
        if why is None:
            need(payload == body, f"{text} has the body {payload[:20]!r}")
            need(get(head, b"Nats-Dead-Letter-Subject") == subject, f"{text} is not of {subject!r}")
        elif why == b"gone":
            need(given_up.seq not in model.live, f"{text} has no body, and its message is there")
        else:
            size = sum(map(len, model.content[given_up.seq])) + len(head)
            is_large = why == b"too large" and size > self._bytes_max >= 0
            need(is_large, f"{text} of {size} bytes has no body: {why!r}")
