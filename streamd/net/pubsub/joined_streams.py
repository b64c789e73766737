"""Streams of several accounts that capture subjects of one.

An account that imports subjects may have streams that capture them under their local names. Such a
stream captures at the node of the publisher, as one of the publisher's own account does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from streamd import subjects
from streamd.net.pubsub.subject_routes import CapturingStream, Judged, Place
from streamd.types import Msg

if TYPE_CHECKING:  # a server without streams does not load these rooms
    from streamd.machine.asset_configs import StreamConfig
    from streamd.node.ports import PublishSink


class StreamSource(Protocol):
    """The streams of one account, by the subjects that they capture."""

    @property
    def topology_version(self) -> int: ...

    def streams_for(self, subject: bytes) -> tuple[CapturingStream, ...]: ...

    def streams_under(self, prefix: bytes) -> tuple[CapturingStream, ...] | None: ...


class ImportingStreams:
    """The streams of an importing account, as the exporting one sees them through one import."""

    def __init__(
        self,
        streams: Callable[[], StreamSource | None],
        remote: bytes,
        rename: Callable[[bytes], bytes | None],
        acks: Callable[[], PublishSink],
    ) -> None:
        """`remote`: pattern of the imported subjects, as they are published; `rename` gives the
        local ones. `acks` takes what streams answer: it goes to the importing account."""
        self.streams = streams
        self.remote = remote
        self.rename = rename
        self.acks = acks
        self._known: dict[CapturingStream, ImportedStream] = {}

    def streams_for(self, subject: bytes) -> list[CapturingStream]:
        """Return the streams that capture `subject` under its local name."""
        source = self.streams()
        if source is None or not subjects.matches(self.remote, subject):
            return []
        local = self.rename(subject)
        return [] if local is None else [self._imported(each) for each in source.streams_for(local)]

    def forget(self) -> None:
        """Let go of streams: the set of them has changed."""
        self._known.clear()

    def _imported(self, stream: CapturingStream) -> CapturingStream:
        known = self._known.get(stream)
        if known is None:
            known = self._known[stream] = ImportedStream(stream, self)
        return known


class ImportedStream:
    """A stream of an importing account; see `subject_routes.CapturingStream`."""

    __slots__ = ("_source", "_stream")

    def __init__(self, stream: CapturingStream, source: ImportingStreams) -> None:
        self._stream = stream
        self._source = source

    @property
    def name_bytes(self) -> bytes:
        return self._stream.name_bytes

    @property
    def is_local(self) -> bool:
        return self._stream.is_local

    @property
    def config(self) -> StreamConfig:
        return self._stream.config

    def publish(self, msgs: list[Msg], replies: list[bytes], sink: PublishSink) -> None:
        """Store messages under their local subjects. Acks go to reply subjects of the importing
        account, not to the publisher behind `sink`."""
        rename = self._source.rename
        renamed = [
            (rename(subject) or subject, headers, payload) for subject, headers, payload in msgs
        ]
        self._stream.publish(renamed, replies, self._source.acks())

    def judge(self, msg: Msg, done: Judged) -> None:
        subject, headers, payload = msg
        self._stream.judge((self._source.rename(subject) or subject, headers, payload), done)

    def place(self, subject: bytes) -> Place:
        return self._stream.place(self._source.rename(subject) or subject)


class JoinedStreams:
    """An account's own streams, and those of accounts that import from it."""

    def __init__(self, own: StreamSource | None, importing: Sequence[ImportingStreams]) -> None:
        self._own = own
        self._importing = importing

    @property
    def topology_version(self) -> int:
        """Another number whenever anything about one of the streams has changed: each version only
        grows."""
        sources = [self._own, *(each.streams() for each in self._importing)]
        return sum(source.topology_version for source in sources if source is not None)

    def streams_for(self, subject: bytes) -> tuple[CapturingStream, ...]:
        """Streams that capture `subject`."""
        found = list(self._own.streams_for(subject)) if self._own is not None else []
        for each in self._importing:
            found += each.streams_for(subject)
        return tuple(found)

    def streams_under(self, prefix: bytes) -> tuple[CapturingStream, ...] | None:
        """Streams that capture every subject of `prefix` and one more token; None: some capture
        only a part of them, or what they capture is imported and has another name there."""
        pattern = prefix + b"*"
        if any(subjects.collides(each.remote, pattern) for each in self._importing):
            return None
        return self._own.streams_under(prefix) if self._own is not None else ()
