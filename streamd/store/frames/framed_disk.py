"""`FramedDisk`: a disk on which files may be encrypted or packed, for callers that see neither.

Implements `Disk` on another one. With a keyring each file is encrypted, except those that hold no
data of users (`is_public`); without one, block files may be packed, and all else is the other
disk's. Offsets, sizes and bytes are those of the content. What a disk promises holds for it as for
any file: bytes are safe once `fdatasync` returned, and a write that was cut short harms none but
itself. Bytes that do not verify read as zeros: every file of the store has checksums of its own,
which tell a hole from data, and never is a byte handed out that was not authenticated.

A packed file is compressed, complete and immutable: `pack` makes one in the place of another.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, Protocol

import cramjam
from crc32c import crc32c
from cryptography.exceptions import InvalidTag

from streamd.store.disk import Disk, opened
from streamd.store.frames import frame_format as ff
from streamd.store.frames.frame_map import Frame, FrameMap
from streamd.types import Buffer

FRAME_BYTES: Final = 64 * 1024  # of content in one frame: read and verified as a whole
PACKED_FRAME_BYTES: Final = 128 * 1024  # larger ones compress better
CACHE_BYTES: Final = 16 * 1024 * 1024  # of opened frames: each is decompressed once while in use
MAPS_MAX: Final = 1024  # of files that are not open any more
ZSTD_LEVEL: Final = 1  # most of the gain at some 400 MB/s
PACK_STEP_BYTES: Final = 2 * 1024 * 1024  # compressed at once: reads wait behind it
_BIG_FRAME_BYTES: Final = 16 * 1024  # from here on a scan reads headers alone
_WINDOW_BYTES: Final = 64 * 1024
_SEARCH_BYTES: Final = 1024 * 1024
_GAP_BYTES: Final = 4096  # read over rather than asked for in two calls
_PACKABLE: Final = (".blk", ".blk.part")


class Aead(Protocol):
    """A cipher that authenticates."""

    def encrypt(self, nonce: bytes, data: bytes, aad: bytes) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, aad: bytes) -> bytes: ...


class Keys(Protocol):
    """Keys of one store."""

    cipher: int  # of new files
    key_id: int

    def aead(self, cipher: int, salt: bytes) -> Aead:
        """Return the cipher of the file with this salt."""


class PackResult:
    """Bytes of a packed file's content, and those it takes."""

    __slots__ = ("content_bytes", "stored_bytes")

    def __init__(self, content_bytes: int, stored_bytes: int) -> None:
        self.content_bytes = content_bytes
        self.stored_bytes = stored_bytes


class _File:
    """A framed file: its map, and where the next frame goes. Shared by all that have it open."""

    __slots__ = (
        "aead",
        "end",
        "generation",
        "has_header",
        "header",
        "lock",
        "map",
        "next_seq",
        "open_count",
        "prepared_to",
    )
    _generations = itertools.count(1)

    def __init__(self, header: ff.FileHeader, aead: Aead | None, *, has_header: bool) -> None:
        self.header = header
        self.aead = aead
        # Of this object: after a cut that was not read back, numbers of frames come again.
        self.generation = next(self._generations)
        self.lock = threading.Lock()  # of the map; never held while the disk works
        self.map = FrameMap()
        self.end = ff.FRAMES_AT
        self.next_seq = 1
        self.open_count = 0
        self.prepared_to = 0  # zeroed or reserved up to here
        self.has_header = has_header


