"""FramedDisk: files that are encrypted or packed, against a plain disk as the model."""

from __future__ import annotations

import random

import pytest

from streamd.store.disk import opened
from streamd.store.frames import frame_format as ff
from streamd.store.frames import framed_disk
from streamd.store.frames.framed_disk import FramedDisk, is_public
from streamd.store.frames.keyring import Keyring
from tests.sim.disk import SimDisk

STORE_KEY = bytes(range(32))
CIPHERS = [ff.CHACHA, ff.AES]


def made(cipher: int = ff.CHACHA, seed: int = 0) -> tuple[SimDisk, FramedDisk]:
    below = SimDisk(seed)
    below.make_dirs("/s")
    return below, FramedDisk(below, Keyring(STORE_KEY, cipher))


def again(below: SimDisk, cipher: int = ff.CHACHA) -> FramedDisk:
    """The disk of the next start."""
    return FramedDisk(below, Keyring(STORE_KEY, cipher))


def written(disk: FramedDisk, path: str, *writes: tuple[int, bytes]) -> None:
    with opened(disk, path, create=True) as fd:
        for offset, blob in writes:
            disk.pwrite(fd, blob, offset)
        disk.fdatasync(fd)
    disk.sync_dir("/s")


def content(disk: FramedDisk, path: str) -> bytes:
    with opened(disk, path) as fd:
        return disk.pread(fd, disk.size(fd), 0)


def test_random_work_reads_as_on_a_plain_disk() -> None:
    """Random writes, cuts and reads of an encrypted file, opened again now and then: each read and
    size is that of the same work on a plain disk."""
    for seed in range(30):
        rng = random.Random(seed)
        below, disk = made(rng.choice(CIPHERS), seed)
        plain = SimDisk(seed)
        plain.make_dirs("/s")
        fds = disk.open("/s/f", create=True), plain.open("/s/f", create=True)
        for _ in range(60):
            action = rng.random()
            size = plain.size(fds[1])
            if action < 0.5:
                offset = rng.choice([size, size, rng.randint(0, size + 700)])
                blob = rng.randbytes(rng.choice([1, 100, 4096, 70_000, 200_000]))
                disk.pwrite(fds[0], blob, offset)
                plain.pwrite(fds[1], blob, offset)
            elif action < 0.6:
                to = rng.choice([0, rng.randint(0, size), rng.randint(0, size), size + 999])
                disk.truncate(fds[0], to)
                plain.truncate(fds[1], to)
            elif action < 0.7:
                disk.close(fds[0])
                disk = rng.choice([disk, again(below)])
                fds = disk.open("/s/f"), fds[1]
            elif action < 0.75:
                disk.preallocate(fds[0], offset=size, size=10_000)
            at = rng.randint(0, size + 10)
            wanted = rng.choice([10, 5000, 300_000])
            found = disk.pread(fds[0], wanted, at)
            assert found == plain.pread(fds[1], wanted, at), (seed, at, wanted)
            assert disk.size(fds[0]) == plain.size(fds[1]), seed


@pytest.mark.parametrize("cipher", CIPHERS)
def test_no_plaintext_reaches_the_disk_below(cipher: int) -> None:
    """A text that is written many times is nowhere in the bytes of the file."""
    below, disk = made(cipher)
    written(disk, "/s/f", (0, b"attack at dawn " * 9000), (64, b"attack at dawn"))
    assert b"attack" not in below.contents("/s/f")
    assert content(again(below, cipher), "/s/f").count(b"attack at dawn") >= 8990


def test_every_flipped_bit_of_chacha_reads_as_zeros() -> None:
    flip_every_byte(ff.CHACHA)


def test_every_flipped_bit_of_aes_reads_as_zeros() -> None:
    flip_every_byte(ff.AES)


def flip_every_byte(cipher: int) -> None:
    """Each byte of a file of three frames is flipped in turn: what is read is what was written, or
    zeros in the place of whole frames, never anything else."""
    below, disk = made(cipher)
    pieces = [random.Random(n).randbytes(300) for n in range(3)]
    written(disk, "/s/f", *((n * 300, piece) for n, piece in enumerate(pieces)))
    size = len(below.contents("/s/f"))
    harmed = 0
    for offset in range(size):
        below.flip("/s/f", offset, 0x40)
        found = content(again(below), "/s/f").ljust(900, b"\0")
        for n, piece in enumerate(pieces):
            part = found[n * 300 : (n + 1) * 300]
            assert part in (piece, bytes(300)), offset
            harmed += part != piece
        below.flip("/s/f", offset, 0x40)
    assert harmed >= 3 * (300 + ff.FRAME_HEADER_BYTES)
    assert content(again(below), "/s/f") == b"".join(pieces)


