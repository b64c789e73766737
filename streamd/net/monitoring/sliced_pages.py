"""Pages of the monitoring port, built in slices between which the event loop goes on.

A builder is a generator: each `yield` is a pause, and between two pauses it does a bounded amount
of work (some 16 cheap looks, or one row). `Slicer` runs builders a slice at a time, one slice per
round of the loop whichever page it belongs to, so a page of any size holds clients up for
SLICE_S and one step at most. What a builder read before a pause may have changed after it: lists
are copied before the first pause, and rows of what is gone meanwhile show its last state.

A document is what `json` could encode, with one thing more: `Rows`, a list whose members are made
while the text is. `encode` makes the text, in pieces, each of which is a pause as well.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from json.encoder import encode_basestring
from typing import Generic, Protocol, TypeVar

from streamd.limits import SLICE_LOOKS, SLICE_S, SLICE_STEPS

T = TypeVar("T")
V = TypeVar("V")
Steps = Generator[None, None, T]
"""A builder of a T. It returns the T at its end."""

Document = dict[str, object]
"""A JSON object, whose lists may be `Rows`."""


class Rows:
    """A list in a document, made while it is encoded: once. A None among its members is no row
    but a pause."""

    def __init__(self, members: Iterable[object]) -> None:
        self._members = members

    def __iter__(self) -> Iterator[object]:
        return iter(self._members)


class Slicer:
    """Runs builders in slices, taking turns among them.

    `call_soon` is the loop's; `clock` counts seconds.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._jobs: deque[_Running] = deque()
        self._is_called = False
        self.slice_count = 0
        self.longest_slice_s = 0.0

    def __len__(self) -> int:
        return len(self._jobs)

    def start(
        self,
        steps: Steps[T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Run `steps` to their end, and call `done` with what they return or `failed` with what
        they raise; neither once `is_wanted` says no."""
        self._jobs.append(_Job(steps, done, failed, is_wanted))
        if not self._is_called:
            self._is_called = True
            self._call_soon(self._run_slice)

    async def wait(self, steps: Steps[T]) -> T:
        """Return what `steps` return."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def settle(put: Callable[[V], None], value: V) -> None:
            if not future.done():
                put(value)

        self.start(
            steps,
            lambda found: settle(future.set_result, found),
            lambda err: settle(future.set_exception, err),
            lambda: not future.done(),
        )
        return await future

    def _run_slice(self) -> None:
        job = self._jobs.popleft()
        started = self._clock()
        try:
            if not job.advance(self._clock, started + SLICE_S):
                self._jobs.append(job)
        finally:
            self.slice_count += 1
            self.longest_slice_s = max(self.longest_slice_s, self._clock() - started)
            self._is_called = bool(self._jobs)
            if self._is_called:
                self._call_soon(self._run_slice)


class _Running(Protocol):
    """A builder of anything on its way."""

    def advance(self, clock: Callable[[], float], until: float) -> bool: ...


class _Job(Generic[T]):
    """A builder on its way, and the receiver of its result."""

    __slots__ = ("_done", "_failed", "_is_wanted", "_steps")

    def __init__(
        self,
        steps: Steps[T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._steps = steps
        self._done = done
        self._failed = failed
        self._is_wanted = is_wanted

    def advance(self, clock: Callable[[], float], until: float) -> bool:
        """Go on for one slice; True if the builder has come to its end."""
        if not self._is_wanted():
            self._steps.close()
            return True
        try:
            for _ in range(SLICE_STEPS):
                next(self._steps)
                if clock() >= until:
                    break
        except StopIteration as end:
            self._done(end.value)
            return True
        except Exception as err:  # noqa: BLE001 the asker is answered with it
            self._failed(err)
            return True
        return False


def finish(steps: Steps[T]) -> T:
    """Return what `steps` return, without a pause: for tests, and where nobody waits."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


def looked_at(members: Iterable[T], count: int = SLICE_LOOKS) -> Iterator[T | None]:
    """Iterate over `members` with a None, a pause, before each `count` of them."""
    for at, member in enumerate(members):
        if at % count == 0:
            yield None
        yield member


def encode(value: object, line_end: str = "\n") -> Iterator[str]:
    """Iterate over the pieces of a document as JSON: for people, indented as nats-server does it,
    or with `line_end` "" in one line. An empty piece is a pause."""
    if isinstance(value, dict):
        return _encode_object(value, line_end)
    if isinstance(value, list | tuple | Rows):
        return _encode_array(value, line_end)
    return iter((_scalar(value),))


def to_text(document: object) -> str:
    """Return the whole text of a document."""
    return "".join(encode(document))


def gather(pieces: Iterator[str], size: int) -> Steps[str]:
    """Collect pieces until there are `size` characters of text; "" at the end of all."""
    found: list[str] = []
    count = 0
    for piece in pieces:
        found.append(piece)
        count += len(piece)
        if count >= size:
            break
        yield
    return "".join(found)


def whole(document: object) -> object:
    """Return a document with plain lists for its `Rows`."""
    if isinstance(document, dict):
        return {key: whole(value) for key, value in document.items()}
    if isinstance(document, list | tuple | Rows):
        return [whole(value) for value in document if value is not None]
    return document


def _encode_object(document: Document, line_end: str) -> Iterator[str]:
    if not document:
        yield "{}"
        return
    inner = line_end and line_end + "  "
    colon = ": " if line_end else ":"
    text, lead = "{", inner
    for key, value in document.items():
        text += f"{lead}{encode_basestring(key)}{colon}"
        lead = "," + inner
        if isinstance(value, dict | list | tuple | Rows):
            yield text
            yield from encode(value, inner)
            text = ""
        else:
            text += _scalar(value)
    yield f"{text}{line_end}}}"


def _encode_array(members: Iterable[object], line_end: str) -> Iterator[str]:
    inner = line_end and line_end + "  "
    lead = "[" + inner
    for member in members:
        if member is None:
            yield ""
            continue
        yield lead
        lead = "," + inner
        yield from encode(member, inner)
    yield f"{line_end}]" if lead[0] == "," else "[]"


def _scalar(value: object) -> str:
    if type(value) is str:
        return encode_basestring(value)
    if type(value) is int:
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
