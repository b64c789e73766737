"""Broken variants of counters, schedules, fast batches and lives; of dead letters, producers and
order by subject; of origins that come and go; and of archives: each kind is caught by worlds that
are about it (`plan`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd.api import stream_snapshots
from streamd.api.restores import Restores
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.indexes.seqset import SeqSet
from streamd.machine.streams.expiry import Expiry
from streamd.machine.streams.fast_batches import Answers, FastBatch, FastBatches, Row
from streamd.machine.streams.origins import Origins
from streamd.machine.streams.schedules import Schedules
from streamd.machine.streams.stream_consumers import StreamConsumers
from streamd.machine.streams.stream_storing import StreamStoring
from streamd.node.importing.origin_link import OriginLink
from streamd.node.importing.origin_requests import Made
from streamd.node.stream_groups.letter_sending import LetterSending
from streamd.node.stream_groups.stream_cut import StreamCut
from tests.sim import extensions, features
from tests.sim.plan import ARCHIVES, EXTENSIONS, FEATURES, ORIGINS

Replace = Callable[[Any, str, Any], None]
Mutant = Callable[[Replace], None]


# --- counters, schedules, fast batches, lives -----------------------------------------------------


def gaps_untold(replace: Replace) -> None:
    """A fast batch goes on behind a gap, and nobody hears of it."""
    admit = FastBatches.admit

    def silent(batches: FastBatches, row: Row, answers: Answers) -> FastBatch | None:
        found: Answers = []
        batch = admit(batches, row, found)
        answers += [each for each in found if '"gap"' not in str(each)]
        return batch

    replace(FastBatches, "admit", silent)


def fired_whatever_was_due(replace: Replace) -> None:
    """An entry that fires a schedule does so whatever the schedule's next time is by then."""
    apply = StreamStoring.apply_fire

    def hasty(storing: StreamStoring, entry: Any, command: Any, out: Any) -> int:
        for item in command[2]:
            due = storing._content.schedules.find(item[0])
            if due is not None:
                item[1], item[2] = due.seq, due.ns
        return apply(storing, entry, command, out)

    replace(StreamStoring, "apply_fire", hasty)


def some_schedules_are_never_due(replace: Replace) -> None:
    """Every replica forgets when one of three schedules is due."""
    note = Schedules.note

    def forgetful(schedules: Schedules, subject: bytes, seq: int, due_ns: int) -> None:
        if seq % 3:
            note(schedules, subject, seq, due_ns)

    replace(Schedules, "note", forgetful)


def expired_early(replace: Replace) -> None:
    """What has a life ends half a second before its time."""
    plan = Expiry.plan

    def hasty(expiry: Expiry, now_ns: int, limits: Any) -> Any:
        found = plan(expiry, now_ns + 500_000_000, limits)
        if found is not None:
            found[1] = now_ns
        return found

    replace(Expiry, "plan", hasty)


def lives_forgotten(replace: Replace) -> None:
    """A snapshot does not bring back which messages have lives of their own."""
    replace(Expiry, "load", lambda expiry, state: None)


def _of_patches(patches: list[features.Patch]) -> Mutant:
    def broken(replace: Replace) -> None:
        for owner, word, value in patches:
            replace(owner, word, value)

    return broken


# --- dead letters, producers, order by subject ----------------------------------------------------


def letters_of_earlier_leaders_stay(replace: Replace) -> None:
    """A new leader sends what is given up from now on."""
    poll = LetterSending.poll

    def forgetful(sending: LetterSending, turn: Any) -> None:
        if not sending._seen:
            sending._seen = sending._machine.content.letters.last_number
        poll(sending, turn)

    replace(LetterSending, "poll", forgetful)


def terminated_ones_get_no_letter(replace: Replace) -> None:
    """Only what was delivered too often gets a letter."""
    on_given_up = StreamConsumers.on_given_up

    def silent(consumers: StreamConsumers, consumer: Any, sseq: int, **more: Any) -> None:
        if more["reason"] is None:
            on_given_up(consumers, consumer, sseq, **more)

    replace(StreamConsumers, "on_given_up", silent)


