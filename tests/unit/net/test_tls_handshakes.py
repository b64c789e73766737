"""Steps of handshakes run on threads of their own, few at a time; a second has only so many."""

from __future__ import annotations

import asyncio
import threading

from streamd.net.tls.connection_rate import ConnectionRate
from streamd.net.tls.handshakes import THREADS, Handshakes
from tests.unit.net.bed import Clock


def test_no_more_steps_at_once_than_threads_and_none_on_the_loop() -> None:
    """Two hundred that come together wait in line, and all are run, in order."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        handshakes, lock = Handshakes(), threading.Lock()
        running, most, names = 0, 0, set()
        done: list[int] = []
        may_go_on, all_done = threading.Event(), asyncio.Event()

        def step(number: int) -> int:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
                names.add(threading.current_thread().name)
            may_go_on.wait(30)
            with lock:
                running -= 1
            return number

        def finish(number: int) -> None:
            done.append(number)
            if len(done) == 100:
                all_done.set()

        for at in range(200):
            handshakes.run(
                loop,
                lambda n=at: step(n),  # type: ignore[misc]
                is_gone=lambda n=at: n % 2 == 1,  # type: ignore[misc]
                done=finish,
            )
        assert not done  # the loop came here without a step
        may_go_on.set()
        await asyncio.wait_for(all_done.wait(), 30)
        assert most <= THREADS and threading.current_thread().name not in names
        assert sorted(done) == list(range(0, 200, 2))
        handshakes.close()

    asyncio.run(main())


def test_the_rate_counts_in_spans_of_a_second() -> None:
    """The first connection after a span begins the next; refusals are told at its end."""
    clock, told = Clock(), list[int]()
    rate = ConnectionRate(2, clock, told.append)  # type: ignore[arg-type]
    assert [rate.allow() for _ in range(5)] == [True, True, False, False, False]
    clock.advance(0.9)
    assert not rate.allow() and told == []
    clock.advance(0.1)
    assert told == [4]
    assert [rate.allow() for _ in range(3)] == [True, True, False]
    clock.advance(1)
    assert told == [4, 1]
    unlimited = ConnectionRate(0, clock, told.append)  # type: ignore[arg-type]
    assert all(unlimited.allow() for _ in range(1000))
