"""With very many consumers only those are woken whom something concerns; none is forgotten."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from streamd.machine import commands
from streamd.node.delivery.cursor import Cursor
from streamd.node.groups import inbox
from streamd.node.stream_groups import delivery_hub, stream_inbox
from tests.sim.crash import Inbox
from tests.unit.node.test_refused_proposals import Leader

FILTERS = ["s.1", "s.2", "s.3", "s.*", "s.1.>", "s.*.x", ">", "s.2.y"]
SUBJECTS = [b"s.1", b"s.2", b"s.3", b"s.1.x", b"s.2.y", b"s.1.y"]
COUNT = 24


def create(leader: Leader, name: str, **config: Any) -> None:
    whole = {
        "durable_name": name, "deliver_policy": "all", "ack_policy": "explicit",
        "ack_wait": 30 * 10**9, "max_ack_pending": 1000,
    } | config  # fmt: skip
    leader.propose([commands.CREATE_CONSUMER, leader.clock.now_ns(), name, whole, "", False])


def publish(leader: Leader, *subjects: bytes, headers: bytes = b"") -> None:
    class Sink:
        def publish_acks(self, stream: bytes, replies: Any, outcomes: Any) -> None:
            """Nobody looks."""

    msgs = [(subject, headers, b"x") for subject in subjects]
    leader.post(stream_inbox.Publish(msgs, [b""] * len(msgs), Sink()))


def pull(leader: Leader, name: str, batch: int = 1000) -> None:
    wanted = b'{"batch":%d,"expires":600000000000}' % batch
    leader.post(stream_inbox.Pull(name.encode(), b"inbox." + name.encode(), b"", wanted))


def got(leader: Leader) -> dict[str, list[str]]:
    """Per consumer the seqs it was sent, in order, with how often each had been."""
    found = defaultdict(list)
    for _, reply, *_ in leader.wires.delivered:
        tokens = reply.decode().split(".")
        found[tokens[3]].append(f"{tokens[5]}/{tokens[4]}")
    return found


@pytest.mark.parametrize("seed", range(8))
def test_each_gets_what_it_would_get_if_all_were_woken(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for few in (0, 1 << 30):
        monkeypatch.setattr(delivery_hub, "_FEW_CURSORS", few)
        rng = random.Random(seed)
        config = {"retention": rng.choice(["limits", "limits", "interest"])}
        limits = {"max_msgs_per_subject": rng.choice([-1, -1, 2]), "max_msgs": rng.choice([-1, 9])}
        leader = Leader(**config, **limits, allow_msg_ttl=True, subject_delete_marker_ttl=10**10)
        names = [f"c{number}" for number in range(COUNT)]
        for name in names:
            most = rng.choice([1, 2, 1000])
            create(leader, name, filter_subject=rng.choice(FILTERS), max_ack_pending=most)
            if rng.random() < 0.9:
                pull(leader, name)
        for _ in range(60):
            kind = rng.random()
            last = leader.machine.index.last_seq
            if kind < 0.5:
                publish(leader, *rng.choices(SUBJECTS, k=rng.choice((1, 1, 4))))
            elif kind < 0.55:
                publish(leader, rng.choice(SUBJECTS), headers=b"NATS/1.0\r\nNats-TTL: 1s\r\n\r\n")
            elif kind < 0.6:
                leader.pass_time(1001)
            elif kind < 0.7:
                leader.propose([commands.DELETE_MSG, 1, rng.randint(1, last + 1), False])
            elif kind < 0.75:
                pattern = rng.choice(FILTERS).encode()
                leader.propose([commands.PURGE, 1, pattern, 0, rng.randrange(3)])
            elif kind < 0.8:
                create(leader, rng.choice(names), filter_subject=rng.choice(FILTERS))
            elif kind < 0.85:
                pull(leader, rng.choice(names), rng.randint(1, 3))
            else:
                name = rng.choice(names)
                sent = got(leader)[name]
                if sent:
                    seq = rng.choice(sent).split("/")[0].encode()
                    subject = b"$JS.ACK.S.%b.1.%b.1.1.0" % (name.encode(), seq)
                    leader.post(stream_inbox.Acks([subject], None, [b"+ACK"]))
                    leader.pass_time(20)
        leader.pass_time(100)
        assert not leader.node.errors
        found.append((got(leader), leader.machine.digest))
    assert found[0] == found[1]
    assert sum(map(len, found[0][0].values())) > 100


def test_the_end_of_a_pause_does_not_end_the_next() -> None:
    """A client pauses the consumer anew at the moment at which its pause is over: the leader's word
    that it is over comes behind the client's in the log, and undid it."""
    leader = Leader()
    create(leader, "c")
    now_ns = leader.clock.now_ns()
    leader.propose([commands.PAUSE_CONSUMER, now_ns, "c", now_ns + 10**9])
    leader.clock.ms += 1000
    until_ns = now_ns + 60 * 10**9
    again = [commands.PAUSE_CONSUMER, leader.clock.now_ns(), "c", until_ns]
    leader.post(inbox.Propose(again, lambda outcome: None, True))
    leader.pass_time(20)
    assert leader.machine.consumers["c"].paused_until_ns == until_ns
    publish(leader, b"s.1")
    pull(leader, "c")
    assert got(leader) == {}
    leader.pass_time(60_000)
    assert leader.machine.consumers["c"].paused_until_ns == 0
    assert got(leader) == {"c": ["1/1"]}


