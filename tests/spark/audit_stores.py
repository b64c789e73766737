"""Data directories made in-process by the server's own log, machine and store, on real files.

A `Replica` is one node with one stream. What it is told goes to the log, is applied, and is
written: the same steps as in a server, without its loop. Blocks are small, so that few messages
make many of them; `small_blocks` makes readers lay them out alike.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from streamd.api.stream_configs import normalise
from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.machine.indexes.rewriting import live_spans
from streamd.machine.meta import MetaMachine
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups.snapshot_state import wrap
from streamd.node.identity.store_directory import prepare, save_identity
from streamd.raft.log import next_chain
from streamd.raft.membership import simple
from streamd.store.blocks.block_codec import BlockCodec
from streamd.store.blocks.snapshots import Snapshot, SnapshotFile
from streamd.store.blocks.stream_store import StreamStore
from streamd.store.disk import OsDisk
from streamd.store.wal.write_ahead_log import Wal
from streamd.types import META_UID, Entry, HardState, Msg
from tests.sim.disk import SimThread

BLOCK_BYTES = 4096
SECOND = 1_000_000_000
T0 = 1_780_000_000 * SECOND
CLUSTER = ("n1", "n2", "n3")


class UnsyncedDisk(OsDisk):
    """Real files without waiting for the disk: no test here cuts the power."""

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_dir(self, path: str) -> None:
        pass


@contextmanager
def small_blocks(size: int = BLOCK_BYTES) -> Iterator[None]:
    """Machines that are restored inside roll their blocks at `size` bytes."""
    made = StreamMachine.__init__.__kwdefaults__
    restored = StreamMachine.restore.__func__.__kwdefaults__  # type: ignore[attr-defined]
    with patch.dict(made, block_bytes=size), patch.dict(restored, block_bytes=size):
        yield


class Replica:
    """One node's data directory with the stream `name`."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "S",
        node: str = "n1",
        peers: tuple[str, ...] = (),
        disk: Any = None,
        uid: int = 2,
        **config: Any,
    ) -> None:
        self.directory = directory
        self.peers = peers
        self.node = node
        self.uid = uid
        self.thread = SimThread()
        self.disk = disk or UnsyncedDisk()
        directory.mkdir(parents=True, exist_ok=True)
        owned = prepare(str(directory), self.disk)
        self.root = Path(owned.root)
        if peers:
            identity = {**owned.identity, "cluster_id": "test", "voters": list(peers)}
            save_identity(str(self.root), self.disk, identity)
        os.close(owned.lock)
        self.wal = Wal.open(
            self.disk,
            str(self.root / "wal"),
            self.thread,
            segment_bytes=64 * 1024,
            sync="always",
            on_error=_raise,
        )
        self.chains = {META_UID: 0, uid: 0}
        self.indexes = {META_UID: 0, uid: 0}
        self.now = T0
        self.config = normalise({"name": name, "subjects": [f"{name.lower()}.>"], **config})
        create = [commands.CREATE_STREAM, T0, self.config, *([list(peers)] if peers else [])]
        for _ in range(1, uid):
            self._log(META_UID, b"")
        self._log(META_UID, commands.encode(create))
        self.store = self._open_store()
        self.codec = BlockCodec()
        self.machine = StreamMachine(
            uid=uid,
            config=self.config,
            created_ns=T0,
            codec=self.codec,
            columns=self.store,
            block_bytes=BLOCK_BYTES,
        )
        self.machine.use_scan(self.store.scan)
        self._log(uid, b"")
        self._apply(Entry(1, 1, b""))

    def _open_store(self) -> StreamStore:
        return StreamStore.open(
            self.disk, str(self.stream_dir), self.uid, self.thread, on_error=_raise
        )

    @property
    def stream_dir(self) -> Path:
        return self.root / "streams" / str(self.uid)

    def block(self, number: int) -> Path:
        return self.stream_dir / f"{number}.blk"

    # --- what happens to it -----------------------------------------------------------------

    def propose(self, command: list[Any]) -> Any:
        """Log and apply one command; returns its outcome."""
        data = commands.encode(command)
        index, chain = self._log(self.uid, data)
        entry = Entry(1, index, data, tag="t", chain=chain)
        return self._apply(entry)

    def _log(self, uid: int, data: bytes) -> tuple[int, int]:
        index = self.indexes[uid] = self.indexes[uid] + 1
        chain = self.chains[uid] = next_chain(self.chains[uid], 1, index, data)
        hard_state = HardState(1, self.node, index)
        entry = Entry(1, index, data, chain=chain)
        self.wal.append([(uid, [entry], hard_state, 0)], lambda: None)
        self.thread.run()
        return index, chain

    def _apply(self, entry: Entry) -> Any:
        out = Effects()
        self.machine.apply(entry, out)
        self.store.apply(out.block_ops)
        self.thread.run()
        return out.outcomes[0][1] if out.outcomes else None

    def tick(self, seconds: float = 1.0) -> int:
        self.now += int(seconds * SECOND)
        return self.now

    def publish(self, *msgs: Msg, seconds: float = 1.0) -> Any:
        return self.propose([commands.STORE, self.tick(seconds), [list(msg) for msg in msgs]])

    def fill(self, count: int, *, size: int = 50, batch: int = 7, first: int = 1) -> None:
        """`count` messages over five subjects, each with its number in it."""
        for start in range(first, first + count, batch):
            numbers = range(start, min(start + batch, first + count))
            self.publish(*[(b"s.%d" % (n % 5), b"", b"%06d" % n + bytes(size)) for n in numbers])

    def delete(self, seq: int) -> Any:
        return self.propose([commands.DELETE_MSG, self.tick(), seq, True])

    def rewrite(self, rng: random.Random) -> Any:
        """One block takes the place of some neighbours, however much of them is live."""
        index = self.machine.index
        sealed = [block for block in index.blocks if block.is_sealed]
        if not sealed:
            return None
        first = rng.randrange(len(sealed))
        chosen = sealed[first : first + rng.randrange(1, 4)]
        ranges: list[int] = []
        records: list[bytes] = []
        for block in chosen:
            found, spans = live_spans(
                index.blocks.columns(block), index.live.first_from, index.last_seq
            )
            ranges += found
            if spans:
                self.store.read_spans(block.block_no, spans, records.append)
                self.thread.run()
        block_nos = [block.block_no for block in chosen]
        return self.propose([commands.REWRITE, self.tick(), block_nos, ranges, b"".join(records)])

    def create_consumer(self, name: str, **config: Any) -> Any:
        wanted = {"durable_name": name, "ack_policy": "explicit", "deliver_policy": "all", **config}
        return self.propose([commands.CREATE_CONSUMER, self.tick(), name, wanted, "", False])

    def deliver(self, consumer: Any, first: int, last: int) -> None:
        item = (first, last, consumer.delivered_cseq + 1, False)
        self.propose([commands.DELIVERED, self.tick(), consumer.uid, [item], consumer.resets])

    def ack(self, consumer: Any, *seqs: int) -> None:
        self.propose([commands.ACKED, self.tick(), consumer.uid, list(seqs)])

    # --- what is saved ----------------------------------------------------------------------

    def snapshot(self, *, state: bytes | None = None, releases: bool = True) -> None:
        """Save the state (or other bytes in its place), as a monitor does."""
        index = self.machine.applied
        made = state if state is not None else self.machine.snapshot()
        if self.peers:
            made = wrap(simple(self.peers), made)
        self.store.save_snapshot(
            index=index,
            term=1,
            chain=self.chains[self.uid],
            state=made,
            index_db=self.machine.index_db(),
            tail=self.machine.tail,
            done=lambda: None,
        )
        self.thread.run()
        if releases:
            self._release(self.uid, index)

    def _release(self, uid: int, index: int) -> None:
        self.wal.release(uid, index, 1, self.chains[uid])
        self.wal.append([(META_UID, [], HardState(1, self.node, self.indexes[0]), 0)], _nothing)
        self.thread.run()

    def meta_snapshot(self, *, releases: bool = False) -> None:
        machine = MetaMachine()
        for index in range(1, self.uid):
            machine.apply(Entry(1, index, b""), Effects())
        create = [commands.CREATE_STREAM, T0, self.config]
        machine.apply(Entry(1, self.uid, commands.encode(create)), Effects())
        chain, state = self.chains[META_UID], machine.snapshot()
        snapshot = Snapshot(META_UID, self.uid, 1, chain, state)
        SnapshotFile.save(self.disk, str(self.root / "meta"), "meta", snapshot)
        if releases:
            self._release(META_UID, self.uid)

    def flush(self) -> None:
        """Write blocks that wait."""
        self.store.flush()
        self.thread.run()

    def close(self) -> Path:
        """Stop; returns the directory."""
        self.store.close()
        self.thread.run()
        self.wal.close()
        self.thread.run()
        return self.directory


