"""Differences from nats-server that are meant, each with its reason."""

from __future__ import annotations

import fnmatch
from typing import NamedTuple

from tests.parity.compare import Difference


class Intended(NamedTuple):
    """Patterns (`*` matches anything) of scenario and path, and why we differ there.

    `rows` of docs/COMPATIBILITY.md differ by it: `api:INFO`, `stream:republish`. Where the path is
    any, `step` is the label of the one step that differs: else the scenario could not fail.
    """

    scenario: str
    path: str
    reason: str
    rows: tuple[str, ...] = ()
    step: str = "*"

    @property
    def name(self) -> str:
        return f"{self.scenario} {self.path}"


INTENDED = [
    Intended(
        "*",
        "*config.metadata._nats.ver",
        "each server names the level it speaks",
        ("stream:metadata", "consumer:metadata"),
    ),
    Intended(
        "*",
        "*config.metadata._nats.level",
        "the peer is of a newer API level than ours",
        ("stream:metadata", "consumer:metadata"),
    ),
    Intended(
        "mirrors.*",
        "mirror.filter_subject",
        "shown from the start; the peer shows it once the mirror has asked its origin",
        ("stream:mirror.filter_subject",),
    ),
    Intended(
        "mirrors.full_mirror_that_discards_new",
        "*",
        "goes on as soon as there is room; the peer waits for the next message of the origin",
        ("stream:mirror",),
        step="state",
    ),
    Intended(
        "sources.counters_into_a_plain_stream_and_back",
        "sources[[]*].seq",
        "what is passed over is taken, too; the peer looks at it again after a restart",
        ("stream:sources",),
    ),
    Intended(
        "sources.position_outlives_a_purge_and_removal",
        "sources[[]0].seq",
        "the position is known and shown at once; the peer shows it when the source is set up",
        ("stream:sources",),
    ),
    Intended(
        "sources.requests_for_consumers",
        "*Nats-Required-Api-Level",
        "asked for with level 4; the peer asks with 5 first, and then so",
        ("header:Nats-Required-Api-Level",),
    ),
    Intended(
        "pulls.round_robin",
        "[[]*].reply",
        "the pending count in the ack subject: the peer counts the messages that wake it up",
        ("api:CONSUMER.MSG.NEXT",),
    ),
    Intended(
        "delivery.redelivered_message_deleted",
        "ack_floor.last_active",
        "when a client acked last: the deletion of a message that waits for its ack is no ack",
        ("api:STREAM.MSG.DELETE",),
    ),
    Intended(
        "pulls.purge_below_with_pending",
        "ack_floor.last_active",
        "when a client acked last: the purge of messages that wait for their acks is no ack",
        ("api:STREAM.PURGE",),
    ),
    Intended(
        "streams.purge_empty_and_refill",
        "state.first_seq",
        "a purge of a stream that never held anything changes nothing; the peer shows 1 for 0",
        ("api:STREAM.PURGE",),
    ),
    Intended(
        "account.jsz",
        "body.config.sync_*",
        "ours makes durable before it acks unless told otherwise; the peer, at intervals",
        ("key:jetstream.sync_interval",),
    ),
    Intended(
        "edges.copies_to_nowhere_from_later_on",
        "config.republish.dest",
        "nothing is copied, as if it were so from the start; the peer then copies into the stream"
        " itself, without end",
        ("stream:republish.dest",),
    ),
    Intended(
        "edges.deliveries_that_a_stream_captures",
        "*",
        "a delivery is no publish; the peer stores it there under the subject it came from, which"
        " is none of that stream's",
        ("consumer:deliver_subject",),
        step="STREAM.INFO.D",
    ),
    Intended(
        "edges.removals_are_no_acks",
        "ack_floor.*",
        "nobody acked what comes before a message that was removed: it is delivered again; the peer"
        " takes the removal for an ack of it all",
        ("api:STREAM.MSG.DELETE", "api:STREAM.PURGE"),
    ),
    Intended("edges.removals_are_no_acks", "num_ack_pending", "as above: it waits for its ack"),
    Intended(
        "edges.purge_of_what_one_consumer_wants",
        "ack_floor.*",
        "how far a consumer is moved by the removal of what it had not been sent; and it is no ack",
        ("api:STREAM.PURGE",),
    ),
    Intended(
        "edges.purge_of_what_one_consumer_wants",
        "delivered.stream_seq",
        "as above: the peer counts what was never sent as delivered",
    ),
    Intended(
        "refusals.snapshots_and_restores",
        "error",
        "an overlap with another stream is refused before the upload; the peer says so behind it",
        ("api:STREAM.RESTORE",),
    ),
    Intended(
        "refusals.snapshots_and_restores",
        "deliver_subject",
        "as above: there is none for what is refused",
    ),
    Intended(
        "refusals.restores_that_can_not_succeed",
        "error",
        "more replicas or bytes than there can be are refused before the upload; the peer says so"
        " behind it",
        ("api:STREAM.RESTORE",),
    ),
    Intended(
        "refusals.restores_that_can_not_succeed",
        "deliver_subject",
        "as above: there is none for what is refused",
    ),
    Intended(
        "publish.ttl_of_many_digits",
        "*",
        "seconds beyond 64 bits are refused; the peer takes what is left of the number",
        ("header:Nats-TTL",),
        step="publish s.wrapped",
    ),
    Intended("*", "api.level", "the peer is of a newer API level than ours", ("api:INFO",)),
]


def rule_of(difference: Difference) -> Intended | None:
    """The row of the table that allows this difference; None: it is not meant."""
    for intended in INTENDED:
        if (
            fnmatch.fnmatchcase(difference.scenario, intended.scenario)
            and fnmatch.fnmatchcase(difference.label, intended.step)
            and fnmatch.fnmatchcase(difference.path, intended.path)
        ):
            return intended
    return None


def reason(difference: Difference) -> str | None:
    """Why this difference is meant; None: it is not."""
    rule = rule_of(difference)
    return rule.reason if rule else None
