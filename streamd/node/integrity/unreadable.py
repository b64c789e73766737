"""`Unreadable`: stored messages of one stream that this node's disk does not give back.

None of them is skipped: a reader that comes to one waits, all else goes on. It is asked for again
now and then, for a disk may recover. With peers the whole replica is made anew meanwhile
(node/integrity/corruption.py); where there is no other copy, an operator accepts the loss by
deleting the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streamd import limits
from streamd.callbacks import ignore
from streamd.errors import CorruptionError, DiskError, StreamdError, is_passing
from streamd.machine.indexes.index import StreamIndex
from streamd.node.groups.block_port import BlockPort
from streamd.store.blocks.record_format import crc_of
from streamd.types import Seq


class Unreadable:
    """Unreadable messages of one stream on this node. A place is (block, offset)."""

    def __init__(
        self,
        index: StreamIndex,
        blocks: BlockPort,
        name: str,
        *,
        on_found: Callable[[StreamdError, bool], object],
        on_over: Callable[[], object],
        renew: Callable[[int], None],
    ) -> None:
        self._index = index
        self._blocks = blocks
        self._name = name
        self._on_found = on_found  # (error that names all, is one of them new)
        self._on_over = on_over  # nothing that is stored is unreadable any more
        self._renew = renew  # all that is live in this block can be read, something dead can't
        self._seqs: dict[tuple[int, int], Seq] = {}  # by place
        self._again_ms: dict[tuple[int, int], int] = {}  # places that are not read before then
        self._reason = ""  # of the latest
        self._gone = -1  # how many messages were removed before the last look

    def let_go(self) -> None:
        """Tell no listener any more; see Group.let_go."""
        self._on_found = ignore
        self._on_over = ignore
        self._renew = ignore

    def __bool__(self) -> bool:
        return bool(self._seqs)

    @property
    def seqs(self) -> list[Seq]:
        """The messages, ascending."""
        return sorted(self._seqs.values())

    @property
    def block_nos(self) -> set[int]:
        """The blocks that hold them."""
        return {place[0] for place in self._seqs}

    def chunk(
        self, block_no: int, offset: int, now_ms: int
    ) -> tuple[tuple[int, bytes] | None, int]:
        """Return the bytes that the store has in memory for a place (see BlockPort), up to the next
        message that is known to be damaged; and when to ask again, if the place can't be read now,
        else 0. Neither: it is to be read."""
        place = (block_no, offset)
        due_ms = self._again_ms.get(place, 0)
        if due_ms > now_ms:
            return None, due_ms
        if due_ms:
            del self._again_ms[place]
            return None, 0
        try:
            found = self._blocks.chunk(block_no, offset)
        except (CorruptionError, DiskError) as err:
            if place not in self._seqs and not is_passing(err):
                self._add([self._index.locations.seq_at_place(block_no, offset)], str(err))
            return None, self._hold(place, now_ms)
        if found is None or not self._seqs:
            return found, 0
        return self._usable(place, *found, now_ms)

    def _usable(
        self, place: tuple[int, int], base: int, blob: bytes, now_ms: int
    ) -> tuple[tuple[int, bytes] | None, int]:
        """As `chunk`, of what the store gave while something is known to be damaged."""
        block_no, offset = place
        seq = self._seqs.get(place)
        if seq is not None:
            loc = self._index.locations.locate(seq)
            if loc is not None:
                record = blob[offset - base : offset - base + loc[3]]
                if crc_of(record) != self._index.locations.crc_at(seq):
                    return None, self._hold(place, now_ms)
            self._keep({at: one for at, one in self._seqs.items() if at != place})
        end = min((at for no, at in self._seqs if no == block_no and at > offset), default=1 << 62)
        return (base, blob[: end - base] if end < base + len(blob) else blob), 0

    def _hold(self, place: tuple[int, int], now_ms: int) -> int:
        self._again_ms[place] = due_ms = now_ms + limits.UNREADABLE_AGAIN_MS
        return due_ms

    def note_readable(self, block_no: int) -> None:
        """Clear a block of which all could be read."""
        left = {place: seq for place, seq in self._seqs.items() if place[0] != block_no}
        if len(left) < len(self._seqs):
            self._keep(left)

    def note(self, block_no: int, seqs: Iterable[Seq], reason: str) -> None:
        """Messages of a block were read in vain; if there are none, something dead was."""
        known = set(self._seqs.values())
        seqs = list(seqs)
        new = [seq for seq in seqs if seq not in known]
        if new:
            self._add(new, reason, block_no)
        elif not seqs and all(place[0] != block_no for place in self._seqs):
            self._renew(block_no)

    def _add(self, seqs: list[Seq], reason: str, block_no: int = 0) -> None:
        is_place_known = True
        for seq in seqs:
            loc = None
            try:
                loc = self._index.locations.locate(seq) if is_place_known else None
            except StreamdError:
                # Its block is gone with all that says where in it, and will be for the next.
                is_place_known = False
            if loc is not None:
                self._seqs[loc[1:3]] = seq
            elif not is_place_known:
                self._seqs[block_no, -seq] = seq  # a place that no read asks for
        self._reason = reason
        if self._seqs:
            self._tell(is_new=True)

    def _tell(self, *, is_new: bool) -> None:
        text = f"stream {self._name}: {_listed(self.seqs)} can't be read: {self._reason}"
        self._on_found(CorruptionError(text), is_new)

    def settle(self) -> None:
        """Drop messages that what was applied has removed. Cheap unless it removed some."""
        index = self._index
        gone = index.last_seq - index.count
        if gone == self._gone:
            return
        self._gone = gone
        left = {place: seq for place, seq in self._seqs.items() if index.live.has(seq)}
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
