"""`StoreEncryption`: opens an encrypted store directory, and encrypts one that is not yet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from streamd.callbacks import ignore
from streamd.errors import ConfigError, CorruptionError
from streamd.store.disk import Disk, opened
from streamd.store.file_names import is_ours
from streamd.store.frames import frame_format as ff
from streamd.store.frames import keyring
from streamd.store.frames.framed_disk import FramedDisk, is_public
from streamd.store.frames.keyring import EncryptionKeys, Keyring, Unlocked
from streamd.store.wal.wal_format import segment_number

TMP_NAME = "encrypting.tmp"  # in the root: of a file on its way to be encrypted
_STEP_BYTES = 1024 * 1024
_DIRECTORIES = ("wal", "meta", "streams", "trash")


class StoreEncryption:
    """Encryption of one directory, as configured; None: not at all."""

    def __init__(self, disk: Disk, root: str, keys: EncryptionKeys | None) -> None:
        self._disk = disk
        self._root = root
        self._keys = keys
        self._unlocked: Unlocked | None = None
        self._is_whole = False

    def check(self) -> None:
        """Raise ConfigError unless the directory can be read with what is configured. Writes
        nothing."""
        store = keyring.read_keystore(self._disk, self._root)
        if store is None:
            if self._has_frames():
                raise CorruptionError(
                    f"store directory {self._root!r} is encrypted, and encryption.json and "
                    "encryption-2.json are lost: put one of them back from a copy of this directory"
                )
            return
        if self._keys is None:
            raise ConfigError(
                f"store directory {self._root!r} is encrypted, and no key is configured "
                "(jetstream.key)"
            )
        self._unlocked = keyring.unlock(self._disk, self._root, store, self._keys)
        self._is_whole = store.is_whole

    def begin(self, tell: Callable[[str], object] = ignore) -> FramedDisk:
        """Return the disk to be used from here on. The directory is locked, and was checked.

        Files that are not encrypted are, before anything else reads them: a start that was cut
        short goes on with that.
        """
        disk, root, keys = self._disk, self._root, self._keys
        if keys is None:
            return FramedDisk(disk)
        if self._unlocked is None:
            is_new = next(self._plain_files(), None) is None
            ring = keyring.make_keystore(disk, root, keys, is_whole=is_new)
            self._is_whole = is_new
        else:
            self._unlocked.commit(disk, root)
            ring = self._unlocked.ring
        if not self._is_whole:
            tell("the store is being encrypted")
            self._encrypt_all(ring)
            keyring.mark_whole(disk, root)
            tell("the store is encrypted")
        return FramedDisk(disk, ring)

    def _has_frames(self) -> bool:
        """Return True if the log is encrypted."""
        wal = os.path.join(self._root, "wal")
        for name in self._disk.listdir(wal):
            if segment_number(name) is None:
                continue
            try:
                with opened(self._disk, os.path.join(wal, name)) as fd:
                    head = ff.decode_file_header(self._disk.pread(fd, ff.FRAMES_AT, 0))
            except OSError:
                continue  # the log's recovery says what that means
            if head is not None:
                return head.cipher != ff.NO_CIPHER
        return False

    # --- encrypting what is plain ---------------------------------------------------------------

    def _plain_files(self) -> Iterator[str]:
        """Yield the paths of files of streamd that are not encrypted."""
        for name in _DIRECTORIES:
            yield from self._plain_below(os.path.join(self._root, name))

    def _plain_below(self, directory: str) -> Iterator[str]:
        for name in self._disk.listdir(directory):
            path = os.path.join(directory, name)
            try:
                fd = self._disk.open(path)
            except IsADirectoryError:
                yield from self._plain_below(path)
                continue
            try:
                head = ff.decode_file_header(self._disk.pread(fd, ff.FRAMES_AT, 0))
            finally:
                self._disk.close(fd)
            is_plain = head is None or head.cipher == ff.NO_CIPHER
            if is_plain and is_ours(path) and not is_public(path):
                yield path

    def _encrypt_all(self, ring: Keyring) -> None:
        plain, framed = FramedDisk(self._disk), FramedDisk(self._disk, ring)
        tmp = os.path.join(self._root, TMP_NAME)
        for path in list(self._plain_files()):
            with opened(plain, path) as source, opened(framed, tmp, create=True) as target:
                framed.truncate(target, 0)
                size = plain.size(source)
                for at in range(0, size, _STEP_BYTES):
                    blob = plain.pread(source, _STEP_BYTES, at)
                    if blob.strip(b"\0"):  # zeros need no frame
                        framed.pwrite(target, blob, at)
                if framed.size(target) != size:
                    framed.truncate(target, size)
                framed.fdatasync(target)
            self._disk.crash_point("ENCRYPTED_TMP_SYNCED")
            # On disk now: the plain file, and a whole encrypted one beside it.
            self._disk.replace(tmp, path)
            self._disk.sync_dir(os.path.dirname(path))
            self._disk.crash_point("ENCRYPTED_RENAMED")
        self._disk.sync_dir(self._root)