class FrameCache:
    """Content of frames that were read lately. Used by all threads."""

    def __init__(self, bytes_max: int = CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._blobs: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._mutex = threading.Lock()
        self.byte_count = 0

    def find(self, generation: int, frame: Frame) -> bytes | None:
        """Return the content of a frame, if it is here."""
        key = (generation, frame.seq)
        with self._mutex:
            blob = self._blobs.get(key)
            if blob is not None:
                self._blobs.move_to_end(key)
        return blob

    def add(self, generation: int, frame: Frame, blob: bytes) -> None:
        """Keep the content of a frame."""
        key = (generation, frame.seq)
        with self._mutex:
            old = self._blobs.pop(key, b"")
            self._blobs[key] = blob
            self.byte_count += len(blob) - len(old)
            while self.byte_count > self._bytes_max:
                self.byte_count -= len(self._blobs.popitem(last=False)[1])

    def clear(self) -> None:
        """Forget all."""
        with self._mutex:
            self._blobs.clear()
            self.byte_count = 0


class FramedDisk:
    """Implements `Disk` on `inner`."""

    def __init__(self, inner: Disk, keys: Keys | None = None) -> None:
        self.inner = inner
        self.damaged_frames = 0  # read in vain
        self._keys = keys
        self._files: dict[int, _File] = {}  # by open file
        self._paths: dict[int, str] = {}
        self._known: OrderedDict[bytes, _File] = OrderedDict()  # by salt
        self._mutex = threading.Lock()  # of `_known`
        self._cache = FrameCache()
        # Not of contents: as they are.
        self.fdatasync = inner.fdatasync
        self.replace = inner.replace
        self.unlink = inner.unlink
        self.link = inner.link
        self.mkdir = inner.mkdir
        self.make_dirs = inner.make_dirs
        self.listdir = inner.listdir
        self.exists = inner.exists
        self.identity = inner.identity
        self.is_linked = inner.is_linked
        self.abandon = inner.abandon
        self.reserve_files = inner.reserve_files
        self.is_short_of_files = inner.is_short_of_files
        self.remove_tree = inner.remove_tree
        self.sync_dir = inner.sync_dir
        self.lock = inner.lock
        self.unlock = inner.unlock
        self.free_bytes = inner.free_bytes
        self.random_bytes = inner.random_bytes
        self.crash_point = inner.crash_point

    def as_disk(self) -> Disk:
        """Return this disk as a `Disk`."""
        return self

    @property
    def is_encrypted(self) -> bool:
        """True if what is written is encrypted."""
        return self._keys is not None

    # --- files ------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> int:
        fd = self.inner.open(path, create=create)
        if not self._may_be_framed(path):
            return fd
        try:
            file = self._file_of(fd)
            if file is not None and create and not file.has_header:
                self._write_header(fd, file)
        except BaseException:
            self.inner.close(fd)
            raise
        if file is not None:
            with self._mutex:
                file.open_count += 1
            self._files[fd] = file
        return fd

    def close(self, fd: int) -> None:
        file = self._files.pop(fd, None)  # before another thread is given this number
        self.inner.close(fd)
        if file is not None:
            with self._mutex:
                file.open_count -= 1
                self._forget_closed()

    def size(self, fd: int) -> int:
        file = self._files.get(fd)
        if file is None:
            return self.inner.size(fd)
        return file.header.content_bytes if file.header.codec else file.map.size

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        file = self._files.get(fd)
        if file is None:
            return self.inner.pread(fd, size, offset)
        with file.lock:
            size = min(size, self.size(fd) - offset)
            extents = file.map.find(offset, offset + size) if size > 0 else []
        if size <= 0:
            return b""
        blobs = self._contents(fd, file, [extent.frame for extent in extents])
        if len(extents) == 1 and extents[0].start <= offset and extents[0].end >= offset + size:
            blob = blobs[extents[0].frame]
            if blob is not None:
                at = offset - extents[0].frame.start
                return blob[at : at + size]
        found = bytearray(size)
        for start, end, frame in extents:
            blob = blobs[frame]
            if blob is not None:
                first, last = max(start, offset), min(end, offset + size)
                found[first - offset : last - offset] = blob[
                    first - frame.start : last - frame.start
                ]
        return bytes(found)

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        file = self._files.get(fd)
        if file is None:
            self.inner.pwrite(fd, data, offset)
        else:
            self._write(fd, file, bytes(data), offset)

    def writev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        file = self._files.get(fd)
        if file is None:
            self.inner.writev(fd, buffers, offset)
        else:
            self._write(fd, file, b"".join(buffers), offset)

    def truncate(self, fd: int, size: int) -> None:
        file = self._files.get(fd)
        if file is None:
            self.inner.truncate(fd, size)
            return
        self._check_changeable(file)
        with file.lock:
            frames = file.map.frames
            kept = len(frames)
            while kept and frames[kept - 1].start >= size:
                kept -= 1
            end = frames[kept].at if kept < len(frames) else file.end
            is_shorter = end < file.end
        if is_shorter:
            self.inner.truncate(fd, end)
        with file.lock:
            del frames[kept:]
            file.end, file.prepared_to = end, min(file.prepared_to, end)
            # Frames that are left may hold bytes behind the new end, covered or not.
            ends = [one.start + one.size for one in frames]
            is_said = size == max(ends, default=0) and all(one.size for one in frames)
            file.map.end_at(size)
        if not is_said:
            self._append(fd, file, [(ff.END, size, b"")])

    def preallocate(self, fd: int, *, offset: int, size: int) -> None:
        file = self._files.get(fd)
        if file is None:
            self.inner.preallocate(fd, offset=offset, size=size)
            return
        with file.lock:
            start = max(file.end, file.prepared_to)
            room = size + size // 8  # headers and tags, of small writes too
            file.prepared_to = start + room
        self.inner.preallocate(fd, offset=start, size=room)

    def reserve(self, fd: int, size: int) -> None:
        file = self._files.get(fd)
        if file is None:
            self.inner.reserve(fd, size)
            return
        room = ff.FRAMES_AT + size + size // 8
        self.inner.reserve(fd, room)
        with file.lock:
            file.prepared_to = max(file.prepared_to, room)

    # --- packed files -----------------------------------------------------------------------

    def is_framed(self, fd: int) -> bool:
        """Return True if the content of a file is not what stands in it."""
        return fd in self._files

    def packed_size(self, fd: int) -> int:
        """Return the bytes that a packed file takes; 0: it is not packed."""
        file = self._files.get(fd)
        return self.inner.size(fd) if file is not None and file.header.codec else 0

    def pack(self, path: str, target: str) -> Generator[PackResult | None, None, None]:
        """Write a packed file `target` with the content of `path`, and sync it: in steps, each of
        which yields None, the last one the result. It counts for nothing until it is renamed.

        Nothing is open between steps. Each syncs what it wrote: of a file that was closed without,
        an error might never be reported.
        """
        inner = self.inner
        with opened(self, path) as fd:
            size = self.size(fd)
        count = -(-size // PACKED_FRAME_BYTES)
        header = self._new_header(codec=ff.ZSTD, content_bytes=size)
        header = header._replace(table_bytes=ff.table_bytes(count))
        file = _File(header, self._aead_of(header), has_header=True)
        file.end += ff.padded(header.table_bytes)
        for at in range(0, size, PACK_STEP_BYTES):
            with opened(self, path) as fd, opened(inner, target, create=True) as made:
                if not at:
                    inner.truncate(made, 0)
                    inner.pwrite(made, ff.encode_file_header(header), 0)
                self._write_packed(made, file, self.pread(fd, PACK_STEP_BYTES, at), at)
                if at + PACK_STEP_BYTES >= size:
                    table = ff.encode_table([frame.stored for frame in file.map.frames])
                    inner.pwrite(made, table, ff.FRAMES_AT)
                inner.fdatasync(made)
            yield None
        yield PackResult(size, file.end)

    def packed_pieces(self, fd: int, offset: int, size: int) -> list[tuple[int, int, bytes]] | None:
        """Return the stored pieces of a packed file that is not encrypted, as they are: (codec,
        content bytes, bytes) each; None where [offset, offset + size) does not begin with one."""
        file = self._files.get(fd)
        if file is None or file.aead is not None or not file.header.codec:
            return None
        with file.lock:
            extents = file.map.find(offset, offset + size)
        if not extents or extents[0].start != offset:
            return None
        found: list[tuple[int, int, bytes]] = []
        for start, end, frame in extents:
            if end > offset + size and start > offset:
                break
            blob = self.inner.pread(fd, ff.FRAME_HEADER_BYTES + frame.stored, frame.at)
            header = ff.decode_frame_header(blob)
            body = blob[ff.FRAME_HEADER_BYTES :]
            if header is None or header.body_crc != crc32c(body):
                return None
            found.append((header.codec, frame.size, body))
        return found

    # --- writing ----------------------------------------------------------------------------

    def _write(self, fd: int, file: _File, data: bytes, offset: int) -> None:
        if not data:
            return
        self._check_changeable(file)
        self._append(
            fd,
            file,
            [
                (ff.DATA, offset + at, data[at : at + FRAME_BYTES])
                for at in range(0, len(data), FRAME_BYTES)
            ],
        )

    def _write_packed(self, fd: int, file: _File, data: bytes, offset: int) -> None:
        """Write compressed frames."""
        step = PACKED_FRAME_BYTES
        pieces = [(ff.DATA, offset + at, data[at : at + step]) for at in range(0, len(data), step)]
        self._append(fd, file, pieces)

    def _append(self, fd: int, file: _File, pieces: list[tuple[int, int, bytes]]) -> None:
        """Write frames, (kind, start, content) each, behind all others of the file."""
        if not file.has_header:
            self._write_header(fd, file)
        # Random, not counted: no crash, copy or cut can bring a counter back (docs/adr/0046).
        nonces = b""
        if file.aead is not None:
            nonces = self.inner.random_bytes(ff.NONCE_BYTES * len(pieces))
        with file.lock:
            at, seq = file.end, file.next_seq
            file.next_seq += len(pieces)
        first = at
        buffers: list[bytes] = []
        frames: list[Frame] = []
        for number, (kind, start, content) in enumerate(pieces):
            body, codec = content, ff.RAW
            if file.header.codec == ff.ZSTD:
                body, codec = _compressed(content)
            nonce = nonces[number * ff.NONCE_BYTES : (number + 1) * ff.NONCE_BYTES]
            head = ff.FrameHeader(
                seq + number,
                start,
                len(content),
                len(body) if file.aead is None else len(body) + _TAG_BYTES,
                kind,
                codec,
                nonce or ff.NO_NONCE,
                crc32c(body) if file.aead is None else 0,
            )
            encoded = ff.encode_frame_header(head)
            if file.aead is not None:
                body = file.aead.encrypt(nonce, body, encoded)
            frames.append(Frame(at, start, len(content), head.stored, head.seq))
            length = ff.FRAME_HEADER_BYTES + len(body)
            buffers += (ff.with_crc(encoded), body, bytes(-length % ff.ALIGNMENT))
            at += ff.padded(length)
        self.inner.writev(fd, buffers, first)
        with file.lock:
            for frame, piece in zip(frames, pieces, strict=True):
                if piece[0] == ff.DATA:
                    file.map.add(frame)
                else:
                    file.map.frames.append(frame)
                    file.map.end_at(frame.start)
            file.end = at

    def _write_header(self, fd: int, file: _File) -> None:
        self.inner.pwrite(fd, ff.encode_file_header(file.header), 0)
        file.has_header = True
        self._remember(file)

    def _remember(self, file: _File) -> None:
        """Keep the one map of a file: all that have it open, or open it later, share it."""
        with self._mutex:
            self._known[file.header.salt] = file
            self._forget_closed()

    def _forget_closed(self) -> None:
        """Keep a bounded number of maps. One that is in use is not forgotten: there must not be
        two of one file, for what one writer adds is in his alone."""
        if len(self._known) <= MAPS_MAX:
            return
        for salt, file in list(self._known.items()):
            if not file.open_count:
                del self._known[salt]
                if len(self._known) <= MAPS_MAX:
                    return

    def _check_changeable(self, file: _File) -> None:
        if file.header.codec:
            raise OSError(errno.EROFS, "a packed file is never changed")

    # --- opening ----------------------------------------------------------------------------

    def _may_be_framed(self, path: str) -> bool:
        if self._keys is None:
            return path.endswith(_PACKABLE)
        return not is_public(path)

    def _file_of(self, fd: int) -> _File | None:
        """Return the framed file that is open; None for one that is not framed."""
        inner, keys = self.inner, self._keys
        physical = inner.size(fd)
        header = ff.decode_file_header(inner.pread(fd, ff.FRAMES_AT, 0)) if physical else None
        if header is None:
            if keys is None:
                return None
            # New; or of a file that was never synced; or damaged, and all it held with it. Bytes
            # that are not encrypted are none here: no key vouches for them.
            header = self._new_header()
            return _File(header, self._aead_of(header), has_header=False)
        if keys is None and header.cipher != ff.NO_CIPHER:
            raise OSError(errno.EIO, "the file is encrypted, and no key is given")
        if keys is not None and header.cipher == ff.NO_CIPHER:
            raise OSError(errno.EIO, "the file is not encrypted")
        if keys is not None and header.key_id != keys.key_id:
            raise OSError(errno.EIO, "the file is encrypted with another key")
        with self._mutex:
            file = self._known.get(header.salt)
            if file is not None:
                self._known.move_to_end(header.salt)
        if file is None or not (file.open_count or self._is_same(fd, file, physical)):
            file = _File(header, self._aead_of(header), has_header=True)
            if not header.codec or not self._load_table(fd, file, physical):
                self._scan(fd, file, physical)
            self._remember(file)
        return file

    def _is_same(self, fd: int, file: _File, physical: int) -> bool:
        """Return True if a file that nobody has open still ends with the frame that its map ends
        with, and with no other: it may be a copy."""
        if physical < file.end and file.map.frames:
            return False
        after = ff.decode_frame_header(self.inner.pread(fd, ff.FRAME_HEADER_BYTES, file.end))
        if after is not None and after.seq >= file.next_seq:
            return False
        if not file.map.frames:
            return True
        last = file.map.frames[-1]
        head = ff.decode_frame_header(self.inner.pread(fd, ff.FRAME_HEADER_BYTES, last.at))
        return head is not None and head.seq == last.seq

    def _load_table(self, fd: int, file: _File, physical: int) -> bool:
        header = file.header
        stored = ff.decode_table(self.inner.pread(fd, header.table_bytes, ff.FRAMES_AT))
        if stored is None:
            return False
        at, start = ff.FRAMES_AT + ff.padded(header.table_bytes), 0
        for seq, size in enumerate(stored, start=1):
            content = min(PACKED_FRAME_BYTES, header.content_bytes - start)
            file.map.add(Frame(at, start, content, size, seq))
            at += ff.padded(ff.FRAME_HEADER_BYTES + size)
            start += content
        file.end = at
        return start == header.content_bytes and at <= physical

    def _scan(self, fd: int, file: _File, physical: int) -> None:
        """Make the map of a file from its frames."""
        file.map = FrameMap()
        file.end = ff.FRAMES_AT
        for frame, head in _headers(self.inner.pread, fd, physical):
            if head.seq < file.next_seq:
                continue  # of before the file was cut, which the cut had not reached on disk
            if head.kind == ff.END or file.map.is_covering(frame.start, frame.start + frame.size):
                # What it covers stays, should it be torn.
                if self._content(fd, file, frame) is None:
                    continue
            if head.kind == ff.END:
                file.map.frames.append(frame)
                file.map.end_at(frame.start)
            else:
                file.map.add(frame)
            file.next_seq = head.seq + 1
            file.end = ff.padded(frame.at + ff.FRAME_HEADER_BYTES + frame.stored)

    def _new_header(self, *, codec: int = ff.RAW, content_bytes: int = 0) -> ff.FileHeader:
        keys = self._keys
        return ff.FileHeader(
            ff.NO_CIPHER if keys is None else keys.cipher,
            codec,
            self.inner.random_bytes(ff.SALT_BYTES),
            0 if keys is None else keys.key_id,
            content_bytes,
        )

    def _aead_of(self, header: ff.FileHeader) -> Aead | None:
        if header.cipher == ff.NO_CIPHER or self._keys is None:
            return None
        return self._keys.aead(header.cipher, header.salt)

    # --- reading ----------------------------------------------------------------------------

    def _contents(self, fd: int, file: _File, frames: list[Frame]) -> dict[Frame, bytes | None]:
        """Return the content of each frame, None for one that does not verify. Frames that are
        close to each other are read at once."""
        found: dict[Frame, bytes | None] = {}
        missing: list[Frame] = []
        for frame in frames:
            blob = self._cache.find(file.generation, frame)
            if blob is None:
                missing.append(frame)
            else:
                found[frame] = blob
        at = 0
        while at < len(missing):
            base = missing[at].at
            end = base + ff.FRAME_HEADER_BYTES + missing[at].stored
            upto = at + 1
            while upto < len(missing) and 0 <= missing[upto].at - end <= _GAP_BYTES:
                end = missing[upto].at + ff.FRAME_HEADER_BYTES + missing[upto].stored
                upto += 1
            blob = self.inner.pread(fd, end - base, base)
            for frame in missing[at:upto]:
                found[frame] = self._verified(file, frame, blob, frame.at - base)
            at = upto
        return found

    def _content(self, fd: int, file: _File, frame: Frame) -> bytes | None:
        blob = self.inner.pread(fd, ff.FRAME_HEADER_BYTES + frame.stored, frame.at)
        return self._verified(file, frame, blob, 0)

    def _verified(self, file: _File, frame: Frame, blob: bytes, at: int) -> bytes | None:
        """Return the content of the frame at `at` of `blob`, once it is proven to be that."""
        body_at = at + ff.FRAME_HEADER_BYTES
        head = ff.decode_frame_header(blob, at)
        body = blob[body_at : body_at + frame.stored]
        content: bytes | None = None
        if (
            head is not None
            and (head.start, head.size, head.stored, head.seq) == frame[1:]
            and len(body) == frame.stored
        ):
            content = self._opened(file, head, body)
        if content is None:
            self.damaged_frames += 1
            return None
        self._cache.add(file.generation, frame, content)
        return content

    def _opened(self, file: _File, head: ff.FrameHeader, body: bytes) -> bytes | None:
        if file.aead is not None:
            try:
                body = file.aead.decrypt(head.nonce, body, ff.encode_frame_header(head))
            except InvalidTag:
                return None
        elif crc32c(body) != head.body_crc:
            return None
        if head.codec == ff.RAW:
            return body if len(body) == head.size else None
        return decompressed(body, head.size)


_TAG_BYTES: Final = 16
_Pread = Callable[[int, int, int], bytes]


def packed_size(disk: Disk, fd: int) -> int:
    """Return the bytes that a packed file takes on any disk; 0: it is not packed."""
    return disk.packed_size(fd) if isinstance(disk, FramedDisk) else 0


def is_public(path: str) -> bool:
    """Return True for files without data of users, which are never encrypted: who owns the
    directory, its keys (wrapped), which segment of the log is the newest, and markers."""
    name = os.path.basename(path).removesuffix(".tmp")
    return name in _PUBLIC


_PUBLIC: Final = frozenset(
    ("node.json", "node-2.json", "encryption.json", "encryption-2.json", "manifest", "LOCK")
)


def decompressed(body: bytes, size: int) -> bytes | None:
    """Return the `size` bytes that `body` holds compressed; None: it does not."""
    found = bytearray(size)
    try:
        count = cramjam.zstd.decompress_into(body, found)
    except (cramjam.DecompressionError, ValueError, OverflowError):
        return None
    return bytes(found) if count == size else None


def _compressed(content: bytes) -> tuple[bytes, int]:
    """Return (bytes, codec): compressed, where that makes them fewer."""
    body = bytes(cramjam.zstd.compress(content, level=ZSTD_LEVEL))
    return (body, ff.ZSTD) if len(body) < len(content) else (content, ff.RAW)


def _headers(pread: _Pread, fd: int, physical: int) -> Iterator[tuple[Frame, ff.FrameHeader]]:
    """Yield each frame of a file, in its order. Damaged headers are passed over."""
    at, base, window = ff.FRAMES_AT, 0, b""
    wanted = _WINDOW_BYTES
    while at + ff.FRAME_HEADER_BYTES <= physical:
        if not base <= at <= base + len(window) - ff.FRAME_HEADER_BYTES:
            base, window = at, pread(fd, wanted, at)
        head = ff.decode_frame_header(window, at - base)
        if head is None:
            at = _next_magic(pread, fd, at + ff.ALIGNMENT, physical)
            continue
        yield Frame(at, head.start, head.size, head.stored, head.seq), head
        at += ff.padded(ff.FRAME_HEADER_BYTES + head.stored)
        wanted = ff.FRAME_HEADER_BYTES if head.stored >= _BIG_FRAME_BYTES else _WINDOW_BYTES


def _next_magic(pread: _Pread, fd: int, at: int, physical: int) -> int:
    """Return where the next frame may begin, at or after `at`; `physical`: nowhere."""
    while at < physical:
        blob = pread(fd, _SEARCH_BYTES, at)
        if not blob:
            return physical
        found = blob.find(ff.FRAME_MAGIC)
        while found >= 0:
            if (at + found) % ff.ALIGNMENT == 0:
                return at + found
            found = blob.find(ff.FRAME_MAGIC, found + 1)
        at += len(blob)
    return physical
