"""Memory that a burst freed goes back to the kernel when the process rests, not before."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable

import pytest

from streamd import limits
from streamd.cli.freed_memory import FreedMemory, find_trim

MIB = 2**20


class Process:
    """A process with a timer, a CPU clock, and memory of which some is free."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.used_s = 0.0
        self.held = 50 * MIB
        self.free = 0
        self.trims = 0
        self.freed_memory = FreedMemory(
            self._later, cpu_s=lambda: self.used_s, resident_bytes=self._resident, trim=self._trim
        )

    def _later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        assert delay_s == limits.TRIM_LOOK_S
        self.timers.append(Timer(callback))
        return self.timers[-1]

    def _resident(self) -> int:
        return self.held + self.free

    def _trim(self) -> None:
        self.free = 0
        self.trims += 1

    def pass_time(self, *, cpu_share: float) -> None:
        """Let the time until the next look pass."""
        self.used_s += cpu_share * limits.TRIM_LOOK_S
        timer = self.timers.pop()
        assert not self.timers and not timer.is_cancelled
        timer.callback()


class Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


@pytest.fixture
def process() -> Process:
    made = Process()
    made.freed_memory.start()
    made.pass_time(cpu_share=0.0)  # what the start freed
    assert made.trims == 1
    return made


def test_freed_memory_is_returned_once_the_load_is_over(process: Process) -> None:
    process.free = 100 * MIB
    process.pass_time(cpu_share=0.9)
    assert process.free == 100 * MIB
    process.pass_time(cpu_share=0.01)
    assert process.free == 0


def test_a_process_at_rest_is_left_alone(process: Process) -> None:
    for _ in range(10):
        process.pass_time(cpu_share=0.0)
    assert process.trims == 1


def test_memory_in_use_is_looked_through_once_for_each_growth(process: Process) -> None:
    process.held += 2 * limits.TRIM_BYTES_MIN
    for _ in range(10):
        process.pass_time(cpu_share=0.0)
    assert process.trims == 2
    process.held += limits.TRIM_BYTES_MIN // 2
    process.pass_time(cpu_share=0.0)
    assert process.trims == 2


def test_a_stopped_one_looks_no_more(process: Process) -> None:
    process.freed_memory.stop()
    assert [timer.is_cancelled for timer in process.timers] == [True]


def test_the_c_library_is_asked_where_it_can_return_memory() -> None:
    trim = find_trim()
    if trim is None:
        pytest.skip("the C library has no malloc_trim")
    assert trim() in (0, 1)


# A buffer of a client's chunk after another; prints how many pages the kernel had to give for them.
BUFFERS = """
import resource
from streamd.cli.freed_memory import keep_for_reuse
is_kept = keep_for_reuse()
piece = b"x" * 100
piece * 20_000
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(1000):
    piece * 3000
    piece * 20_000
print(is_kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_for_buffers(**environment: str) -> tuple[bool, int]:
    plain = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    ran = subprocess.run(
        [sys.executable, "-c", BUFFERS],
        env=plain | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    is_kept, pages = ran.stdout.split()
    return is_kept == "True", int(pages)


def test_buffers_of_a_busy_process_use_the_same_pages_again() -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("mallopt's options are glibc's; other C libraries keep memory in their own way")
    is_kept, pages = pages_for_buffers()
    assert is_kept
    assert pages < 1000


def test_what_an_operator_has_set_stays() -> None:
    is_kept, pages = pages_for_buffers(
        MALLOC_TRIM_THRESHOLD_="65536", MALLOC_MMAP_THRESHOLD_="65536"
    )
    assert not is_kept
    assert pages > 100_000  # of 4 KiB, where they are not larger
