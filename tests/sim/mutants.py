"""Broken variants of the server: each must be caught by the simulator, or the simulator is blind.

    python -m tests.sim.mutants [NAME ...] [--seeds N] [--first-seed S]

A variant wraps or replaces functions of the real classes while seeds run, and puts them back. What
it does wrong is its docstring.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from streamd.limits import LEARNER_LAG_ENTRIES
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.indexes.index import StreamIndex
from streamd.machine.streams.dedupe import DedupeWindow
from streamd.node.cluster import reconfiguration, reconfiguration_steps
from streamd.node.cluster.reconfiguration import Reconfiguration
from streamd.node.delivery.redelivery import Redelivery
from streamd.node.groups import snapshot_state
from streamd.node.groups.group import Group
from streamd.node.groups.raft_members import RaftMembers
from streamd.node.groups.snapshot_writers import StreamSnapshots
from streamd.node.integrity.discarded_entries import DiscardedEntries
from streamd.raft import election, membership
from streamd.raft.core import MemberStart, RaftCore
from streamd.raft.election import Ballot
from streamd.raft.follower import Follower
from streamd.raft.log import next_chain
from streamd.raft.membership import Membership
from streamd.raft.messages import Append, AppendReply, Quiesce
from streamd.raft.ready import Ready
from streamd.raft.replication import Replication
from streamd.store.blocks.block import BlockFiles
from streamd.store.wal.wal_recovery import _SegmentScan
from streamd.store.wal.write_ahead_log import Wal
from streamd.types import NodeId
from tests.sim import growth
from tests.sim.disk import SimDisk
from tests.sim.faults import DirectedWorld
from tests.sim.mutants_copies import COPIED
from tests.sim.mutants_features import FEATURED, OF_WORLDS
from tests.sim.mutants_varied import VARIED

SEEDS_MAX = 500  # within as many each variant must be caught

Replace = Callable[[Any, str, Any], None]


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Have the server broken in this way."""
    undo: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, attribute: str, value: Any) -> None:
        undo.append((owner, attribute, owner.__dict__[attribute]))
        setattr(owner, attribute, value)

    (MUTANTS | _RARE | VARIED | TAILED | COPIED | FEATURED)[name](replace)
    try:
        yield
    finally:
        for owner, attribute, value in reversed(undo):
            setattr(owner, attribute, value)


# --- what a leader does not have ----------------------------------------------------------------


def tail_dropped(replace: Replace) -> None:
    """Entries that a leader does not have are cut off, whatever they were."""
    replace(DiscardedEntries, "concerns", lambda tails, uid, first: False)


def tail_dropped_at_install(replace: Replace) -> None:
    """A snapshot takes the place of a log that does not lead to it."""
    replace(DiscardedEntries, "check_before_install", lambda tails, uid: lambda index, terms: True)


def log_without_hints(replace: Replace) -> None:
    """The log does not say how far a group was committed, and who led is not remembered."""
    replace(DiscardedEntries, "_commit_of", lambda tails, uid: 0)
    replace(DiscardedEntries, "record_start", lambda tails, raft: None)


def tail_not_told(replace: Replace) -> None:
    """Entries are set aside, and nobody hears of it."""
    replace(DiscardedEntries, "_tell", lambda tails, tail: None)


# --- the log --------------------------------------------------------------------------------------


def ack_before_fsync(replace: Replace) -> None:
    """The log reports an append durable as soon as it has taken it."""
    append = Wal.append

    def early(wal: Wal, writes: Any, done: Callable[[], None]) -> None:
        append(wal, writes, lambda: None)
        done()

    replace(Wal, "append", early)


def fsync_left_out(replace: Replace) -> None:
    """The log is written and never synced."""
    sync = SimDisk.fdatasync

    def lazy(disk: SimDisk, fd: int) -> None:
        if not disk._paths[fd].endswith(".wal"):
            sync(disk, fd)

    replace(SimDisk, "fdatasync", lazy)


def directory_sync_left_out(replace: Replace) -> None:
    """New names are never made durable."""
    replace(SimDisk, "sync_dir", lambda disk, path: None)


def vote_not_logged(replace: Replace) -> None:
    """The term is logged, the vote in it is not."""
    write = RaftCore._write

    def forgetful(core: RaftCore, ready: Ready) -> None:
        write(core, ready)
        if ready.hard_state is not None:
            ready.hard_state = ready.hard_state._replace(vote="")

    replace(RaftCore, "_write", forgetful)


