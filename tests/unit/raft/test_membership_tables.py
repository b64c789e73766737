"""The quorum and configuration-change tables: every small case, against the plain definition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, pairwise, product

import pytest

from streamd.raft.core import ProposalRejected
from streamd.raft.membership import Membership, simple
from tests.unit.raft.cluster import Cluster, show_members

# voters [| voters_out]; match of each member in order of name, "_": has nothing; committed index
COMMITTED = """
a           | 12          | 12
a           | _           | 0
ab          | 12 5        | 5
ab          | 12 _        | 0
abc         | 12 5 _      | 5
abc         | 12 5 6      | 6
abc         | 12 5 5      | 5
abc         | 100 101 103 | 101
abcd        | 1 2 3 4     | 2
abcd        | 100 100 _ _ | 0
abcde       | 1 2 3 4 5   | 3
abcde       | 1 1 3 _ _   | 1
ab|a        | 5 9         | 5
abc|abc     | 1 2 3       | 2
abc|bcd     | 9 8 2 1     | 2
abc|def     | 9 9 9 1 _ _ | 0
abc|def     | 9 9 9 4 5 _ | 4
abc|cde     | 7 7 7 8 _   | 7
abc|d       | 9 9 9 6     | 6
a|abc       | 3 9 9       | 3
a|abc       | 9 3 _       | 3
"""

# before; wanted voters +learners; what is appended; what follows ("" for simple changes)
CHANGES = """
a     ; ab         ; (a,b)              ;
a     ; a +b       ; (a+b)              ;
a+b   ; ab         ; (a,b)              ;
a+bc  ; abc        ; (a,b,c|a)          ; (a,b,c)
ab    ; a          ; (a)                ;
ab    ; b          ; (b)                ;
abc   ; ab         ; (a,b)              ;
abc   ; ab +c      ; (a,b+c)            ;
abc   ; abd        ; (a,b,d|a,b,c)      ; (a,b,d)
abc+d ; abd        ; (a,b,d|a,b,c)      ; (a,b,d)
abc+d ; abd +c     ; (a,b,d|a,b,c~c)    ; (a,b,d+c)
abc   ; abd +ce    ; (a,b,d|a,b,c+e~c)  ; (a,b,d+c,e)
abc   ; def        ; (d,e,f|a,b,c)      ; (d,e,f)
abc   ; a          ; (a|a,b,c)          ; (a)
abc   ; a +bc      ; (a|a,b,c~b,c)      ; (a+b,c)
a     ; abcde      ; (a,b,c,d,e|a)      ; (a,b,c,d,e)
abc   ; abc +d     ; (a,b,c+d)          ;
abc+d ; abc        ; (a,b,c)            ;
abc   ; abc +a     ; (a,b,c)            ;
abcde ; abfgh      ; (a,b,f,g,h|a,b,c,d,e) ; (a,b,f,g,h)
"""


def rows(table: str, separator: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.rsplit(separator, 2)]
        if separator == " | "
        else [cell.strip() for cell in line.split(separator)]
        for line in table.strip().splitlines()
    ]


def parsed(text: str) -> Membership:
    voters, _, learners = text.replace(" ", "").partition("+")
    return simple(voters, learners)


def subsets(names: str) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))


@pytest.mark.parametrize(("voters", "match", "index"), rows(COMMITTED, " | "))
def test_committed_index(voters: str, match: str, index: str) -> None:
    half, _, half_out = voters.partition("|")
    members = Membership(tuple(half), tuple(half_out))
    reached = [0 if cell == "_" else int(cell) for cell in match.split()]
    known = dict(zip(members.members(), reached, strict=True))
    assert members.quorum_index(known.__getitem__) == int(index)


@pytest.mark.parametrize(("before", "wanted", "appended", "last"), rows(CHANGES, ";"))
def test_change(before: str, wanted: str, appended: str, last: str) -> None:
    target = parsed(wanted)
    changed = parsed(before).changed_to(target.voters, target.learners)
    assert show_members(changed) == appended
    assert changed.is_joint == bool(last)
    if last:
        assert show_members(changed.left_joint()) == last


def test_majorities_by_definition() -> None:
    """All memberships of up to 4 names, joint ones too, against counting."""
    names = "abcd"
    for voters, voters_out in product(subsets(names), subsets(names)):
        if not voters:
            continue
        members = Membership(voters, voters_out)
        for holders in subsets(names):
            expected = all(
                2 * len(set(half) & set(holders)) > len(half)
                for half in (voters, voters_out)
                if half
            )
            assert members.has_quorum(holders.__contains__) == expected
            index = members.quorum_index({n: 7 if n in holders else 3 for n in names}.__getitem__)
            assert index == (7 if expected else 3)


def test_each_two_successive_memberships_decide_together() -> None:
    """Whatever changes into whatever: any two majorities of neighbours share a voter."""
    names = "abcd"
    for before, after in product(subsets(names), repeat=2):
        if not before or not after:
            continue
        path = [simple(before), simple(before).changed_to(after, set(before) - set(after))]
        if path[-1].is_joint:
            path.append(path[-1].left_joint())
        assert path[-1].voters == after
        assert set(path[-1].members()) == set(before) | set(after)
        for older, newer in pairwise(path):
            assert not set(newer.voters) & set(newer.learners)
            for holders in subsets(names):
                rest = [name for name in names if name not in holders]
                assert not (
                    older.has_quorum(holders.__contains__) and newer.has_quorum(rest.__contains__)
                ), (older, newer, holders)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_every_change_of_a_running_group_arrives(size: int) -> None:
    """From `size` voters to every other set of voters among five, with the rest as learners."""
    for wanted in subsets("abcde"):
        if not wanted:
            continue
        names = "abcde"
        cluster = Cluster(list(names[:size]), extra=list(names[size:]))
        cluster.elect("a")
        cluster.core("a").propose_membership("abcde"[:size], names[size:])
        cluster.run()
        cluster.core("a").propose_membership(wanted, set(names) - set(wanted))
        with pytest.raises(ProposalRejected):
            cluster.core("a").propose_membership(wanted)
        cluster.run()
        cluster.pass_time(8000, step_ms=100)
        leader = cluster.leader()
        assert leader is not None
        assert leader.members == simple(wanted, set(names) - set(wanted))
        leader.propose(b"x")
        cluster.run()
        assert {core.last_index for core in map(cluster.core, names)} == {leader.commit}
