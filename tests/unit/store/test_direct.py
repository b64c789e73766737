"""Writes past the page cache: the same bytes in the file, wherever they begin and end."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from streamd.store import direct_io
from streamd.store.direct_io import ALIGN, SCRATCH_BYTES, DirectWriter
from streamd.store.disk import OsDisk
from streamd.types import Buffer

PLACES = [0, 1, 511, ALIGN - 1, ALIGN, ALIGN + 1, 3 * ALIGN + 77]
SIZES = [1, 300, ALIGN, 2 * ALIGN - 1, SCRATCH_BYTES - 1, SCRATCH_BYTES, 2 * SCRATCH_BYTES + 4097]


def cut(blob: bytes, chance: random.Random) -> list[Buffer]:
    """`blob` in pieces, of all kinds and a few of no bytes."""
    pieces: list[Buffer] = []
    while blob:
        size = min(len(blob), chance.choice((0, 1, 40, 5000, 70_000, 1 << 20)))
        kind = chance.choice((bytes, bytearray, memoryview))
        pieces.append(kind(blob[:size]))
        blob = blob[size:]
    return pieces


def file_at(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


def test_direct_writes_give_the_file_that_cached_writes_give(tmp_path: Path) -> None:
    """Also between writes through the cache, and over what is there."""
    chance = random.Random(1)
    disk = OsDisk()
    wanted = bytearray(chance.randbytes(10 * ALIGN))
    fd = disk.open(str(tmp_path / "f"), create=True)
    disk.pwrite(fd, bytes(wanted), 0)
    for place in PLACES:
        for size in SIZES:
            blob = chance.randbytes(size)
            disk.writev(fd, cut(blob, chance), place, past_cache=True)
            wanted[place : place + size] = blob
            little = chance.randbytes(10)
            disk.writev(fd, [little], place + size, past_cache=False)
            wanted[place + size : place + size + 10] = little
            assert disk.pread(fd, len(wanted) + 1, 0) == wanted, (place, size)
    disk.close(fd)
    assert (tmp_path / "f").read_bytes() == wanted


def test_a_direct_write_caches_only_its_unaligned_ends(tmp_path: Path) -> None:
    cached: list[tuple[int, int]] = []  # (offset, size)

    def write(fd: int, data: Buffer, offset: int) -> None:
        cached.append((offset, len(data)))
        os.pwrite(fd, data, offset)

    writer = DirectWriter(write)
    fd = file_at(tmp_path / "f")
    if not writer.write(fd, [b"x"], 0):
        pytest.skip("this file system has no direct writes")
    cached.clear()
    assert writer.write(fd, [b"y" * (3 * SCRATCH_BYTES)], 100)
    assert cached == [(100, ALIGN - 100), (3 * SCRATCH_BYTES, 100)]
    cached.clear()
    assert writer.write(fd, [b"z" * SCRATCH_BYTES] * 2, ALIGN)
    assert cached == [(2 * SCRATCH_BYTES, ALIGN)], "what comes next begins in the last page"
    writer.close(fd)
    os.close(fd)


def test_the_rest_of_a_direct_write_goes_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that is almost full: the cached write says so, or finishes it."""
    pwrite = os.pwrite
    monkeypatch.setattr(direct_io.os, "pwrite", lambda fd, data, at: pwrite(fd, data[:ALIGN], at))

    def write(fd: int, data: Buffer, offset: int) -> None:
        pwrite(fd, data, offset)

    writer = DirectWriter(write)
    fd = file_at(tmp_path / "f")
    blob = random.Random(2).randbytes(2 * SCRATCH_BYTES + 5)
    if not writer.write(fd, [blob], 9):
        pytest.skip("this file system has no direct writes")
    assert os.pread(fd, len(blob) + 10, 0) == bytes(9) + blob
    writer.close(fd)
    os.close(fd)


def test_without_direct_io_all_writes_go_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_io, "_O_DIRECT", 0)
    disk = OsDisk()
    fd = disk.open(str(tmp_path / "f"), create=True)
    blob = random.Random(3).randbytes(3 * SCRATCH_BYTES)
    disk.writev(fd, [blob[:7], blob[7:]], 3, past_cache=True)
    assert disk.pread(fd, len(blob) + 10, 0) == bytes(3) + blob
    disk.close(fd)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_a_file_system_may_refuse_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Some take the flag, and then want other places or none. Any other error is one."""
    disk = OsDisk()
    fd = disk.open(str(tmp_path / "f"), create=True)
    blob = random.Random(4).randbytes(3 * SCRATCH_BYTES)
    pwrite = os.pwrite

    def refuse(to: int, data: Buffer, offset: int) -> int:
        if to != fd:
            raise OSError(code, os.strerror(code))
        return pwrite(to, data, offset)

    monkeypatch.setattr(direct_io.os, "pwrite", refuse)
    if code == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            disk.writev(fd, [blob], 3, past_cache=True)
        disk.close(fd)
        return
    for _ in range(2):
        disk.writev(fd, [blob], 3, past_cache=True)
        assert disk.pread(fd, len(blob) + 10, 0) == bytes(3) + blob
    before = len(os.listdir("/proc/self/fd"))
    disk.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_closed_file_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    """And its number, given to another file, writes to that one."""
    before = set(os.listdir("/proc/self/fd"))
    disk = OsDisk()
    for name in ("a", "b"):
        fd = disk.open(str(tmp_path / name), create=True)
        disk.writev(fd, [name.encode() * ALIGN], 0, past_cache=True)
        disk.close(fd)
    assert set(os.listdir("/proc/self/fd")) == before
    assert (tmp_path / "a").read_bytes() == b"a" * ALIGN
    assert (tmp_path / "b").read_bytes() == b"b" * ALIGN
