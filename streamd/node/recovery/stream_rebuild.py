"""`StreamRebuild`: rebuilds a stream whose only copy lost its snapshots, or its log.

What its blocks hold is the truth of its messages; what is known beside them comes from the newest
state that is whole (a snapshot, or the outline), and from what the log has of it. The result is a
snapshot like any other, from which the stream is then opened as ever; so a crash at any moment
leaves it rebuilt, or to be rebuilt. Nothing is thrown away: damaged files go to `trash/`.

Only where a loss is accepted; on the block thread, before the group starts (docs/adr/0024).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from streamd import limits
from streamd.errors import CorruptionError
from streamd.machine.digest import mix_all
from streamd.machine.indexes.columns import Columns
from streamd.machine.indexes.live_messages import MessagesState
from streamd.machine.indexes.seqset import SeqSet
from streamd.machine.meta import StreamAsset
from streamd.machine.snapshot import StreamState, columns_from, decode_stream
from streamd.machine.streams import rebuild_from_blocks
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups.snapshot_state import unwrap, wrap
from streamd.raft.membership import Membership
from streamd.store.blocks import record_format as fmt
from streamd.store.blocks.block import HEADER_BYTES
from streamd.store.blocks.block_codec import BlockCodec
from streamd.store.blocks.index_db import remove_index
from streamd.store.blocks.outline import read_outline
from streamd.store.blocks.quarantine import keep_block, kept_block
from streamd.store.blocks.record_format import REWRITTEN, block_name, block_number
from streamd.store.blocks.salvage import Harvest, harvest, left_of, read_left
from streamd.store.blocks.snapshots import (
    TMP_SUFFIX,
    Snapshot,
    SnapshotFile,
    decode,
    put_in_place,
    read_file,
    write_tmp,
)
from streamd.store.blocks.stream_store import StreamStore
from streamd.store.disk import Disk
from streamd.types import Entry, Index, LogState, Seq, Uid

_ALL: Index = 1 << 62  # no log comes so far
_READ_BYTES = 4 * 1024 * 1024  # of the log, at once
_RANGES_TOLD = 8
OUTLINE = "its outline"

Range = tuple[Seq, Seq]


class GroupLog(NamedTuple):
    """Entries of the stream's group that the log has."""

    state: LogState | None
    read: Callable[[Index, Index, int], list[Entry]]

    def entries(self, after: Index, upto: Index) -> Iterator[Entry]:
        """Yield the entries after one, up to another, as far as the log has them."""
        if self.state is None:
            return
        at, end = max(after + 1, self.state.first_index), min(upto, self.state.last_index) + 1
        while at < end:
            found = self.read(at, end, _READ_BYTES)
            yield from found
            at += len(found)


class Basis(NamedTuple):
    """A state of the stream that is whole."""

    name: str  # of its file
    index: Index  # type: ignore[assignment]
    term: int
    state: StreamState


class Report(NamedTuple):
    """Report on a rebuilt stream for an operator."""

    name: str
    uid: Uid
    basis: str
    blocks: int
    damaged: list[str]  # block files of which a part is lost, or all
    message_count: int
    first_seq: Seq
    last_seq: Seq
    lost: list[Range]  # seqs of messages that were there
    unknown: list[Range]  # of messages that were lost, or deleted
    in_log: int  # entries of the log that are applied on top
    consumers: list[str]
    forgotten: list[str]

    def lines(self) -> list[str]:
        """The same, to read."""
        there = f"{self.message_count} messages"
        if self.message_count:
            there += f", sequences {self.first_seq} to {self.last_seq}"
        there += f", from {self.blocks} blocks and {self.basis}"
        if self.in_log:
            there += f"; {self.in_log} entries of the log come on top"
        lines = [f"stream {self.name} (uid {self.uid})", f"  there:     {there}"]
        lost = [f"{_count(self.lost)} messages: {_text(self.lost)}"] if self.lost else []
        if self.unknown:
            lost.append(
                f"up to {_count(self.unknown)} messages, lost or deleted: {_text(self.unknown)}"
            )
        if self.damaged:
            lost.append(f"a part of {', '.join(self.damaged)}")
        lines.append(f"  lost:      {'; '.join(lost) or 'no message that any file names'}")
        known = ", ".join(self.consumers) or "none is known"
        lines.append(f"  consumers: {known}")
        lines += [f"  forgotten: {text}" for text in self.forgotten]
        lines.append(f"  next:      sequence {self.last_seq + 1}" + " or later" * bool(self.in_log))
        return lines


