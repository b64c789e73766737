"""Messages of one stream that are stored, and that this node's disk does not give back.

None of them is skipped: whoever comes to one waits, all else goes on. It is asked for again now and
then, for a disk may recover. With peers the whole replica is made anew meanwhile (node/damages.py);
where there is no other copy, an operator accepts the loss by deleting the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streamd import limits
from streamd.errors import CorruptionError, StreamdError
from streamd.machine.index import StreamIndex
from streamd.store.format import crc_of
from streamd.types import Seq


class Unreadable:
    """Of one stream, on this node. A place is (block, offset)."""

    def __init__(
        self,
        index: StreamIndex,
        name: str,
        *,
        on_found: Callable[[StreamdError, bool], object],
        on_over: Callable[[], object],
        renew: Callable[[int], None],
    ) -> None:
        self._index = index
        self._name = name
        self._on_found = on_found  # (error that names all, is one of them new)
        self._on_over = on_over  # nothing that is stored is unreadable any more
        self._renew = renew  # all that is live in this block can be read, something dead can't
        self._seqs: dict[tuple[int, int], Seq] = {}  # by place
        self._again_ms: dict[tuple[int, int], int] = {}  # places that are not read before then
        self._reason = ""  # of the latest
        self._gone = -1  # how many messages were removed before the last look

    def __bool__(self) -> bool:
        return bool(self._seqs)

    @property
    def seqs(self) -> list[Seq]:
        """The messages, ascending."""
        return sorted(self._seqs.values())

    def again_ms(self, block_no: int, offset: int, now_ms: int) -> int:
        """When a place that was read in vain is to be read again, which is told as past once;
        0: whenever it is needed."""
        place = (block_no, offset)
        due_ms = self._again_ms.get(place, 0)
        if 0 < due_ms <= now_ms:
            del self._again_ms[place]
        return due_ms

    def note_failed(self, block_no: int, offset: int, err: StreamdError, now_ms: int) -> int:
        """A place was read in vain. Returns when to read it again."""
        place = (block_no, offset)
        if place not in self._seqs:
            self._add([self._index.seq_at_place(block_no, offset)], str(err))
        return self._hold(place, now_ms)

    def _hold(self, place: tuple[int, int], now_ms: int) -> int:
        self._again_ms[place] = due_ms = now_ms + limits.UNREADABLE_AGAIN_MS
        return due_ms

    def take(
        self, block_no: int, offset: int, chunk: tuple[int, bytes], now_ms: int
    ) -> tuple[int, bytes] | int:
        """What of a chunk that was read for a place can be used: it ends before the next message
        that is known to be damaged. Or, if the one at the place is another still, when to read it
        again."""
        base, blob = chunk
        place = (block_no, offset)
        seq = self._seqs.get(place)
        if seq is not None:
            loc = self._index.locate(seq)
            if loc is not None:
                record = blob[offset - base : offset - base + loc[3]]
                if crc_of(record) != self._index.crc_at(seq):
                    return self._hold(place, now_ms)
            self._keep({at: seq for at, seq in self._seqs.items() if at != place})
        ends = [at for no, at in self._seqs if no == block_no and at > offset]
        if ends and min(ends) < base + len(blob):
            blob = blob[: min(ends) - base]
        return base, blob

    def note_readable(self, block_no: int) -> None:
        """All of a block could be read."""
        left = {place: seq for place, seq in self._seqs.items() if place[0] != block_no}
        if len(left) < len(self._seqs):
            self._keep(left)

    def note(self, block_no: int, seqs: Iterable[Seq], reason: str) -> None:
        """Messages of a block were read in vain; if there are none, something dead was."""
        known = set(self._seqs.values())
        seqs = list(seqs)
        new = [seq for seq in seqs if seq not in known]
        if new:
            self._add(new, reason)
        elif not seqs and all(place[0] != block_no for place in self._seqs):
            self._renew(block_no)

    def _add(self, seqs: list[Seq], reason: str) -> None:
        for seq in seqs:
            loc = self._index.locate(seq)
            if loc is not None:
                self._seqs[loc[1:3]] = seq
        self._reason = reason
        if self._seqs:
            self._tell(is_new=True)

    def _tell(self, *, is_new: bool) -> None:
        text = f"stream {self._name}: {_listed(self.seqs)} can't be read: {self._reason}"
        self._on_found(CorruptionError(text), is_new)

    def settle(self) -> None:
        """Something was applied. Cheap unless messages were removed by it."""
        index = self._index
        gone = index.last_seq - index.count
        if gone == self._gone:
            return
        self._gone = gone
        left = {place: seq for place, seq in self._seqs.items() if index.is_live(seq)}
        if len(left) < len(self._seqs):
            blocks = {place[0] for place in self._seqs} - {place[0] for place in left}
            self._keep(left)
            for block_no in sorted(blocks):
                self._renew(block_no)

    def _keep(self, left: dict[tuple[int, int], Seq]) -> None:
        self._seqs = left
        self._again_ms = {place: due for place, due in self._again_ms.items() if place in left}
        if left:
            self._tell(is_new=False)
        else:
            self._on_over()


def _listed(seqs: list[Seq]) -> str:
    """`message 3`, or `messages 3 to 7, 9, ... (12 in all)`."""
    ranges: list[list[Seq]] = []
    for seq in seqs:
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1][1] = seq
        else:
            ranges.append([seq, seq])
    most = limits.UNREADABLE_LISTED
    shown = [f"{a}" if a == b else f"{a} to {b}" for a, b in ranges[:most]]
    if len(seqs) == 1:
        return f"message {shown[0]}"
    rest = f", ... ({len(seqs)} in all)" if len(ranges) > most else ""
    return f"messages {', '.join(shown)}{rest}"
