"""How quick the disk is: may the event loop write the log itself (docs/adr/0021), and how much of
it at once."""

from __future__ import annotations

QUICK_S = 0.001  # a write and its sync may take that long, on average
WEIGHT = 1 / 32  # of the latest write in the average: one that is slow now and then is forgiven
HICCUP_S = 0.004  # longer ones weigh no more than that: they say little of the next
HUNG_S = 0.1  # but whoever holds the loop that long does not get another chance at once
TRIAL_S = 0.0008  # the average after a rest: few slow writes are enough then
REST_S = 0.05  # the thread writes that long; then the loop tries again
REST_MAX_S = 5.0
TRIAL_WRITES = 64  # the disk that fails the loop sooner after a rest is as slow as before it

BATCH_BYTES_MIN = 1024 * 1024  # what one write may always have
BATCH_BYTES_MAX = 8 * 1024 * 1024
BATCH_S = 0.008  # those who come later wait so long, and not much longer


class Pace:
    """Watches how long the loop's own writes take, and gives them to the thread for a while.

    A slow disk and large batches are alike: the loop has better things to do meanwhile. The rests
    grow while writes stay slow, so that trying costs next to nothing; a quick disk that has a slow
    spell now and then gets a short one each time. Times are monotonic, in seconds.
    """

    def __init__(self) -> None:
        self._average_s = 0.0  # what a write took
        self._rest_s = REST_S
        self._rest_until = 0.0
        self._count = 0  # writes of the loop since its last rest

    def is_quick(self, now: float) -> bool:
        return now >= self._rest_until

    def note(self, began: float, ended: float) -> None:
        """The loop wrote and synced a batch."""
        self._count += 1
        took_s = ended - began
        self._average_s += WEIGHT * (min(took_s, HICCUP_S) - self._average_s)
        if self._average_s > QUICK_S or took_s > HUNG_S:
            is_slow_still = self._count <= TRIAL_WRITES
            self._rest_s = min(2 * self._rest_s, REST_MAX_S) if is_slow_still else REST_S
            self._rest_until = ended + self._rest_s
            self._average_s = TRIAL_S
            self._count = 0


class BatchSize:
    """How many bytes one write may have, `bytes_max`: as many as the disk takes while others can
    wait. Each write costs a sync and two wake-ups, however large it is."""

    def __init__(self) -> None:
        self.bytes_max = BATCH_BYTES_MIN

    def note(self, size: int, took_s: float) -> None:
        """A batch of `size` was written and synced."""
        if took_s > BATCH_S:
            self.bytes_max = max(BATCH_BYTES_MIN, self.bytes_max // 2)
        elif size >= self.bytes_max and took_s < BATCH_S / 2:
            self.bytes_max = min(BATCH_BYTES_MAX, self.bytes_max * 2)