def follower_acks_early(replace: Replace) -> None:
    """A follower acknowledges entries before they are on its disk."""
    on_append = Follower.on_append

    def eager(follower: Follower, sender: str, append: Append) -> None:
        on_append(follower, sender, append)
        outbox = follower._outbox
        for row in [row for row in outbox.held if type(row[1]) is AppendReply]:
            outbox.held.remove(row)
            outbox.send_now.append(row)

    _handle(replace, Append, eager)


def leader_counts_itself_early(replace: Replace) -> None:
    """The leader counts its own copy of an entry before that is on its disk."""
    match_of = Replication._match_of

    def eager(replication: Replication, node_id: str) -> int:
        if node_id == replication.node_id:
            return replication.log.last_index
        index: int = match_of(replication, node_id)
        return index

    replace(Replication, "_match_of", eager)


def log_cut_at_damage(replace: Replace) -> None:
    """A damaged batch is taken for the torn end of the log, whatever was durable behind it."""
    replace(_SegmentScan, "_problem", lambda scan, *place: "")


# --- elections ------------------------------------------------------------------------------------


def votes_twice(replace: Replace) -> None:
    """A member grants every vote it is asked for in a term."""
    replace(election, "may_vote", lambda vote, sender, **rest: True)


def vote_counted_twice(replace: Replace) -> None:
    """A candidate counts a vote again when the network brings it twice."""
    record, is_won = Ballot.record, Ballot.is_won

    def again(ballot: Ballot, node_id: str, *, is_granted: bool, **rest: Any) -> None:
        while is_granted and node_id in ballot._granted:
            node_id += " again"
        record(ballot, node_id, is_granted=is_granted, **rest)

    def counted(ballot: Ballot, members: Membership) -> bool:
        return len(ballot._granted) > len(members.voters) // 2 or is_won(ballot, members)

    replace(Ballot, "record", again)
    replace(Ballot, "is_won", counted)


def short_log_may_lead(replace: Replace) -> None:
    """Votes are granted whatever the candidate's log lacks."""
    replace(election, "is_up_to_date", lambda vote, **rest: True)


