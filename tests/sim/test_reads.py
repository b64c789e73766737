"""A leader that was replaced and has not heard of it. Scripted: chance hardly ever comes to it, for
who hears nothing of a majority gives up leading before anybody else stands for election."""

from __future__ import annotations

from typing import Any

from tests.sim.mutants import broken
from tests.sim.test_members import born
from tests.sim.world import MS

NAME = "S1"
LINEARIZABLE = b"NATS/1.0\r\nNats-Linearizable: true\r\n\r\n"


def read_at_a_replaced_leader(*, is_direct: bool = False) -> list[Any]:
    """A hands over to B, and hears nothing from then on. B stores a message; then a client of A
    asks for the stream's last seq. Return what A answers before it notices."""
    with born(3) as script:
        cluster, reader = script.cluster, script.operator
        uid = next(asset.uid for asset in cluster.assets() if asset.name == NAME)
        script.publish(NAME, 3)
        old = next(name for name in cluster.names if script.group(name, uid).is_ready)
        new = next(name for name in cluster.names if name != old)
        process, node = cluster.hosts[old].process, cluster.hosts[old].node
        assert process is not None
        assert node is not None
        cluster.net.block({(other, old) for other in cluster.names if other != old})
        process.run(node.step_down, uid, new, lambda result: None)
        script.wait("another leader", lambda: script.group(new, uid).is_ready)
        script.publish(NAME, 1, at=new)
        assert script.group(new, uid).machine.index.last_seq == 4
        assert script.group(old, uid).is_ready
        answers: list[Any] = []
        reader.connect(old)
        if is_direct:
            found = reader.await_reply(lambda headers, payload: answers.append(headers))
            subject, asked = f"$JS.API.DIRECT.GET.{NAME}".encode(), b'{"seq":4}'
            process.run(process.router.handle, subject, found, LINEARIZABLE, asked)
        else:
            process.run(reader.request, f"STREAM.INFO.{NAME}", None, answers.append)
        cluster.world.run(cluster.world.now_us + 300 * MS)
        assert script.group(old, uid).is_ready  # it has not noticed yet
        if is_direct:
            return answers
        return [answer["state"]["last_seq"] for answer in answers if "state" in answer]


def test_a_replaced_leader_answers_no_read() -> None:
    assert read_at_a_replaced_leader() == []


def test_a_leader_that_asks_nobody_is_caught() -> None:
    with broken("stale_reads"):
        assert read_at_a_replaced_leader() == [3]


def test_a_replaced_leader_answers_no_linearizable_direct_get() -> None:
    """It does not have the message that its successor acked, and does not say so."""
    assert read_at_a_replaced_leader(is_direct=True) == []


def test_a_leader_that_asks_nobody_is_caught_by_a_direct_get() -> None:
    with broken("stale_reads"):
        (headers,) = read_at_a_replaced_leader(is_direct=True)
        assert headers.startswith(b"NATS/1.0 404")
