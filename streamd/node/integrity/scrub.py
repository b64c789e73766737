"""Comparison of blocks with the machine: every record against its crc, every block against the
digest that the state has of it. A restored machine takes its digest from the state, so only this
proves the bytes.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from streamd.errors import StreamdError
from streamd.machine.digest import MASK64, mix64, mix_run
from streamd.machine.indexes.columns import Block
from streamd.machine.streams.stream import StreamMachine
from streamd.store.blocks.block import HEADER_BYTES
from streamd.store.blocks.block_verify import BlockRows
from streamd.store.transfer.manifest import Manifest
from streamd.types import Seq


class VerifyingStore(Protocol):
    """A stream's store, on files or in memory."""

    def verify(self, block_no: int, *, end_offset: int, is_sealed: bool) -> BlockRows: ...


class Damage(NamedTuple):
    """Difference between one block and what the machine says of it."""

    block_no: int
    text: str


def check_content(machine: StreamMachine, store: VerifyingStore) -> list[Damage]:
    """Compare all blocks with the machine. [] means: every live message is there, bit by bit.

    Synchronous and reads everything; the machine must not change meanwhile, and what waits to be
    written must be written. For a machine just restored, in the job that restored it.
    """
    found: list[Damage] = []
    total = 0
    for block in machine.index.blocks:
        total += block.digest
        if not block.is_sealed and block.end_offset <= HEADER_BYTES:
            continue
        try:
            rows = store.verify(
                block.block_no, end_offset=block.end_offset, is_sealed=block.is_sealed
            )
        except StreamdError as err:
            found.append(Damage(block.block_no, str(err)))
            continue
        text = _difference(machine, block, rows)
        if text:
            found.append(Damage(block.block_no, text))
    if total & MASK64 != machine.digest:
        found.append(Damage(0, f"digest {machine.digest:#x}, its blocks sum up to {total:#x}"))
    return found


def check_installed(
    manifest: Manifest, machine: StreamMachine, store: VerifyingStore
) -> list[Damage]:
    """`check_content` of a machine just restored from an install, against its manifest too."""
    if (machine.applied, machine.digest) != (manifest.index, manifest.digest):
        text = f"digest {machine.digest:#x} at {machine.applied}, the manifest says "
        return [Damage(0, text + f"{manifest.digest:#x} at {manifest.index}")]
    return check_content(machine, store)


def block_difference(
    machine: StreamMachine, block: Block, rows: BlockRows, *, active_count: int | None = None
) -> str:
    """Say how a block of a running stream, as it was read, differs from what it should be; empty:
    not at all. `active_count`: messages it had when it was read, if it was the newest block then;
    0 if there were other records only."""
    if active_count is None:
        return _difference(machine, block, rows)
    if len(rows.seqs) != active_count:
        return f"block {block.block_no}: {len(rows.seqs)} messages, there should be {active_count}"
    columns = block.columns
    if columns is not None and list(columns.crcs[:active_count]) != rows.crcs:
        return f"block {block.block_no}: its messages are not those of the index"
    return ""


def _difference(machine: StreamMachine, block: Block, rows: BlockRows) -> str:
    seqs, crcs = rows.seqs, rows.crcs
    if len(seqs) != block.count:
        return f"block {block.block_no}: {len(seqs)} messages, there should be {block.count}"
    if block.live != block.count:
        # With all of a block dead its rows need no look.
        is_live = machine.index.live.has if block.live else _nothing
        live = [at for at, seq in enumerate(seqs) if is_live(seq)]
        seqs = [seqs[at] for at in live]
        crcs = [crcs[at] for at in live]
        if len(seqs) != block.live:
            return f"block {block.block_no}: {len(seqs)} live messages, should be {block.live}"
    if seqs and seqs[-1] - seqs[0] == len(seqs) - 1:
        digest = mix_run(seqs[0], crcs)
    else:
        digest = sum(map(mix64, seqs, crcs)) & MASK64
    if digest != block.digest:
        return f"block {block.block_no}: digest {digest:#x}, should be {block.digest:#x}"
    return ""


def _nothing(seq: Seq) -> bool:
    return False
