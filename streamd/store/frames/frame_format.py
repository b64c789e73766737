"""Framed files as bytes: the header of a file, the header of a frame, the table of frames. Pure.

A framed file holds the bytes of another, its *content*, in frames: each is one piece of the
content, compressed or encrypted or both, or the statement that the content ends somewhere. A frame
is never changed in place; of two that hold the same place, the later one counts.

    0     file header, 512 bytes, and the same once more at 512
    1024  a packed file: the table of its frames, padded to 512
          frames, each at a multiple of 512: tearing one harms no sector of another

File header: `magic "STRDFRF1", version u32, cipher u8, codec u8, 0 u16, salt 32 bytes, key id u64,
content bytes u64, table bytes u32, 0 u32, crc u32`; content and table of packed files only.
Frame header: `magic "STRDFRM1", seq u64, start u64, content bytes u32, stored bytes u32, kind u8,
codec u8, 0 u16, nonce 12 bytes, body crc u32, crc u32`. All before the last crc is authenticated
with the body. The body's crc is that of the stored bytes; of an encrypted frame it is 0, for there
the cipher's tag does the same and more.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from streamd.errors import CorruptionError

FILE_MAGIC: Final = b"STRDFRF1"
FRAME_MAGIC: Final = b"STRDFRM1"
VERSION: Final = 1
FILE_HEADER_BYTES: Final = 512
FRAMES_AT: Final = 2 * FILE_HEADER_BYTES
ALIGNMENT: Final = 512
FRAME_HEADER_BYTES: Final = 56
SALT_BYTES: Final = 32
NONCE_BYTES: Final = 12
NO_NONCE: Final = bytes(NONCE_BYTES)

NO_CIPHER, CHACHA, AES = 0, 1, 2
CIPHERS: Final = {"chacha": CHACHA, "aes": AES}
RAW, ZSTD = 0, 1
DATA, END = 1, 2  # kinds: a piece of the content; the content ends at `start`

_file_header = Struct("<8sIBBH32sQQII")
_frame_header = Struct("<8sQQIIBBH12sI")
_crc = Struct("<I")
assert _frame_header.size + _crc.size == FRAME_HEADER_BYTES
_TABLE_ENTRY = Struct("<I")


class FileHeader(NamedTuple):
    """Facts of a framed file."""

    cipher: int
    codec: int  # not RAW: the file is packed, complete and never changed
    salt: bytes  # of this file alone: what its key is derived with
    key_id: int
    content_bytes: int = 0
    table_bytes: int = 0


class FrameHeader(NamedTuple):
    """Facts of one frame."""

    seq: int  # of the frames of a file, ascending; the latest counts
    start: int  # place in the content
    size: int  # bytes of the content; 0: where it ends
    stored: int  # bytes that follow this header
    kind: int
    codec: int
    nonce: bytes
    body_crc: int


def padded(size: int) -> int:
    """Return `size` rounded up to where a frame may begin."""
    return size + -size % ALIGNMENT


def encode_file_header(header: FileHeader) -> bytes:
    """Return both copies of a file's header."""
    head = _file_header.pack(
        FILE_MAGIC,
        VERSION,
        header.cipher,
        header.codec,
        0,
        header.salt,
        header.key_id,
        header.content_bytes,
        header.table_bytes,
        0,
    )
    return 2 * (head + _crc.pack(crc32c(head))).ljust(FILE_HEADER_BYTES, b"\0")


def decode_file_header(blob: bytes) -> FileHeader | None:
    """Return the facts that either copy tells; None: neither is whole.

    Raises CorruptionError for a version that this program does not read.
    """
    size = _file_header.size
    for at in (0, FILE_HEADER_BYTES):
        head = blob[at : at + size]
        if len(blob) < at + size + 4 or not head.startswith(FILE_MAGIC):
            continue
        if _crc.unpack_from(blob, at + size)[0] != crc32c(head):
            continue
        _, version, cipher, codec, _, salt, key_id, content, table, _ = _file_header.unpack(head)
        if version != VERSION:
            raise CorruptionError(
                f"a framed file of version {version}, this server reads version {VERSION}"
            )
        return FileHeader(cipher, codec, salt, key_id, content, table)
    return None


def encode_frame_header(header: FrameHeader) -> bytes:
    """Return a frame's header without its crc: what is authenticated with the body."""
    return _frame_header.pack(
        FRAME_MAGIC,
        header.seq,
        header.start,
        header.size,
        header.stored,
        header.kind,
        header.codec,
        0,
        header.nonce,
        header.body_crc,
    )


def with_crc(head: bytes) -> bytes:
    """Return the header of a frame as it is written."""
    return head + _crc.pack(crc32c(head))


def decode_frame_header(blob: bytes, at: int = 0) -> FrameHeader | None:
    """Return the header at `at`; None: there is no whole one."""
    end = at + _frame_header.size
    if blob[at : at + 8] != FRAME_MAGIC or len(blob) < end + 4:
        return None
    if _crc.unpack_from(blob, end)[0] != crc32c(blob[at:end]):
        return None
    _, seq, start, size, stored, kind, codec, _, nonce, body_crc = _frame_header.unpack_from(
        blob, at
    )
    return FrameHeader(seq, start, size, stored, kind, codec, nonce, body_crc)


def table_bytes(count: int) -> int:
    """Return the bytes of a table of so many frames, with its crc, not padded."""
    return count * _TABLE_ENTRY.size + _crc.size


def encode_table(stored: list[int]) -> bytes:
    """Return the table of a packed file: the stored bytes of each frame, in order."""
    blob = b"".join(map(_TABLE_ENTRY.pack, stored))
    return blob + _crc.pack(crc32c(blob))


def decode_table(blob: bytes) -> list[int] | None:
    """Return the inverse of `encode_table`; None: the table is damaged."""
    body = blob[: -_crc.size]
    if len(blob) < _crc.size or len(body) % _TABLE_ENTRY.size:
        return None
    if _crc.unpack_from(blob, len(body))[0] != crc32c(body):
        return None
    return [size for (size,) in _TABLE_ENTRY.iter_unpack(body)]
