"""What an encrypted SimDisk durably holds, in clear: for checks that look into it from outside.

Frames are read one by one as they become durable. A nonce that comes twice with a file's key is a
broken promise.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from cryptography.exceptions import InvalidTag

from streamd.store.frames import frame_format as ff
from streamd.store.frames.framed_disk import decompressed, is_public
from streamd.store.frames.keyring import Keyring
from tests.sim.disk import SimDisk
from tests.sim.world import need


class Decrypted:
    """One file, as far as it was read."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.ends: list[tuple[int, int]] = []  # of its frames: in the content, in the file
        self._at = 0
        self._salt = b""
        self._nonces: set[bytes] = set()

    def read(self, raw: bytearray, keys: Keyring) -> bytearray:
        """Read on in the bytes of the file."""
        header = ff.decode_file_header(bytes(raw[: ff.FRAMES_AT]))
        if header is None or header.cipher == ff.NO_CIPHER:
            return self.content
        aead = keys.aead(header.cipher, header.salt)
        if self._salt != header.salt:  # another file, where one of before was
            self._salt = header.salt
            self._nonces.clear()
            self.ends.clear()
            self.content = bytearray()
            self._at = ff.FRAMES_AT + ff.padded(header.table_bytes)
        while True:
            head = ff.decode_frame_header(bytes(raw[self._at : self._at + ff.FRAME_HEADER_BYTES]))
            if head is None:
                after = raw.find(ff.FRAME_MAGIC, self._at + ff.ALIGNMENT)
                if after < 0:
                    return self.content
                self._at = after
                continue
            body_at = self._at + ff.FRAME_HEADER_BYTES
            body = bytes(raw[body_at : body_at + head.stored])
            self._at = ff.padded(body_at + head.stored)
            try:
                found = aead.decrypt(head.nonce, body, ff.encode_frame_header(head))
            except InvalidTag:
                continue
            need(head.nonce not in self._nonces, f"a nonce was used twice, in frame {head.seq}")
            self._nonces.add(head.nonce)
            if head.codec == ff.ZSTD:
                found = decompressed(found, head.size) or b""
            if head.kind == ff.END:
                del self.content[head.start :]
            else:
                grown = head.start + head.size - len(self.content)
                self.content.extend(bytes(max(0, grown)))
                self.content[head.start : head.start + head.size] = found
                self.ends.append((head.start + head.size, self._at))


class _Files:
    """Files of one disk."""

    def __init__(self, rewrites: int) -> None:
        self.rewrites = rewrites
        self.by_inode: dict[int, Decrypted] = {}


_disks: WeakKeyDictionary[SimDisk, _Files] = WeakKeyDictionary()


def decrypted(disk: SimDisk, path: str, raw: bytearray) -> Decrypted:
    """Return what the durable bytes of a file hold. The disk has keys."""
    assert disk.keys is not None
    view = disk.durable_view(path)
    assert view is not None and view[1] is raw
    files = _disks.get(disk)
    if files is None or files.rewrites != disk.rewrites:
        files = _disks[disk] = _Files(disk.rewrites)
    file = files.by_inode.setdefault(view[0], Decrypted())
    file.read(raw, disk.keys)
    return file


def durable_content(disk: SimDisk, path: str) -> bytearray | None:
    """Return the content of a file, as a crash would leave it; None: it would leave none.

    To look at, not to keep.
    """
    view = disk.durable_view(path)
    if view is None or disk.keys is None or is_public(path):
        return None if view is None else view[1]
    return decrypted(disk, path, view[1]).content
