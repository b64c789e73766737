"""Records and names that several rooms share. Standard library only; hardly any behaviour."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

Seq: TypeAlias = int  # position of a message in its stream, from 1
Index: TypeAlias = int  # position of an entry in a group's log, from 1
Term: TypeAlias = int
Uid: TypeAlias = int  # index of the meta entry that created the asset; 0 is the meta group itself
NodeId: TypeAlias = str
Document: TypeAlias = dict[str, Any]
"""A JSON object of the API or a monitoring page, decoded or to be encoded."""

META_UID: Uid = 0
ACCOUNT = "$G"  # the account of clients and streams for which none is configured
SYSTEM_ACCOUNT = "$SYS"  # unless `system_account` names another

StreamKey: TypeAlias = tuple[str, str]
"""(account, stream name): a name is unique in its account."""


def stream_label(key: StreamKey) -> str:
    """Return a stream as people are told of it: its name, with the account unless that is `$G`."""
    account, name = key
    return name if account == ACCOUNT else f"{account}/{name}"


Buffer: TypeAlias = bytes | bytearray | memoryview  # bytes to be written somewhere
Msg: TypeAlias = tuple[bytes, bytes, bytes]
"""One published message: (subject, headers, payload). Headers are the whole `NATS/1.0` block
with its blank line, or b"" when there are none."""


class Pieces:
    """A blob that is not copied together until somebody wants it in one piece: `bytes(pieces)`."""

    __slots__ = ("pieces", "size")

    def __init__(self, pieces: list[bytes], size: int) -> None:
        """`size` is the sum of their lengths."""
        self.pieces = pieces
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


BlockOp: TypeAlias = tuple[int, int, int, bytes | Pieces] | tuple[int, int]
"""Block operation: kind and block number, but for a DROP then offset and bytes (machine.base)."""


class StorageLimit(NamedTuple):
    """Bound of what streams of an account may store."""

    byte_count: int  # of all replicas; in a tier each stream counts once
    is_of_tier: bool  # holds for the streams with one number of replicas


class AssetLimits(NamedTuple):
    """Bounds that a server sets for streams and consumers (`jetstream { limits {} }`); 0: no
    limit."""

    ack_pending_max: int = 0
    request_batch_max: int = 0
    duplicate_window_ns_max: int = 0


class BatchLimits(NamedTuple):
    """Bounds that a server sets for atomic batches (`jetstream { limits { batch {} } }`); 0: as
    limits.py has it."""

    per_stream_max: int = 0
    per_server_max: int = 0
    msgs_max: int = 0
    idle_ms_max: int = 0


class Entry:
    """Log entry. `data` is what is stored and sent; `command` is the same thing decoded.

    The proposer of an entry already holds the decoded command, so it rides along and `apply` need
    not decode what this very process encoded. Entries read from disk or a peer have `command`
    None until someone decodes them (`machine.commands.decode`).
    """

    __slots__ = ("chain", "command", "data", "index", "tag", "term")

    def __init__(
        self,
        term: Term,
        index: Index,
        data: bytes,
        command: Any = None,
        tag: Any = None,
        chain: int = 0,
    ) -> None:
        self.term = term
        self.index = index
        self.data = data  # b"" is Raft's own no-op at the start of a term
        self.command = command
        self.tag = tag  # the proposer's: who waits for the outcome; never stored or sent
        self.chain = chain  # crc32c over (previous chain, term, index, data)

    def __repr__(self) -> str:
        return f"Entry(term={self.term}, index={self.index}, {len(self.data)} bytes)"


class HardState(NamedTuple):
    """State that a Raft member must not forget: its term and the member it voted for in it."""

    term: Term = 0
    vote: NodeId = ""
    commit: Index = 0  # a hint only: everything up to here was committed when this was written
    is_uncertain: bool = False  # it may have forgotten votes or entries that it acknowledged


class LogState(NamedTuple):
    """Facts that the write-ahead log had of one group when the process started.

    Entries run from `first_index` to `last_index` without gaps (`last_index == first_index - 1`
    means none). `prev_*` describe the entry before the first: the snapshot's.
    """

    hard_state: HardState
    first_index: Index
    last_index: Index
    prev_term: Term
    prev_chain: int


class StoredMsg(NamedTuple):
    """A message as read back from a stream."""

    seq: Seq
    ts: int  # ns since the epoch
    subject: bytes
    headers: bytes
    payload: bytes