def test_a_message_wakes_those_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader()
    planned: list[str] = []
    plan = Cursor.plan

    def note(cursor: Any, budget: int) -> bool:
        planned.append(cursor.consumer.name)
        return plan(cursor, budget)

    for number in range(100):
        create(leader, f"c{number}", filter_subject=f"s.{number}")
        pull(leader, f"c{number}")
    monkeypatch.setattr(Cursor, "plan", note)
    publish(leader, b"s.7")
    assert set(planned) == {"c7"}
    assert got(leader) == {"c7": ["1/1"]}


def test_a_request_looks_at_the_consumers_that_have_something_for_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With ten thousand consumers each request would take milliseconds, and so would a thousand of
    them in one turn each."""
    leader = Leader()
    for number in range(COUNT):
        create(leader, f"c{number}", filter_subject="s.1", ack_policy="none")
    create(leader, "acks", filter_subject="s.2")
    publish(leader, b"s.1", b"s.2")
    pull(leader, "c7")
    pull(leader, "acks")
    flushed: list[str] = []
    flush, synced = Cursor.flush, []

    def counted(self: Cursor) -> None:
        flushed.append(self.consumer.name)
        flush(self)

    monkeypatch.setattr(Cursor, "flush", counted)
    monkeypatch.setattr(delivery_hub.DeliveryHub, "sync", synced.append)
    infos: list[Any] = []

    def asked() -> None:
        infos.append(leader.machine.consumers["c7"].info())

    def lost() -> None:
        """Nobody else leads."""

    leader.post(inbox.ReadBarrier(asked, lost))
    assert infos[0]["delivered"]["stream_seq"] == 1
    assert flushed == ["c7"]
    create(leader, "late", filter_subject="s.1")
    create(leader, "late", filter_subject="s.3")
    pull(leader, "late")
    publish(leader, b"s.3")
    assert got(leader)["late"] == ["3/1"]
    gone = [commands.DELETE_CONSUMER, leader.clock.now_ns(), "late", 0, ""]
    leader.propose(gone)
    publish(leader, b"s.3")
    pull(leader, "late")
    create(leader, "late", filter_subject="s.3")
    pull(leader, "late")
    assert got(leader)["late"] == ["3/1", "3/1", "4/1"]
    assert set(flushed) <= {"c7", "late"} and not synced


def test_deliveries_of_all_cursors_in_a_turn_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand consumers and as many messages at once would hold the loop for seconds."""
    leader = Leader()
    names = [f"c{number}" for number in range(COUNT)]
    for name in names:
        create(leader, name, filter_subject="s.*")
        pull(leader, name)
    monkeypatch.setattr(delivery_hub.limits, "DELIVER_TURN_MSGS", 100)
    monkeypatch.setattr(delivery_hub.limits, "DELIVER_BUDGET_MSGS", 50)
    group, delivered = leader.node.group, leader.wires.delivered
    deliver, sent = group.deliver, []

    def counted() -> bool:
        before = len(delivered)
        is_more = bool(deliver())
        sent.append(len(delivered) - before)
        return is_more

    monkeypatch.setattr(group, "deliver", counted)
    publish(leader, *[b"s.1"] * 60)
    assert not leader.node.errors
    assert max(sent) < 150, sent
    first = [reply.split(b".")[3].decode() for _, reply, *_ in delivered[: 50 * COUNT]]
    assert list(dict.fromkeys(first)) == names  # each has its first share before others a second
    assert got(leader) == {name: [f"{seq}/1" for seq in range(1, 61)] for name in names}


def test_a_client_that_reads_again_wakes_those_that_waited_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any client that reads much at once is congested many times a second, and so may thousands be
    together: what that costs must not follow how many streams and consumers there are."""
    leader = Leader()
    for number in range(COUNT):
        create(leader, f"c{number}", filter_subject=f"s.{number}")
        pull(leader, f"c{number}")
    waiting: list[Any] = []
    planned: list[str] = []
    plan = Cursor.plan
    is_full = True

    def note(cursor: Any, budget: int) -> bool:
        planned.append(cursor.consumer.name)
        return plan(cursor, budget)

    monkeypatch.setattr(Inbox, "is_congested", lambda inbox: is_full)
    monkeypatch.setattr(leader.wires, "when_drained", waiting.append, raising=False)
    publish(leader, b"s.7", b"s.9")
    assert len(waiting) == 1 and not got(leader)
    is_full = False
    monkeypatch.setattr(Cursor, "plan", note)
    waiting.pop()()
    leader.node.settle()
    assert sorted(planned) == ["c7", "c9"]
    assert got(leader) == {"c7": ["1/1"], "c9": ["2/1"]}
    assert not waiting
