"""What any node answers for the leader is what the leader answers."""

from __future__ import annotations

from tests.scenarios.driver import Cluster


def test_a_pull_from_a_consumer_that_is_not_there(cluster: Cluster) -> None:
    """Clients tell by the subject which of their requests nobody took."""
    cluster.create()
    replies = {name: cluster.send("CONSUMER.MSG.NEXT.S.gone", {"batch": 1}, name)
               for name in cluster.names}  # fmt: skip
    cluster.until("answers", lambda: all(map(cluster.received, replies.values())))
    expected = b"NATS/1.0 503\r\nNats-Subject: $JS.API.CONSUMER.MSG.NEXT.S.gone\r\n\r\n"
    assert {name: cluster.received(reply)[0][2] for name, reply in replies.items()} == (
        dict.fromkeys(cluster.names, expected)
    )


def test_an_ack_to_a_consumer_that_wants_none(cluster: Cluster) -> None:
    cluster.create()
    cluster.consumer(name="N", ack_policy="none", ack_wait=0)
    cluster.publish(1)
    (got,) = cluster.pull(1, name="N", at=cluster.leader("S"))
    expected = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % got.ack
    for name in cluster.followers("S"):
        reply = cluster.reply(name)
        handle = cluster.node(name).stream("S")
        assert handle is not None
        cluster.process(name).run(handle.acks, [got.ack], [reply], [b"+ACK"])
        cluster.until("an answer", lambda reply=reply: cluster.received(reply), 1)
        assert cluster.received(reply)[0][2] == expected


def test_acks_of_a_chunk_that_is_more_than_one_entry(cluster: Cluster) -> None:
    """A message of the greatest size with others behind it: each is answered by itself."""
    cluster.create()
    msgs = [(b"S.x", b"", body) for body in (b"x" * (1 << 20), b"small", b"small too")]
    last = 0
    for at in cluster.names:
        assert cluster.publish_raw("S", msgs, at) == [last + 1, last + 2, last + 3]
        last += 3
        assert not cluster.node(at).parts.cluster.forwarding.relay._waiting
