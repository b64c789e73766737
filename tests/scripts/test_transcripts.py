"""Replays `*.txt` here: commands to a raft group, and what every step printed.

A transcript is blocks of `command` lines, `----`, and the output up to an empty line. Lines that
start with `#` are kept. Commands: see `Script`, one method each.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from streamd.raft import replication
from streamd.raft.core import NotLeader, ProposalRejected
from streamd.raft.election import ROLE_NAMES
from tests.sim.mutants import broken
from tests.unit.raft.cluster import Cluster, Disk, label, show_members

FILES = sorted(Path(__file__).parent.glob("*.txt"))


class Script:
    """The commands of a transcript. Each prints what it caused."""

    def __init__(self) -> None:
        self.cluster = Cluster([])
        self.crashed: dict[str, Disk] = {}
        self.entries_per_append = replication.RAFT_APPEND_ENTRIES

    def command(self, line: str) -> list[str]:
        name, *args = line.split()
        self.cluster.trace.clear()
        try:
            with patch.object(replication, "RAFT_APPEND_ENTRIES", self.entries_per_append):
                printed: list[str] = getattr(self, f"do_{name}")(*args) or []
        except NotLeader as err:
            return [f"refused: {err}"]
        except ProposalRejected as err:
            return [f"refused: {err}"]
        return self.cluster.trace[:] + printed

    def do_cluster(self, *args: str) -> None:
        """cluster a b c +d: voters a b c, learner d; `?e` runs but is no member yet."""
        self.cluster = Cluster(
            [arg for arg in args if arg[0] not in "+?"],
            [arg[1:] for arg in args if arg[0] == "+"],
            extra=[arg[1:] for arg in args if arg[0] == "?"],
        )

    def do_entries(self, count: str) -> None:
        """entries 1: an append carries so many from now on."""
        self.entries_per_append = int(count)

    def do_campaign(self, node_id: str) -> None:
        self.cluster.campaign(node_id)

    def do_tick(self, by_ms: str) -> None:
        self.cluster.tick(int(by_ms))

    def do_freeze(self, ms: str, *node_ids: str) -> None:
        """freeze 1500 a: time passes, a did not run meanwhile and goes on now; no other ticks."""
        self.cluster.now_ms += int(ms)
        for node_id in node_ids:
            core = self.cluster.core(node_id)
            core.excuse_silence(self.cluster.now_ms)
            core.tick(self.cluster.now_ms)

    def do_wait(self, ms: str, step_ms: str = "50") -> list[str]:
        """Let time pass, all working; prints only the states in the end."""
        self.cluster.pass_time(int(ms), int(step_ms))
        self.cluster.trace.clear()
        return self.do_status()

    def do_run(self, *args: str) -> None:
        """Until nothing is left to do. `run quiet` prints no messages."""
        self.cluster.run(installs=False)
        if args:
            self.cluster.trace.clear()

    def do_take(self, node_id: str) -> list[str]:
        ready = self.cluster.take(node_id)
        if ready is None:
            return ["nothing"]
        lines = []
        if ready.truncate_from:
            lines.append(f"truncate from {ready.truncate_from}")
        if ready.entries:
            lines.append(
                "write " + " ".join(f"{e.term}/{e.index}:{label(e)}" for e in ready.entries)
            )
        if ready.hard_state is not None:
            lines.append(f"hard state term={ready.hard_state.term} vote={ready.hard_state.vote}")
        if ready.committed:
            lines.append("committed " + " ".join(f"{e.index}:{label(e)}" for e in ready.committed))
        lines.append(f"sends {len(ready.send_now)}")
        return lines

    def do_persist(self, node_id: str) -> None:
        self.cluster.persist(node_id)

    def do_deliver(self, pair: str = "") -> None:
        """All messages under way now, or those of one `a->b`."""
        wire = self.cluster.wire
        for sent in wire[:]:
            if not pair or f"{sent[0]}->{sent[1]}" == pair:
                self.cluster.deliver(next(i for i, x in enumerate(self.cluster.wire) if x is sent))

    def do_repeat(self, pair: str) -> list[str]:
        """Messages of a pair that are under way now will come twice."""
        copies = [sent for sent in self.cluster.wire if f"{sent[0]}->{sent[1]}" == pair]
        self.cluster.wire += copies
        return [f"repeated {len(copies)}"]

    def do_drop(self, pair: str) -> list[str]:
        wire = self.cluster.wire
        kept = [sent for sent in wire if f"{sent[0]}->{sent[1]}" != pair]
        count = len(wire) - len(kept)
        self.cluster.wire = kept
        return [f"dropped {count}"]

    def do_propose(self, node_id: str, *texts: str) -> None:
        for text in texts:
            self.cluster.core(node_id).propose(text.encode(), tag=text)

    def do_cut(self, *node_ids: str) -> None:
        self.cluster.cut(*node_ids)

    def do_cut_pair(self, a: str, b: str) -> None:
        """Only the link between these two."""
        self.cluster.cuts |= {(a, b), (b, a)}

    def do_heal(self) -> None:
        self.cluster.heal()

    def do_links(self) -> None:
        """From now on members are told which links are up: they rest, and notice the dead."""
        self.cluster.has_links = True
        self.cluster.tell_links()

    def do_wipe(self, node_id: str) -> None:
        """Comes back at once, with nothing on its disk."""
        self.cluster.wipe(node_id)

    def do_incomplete(self, node_id: str) -> None:
        """Its state is found damaged, its log is whole: it is opened again without."""
        self.cluster.damage(node_id)

    def do_crash(self, node_id: str) -> None:
        self.crashed[node_id] = self.cluster.crash(node_id)

    def do_restart(self, node_id: str) -> None:
        self.cluster.boot(node_id, self.crashed.pop(node_id))

    def do_transfer(self, node_id: str, to: str) -> None:
        self.cluster.core(node_id).transfer(to)

    def do_read(self, node_id: str, context: str) -> None:
        self.cluster.core(node_id).read_index(int(context))

    def do_reads(self, node_id: str) -> list[str]:
        states = self.cluster.members[node_id].read_states
        lines = [f"read {context} at {index}" for context, index in states]
        states.clear()
        return lines

    def do_change(self, node_id: str, *args: str) -> None:
        voters = [arg for arg in args if arg[0] != "+"]
        learners = [arg[1:] for arg in args if arg[0] == "+"]
        self.cluster.core(node_id).propose_membership(voters, learners)

    def do_members(self) -> list[str]:
        return [f"{n}: {show_members(m.core.members)}" for n, m in self.cluster.members.items()]

    def do_compact(self, node_id: str, index: str) -> None:
        self.cluster.compact(node_id, int(index))

    def do_install(self, node_id: str) -> None:
        self.cluster.install(node_id)

    def do_log(self, *node_ids: str) -> list[str]:
        lines = []
        for node_id in node_ids:
            core = self.cluster.core(node_id)
            log = core.log
            entries = log.slice(
                log.base_index + 1, last=log.last_index, max_entries=99, max_bytes=1 << 20
            )
            shown = " ".join(f"{e.term}/{e.index}:{label(e)}" for e in entries)
            lines.append(f"{node_id}: {shown}")
        return lines

    def do_outcomes(self, node_id: str) -> list[str]:
        return [" ".join(outcome) for outcome in self.cluster.members[node_id].outcomes]

    def do_status(self) -> list[str]:
        lines = []
        for node_id, member in self.cluster.members.items():
            core = member.core
            lines.append(
                f"{node_id}: {ROLE_NAMES[core.role]} term={core.term} leader={core.leader_id} "
                f"last={core.last_index} commit={core.commit} applied={core.applied}"
                + " uncertain" * core.is_uncertain
                + " incomplete" * core.is_incomplete
                + " quiet" * core.is_quiescent
            )
        return lines


def replay(text: str) -> str:
    """Run the commands of a transcript; return it with the outputs of this run."""
    script = Script()
    out: list[str] = []
    is_output = False
    commands: list[str] = []
    for line in [*text.splitlines(), ""]:
        if is_output:
            is_output = bool(line)
            continue
        if line == "----":
            out.append(line)
            for command in commands:
                out.extend(script.command(command))
            out.append("")
            commands.clear()
            is_output = True
        elif line and not line.startswith("#"):
            out.append(line)
            commands.append(line)
        elif line or (out and out[-1]):
            out.append(line)
    return "\n".join(out).rstrip("\n") + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript_replays(path: Path, request: pytest.FixtureRequest) -> None:
    """The same commands print the same messages and states as when the file was reviewed."""
    text = path.read_text()
    found = replay(text)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(found)
        return
    assert found == text


@pytest.mark.parametrize(
    ("variant", "stem"),
    [
        ("vote_not_logged", "election"),
        ("vote_counted_twice", "election"),
        ("old_terms_commit_by_count", "figure8"),
        ("two_majorities", "membership"),
        ("quiet_without_a_look", "quiesce"),
    ],
)
def test_a_broken_member_is_seen(variant: str, stem: str) -> None:
    """Variants of the server that hardly any simulated world comes to tell from the right one."""
    text = (Path(__file__).parent / f"{stem}.txt").read_text()
    with broken(variant):
        try:
            found = replay(text)
        except AssertionError:
            return  # the group checks its own promises
    assert found != text