class StreamRebuild:
    """Rebuild of one stream."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        store: StreamStore,
        codec: BlockCodec,
        log: GroupLog,
        *,
        members: Membership | None,
        is_resumed: bool,
    ) -> None:
        self._disk = disk
        self._root = root
        self._store = store
        self._uid = store.uid
        self._directory = store.directory
        self._codec = codec
        self._log = log
        self._members = members  # of the group, on a node of a cluster: this node alone
        self._is_resumed = is_resumed
        self._paths: dict[int, str] = {}  # of its blocks

    def run(self, asset: StreamAsset) -> Report | None:
        """Rebuild the stream; None: neither its blocks nor any state of it are there. Raises
        OSError and StreamdError."""
        self._paths = self._find_paths()
        basis, voids = self._basis()
        if not self._paths and (basis is None or not basis.index):
            return None  # it has nothing
        is_known = basis is not None and basis.index > 0  # else it says nothing of messages
        start = basis.index if basis is not None else 0
        log = self._log.state
        base, last_index = start, 0
        if log is not None:
            base, last_index = max(base, log.first_index - 1), log.last_index
        found = self._survey(base)
        last_frame = max((each.last_frame for each in found.values()), default=0)
        cut, applied = _ALL, base
        if last_index > base and last_index >= last_frame:
            if not (is_known and base == start) and not _is_sure(found, base):
                found = self._survey(last_frame)
                base = max(base, last_frame)
            cut = applied = base
        elif last_index < max(last_frame, base) or not last_index:
            # The log begins anew after it: no index that it had is given again.
            applied = max(base, last_index, last_frame) + limits.LOST_INDEXES
        return self._make(asset, basis, voids, self._cut(found, cut), applied)

    # --- what is there --------------------------------------------------------------------------

    def _basis(self) -> tuple[Basis | None, list[str]]:
        """The newest state that is whole, and snapshots that are not."""
        whole: list[tuple[str, Snapshot]] = []
        voids: list[str] = []
        for name in SnapshotFile.names(self._disk, self._directory, "stream"):
            path = os.path.join(self._directory, name)
            try:
                found = decode(read_file(self._disk, path), name=name, group=self._uid)
                whole.append((name, found))
            except CorruptionError:
                voids.append(name)
        outline = read_outline(self._disk, self._directory, self._uid)
        if outline is not None:
            whole.append((OUTLINE, outline))
        for name, snapshot in sorted(whole, key=lambda one: -one[1].index):  # at equal, a snapshot
            state = decode_stream(unwrap(snapshot.state)[1])
            return Basis(name, snapshot.index, snapshot.term, state), voids
        return None, voids

    def _find_paths(self) -> dict[int, str]:
        """Find the file of each block, by number."""
        paths = {
            number: os.path.join(self._directory, name)
            for name in self._disk.listdir(self._directory)
            if (number := block_number(name)) is not None
        }
        if self._is_resumed:  # a crash may have come after one was moved, before there was another
            for number in self._kept_numbers() - paths.keys():
                paths[number] = kept_block(self._disk, self._root, self._uid, block_name(number))
        return dict(sorted(paths.items()))

    def _kept_numbers(self) -> set[int]:
        trash, stem = os.path.join(self._root, "trash"), f"{self._uid}-lost-"
        return {
            number
            for directory in self._disk.listdir(trash)
            if directory.startswith(stem)
            for name in self._disk.listdir(os.path.join(trash, directory))
            if (number := block_number(name)) is not None
        }

    def _survey(self, upto: Index) -> dict[int, Harvest]:
        """Harvest each block, but for what would take memory for each message."""
        return {
            number: self._harvest(number, upto=upto)._replace(crcs=[], headed=[], kept=[])
            for number in self._paths
        }

    def _harvest(self, number: int, *, upto: Index = _ALL, end: int | None = None) -> Harvest:
        blob = read_left(self._disk, self._paths[number])
        return harvest(blob[:end], self._uid, number, upto=upto)

    def _cut(self, found: dict[int, Harvest], cut: Index) -> dict[int, int | None]:
        """The blocks in the order of their messages, with where each ends, if what it holds of
        after an entry is not wanted: the log has that, and writes it again."""
        ends: dict[int, int | None] = {}
        numbers = [number for number in found if number < REWRITTEN]
        for number in numbers:
            each = found[number]
            is_cut = each.last_frame > cut or (number == numbers[-1] and each.has_more)
            if cut != _ALL and is_cut:
                ends[number] = each.cut_at
                break
            ends[number] = None
        for number in found.keys() - set(numbers):
            # Else the log puts it in the place of others again, if they are there.
            if number - REWRITTEN <= cut or not self._is_covered(found, number):
                ends[number] = None
        return dict(sorted(ends.items(), key=lambda item: found[item[0]].ranges[:1]))

    @staticmethod
    def _is_covered(found: dict[int, Harvest], number: int) -> bool:
        held = SeqSet()
        for other, each in found.items():
            if other != number:
                for low, high in each.ranges:
                    held.add_range(low, high)
        return all(
            held.count_below(high + 1) - held.count_below(low) == high - low + 1
            for low, high in found[number].ranges
        )

    # --- the new state --------------------------------------------------------------------------

    def _make(
        self,
        asset: StreamAsset,
        basis: Basis | None,
        voids: list[str],
        ends: dict[int, int | None],
        applied: Index,
    ) -> Report:
        known = basis.state if basis is not None and basis.index else None  # of its messages
        config, config_index = asset.config, asset.update_index
        if known is not None:
            config, config_index = known.config, known.config_meta_index
        elif not applied:
            config, config_index = asset.created_config, asset.uid
        found, parts, headers = self._take(ends, rebuild_from_blocks.Headers(config, known))
        assembly = rebuild_from_blocks.Assembly(known, parts)
        for each in found.values():
            assembly.bury(each.tombstones)
            assembly.note_seq(each.mentioned)
        short = rebuild_from_blocks.shortfall(
            self._log.entries(applied, _ALL),
            assembly.last_seq,
            leaves_markers=bool(config.get("subject_delete_marker_ttl")),
        )
        assembly.note_seq(assembly.last_seq + short)
        used = {part.block_no for part in assembly.parts if assembly.live_count(part)}
        damaged = self._replace(found, used, assembly.listed)
        self._store.look_again()
        digests = {
            part.block_no: assembly.digest_of(self._columns(part))
            for part in assembly.parts
            if 0 < assembly.live_count(part) < part.message_count
        }
        messages = assembly.messages(digests)
        state = StreamState(
            uid=asset.uid,
            config=config,
            created_ns=asset.created_ns,
            applied=applied,
            config_meta_index=config_index,
            messages=messages,
            dedupe=headers.dedupe(),
            last_msg_id=headers.id_of(messages[1]),
            ttl=sorted(due for due in headers.due if assembly.is_live(due[1])),
            consumers=basis.state.consumers if basis is not None else [],
            features=headers.features(assembly.is_live),
        )
        machine = StreamMachine.of_state(
            state,
            None,
            codec=self._codec,
            columns=self._store,
            scan=self._store.scan,
            loss=_Made(messages),
        )
        start = basis.index if basis is not None else 0
        rebuild_from_blocks.close_gaps(machine, self._log.entries(start, _ALL))
        rebuild_from_blocks.follow(
            machine,
            self._log.entries(start, applied),
            known_to=known.messages[1] if known is not None else 0,
        )
        machine.trim()
        log = self._log.state
        has_gap = log is None or log.first_index - 1 > start or log.last_index < applied
        is_held = has_gap and rebuild_from_blocks.hold(machine, messages[5])
        self._save(machine, applied, basis, voids)
        lost, unknown = assembly.gaps()
        return Report(
            name=asset.name,
            uid=asset.uid,
            basis=basis.name if basis is not None else "nothing else",
            blocks=len(used),
            damaged=damaged,
            message_count=machine.index.count,
            first_seq=machine.index.first_seq,
            last_seq=machine.index.last_seq,
            lost=lost,
            unknown=unknown,
            in_log=max(0, log.last_index - applied) if log is not None else 0,
            consumers=[
                f"{each.name} (delivered {each.delivered_sseq}, ack floor {each.floor_sseq})"
                for each in machine.consumers.values()
            ],
            forgotten=self._forgotten(basis, applied, short, is_held=is_held),
        )

    def _take(
        self, ends: dict[int, int | None], headers: rebuild_from_blocks.Headers
    ) -> tuple[dict[int, Harvest], list[rebuild_from_blocks.Part], rebuild_from_blocks.Headers]:
        """Read the blocks that are wanted, in the order of their messages."""
        last = max((number for number in ends if number < REWRITTEN), default=0)
        found: dict[int, Harvest] = {}
        parts: list[rebuild_from_blocks.Part] = []
        for number, end in ends.items():
            each = self._harvest(number, end=end)
            headers.note(each.headed)
            headers.note_kept(each.kept)
            is_new = _is_replaced(each, is_last=number == last)
            part = rebuild_from_blocks.Part(
                block_no=number,
                ranges=each.ranges,
                first_ts=each.first_ts,
                last_ts=each.last_ts,
                digest=mix_all(each.seqs, each.crcs),
                end_offset=each.left_bytes if is_new else each.end_offset,
                is_sealed=number != last or each.is_sealed,
                is_whole=each.is_whole,
            )
            parts.append(part)
            found[number] = each._replace(crcs=[], headed=[], kept=[])
        return found, parts, headers

    def _replace(
        self, found: dict[int, Harvest], used: set[int], listed: dict[int, int]
    ) -> list[str]:
        """Write anew what is left of damaged blocks; their files as they were go to `trash/`."""
        disk, directory = self._disk, self._directory
        last = max((number for number in found if number < REWRITTEN), default=0)
        damaged = [
            block_name(number) for number, live in listed.items() if live and number not in found
        ]
        for number, each in found.items():
            name, path = block_name(number), self._paths[number]
            is_moved = os.path.dirname(path) != directory
            if not each.is_whole and (number in used or not listed or number in listed):
                damaged.append(f"the end of {name}" if each.is_torn else name)
            if not _is_replaced(each, is_last=number == last) and not is_moved:
                continue
            tmp = name + TMP_SUFFIX
            blob = left_of(read_left(disk, path), self._uid, number, each.pieces)
            if number != last or each.is_sealed:
                columns = columns_from(fmt.scan(blob[HEADER_BYTES:], HEADER_BYTES))
                blob += self._codec.encode_footer(columns)
            if number in used:
                write_tmp(disk, directory, tmp, [blob], point="REBUILD_BLOCK")
            if not is_moved:
                keep_block(disk, self._root, self._uid, name)
            if number in used:
                put_in_place(disk, directory, tmp, name, point="REBUILD_BLOCK")
        return damaged

    def _columns(self, part: rebuild_from_blocks.Part) -> Columns:
        if part.is_sealed:
            return Columns.from_view(
                self._codec.decode_footer(self._store.load_footer(part.block_no))
            )
        return columns_from(self._store.scan(part.block_no, part.end_offset))

    def _save(
        self, machine: StreamMachine, applied: Index, basis: Basis | None, voids: list[str]
    ) -> None:
        """Make the state what the stream is opened from."""
        term, chain = self._place(applied, basis)
        state = machine.snapshot()
        if self._members is not None:
            state = wrap(self._members, state)
        for name in voids:
            keep_block(self._disk, self._root, self._uid, name)
        # Of the snapshot that was at the same entry, with the same end: it may tell of others.
        remove_index(self._disk, self._directory)
        snapshot = Snapshot(self._uid, applied, term, chain, state, machine.tail)
        SnapshotFile.save(self._disk, self._directory, "stream", snapshot)

    def _place(self, applied: Index, basis: Basis | None) -> tuple[int, int]:
        """Term and chain of the entry that was applied last."""
        log = self._log.state
        if log is not None and log.first_index - 1 <= applied <= log.last_index:
            if applied == log.first_index - 1:
                return log.prev_term, log.prev_chain
            (entry,) = self._log.entries(applied - 1, applied)
            return entry.term, entry.chain
        terms = [log.hard_state.term if log is not None else 0, basis.term if basis else 0]
        return max(1, *terms), 0

    # --- what is told ---------------------------------------------------------------------------

    def _forgotten(
        self, basis: Basis | None, applied: Index, short: int, *, is_held: bool
    ) -> list[str]:
        told = []
        log = self._log.state
        known_to = basis.index if basis is not None else 0
        if not known_to:
            told.append(
                "its consumers, but for those that the log creates, and which of its first "
                "messages had left: no later state of it is whole"
            )
        if log is None or log.last_index < applied:
            told.append("what was acknowledged after that, if it stood in the log alone")
        if log is None or log.first_index - 1 > known_to or log.last_index < applied:
            told.append(
                f"what was acked by consumers, and left the front of the stream, after entry "
                f"{known_to} of its log, as far as the log does not say it: it may come again"
            )
        if basis is None or basis.name == OUTLINE:
            told.append("ids of messages that left: a publish with one of them is stored again")
        if is_held:
            told.append(
                f"who its messages are for: the durable {rebuild_from_blocks.HOLDER} keeps them; "
                "delete it when its consumers are there again"
            )
        if short:
            told.append(f"{short} messages of which only the sequences are known")
        return told


class _Made(NamedTuple):
    """Implements machine.snapshot.Left."""

    made: MessagesState

    def messages(self) -> MessagesState:
        return self.made


def _is_replaced(each: Harvest, *, is_last: bool) -> bool:
    """True if the block's file can't stay as it is. The last one may have more behind what is whole
    in it: that is cut off."""
    if is_last:
        return not each.is_whole and not each.is_torn
    return not (each.is_whole and each.is_sealed)


def _is_sure(found: dict[int, Harvest], index: Index) -> bool:
    """True if it is certain where in the blocks begins what came after an entry."""
    before: tuple[int, Harvest] | None = None
    for number, each in found.items():
        if number >= REWRITTEN:
            break
        if each.last_frame > index:
            if each.first_frame <= index or not each.is_cut_sure:
                return each.is_cut_sure
            if before is None:
                return number == 1
            return before[0] == number - 1 and before[1].is_whole and before[1].is_sealed
        before = number, each
    return True


def _count(ranges: list[Range]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _text(ranges: list[Range]) -> str:
    told = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges]
    more = len(told) - _RANGES_TOLD
    return ", ".join(told[:_RANGES_TOLD]) + (f" and {more} more ranges" if more > 0 else "")
