"""Files of log entries that were set aside, as programs beside the server read them."""

from __future__ import annotations

from streamd.store.blocks.discarded_entries_file import (
    Tail,
    TailFacts,
    bytes_field,
    is_tail,
    parse_facts,
    read_tail,
)
from streamd.store.disk import OsDisk

__all__ = ["OsDisk", "Tail", "TailFacts", "bytes_field", "is_tail", "parse_facts", "read_tail"]
