"""After an ack the loop looks for the next publish without sleeping; as long as that pays."""

from __future__ import annotations

from collections.abc import Callable

from streamd.net.client.busy_poll import MISSES_MAX, POLL_S, REST_ACKS_MAX, REST_ACKS_MIN, BusyPoll
from tests.unit.net.bed import Bed, Node, Stream


class Loop:
    """Rounds of a loop that take 3 us each."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rounds = 0
        self.due: list[Callable[[], None]] = []
        self.busy_poll = BusyPoll(lambda: self.now)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def round(self) -> None:
        self.now += 3e-6
        self.rounds += 1
        due, self.due = self.due, []
        for callback in due:
            callback()

    def ack(self, *, next_after_s: float) -> int:
        """Ack, and have something come so long after it. Returns in how many rounds it looked."""
        self.busy_poll.on_ack(self.call_soon)
        came_at, before, has_come = self.now + next_after_s, self.rounds, False
        while self.due:
            if self.now >= came_at and not has_come:
                has_come = True
                if self.busy_poll.is_polling:
                    self.busy_poll.on_input()
            self.round()
        return self.rounds - before


def test_polling_ends_when_something_comes() -> None:
    loop = Loop()
    for _ in range(100):
        assert 10 <= loop.ack(next_after_s=30e-6) <= 12
    assert not loop.busy_poll.is_polling


def test_polling_ends_after_a_moment() -> None:
    loop = Loop()
    assert loop.ack(next_after_s=1.0) <= POLL_S / 3e-6 + 2
    assert not loop.busy_poll.is_polling


def test_an_ack_while_polling_begins_no_second_poll() -> None:
    loop = Loop()
    loop.busy_poll.on_ack(loop.call_soon)
    loop.busy_poll.on_ack(loop.call_soon)
    assert len(loop.due) == 1


def test_polling_that_does_not_pay_hardly_ever_happens() -> None:
    loop = Loop()
    rounds = sum(loop.ack(next_after_s=1.0) for _ in range(100_000))
    assert rounds < 100_000 / 50
    # And where it pays again, it is back after one rest at most.
    looked = [loop.ack(next_after_s=20e-6) > 0 for _ in range(REST_ACKS_MAX + 100)]
    assert all(looked[REST_ACKS_MAX:])


def test_a_miss_now_and_then_changes_nothing() -> None:
    loop = Loop()
    for number in range(1000):
        wait_s = 1.0 if number % MISSES_MAX else 20e-6
        assert loop.ack(next_after_s=wait_s) > 0
    loop.ack(next_after_s=20e-6)
    for _ in range(MISSES_MAX):
        loop.ack(next_after_s=1.0)
    assert [loop.ack(next_after_s=0.0) for _ in range(REST_ACKS_MIN)] == [0] * REST_ACKS_MIN
    assert loop.ack(next_after_s=20e-6) > 0


def test_the_ack_of_a_lone_publish_begins_a_poll_and_any_chunk_ends_it() -> None:
    bed = Bed(node=Node(Stream("S", ["s"])))
    now = 0.0
    bed.listener.busy_poll = busy_poll = BusyPoll(lambda: now)
    peer, other = bed.peer(), bed.peer()
    peer.send(b"SUB _INBOX.i.* 1\r\n")
    peer.conn.output.publish_acks(b"S", [b"_INBOX.i.1", b"_INBOX.i.2"], range(1, 3))
    assert not busy_poll.is_polling, "those of a batch are not waited for one by one"
    peer.conn.output.publish_acks(b"S", [b"_INBOX.i.1"], range(1, 2))
    assert busy_poll.is_polling
    assert busy_poll._until_s > 0
    other.send(b"PING\r\n")
    assert busy_poll._until_s == 0
