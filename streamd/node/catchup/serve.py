"""`SnapshotServer`: answers the nodes that fetch this node's snapshots. Pure.

A manifest names the newest saved snapshot; it never asks the machine, so no second place takes
snapshots. Checksums of blocks are remembered: a sealed block never changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from crc32c import crc32c

from streamd import errors, limits
from streamd.errors import CorruptionError, StreamdError
from streamd.machine.indexes.columns import Block
from streamd.machine.snapshot import decode_stream
from streamd.node.groups.snapshot_state import unwrap
from streamd.node.ports import Answer
from streamd.raft.membership import Membership
from streamd.store.blocks.block import HEADER_BYTES
from streamd.store.blocks.stream_store import LoadedSnapshot
from streamd.store.transfer.manifest import INDEX_NO, STATE_NO, FileFact, Manifest
from streamd.store.transfer.source import SnapshotSource
from streamd.types import META_UID, Index, Uid

ManifestArgs = tuple[Uid, Index, list[int]]
BlockArgs = tuple[Uid, Index, int, int, int]

Key = tuple[int, int, bool]
"""(block_no, end_offset, is_sealed): what a checksum is of."""


class SourceGroup(Protocol):
    """Group of which this node may hand out the snapshot."""

    @property
    def source(self) -> SnapshotSource: ...

    @property
    def last_index(self) -> Index:
        """Index of the last entry of its log."""

    @property
    def saved_index(self) -> Index:
        """Index of the newest snapshot, as the group knows it; 0: there is none."""

    def save_anew(self, then: Callable[[], None]) -> None:
        """Write the newest snapshot, which can't be read, anew by the monitor; then `then`."""

    def when_saved(self, min_index: Index, then: Callable[[], None]) -> None:
        """Call `then` once a snapshot at `min_index` or later is saved; the monitor takes one if
        the newest is before that."""


class StateFacts(NamedTuple):
    """Facts that a saved state says of itself."""

    members: Membership | None
    digest: int
    blocks: list[Block]


def facts_of(uid: Uid, state: bytes) -> StateFacts:
    """Look into a saved state (of a stream, or of the meta group, which has no blocks)."""
    members, inner = unwrap(state)
    if uid == META_UID:
        return StateFacts(members, 0, [])
    messages = decode_stream(inner).messages
    return StateFacts(members, messages[4], [Block.from_state(row) for row in messages[-1]])


class _Request:
    """Manifest being made. Nodes that ask meanwhile get the same one, if it is new enough."""

    __slots__ = ("answers", "is_waiting", "saved", "turns")

    def __init__(self) -> None:
        self.answers: list[tuple[Index, Answer]] = []  # the least index each can use
        self.saved: LoadedSnapshot | None = None
        self.is_waiting = False  # for a snapshot to be taken
        self.turns = 0


