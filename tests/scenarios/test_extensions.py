"""Dead letters and order by subject on three nodes, while their leaders change and die."""

from __future__ import annotations

from collections import Counter

from streamd.machine.message_headers import get
from streamd.types import NodeId
from tests.scenarios.driver import Cluster, Delivery, _delivery


def answer(cluster: Cluster, delivered: list[Delivery], verb: bytes, stream: str) -> None:
    """Answer deliveries, at a node that runs, and wait for none."""
    where = cluster.running()[0]
    handle = cluster.node(where).stream(stream)
    if handle is not None and delivered:
        subjects = [each.ack for each in delivered]
        cluster.process(where).run(handle.acks, subjects, None, [verb] * len(subjects))


def pull(cluster: Cluster, batch: int, stream: str) -> list[Delivery]:
    """Pull, and take what comes: the leader, or the node of the client, may be gone."""
    request = {"batch": batch, "expires": 200 * 10**6}
    reply = cluster.send(f"CONSUMER.MSG.NEXT.{stream}.C", request)
    cluster.run_ms(300)
    rows = [row for row in cluster.received(reply) if row[1].startswith(b"$JS.ACK.")]
    return [_delivery(ack, payload) for _, ack, _, payload in rows]


def count(cluster: Cluster, stream: str) -> int:
    return cluster.machine(cluster.leader(stream), stream).index.count


def test_each_letter_is_stored_once_while_both_leaders_change(cluster: Cluster) -> None:
    """A work queue of which all is terminated or given up; its leader and that of the stream with
    the letters are handed over and killed in between."""
    letters = cluster.create("D", duplicate_window=100_000_000)
    cluster.create("W", retention="workqueue")
    metadata = {"streamd.dead_letter": "D.w"}
    # Acks are waited for longer than `pull` takes: else all would be given up.
    cluster.consumer("W", ack_wait=400 * 10**6, max_deliver=1, metadata=metadata)
    cluster.publish(60, "W")
    killed: NodeId = ""
    for round_ in range(12):
        got = pull(cluster, 10, "W")
        answer(cluster, got[::2], b"+TERM no", "W")  # the others are given up
        cluster.run_ms(20)
        if round_ in (2, 6):
            cluster.step_down("D")
        elif round_ in (3, 8):
            cluster.step_down("W")
        elif round_ in (4, 7):
            killed = cluster.leader("W" if round_ == 4 else "D")
            cluster.kill(killed)
        elif killed:
            cluster.boot(killed)
            killed = ""
    cluster.until("an empty queue", lambda: not count(cluster, "W"), 120)
    assert cluster.uid("D") == letters
    for stream in ("W", "D"):
        cluster.until_whole(stream)
    machine = cluster.machine(cluster.leader("D"), "D")
    bodies = Counter(cluster.read(cluster.leader("D"), "D").values())
    assert len(bodies) == 60 and set(bodies.values()) == {1}, bodies
    assert len(machine.content.producers) == 1
    told: list[list[object]] = []
    handle = cluster.node(cluster.leader("D")).replica(cluster.uid("D"))
    assert handle is not None
    cluster.process(cluster.leader("D")).run(handle.read, list(range(1, 61)), told.append)
    cluster.until("read", lambda: told)
    reasons = Counter(get(each.headers, b"Nats-Dead-Letter-Reason") for each in told[0])  # type: ignore[attr-defined]
    assert reasons.keys() == {b"terminated", b"max_deliver"}, reasons


def test_letters_wait_until_a_stream_stores_them(cluster: Cluster) -> None:
    cluster.create("W", retention="workqueue")
    metadata = {"streamd.dead_letter": "D.w", "streamd.lag": "true"}
    cluster.consumer("W", max_deliver=1, metadata=metadata)
    cluster.publish(5, "W")
    answer(cluster, cluster.pull(5, "W"), b"+TERM", "W")
    cluster.run_ms(7000)
    info = cluster.ask("CONSUMER.INFO.W.C")
    assert info["dead_letters"]["waiting"] == 5
    assert info["dead_letters"]["error"].startswith("no answer")
    assert count(cluster, "W") == 5
    cluster.create("D")
    cluster.until("an empty queue", lambda: not count(cluster, "W"), 60)
    assert count(cluster, "D") == 5
    assert cluster.ask("CONSUMER.INFO.W.C")["dead_letters"] == {"subject": "D.w", "waiting": 0}


def test_subjects_stay_in_order_while_leaders_change(cluster: Cluster) -> None:
    """One unacked message a subject: what is delivered was preceded by acks of all before it."""
    cluster.create("S")
    cluster.consumer(
        "S", ack_wait=500 * 10**6, metadata={"streamd.max_ack_pending_per_subject": "1"}
    )
    for _ in range(4):
        for key in ("a", "b", "c"):
            cluster.publish(3, "S", subject=key)
    subjects = dict(cluster.machine(cluster.leader("S"), "S").index.locations.live_subjects())
    acked: set[int] = set()
    for round_ in range(200):
        got = pull(cluster, 6, "S")
        for each in got:
            before = [s for s in subjects if s < each.seq and subjects[s] == subjects[each.seq]]
            assert acked.issuperset(before), (each.seq, sorted(acked))
        chosen = [each for at, each in enumerate(got) if (at + round_) % 3]
        acked |= {each.seq for each in chosen}
        answer(cluster, chosen, b"+ACK", "S")
        if round_ in (3, 6, 9):
            cluster.step_down("S")
        elif round_ == 5:
            killed = cluster.leader("S")
            cluster.kill(killed)
            cluster.run_ms(100)
            cluster.boot(killed)
        if len(acked) == len(subjects):
            break
    cluster.until_whole("S")
    consumer = cluster.machine(cluster.leader("S"), "S").consumers["C"]
    assert acked == set(subjects)
    assert not consumer.remaining.parked
