"""A stream machine in a box: block operations land in byte arrays, entries get their indexes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamd.machine import commands
from streamd.machine.base import APPEND, BLOCK_HEADER_BYTES, DROP, SEAL, Effects
from streamd.machine.indexes.rewriting import live_spans
from streamd.machine.streams.stream import StreamMachine
from streamd.store.blocks.block_codec import BlockCodec
from streamd.store.blocks.record_format import Record, decode_at, scan
from streamd.types import Entry, StoredMsg

START_NS = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


class Blocks:
    """What a StreamStore does with block operations, in memory."""

    def __init__(self) -> None:
        self.files: dict[int, bytearray] = {}
        self.footers: dict[int, bytes] = {}

    def apply(self, ops: list[tuple[Any, ...]]) -> None:
        for op in ops:
            if op[0] == APPEND:
                _, block_no, offset, blob = op
                file = self.files.setdefault(block_no, bytearray(BLOCK_HEADER_BYTES))
                assert block_no not in self.footers, block_no
                assert len(file) == offset, (block_no, len(file), offset)
                file += bytes(blob)
            elif op[0] == SEAL:
                assert len(self.files[op[1]]) == op[2], op
                self.footers[op[1]] = op[3]
            else:
                assert op[0] == DROP and op[1] in self.footers, op
                del self.files[op[1]], self.footers[op[1]]

    def load_footer(self, block_no: int) -> bytes:
        return self.footers[block_no]

    def scan(self, block_no: int, end_offset: int) -> Iterator[Record]:
        file = bytes(self.files[block_no][BLOCK_HEADER_BYTES:end_offset])
        last = BLOCK_HEADER_BYTES
        for record in scan(file, BLOCK_HEADER_BYTES):
            last = record.offset + record.length
            yield record
        assert last == end_offset, (block_no, last, end_offset)


def header_block(headers: dict[str, Any]) -> bytes:
    """Headers as a client sends them: `Msg_Id` is `Nats-Msg-Id`; none at all are no bytes."""
    if not headers:
        return b""
    lines = [f"Nats-{key.replace('_', '-')}: {value}" for key, value in headers.items()]
    return ("\r\n".join(["NATS/1.0", *lines]) + "\r\n\r\n").encode()


class Box:
    """One machine, its blocks, and its log."""

    def __init__(self, block_bytes: int = 4096, **config: Any) -> None:
        self.blocks = Blocks()
        self.block_bytes = block_bytes
        full = {"name": "S", "subjects": ["a.>"], "duplicate_window": 120 * SECOND, **config}
        self.machine = StreamMachine(
            uid=7,
            config=full,
            created_ns=START_NS,
            codec=BlockCodec(),
            columns=self.blocks,
            block_bytes=block_bytes,
        )
        self.machine.use_scan(self.blocks.scan)
        self.now = START_NS
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.log: list[bytes] = []

    def do(self, kind: int, *fields: Any, seconds: float = 0) -> Any:
        """Apply one command, a millisecond (and `seconds`) after the one before."""
        self.now += 1_000_000 + int(seconds * SECOND)
        if kind in (commands.STORE, commands.STORE_BATCH):
            fields = (*fields, commands.PUBLISH_RULES)
        data = commands.encode([kind, self.now, *fields])
        return self.apply(data)

    def apply(self, data: bytes) -> Any:
        self.log.append(data)
        out = Effects()
        entry = Entry(1, self.machine.applied + 1, data, tag="tag")
        self.machine.apply(entry, out)
        self.blocks.apply(out.block_ops)
        self.events += out.events
        self.stored_last = out.stored_last
        ((tag, outcome),) = out.outcomes
        assert tag == "tag"
        return outcome

    def store(self, *msgs: tuple[bytes, bytes, bytes], seconds: float = 0) -> Any:
        return self.do(commands.STORE, [list(msg) for msg in msgs], seconds=seconds)

    def put(self, subject: bytes, payload: bytes = b"x", seconds: float = 0, **headers: Any) -> Any:
        """Store one message; its outcome. Header names: `Msg_Id` is `Nats-Msg-Id`."""
        msg = subject, header_block(headers), payload
        return next(iter(self.store(msg, seconds=seconds)))

    def config(self, **changes: Any) -> Any:
        return self.do(
            commands.CONFIGURE, self.machine.config | changes, self.machine.applied + 100
        )

    def plan_rewrite(self, block_nos: list[int]) -> list[Any]:
        """What a REWRITE of these blocks says, after its time: what is live in them now."""
        index = self.machine.index
        ranges: list[int] = []
        records = b""
        for block in index.blocks:
            if block.block_no in block_nos:
                columns = index.blocks.columns(block)
                found, spans = live_spans(columns, index.live.first_from, index.last_seq)
                ranges += found
                file = self.blocks.files[block.block_no]
                records += b"".join(bytes(file[at : at + length]) for at, length in spans)
        return [block_nos, ranges, records]

    def sealed(self) -> list[int]:
        return [block.block_no for block in self.machine.index.blocks if block.is_sealed]

    def consumer(self, name: str, **config: Any) -> Any:
        full = {"durable_name": name, "ack_policy": "explicit", "deliver_policy": "all", **config}
        return self.do(commands.CREATE_CONSUMER, name, full, "", False)

    def read(self, seq: int) -> StoredMsg | None:
        """The live message `seq`, from its block's bytes."""
        loc = self.machine.index.locations.locate(seq)
        if loc is None:
            return None
        _, block_no, offset, length = loc
        found = decode_at(bytes(self.blocks.files[block_no][offset : offset + length]), 0)
        assert found.seq == seq, (found, seq)
        return found

    def live(self) -> list[int]:
        return [loc[0] for loc in self.machine.index.lookup.select(0, None, 1 << 40, 1 << 40)[0]]

    def restored(self, *, with_index: bool = True) -> StreamMachine:
        """Another machine, from this one's snapshot and blocks."""
        return StreamMachine.restore(
            self.machine.snapshot(),
            self.machine.index_db() if with_index else None,
            codec=BlockCodec(),
            columns=self.blocks,
            scan=self.blocks.scan,
            block_bytes=self.block_bytes,
        )
