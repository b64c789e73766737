"""Limits of a stream's config, and the messages that they no longer allow.

`Limits` is the config read once, as ints and flags, because a publish looks at all of them.
The functions return seqs; removing them is the machine's doing.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from streamd.machine import extension_settings
from streamd.machine.asset_configs import StreamConfig
from streamd.machine.indexes.index import StreamIndex
from streamd.machine.indexes.subject_table import SEQ_LIST_MAX, SEQS
from streamd.subjects import Matcher
from streamd.types import Seq

LIMITS: Final = "limits"
INTEREST: Final = "interest"
WORKQUEUE: Final = "workqueue"
_SHORT_MAX: Final = 16 * 1024 * 1024


class Limits:
    """A stream config as the hot path wants it. 0 or less means no limit."""

    __slots__ = (
        "allows_batched",
        "allows_rollup",
        "allows_schedules",
        "allows_ttl",
        "checks_room",
        "denies_delete",
        "denies_purge",
        "is_counter",
        "is_discard_new",
        "is_discard_new_per_subject",
        "is_interest",
        "is_plain",
        "is_restoring",
        "is_sealed",
        "is_workqueue",
        "marker_ttl_ns",
        "max_age_ns",
        "max_bytes",
        "max_msg_size",
        "max_msgs",
        "max_per_subject",
        "producer_expiry_ns",
        "producers_max",
        "republish",
        "size_max",
    )

    def __init__(self, config: StreamConfig) -> None:
        self.max_msgs = _limit(config.get("max_msgs"))
        self.max_bytes = _limit(config.get("max_bytes"))
        self.max_age_ns = int(config.get("max_age") or 0)
        self.max_per_subject = _limit(config.get("max_msgs_per_subject"))
        self.max_msg_size = _limit(config.get("max_msg_size"))
        # Above this the short way asks the long one, which knows the bound of a record too.
        self.size_max = self.max_msg_size if 0 <= self.max_msg_size < _SHORT_MAX else _SHORT_MAX
        self.is_counter = bool(config.get("allow_msg_counter"))
        self.is_discard_new = config.get("discard", "old") == "new"
        self.is_discard_new_per_subject = self.is_discard_new and bool(
            config.get("discard_new_per_subject")
        )
        self.is_interest = config.get("retention", LIMITS) == INTEREST
        self.is_workqueue = config.get("retention", LIMITS) == WORKQUEUE
        # Nobody publishes into a stream that is being restored.
        self.is_restoring = bool(config.get("restoring"))
        self.is_sealed = bool(config.get("sealed")) or self.is_restoring
        self.denies_delete = bool(config.get("deny_delete"))
        self.denies_purge = bool(config.get("deny_purge"))
        self.allows_rollup = bool(config.get("allow_rollup_hdrs"))
        self.allows_batched = bool(config.get("allow_batched"))
        self.allows_schedules = bool(config.get("allow_msg_schedules"))
        self.allows_ttl = bool(config.get("allow_msg_ttl"))
        self.marker_ttl_ns = int(config.get("subject_delete_marker_ttl") or 0)
        self.producers_max = extension_settings.producers_max(config)
        self.producer_expiry_ns = extension_settings.producer_expiry_ns(config)
        republish = config.get("republish")
        # Without a destination it is as nats-server takes it: accepted, and does nothing. A copy to
        # the message's own subject would be stored here, and copied, without end.
        self.republish = republish if republish and republish.get("dest") else None
        if self.is_restoring:  # once all is there, the limits take out what is too much
            self.max_msgs = self.max_bytes = self.max_per_subject = -1
            self.max_age_ns = 0
        # Publishes may be refused for want of room, so each must see the one before it stored.
        self.checks_room = self.is_discard_new and (
            self.max_msgs > 0 or self.max_bytes > 0 or self.is_discard_new_per_subject
        )
        # Nothing but headers can make a message special: whole batches go the short way.
        self.is_plain = not (
            self.is_sealed
            or self.is_interest
            or self.checks_room
            or self.republish
            or self.is_counter
        )

    @property
    def tracks_seqs(self) -> bool:
        """Whether subjects keep the list of their seqs: small histories only. With a limit of one
        first and last say all; with a big one the next seq is found by a scan, once per removal."""
        return 1 < self.max_per_subject <= SEQ_LIST_MAX


def _limit(value: int | None) -> int:
    return -1 if value is None else int(value)


def is_over_limits(index: StreamIndex, limits: Limits) -> bool:
    """True if max_msgs or max_bytes does not allow all that is stored."""
    return 0 < limits.max_msgs < index.count or 0 < limits.max_bytes < index.live.bytes


def over_limits(index: StreamIndex, limits: Limits, most: int = 1 << 62) -> list[Seq]:
    """The oldest messages that max_msgs and max_bytes no longer allow, at most `most`."""
    excess = index.count - limits.max_msgs if limits.max_msgs > 0 else 0
    too_much = index.live.bytes - limits.max_bytes if limits.max_bytes > 0 else 0
    if too_much <= 0:
        oldest = index.live.seqs(index.first_seq, index.last_seq)
        return list(islice(oldest, min(max(excess, 0), most)))
    over: list[Seq] = []
    for seq, size in index.locations.live_sizes():
        if len(over) >= most or (len(over) >= excess and too_much <= 0):
            break
        over.append(seq)
        too_much -= size
    return over


def subject_seqs(index: StreamIndex, subject: bytes, count: int) -> list[Seq]:
    """The oldest `count` live seqs of `subject`."""
    row = index.subjects.rows[subject]
    if row[SEQS] is not None:
        held: list[Seq] = row[SEQS]
        return held[:count]
    if count == 1:
        return [index.lookup.first_of(subject)]
    found, _ = index.lookup.select(
        index.lookup.first_of(subject), Matcher.of_subject(subject), count, 1 << 62
    )
    return [loc[0] for loc in found]
