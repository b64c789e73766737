"""`SubjectOrder`: which messages of a consumer wait until others of their subject are acked.

With the setting `streamd.max_ack_pending_per_subject` so many messages of one subject are delivered
and not acked at a time. With 1, that is ordered work by key: none begins before the one before it,
of the same key, is done. Others overtake it: a message whose subject has enough under way is
*parked*, which is replicated (see DELIVERED), and *due* once a place is free.

    new ---> parked ---(an earlier one of its subject leaves)---> due ---> sent
     \\________________(there is a place)________________________________/

A place is taken when a message is chosen to be sent, and free again when the consumer does not
wait for it any more by what is applied: acked, terminated, given up, or gone from the stream. A
refused message keeps its place until it is delivered again and acked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from streamd import limits
from streamd.errors import CorruptionError
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.indexes.index import StreamIndex
from streamd.types import Seq

NO_LIMIT = 1 << 62


class SubjectOrder:
    """Places of one consumer's subjects, on the leader."""

    __slots__ = ("_consumer", "_due", "_held", "_index", "_parked", "_subjects", "_waiting", "most")

    def __init__(self, consumer: Consumer, index: StreamIndex, most: int) -> None:
        self._consumer = consumer
        self._index = index
        self.most = most
        self.restore()

    def restore(self) -> None:
        """Begin with what is applied: this node leads, or the consumer was reset."""
        self._subjects: dict[Seq, bytes] = {}  # of the messages that have a place
        self._held: dict[bytes, int] = {}  # places by subject
        self._waiting: dict[bytes, deque[Seq]] = {}  # parked ones by subject, the oldest first
        self._parked: dict[Seq, bytes] = {}  # the same, all
        self._due: deque[Seq] = deque()  # have a place, and are to be sent
        for sseq in sorted(self._consumer.pending):
            self.hold(sseq, self.subject_of(sseq))
        for sseq in self._consumer.remaining.parked:
            self.park(sseq, self.subject_of(sseq))
        self._choose_all()

    def configure(self, most: int) -> None:
        """Take over another limit, also for what is parked."""
        if most != self.most:
            self.most = most
            self._choose_all()

    def subject_of(self, sseq: Seq) -> bytes:
        """Return the subject of a stored message."""
        try:
            return self._index.locations.subject_at(sseq)
        except CorruptionError:  # its block does not say: it waits for none, and none for it
            return b" %d" % sseq

    @property
    def unsent_count(self) -> int:
        """The number of messages that were passed over, and are not sent yet."""
        return len(self._parked) + len(self._due)

    @property
    def is_full(self) -> bool:
        """True if no more may be passed over."""
        return self.unsent_count >= limits.PARKED_MSGS_MAX

    # --- new messages ---------------------------------------------------------------------------

    def admits(self, subject: bytes) -> bool:
        """True if a new message may be sent, after all that was stored before it."""
        return subject not in self._waiting and self._held.get(subject, 0) < self.most

    def hold(self, sseq: Seq, subject: bytes) -> None:
        """Take a place for a message."""
        self._subjects[sseq] = subject
        self._held[subject] = self._held.get(subject, 0) + 1

    def park(self, sseq: Seq, subject: bytes) -> None:
        """Pass over a new message."""
        self._parked[sseq] = subject
        self._waiting.setdefault(subject, deque()).append(sseq)

    # --- places that are free again ---------------------------------------------------------------

    def release(self, sseqs: Iterable[Seq]) -> None:
        """Free the places of messages that the consumer does not wait for any more."""
        for sseq in sseqs:
            subject = self._subjects.pop(sseq, None)
            if subject is None:
                continue
            left = self._held.pop(subject) - 1
            if left:
                self._held[subject] = left
            if subject in self._waiting:
                self._choose(subject)

    def _choose(self, subject: bytes) -> None:
        """Make messages due that were passed over, as many as there are places."""
        waiting = self._waiting[subject]
        while waiting:
            sseq = waiting[0]
            if sseq in self._parked:  # else it left the stream
                if self._held.get(subject, 0) >= self.most:
                    break
                del self._parked[sseq]
                self.hold(sseq, subject)
                self._due.append(sseq)
            waiting.popleft()
        if not waiting:
            del self._waiting[subject]

    def _choose_all(self) -> None:
        for subject in list(self._waiting):
            self._choose(subject)

    def sweep(self) -> bool:
        """Forget messages that left the stream; True if others are due by that."""
        is_live = self._index.live.has
        due_count = len(self._due)
        for sseq in [sseq for sseq in self._parked if not is_live(sseq)]:
            del self._parked[sseq]
        self.release([sseq for sseq in self._subjects if not is_live(sseq)])
        for subject in list(self._waiting):
            if self._waiting[subject][0] not in self._parked:
                self._choose(subject)
        return len(self._due) > due_count

    # --- due: as of Redelivery --------------------------------------------------------------------

    @property
    def has_due(self) -> bool:
        return bool(self._due)

    def peek_due(self) -> Seq:
        return self._due[0]

    def pop_due(self) -> None:
        self._due.popleft()