def one_vote_too_few(replace: Replace) -> None:
    """Half of the voters, rounded down, counts as a majority."""

    def half(voters: tuple[str, ...], holds: Callable[[str], bool], needed: int) -> bool:
        return sum(1 for node_id in voters if holds(node_id)) >= max(1, len(voters) // 2)

    replace(membership, "_has_majority", half)


def amnesiac_votes(replace: Replace) -> None:
    """A member that lost its disk takes itself for one that remembers all."""
    init = RaftCore.__init__

    def certain(core: RaftCore, start: MemberStart) -> None:
        init(core, dataclasses.replace(start, is_uncertain=False))

    replace(RaftCore, "__init__", certain)


def dead_leader_not_noticed(replace: Replace) -> None:
    """A quiet follower does not notice that its leader is gone."""
    replace(RaftCore, "peer_down", lambda core, node_id: None)


# --- commit ---------------------------------------------------------------------------------------


def one_copy_too_few(replace: Replace) -> None:
    """An entry counts as committed with one copy less than a majority."""

    def lower(voters: tuple[str, ...], match: Callable[[str], int], needed: int) -> int:
        return sorted(map(match, voters), reverse=True)[max(0, len(voters) // 2 - 1)]

    replace(membership, "_majority_index", lower)


def old_terms_commit_by_count(replace: Replace) -> None:
    """A leader commits entries of earlier terms by counting copies (figure 8)."""
    init = Replication.__init__

    def from_the_start(replication: Replication, **arguments: Any) -> None:
        init(replication, **arguments)
        replication.term_start = 0

    replace(Replication, "__init__", from_the_start)


def commits_what_it_has(replace: Replace) -> None:
    """A follower commits up to the leader's commit, also entries the append did not confirm."""
    on_append = Follower.on_append

    def generous(follower: Follower, sender: str, append: Append) -> None:
        on_append(follower, sender, append)
        if not follower._recovery.has_diverged:
            follower._commit_to(min(append.commit, follower._log.last_index))

    _handle(replace, Append, generous)


def conflict_kept(replace: Replace) -> None:
    """A follower keeps its own entry where the leader has another."""

    def stubborn(follower: Follower, sender: str, append: Append) -> bool:
        log = follower._log
        for entry in append.entries:
            if entry.index == log.last_index + 1:
                chain = next_chain(log.last_chain, entry.term, entry.index, entry.data)
                entry.chain = chain
                log.append(entry)
        follower._members_changed()
        return True

    replace(Follower, "_append_foreign", stubborn)


def two_majorities(replace: Replace) -> None:
    """Members are replaced without a joint phase."""

    def at_once(self: Membership, voters: Any, learners: Any) -> Membership:
        return membership.simple(voters, learners)

    replace(Membership, "changed_to", at_once)


# --- state ----------------------------------------------------------------------------------------


def stale_reads(replace: Replace) -> None:
    """A leader answers reads without asking whether it still leads."""

    def at_once(group: Group, done: Callable[[], None], lost: Callable[[], None]) -> None:
        group._reads._barriers.append((group.machine.applied, done, lost))

    replace(Group, "_begin_read", at_once)


def snapshot_index_too_high(replace: Replace) -> None:
    """A snapshot claims an entry that it does not contain."""
    save = StreamSnapshots.save

    def boastful(writer: StreamSnapshots, group: Group, *, index: int, **rest: Any) -> None:
        machine: Any = group.machine
        freeze = machine.freeze

        def before() -> Callable[[], bytes]:
            machine.applied -= 1
            try:
                state: Callable[[], bytes] = freeze()
                return state
            finally:
                machine.applied += 1

        machine.freeze = before
        try:
            save(writer, group, index=index, **rest)
        finally:
            del machine.freeze

    replace(StreamSnapshots, "save", boastful)


def snapshot_of_the_log_at_stop(replace: Replace) -> None:
    """The snapshot taken when a node stops says that it covers the whole log, applied or not."""
    save = StreamSnapshots.save

    def late(
        writer: StreamSnapshots, group: Group, *, index: int, is_last: bool, **rest: Any
    ) -> None:
        if is_last:
            index = group.raft.last_index
        save(writer, group, index=index, is_last=is_last, **rest)

    replace(StreamSnapshots, "save", late)


def log_released_early(replace: Replace) -> None:
    """The log lets go of entries before the snapshot that holds them is durable."""
    save = StreamSnapshots.save

    def hasty(
        writer: StreamSnapshots, group: Group, *, done: Callable[[], None], **rest: Any
    ) -> None:
        save(writer, group, done=lambda: None, **rest)
        done()

    replace(StreamSnapshots, "save", hasty)


def blocks_not_synced(replace: Replace) -> None:
    """A snapshot is saved before the blocks it rests on are durable."""
    sync = SimDisk.fdatasync

    def lazy(disk: SimDisk, fd: int) -> None:
        if not disk._paths[fd].endswith(".blk"):
            sync(disk, fd)

    replace(SimDisk, "fdatasync", lazy)


def lost_is_deleted(replace: Replace) -> None:
    """A replica whose files were lost goes on as if what they held had been deleted."""
    core = RaftMembers._core

    def whole(rafts: RaftMembers, *start: Any, **doubts: Any) -> RaftCore:
        made: RaftCore = core(rafts, *start, **doubts | {"is_incomplete": False})
        return made

    replace(RaftMembers, "_core", whole)


def seqs_used_again(replace: Replace) -> None:
    """After a restart a stream goes on after the last message it has, not after its last seq."""
    load = StreamIndex.load

    def live_only(index: StreamIndex, *state: Any) -> None:
        load(index, *state)
        while index.last_seq and index.locations.locate(index.last_seq) is None:
            index.live.last_seq -= 1

    replace(StreamIndex, "load", live_only)


def consumer_ahead(replace: Replace) -> None:
    """After a restart a consumer has delivered more than its stream has."""
    from_state = Consumer.from_state

    def ahead(state: Any, machine: Any) -> Consumer:
        consumer = from_state(state, machine)
        consumer.delivered_sseq = max(consumer.delivered_sseq, machine.index.last_seq + 5)
        return consumer

    replace(Consumer, "from_state", staticmethod(ahead))


def ids_forgotten_at_restart(replace: Replace) -> None:
    """Message ids are not in the snapshot."""
    replace(DedupeWindow, "load", lambda window, state: None)


def ids_ignored(replace: Replace) -> None:
    """A message with an id that was seen is stored again."""
    replace(DedupeWindow, "find", lambda window, msg_id: 0)


def uncertain_acks_count(replace: Replace) -> None:
    """What an uncertain member acknowledges counts like everybody's."""
    replace(Replication, "_match_of", _match_of_anybody)


def _match_of_anybody(replication: Replication, node_id: str) -> int:
    if node_id == replication.node_id:
        return replication.log.stable
    peer = replication.peers.get(node_id)
    return peer.match if peer is not None else 0


def certified_unseen(replace: Replace) -> None:
    """A member that lost its disk says at its start that it is certain after all."""
    write = RaftCore._write

    def certain(core: RaftCore, ready: Ready) -> None:
        core._recovery.is_uncertain = False
        write(core, ready)

    replace(RaftCore, "_write", certain)


def quiet_without_a_look(replace: Replace) -> None:
    """A follower goes quiet without having what the leader has."""

    def trusting(follower: Follower, sender: str, message: Quiesce) -> None:
        follower._clock.is_quiescent = True
        follower._clock.deadline_ms = 0

    _handle(replace, Quiesce, trusting)


def members_not_in_snapshot(replace: Replace) -> None:
    """After a restart from a snapshot a group has the members it began with."""
    from streamd.node.replicas import replica_recovery

    unwrap = snapshot_state.unwrap
    replace(replica_recovery, "unwrap", lambda blob: (None, unwrap(blob)[1]))


def timers_forgotten(replace: Replace) -> None:
    """Who leads next does not give again what was given before its time."""
    replace(Redelivery, "restore", lambda redelivery, *, now_ns, now_ms: None)


def refused_is_acked(replace: Replace) -> None:
    """A consumer takes a -NAK for an ack, on all replicas."""

    def naked(consumer: Consumer, ts: int, items: Any, out: Any = None) -> None:
        consumer.apply_acked(ts, [seq for seq, _ in items], out)

    replace(Consumer, "apply_naked", naked)


def failed_writes_forgotten(replace: Replace) -> None:
    """A write of blocks that failed is taken for one that did not."""
    write = BlockFiles.write

    def careless(files: BlockFiles, writes: Any, **how: Any) -> None:
        with suppress(OSError):
            write(files, writes, **how)

    replace(BlockFiles, "write", careless)


def _handle(replace: Replace, message: type, handler: Any) -> None:
    from streamd.raft import core

    handlers = dict(core._FROM_LEADER)
    handlers[message] = handler
    replace(core, "_FROM_LEADER", handlers)


# --- growth ---------------------------------------------------------------------------------------


def all_new_replicas_at_once(replace: Replace) -> None:
    """A learner that has caught up waits for all others before it votes."""
    step = reconfiguration_steps.next_membership

    def patient(raft: RaftCore, wanted: tuple[NodeId, ...], **options: bool) -> Any:
        missing = set(wanted) - set(raft.members.voters)
        are_known = missing <= set(raft.members.learners)
        if are_known and not all(raft.is_close(name, LEARNER_LAG_ENTRIES) for name in missing):
            return None
        return step(raft, wanted, **options)

    replace(reconfiguration, "next_membership", patient)


def learners_are_current(replace: Replace) -> None:
    """Whoever has caught up is called current, with a vote or without."""
    replace(RaftCore, "has_vote", lambda core, name: name in core.members.members())


def joint_votes_are_current(replace: Replace) -> None:
    """A new voter is called current while no leader is elected without the old ones."""
    replace(RaftCore, "has_vote", lambda core, name: core.members.is_voter(name))


def stops_as_only_voter(replace: Replace) -> None:
    """A leader that is told to stop leaves although only learners stay."""
    replace(Reconfiguration, "is_under_way", lambda moves, uid: False)


def _named(*mutants: Callable[[Replace], None]) -> dict[str, Callable[[Replace], None]]:
    return {mutant.__name__: mutant for mutant in mutants}


MUTANTS = _named(
    ack_before_fsync, fsync_left_out, directory_sync_left_out, follower_acks_early,
    votes_twice, short_log_may_lead, one_vote_too_few, amnesiac_votes,
    one_copy_too_few, commits_what_it_has, conflict_kept, snapshot_index_too_high,
    log_released_early, blocks_not_synced, snapshot_of_the_log_at_stop, lost_is_deleted,
    consumer_ahead, ids_forgotten_at_restart, ids_ignored, timers_forgotten, refused_is_acked,
)  # fmt: skip
# Of worlds in which what was acknowledged is lost: `tests/sim/tails.py`.
TAILED = _named(tail_dropped, tail_dropped_at_install, log_without_hints, tail_not_told)
# These need a rare meeting of faults, and so a world that has little else. Those that no seed told
# so far have no `caught_by`: tests/scripts and test_reads.py catch them.
_RARE = _named(
    vote_not_logged, leader_counts_itself_early, old_terms_commit_by_count, two_majorities,
    stale_reads, dead_leader_not_noticed, uncertain_acks_count, quiet_without_a_look,
    members_not_in_snapshot, certified_unseen, log_cut_at_damage, seqs_used_again,
    vote_counted_twice, failed_writes_forgotten, all_new_replicas_at_once, learners_are_current,
    joint_votes_are_current, stops_as_only_voter,
)  # fmt: skip
_GROWING: dict[str, Any] = {
    "pace": 0.5, "actions": (("resize", 2.0),), "is_growing": True, "is_varied": True,
}  # fmt: skip
RARE: dict[str, DirectedWorld] = {
    "vote_not_logged": DirectedWorld(
        ("kill", "bad network", "step-down"), pace=0.08, rest_ms=(1, 20)
    ),
    "leader_counts_itself_early": DirectedWorld(
        ("power loss of all", "slow disk", "isolated node", "power loss"), pace=0.15,
        caught_by=3,
    ),
    "old_terms_commit_by_count": DirectedWorld(
        ("cut-off node", "kill", "one-way partition"), pace=0.1,
        rest_ms=(1, 60),
    ),
    "two_majorities": DirectedWorld(
        ("membership change", "cut-off node", "partition"), pace=0.1, node_count=5
    ),
    "stale_reads": DirectedWorld(("cut-off node",), pace=0.3),
    "dead_leader_not_noticed": DirectedWorld(
        ("kill", "power loss", "stop"), pace=0.5, caught_by=4
    ),
    "uncertain_acks_count": DirectedWorld(
        ("wipe", "log removed", "partition", "power loss"), pace=0.15, caught_by=4
    ),
    "quiet_without_a_look": DirectedWorld(("bad network", "broken connection"), pace=0.3),
    "members_not_in_snapshot": DirectedWorld(
        ("membership change", "power loss", "stop"), pace=0.3, caught_by=14
    ),
    "log_cut_at_damage": DirectedWorld(
        ("log rot", "kill", "power loss"), pace=0.12, rest_ms=(5, 200), caught_by=89
    ),
    "vote_counted_twice": DirectedWorld(
        ("partition", "bad network", "kill"), pace=0.08, node_count=5, rest_ms=(1, 60)
    ),
    "seqs_used_again": DirectedWorld(
        ("stop", "power loss of all", "kill"), pace=0.15, rest_ms=(5, 200), caught_by=5
    ),
    "failed_writes_forgotten": DirectedWorld(
        ("blocks' disk fails", "kill"), pace=0.3, node_count=3, has_two_disks=True, caught_by=15
    ),
    "all_new_replicas_at_once": DirectedWorld(
        (growth.REPLICA_LOST,), node_count=3, caught_by=1, **_GROWING
    ),
    "learners_are_current": DirectedWorld(
        (growth.LEADER_LOST,), node_count=3, caught_by=26, **_GROWING
    ),
    "joint_votes_are_current": DirectedWorld(
        (growth.LEADER_LOST,), node_count=3, caught_by=26, **_GROWING
    ),
    "stops_as_only_voter": DirectedWorld(
        (growth.LEADER_STOPPED,), node_count=3, caught_by=9, **_GROWING
    ),
    "certified_unseen": DirectedWorld(
        ("wipe", "log removed", "kill", "isolated node"), pace=0.12, rest_ms=(1, 60),
        caught_by=1,
    ),
}  # fmt: skip


def hunt(
    name: str,
    *,
    first_seed: int = 1,
    seeds: int = SEEDS_MAX,
    world: DirectedWorld | None = None,
) -> tuple[int, str]:
    """Return the first seed that catches a variant, and what it saw; (0, "") if none does."""
    from tests.sim.__main__ import RUN, run_copies_seed, run_seed, run_tails_seed

    about = next((about for about, mutants in OF_WORLDS.items() if name in mutants), "")
    with broken(name):
        for seed in range(first_seed, first_seed + seeds):
            if name in TAILED:
                outcome = run_tails_seed(seed)
            elif name in COPIED:
                outcome = run_copies_seed(seed)
            elif about:
                outcome = RUN[about](seed)
            else:
                outcome = run_seed(seed, world=world, is_varied=name in VARIED)
            if outcome.violation:
                return seed, outcome.violation.split("\n")[0]
    return 0, ""


def main() -> int:
    """Hunt each variant; the exit code is 1 if one gets away."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX)
    parser.add_argument("--first-seed", type=int, default=1)
    args = parser.parse_args()
    escaped = 0
    names = args.names or [*MUTANTS, *VARIED, *TAILED, *COPIED, *FEATURED]
    for name in names:
        world = RARE.get(name)
        seed, text = hunt(name, first_seed=args.first_seed, seeds=args.seeds, world=world)
        escaped += not seed
        print(f"{name:32} {f'seed {seed}: {text[:150]}' if seed else 'ESCAPED'}", flush=True)
    print(f"{len(names)} variants, {escaped} escaped")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