class SnapshotServer:
    """Answers the calls `manifest` and `block`.

    `find(uid)`: the group if this node may answer for it (it leads, or simply has it whole), else
    None. `on_damaged(uid, error, block_no)`: a block of the newest snapshot is missing or bad
    *here*; 0: something else is.
    `on_void(uid, reason)`: the newest snapshot is. The state is in memory, so it is written anew.
    """

    def __init__(
        self,
        *,
        find: Callable[[Uid], SourceGroup | None],
        on_damaged: Callable[[Uid, StreamdError, int], None],
        on_void: Callable[[Uid, str], None],
    ) -> None:
        self._find = find
        self._on_damaged = on_damaged
        self._on_void = on_void
        # Of the blocks of each group's last manifest, and of what was looked at since.
        self._facts: dict[Uid, dict[Key, FileFact]] = {}
        self._requests: dict[Uid, _Request] = {}
        # The states of manifests handed out lately: (uid, index) -> {file number: bytes}.
        self._states: OrderedDict[tuple[Uid, Index], dict[int, bytes]] = OrderedDict()

    def on_manifest(self, args: ManifestArgs, answer: Answer) -> None:
        """The call `manifest`: [uid, min_index, numbers of blocks to look at again]."""
        uid, min_index, suspects = args
        group = self._find(uid)
        if group is None or min_index > group.last_index:
            # The log is behind, or has begun anew: when it gets there is unknown.
            answer(errors.CLUSTER_NOT_AVAIL())
            return
        if suspects and uid in self._facts:
            known = self._facts[uid]
            self._facts[uid] = {key: known[key] for key in known if key[0] not in suspects}
        request = self._requests.get(uid)
        if request is not None:
            request.answers.append((min_index, answer))
            if request.is_waiting:
                self._load(uid, request)  # the group may have been stopped and opened again since
            return
        request = self._requests[uid] = _Request()
        request.answers.append((min_index, answer))
        self._load(uid, request)

    def on_block(self, args: BlockArgs, answer: Answer) -> None:
        """The call `block`: [uid, index of the manifest, file number, offset, size]."""
        uid, index, no, offset, size = args
        group = self._find(uid)
        if group is None:
            answer(errors.CLUSTER_NOT_AVAIL())
            return
        if offset < 0 or not 0 < size <= limits.CATCHUP_CHUNK_BYTES:
            answer(errors.STREAM_STORE_FAILED(err=f"{size} bytes at {offset} are no part"))
            return

        def read(result: bytes | BaseException) -> None:
            answer(_refusal(result) if isinstance(result, BaseException) else result)

        if no > STATE_NO:
            group.source.read(no, offset, size, read)
            return
        files = self._states.get((uid, index))
        if files is not None and no in files:
            answer(self._part(files, no, offset, size))
            return

        def loaded(result: LoadedSnapshot | BaseException | None) -> None:
            if isinstance(result, LoadedSnapshot) and result.index == index:
                answer(self._part(self._remember(uid, result), no, offset, size))
            else:
                answer(errors.STREAM_STORE_FAILED(err=f"no snapshot at {index} any more"))

        group.source.load(loaded)

    def _part(self, files: dict[int, bytes], no: int, offset: int, size: int) -> bytes:
        """Return a part of a state. With its end a file goes: few will ask again, and it can be
        loaded again."""
        blob = files.get(no, b"")
        if offset + size >= len(blob):
            files.pop(no, None)
        return blob[offset : offset + size]

    def forget(self, uid: Uid) -> None:
        """Remove a group that is gone, no longer led here, or whose files were replaced."""
        request = self._requests.get(uid)
        if request is not None:
            self._answer(uid, request, errors.CLUSTER_NOT_AVAIL())
        self._facts.pop(uid, None)
        for state in [state for state in self._states if state[0] == uid]:
            del self._states[state]

    # --- making a manifest ------------------------------------------------------------------

    def _load(self, uid: Uid, request: _Request) -> None:
        group = self._find(uid)
        if group is None or not request.answers:
            self._answer(uid, request, errors.CLUSTER_NOT_AVAIL())
            return
        request.is_waiting = False
        request.turns += 1
        if request.turns > limits.CATCHUP_MANIFEST_TURNS_MAX:
            self._answer(
                uid, request, errors.CLUSTER_NOT_AVAIL()
            )  # snapshots come faster than we look
            return
        group.source.load(lambda result: self._on_loaded(uid, request, result))

    def _on_loaded(
        self, uid: Uid, request: _Request, result: LoadedSnapshot | BaseException | None
    ) -> None:
        group = self._find(uid)
        if group is None:
            self._answer(uid, request, errors.CLUSTER_NOT_AVAIL())
            return
        fault = result if isinstance(result, CorruptionError) else None
        saved = None if isinstance(result, BaseException) else result
        if isinstance(result, BaseException) and fault is None:
            self._damaged(uid, request, result)
            return
        index = 0 if saved is None else saved.index
        if index < group.saved_index:
            # An older one was found in the place of the newest, or none.
            found = str(fault) if fault is not None else f"found one at {index}"
            self._on_void(uid, f"the snapshot at {group.saved_index} can't be read: {found}")
            request.is_waiting = True
            group.save_anew(lambda: self._load(uid, request))
            return
        if fault is not None:
            self._damaged(uid, request, fault)
            return
        if saved is None or all(saved.index < least for least, _ in request.answers):
            self._wait(uid, request)
            return
        request.saved = saved
        try:
            facts = facts_of(uid, saved.state)
        except CorruptionError as err:
            self._damaged(uid, request, err)
            return
        self._check_next(uid, request, facts, [])

    def _wait(self, uid: Uid, request: _Request) -> None:
        """Go on when there is a snapshot that one of the asking members can use."""
        group = self._find(uid)
        if group is None:
            self._answer(uid, request, errors.CLUSTER_NOT_AVAIL())
            return
        request.is_waiting = True
        least = min((least for least, _ in request.answers), default=1)
        group.when_saved(max(least, 1), lambda: self._load(uid, request))

    def _check_next(
        self, uid: Uid, request: _Request, facts: StateFacts, found: list[FileFact]
    ) -> None:
        """Verify the blocks that are not known yet, one job each; then answer."""
        group = self._find(uid)
        if group is None:
            self._answer(uid, request, errors.CLUSTER_NOT_AVAIL())
            return
        blocks = [b for b in facts.blocks if b.is_sealed or b.end_offset > HEADER_BYTES]
        keys = [(b.block_no, b.end_offset, b.is_sealed) for b in blocks]
        known = self._facts.setdefault(uid, {})
        while len(found) < len(blocks):
            key = keys[len(found)]
            if key not in known:
                group.source.check(
                    *key,
                    partial(self._on_checked, uid, request, facts, found, key),
                )
                return
            found.append(known[key])
        saved = request.saved
        assert saved is not None
        self._facts[uid] = dict(zip(keys, found, strict=True))
        waiting = [row for row in request.answers if row[0] > saved.index]
        request.answers = [row for row in request.answers if row[0] <= saved.index]
        if waiting:
            later = self._requests[uid] = _Request()
            later.answers = waiting
            self._wait(uid, later)
        self._answer(uid, request, self._manifest(uid, saved, facts, found))

    def _on_checked(
        self,
        uid: Uid,
        request: _Request,
        facts: StateFacts,
        found: list[FileFact],
        key: Key,
        result: FileFact | BaseException,
    ) -> None:
        if self._requests.get(uid) is not request:
            return  # the group was forgotten meanwhile
        if not isinstance(result, BaseException):
            self._facts.setdefault(uid, {})[key] = result
            self._check_next(uid, request, facts, found)
            return
        # Damaged, or of a snapshot that is no longer the newest, whose blocks may go.
        group = self._find(uid)
        if group is None:
            self._answer(uid, request, errors.CLUSTER_NOT_AVAIL())
            return

        def loaded(newest: object) -> None:
            assert request.saved is not None
            if isinstance(newest, LoadedSnapshot) and newest.index > request.saved.index:
                self._load(uid, request)
            else:
                self._damaged(uid, request, result, key[0])

        group.source.load(loaded)

    def _manifest(
        self, uid: Uid, saved: LoadedSnapshot, facts: StateFacts, blocks: list[FileFact]
    ) -> dict[str, object]:
        files = self._remember(uid, saved)
        members = facts.members or Membership(())
        # Of the state, not of the file: exactly what the blocks listed reach.
        tail = (facts.blocks[-1].block_no, facts.blocks[-1].end_offset) if facts.blocks else (0, 0)
        return Manifest(
            uid,
            saved.index,
            saved.term,
            saved.chain,
            tail,
            facts.digest,
            members.lists,
            (*(FileFact(no, len(blob), crc32c(blob)) for no, blob in files.items()), *blocks),
        ).to_wire()

    def _remember(self, uid: Uid, saved: LoadedSnapshot) -> dict[int, bytes]:
        files = {STATE_NO: saved.state}
        if saved.index_db:
            files[INDEX_NO] = saved.index_db
        self._states[uid, saved.index] = files
        self._states.move_to_end((uid, saved.index))
        while len(self._states) > limits.CATCHUP_STATES_MAX:
            self._states.popitem(last=False)
        return files

    def _damaged(self, uid: Uid, request: _Request, err: BaseException, block_no: int = 0) -> None:
        if not isinstance(err, StreamdError):
            raise err
        self._answer(uid, request, _refusal(err))
        self._on_damaged(uid, err, block_no)

    def _answer(self, uid: Uid, request: _Request, value: object) -> None:
        if self._requests.get(uid) is request:
            del self._requests[uid]
        answers, request.answers = request.answers, []
        for _, answer in answers:
            answer(value)


def _refusal(err: BaseException) -> errors.JsError:
    return errors.STREAM_STORE_FAILED(err=str(err))
