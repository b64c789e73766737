"""`IngestTransform`: a stream's `subject_transform`, for the publishes that its leader proposes.

The leader decides: what an entry carries are the subjects under which messages are stored, so that
chance (`{{random(n)}}`) and a change of the configuration come out the same on every replica.
"""

from __future__ import annotations

from typing import Final

from streamd.machine.asset_configs import StreamConfig
from streamd.machine.digest import chain64
from streamd.subject_mapping import SubjectMappingError, SubjectTransform
from streamd.types import Msg

SUBJECT_BYTES_MAX: Final = 65535
"""Bytes of a subject that a block record can hold. Of a longer one that a transform would make
nothing is made: the message keeps the subject that it was published to."""


class IngestTransform:
    """Transforms the messages of one stream, by its configuration of the moment."""

    __slots__ = ("_config", "_count", "_salt", "_transform")

    def __init__(self) -> None:
        self._config: StreamConfig | None = None
        self._transform: SubjectTransform | None = None
        self._salt = 0
        self._count = 0

    def apply(self, config: StreamConfig, msgs: list[Msg], salt: int) -> list[Msg]:
        """Return `msgs` with the subjects that they are to be stored under. What `random` makes of
        them depends on `salt`, the entry's time, and on how often it was asked before."""
        if config is not self._config:
            self._config = config
            self._transform = self._compiled(config)
        transform = self._transform
        if transform is None:
            return msgs
        self._salt = salt
        become = transform.apply
        found: list[Msg] = []
        known: dict[bytes, bytes] = {}  # most chunks are of a few subjects
        is_repeatable = transform.is_repeatable
        for subject, headers, payload in msgs:
            to = known.get(subject)
            if to is None:
                to = become(subject)
                if not to or len(to) > SUBJECT_BYTES_MAX:
                    to = subject
                if is_repeatable:
                    known[subject] = to
            found.append((to, headers, payload))
        return found

    def _compiled(self, config: StreamConfig) -> SubjectTransform | None:
        wanted = config.get("subject_transform")
        if not wanted or not wanted.get("dest"):
            return None
        source, destination = wanted.get("src", "").encode(), wanted.get("dest", "").encode()
        try:
            return SubjectTransform(source, destination, self._below)
        except SubjectMappingError:
            return None  # the API lets none in

    def _below(self, count: int) -> int:
        self._count += 1
        return chain64((self._salt, self._count)) % count
