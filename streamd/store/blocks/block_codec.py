"""`BlockCodec`: the formats of blocks as one object, which a stream's machine is handed. Pure."""

from __future__ import annotations

from streamd.store.blocks.footer import decode_footer, encode_footer
from streamd.store.blocks.record_format import (
    decode_at,
    decode_fields,
    encode_batch,
    encode_frame,
    encode_skip,
    encode_timed,
    encode_tombstone,
)


class BlockCodec:
    """Implements `machine.base.RecordCodec` for callers that may not import this room."""

    encode_batch = staticmethod(encode_batch)
    encode_timed = staticmethod(encode_timed)
    encode_frame = staticmethod(encode_frame)
    encode_tombstone = staticmethod(encode_tombstone)
    encode_skip = staticmethod(encode_skip)
    encode_footer = staticmethod(encode_footer)
    decode_footer = staticmethod(decode_footer)
    decode_fields = staticmethod(decode_fields)
    decode_at = staticmethod(decode_at)