def letters_of_the_next_message(replace: Replace) -> None:
    """A letter has the body of the message behind its own, if there is one."""
    message = LetterSending._message

    def confused(sending: LetterSending, letter: Any, lane: Any) -> Any:
        following = letter.sseq + 1
        if sending._machine.index.live.has(following):
            found = sending._reads.get(following)
            if found is not None:
                subject, headers, payload = found
                return sending._headers(letter, lane, subject, headers, None), payload
        return message(sending, letter, lane)

    replace(LetterSending, "_message", confused)


# --- origins --------------------------------------------------------------------------------------


def identity_ignored(replace: Replace) -> None:
    """The position in an origin holds for the next stream of its name as well."""

    def of(origins: Origins, name: str, identity: str) -> int:
        found = origins.positions.get(name)
        return found.seq if found is not None else 0

    replace(Origins, "of", of)


def queue_lets_go_what_it_sent(replace: Replace) -> None:
    """A work queue does not wait until a copy is stored: what was sent to it leaves."""
    deliver = Consumer.apply_delivered

    def hasty(consumer: Consumer, ts: int, items: Any) -> None:
        deliver(consumer, ts, items)
        if consumer.config.get("ack_policy") == "flow_control":
            consumer.apply_acked(ts, [consumer.delivered_sseq])

    replace(Consumer, "apply_delivered", hasty)


def recreated_ones_are_taken_from_now_on(replace: Replace) -> None:
    """A mirror whose origin was created anew passes over what that has by then."""
    begin, known = OriginLink._begin, dict[str, str]()

    def proud(link: OriginLink, made: Made) -> None:
        if link.origin.is_mirror:
            name = link.origin.source["name"]
            if known.setdefault(name, made.identity) != made.identity:
                link._taken += made.pending
            known[name] = made.identity
        begin(link, made)

    replace(OriginLink, "_begin", proud)


# --- archives -------------------------------------------------------------------------------------


def deleted_ones_in_the_archive(replace: Replace) -> None:
    """An archive has what was deleted and is still in the blocks."""
    init = StreamCut.__init__

    def greedy(cut: StreamCut, *arguments: Any, **more: Any) -> None:
        init(cut, *arguments, **more)
        cut._deleted = SeqSet()

    replace(StreamCut, "__init__", greedy)


def pending_not_archived(replace: Replace) -> None:
    """An archive does not say what a consumer has given and waits for."""
    archived = stream_snapshots._archived

    def hasty(consumers: Any) -> Any:
        return [each._replace(pending=[]) for each in archived(consumers)]

    replace(stream_snapshots, "_archived", hasty)


def abandoned_restores_stay(replace: Replace) -> None:
    """A stream that nobody restores any more stays neither whole nor gone."""
    replace(Restores, "sweep", lambda restores: None)


def _named(*mutants: Mutant) -> dict[str, Mutant]:
    return {mutant.__name__: mutant for mutant in mutants}


OF_WORLDS: dict[str, dict[str, Mutant]] = {
    FEATURES: _named(
        gaps_untold,
        fired_whatever_was_due,
        some_schedules_are_never_due,
        expired_early,
        lives_forgotten,
    )
    | {name: _of_patches(patches) for name, patches in features.MUTANTS.items()},
    EXTENSIONS: _named(
        letters_of_earlier_leaders_stay,
        terminated_ones_get_no_letter,
        letters_of_the_next_message,
    )
    | {
        name: _of_patches(patches)
        for variants in (extensions.PRODUCED, extensions.LETTERED, extensions.ORDERED)
        for name, patches in variants.items()
        if name != "letters_stored_again"  # the same as stored_again
    },
    ORIGINS: _named(
        identity_ignored, queue_lets_go_what_it_sent, recreated_ones_are_taken_from_now_on
    ),
    ARCHIVES: _named(deleted_ones_in_the_archive, pending_not_archived, abandoned_restores_stay),
}
"""Variants by what the worlds are about that catch them."""
FEATURED: dict[str, Mutant] = {
    name: mutant for mutants in OF_WORLDS.values() for name, mutant in mutants.items()
}