def copy_of(source: Path, target: Path) -> Path:
    """A copy of a data directory: another replica, or a backup."""
    shutil.copytree(source, target)
    return target


def random_work(replica: Replica, rng: random.Random, *, steps: int) -> None:
    """Publishes, deletes, purges, consumers, config changes, snapshots, in any order."""
    numbers = iter(range(10_000))
    consumers: list[Any] = []
    name = replica.config["name"].lower()
    for _ in range(steps):
        what = rng.random()
        index = replica.machine.index
        if what < 0.55:
            replica.publish(
                *[_random_msg(rng, name, next(numbers)) for _ in range(rng.randrange(1, 15))],
                seconds=rng.choice([0.001, 1, 60]),
            )
        elif what < 0.70 and index.count:
            replica.delete(rng.randrange(max(1, index.first_seq), index.last_seq + 1))
        elif what < 0.74:
            replica.propose(
                [commands.PURGE, replica.tick(), b"", rng.randrange(0, index.last_seq + 3), 0]
            )
        elif what < 0.77:
            pattern = f"{name}.{rng.randrange(5)}".encode()
            replica.propose([commands.PURGE, replica.tick(), pattern, 0, rng.choice([0, 2])])
        elif what < 0.82 and len(consumers) < 4:
            made = replica.create_consumer(
                f"c{len(consumers)}",
                deliver_policy=rng.choice(["all", "new", "last", "by_start_sequence"]),
                opt_start_seq=rng.randrange(1, index.last_seq + 50),
            )
            if hasattr(made, "uid"):
                consumers.append(made)
        elif what < 0.90 and consumers:
            _random_consumption(replica, rng, rng.choice(consumers))
        elif what < 0.93 and index.count:
            last = rng.randrange(index.first_seq, index.last_seq + 1)
            replica.propose([commands.EXPIRE, replica.tick(), last, []])
        elif what < 0.945:
            replica.rewrite(rng)
        elif what < 0.97:
            replica.snapshot(releases=rng.random() < 0.8)
        elif what < 0.985:
            replica.flush()
        else:
            changed = {**replica.config, "max_msgs": rng.choice([-1, 40, 200])}
            replica.propose(
                [commands.CONFIGURE, replica.tick(), changed, replica.machine.config_meta_index + 1]
            )


def _random_msg(rng: random.Random, name: str, number: int) -> Msg:
    headers = b""
    if rng.random() < 0.3:
        headers = b"NATS/1.0\r\nNats-Msg-Id: id-%d\r\n\r\n" % (number if rng.random() < 0.9 else 7)
    elif rng.random() < 0.1:
        headers = b"NATS/1.0\r\nA: b\r\nNats-Rollup: sub\r\n\r\n"
    size = rng.choice([0, 3, 40, 40, 40, 300, 3000])
    return f"{name}.{rng.randrange(5)}".encode(), headers, rng.randbytes(size)


def _random_consumption(replica: Replica, rng: random.Random, consumer: Any) -> None:
    index = replica.machine.index
    seq = index.live.first_from(consumer.next_sseq)
    last = seq
    while last < index.last_seq and index.live.has(last + 1) and last - seq < rng.randrange(1, 9):
        last += 1
    if index.live.has(seq):
        replica.deliver(consumer, seq, last)
    waiting = list(consumer.pending)
    if waiting and rng.random() < 0.7:
        replica.ack(consumer, *rng.sample(waiting, rng.randrange(1, len(waiting) + 1)))


def _raise(err: BaseException) -> None:
    raise err


def _nothing() -> None:
    pass
