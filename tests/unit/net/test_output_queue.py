"""Output of a chunk: held back until its end, written once a connection."""

from __future__ import annotations

import pytest

from streamd.limits import CLIENT_SHARE_S
from streamd.net.pubsub.output_queue import OutputQueue


class Connection:
    """Counts its flushes; `is_behind` says at each that much waits."""

    def __init__(self, *, is_behind: bool = False) -> None:
        self.is_dirty = False
        self.is_behind = is_behind
        self.flushed = 0

    def flush(self) -> bool:
        self.flushed += 1
        return self.is_behind


def entered(output_queue: OutputQueue, *connections: Connection) -> None:
    for connection in connections:
        connection.is_dirty = True
        output_queue.dirty.append(connection)


def test_the_end_of_a_chunk_writes_each_connection_once() -> None:
    output_queue = OutputQueue(lambda: 5.0)
    dirty = output_queue.dirty
    output_queue.begin_chunk()
    assert output_queue.is_in_chunk and output_queue.until == 5.0 + CLIENT_SHARE_S
    publisher, receiver = Connection(), Connection()
    entered(output_queue, publisher, receiver)
    assert not output_queue.end_chunk(publisher)
    assert (publisher.flushed, receiver.flushed) == (1, 1)
    assert not (publisher.is_dirty or receiver.is_dirty or output_queue.is_in_chunk)
    assert output_queue.dirty is dirty and dirty == []  # parts that fill it hold this list


def test_a_receiver_that_is_behind_makes_its_publisher_rest() -> None:
    output_queue = OutputQueue()
    publisher, slow = Connection(is_behind=True), Connection(is_behind=True)
    output_queue.begin_chunk()
    entered(output_queue, publisher)
    assert not output_queue.end_chunk(publisher)  # behind with its own answers: not for that
    output_queue.begin_chunk()
    entered(output_queue, slow)
    output_queue.write_out(publisher)  # before the end, for much was gathered
    assert output_queue.end_chunk(publisher)
    output_queue.begin_chunk()
    assert not output_queue.end_chunk(publisher)


def test_receivers_of_much_are_written_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamd.net.pubsub.output_queue.FANOUT_BYTES", 100)
    output_queue = OutputQueue()
    receivers = [Connection() for _ in range(5)]
    seen = []
    for receiver in output_queue.in_parts(None, receivers, 50):
        seen.append([each.flushed for each in receivers])
        entered(output_queue, receiver)
        output_queue.gathered += 50
    assert [sum(flushed) for flushed in seen] == [0, 0, 2, 2, 4]
    assert all(each.flushed == 1 for each in receivers) and output_queue.gathered == 0


def test_output_that_a_flush_leads_to_is_kept_for_the_next() -> None:
    output_queue = OutputQueue()
    follower = Connection()

    class Leading(Connection):
        def flush(self) -> bool:
            entered(output_queue, follower)
            return super().flush()

    entered(output_queue, Leading())
    output_queue.write_out(None)
    assert (follower.flushed, output_queue.dirty) == (0, [follower])
