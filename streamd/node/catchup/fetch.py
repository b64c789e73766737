"""`SnapshotFetch`: fetches the leader's snapshot, block by block, and installs it. Pure.

asking -> preparing -> fetching -> sealing -> closing -> swapping -> done. Every step's outcome is
a callback; an answer to an abandoned attempt is ignored by its number. Whatever goes
wrong before the swap, the node stays as it was, keeps the files that are whole, and asks anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from streamd import limits
from streamd.callbacks import ignore
from streamd.errors import CorruptionError, DiskError, IncarnationError, StreamdError
from streamd.raft.membership import Membership
from streamd.store.transfer.manifest import FileFact, Manifest
from streamd.types import META_UID, Index, NodeId, Term, Uid

IDLE, WAITING, ASKING, PREPARING, FETCHING, SEALING, CLOSING, SWAPPING, DONE, FAILED = range(10)
STATE_NAMES = (
    "idle", "waiting", "asking", "preparing", "fetching", "sealing", "closing", "swapping", "done",
    "failed",
)  # fmt: skip

T = TypeVar("T")
Result = Callable[[object], None]
"""Called once with the outcome, or an error as a value."""


class InstallTarget(Protocol):
    """Destination of the files: store/transfer/install.py. `done` may be called at once, or
    later."""

    def begin(
        self,
        manifest: Manifest,
        done: Callable[[set[int] | BaseException], None],
        is_over: Callable[[], bool],
    ) -> None:
        """`done` gets the set of numbers of files that are whole here already. Once `is_over()`,
        nothing more is done about this manifest, whose place another may have taken."""

    def write(self, no: int, offset: int, data: bytes, done: Result) -> None: ...

    def complete(self, no: int, done: Result) -> None:
        """`done(CorruptionError)`: the file is not what the manifest says, and gone again."""

    def seal(self, done: Result) -> None: ...

    def before_swap(self, done: Callable[[], None]) -> None: ...

    def swap(self, done: Result) -> None: ...

    def drop(self, done: Result) -> None: ...


class InstalledSnapshot(NamedTuple):
    """Snapshot that took the place of a group's state, durably."""

    index: Index  # type: ignore[assignment]
    term: Term
    chain: int
    members: Membership
    digest: int  # of the content; what is opened now must have it


class FetchSlots:
    """Slots for the few groups of a node that catch up at a time: a wiped node has thousands that
    need to, and their windows together must leave the link and the disks to publishers."""

    def __init__(self) -> None:
        self._inside: set[SnapshotFetch] = set()
        self._waiting: dict[SnapshotFetch, Callable[[], None]] = {}  # in the order they came

    def enter(self, fetch: SnapshotFetch, then: Callable[[], None]) -> None:
        """Call `then` when `fetch` has a slot: at once, if it has one already."""
        if fetch in self._inside:
            then()
            return
        self._waiting[fetch] = then
        self._let_in()

    def leave(self, fetch: SnapshotFetch) -> None:
        """Free the slot of a fetch that waits for something else now, or has ended."""
        self._waiting.pop(fetch, None)
        self._inside.discard(fetch)
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and len(self._inside) < limits.CATCHUP_GROUPS_MAX:
            fetch = next(iter(self._waiting))
            then = self._waiting.pop(fetch)
            self._inside.add(fetch)
            then()


class FetchHost(Protocol):
    """Owner of the fetches of one node: catchup/service.py."""

    def on_done(self, uid: Uid, found: InstalledSnapshot) -> None: ...

    def on_failed(self, uid: Uid, err: BaseException) -> None:
        """Take in a group whose swap failed: it is closed."""

    def is_wanted(self, uid: Uid, index: Index) -> bool:
        """False if the group got past `index` by other means; asked before the swap, and then all
        is dropped."""

    def is_offered(self, uid: Uid) -> bool:
        """False if the offer is void; there may be another. Asked before an attempt that failed is
        repeated."""

    def on_trouble(self, uid: Uid, text: str) -> None:
        """Hear of an attempt that failed; of this node's disk once, for a full disk stays full for
        hours."""

    def on_conflict(self, uid: Uid, text: str) -> None:
        """Hear that a peer sent another stream's snapshot."""


