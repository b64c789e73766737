"""`Origins`: how far a stream has taken the messages of the streams it copies from.

Part of a stream's replicated state. An origin is known by its index name: the stream's name, with
what tells sources of one name apart (`index_name`). Positions stay when a source is removed from
the configuration: added again, it goes on where it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from streamd.machine.asset_configs import StreamConfig, StreamSource
from streamd.machine.digest import chain64
from streamd.types import Seq

MIRROR: Final = ""
"""Index name of a mirror's origin."""
ALL: Final = ">"
LIST_SEPARATOR: Final = "\f"
_ALPHABET: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_HASH_LENGTH: Final = 8


class Position(NamedTuple):
    """Position in an origin: its identity ("": unknown), and the last of its seqs that is taken."""

    identity: str = ""
    seq: Seq = 0


_START: Final = Position()


class Origins:
    """Positions by index name. Changed by `StreamCopying` alone."""

    __slots__ = ("positions",)

    def __init__(self) -> None:
        self.positions: dict[str, Position] = {}

    def of(self, name: str, identity: str) -> Seq:
        """Return the position in the origin of that index name and identity: 0 in one that was
        created anew since."""
        found = self.positions.get(name, _START)
        is_another = found.identity and identity and found.identity != identity
        return 0 if is_another else found.seq

    def advance(self, name: str, identity: str, seq: Seq) -> None:
        """Note that the messages of an origin are taken up to `seq`."""
        if not identity:
            identity = self.positions.get(name, _START).identity
        self.positions[name] = Position(identity, seq)

    def fingerprint(self) -> int:
        """Return 64 bits over all positions; 0 if there are none."""
        if not self.positions:
            return 0
        numbers: list[int] = []
        for name in sorted(self.positions):
            identity, seq = self.positions[name]
            digest = hashlib.sha256(f"{name}\n{identity}".encode()).digest()
            numbers += (int.from_bytes(digest[:8], "little"), seq)
        return chain64(numbers)

    def to_state(self) -> list[list[bytes | int]]:
        """Return the positions for the snapshot, sorted by name."""
        return [
            [name.encode(), position.identity.encode(), position.seq]
            for name, position in sorted(self.positions.items())
        ]

    def load(self, state: Iterable[Sequence[bytes | int]]) -> None:
        """Take over `to_state`."""
        for name, identity, seq in state:
            assert isinstance(name, bytes) and isinstance(identity, bytes), (name, identity)
            self.positions[name.decode()] = Position(identity.decode(), int(seq))


def short_hash(text: str) -> str:
    """Return the eight characters by which nats-server shortens a name."""
    digest = hashlib.sha256(text.encode()).digest()[:_HASH_LENGTH]
    return bytes(_ALPHABET[byte % len(_ALPHABET)] for byte in digest).decode()


def stream_part(source: StreamSource) -> str:
    """Return the first word of a source's index name, which stands for the stream itself."""
    name = source.get("name", "")
    external = source.get("external")
    if external:
        name += ":" + short_hash(external.get("api", ""))
    consumer = source.get("consumer")
    if consumer:
        name += ":C=" + short_hash(consumer.get("name", ""))
    return name


def index_name(source: StreamSource) -> str:
    """Return the words by which a source is known: stream, filters and destinations. They are the
    first, third and fourth of the header that its messages have."""
    filters, destinations = source.get("filter_subject") or ALL, ALL
    transforms = source.get("subject_transforms")
    if transforms:
        filters = LIST_SEPARATOR.join(each.get("src") or ALL for each in transforms)
        destinations = LIST_SEPARATOR.join(each.get("dest") or ALL for each in transforms)
    return f"{stream_part(source)} {filters} {destinations}"


def named_in_header(value: bytes) -> tuple[str, Position] | None:
    """Return the index name and the position that a `Nats-Stream-Source` header tells; None: it
    has not its form."""
    words = value.decode("utf-8", "replace").split(" ")
    if len(words) < 4 or not words[1].isdigit():
        return None
    identity = words[5] if len(words) > 5 else ""
    return f"{words[0]} {words[2]} {words[3]}", Position(identity, int(words[1]))


def origin_names(config: StreamConfig) -> frozenset[str]:
    """Return the index names of all that a stream copies from."""
    if config.get("mirror"):
        return frozenset((MIRROR,))
    return frozenset(map(index_name, config.get("sources") or ()))