def test_a_reader_sees_what_a_writer_adds_after_it_first_looked() -> None:
    """A file is written, read, written on and read again, by files opened apart: the reader had a
    map of its own, which did not grow, and a block was packed without its end."""
    _, disk = made()
    with opened(disk, "/s/1.blk", create=True) as fd:
        disk.pwrite(fd, b"a" * 1000, 0)
        assert content(disk, "/s/1.blk") == b"a" * 1000
        disk.pwrite(fd, b"b" * 70_000, 1000)
        assert content(disk, "/s/1.blk") == b"a" * 1000 + b"b" * 70_000
        disk.truncate(fd, 1500)
        assert content(disk, "/s/1.blk") == b"a" * 1000 + b"b" * 500
    with opened(disk, "/s/1.blk") as fd:
        disk.pwrite(fd, b"c", 1500)
    assert content(disk, "/s/1.blk")[-2:] == b"bc"


def test_maps_of_open_files_are_kept_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With room for two maps, ten files are written in turn and read: none is cut short."""
    monkeypatch.setattr(framed_disk, "MAPS_MAX", 2)
    _, disk = made()
    fds = [disk.open(f"/s/{n}", create=True) for n in range(10)]
    for step in range(3):
        for n, fd in enumerate(fds):
            disk.pwrite(fd, b"%d" % n * 100, step * 100)
            assert content(disk, f"/s/{n}") == b"%d" % n * (step * 100 + 100)
    for fd in fds:
        disk.close(fd)
    assert len(disk._known) <= 2


def test_frames_of_one_file_mean_nothing_in_another() -> None:
    """The frames of one file copied over those of another of the same shape: zeros."""
    below, disk = made()
    for name in ("a", "b"):
        written(disk, f"/s/{name}", (0, name.encode() * 100))
    moved = below.contents("/s/a")[ff.FRAMES_AT :]
    fd = below.open("/s/b")
    below.pwrite(fd, moved, ff.FRAMES_AT)
    assert content(again(below), "/s/b") == bytes(100)


def test_a_power_cut_loses_unsynced_writes_only() -> None:
    """Synced bytes, then more that cover some of them or follow, without a sync; a power cut tears
    what it likes: each synced byte is there or what covered it, each later one was written or is
    zero; and what comes next is not confused by what was torn."""
    for seed in range(60):
        rng = random.Random(seed)
        below, disk = made(seed=seed)
        synced = rng.choice([5000, 200_000])
        written(disk, "/s/f", (0, b"s" * synced))
        fd = disk.open("/s/f")
        for _ in range(rng.randint(1, 5)):
            blob = b"u" * rng.choice([10, 3000, 150_000])
            disk.pwrite(fd, blob, rng.choice([synced, rng.randrange(synced)]))
        below.crash(keep=rng.choice([0.0, 0.5, 1.0]))
        disk = again(below)
        found = content(disk, "/s/f")
        assert len(found) >= synced
        assert set(found[:synced]) <= set(b"su"), seed
        assert set(found[synced:]) <= set(b"u\0"), seed
        written(disk, "/s/f", (synced, b"n" * 200_000))
        assert content(again(below), "/s/f")[synced : synced + 200_000] == b"n" * 200_000, seed


def test_a_lost_cut_brings_no_old_bytes_over_new_ones() -> None:
    """A power cut loses the cut of a file, and not what was written after it: frames of before
    are left behind the new ones. They cover nothing that the next process writes."""
    below, disk = made()
    written(disk, "/s/f", *((n * 1000, b"o" * 1000) for n in range(20)))
    before = below.contents("/s/f")
    with opened(disk, "/s/f") as fd:
        disk.truncate(fd, 3500)
        disk.pwrite(fd, b"n" * 10, 3500)
    after = below.contents("/s/f")
    assert len(after) < len(before) - 10_000
    fd = below.open("/s/f")
    below.pwrite(fd, before[len(after) :], len(after))
    disk = again(below)
    assert content(disk, "/s/f")[:3510] == b"o" * 3500 + b"n" * 10
    written(disk, "/s/f", (19_000, b"c" * 600))
    found = content(again(below), "/s/f")
    assert found[:3510] == b"o" * 3500 + b"n" * 10
    assert found[19_000:19_600] == b"c" * 600


def test_no_nonce_is_used_twice_however_often_a_file_is_cut() -> None:
    """The nonces of all frames that were ever given to the disk below, through cuts, crashes and
    starts: no two frames of one file have the same one."""

    class Recording(SimDisk):
        seen: list[tuple[bytes, bytes]]

        def pwrite(self, fd: int, data: bytes, offset: int) -> None:  # type: ignore[override]
            blob = bytes(data)
            at = blob.find(ff.FRAME_MAGIC)
            while at >= 0:
                head = ff.decode_frame_header(blob, at)
                if head is not None:
                    self.seen.append((self._paths[fd].encode(), head.nonce))
                at = blob.find(ff.FRAME_MAGIC, at + 1)
            super().pwrite(fd, data, offset)

    below = Recording(5)
    below.seen = []
    below.make_dirs("/s")
    disk = again(below)
    rng = random.Random(5)
    for _ in range(100):
        fd = disk.open("/s/f", create=True)
        disk.truncate(fd, rng.choice([0, 100, 5000]))
        disk.pwrite(fd, rng.randbytes(9000), disk.size(fd))
        disk.sync_dir("/s")
        if rng.random() < 0.5:
            disk.fdatasync(fd)
        if rng.random() < 0.3:
            below.crash()
            disk = again(below)
        else:
            disk.close(fd)
    assert len(below.seen) > 100
    assert len(set(below.seen)) == len(below.seen)


def test_names_that_hold_no_data_of_users_stay_readable() -> None:
    """`node.json`, the keystore and the manifest of the log are plain."""
    below, disk = made()
    for name in ("node.json", "encryption.json", "manifest"):
        assert is_public(f"/s/{name}")
        written(disk, f"/s/{name}", (0, b"plain"))
        assert below.contents(f"/s/{name}") == b"plain"


def test_another_key_opens_nothing() -> None:
    """A file of another store: EIO that says so, and its bytes stay as they are."""
    below, disk = made()
    written(disk, "/s/f", (0, b"secret"))
    before = below.contents("/s/f")
    other = FramedDisk(below, Keyring(bytes(32), ff.CHACHA))
    with pytest.raises(OSError, match="another key"):
        other.open("/s/f")
    plain = FramedDisk(below)
    with pytest.raises(OSError, match="no key is given"):
        written(disk, "/s/1.blk", (0, b"x"))
        plain.open("/s/1.blk")
    assert below.contents("/s/f") == before


def packed(disk: FramedDisk, path: str) -> tuple[int, int]:
    for result in disk.pack(path, path + ".tmp"):
        found = result
    disk.replace(path + ".tmp", path)
    disk.sync_dir("/s")
    assert found is not None
    return found.content_bytes, found.stored_bytes


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_packed_file_is_smaller_and_reads_the_same(is_encrypted: bool) -> None:
    """Compressible bytes take a fraction of the room; any range of them reads as before, through
    the table and, when that is damaged, through the frames; the file can't be changed."""
    below = SimDisk(1)
    below.make_dirs("/s")
    ring = Keyring(STORE_KEY, ff.AES) if is_encrypted else None
    disk = FramedDisk(below, ring)
    rng = random.Random(1)
    blob = b"".join(b'{"n":%d,"name":"a"}' % rng.randint(0, 999) for _ in range(40_000))
    written(disk, "/s/1.blk", (0, blob))
    content_bytes, stored = packed(disk, "/s/1.blk")
    assert content_bytes == len(blob)
    assert stored == len(below.contents("/s/1.blk")) < len(blob) / 3
    with opened(disk, "/s/1.blk") as fd:
        assert disk.packed_size(fd) == stored
    for at_damage in (None, ff.FRAMES_AT + 1):
        if at_damage is not None:
            below.flip("/s/1.blk", at_damage)
        found = FramedDisk(below, ring)
        with opened(found, "/s/1.blk") as fd:
            assert found.size(fd) == len(blob)
            for _ in range(50):
                at, size = rng.randint(0, len(blob)), rng.choice([1, 900, 300_000])
                assert found.pread(fd, size, at) == blob[at : at + size]
            with pytest.raises(OSError, match="never changed"):
                found.pwrite(fd, b"x", 0)
            with pytest.raises(OSError, match="never changed"):
                found.truncate(fd, 0)


def test_pieces_of_a_packed_file_leave_as_they_are() -> None:
    """The stored pieces from a frame's beginning on; nothing from anywhere else."""
    below = SimDisk(1)
    below.make_dirs("/s")
    disk = FramedDisk(below)
    written(disk, "/s/1.blk", (0, b"abc" * 100_000))
    packed(disk, "/s/1.blk")
    with opened(disk, "/s/1.blk") as fd:
        pieces = disk.packed_pieces(fd, 131_072, 262_144)
        assert pieces is not None
        assert sum(size for _, size, _ in pieces) == 300_000 - 131_072
        assert disk.packed_pieces(fd, 1, 100) is None
    assert sum(len(body) for _, _, body in pieces) < 1000


def test_a_block_that_is_not_framed_is_as_it_was() -> None:
    """Without a key a plain block file is read and written byte for byte."""
    below = SimDisk(1)
    below.make_dirs("/s")
    disk = FramedDisk(below)
    written(disk, "/s/1.blk", (0, b"plain"), (5, b" bytes"))
    assert below.contents("/s/1.blk") == b"plain bytes"
    assert content(disk, "/s/1.blk") == b"plain bytes"
    with opened(disk, "/s/1.blk") as fd:
        assert disk.packed_size(fd) == 0