class SnapshotFetch:
    """Fetch of one group. `start` it with every offer; it does nothing twice.

    `call(node_id, method, args, done)` is `Peers.call`; `later(delay_s, callback)` is the loop's
    `call_later`. `slots` is shared by all groups of the node.
    """

    def __init__(
        self,
        uid: Uid,
        *,
        call: Callable[[NodeId, str, Sequence[object], Result], None],
        target: InstallTarget,
        later: Callable[[float, Callable[[], None]], object],
        host: FetchHost,
        slots: FetchSlots | None = None,
    ) -> None:
        self.uid = uid
        self.state = IDLE
        self.leader: NodeId = ""
        self._is_disk_told = False
        self._call = call
        self.target = target
        self._later = later
        self._host = host
        self._slots = slots or FetchSlots()
        self._attempt = 0  # outcomes of earlier attempts are ignored
        self._min_index: Index = 0
        self._manifest: Manifest | None = None
        self._delay_s = 0.0
        self._done_bytes = 0
        self._todo: deque[FileFact] = deque()
        self._chunks: deque[tuple[int, int, int]] = deque()  # (no, offset, size) to be asked for
        self._missing: dict[int, int] = {}  # bytes that a file under way still lacks
        self._unfinished = 0  # files that are not whole yet
        self._in_flight = 0  # chunks asked for and not yet written
        self._bad: dict[int, int] = {}  # how often a file came damaged
        self._suspects: list[int] = []  # the leader should look at these again

    @property
    def progress(self) -> tuple[int, int]:
        """(bytes that are here and whole or on their way, bytes in all); (0, 0): not known."""
        if self._manifest is None:
            return 0, 0
        return min(self._done_bytes, self._manifest.byte_count), self._manifest.byte_count

    @property
    def is_running(self) -> bool:
        return self.state not in (IDLE, DONE, FAILED)

    @property
    def is_local(self) -> bool:
        """True from the moment at which nothing is needed from the leader any more."""
        return self.state in (SEALING, CLOSING, SWAPPING)

    def start(self, leader: NodeId, min_index: Index) -> None:
        """Fetch a snapshot at `min_index` or later from `leader`.

        Under way with that leader: nothing changes. A new leader: what is whole is kept.
        """
        if self.is_local:
            return  # a later offer, if this is not enough, finds the group idle again
        self._min_index = max(self._min_index, min_index) if self.is_running else min_index
        if self.is_running and leader == self.leader:
            return
        self.leader = leader
        self._bad.clear()
        self._suspects.clear()
        self._delay_s = 0.0
        self._ask()

    def stop(self) -> None:
        """Abort. What is whole stays for the next time; a swap under way may still happen, and is
        not reported."""
        self._attempt += 1
        self._forget_work()
        self.state = IDLE
        self._slots.leave(self)

    # --- the manifest -----------------------------------------------------------------------

    def _ask(self) -> None:
        self._attempt += 1
        self._forget_work()
        self.state = WAITING
        mine = self._mine(lambda outcome: self._ask_now())
        if self.uid == META_UID:
            mine(None)  # without it no other group is known to be right
        else:
            self._slots.enter(self, lambda: mine(None))

    def _ask_now(self) -> None:
        self.state = ASKING
        suspects, self._suspects = self._suspects, []
        arguments = [self.uid, self._min_index, suspects]
        self._call(self.leader, "manifest", arguments, self._mine(self._on_manifest))

    def _on_manifest(self, result: object) -> None:
        if isinstance(result, BaseException):
            self._retry(f"{self.leader} has no manifest: {result}")
            return
        try:
            manifest = Manifest.from_wire(result)
            if manifest.uid != self.uid:
                raise IncarnationError(f"manifest of group {manifest.uid}, not {self.uid}")
            if manifest.index < self._min_index:
                raise CorruptionError(
                    f"manifest at index {manifest.index}, before {self._min_index}"
                )
        except CorruptionError as err:
            if isinstance(err, IncarnationError):
                self._host.on_conflict(self.uid, f"from {self.leader}: {err}")
            self._retry(f"from {self.leader}: {err}")
            return
        self._manifest = manifest
        self._done_bytes = 0
        self.state = PREPARING
        attempt = self._attempt
        self.target.begin(manifest, self._mine(self._on_prepared), lambda: attempt != self._attempt)

    def _on_prepared(self, result: set[int] | BaseException) -> None:
        if isinstance(result, BaseException):
            self._start_over(result)
            return
        assert self._manifest is not None
        for fact in self._manifest.files:
            if fact.no in result:
                self._done_bytes += fact.length
            else:
                self._todo.append(fact)
        self._unfinished = len(self._todo)
        self.state = FETCHING
        self._fetch()

    # --- the files --------------------------------------------------------------------------

    def _fetch(self) -> None:
        """Keep the window full; seal once every file is whole."""
        assert self._manifest is not None
        while self._in_flight < limits.CATCHUP_WINDOW:
            if not self._chunks and not self._cut_next():
                break
            no, offset, size = self._chunks.popleft()
            self._in_flight += 1

            def answered(
                result: object, no: int = no, offset: int = offset, size: int = size
            ) -> None:
                self._on_chunk(result, no, offset, size)

            arguments = [self.uid, self._manifest.index, no, offset, size]
            attempt = self._attempt
            self._call(self.leader, "block", arguments, self._mine(answered))
            if attempt != self._attempt:
                return  # it was answered at once, and with an error
        if not self._unfinished and self.state == FETCHING:
            self.state = SEALING
            self.target.seal(self._mine(self._on_sealed))

    def _cut_next(self) -> bool:
        """Cut the next file into chunks; False if none is left."""
        if not self._todo:
            return False
        fact = self._todo.popleft()
        step = limits.CATCHUP_CHUNK_BYTES
        self._missing[fact.no] = fact.length
        for offset in range(0, fact.length, step):
            self._chunks.append((fact.no, offset, min(step, fact.length - offset)))
        return bool(self._chunks)

    def _on_chunk(self, result: object, no: int, offset: int, size: int) -> None:
        if isinstance(result, BaseException):
            self._retry(f"{self.leader} no longer serves block {no}: {result}")
            return
        if not isinstance(result, bytes) or len(result) != size:
            self._suspects.append(no)
            self._retry(f"{self.leader} sent less than it promised of block {no}")
            return
        self.target.write(
            no, offset, result, self._mine(lambda outcome: self._on_written(outcome, no, size))
        )

    def _on_written(self, result: object, no: int, size: int) -> None:
        if isinstance(result, BaseException):
            self._start_over(result)
            return
        # Only now: a slow disk slows the fetching.
        self._in_flight -= 1
        self._done_bytes += size
        self._missing[no] -= size
        if not self._missing[no]:
            del self._missing[no]
            self.target.complete(no, self._mine(lambda outcome: self._on_complete(outcome, no)))
        if self.state == FETCHING:
            self._fetch()

    def _on_complete(self, result: object, no: int) -> None:
        if isinstance(result, CorruptionError):
            self._on_bad_file(result, no)
            return
        if isinstance(result, BaseException):
            self._start_over(result)
            return
        self._delay_s = 0.0  # there is progress
        self._bad.pop(no, None)
        self._unfinished -= 1
        self._fetch()

    def _on_bad_file(self, err: CorruptionError, no: int) -> None:
        """Fetch it once more; if that is no better, have the leader look at its own copy."""
        assert self._manifest is not None
        self._bad[no] = self._bad.get(no, 0) + 1
        if self._bad[no] >= limits.CATCHUP_BAD_FILE_TRIES:
            self._bad.pop(no)
            self._suspects.append(no)
            self._retry(f"from {self.leader}: {err}")
            return
        self._host.on_trouble(self.uid, f"from {self.leader}: {err}")
        fact = next(fact for fact in self._manifest.files if fact.no == no)
        self._done_bytes -= fact.length
        self._todo.appendleft(fact)
        self._fetch()

    # --- the swap ---------------------------------------------------------------------------

    def _on_sealed(self, result: object) -> None:
        assert self._manifest is not None
        if isinstance(result, BaseException):
            self._start_over(result)
        elif not self._host.is_wanted(self.uid, self._manifest.index):
            self.stop()
            self.target.drop(ignore)
        else:
            self.state = CLOSING
            mine = self._mine(lambda outcome: self._on_closed())
            self.target.before_swap(lambda: mine(None))

    def _on_closed(self) -> None:
        self.state = SWAPPING
        self.target.swap(self._mine(self._on_swapped))

    def _on_swapped(self, result: object) -> None:
        if isinstance(result, BaseException):
            # The live store is closed and the directories may be half-way: only a restart, which
            # finishes the swap, knows better.
            self.state = FAILED
            self._slots.leave(self)
            self._host.on_failed(self.uid, result)
            return
        manifest = self._manifest
        assert manifest is not None
        self._attempt += 1
        self._forget_work()
        self.state = DONE
        self._slots.leave(self)
        voters, voters_out, learners, learners_next = manifest.members
        self._host.on_done(
            self.uid,
            InstalledSnapshot(
                manifest.index,
                manifest.term,
                manifest.chain,
                Membership(voters, voters_out, learners, learners_next),
                manifest.digest,
            ),
        )

    # --- giving up an attempt ---------------------------------------------------------------

    def _retry(self, why: str, *, is_told: bool = False) -> None:
        """Ask for a manifest again, after a while; what is whole stays."""
        self._attempt += 1
        self._forget_work()
        self.state = WAITING
        self._delay_s = min(
            max(self._delay_s * 2, limits.CATCHUP_RETRY_S_MIN), limits.CATCHUP_RETRY_S_MAX
        )
        if not is_told:
            self._host.on_trouble(self.uid, why)
        mine = self._mine(lambda outcome: self._ask_again())
        self._later(self._delay_s, lambda: mine(None))
        self._slots.leave(self)

    def _ask_again(self) -> None:
        if self._host.is_offered(self.uid):
            self._ask()
        else:
            self.stop()

    def _start_over(self, err: BaseException) -> None:
        """This disk, or what is on it, failed us: drop everything, begin again after a while.

        New files are written then: no failed sync is ever repeated (I10).
        """
        if not isinstance(err, StreamdError):
            raise err
        self.target.drop(ignore)
        is_told = False
        if isinstance(err, DiskError):
            self._delay_s = limits.CATCHUP_RETRY_S_MAX
            is_told, self._is_disk_told = self._is_disk_told, True
        self._retry(str(err), is_told=is_told)

    def _forget_work(self) -> None:
        self._todo.clear()
        self._chunks.clear()
        self._missing.clear()
        self._unfinished = self._in_flight = 0

    def _mine(self, then: Callable[[T], None]) -> Callable[[T], None]:
        """`then`, if this attempt is still the present one when it is called."""
        attempt = self._attempt

        def called(result: T) -> None:
            if attempt == self._attempt:
                then(result)

        return called
