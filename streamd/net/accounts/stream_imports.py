"""Stream imports: subscriptions of one account that receive messages of another.

Each subscription of a client whose pattern overlaps an import's local subjects gets a second one,
in the exporting account, to the subjects there. That one delivers to the client's own subscription,
under the local subject, so that counts, limits, denied subjects and headers are the client's; it is
a member of the client's queue group, and other nodes are told of it. No import follows from it in
turn: an account does not export what it imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from streamd import subjects
from streamd.net.pubsub.joined_streams import ImportingStreams
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.pubsub.sublist import Subscription
from streamd.subject_mapping import (
    SubjectTransform,
    as_pattern,
    mark_wildcards,
    reversed_import,
    wildcard_numbers,
)

Rename: TypeAlias = Callable[[bytes], bytes | None]
"""Subject in the exporting account -> the local one."""


class StreamImportSpec(NamedTuple):
    """An import as it is configured; equal ones are the same import."""

    exporter: MessageRouter
    remote: bytes  # pattern in the exporting account
    local: bytes  # the name here, a destination of `remote`; empty: the same
    allows_trace: bool = False  # events may say who gets messages here


class StreamImport:
    """Subjects that an account imports. Raises SubjectMappingError if they do not fit."""

    def __init__(self, spec: StreamImportSpec, importer: MessageRouter) -> None:
        self.exporter = spec.exporter
        self._allows_trace = spec.allows_trace
        self._remote = spec.remote
        marked = mark_wildcards(spec.local or spec.remote)
        self._local = as_pattern(marked)
        self._rename = SubjectTransform(spec.remote, marked, is_import=True).apply
        self._to_remote = reversed_import(spec.remote, marked).apply
        numbers = wildcard_numbers(marked)
        # Only then may a message of the exporter have a local name that a subscription to a part
        # of the import does not match.
        self._is_ambiguous = len(set(numbers)) < len(numbers)
        self.streams = ImportingStreams(
            lambda: importer.own_streams,
            spec.remote,
            self._rename,
            lambda: importer.server_sink,
        )

    def shadow(self, sub: Subscription) -> Subscription | None:
        """Return the subscription in the exporting account for that of a client here; None: it
        is to other subjects."""
        wanted = subjects.intersection(sub.pattern, self._local)
        pattern = None if wanted is None else self._to_remote(wanted)
        if pattern is None:
            return None
        made = Subscription(pattern, sub.queue, sub.sid, sub.conn)
        made.is_filtered = True
        made.is_traced = self._allows_trace
        made.parent = sub
        made.rename = self._matching(sub.pattern) if self._is_ambiguous else self._rename
        return made

    def _matching(self, pattern: bytes) -> SubjectRenamer:
        return SubjectRenamer(self._rename, pattern)


class SubjectRenamer:
    """Names of messages in the importing account, for those that a pattern there matches."""

    __slots__ = ("_pattern", "_rename")

    def __init__(self, rename: Rename, pattern: bytes) -> None:
        self._rename = rename
        self._pattern = pattern

    def __call__(self, subject: bytes) -> bytes | None:
        local = self._rename(subject)
        return local if local is not None and subjects.matches(self._pattern, local) else None


class StreamImports:
    """The stream imports of one account, and the subscriptions that follow from them."""

    def __init__(self, importer: MessageRouter) -> None:
        self._importer = importer
        self._imports: dict[StreamImportSpec, StreamImport] = {}
        self._shadows: dict[Subscription, list[tuple[StreamImport, Subscription]]] = {}

    @property
    def count(self) -> int:
        """Imports there are."""
        return len(self._imports)

    @property
    def shadow_count(self) -> int:
        """Subscriptions in exporting accounts."""
        return sum(map(len, self._shadows.values()))

    def streams(self) -> Mapping[MessageRouter, list[ImportingStreams]]:
        """Return what exporting accounts have to know of the streams here."""
        found: dict[MessageRouter, list[ImportingStreams]] = {}
        for each in self._imports.values():
            found.setdefault(each.exporter, []).append(each.streams)
        return found

    def replace(self, specs: Iterable[StreamImportSpec]) -> None:
        """Take these imports and no others. Those that stay are not interrupted."""
        wanted = {
            spec: self._imports.get(spec) or StreamImport(spec, self._importer) for spec in specs
        }
        gone = {each for spec, each in self._imports.items() if spec not in wanted}
        new = [each for spec, each in wanted.items() if spec not in self._imports]
        self._imports = wanted
        if gone:
            for sub in list(self._shadows):
                self._end(sub, gone)
        if new:
            for sub in list(self._importer.subscriptions.sublist.all()):
                if sub.is_followed and sub.parent is None:
                    self._begin(sub, new)

    def subscribed(self, sub: Subscription) -> None:
        """Follow a client's subscription."""
        if self._imports:
            self._begin(sub, self._imports.values())

    def unsubscribed(self, sub: Subscription) -> None:
        """Follow the end of a client's subscription."""
        if sub in self._shadows:
            self._end(sub, set(self._imports.values()))

    def _begin(self, sub: Subscription, imports: Iterable[StreamImport]) -> None:
        for each in imports:
            shadow = each.shadow(sub)
            if shadow is not None:
                self._shadows.setdefault(sub, []).append((each, shadow))
                each.exporter.subscriptions.add(shadow)

    def _end(self, sub: Subscription, gone: set[StreamImport]) -> None:
        left: list[tuple[StreamImport, Subscription]] = []
        for each, shadow in self._shadows.pop(sub):
            if each in gone:
                each.exporter.subscriptions.unsubscribe(shadow)
            else:
                left.append((each, shadow))
        if left:
            self._shadows[sub] = left
