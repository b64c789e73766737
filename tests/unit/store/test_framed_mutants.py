"""Broken variants of encrypted and packed files: each is caught by a test that holds for the real
ones. What a variant does wrong is its docstring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from streamd.store.blocks.packing import BlockPacking
from streamd.store.frames import frame_format as ff
from streamd.store.frames import framed_disk, keyring
from streamd.store.frames.frame_map import FrameMap
from streamd.store.frames.framed_disk import FramedDisk
from streamd.store.frames.keyring import Keyring
from tests.sim.disk import SimDisk
from tests.unit.store import test_framed_disk as framed
from tests.unit.store import test_packed_blocks as packed

Patch = pytest.MonkeyPatch
Variant = tuple[Callable[[Patch], None], Callable[[], None]]


def nonce_of_the_place(patch: Patch) -> None:
    """The nonce is where the frame is in its file, as if nothing were ever written there twice."""
    append = FramedDisk._append

    def placed(disk: FramedDisk, fd: int, file: Any, pieces: Any) -> None:
        at = file.end.to_bytes(12, "little")
        disk.inner.random_bytes = lambda size: (at * size)[:size]  # type: ignore[method-assign]
        try:
            append(disk, fd, file, pieces)
        finally:
            del disk.inner.random_bytes

    patch.setattr(FramedDisk, "_append", placed)


def nonce_counted(patch: Patch) -> None:
    """The nonce is the frame's number, which a cut and a start take back."""
    append = FramedDisk._append

    def counted(disk: FramedDisk, fd: int, file: Any, pieces: Any) -> None:
        number = file.next_seq.to_bytes(12, "little")
        disk.inner.random_bytes = lambda size: (number * size)[:size]  # type: ignore[method-assign]
        try:
            append(disk, fd, file, pieces)
        finally:
            del disk.inner.random_bytes

    patch.setattr(FramedDisk, "_append", counted)


class _Unauthenticated:
    """AES-GCM that deciphers and never looks at the tag."""

    def __init__(self, key: bytes) -> None:
        self._real = keyring.AESGCM(key)
        self._key = key

    def encrypt(self, nonce: bytes, data: bytes, aad: bytes) -> bytes:
        return self._real.encrypt(nonce, data, aad)

    def decrypt(self, nonce: bytes, data: bytes, aad: bytes) -> bytes:
        counter = modes.CTR(nonce + b"\0\0\0\2")
        decryptor = Cipher(algorithms.AES(self._key), counter).decryptor()
        return decryptor.update(data[:-16]) + decryptor.finalize()


def tag_not_checked(patch: Patch) -> None:
    """What is read is deciphered, and not authenticated."""
    patch.setattr(keyring, "_aead", lambda cipher, key: _Unauthenticated(key))


def one_key_for_all_files(patch: Patch) -> None:
    """Files have no keys of their own: a frame means the same in each."""
    aead = Keyring.aead
    patch.setattr(Keyring, "aead", lambda ring, cipher, salt: aead(ring, cipher, b""))


def torn_frames_cover(patch: Patch) -> None:
    """A frame covers older ones by its header alone, torn or not."""
    patch.setattr(FrameMap, "is_covering", lambda frames, start, end: False)


def numbers_ignored(patch: Patch) -> None:
    """Frames count in the order in which they stand in the file, not by their numbers."""
    headers = framed_disk._headers

    def rising(*args: Any) -> Any:
        for seq, (frame, head) in enumerate(headers(*args), start=1):
            yield frame, head._replace(seq=seq)

    patch.setattr(framed_disk, "_headers", rising)


def cut_not_written(patch: Patch) -> None:
    """A cut within a frame is known to this process only."""
    append = FramedDisk._append

    def silent(disk: FramedDisk, fd: int, file: Any, pieces: Any) -> None:
        append(disk, fd, file, [piece for piece in pieces if piece[0] == ff.DATA])

    patch.setattr(FramedDisk, "_append", silent)


def node_file_encrypted(patch: Patch) -> None:
    """No file is public: whose data this is, is readable with the key alone."""
    patch.setattr(framed_disk, "is_public", lambda path: False)


def packed_before_it_is_synced(patch: Patch) -> None:
    """The packed file takes the place of the plain one while it may still be lost."""
    sync = SimDisk.fdatasync

    def lazy(disk: SimDisk, fd: int) -> None:
        if not disk._paths[fd].endswith(".blk.tmp"):
            sync(disk, fd)

    patch.setattr(SimDisk, "fdatasync", lazy)


def dead_blocks_packed(patch: Patch) -> None:
    """A block that dies while it is packed is put in place all the same."""
    patch.setattr(BlockPacking, "forget", lambda packing, block_no: None)


def open_blocks_packed(patch: Patch) -> None:
    """The newest block counts as sealed."""
    poll = BlockPacking.poll

    def greedy(packing: BlockPacking) -> None:
        newest = packing._extents.newest
        packing._extents.newest = lambda: newest() + 1  # type: ignore[method-assign]
        try:
            poll(packing)
        finally:
            del packing._extents.newest

    patch.setattr(BlockPacking, "poll", greedy)


def crashes_with_packing() -> None:
    packed.test_recovery_finds_the_newest_reported_snapshot_and_its_blocks(packed.packed, True)


VARIANTS: list[Variant] = [
    (nonce_of_the_place, framed.test_no_nonce_is_used_twice_however_often_a_file_is_cut),
    (nonce_counted, framed.test_no_nonce_is_used_twice_however_often_a_file_is_cut),
    (tag_not_checked, framed.test_every_flipped_bit_of_aes_reads_as_zeros),
    (one_key_for_all_files, framed.test_frames_of_one_file_mean_nothing_in_another),
    (torn_frames_cover, framed.test_a_power_cut_loses_unsynced_writes_only),
    (numbers_ignored, framed.test_a_lost_cut_brings_no_old_bytes_over_new_ones),
    (cut_not_written, framed.test_random_work_reads_as_on_a_plain_disk),
    (node_file_encrypted, framed.test_names_that_hold_no_data_of_users_stay_readable),
    (packed_before_it_is_synced, crashes_with_packing),
    (dead_blocks_packed, packed.test_a_block_that_is_replaced_while_it_is_packed_is_packed_again),
    (open_blocks_packed, packed.test_packing_that_is_switched_on_takes_in_the_blocks_there_are),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "test"), VARIANTS, ids=[variant.__name__ for variant, _ in VARIANTS]
)
def test_a_broken_variant_is_caught(
    variant: Callable[[Patch], None], test: Callable[[], None], monkeypatch: Patch
) -> None:
    variant(monkeypatch)
    with pytest.raises((AssertionError, Exception)) as caught:
        test()
    assert not isinstance(caught.value, TypeError | NameError | AttributeError), caught.value
