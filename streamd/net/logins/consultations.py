"""Logins that wait for others' decision: each a task, a bounded number of them at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from streamd.limits import CONSULTATIONS_MAX, CONSULTATIONS_WAITING_MAX
from streamd.net.client.auth import Consultation, Refusal, Verdict

Decide = Callable[[], Awaitable[Verdict]]
Done = Callable[[Verdict], None]

_CROWDED: Final = Refusal("too many logins wait for a decision", level="warning")


class CreateTask(Protocol):
    """`TaskGroup.create_task` of the server."""

    def __call__(self, work: Coroutine[Any, Any, None], /, *, name: str) -> object: ...


class Consultations:
    """Runs decisions on logins; those beyond the bound wait for their turn, in order."""

    def __init__(self, create_task: CreateTask) -> None:
        self._create_task = create_task
        self._running = 0
        self._waiting: deque[tuple[Decide, Done]] = deque()

    def of(self, decide: Decide) -> Consultation:
        """Return a consultation that `decide` answers."""
        return Consultation(lambda done: self._begin(decide, done))

    def _begin(self, decide: Decide, done: Done) -> None:
        if self._running < CONSULTATIONS_MAX:
            self._running += 1
            self._create_task(self._run(decide, done), name="login")
        elif len(self._waiting) < CONSULTATIONS_WAITING_MAX:
            self._waiting.append((decide, done))
        else:
            self._running += 1
            self._create_task(self._run(_refuse, done), name="login")

    async def _run(self, decide: Decide, done: Done) -> None:
        try:
            while True:
                done(await decide())
                if not self._waiting:
                    return
                decide, done = self._waiting.popleft()
        finally:
            self._running -= 1


async def _refuse() -> Verdict:
    return _CROWDED
