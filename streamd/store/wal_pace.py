"""Whether the disk is quick enough for the event loop to write the log itself (docs/adr/0021)."""

from __future__ import annotations

QUICK_S = 0.001  # a write and its sync may take that long, on average
WEIGHT = 1 / 32  # of the latest write in the average: one that is slow now and then is forgiven
HICCUP_S = 0.004  # longer ones weigh no more than that: they say little of the next
HUNG_S = 0.1  # but whoever holds the loop that long does not get another chance at once
TRIAL_S = 0.0008  # the average after a rest: few slow writes are enough then
REST_S = 0.05  # the thread writes that long; then the loop tries again
REST_MAX_S = 5.0
TRIAL_WRITES = 64  # the disk that fails the loop sooner after a rest is as slow as before it


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
