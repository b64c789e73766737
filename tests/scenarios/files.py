"""What scenarios do to the files of a node: swap, cut, and falsify them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups.snapshot_state import unwrap, wrap
from streamd.node.integrity.scrub import check_content
from streamd.store.blocks.block_codec import BlockCodec
from streamd.store.blocks.stream_store import StreamStore
from streamd.store.disk import Disk
from streamd.types import Entry, NodeId
from tests.scenarios.driver import ROOT, Cluster
from tests.sim.cluster import scrubbing
from tests.sim.disk import SimDisk
from tests.sim.world import SECOND


class Inline:
    """A thread whose jobs run where they are submitted."""

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None] | None) -> None:
        result = job()
        if done is not None:
            done(result)

    def submit_soon(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.submit(job, done)

    def do_now(self) -> None:
        """Nothing waits."""

    def submit_later(self, delay_s: float, job: Callable[[], Any]) -> None:
        raise AssertionError("nothing here waits")

    def is_current(self) -> bool:
        return True


def fast_scrubbing() -> AbstractContextManager[None]:
    """A round each half second of virtual time."""
    return scrubbing(0.5)


def copy_of(disk: SimDisk, directory: str) -> dict[str, bytes]:
    """All files in a directory, by name."""
    prefix = directory + "/"
    names = [path[len(prefix) :] for path in disk.paths if path.startswith(prefix)]
    return {name: disk.contents(prefix + name) for name in names}


def put_back(disk: SimDisk, directory: str, files: dict[str, bytes]) -> None:
    """Make a directory hold just these files, durably."""
    disk.wipe(directory)
    disk.make_dirs(directory)
    for name, blob in files.items():
        fd = disk.open(f"{directory}/{name}", create=True)
        disk.pwrite(fd, blob, 0)
        disk.fdatasync(fd)
        disk.close(fd)
    disk.sync_dir(directory)
    disk.sync_dir(os.path.dirname(directory))


def put_all_back(disk: SimDisk, files: dict[str, bytes]) -> None:
    """`files` are all there is below ROOT, durably."""
    disk.wipe(ROOT)
    for directory in sorted({f"{ROOT}/{name}".rpartition("/")[0] for name in files}):
        below = directory.removeprefix(ROOT).lstrip("/")
        start = f"{below}/" if below else ""
        mine = {
            name.removeprefix(start): blob
            for name, blob in files.items()
            if name.startswith(start) and "/" not in name.removeprefix(start)
        }
        put_back(disk, directory, mine)


def put_back_all(cluster: Cluster, name: NodeId, files: dict[str, bytes]) -> None:
    """`files` are all that a stopped node has; start it. That it is stopped by what it is told is
    excused."""
    put_all_back(cluster.hosts[name].disk, files)
    cluster.hosts[name].excused_until_us = cluster.world.now_us + 60 * SECOND
    cluster.boot(name)


def cut(disk: SimDisk, path: str, size: int) -> None:
    """The file ends at `size`."""
    fd = disk.open(path)
    disk.truncate(fd, size)
    disk.fdatasync(fd)
    disk.close(fd)


def swap(disk: SimDisk, one: str, other: str) -> None:
    """Two files under each other's name."""
    for names in (disk._files, disk._durable):
        names[one], names[other] = names[other], names[one]
    disk.rewrites += 1


def falsify(
    cluster: Cluster,
    name: NodeId,
    mutate: Callable[[StreamMachine], list[tuple[Any, ...]]],
    *,
    like: NodeId,
) -> None:
    """Rewrite a stopped node's snapshot with another content at the index of `like`'s: every
    checksum is right, and what it says is wrong. The node is a suspect of the checkers'."""
    disk, directory = cluster.hosts[name].disk, cluster.directory("S")
    uid = cluster.uid("S")
    right = open_files(cluster.hosts[like].disk, directory, uid)
    falsify_files(open_files(disk, directory, uid), mutate, like=right)
    cluster.suspects.add(name)


def falsify_files(
    store: StreamStore,
    mutate: Callable[[StreamMachine], list[tuple[Any, ...]]],
    *,
    like: StreamStore,
) -> None:
    """Rewrite the snapshot in a stream's files as `falsify` does; both are closed then."""
    wanted, found = like.load_snapshot(), store.load_snapshot()
    assert wanted is not None and found is not None
    store.truncate_to(found.tail)
    members, state = unwrap(found.state)
    assert members is not None
    machine = StreamMachine.restore(
        state, found.index_db, codec=BlockCodec(), columns=store, scan=store.scan
    )
    machine.applied = wanted.index - 1
    store.apply(mutate(machine))
    machine.applied = wanted.index
    store.save_snapshot(
        index=wanted.index,
        term=wanted.term,
        chain=wanted.chain,
        state=wrap(members, machine.snapshot()),
        index_db=machine.index_db(),
        tail=machine.tail,
        done=lambda: None,
    )
    store.close()
    like.close()


def open_files(disk: Disk, directory: str, uid: int) -> StreamStore:
    """Open the files of a stream that no server has open."""
    return StreamStore.open(disk, directory, uid, Inline())


def purged(up_to: int) -> Callable[[StreamMachine], list[tuple[Any, ...]]]:
    """For `falsify`: all before `up_to` is gone."""

    def mutate(machine: StreamMachine) -> list[tuple[Any, ...]]:
        out = Effects()
        command = [commands.PURGE, 1, b"", up_to, 0]
        machine.apply(Entry(1, machine.applied + 1, commands.encode(command), command), out)
        return list(out.block_ops)

    return mutate


def unchanged(machine: StreamMachine) -> list[tuple[Any, ...]]:
    """For `falsify`: an old content under a new index."""
    return []


def damages_of(cluster: Cluster, name: NodeId) -> int:
    """How many damaged files a node's process has found."""
    return cluster.node(name).parts.integrity.damage_log.damage_count


def check_blocks(cluster: Cluster) -> None:
    """Read every block of every node and compare it with the machine, bit by bit."""
    for name in cluster.names:
        replica = cluster.node(name).replica(cluster.uid("S"))
        assert replica is not None
        cluster.process(name).run(replica.store.flush)
    cluster.run_ms(100)
    for name in cluster.names:
        replica = cluster.node(name).replica(cluster.uid("S"))
        assert replica is not None
        found = check_content(replica.machine, replica.store)
        assert not found, (name, found)
